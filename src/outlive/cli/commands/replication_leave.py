"""`outlive replication --leave`: end a pair, so that its active store can be written alone again."""

from __future__ import annotations

import time
from typing import Any

from outlive.cli.context import Call
from outlive.cli.output.escape import shown
from outlive.cli.pair_state import Replicas, Seen, active_of, look
from outlive.cli.stores import configured
from outlive.errors import BadArgument, EntryHeld, StoreBusy, StoreUnavailable
from outlive.layers.replication.pair import ALONE, OLD_COPY, ROLES, PairRecord, end_pair
from outlive.runtime.runtime import run_now


def leave_pair(call: Call, seen: Replicas) -> None:
    """Ask, carry over what only the other store has, and tell both stores."""
    active, other = _roles(seen)
    if _is_over(active, other):
        call.did(f"the pair has ended already: {shown(active.url)} goes on alone", **_item(active, other))
        return
    call.confirm(shown(_what(active, other)))
    if other.side is not None and other.queued and not (active.side and active.side.ended):
        seen = _carried(call, other)
        active, other = _roles(seen)
    _end(call, active, other)
    told = f"{shown(active.url)} goes on alone"
    if other.side is not None:
        told += f"; {shown(other.url)} is an old copy from now on, which can be read and copied"
    else:
        told += f"; {shown(other.url)} was not told: run this again when it can be reached, or delete it"
    call.did(told, **_item(active, other))


def _roles(seen: Replicas) -> tuple[Seen, Seen]:
    """Return the store that goes on and the other one; refuse what would leave something behind."""
    which = active_of(seen)
    if which is None:
        for one in seen:
            if one.error is not None and one.is_out_of_reach:
                raise one.error
        raise BadArgument("these two stores are no pair; check both URLs")
    active, other = seen[which], seen[1 - which]
    if active.side is None:
        reason = active.error or f"{active.url} has lost what it had"
        raise StoreUnavailable(
            f"the {ROLES[active.role]} is the active store and would go on alone, but it is not there ({reason}); bring it back, or "
            f"make the other one active first: outlive {'promote' if which == 0 else 'replication --pause'}"
        )
    if other.side is not None and other.side.is_paused and not other.side.ended:
        raise BadArgument(
            f"the {ROLES[other.role]} was written alone too, and what is there would be left behind; bring both together first: "
            "outlive failback"
        )
    return active, other


def _is_over(active: Seen, other: Seen) -> bool:
    is_told = other.side is None or other.side.ended == OLD_COPY
    return active.side is not None and active.side.ended == ALONE and is_told


def _what(active: Seen, other: Seen) -> str:
    said = (
        f"end the pair: the {ROLES[active.role]}, {active.url}, goes on alone, and the {ROLES[other.role]}, {other.url}, becomes an old "
        "copy that can only be read; programs that still open both get an error"
    )
    if other.is_out_of_reach:
        said += (
            f". The {ROLES[other.role]} cannot be told now ({other.error}): a program that reaches only that one could still make it the "
            "active store, so stop the programs that open both first"
        )
    return said


def _carried(call: Call, other: Seen) -> Replicas:
    """Let the active store get what only the other one has."""
    with call.open() as store:
        while (seen := look(call.url, call.options()))[other.role].queued:
            status = store.replication_status()
            if status.last_error is not None:
                raise StoreUnavailable(
                    f"what the {ROLES[other.role]} has queued could not be carried over: {status.last_error}"
                )
            time.sleep(0.1)
    return seen


def _end(call: Call, active: Seen, other: Seen) -> None:
    target = configured(call.url, call.options())
    tenant, timeout_s = target.settings.tenant, target.settings.timeout_s
    assert target.secondary is not None
    served = (target.served, target.secondary)
    backends: list[Any] = []

    def stored(one: Seen, side: PairRecord) -> tuple[Any, PairRecord]:
        backends.append(served[one.role].sync(timeout_s))
        return backends[-1], side

    assert active.side is not None
    try:
        last = None if other.side is None else stored(other, other.side)
        run_now(end_pair(stored(active, active.side), last, tenant, timeout_s))
    except EntryHeld:
        raise StoreBusy("the two stores have just changed places; look again, and then try again") from None
    finally:
        for backend in backends:
            run_now(backend.close())


def _item(active: Seen, other: Seen) -> dict[str, Any]:
    return {"alone": active.url, "old_copy": other.url, "is_told": other.side is not None}
