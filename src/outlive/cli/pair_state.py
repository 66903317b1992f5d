"""Reads the state of a pair from each of its stores, without opening the pair.

Opening a pair may join the stores, copy data or change roles; inspecting it does none of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outlive.backends.server.urls import BackendFactory
from outlive.cli.config import configure_store
from outlive.dataclass import dataclass
from outlive.errors import KeyMissing, OutliveError, StoreError, StoreMissing, StoreUnavailable
from outlive.factory import existing_backend
from outlive.layers.encryption.keyring import KeyRing, is_encrypted, key_of
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
from outlive.view.units import format_count, format_duration, format_size

_TIMEOUT_S = 5.0
_JOIN = "outlive replication --join copies the primary to the secondary"


@dataclass(frozen=True, slots=True)
class Replica:
    """What one of the two stores reports, or the error why it does not."""

    role: int
    url: str
    record: PairRecord | None = None
    error: OutliveError | None = None
    queued: int = 0
    queued_bytes: int = 0
    lag_s: float = 0.0
    key: str | None = None  # the id of the key that encrypts it

    @property
    def is_missing(self) -> bool:
        """True if the store answers but does not belong to a pair."""
        return self.record is None and (self.error is None or isinstance(self.error, StoreMissing))

    @property
    def is_unreachable(self) -> bool:
        return self.error is not None and not self.is_missing


Replicas = Sequence[Replica]  # the primary and the secondary


def inspect_pair(url: str, options: dict[str, Any]) -> Replicas:
    """Ask both stores of a pair, each by itself."""
    config = configure_store(url, options)
    assert config.secondary is not None
    tenant, timeout_s = config.settings.tenant, min(_TIMEOUT_S, config.settings.timeout_s or _TIMEOUT_S)
    primary = _inspect(PRIMARY, config.served, tenant, timeout_s)
    secondary = _inspect(SECONDARY, config.secondary, tenant, timeout_s)
    if primary.record is not None and secondary.record is not None:
        check_match(primary.record, secondary.record)
    return [_forget_ended(primary, secondary), _forget_ended(secondary, primary)]


def _forget_ended(replica: Replica, other: Replica) -> Replica:
    """A store whose former pair has ended can join a new one."""
    is_free = replica.record is not None and replica.record.ended == ALONE and other.is_missing
    return replace(replica, record=None) if is_free else replica


def _inspect(role: int, served: BackendFactory, tenant: str, timeout_s: float) -> Replica:
    async def make() -> Any:
        return served.sync(timeout_s)

    try:
        backend = run_now(existing_backend(served, make))
        try:
            return run_now(_read_replica(role, served.shown, backend, tenant, timeout_s))
        finally:
            run_now(backend.close())
    except StoreError as error:
        return Replica(role, served.shown, error=error)


async def _read_replica(role: int, url: str, backend: Any, tenant: str, timeout_s: float) -> Replica:
    record = await read_pair_record(backend, tenant, timeout_s)
    replicator: Any = None  # counting transfers nothing
    counts = await Backlog(backend, replicator, tenant, SyncRuntime(), timeout_s).count()
    # A store outside a pair may have no identity yet, and reading it would create one.
    identity = b"" if record is None else await backend.identity(b"")
    return Replica(role, url, record, None, *counts, key_of(identity) if is_encrypted(identity) else None)


def epoch_of(replicas: Replicas) -> int | None:
    """Return the epoch of the pair, as far as it is known."""
    return max((replica.record.epoch for replica in replicas if replica.record is not None), default=None)


def active_of(replicas: Replicas) -> int | None:
    epoch = epoch_of(replicas)
    return None if epoch is None else active_role(epoch)


def options_of_pair(
    replicas: Replicas, options: dict[str, Any], *, takes_over: bool, needs_key: bool = True
) -> dict[str, Any]:
    """Return the options that open the pair as it is; refuse if opening would change it.

    Opening fills an empty secondary and abandons an empty primary: a typo in a URL must do neither.
    `takes_over` permits the latter.
    """
    primary, secondary = replicas
    if (ended := ended_record(replicas)) is not None:
        raise PairEnded(ended)
    for replica in replicas:
        may_be_missing = takes_over and replica is primary and secondary.record is not None
        if replica.is_missing and not may_be_missing:
            reason = (
                f"{replica.url} is a store, but not the {ROLES[replica.role]} of a pair"
                if replica.error is None
                else f"no store at {replica.url}"
            )
            raise StoreUnavailable(f"{reason}; {_advice(replicas, states_of(replicas))}")
    if primary.is_unreachable and active_of(replicas) == PRIMARY and not takes_over:
        raise StoreUnavailable(
            f"cannot reach the primary ({primary.error}); outlive promote makes the secondary active"
        )
    keys = [replica.key for replica in replicas if replica.key is not None]
    if keys and "key" not in options:
        if needs_key:
            raise KeyMissing(keys[0])
        options = {**options, "key": KeyRing()}
    return {**options, "auto_failover": takes_over, "enabled": not _is_paused(replicas)}


def ended_record(replicas: Replicas) -> PairRecord | None:
    """Return the record of a store whose pair has ended, or None."""
    return next((replica.record for replica in replicas if replica.record and replica.record.ended), None)


def _is_paused(replicas: Replicas) -> bool:
    record = replicas[active_of(replicas) or PRIMARY].record
    return record is not None and record.is_paused


def lost_role(replicas: Replicas) -> int | None:
    """Return the role of the active store if it is missing although the other store is there."""
    active = active_of(replicas)
    return active if active is not None and replicas[active].is_missing else None


# Reports


def replica_item(replicas: Replicas, replica: Replica) -> dict[str, Any]:
    """Return one store as an item of --json."""
    is_known = not replica.is_unreachable
    return {
        "role": ROLES[replica.role],
        "url": replica.url,
        "state": state_of(replicas, replica),
        "is_active": replica.role == active_of(replicas),
        "epoch": None if replica.record is None else replica.record.epoch,
        "queued": replica.queued if is_known else None,
        "queued_bytes": replica.queued_bytes if is_known else None,
        "lag_s": round(replica.lag_s, 3) if is_known else None,
        "error": None if replica.error is None else str(replica.error),
    }


def state_of(replicas: Replicas, replica: Replica) -> str:
    if replica.is_unreachable:
        return "unreachable"
    if replica.record is None:
        return "missing" if replica.error is not None else "not joined"
    if replica.record.ended:
        return "old copy" if replica.record.ended == OLD_COPY else "alone"
    if replica.role == active_of(replicas):
        return "active"
    if _is_paused(replicas):
        return "paused"
    return "standby" if replica.record.is_caught_up else "filling"


def states_of(replicas: Replicas) -> list[str]:
    return [state_of(replicas, replica) for replica in replicas]


def is_healthy(replicas: Replicas) -> bool:
    """Tell whether the primary is active and the secondary can take over."""
    return states_of(replicas) == ["active", "standby"]


def describe(replicas: Replicas) -> tuple[str, str]:
    """Return the state of a pair in one line, and what to do."""
    states, epoch = states_of(replicas), epoch_of(replicas)
    text = ", ".join(
        f"{ROLES[replica.role]} {state}" for replica, state in zip(replicas, states, strict=True)
    )
    text += f"; epoch {epoch}" if epoch is not None else ""
    if "unreachable" in states:
        text += "; its queue is unknown"
    if queued := sum(replica.queued for replica in replicas):
        bytes = format_size(sum(replica.queued_bytes for replica in replicas))
        oldest = format_duration(max(replica.lag_s for replica in replicas))
        text += f"; {format_count(queued, 'commit')} queued ({bytes}, the oldest {oldest} old)"
    return text, _advice(replicas, states)


def _advice(replicas: Replicas, states: list[str]) -> str:
    active = active_of(replicas)
    if "alone" in states:
        role = ROLES[states.index("alone")]
        rest = "" if "old copy" in states else "; run outlive replication --leave when the other is reachable"
        return f"the pair has ended: open the {role} without a secondary{rest}"
    if "old copy" in states:
        return "the pair is about to end: outlive replication --leave completes that"
    if active == SECONDARY and lost_role(replicas) is not None:
        return (
            "check the URL of the secondary, which is active; if its data is lost, outlive replication --pause "
            "continues with the data of the primary"
        )
    if active is None or states[SECONDARY] in ("missing", "not joined"):
        can_join = "unreachable" not in states and states[PRIMARY] != "missing"
        return f"check both URLs; {_JOIN}" if can_join else "check both URLs"
    if active == SECONDARY:
        return "outlive failback updates the primary and makes it active again"
    if states[PRIMARY] in ("missing", "not joined"):
        return "check the URL of the primary; if its data is lost, outlive promote makes the secondary active"
    if states[PRIMARY] == "unreachable":
        return "outlive promote makes the secondary active"
    if states[SECONDARY] == "unreachable":
        error = replicas[SECONDARY].error
        return f"start the secondary again; until then saves are refused or queued ({error})"
    if states[SECONDARY] == "paused":
        return "outlive replication --join resumes replication and updates the secondary"
    return "" if states[SECONDARY] == "standby" else "wait: a program that has opened the pair is filling it"
