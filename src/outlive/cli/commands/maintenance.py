"""Commands about the store as a whole: checking, measuring, sealing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from outlive.cli.command import argument, command, option
from outlive.cli.context import Call
from outlive.cli.output.escape import shown
from outlive.errors import BadArgument, Corrupt

if TYPE_CHECKING:
    from outlive.layers.encryption.rotation import Rotated
    from outlive.sync.facades import Store
    from outlive.values import Sizes, Verified


@command("verify", "Check every stored byte.", argument("THREAD", nargs=-1))
def verify(call: Call, thread: tuple[str, ...]) -> None:
    """Check every stored byte of the store, or of some threads. Exits with 1 when something is broken."""
    with call.open(needs_key=False) as store:
        from outlive.cli.lookup import find_thread
        from outlive.cli.output.table import progress

        names = [find_thread(store, one) for one in thread]
        total = len(names) if names else count_threads(store)
        with progress("verifying", total, is_quiet=call.is_quiet or call.is_json) as tell:
            found = _verify_threads(store, names, tell) if names else store.verify(progress=tell)
        item = {
            "threads": found.threads,
            "checkpoints": found.checkpoints,
            "chunks": found.chunks,
            "problems": list(map(str, found.problems)),
        }
        call.answer(
            [item],
            lambda: _show_verified(found),
            brief=[shown(str(problem)) for problem in found.problems],
            is_ok=found.ok,
        )


def count_threads(store: Store) -> int | None:
    """Count threads for the progress bar; a damaged list is for `verify` to tell."""
    from outlive.errors import StoreError

    try:
        return sum(1 for _ in store.threads())
    except StoreError:
        return None


def _verify_threads(store: Store, names: list[str], tell: Any) -> Verified:
    from outlive.values import Verified

    total = Verified(0, 0, 0)
    for number, name in enumerate(names, 1):
        one = store.thread(name).verify()
        total = Verified(
            number,
            total.checkpoints + one.checkpoints,
            total.chunks + one.chunks,
            total.problems + one.problems,
        )
        tell(number)
    return total


def _show_verified(found: Verified) -> None:
    from outlive.cli.output.units import counted

    counts = f"{counted(found.threads, 'thread')}, {counted(found.checkpoints, 'checkpoint')}, {counted(found.chunks, 'chunk')}"
    if found.ok:
        print(f"ok: {counts}")
        return
    for problem in found.problems:
        print(shown(str(problem)))
    print(f"{counted(len(found.problems), 'problem')} in {counts}")
    print(
        "What is broken cannot be mended from within: restore those threads from a copy or backup, or delete them with outlive rm."
    )


@command(
    "stats",
    "Show what threads hold.",
    argument("PREFIX", required=False, default=""),
    option(
        "--limit",
        type=click.IntRange(min=1),
        default=20,
        show_default=True,
        help="How many threads the table shows at most.",
    ),
)
def stats(call: Call, prefix: str, limit: int) -> None:
    """Show what threads hold, the largest first, against what whole states would take.

    Exits with 1 when there are damaged ones among them, which are told and left out.
    """
    with call.open() as store:
        from outlive.cli.lookup import find_prefix, list_threads
        from outlive.cli.output.table import progress

        damaged: list[Corrupt] = []
        found = []
        with progress("measuring", is_quiet=call.is_quiet or call.is_json) as tell:
            for info in list_threads(store, damaged, prefix=find_prefix(store, prefix)):
                try:
                    found.append((info.id, store.thread(info.id).size()))
                except Corrupt as error:
                    damaged.append(error)
                tell(len(found))
        found.sort(key=lambda one: -one[1].stored_bytes)
        items = [
            {
                "thread": name,
                "checkpoints": sizes.checkpoints,
                "stored_bytes": sizes.stored_bytes,
                "state_bytes": sizes.state_bytes,
            }
            for name, sizes in found
        ]
        call.answer(
            items,
            lambda: _show_stats(found, limit) if found else print("no threads"),
            brief=[shown(name) for name, _ in found],
            is_ok=not damaged,
        )
        call.tell_damaged(damaged)


def _show_stats(found: list[tuple[str, Sizes]], limit: int) -> None:
    from outlive.cli.output.table import Column, print_table
    from outlive.cli.output.units import size, times

    rows = [
        (name, f"{one.checkpoints:,}", size(one.stored_bytes), size(one.state_bytes), times(one.stored_bytes, one.state_bytes))
        for name, one in found
    ]  # fmt: skip
    shown_rows = rows[:limit]
    if len(rows) > limit:
        shown_rows.append((f"… {len(rows) - limit:,} more", "", "", "", ""))
    checkpoints = sum(one.checkpoints for _, one in found)
    stored, states = sum(one.stored_bytes for _, one in found), sum(one.state_bytes for _, one in found)
    shown_rows.append(
        (f"all {len(rows):,}", f"{checkpoints:,}", size(stored), size(states), times(stored, states))
    )
    columns = (
        Column("THREAD", is_id=True), Column("CHECKPOINTS", right=True, keeps=True, drops=2), Column("STORED", right=True, keeps=True),
        Column("AS WHOLE STATES", right=True, keeps=True, drops=1), Column("RATIO", right=True, keeps=True),
    )  # fmt: skip
    print_table(columns, shown_rows)


@command("rotate", "Seal everything under the newest key.")
def rotate(call: Call) -> None:
    """Seal everything of the tenant anew under the newest key, which is the last one of the key file.

    Others may go on saving. Can be cut off and repeated. Then the old keys can go: docs/encryption.md tells when. Exits with 1 when
    there are records that no key opens; they stay as they are.
    """
    with call.open(writes=True) as store:
        from outlive.cli.key_files import read_ring
        from outlive.cli.output.table import progress

        ring = read_ring(call.key_file)
        if ring is None:
            raise BadArgument(
                "this store is not encrypted; outlive copy SOURCE_URL TARGET_URL --target-key-file PATH makes a copy that is"
            )
        with progress("sealing", count_threads(store), is_quiet=call.is_quiet or call.is_json) as tell:
            done = store.rotate(progress=tell)
        item = {**asdict(done), "total": done.total, "key": ring.newest}
        call.answer(
            [item], lambda: _show_rotated(done, shown(str(ring.newest))), brief=map(shown, done.problems), is_ok=not done.problems
        )  # fmt: skip


def _show_rotated(done: Rotated, key: str) -> None:
    from outlive.cli.output.units import counted

    for problem in done.problems:
        print(shown(problem))
    what = counted(done.total, "record") if done.total else "nothing"
    rest = f"; {len(done.problems):,} could not be opened" if done.problems else ""
    print(
        f"sealed {what} anew; all{' else' if rest else ''} of {counted(done.threads, 'thread')} is under key {key}{rest}"
    )
