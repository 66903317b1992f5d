"""Formats sizes and times for people, and reads them from options."""

from __future__ import annotations

import datetime as dt
import re

from outlive.errors import BadArgument

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS = ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "min"))
_SMALLER = {"y": 86_400, "d": 3_600, "h": 60, "min": 1}  # the seconds of the next smaller unit
_SECONDS = {unit: length for length, unit in (*_SPANS, (86_400 * 7, "w"), (60, "m"), (1, "s"), (1, ""))}


def format_size(count: int) -> str:
    """Return a number of bytes: 812 B, 12.3 kB, 4.0 GB."""
    amount = float(count)
    for unit in _UNITS:
        if abs(amount) < 999.5 or unit == _UNITS[-1]:
            break
        amount /= 1000
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def parse_size(option: str, text: str) -> int:
    """Return the bytes of a size: 900, 10 kB, 1.5 MB."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?([kKMGTP]?)i?[bB]?", text.strip())
    if match is None:
        raise BadArgument(f"{option} takes a size such as 900, 10 kB or 1.5 MB, not {text!r}")
    return int(float(match[1]) * 1000 ** ("", "K", "M", "G", "T", "P").index(match[2].upper()))


def format_duration(seconds: float) -> str:
    """Return a duration, rounded: 0.4 s, 4 s, 3 min, 5 h, 12 d."""
    if round(seconds, 1) < 1:
        return f"{max(seconds, 0.0):.1f} s"
    # What is rounded up to the next unit is shown in that: 59.7 s are 1 min.
    for length, unit in _SPANS:
        smaller = _SMALLER[unit]
        if _half_up(seconds / smaller) * smaller >= length:
            return f"{_half_up(seconds / length)} {unit}"
    return f"{_half_up(seconds)} s"


def _half_up(number: float) -> int:
    return int(number + 0.5)


def format_elapsed(began: dt.datetime, ended: dt.datetime | None) -> str:
    """Return how long something took: 40 ms, 2.5 s, 12 s; nothing while it is under way."""
    if ended is None:
        return ""
    return format_seconds(max(0.0, (ended - began).total_seconds()))


def format_seconds(seconds: float) -> str:
    """Return a duration as exactly as a measured one is read: 40 ms, 2.5 s, 12 s."""
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else format_duration(seconds)


def format_age(when: dt.datetime | None, now: dt.datetime | None = None) -> str:
    """Return how long ago a time was."""
    if when is None:
        return ""
    seconds = ((now or dt.datetime.now(dt.UTC)) - when).total_seconds()
    if -1 < seconds < 1:
        return "just now"
    return f"{format_duration(seconds)} ago" if seconds >= 0 else f"in {format_duration(-seconds)}"


def format_time(when: dt.datetime | None) -> str:
    """Return a time in the time zone of this machine, with its age."""
    return "" if when is None else f"{when.astimezone():%Y-%m-%d %H:%M:%S %Z} ({format_age(when)})"


def parse_iso(text: str | None) -> dt.datetime | None:
    """Return a time of a JSON item."""
    return None if text is None else dt.datetime.fromisoformat(text)


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: 1 thread, 2 threads."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def parse_duration(option: str, text: str) -> float:
    """Return the seconds of a duration: 90, 90s, 5m, 5min, 12h, 30d, 8w, 1y."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip())
    if match is None or match[2] not in _SECONDS:
        raise BadArgument(f"{option} takes a duration such as 90s, 5m, 12h, 30d, 8w or 1y, not {text!r}")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not seconds:
        raise BadArgument(f"{option} takes a duration above 0, not {text!r}")
    return seconds


def parse_time(option: str, text: str) -> dt.datetime:
    """Return a point in time, in local time unless it has a zone."""
    try:
        return dt.datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise BadArgument(f"{option} takes a time such as 2026-05-01T12:00, not {text!r}") from None


def parse_moment(option: str, text: str) -> dt.datetime:
    """Return a point in time, which may be given by how far away it is: 2h."""
    if re.fullmatch(r"[\d.]+ ?[a-z]+", text.strip()):
        return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=parse_duration(option, text))
    try:
        return parse_time(option, text)
    except BadArgument:
        raise BadArgument(
            f"{option} takes a time such as 2026-05-01T12:00, or a duration such as 2h, not {text!r}"
        ) from None
