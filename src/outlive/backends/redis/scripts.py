"""The Lua scripts: each is its own file after the functions that it uses of the common files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from outlive.backend.entries import LISTING
from outlive.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """A script as a server knows it."""

    text: str
    sha: str


def script(name: str) -> Script:
    """Return a script by the name of its file."""
    return _scripts[name]


# The files whose functions a script may use. Most scripts are about one thread.
_OF_THREADS = ("thread", "bucket")
_OF_BUCKETS = {
    "count_times": (), "index": (), "register": (), "used": (), "lines": ("rows",), "recount": ("rows",), "totals": ("rows",),
}  # fmt: skip
_COMMON = (*_OF_THREADS, "rows")
_LISTING_KINDS = ", ".join(f'["{kind}"] = true' for kind in LISTING)


def _load(folder: Traversable, name: str) -> Script:
    own = _text(folder, name)
    common = "".join(_text(folder, part) for part in _OF_BUCKETS.get(name, _OF_THREADS))
    whole = (_needed(common, own) + own).replace("LISTING_KINDS", _LISTING_KINDS)
    # Redis names scripts by SHA-1.
    return Script(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


def _needed(common: str, own: str) -> str:
    """Leave out unused functions: every call of a script creates all of its functions."""
    blocks = list(_functions(common))
    used = set(_words.findall(own))
    for name, text in reversed(blocks):  # each is defined before it is used
        if name is None or name in used:
            used.update(_words.findall(text))
    return "".join(text for name, text in blocks if name is None or name in used)


def _functions(common: str) -> Iterator[tuple[str | None, str]]:
    """Split a text into its functions, by name, and what is between them."""
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
    """Return a file without its lines of comment: a server keeps the text of every script."""
    lines = (folder / f"{name}.lua").read_text(encoding="ascii").splitlines()
    return "".join(f"{line}\n" for line in lines if line and not line.lstrip().startswith("--"))


def _load_all() -> dict[str, Script]:
    """Read all scripts on import: a forked child must not wait for a file of its parent."""
    folder = resources.files(__package__) / "lua"
    names = [file.name[: -len(".lua")] for file in folder.iterdir() if file.name.endswith(".lua")]
    return {name: _load(folder, name) for name in names if name not in _COMMON}


_scripts = _load_all()
