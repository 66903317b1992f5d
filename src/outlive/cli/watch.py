"""Answers with a list, once or with --watch until Ctrl-C.

A list that is watched is read again every second. At a terminal it is drawn over itself. Into a
pipe, and with --json, only what changed is printed: a line for every item that appeared (+),
changed (~) or disappeared (-). Fields that change by the passing of time, such as what is left of a
lease, are no change.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from outlive.cli.command import flag
from outlive.cli.context import FORMAT, Call, OutputClosed
from outlive.cli.output.table import is_terminal
from outlive.dataclass import dataclass
from outlive.runtime.platform import system
from outlive.view.escape import escape_json, escape_terminal

_INTERVAL_S = 1.0
_VOLATILE = frozenset({"lease_expires_at", "lease_left_s", "quiet_s", "updated_at"})
_HOME, _ERASE_LINE, _ERASE_BELOW, _ERASE_ALL = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"
_SIGNS = {"added": "+", "changed": "~", "removed": "-"}

Item = dict[str, Any]
Named = dict[
    tuple[str, str | None], Item
]  # by name and thread: several threads may have a run of the same id


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look at a list returned, and how it is shown."""

    items: Sequence[Item]
    show: Callable[[], None]  # prints the table
    name: Callable[[Item], str]  # what --quiet prints of an item
    cells: Callable[[Item], Sequence[str]]  # what a line about a change says after the name
    next: str | None = None  # where the next page begins
    notes: Sequence[str] = ()
    is_ok: bool = True


def watch_option() -> click.Option:
    return flag(
        "--watch", "-w", help="Show the list again every second, until Ctrl-C; in a pipe, print what changes."
    )


def answer_list(call: Call, look: Callable[[], Listing], *, watches: bool) -> None:
    """Print a list, or watch it."""
    if watches:
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            _watch(call, look)
        return
    listing = look()
    call.answer(
        listing.items,
        listing.show,
        brief=[listing.name(item) for item in listing.items],
        next=listing.next,
        is_ok=listing.is_ok,
    )
    for note in listing.notes:
        call.note(note)


def _watch(call: Call, look: Callable[[], Listing]) -> None:
    draws = is_terminal() and not call.is_json and not call.is_quiet and os.environ.get("TERM") != "dumb"
    if draws:
        system.enable_escapes()
        sys.stdout.write(_HOME + _ERASE_ALL)
    before: Named = {}
    notes: Sequence[str] = ()
    while True:
        listing = look()
        if draws:
            _draw(call, listing)
        else:
            before = _print_changes(call, listing, before)
            for note in listing.notes if listing.notes != notes else ():
                call.note(note)
            notes = listing.notes
        sys.stdout.flush()
        _pause()


def _pause() -> None:
    """Wait for the next look. Raises OutputClosed when nobody reads the output any more."""
    if not system.wait_for_reader(sys.stdout.fileno(), _INTERVAL_S):
        raise OutputClosed


# At a terminal


class _Frame(io.StringIO):
    """What would be printed at the terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def _draw(call: Call, listing: Listing) -> None:
    """Draw a list over the one before; what the terminal has no room for is left out."""
    import shutil  # slow to import

    frame, size = _Frame(), shutil.get_terminal_size()
    frame.encoding = sys.stdout.encoding
    with contextlib.redirect_stdout(frame):
        print(f"outlive {call.command}: {_clock()}, Ctrl-C ends"[: size.columns])
        listing.show()
        for note in listing.notes:
            print(escape_terminal(note)[: size.columns])
    lines, room = frame.getvalue().splitlines(), max(size.lines - 1, 2)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"{len(lines) - room + 1} more lines"[: size.columns]]
    body = "".join(f"{line}{_ERASE_LINE}\n" for line in lines)
    sys.stdout.write(f"{_HOME}{body}{_ERASE_BELOW}")


def _clock() -> str:
    return f"{dt.datetime.now().astimezone():%H:%M:%S}"


# In a pipe


def _print_changes(call: Call, listing: Listing, before: Named) -> Named:
    now = {(listing.name(item), item.get("thread")): item for item in listing.items}
    for change, item in _changes(before, now):
        if call.is_json:
            line = {
                "format": FORMAT,
                "command": call.command,
                "change": change,
                "at": _iso_now(),
                "item": item,
            }
            print(escape_json(json.dumps(line)))
        elif not call.is_quiet:
            cells = [listing.name(item), *map(escape_terminal, filter(None, listing.cells(item)))]
            print(f"{_clock()} {_SIGNS[change]} {'  '.join(cells)}")
        elif change != "removed":
            print(listing.name(item))
    return now


def _changes(before: Named, now: Named) -> Iterator[tuple[str, Item]]:
    for name, item in before.items():
        if name not in now:
            yield "removed", item
    for name, item in now.items():
        if name not in before:
            yield "added", item
        elif _settled(item) != _settled(before[name]):
            yield "changed", item


def _settled(item: Item) -> Item:
    return {name: value for name, value in item.items() if name not in _VOLATILE}


def _iso_now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()
