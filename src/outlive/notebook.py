"""Small HTML tables for notebooks: escaped, bounded, and readable on a light and on a dark page.

What a state holds is text here and nothing else: no markup, no links, and no character that turns
or hides text.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

ROWS = 10  # of a table
_ROOM = 120  # characters of a cell
_SHADES = {"added": "rgba(46,160,67,.2)", "removed": "rgba(248,81,73,.2)", "changed": "rgba(210,153,34,.2)"}
# No color of text or page: both are those of the notebook.
_CELL = "text-align:left;vertical-align:top;padding:2px 8px;border:1px solid rgba(128,128,128,.4)"


def preview(value: Any) -> str:
    """Return the beginning of a value's repr. An error in the repr of a class of the program is no error here."""
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxtuple, short.maxset = 3, 4, 6, 6, 6
    short.maxstring = short.maxother = _ROOM
    short.maxlong = 40
    try:
        return short.repr(value)
    except Exception:  # noqa: BLE001  # of the program
        return f"<{type(value).__name__}>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, is_more: bool = False) -> str:
    """Return a table of texts; `is_more` says that there is more. A kind of change has a color."""
    body = "".join(f"<tr>{''.join(_cell('td', text) for text in row)}</tr>" for row in rows)
    more = f"<tr>{''.join(_cell('td', '…') for _ in head)}</tr>" if is_more else ""
    top = "".join(_cell("th", text) for text in head)
    return (
        f'<table style="border-collapse:collapse;font-size:90%"><caption style="text-align:left;padding:2px 0">'
        f"{text(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}{more}</tbody></table>"
    )


def text(value: str) -> str:
    """Return a text as HTML, shortened; what cannot be printed is escaped."""
    short = value if len(value) <= 2 * _ROOM else f"{value[: 2 * _ROOM]}…"
    return escape("".join(char if char.isprintable() else repr(char)[1:-1] for char in short))


def _cell(tag: str, content: str) -> str:
    shade = f";background:{_SHADES[content]}" if tag == "td" and content in _SHADES else ""
    return f'<{tag} style="{_CELL}{shade}">{text(content)}</{tag}>'
