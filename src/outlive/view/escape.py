"""Escapes text from a store so that it cannot control a terminal, and reads it back.

Control characters, lone surrogates, marks that change the direction of text and invisible
characters are written as escapes. Users can pass an escaped id to a command: ids are also looked up
unescaped.
"""

from __future__ import annotations

import re
import shlex

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CHARS = {escape: char for char, escape in _NAMED.items()}
_ESCAPE = re.compile(r"\\n|\\r|\\t|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}")
# Control characters (Cc), lone surrogates (Cs), formats (Cf: direction marks, zero-width
# characters), line and paragraph separators, fillers and variation selectors: two ids that look
# alike may differ in these only.
_UNSAFE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u17b4\\u17b5"
    "\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ud800-\\udfff\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
    "\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff]"
)
_NOT_ASCII = re.compile(f"{_UNSAFE.pattern}|[^\\x00-\\x7f]")


def escape_terminal(text: str) -> str:
    """Return text on one line, without anything that a terminal would interpret."""
    return _UNSAFE.sub(lambda match: _NAMED.get(match[0]) or _escape(match[0]), text)


def escape_lines(text: str) -> str:
    """Escape text but keep its lines and tabs."""
    return "\n".join(
        "\t".join(escape_terminal(cell) for cell in line.split("\t")) for line in text.split("\n")
    )


def escape_json(text: str, *, is_ascii: bool = False) -> str:
    """Return equivalent JSON that is safe to print; with `is_ascii` it has only ASCII characters."""
    unsafe = _NOT_ASCII if is_ascii else _UNSAFE
    return unsafe.sub(lambda match: match[0] if match[0] == "\n" else _json_escape(match[0]), text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def unescape(text: str) -> str:
    """Undo `escape_terminal`."""
    return _ESCAPE.sub(lambda match: _CHARS.get(match[0]) or _char(match[0]), text)


def quote_argument(text: str) -> str:
    """Return an id as a shell argument, for a command that the reader may copy."""
    return f"-- {quote_word(text)}" if text.startswith("-") else quote_word(text)


def quote_word(text: str) -> str:
    """Return a word of a command line, for a command that the reader may copy."""
    return shlex.quote(escape_terminal(text))


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _char(escape: str) -> str:
    code = int(escape[2:], base=16)  # noqa: FURB166  # \\x1b is no 0x1b
    return chr(code) if code < 0x110000 else escape
