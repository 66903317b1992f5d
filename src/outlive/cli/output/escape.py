"""Text from a store, shown so that it cannot steer a terminal, and read back from what was shown.

Control characters, lone surrogates, marks that turn the direction of text and characters that nobody sees are written as
escapes. What is shown can be given to a command again: an id is also found by its shown form.
"""

from __future__ import annotations

import re
import shlex

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BACK = {shown: char for char, shown in _NAMED.items()}
_ESCAPE = re.compile(r"\\n|\\r|\\t|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}")
# Control characters (Cc), lone surrogates (Cs), formats (Cf: among them what turns the direction of text, and what has no
# width), line and paragraph separators, fillers, and selectors of a variant: of two ids that look alike, one may have them.
_HARMFUL = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u17b4\\u17b5"
    "\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ud800-\\udfff\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
    "\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff]"
)
_NOT_ASCII = re.compile(f"{_HARMFUL.pattern}|[^\\x00-\\x7f]")


def shown(text: str) -> str:
    """Return text on one line, without anything that a terminal would obey."""
    return _HARMFUL.sub(lambda found: _NAMED.get(found[0]) or _escaped(found[0]), text)


def shown_lines(text: str) -> str:
    """Return text whose lines and tabs are kept; everything else as in `shown`."""
    return "\n".join("\t".join(shown(cell) for cell in line.split("\t")) for line in text.split("\n"))


def shown_json(text: str, *, is_ascii: bool = False) -> str:
    """Return JSON that says the same without characters that a terminal would obey; with `is_ascii` with none that needs UTF-8."""
    harmful = _NOT_ASCII if is_ascii else _HARMFUL
    return harmful.sub(lambda found: found[0] if found[0] == "\n" else _json_escape(found[0]), text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def meant(text: str) -> str:
    """Undo `shown`."""
    return _ESCAPE.sub(lambda found: _BACK.get(found[0]) or _char(found[0]), text)


def as_argument(text: str) -> str:
    """Return an id as a shell takes it, for a command that the reader may copy."""
    quoted = shlex.quote(shown(text))
    return f"-- {quoted}" if text.startswith("-") else quoted


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _char(escape: str) -> str:
    code = int(escape[2:], base=16)  # noqa: FURB166  # \\x1b is no 0x1b
    return chr(code) if code < 0x110000 else escape
