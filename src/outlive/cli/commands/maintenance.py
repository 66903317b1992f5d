"""Commands about the whole store: verify, stats, sweep, rotate."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from outlive.cli.command import argument, command, flag, limit_option, option, yes_option
from outlive.cli.context import Call
from outlive.cli.key_files import read_key_ring
from outlive.cli.lookup import find_prefix, find_thread
from outlive.cli.output.table import Column, format_ratio, print_table, progress
from outlive.errors import BadArgument, Corrupt, StoreError
from outlive.values import Verified
from outlive.view.escape import escape_terminal
from outlive.view.items import sizes_item, sweep_reasons, swept_item, verified_item
from outlive.view.units import format_count, format_size, parse_duration

if TYPE_CHECKING:
    from outlive.layers.encryption.rotation import Rotated
    from outlive.retention.policy import Retain, Swept
    from outlive.values import Sizes
    from outlive.view.opened_store import OpenedStore


# verify


@command("verify", argument("THREAD", nargs=-1))
def verify(call: Call, thread: tuple[str, ...]) -> None:
    """Check every stored byte of the store, or of some threads. Exits with 1 if there is damage."""
    with call.open(needs_key=False) as store:
        names = [find_thread(store, text) for text in thread]
        total = len(names) if names else count_threads(store)
        with progress("verifying", total, is_quiet=call.hides_progress) as update:
            verified = _verify_threads(store, names, update) if names else store.verify(progress=update)
        item = verified_item(verified)
        problems = map(escape_terminal, item["problems"])
        call.answer([item], lambda: _show_verified(verified), brief=problems, is_ok=verified.ok)


def count_threads(store: OpenedStore) -> int | None:
    """Count threads for the progress bar; reporting a damaged list is up to `verify`."""
    try:
        return sum(1 for _ in store.threads())
    except StoreError:
        return None


def _verify_threads(store: OpenedStore, names: list[str], update: Any) -> Verified:
    total = Verified(0, 0, 0)
    for number, name in enumerate(names, 1):
        verified = store.thread(name).verify()
        total = Verified(
            number,
            total.checkpoints + verified.checkpoints,
            total.chunks + verified.chunks,
            total.problems + verified.problems,
        )
        update(number)
    return total


def _show_verified(verified: Verified) -> None:
    counts = ", ".join(
        format_count(count, noun)
        for count, noun in (
            (verified.threads, "thread"),
            (verified.checkpoints, "checkpoint"),
            (verified.chunks, "chunk"),
        )
    )
    if verified.ok:
        print(f"ok: {counts}")
        return
    for problem in verified.problems:
        print(escape_terminal(str(problem)))
    print(f"{format_count(len(verified.problems), 'problem')} in {counts}")
    print("Damage cannot be repaired: restore these threads from a backup, or delete them with outlive rm.")


# stats


@command("stats", argument("PREFIX", required=False, default=""), limit_option(20, "threads in the table"))
def stats(call: Call, prefix: str, limit: int) -> None:
    """Show the size of threads, the largest first, and the size that their full states would have.

    Damaged threads are reported and skipped; then the exit code is 1.
    """
    with call.open() as store:
        damaged: list[Corrupt] = []
        measured: list[tuple[str, Sizes]] = []
        with progress("measuring", is_quiet=call.hides_progress) as update:
            for info in store.list_threads(damaged, prefix=find_prefix(store, prefix)):
                try:
                    measured.append((info.id, store.thread(info.id).size()))
                except Corrupt as error:
                    damaged.append(error)
                update(len(measured))
        measured.sort(key=lambda row: -row[1].stored_bytes)
        items = [sizes_item(name, sizes) for name, sizes in measured]
        call.answer(
            items,
            lambda: _show_stats(measured, limit) if measured else print("no threads"),
            brief=[escape_terminal(name) for name, _ in measured],
            is_ok=not damaged,
        )
        call.note_damaged(damaged)


def _show_stats(measured: list[tuple[str, Sizes]], limit: int) -> None:
    def cells(name: str, checkpoints: int, stored: int, states: int) -> tuple[str, ...]:
        return (
            name,
            f"{checkpoints:,}",
            format_size(stored),
            format_size(states),
            format_ratio(stored, states),
        )

    rows = [
        cells(name, sizes.checkpoints, sizes.stored_bytes, sizes.state_bytes)
        for name, sizes in measured[:limit]
    ]
    if len(measured) > limit:
        rows.append((f"… {len(measured) - limit:,} more", "", "", "", ""))
    totals = [
        sum(getattr(sizes, name) for _, sizes in measured)
        for name in ("checkpoints", "stored_bytes", "state_bytes")
    ]
    rows.append(cells(f"all {len(measured):,}", *totals))
    columns = (
        Column("THREAD", is_id=True), Column("CHECKPOINTS", right=True, keeps=True, drops=2), Column("STORED", right=True, keeps=True),
        Column("FULL STATES", right=True, keeps=True, drops=1), Column("RATIO", right=True, keeps=True),
    )  # fmt: skip
    print_table(columns, rows)


# sweep


@command(
    "sweep",
    option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep this many checkpoints of each namespace."),
    option("--max-age", metavar="TIME", help="Delete checkpoints that are older: 12h, 30d, 8w, 1y."),
    option("--ttl", metavar="TIME", help="Delete threads that have not changed for this long."),
    flag("--dry-run", help="Only show what would be deleted."),
    yes_option(),
)  # fmt: skip
def sweep(call: Call, keep_last: int | None, max_age: str | None, ttl: str | None, dry_run: bool) -> None:
    """Delete old checkpoints from all threads. A checkpoint is deleted if any of the rules applies.

    The newest checkpoint of each namespace, open interrupts and what an unfinished run needs are
    always kept. Exits with 1 if some threads could not be swept.
    """
    retain = _parse_rules(keep_last, max_age, ttl)
    with call.open(writes=not dry_run) as store:
        store.check_keys()
        with progress("checking", is_quiet=call.hides_progress):
            plan = store.sweep(dry_run=True, retain=retain)
        if dry_run or not _deletes_any(plan):
            _answer_swept(call, plan, "would delete")
            return
        call.confirm(f"delete {_count_swept(plan)}")
        with progress("sweeping", is_quiet=call.hides_progress):
            swept = store.sweep(retain=retain)
        _answer_swept(call, swept, "deleted")


def _parse_rules(keep_last: int | None, max_age: str | None, ttl: str | None) -> Retain:
    from outlive.retention.policy import Retain

    if keep_last is None and max_age is None and ttl is None:
        raise BadArgument("give a rule: --keep-last N, --max-age TIME or --ttl TIME")
    return Retain(
        keep_last=keep_last,
        max_age_s=None if max_age is None else parse_duration("--max-age", max_age),
        ttl_s=None if ttl is None else parse_duration("--ttl", ttl),
        every_s=None,
    )


def _deletes_any(swept: Swept) -> bool:
    return bool(sweep_reasons(swept))


def _count_swept(swept: Swept) -> str:
    threads = swept.ttl.threads
    text = f"{format_count(swept.checkpoints, 'checkpoint')} ({format_size(swept.freed_bytes)})"
    return text + (f", including {format_count(threads, 'whole thread')}" if threads else "")


def _answer_swept(call: Call, swept: Swept, verb: str) -> None:
    item = swept_item(swept)
    is_ok = swept.is_complete and not swept.problems
    problems = map(escape_terminal, swept.problems)
    call.answer([item], lambda: _show_swept(swept, verb), brief=problems, is_ok=is_ok)


def _show_swept(swept: Swept, verb: str) -> None:
    if not _deletes_any(swept):
        print(f"nothing to delete in {format_count(swept.threads, 'thread')}")
    else:
        print(f"{verb} {_count_swept(swept)}")
        columns = (
            Column("REASON", keeps=True), Column("THREADS", right=True, keeps=True),
            Column("CHECKPOINTS", right=True, keeps=True), Column("SIZE", right=True, keeps=True),
        )  # fmt: skip
        rows = [
            (reason, f"{count.threads:,}", f"{count.checkpoints:,}", format_size(count.freed_bytes))
            for reason, count in sweep_reasons(swept)
        ]
        print_table(columns, rows)
    if swept.kept:
        kept = ", ".join(f"{count:,} {reason}" for reason, count in sorted(swept.kept.items()))
        print(f"kept although a rule applies: {kept}")
    for problem in swept.problems:
        print(escape_terminal(problem))
    if not swept.is_complete:
        print("stopped before the end; run it again")


# rotate


@command("rotate")
def rotate(call: Call) -> None:
    """Re-encrypt all data of the tenant under the newest key, which is the last one of the key file.

    Other processes can save meanwhile. If it is interrupted, run it again. outlive docs encryption
    says when old keys can be deleted. Exits with 1 if no key decrypts some records; they are left
    unchanged.
    """
    with call.open(writes=True) as store:
        ring = read_key_ring(call.key_file)
        if ring is None:
            raise BadArgument(
                "this store is not encrypted; outlive copy TARGET_URL --target-key-file PATH makes an encrypted copy"
            )
        with progress("encrypting", count_threads(store), is_quiet=call.hides_progress) as update:
            rotated = store.rotate(progress=update)
        item = {**asdict(rotated), "total": rotated.total, "key": ring.newest}
        call.answer(
            [item],
            lambda: _show_rotated(rotated, escape_terminal(str(ring.newest))),
            brief=map(escape_terminal, rotated.problems),
            is_ok=not rotated.problems,
        )


def _show_rotated(rotated: Rotated, key: str) -> None:
    for problem in rotated.problems:
        print(escape_terminal(problem))
    count = format_count(rotated.total, "record") if rotated.total else "nothing"
    rest = f"; {len(rotated.problems):,} could not be decrypted" if rotated.problems else ""
    scope = f"all{' other' if rest else ''} data of {format_count(rotated.threads, 'thread')}"
    print(f"re-encrypted {count}; {scope} is under key {key}{rest}")
