"""Commands about two stores: how they are, and changing places."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from outlive.cli.command import command, flag, yes_option
from outlive.cli.context import Call
from outlive.cli.output.escape import shown
from outlive.errors import BadArgument, StoreUnavailable

if TYPE_CHECKING:
    from outlive.cli.pair_state import Replicas
    from outlive.layers.replication.options import RoleChange
    from outlive.sync.facades import Store


def _look_at_pair(call: Call) -> Replicas:
    """Look at two stores whose roles are to be changed."""
    from outlive.cli.pair_state import ended_of
    from outlive.layers.replication.pair import PairEnded

    seen = _look(call)
    if (ended := ended_of(seen)) is not None:
        raise PairEnded(ended)
    return seen


def _look(call: Call) -> Replicas:
    from outlive.cli.pair_state import look

    if call.secondary is None:
        raise BadArgument(
            "name the second store: --secondary URL, or set OUTLIVE_SECONDARY beside OUTLIVE_STORE"
        )
    return look(call.url, call.options())


@command(
    "replication",
    "Show how two stores are.",
    flag("--join", help="Make a new secondary a copy of the primary, or switch replication on again."),
    flag(
        "--pause", help="Switch replication off; also to go on without a store that was active and is lost."
    ),
    flag("--leave", help="End the pair: the active store goes on alone, the other one is an old copy."),
    yes_option(),
)
def replication(call: Call, join: bool, pause: bool, leave: bool) -> None:
    """Show how two stores are: which is active, what is queued for the other. Changes nothing, unless it is told to.

    Exits with 1 unless the primary is active and the secondary could take over.
    """
    from outlive.cli.pair_state import is_well, item_of

    if join + pause + leave > 1:
        raise BadArgument("give one of --join, --pause and --leave")
    seen = _look(call)
    if leave:
        from outlive.cli.commands.replication_leave import leave_pair

        leave_pair(call, seen)
        return
    if join or pause:
        _join(call, seen) if join else _pause(call, _look_at_pair(call))
        seen = _look(call)
    call.shown_store = seen[0].url
    items = [item_of(seen, one) for one in seen]
    brief = [] if is_well(seen) else [f"{item['role']} {item['state']}" for item in items]
    call.answer(items, lambda: _show(seen, items), brief=brief, is_ok=is_well(seen))


def _show(seen: Replicas, items: list[dict[str, Any]]) -> None:
    from outlive.cli.output.table import Column, print_table
    from outlive.cli.output.units import size, span
    from outlive.cli.pair_state import told

    columns = (
        Column("STORE", keeps=True), Column("STATE", keeps=True), Column("EPOCH", right=True, keeps=True), Column("QUEUED", right=True, keeps=True),
        Column("BYTES", right=True, drops=2), Column("OLDEST", right=True, drops=1), Column("URL"),
    )  # fmt: skip
    rows = []
    for item in items:
        count = item["queued"]
        behind = (size(item["queued_bytes"]), span(item["lag_s"])) if count else ("", "")
        epoch = "" if item["epoch"] is None else str(item["epoch"])
        queued = "?" if count is None else f"{count:,}"
        rows.append((item["role"], item["state"], epoch, queued, *behind, item["url"]))
    print_table(columns, rows)
    for item in items:
        if item["error"]:
            print(f"{item['role']}: {shown(item['error'])}")
    if mend := told(seen)[1]:
        print(f"→ {shown(mend)}")


def _join(call: Call, seen: Replicas) -> None:
    """Open the pair, which makes it one, and wait until the secondary has everything."""
    from outlive.cli.output.table import progress
    from outlive.cli.stores import opened

    for one in seen:
        if one.error is not None and not (one.role == 1 and one.is_absent):
            raise one.error
    if what := _joining(seen):
        call.confirm(shown(what))
    options = {**call.options(), "auto_failover": False}
    with (
        opened(call.url, options, creates=True) as store,
        progress("filling", is_quiet=call.is_quiet or call.is_json),
    ):
        wait_until_whole(store)


def _joining(seen: Replicas) -> str | None:
    """Say what joining changes; None when the pair is as it should be, or cannot be joined."""
    from outlive.cli.pair_state import ended_of, lost_of, state_of
    from outlive.layers.replication.pair import ROLES

    primary, secondary = seen
    states = [state_of(seen, one) for one in seen]
    if lost_of(seen) is not None:
        return None
    if ended_of(seen) is not None:
        return None
    if primary.side is None and secondary.side is None:
        return (
            f"make {secondary.url} the secondary of {primary.url}: it gets a copy of everything, and from then on neither is written "
            "without the other; outlive replication --leave ends that"
        )
    if "paused" in states:
        behind = ROLES[states.index("paused")]
        return f"switch replication on again: the {behind} gets everything that was saved meanwhile"
    for one, other in ((primary, secondary), (secondary, primary)):
        if one.side is None:
            return f"fill {one.url} again with everything that {other.url} has"
    return None


def _pause(call: Call, seen: Replicas) -> None:
    """Open the pair once with replication switched off."""
    from outlive.cli.pair_state import active_of, lost_of
    from outlive.cli.stores import opened
    from outlive.layers.replication.pair import ROLES

    active, lost = active_of(seen), lost_of(seen)
    if active is None:
        raise BadArgument("these are no pair yet; outlive replication --join makes them one")
    if lost is not None:
        what = f"go on with what the {ROLES[1 - lost]} has; what only the {ROLES[lost]} had is given up"
    else:
        what = f"switch replication off: what is saved from now on is in the {ROLES[active]} alone, until outlive replication --join"
    call.confirm(what)
    with opened(call.url, {**call.options(), "auto_failover": False, "enabled": False}, creates=True):
        pass


def wait_until_whole(store: Store) -> None:
    """Wait until the secondary has everything."""
    while not (status := store.replication_status()).is_caught_up:
        if status.last_error is not None:
            raise StoreUnavailable(f"the secondary could not be filled: {status.last_error}")
        time.sleep(0.05)


@command("promote", "Make the secondary the active store.", yes_option())
def promote(call: Call) -> None:
    """Make the secondary the active store, for every process that has opened the pair.

    What the primary has queued is carried over first, if it can be reached.
    """
    from outlive.cli.pair_state import active_of

    seen = _look_at_pair(call)
    if active_of(seen) == 1 and seen[1].side is not None:
        call.did("the secondary is active already", active="secondary", carried=0, branched=[])
        return
    primary, secondary = seen
    what = (
        f"make the secondary, {secondary.url}, the active store for every process that has opened this pair"
    )
    if primary.is_out_of_reach:
        what += f"; the primary cannot be reached ({primary.error}), and what only it has is missing until it is back"
    elif primary.is_absent:
        what += f"; the primary, {primary.url}, holds nothing"
    call.confirm(shown(what))
    with call.open(takes_over=True) as store:
        done = store.promote()
        _tell(call, "secondary", done)


@command("failback", "Make the primary the active store again.", yes_option())
def failback(call: Call) -> None:
    """Bring the primary up to date, and make it the active store again for every process that has opened the pair."""
    from outlive.cli.pair_state import active_of

    seen = _look_at_pair(call)
    if active_of(seen) == 0 and seen[0].side is not None:
        call.did("the primary is active already", active="primary", carried=0, branched=[])
        return
    call.confirm(shown(f"bring the primary, {seen[0].url}, up to date and make it the active store again"))
    with call.open() as store:
        done = store.failback()
        _tell(call, "primary", done)


def _tell(call: Call, active: str, done: RoleChange) -> None:
    from outlive.cli.output.units import counted

    carried = f"{counted(done.carried, 'queued commit')} carried over"
    sentence = f"the {active} is active now, in epoch {done.epoch}; {carried}"
    if done.branched:
        names = ", ".join(shown(name) for name in done.branched)
        sentence += f"\nboth stores had gone on with {names}: outlive heads THREAD shows both ends"
    call.did(sentence, active=active, epoch=done.epoch, carried=done.carried, branched=list(done.branched))
