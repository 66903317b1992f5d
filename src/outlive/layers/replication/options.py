"""What is asked of a pair of stores, and how it is."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from outlive.errors import BadArgument

MODES = ("sync", "async")
WHEN_DOWN = ("fail", "queue")


@dataclass(frozen=True, slots=True)
class Replication:
    """The options of a pair. Wrong ones are refused here, with the sentence that mends them."""

    mode: str = "sync"
    on_secondary_down: str = "fail"  # or "queue"; "async" always queues
    is_enabled: bool = True
    health_check_interval_s: float = 30.0
    auto_failover: bool = True
    max_failover_attempts: int = 3
    failback_delay_s: float = 300.0

    @classmethod
    def of(cls, given: dict[str, Any]) -> Replication:
        """Read options as they were given to `outlive.open`."""
        mode = _one_of("replication", given.get("replication", "sync"), MODES)
        down = given.get("on_secondary_down")
        if mode == "async" and down is not None:
            raise BadArgument('on_secondary_down is for replication="sync"; "async" always queues')
        down = "queue" if mode == "async" else _one_of("on_secondary_down", down or "fail", WHEN_DOWN)
        is_strict = down == "fail"
        automatic = given.get("auto_failover")
        return cls(
            mode,
            down,
            _switch("enable_replication", given.get("enable_replication", True)),
            _seconds("health_check_interval_s", given.get("health_check_interval_s", 30.0), least=0.01),
            is_strict if automatic is None else _switch("auto_failover", automatic),
            _count("max_failover_attempts", given.get("max_failover_attempts", 3)),
            _seconds("failback_delay_s", given.get("failback_delay_s", 300.0), least=0.0),
        )

    @property
    def is_strict(self) -> bool:
        """Tell whether what is acknowledged is in both stores."""
        return self.on_secondary_down == "fail"


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """How a pair is. What is queued is counted in both stores; while one of them does not answer, `is_exact` is false."""

    mode: str  # "sync" or "async"
    on_secondary_down: str
    is_enabled: bool
    active: str  # "primary" or "secondary"
    is_failed_over: bool
    failed_over_at: dt.datetime | None  # since when the secondary is active; None while the primary is
    epoch: int
    failovers: int  # that this process made or saw
    primary_healthy: bool
    secondary_healthy: bool
    is_whole: bool  # the store that is not active has all but what is queued
    queued: int  # commits that one of the stores has yet to get
    queued_bytes: int
    lag_s: float  # age of the oldest of them
    is_exact: bool  # false: a store did not answer, and these three are the least that can be said
    unreachable: int  # commits of this process that were queued in a store which does not answer now
    last_error: str | None


@dataclass(frozen=True, slots=True)
class RoleChange:
    """What a promotion or a failback did."""

    epoch: int
    carried: int  # queued commits that the other store got on the way
    branched: tuple[str, ...] = ()  # threads that both stores had gone on with: see thread.tips()


def _one_of(name: str, value: object, known: tuple[str, ...]) -> str:
    if value not in known:
        raise BadArgument(f"{name} must be {' or '.join(repr(one) for one in known)}, not {value!r:.100}")
    return str(value)


def _switch(name: str, value: object) -> bool:
    named = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    found = named.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise BadArgument(f"{name} must be True or False, not {value!r:.100}")
    return found


def _count(name: str, value: object) -> int:
    found = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise BadArgument(f"{name} must be a whole number, 0 or more, not {value!r:.100}")
    return found


def _seconds(name: str, value: object, *, least: float) -> float:
    try:
        found = None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = None
    if found is None or not least <= found <= 1e9:
        raise BadArgument(f"{name} must be a number of seconds, {least:g} or more, not {value!r:.100}")
    return found
