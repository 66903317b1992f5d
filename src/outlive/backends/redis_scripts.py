"""The Lua scripts: each is the common part and its own file, named by the digest of its text."""

from __future__ import annotations

import hashlib
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


def _load(folder: Traversable, name: str) -> Script:
    own = (folder / f"redis_{name}.lua").read_text(encoding="ascii")
    common = "" if name == "index" else (folder / "redis_thread.lua").read_text(encoding="ascii")
    whole = _without_comments(common + own)
    return Script(whole, hashlib.sha1(whole.encode()).hexdigest())  # noqa: S324  # how Redis names scripts


def _load_all() -> dict[str, Script]:
    """Read them with this module: a child of a fork must not wait for a file that its parent was reading."""
    folder = resources.files(__package__)
    names = [
        file.name[len("redis_") : -len(".lua")] for file in folder.iterdir() if file.name.endswith(".lua")
    ]
    return {name: _load(folder, name) for name in names if name != "thread"}


def _without_comments(text: str) -> str:
    """Drop whole lines of comment: a server keeps the text of every script."""
    return "\n".join(line for line in text.splitlines() if line and not line.lstrip().startswith("--"))


_scripts = _load_all()
