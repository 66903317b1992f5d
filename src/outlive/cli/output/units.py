"""Sizes and times as people read them."""

from __future__ import annotations

import datetime as dt
import re

from outlive.errors import BadArgument

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS = ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "min"))
_SECONDS = {unit: length for length, unit in (*_SPANS, (86_400 * 7, "w"), (1, "s"), (1, ""))}


def size(count: int) -> str:
    """Return a number of bytes: 812 B, 12.3 kB, 4.0 GB."""
    amount = float(count)
    for unit in _UNITS:
        if abs(amount) < 999.5 or unit == _UNITS[-1]:
            break
        amount /= 1000
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def span(seconds: float) -> str:
    """Return a length of time: 4 s, 3 min, 5 h, 12 d."""
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s" if seconds >= 1 else f"{max(seconds, 0.0):.1f} s"


def seconds(option: str, text: str) -> float:
    """Read a length of time: 90, 90s, 5min, 12h, 30d, 8w, 1y."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip())
    if found is None or found[2] not in _SECONDS:
        raise BadArgument(
            f"{option} takes a length of time such as 90s, 5min, 12h, 30d, 8w or 1y, not {text!r}"
        )
    if not (length := float(found[1]) * _SECONDS[found[2]]):
        raise BadArgument(f"{option} takes a length of time above 0, not {text!r}")
    return length


def moment(option: str, text: str) -> dt.datetime:
    """Read a moment, local unless it has a zone."""
    try:
        return dt.datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise BadArgument(f"{option} takes a moment such as 2026-05-01T12:00, not {text!r}") from None


def age(when: dt.datetime | None, now: dt.datetime | None = None) -> str:
    """Return how long ago a moment was."""
    if when is None:
        return ""
    seconds = ((now or dt.datetime.now(dt.UTC)) - when).total_seconds()
    if -1 < seconds < 1:
        return "just now"
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def local(when: dt.datetime | None) -> str:
    """Return a moment in the time zone of this machine, and how long ago it was."""
    if when is None:
        return ""
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S %Z} ({age(when)})"


def counted(count: int, what: str) -> str:
    """Return how many of something there are: 1 thread, 2 threads."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def times(part: int, whole: int) -> str:
    """Return how often a part goes into a whole."""
    from outlive.cli.output.table import can_draw

    sign, none = ("×", "–") if can_draw() else ("x", "-")
    return f"{whole / part:.1f}{sign}" if part else none
