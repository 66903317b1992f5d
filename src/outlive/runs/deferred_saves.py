"""Saves of a run that are not stored at once: the newest is kept, packed and checked.

A save waits because the last one was stored only a moment ago (`throttle_s`), or until the run ends
(durability="exit"). The call checks and packs all of it. So a change of the state afterwards does
not reach it, and only an error of the store can make it fail later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from outlive.dataclass import dataclass
from outlive.format import manifest
from outlive.format.codec import Codec
from outlive.threads.save import Draft


@dataclass(frozen=True, slots=True)
class Kept:
    """A save that was asked for, packed."""

    _codec: Codec
    _state: bytes
    _manifest: bytes  # metadata, interrupts and so on
    _writes: tuple[bytes, ...]
    _draft: Draft

    @classmethod
    def of(cls, codec: Codec, state: Any, draft: Draft) -> Kept:
        """Pack a save. Raises Unencodable."""
        writes = tuple([codec.pack(write.value, f"writes of task {write.task!r}") for write in draft.writes])
        return cls(codec, codec.pack(state), manifest.encode(codec, [], draft), writes, draft)

    def state(self) -> Any:
        """Return the state; values of registered types stay packed, as nothing here reads them."""
        return self._codec.unpack(self._state, opaque=True)

    def draft(self, timeout_s: float | None = None) -> Draft:
        """Return the draft of the save, with the same id every time, so that it is stored once."""
        fields = manifest.decode(self._codec, self._manifest, opaque=True)
        times = [time_s for time_s in (timeout_s, self._draft.timeout_s) if time_s is not None]
        return replace(
            self._draft,
            metadata=fields.metadata,
            interrupts=fields.interrupts,
            writes=tuple(
                replace(write, value=self._codec.unpack(packed, opaque=True))
                for write, packed in zip(self._draft.writes, self._writes, strict=True)
            ),
            timeout_s=min(times, default=None),
        )


class Deferred:
    """The save that a run holds back, and when it last stored one."""

    def __init__(self, interval_s: float, clock: Callable[[], float] | None = None) -> None:
        self.interval_s = interval_s
        self.kept: Kept | None = None
        self._until_end = False
        self._clock = time.monotonic if clock is None else clock
        self._last = float("-inf")

    def is_too_soon(self) -> bool:
        """Tell whether a save would come too soon after the last one."""
        return self.interval_s > 0 and self._clock() - self._last < self.interval_s

    def keep(self, kept: Kept, *, until_end: bool) -> None:
        """Hold a save back, in place of an older one."""
        self.kept, self._until_end = kept, until_end

    def is_due(self) -> bool:
        """Tell whether the timer should store the save that is held back."""
        return self.kept is not None and not self._until_end and not self.is_too_soon()

    def stored(self) -> None:
        """Note that a save was stored, which is newer than the one held back."""
        self.kept = None
        if self.interval_s > 0:
            self._last = self._clock()
