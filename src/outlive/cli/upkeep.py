"""Commands about what a store keeps: sweeping, other keys, threads as text."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadArgument
from .call import Call
from .command import argument, command, flag, option, thread_argument, yes_option
from .harmless import shown, shown_json
from .measure import size
from .table import can_draw

if TYPE_CHECKING:
    from ..retain import Swept

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|min|h|d)")
_SECONDS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_REASONS = ("ttl", "max_age", "keep_last", "orphans")


def _span_s(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    found = _SPAN.fullmatch(text)
    if found is None:
        raise BadArgument(f"{name} takes a length of time such as 90s, 30min, 12h or 30d, not {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


@command(
    "sweep", "Delete what is old, in every thread.",
    option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Checkpoints beyond the newest N of a namespace go."),
    option("--max-age", metavar="TIME", help="Checkpoints that are older go: 90s, 30min, 12h, 30d."),
    option("--ttl", metavar="TIME", help="Threads to which nothing was saved for so long go as a whole."),
    flag("--dry-run", help="Say what would go, and delete nothing."),
    yes_option(),
)  # fmt: skip
def sweep(call: Call, keep_last: int | None, max_age: str | None, ttl: str | None, dry_run: bool) -> None:
    """Delete what is beyond what is to be kept, in every thread, while others go on saving.

    The newest checkpoint of a namespace, what a run that is not finished needs, and open interrupts stay in any case. Exits with 1 when a
    thread could not be swept.
    """
    from ..retain import Retain

    if keep_last is None and max_age is None and ttl is None:
        raise BadArgument("sweep needs to know what is to be kept: give --keep-last, --max-age or --ttl")
    retain = Retain(keep_last, _span_s("--max-age", max_age), _span_s("--ttl", ttl), every_s=None)
    with call.open() as store:
        planned = store.sweep(dry_run=True, retain=retain)
        if dry_run or _is_empty(planned):
            _tell(call, planned)
            return
        call.confirm(f"delete {_told(planned)}")
        _tell(call, store.sweep(retain=retain))


def _is_empty(swept: Swept) -> bool:
    return not (swept.checkpoints or swept.ttl.threads or swept.bytes)


def _told(swept: Swept) -> str:
    gone = f" and {swept.ttl.threads:,} whole threads" if swept.ttl.threads else ""
    return f"{swept.checkpoints:,} checkpoints{gone} ({size(swept.bytes)}) in {swept.threads:,} threads"


def _tell(call: Call, swept: Swept) -> None:
    item: dict[str, Any] = {
        "dry_run": swept.dry_run,
        "threads": swept.threads,
        **{reason: asdict(getattr(swept, reason)) for reason in _REASONS},
        "kept": dict(swept.kept),
        "problems": list(swept.problems),
    }

    def show() -> None:
        if _is_empty(swept):
            print(f"nothing to delete in {swept.threads:,} threads")
        else:
            print(f"{'would delete' if swept.dry_run else 'deleted'} {_told(swept)}")
        for reason, count in swept.kept.items():
            print(f"kept though it was due: {count:,} ({shown(reason)})")
        for problem in swept.problems:
            print(shown(problem))

    call.answer([item], show, brief=map(shown, swept.problems), is_ok=not swept.problems)


@command("rotate", "Seal an encrypted store anew under its newest key.")
def rotate(call: Call) -> None:
    """Seal everything anew under the newest key of OUTLIVE_KEYS, while others go on. Can be cut off and repeated.

    OUTLIVE_KEYS holds the old and the new key: words of id:base64, the newest last.
    """
    with call.open() as store:
        from .table import progress

        with progress("sealing", is_quiet=call.is_quiet or call.is_json) as tell:
            done = store.rotate(progress=tell)
        call.did(
            f"sealed {done.total:,} records of {done.threads:,} threads anew",
            **asdict(done),
            total=done.total,
        )


@command(
    "export", "Write a thread as JSON text.",
    thread_argument(),
    option("--output", "-o", metavar="FILE", help="A file to write, which must not exist yet; default: standard output."),
)  # fmt: skip
def export(call: Call, thread: str, output: str | None) -> None:
    """Write a thread with its whole history as JSON text, which `import` makes a thread of again, equal in every byte."""
    with call.open() as store:
        from .find import find_thread

        place = store.thread(find_thread(store, thread))
        text = place.export()
        if output is None:
            print(shown_json(text, is_ascii=not can_draw()))
            return
        try:
            with Path(output).open("x", encoding="utf-8") as file:
                file.write(f"{shown_json(text)}\n")
        except OSError as error:
            raise BadArgument(f"{output!r} cannot be written: {error.strerror}") from error
        call.did(f"exported {shown(place.id)} to {shown(output)}", thread=place.id, file=output)


@command(
    "import", "Make a thread of exported text.",
    argument("FILE"),
    option("--as", "id", metavar="THREAD", help="The id of the new thread; default: that of the exported one."),
)  # fmt: skip
def import_thread(call: Call, file: str, id: str | None) -> None:
    """Make a thread of what `export` wrote; FILE is - for standard input. A thread that is there already is left alone."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise BadArgument(f"{file!r} cannot be read: {error.strerror}") from error
    with call.open() as store:
        made = store.import_thread(data, id=id)
        count = made.size().checkpoints
        call.did(f"thread {shown(made.id)} has {count:,} checkpoints", thread=made.id, checkpoints=count)
