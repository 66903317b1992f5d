"""Commands about a pair of stores: replication, promote, failback."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from outlive.cli.command import command, flag, yes_option
from outlive.cli.config import configure_store
from outlive.cli.context import Call
from outlive.cli.output.table import Column, print_table, progress
from outlive.cli.pair_state import (
    Replica,
    Replicas,
    active_of,
    describe,
    ended_record,
    inspect_pair,
    is_healthy,
    lost_role,
    replica_item,
    states_of,
)
from outlive.cli.stores import open_store
from outlive.errors import BadArgument, EntryHeld, StoreBusy, StoreUnavailable
from outlive.layers.replication.pair import (
    ALONE,
    OLD_COPY,
    PRIMARY,
    ROLES,
    SECONDARY,
    PairEnded,
    PairRecord,
    end_pair,
)
from outlive.runtime.runtime import run_now
from outlive.view.escape import escape_terminal
from outlive.view.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from outlive.layers.replication.options import RoleChange
    from outlive.view.opened_store import OpenedStore


def _inspect(call: Call) -> Replicas:
    if call.secondary is None:
        raise BadArgument(
            "name the second store: --secondary URL, or set OUTLIVE_SECONDARY along with OUTLIVE_STORE"
        )
    return inspect_pair(call.url, call.store_options())


def _inspect_unended(call: Call) -> Replicas:
    """Inspect a pair to change its roles."""
    replicas = _inspect(call)
    if (ended := ended_record(replicas)) is not None:
        raise PairEnded(ended)
    return replicas


@command(
    "replication",
    flag("--join", help="Copy the primary to a new secondary, or resume replication."),
    flag("--pause", help="Stop replication; also to continue without an active store whose data is lost."),
    flag("--leave", help="End the pair: the active store continues alone, the other becomes an old copy."),
    yes_option(),
)
def replication(call: Call, join: bool, pause: bool, leave: bool) -> None:
    """Show the state of a pair: which store is active, and what is queued for the other.

    Changes nothing without --join, --pause or --leave. Exits with 1 unless the primary is active
    and the secondary can take over.
    """
    if join + pause + leave > 1:
        raise BadArgument("give only one of --join, --pause and --leave")
    replicas = _inspect(call)
    if leave:
        _leave(call, replicas)
        return
    if join or pause:
        _join(call, replicas) if join else _pause(call, _inspect_unended(call))
        replicas = _inspect(call)
    call.store_name = replicas[0].url
    items = [replica_item(replicas, replica) for replica in replicas]
    is_ok = is_healthy(replicas)
    brief = [] if is_ok else [f"{item['role']} {item['state']}" for item in items]
    call.answer(items, lambda: _show(replicas, items), brief=brief, is_ok=is_ok)


def _show(replicas: Replicas, items: list[dict[str, Any]]) -> None:
    columns = (
        Column("STORE", keeps=True), Column("STATE", keeps=True), Column("EPOCH", right=True, keeps=True), Column("QUEUED", right=True, keeps=True),
        Column("BYTES", right=True, drops=2), Column("OLDEST", right=True, drops=1), Column("URL"),
    )  # fmt: skip
    rows = []
    for item in items:
        count = item["queued"]
        lag = (format_size(item["queued_bytes"]), format_duration(item["lag_s"])) if count else ("", "")
        epoch = "" if item["epoch"] is None else str(item["epoch"])
        queued = "?" if count is None else f"{count:,}"
        rows.append((item["role"], item["state"], epoch, queued, *lag, item["url"]))
    print_table(columns, rows)
    for item in items:
        if item["error"]:
            print(f"{item['role']}: {escape_terminal(item['error'])}")
    if advice := describe(replicas)[1]:
        print(f"→ {escape_terminal(advice)}")


# --join, --pause


def _join(call: Call, replicas: Replicas) -> None:
    """Open the pair, which joins the stores, and wait until the secondary is complete."""
    for replica in replicas:
        if replica.error is not None and not (replica.role == SECONDARY and replica.is_missing):
            raise replica.error
    if action := _join_action(replicas):
        call.confirm(escape_terminal(action))
    options = {**call.store_options(), "auto_failover": False}
    with (
        open_store(call.url, options, create=True) as store,
        progress("copying", is_quiet=call.hides_progress),
    ):
        wait_until_complete(store)


def _join_action(replicas: Replicas) -> str | None:
    """Return what joining changes; None if it changes nothing, or will be refused."""
    primary, secondary = replicas
    states = states_of(replicas)
    if lost_role(replicas) is not None or ended_record(replicas) is not None:
        return None
    if primary.record is None and secondary.record is None:
        return (
            f"make {secondary.url} the secondary of {primary.url}: everything is copied to it, and from then on "
            "both must be opened together; outlive replication --leave ends that"
        )
    if "paused" in states:
        role = ROLES[states.index("paused")]
        return f"resume replication: everything that was saved meanwhile is copied to the {role}"
    for replica, other in ((primary, secondary), (secondary, primary)):
        if replica.record is None:
            return f"copy everything from {other.url} to {replica.url} again"
    return None


def wait_until_complete(store: OpenedStore) -> None:
    """Wait until the secondary has everything."""
    while not (status := store.replication_status()).is_caught_up:
        if status.last_error is not None:
            raise StoreUnavailable(f"copying to the secondary failed: {status.last_error}")
        time.sleep(0.05)


def _pause(call: Call, replicas: Replicas) -> None:
    """Open the pair once with replication disabled."""
    active, lost = active_of(replicas), lost_role(replicas)
    if active is None:
        raise BadArgument("these stores are not a pair yet; outlive replication --join joins them")
    if lost is not None:
        action = f"continue with the data of the {ROLES[1 - lost]}; what only the {ROLES[lost]} had is lost"
    else:
        action = f"stop replication: from now on only the {ROLES[active]} is written, until outlive replication --join"
    call.confirm(action)
    options = {**call.store_options(), "auto_failover": False, "enabled": False}
    with open_store(call.url, options, create=True):
        pass


# --leave


def _leave(call: Call, replicas: Replicas) -> None:
    """End a pair: transfer what only the other store has, then mark both stores."""
    active, other = _leaving_roles(replicas)
    if _has_ended(active, other):
        call.report(f"the pair has ended already: {active.url} continues alone", **_leave_item(active, other))
        return
    call.confirm(escape_terminal(_leave_action(active, other)))
    if other.record is not None and other.queued and not (active.record and active.record.ended):
        active, other = _leaving_roles(_drain(call, other))
    _end(call, active, other)
    sentence = f"{active.url} continues alone"
    if other.record is not None:
        sentence += f"; {other.url} is an old copy, which can be read and copied"
    else:
        sentence += f"; {other.url} was not marked: run this again when it is reachable, or delete it"
    call.report(sentence, **_leave_item(active, other))


def _leaving_roles(replicas: Replicas) -> tuple[Replica, Replica]:
    """Return the store that continues and the other one; refuse if data would be lost."""
    role = active_of(replicas)
    if role is None:
        for replica in replicas:
            if replica.error is not None and replica.is_unreachable:
                raise replica.error
        raise BadArgument("these two stores are not a pair; check both URLs")
    active, other = replicas[role], replicas[1 - role]
    if active.record is None:
        reason = active.error or f"{active.url} has lost its data"
        switch = "promote" if role == PRIMARY else "replication --pause"
        raise StoreUnavailable(
            f"the {ROLES[role]} is the active store, but it is not available ({reason}); bring it back, or make "
            f"the other one active first: outlive {switch}"
        )
    if other.record is not None and other.record.is_paused and not other.record.ended:
        raise BadArgument(
            f"the {ROLES[other.role]} was also written alone, and its data would be left out; merge both first: "
            "outlive failback"
        )
    return active, other


def _has_ended(active: Replica, other: Replica) -> bool:
    is_marked = other.record is None or other.record.ended == OLD_COPY
    return active.record is not None and active.record.ended == ALONE and is_marked


def _leave_action(active: Replica, other: Replica) -> str:
    role = ROLES[other.role]
    action = (
        f"end the pair: the {ROLES[active.role]}, {active.url}, continues alone, and the {role}, {other.url}, "
        "becomes a read-only old copy; programs that still open both get an error"
    )
    if other.is_unreachable:
        action += (
            f". The {role} cannot be marked now ({other.error}): a program that reaches only that one could "
            "still make it active, so stop the programs that open both first"
        )
    return action


def _drain(call: Call, other: Replica) -> Replicas:
    """Transfer what only the other store has to the active one."""
    with call.open() as store:
        while (replicas := inspect_pair(call.url, call.store_options()))[other.role].queued:
            status = store.replication_status()
            if status.last_error is not None:
                raise StoreUnavailable(
                    f"the queue of the {ROLES[other.role]} could not be transferred: {status.last_error}"
                )
            time.sleep(0.1)
    return replicas


def _end(call: Call, active: Replica, other: Replica) -> None:
    config = configure_store(call.url, call.store_options())
    tenant, timeout_s = config.settings.tenant, config.settings.timeout_s
    assert config.secondary is not None
    served = (config.served, config.secondary)
    backends: list[Any] = []

    def opened(replica: Replica, record: PairRecord) -> tuple[Any, PairRecord]:
        backends.append(served[replica.role].sync(timeout_s))
        return backends[-1], record

    assert active.record is not None
    try:
        last = None if other.record is None else opened(other, other.record)
        run_now(end_pair(opened(active, active.record), last, tenant, timeout_s))
    except EntryHeld:
        raise StoreBusy("the two stores have just changed roles; check the pair and try again") from None
    finally:
        for backend in backends:
            run_now(backend.close())


def _leave_item(active: Replica, other: Replica) -> dict[str, Any]:
    return {"alone": active.url, "old_copy": other.url, "is_marked": other.record is not None}


# promote, failback


@command("promote", yes_option())
def promote(call: Call) -> None:
    """Make the secondary the active store, for every process that has opened the pair.

    If the primary is reachable, its queue is transferred first.
    """
    replicas = _inspect_unended(call)
    primary, secondary = replicas
    if active_of(replicas) == SECONDARY and secondary.record is not None:
        call.report("the secondary is active already", active="secondary", transferred=0, branched=[])
        return
    action = (
        f"make the secondary, {secondary.url}, the active store for every process that has opened this pair"
    )
    if primary.is_unreachable:
        action += f"; the primary is unreachable ({primary.error}), and what only it has is missing until it is back"
    elif primary.is_missing:
        action += f"; the primary, {primary.url}, is empty"
    call.confirm(escape_terminal(action))
    with call.open(takes_over=True) as store:
        _report_change(call, "secondary", store.promote())


@command("failback", yes_option())
def failback(call: Call) -> None:
    """Update the primary and make it active again, for every process that has opened the pair."""
    replicas = _inspect_unended(call)
    primary = replicas[PRIMARY]
    if active_of(replicas) == PRIMARY and primary.record is not None:
        call.report("the primary is active already", active="primary", transferred=0, branched=[])
        return
    call.confirm(escape_terminal(f"update the primary, {primary.url}, and make it the active store again"))
    with call.open() as store:
        _report_change(call, "primary", store.failback())


def _report_change(call: Call, active: str, change: RoleChange) -> None:
    transferred = f"{format_count(change.carried, 'queued commit')} transferred"
    sentence = f"the {active} is active now, in epoch {change.epoch}; {transferred}"
    if change.branched:
        names = ", ".join(escape_terminal(name) for name in change.branched)
        sentence += f"\nboth stores had new checkpoints of {names}: outlive tips THREAD shows both branches"
    call.report(
        sentence,
        active=active,
        epoch=change.epoch,
        transferred=change.carried,
        branched=list(change.branched),
    )
