"""A pair as each of its two stores tells it. Looking joins nothing, fills nothing and moves no role: opening the pair might."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlive.backends.server.urls import BackendFactory
from outlive.cli.output.units import counted, size, span
from outlive.cli.stores import Absent, check_path, check_served, configured
from outlive.errors import KeyMissing, OutliveError, StoreError, StoreUnavailable
from outlive.layers.encryption.keyring import KeyRing, is_sealed, key_of
from outlive.layers.replication.backlog import Backlog
from outlive.layers.replication.pair import (
    ALONE,
    OLD_COPY,
    PRIMARY,
    ROLES,
    SECONDARY,
    PairEnded,
    PairRecord,
    active_role,
    check_match,
    read_pair_record,
)
from outlive.runtime.runtime import SyncRuntime, run_now

_PATIENCE_S = 5.0
_JOIN = "outlive replication --join makes the secondary a copy of the primary"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one of the two stores says, or why it says nothing."""

    role: int
    url: str
    side: PairRecord | None = None
    error: OutliveError | None = None
    queued: int = 0
    queued_bytes: int = 0
    lag_s: float = 0.0
    key: str | None = None  # the id of the one that it is sealed under

    @property
    def is_absent(self) -> bool:
        """Tell whether it answers, and is no store of a pair."""
        return self.side is None and (self.error is None or isinstance(self.error, Absent))

    @property
    def is_out_of_reach(self) -> bool:
        return self.error is not None and not self.is_absent


Replicas = Sequence[Seen]  # the primary and the secondary


def look(url: str, options: dict[str, Any]) -> Replicas:
    """Ask both stores of a pair, each by itself."""
    target = configured(url, options)
    assert target.secondary is not None
    tenant, timeout_s = target.settings.tenant, min(_PATIENCE_S, target.settings.timeout_s or _PATIENCE_S)
    seen = [
        _look(PRIMARY, url, target.served, tenant, timeout_s),
        _look(SECONDARY, options["secondary"], target.secondary, tenant, timeout_s),
    ]
    if seen[0].side is not None and seen[1].side is not None:
        check_match(seen[0].side, seen[1].side)
    return [_unjoined(one, other) for one, other in zip(seen, reversed(seen), strict=True)]


def _unjoined(one: Seen, other: Seen) -> Seen:
    """A store that goes on alone after its pair has ended is like any other beside one that it was never joined with."""
    is_free = one.side is not None and one.side.ended == ALONE and other.is_absent
    return replace(one, side=None) if is_free else one


def _look(role: int, url: str, served: BackendFactory, tenant: str, timeout_s: float) -> Seen:
    try:
        check_path(url, served)
        backend: Any = served.sync(timeout_s)
        check_served(backend, served)
        try:
            return run_now(_ask(role, served.shown, backend, tenant, timeout_s))
        finally:
            run_now(backend.close())
    except StoreError as error:
        return Seen(role, served.shown, error=error)


async def _ask(role: int, shown: str, backend: Any, tenant: str, timeout_s: float) -> Seen:
    side = await read_pair_record(backend, tenant, timeout_s)
    replicator: Any = None  # for counting nothing is transferred
    backlog = Backlog(backend, replicator, tenant, SyncRuntime(), timeout_s)
    counts = await backlog.count()
    naming = (
        b"" if side is None else await backend.identity(b"")
    )  # one that is not of a pair may have none yet
    return Seen(role, shown, side, None, *counts, key_of(naming) if is_sealed(naming) else None)


def epoch_of(seen: Replicas) -> int | None:
    """Return the epoch that the pair is in, as far as it can be seen."""
    return max((one.side.epoch for one in seen if one.side is not None), default=None)


def active_of(seen: Replicas) -> int | None:
    """Return which store is active."""
    epoch = epoch_of(seen)
    return None if epoch is None else active_role(epoch)


def options_of_pair(
    seen: Replicas, options: dict[str, Any], *, takes_over: bool, needs_key: bool = True
) -> dict[str, Any]:
    """Return options with which the pair is opened as it is; refuse what opening would change without being asked.

    An empty secondary would be filled, and an empty primary left: a mistake in a URL must do neither. `takes_over` means the latter.
    """
    primary, secondary = seen
    if (ended := ended_of(seen)) is not None:
        raise PairEnded(ended)
    for one in seen:
        if one.is_absent and not (takes_over and one is primary and secondary.side is not None):
            reason = one.error or f"{one.url} is a store, but the {ROLES[one.role]} of no pair"
            raise Absent(f"{reason}; {_mend(seen, [state_of(seen, each) for each in seen])}")
    if primary.is_out_of_reach and active_of(seen) == PRIMARY and not takes_over:
        raise StoreUnavailable(
            f"the primary cannot be reached ({primary.error}); outlive promote makes the secondary active"
        )
    keys = [one.key for one in seen if one.key is not None]
    if keys and "key" not in options:
        if needs_key:
            raise KeyMissing(keys[0])
        options = {**options, "key": KeyRing()}
    return {**options, "auto_failover": takes_over, "enabled": not _is_paused(seen)}


def ended_of(seen: Replicas) -> PairRecord | None:
    """Return what a store says of a pair that has ended, or None."""
    return next((one.side for one in seen if one.side is not None and one.side.ended), None)


def _is_paused(seen: Replicas) -> bool:
    side = seen[active_of(seen) or PRIMARY].side
    return side is not None and side.is_paused


def lost_of(seen: Replicas) -> int | None:
    """Return which store was active and is not there any more, though the other is."""
    active = active_of(seen)
    return active if active is not None and seen[active].is_absent else None


# What is said of it -------------------------------------------------------------------------------------------


def item_of(seen: Replicas, one: Seen) -> dict[str, Any]:
    """Return what --json says of one store."""
    side = one.side
    return {
        "role": ROLES[one.role],
        "url": one.url,
        "state": state_of(seen, one),
        "is_active": one.role == active_of(seen),
        "epoch": None if side is None else side.epoch,
        "queued": None if one.is_out_of_reach else one.queued,
        "queued_bytes": None if one.is_out_of_reach else one.queued_bytes,
        "lag_s": None if one.is_out_of_reach else round(one.lag_s, 3),
        "error": None if one.error is None else str(one.error),
    }


def state_of(seen: Replicas, one: Seen) -> str:
    """Return how one store is, in a word or two."""
    if one.is_out_of_reach:
        return "out of reach"
    if one.side is None:
        return "absent" if one.error is not None else "not joined"
    if one.side.ended:
        return "old copy" if one.side.ended == OLD_COPY else "alone"
    if one.role == active_of(seen):
        return "active"
    if _is_paused(seen):
        return "paused"
    return "standby" if one.side.is_caught_up else "being filled"


def is_well(seen: Replicas) -> bool:
    """Tell whether the primary is active and the secondary could take over."""
    return [state_of(seen, one) for one in seen] == ["active", "standby"]


def told(seen: Replicas) -> tuple[str, str]:
    """Return how a pair is, and what mends it."""
    states = [state_of(seen, one) for one in seen]
    epoch = epoch_of(seen)
    said = ", ".join(f"{ROLES[one.role]} {state}" for one, state in zip(seen, states, strict=True))
    said += f"; epoch {epoch}" if epoch is not None else ""
    queued = sum(one.queued for one in seen)
    if any(one.is_out_of_reach for one in seen):
        said += "; what it has queued is not known"
    if queued:
        behind = f"{size(sum(one.queued_bytes for one in seen))}, the oldest {span(max(one.lag_s for one in seen))} old"
        said += f"; {counted(queued, 'commit')} queued ({behind})"
    return said, _mend(seen, states)


def _mend(seen: Replicas, states: list[str]) -> str:
    active = active_of(seen)
    if "alone" in states:
        rest = (
            ""
            if "old copy" in states
            else "; outlive replication --leave tells the other one, when it can be reached"
        )
        return f"the pair has ended: open the {ROLES[states.index('alone')]} without a secondary{rest}"
    if "old copy" in states:
        return "the pair is about to end: outlive replication --leave finishes that"
    if active == SECONDARY and lost_of(seen) is not None:
        return (
            "check the URL of the secondary, which is active; if it has lost everything, outlive replication --pause goes on with what the "
            "primary has"
        )
    if active is None or states[SECONDARY] in ("absent", "not joined"):
        can_join = not any(one.is_out_of_reach for one in seen) and states[PRIMARY] != "absent"
        return f"check both URLs; {_JOIN}" if can_join else "check both URLs"
    if active == SECONDARY:
        return "outlive failback brings the primary up to date and makes it active again"
    if states[PRIMARY] in ("absent", "not joined"):
        return "check the URL of the primary; if it has lost everything, outlive promote makes the secondary active"
    if states[PRIMARY] == "out of reach":
        return "outlive promote makes the secondary active"
    if states[SECONDARY] == "out of reach":
        return f"start the secondary again: what is saved meanwhile is refused or queued ({seen[SECONDARY].error})"
    if states[SECONDARY] == "paused":
        return "outlive replication --join switches it on again: the secondary gets everything then"
    return "" if states[SECONDARY] == "standby" else "wait: the program that has opened the pair fills it"
