"""The options of a pair of stores, and its status."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from outlive.arguments import check_choice, check_count, check_flag, check_seconds
from outlive.dataclass import dataclass
from outlive.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Replication:
    """A second store, and how it is kept in step: `outlive.open(url,
    replication=outlive.Replication(secondary))`.

    `secondary` is what `outlive.open` takes. `mode="sync"` saves
    to both stores before a save returns, "async" queues for the second one. `on_secondary_down` is
    for "sync": "fail" refuses a save that only one store can take, "queue" accepts it.
    `enabled=False` leaves the store that is not active alone; it gets everything later.
    `auto_failover=None` means True for mode="sync" with on_secondary_down="fail", else False.
    """

    secondary: Any
    mode: Literal["sync", "async"] = "sync"
    on_secondary_down: Literal["fail", "queue"] | None = None
    enabled: bool = True
    health_check_interval_s: float = 30.0
    auto_failover: bool | None = None
    max_failover_attempts: int = 3
    failback_delay_s: float = 300.0

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("sync", "async"))
        if self.mode == "async" and self.on_secondary_down is not None:
            raise BadArgument('on_secondary_down is for mode="sync"; "async" always queues')
        down = "queue" if self.mode == "async" else self.on_secondary_down or "fail"
        check_choice("on_secondary_down", down, ("fail", "queue"))
        check_flag("enabled", self.enabled)
        check_seconds("health_check_interval_s", self.health_check_interval_s, 0.01)
        check_count("max_failover_attempts", self.max_failover_attempts)
        check_seconds("failback_delay_s", self.failback_delay_s, 0.0)
        automatic = down == "fail" if self.auto_failover is None else self.auto_failover
        object.__setattr__(self, "on_secondary_down", down)
        object.__setattr__(self, "auto_failover", check_flag("auto_failover", automatic))

    @property
    def is_strict(self) -> bool:
        """Tell whether what is acknowledged is in both stores."""
        return self.on_secondary_down == "fail"


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """The state of a pair. `is_exact` is false while one store cannot report what it has queued."""

    mode: str  # "sync" or "async"
    on_secondary_down: str
    is_enabled: bool
    active: str  # "primary" or "secondary"
    is_failed_over: bool
    # Since when the secondary is active; None while the primary is.
    failed_over_at: dt.datetime | None
    epoch: int
    failovers: int  # that this process made or saw
    primary_healthy: bool
    secondary_healthy: bool
    is_caught_up: bool  # the store that is not active has all but what is queued
    queued: int  # commits that one of the stores has yet to get
    queued_bytes: int
    lag_s: float  # age of the oldest of them
    is_exact: bool  # false: a store did not answer, and these three are the least that can be said
    # Commits of this process that were queued in a store which does not answer now.
    unreachable: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class RoleChange:
    """What a promotion or a failback did."""

    epoch: int
    carried: int  # queued commits that were transferred on the way
    branched: tuple[str, ...] = ()  # threads that were continued in both stores: see thread.tips()
