"""The Lua scripts: each is what it uses of the common parts and its own file, named by the digest of its text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable


@dataclass(frozen=True, slots=True)
class Script:
    """A script as a server knows it."""

    text: str
    sha: str


def script(name: str) -> Script:
    """Return a script by the middle of its file's name."""
    return _scripts[name]


_THREAD, _BUCKET = "thread", "bucket"  # what the others are made of
_ALONE = ("index", "lines", "recount", "register", "used")


def _load(folder: Traversable, name: str) -> Script:
    own = _text(folder, name)
    common = "" if name in _ALONE else _text(folder, _THREAD) + _text(folder, _BUCKET)
    whole = _needed(common, own) + own
    return Script(whole, hashlib.sha1(whole.encode()).hexdigest())  # noqa: S324  # how Redis names scripts


def _needed(common: str, own: str) -> str:
    """Leave out functions that a script does not use: every call of a script makes all of its functions."""
    blocks = list(_functions(common))
    used = set(_words.findall(own))
    for name, text in reversed(blocks):  # each is defined before it is used
        if name is None or name in used:
            used.update(_words.findall(text))
    return "".join(text for name, text in blocks if name is None or name in used)


def _functions(common: str) -> Iterator[tuple[str | None, str]]:
    """Cut a text into its functions, by name, and what stands between them."""
    lines: list[str] = []
    name = None
    for line in common.splitlines(keepends=True):
        begins = _begin.match(line)
        if begins:
            yield None, "".join(lines)
            lines, name = [], begins[1]
        lines.append(line)
        if name is not None and (line == "end\n" or (begins and line.endswith(" end\n"))):
            yield name, "".join(lines)
            lines, name = [], None
    yield None, "".join(lines)


_begin = re.compile(r"local function (\w+)\(")
_words = re.compile(r"\w+")


def _text(folder: Traversable, name: str) -> str:
    return _without_comments((folder / f"{name}.lua").read_text(encoding="ascii"))


def _load_all() -> dict[str, Script]:
    """Read them with this module: a child of a fork must not wait for a file that its parent was reading."""
    folder = resources.files(__package__) / "lua"
    names = [file.name[: -len(".lua")] for file in folder.iterdir() if file.name.endswith(".lua")]
    return {name: _load(folder, name) for name in names if name not in (_THREAD, _BUCKET)}


def _without_comments(text: str) -> str:
    """Drop whole lines of comment: a server keeps the text of every script."""
    kept = [line for line in text.splitlines() if line and not line.lstrip().startswith("--")]
    return "".join(f"{line}\n" for line in kept)


_scripts = _load_all()
