"""`sweep`: let old states go, by the rules that are given."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from outlive.cli.command import command, flag, option, yes_option
from outlive.cli.context import Call
from outlive.cli.output.escape import shown
from outlive.errors import BadArgument

if TYPE_CHECKING:
    from outlive.retention.policy import DeletionCount, Retain, Swept


@command(
    "sweep",
    "Let old states of all threads go.",
    option("--keep-last", type=click.IntRange(min=1), metavar="COUNT", help="Keep so many checkpoints of each namespace."),
    option("--max-age", metavar="TIME", help="Delete checkpoints that are older: 12h, 30d, 8w, 1y."),
    option("--ttl", metavar="TIME", help="Delete threads in which nothing has changed for so long."),
    flag("--dry-run", help="Say what would go, and delete nothing."),
    yes_option(),
)  # fmt: skip
def sweep(call: Call, keep_last: int | None, max_age: str | None, ttl: str | None, dry_run: bool) -> None:
    """Let old states of all threads go, and give the space back. A checkpoint goes when any of the rules says so.

    Kept in any case: the newest checkpoint of each namespace, what a run that is not finished needs, and open interrupts. Exits with 1
    when there are threads that could not be swept.
    """
    retain = _retain(keep_last, max_age, ttl)
    is_quiet = call.is_quiet or call.is_json
    with call.open(writes=not dry_run) as store:
        from outlive.cli.lookup import check_keys
        from outlive.cli.output.table import progress

        check_keys(store)
        with progress("looking", is_quiet=is_quiet):
            planned = store.sweep(dry_run=True, retain=retain)
        if dry_run or not _is_any(planned):
            _tell(call, planned, "would delete" if _is_any(planned) else "nothing to delete")
            return
        call.confirm(f"delete {_counted(planned)}")
        with progress("sweeping", is_quiet=is_quiet):
            done = store.sweep(retain=retain)
        _tell(call, done, "deleted" if _is_any(done) else "nothing to delete")


def _retain(keep_last: int | None, max_age: str | None, ttl: str | None) -> Retain:
    from outlive.cli.output.units import seconds
    from outlive.retention.policy import Retain

    if keep_last is None and max_age is None and ttl is None:
        raise BadArgument("say what to keep: --keep-last COUNT, --max-age TIME or --ttl TIME")
    return Retain(
        keep_last=keep_last,
        max_age_s=None if max_age is None else seconds("--max-age", max_age),
        ttl_s=None if ttl is None else seconds("--ttl", ttl),
        every_s=None,
    )


def _reasons(swept: Swept) -> list[tuple[str, DeletionCount]]:
    return [
        ("unused for --ttl", swept.ttl),
        ("older than --max-age", swept.max_age),
        ("beyond --keep-last", swept.keep_last),
        ("left by a crash", swept.orphans),
    ]


def _is_any(swept: Swept) -> bool:
    return any(taken.threads or taken.checkpoints or taken.freed_bytes for _, taken in _reasons(swept))


def _counted(swept: Swept) -> str:
    from outlive.cli.output.units import counted, size

    threads = swept.ttl.threads
    said = f"{counted(swept.checkpoints, 'checkpoint')} ({size(swept.freed_bytes)})"
    return said + (f", and {counted(threads, 'whole thread')} with them" if threads else "")


def _tell(call: Call, swept: Swept, word: str) -> None:
    item = {**asdict(swept), "checkpoints": swept.checkpoints, "freed_bytes": swept.freed_bytes}
    is_ok = swept.is_complete and not swept.problems
    call.answer([item], lambda: _show(swept, word), brief=map(shown, swept.problems), is_ok=is_ok)


def _show(swept: Swept, word: str) -> None:
    from outlive.cli.output.table import Column, print_table
    from outlive.cli.output.units import counted, size

    if not _is_any(swept):
        print(f"{word} in {counted(swept.threads, 'thread')}")
    else:
        print(f"{word} {_counted(swept)}")
        columns = (
            Column("REASON", keeps=True), Column("THREADS", right=True, keeps=True),
            Column("CHECKPOINTS", right=True, keeps=True), Column("SIZE", right=True, keeps=True),
        )  # fmt: skip
        rows = [
            (reason, f"{one.threads:,}", f"{one.checkpoints:,}", size(one.freed_bytes))
            for reason, one in _reasons(swept)
            if one.threads or one.checkpoints or one.freed_bytes
        ]
        print_table(columns, rows)
    if swept.kept:
        print(
            "kept, though due: "
            + ", ".join(f"{count:,} {reason}" for reason, count in sorted(swept.kept.items()))
        )
    for problem in swept.problems:
        print(shown(problem))
    if not swept.is_complete:
        print("it was stopped before the end; repeat it")
