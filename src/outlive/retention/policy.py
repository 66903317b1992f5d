"""How much of the past a store keeps, and what a sweep took away. Values, no I/O."""

from __future__ import annotations

from dataclasses import field

from outlive.arguments import check_count, check_flag, check_seconds
from outlive.dataclass import dataclass
from outlive.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Retain:
    """How much of the past a store keeps: `outlive.open(url, retain=outlive.Retain(keep_last=50, ttl_s=30 * 86400))`.

    `stream_s`: how long after the end of a run the chunks that it emitted are kept (default:
    `max_age_s`, and without that as long as the thread). `every_s=None`: only `store.sweep()`
    sweeps. `refresh_on_read`: a load counts as use of a thread, too; the store notes it at most ten
    times in `ttl_s`.
    """

    keep_last: int | None = None
    max_age_s: float | None = None
    ttl_s: float | None = None
    stream_s: float | None = None
    every_s: float | None = 3600.0
    refresh_on_read: bool = False

    def __post_init__(self) -> None:
        if self.keep_last is not None:
            check_count("keep_last", self.keep_last, 1)
        for name in ("max_age_s", "ttl_s", "stream_s", "every_s"):
            value = getattr(self, name)
            if value is not None:
                check_seconds(name, value)
        if self.keep_last is self.max_age_s is self.ttl_s is self.stream_s is None:
            raise BadArgument("Retain keeps everything: give keep_last, max_age_s, ttl_s or stream_s")
        check_flag("refresh_on_read", self.refresh_on_read)
        if self.refresh_on_read and self.ttl_s is None:
            raise BadArgument("refresh_on_read is about ttl_s: give that too")

    @property
    def streams_s(self) -> float | None:
        """How long after its end the stream of a run is kept; None: as long as its thread."""
        return self.max_age_s if self.stream_s is None else self.stream_s


@dataclass(slots=True)
class DeletionCount:
    """What was deleted for one reason. Bytes that several reasons free count for the first."""

    threads: int = 0
    checkpoints: int = 0
    freed_bytes: int = 0


@dataclass(slots=True)
class Swept:
    """What a sweep deleted, or with `dry_run` would delete, by reason.

    `kept` counts what was due and is still needed.
    """

    dry_run: bool = False
    threads: int = 0  # looked at
    ttl: DeletionCount = field(default_factory=DeletionCount)
    max_age: DeletionCount = field(default_factory=DeletionCount)
    keep_last: DeletionCount = field(default_factory=DeletionCount)
    orphans: DeletionCount = field(default_factory=DeletionCount)  # chunks that a crash had left
    streams: DeletionCount = field(default_factory=DeletionCount)  # chunks that ended runs had emitted
    kept: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # threads that could not be swept
    is_complete: bool = True  # False: it was stopped

    @property
    def checkpoints(self) -> int:
        """How many checkpoints were deleted."""
        return self.ttl.checkpoints + self.max_age.checkpoints + self.keep_last.checkpoints

    @property
    def freed_bytes(self) -> int:
        """How many bytes were freed."""
        counts = (self.ttl, self.max_age, self.keep_last, self.orphans, self.streams)
        return sum(count.freed_bytes for count in counts)

    def keep(self, reason: str, count: int = 1) -> None:
        """Count what was due and is still needed."""
        if count:
            self.kept[reason] = self.kept.get(reason, 0) + count
