"""Finds and opens the store of a command: `--store URL`, OUTLIVE_STORE, or the SQLite store in this folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlive.cli.config import configure_store
from outlive.errors import BadArgument, KeyMissing, NotEncrypted
from outlive.runtime.runtime import run_now
from outlive.urls import is_url
from outlive.view.opaque import OpaqueCodec
from outlive.view.opened_store import OpenedStore

if TYPE_CHECKING:
    from outlive.layers.encryption.keyring import KeyRing

_MAGIC = b"SQLite format 3\0"
_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_LISTED = 8
_EXAMPLE = "outlive --store sqlite:///agent.db, or set OUTLIVE_STORE"


class NoStore(BadArgument):
    """No store was named, and this folder has none or several."""


def find_store() -> str:
    """Return the URL of the only store in this folder."""
    names = sorted(path.name for path in Path().iterdir() if path.suffix in _SUFFIXES and _is_store(path))
    if len(names) == 1:
        return f"sqlite:///{quote_path(names[0])}"
    if names:
        example = _EXAMPLE.replace("agent.db", quote_path(names[0]))
        listed = ", ".join([*names[:_LISTED], *(["…"] if len(names) > _LISTED else [])])
        raise NoStore(f"several stores in this folder ({listed}); name one: {example}")
    raise NoStore(f"no store was named, and there is none in this folder; name one: {_EXAMPLE}")


def quote_path(path: str) -> str:
    """Return a path as part of a URL."""
    return path.replace("%", "%25").replace("?", "%3F")


def _is_store(path: Path) -> bool:
    """Tell whether a file is a store by its header; that of a new one may be in its log only."""
    from outlive.backends.sqlite.connection import APPLICATION_ID

    try:
        with path.open("rb") as file:
            header = file.read(72)
    except OSError:
        return False
    if not header.startswith(_MAGIC):
        return False
    if header[68:72] == APPLICATION_ID.to_bytes(4, "big"):
        return True
    return path.with_name(f"{path.name}-wal").exists() and _application_id(path) == APPLICATION_ID


def _application_id(path: Path) -> int | None:
    import apsw

    with contextlib.suppress(apsw.Error):
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        with contextlib.closing(db):
            return int(next(iter(db.execute("pragma application_id")))[0])
    return None


@contextlib.contextmanager
def open_store(
    url: str,
    options: dict[str, Any],
    *,
    create: bool = False,
    knows_types: bool = False,
    needs_key: bool = True,
    takes_over: bool = False,
) -> Iterator[OpenedStore]:
    """Open a store. Values of registered types stay as they are stored, unless `knows_types`.

    Without `needs_key` an encrypted store is opened without keys, for what needs none.
    """
    if not create:
        options = pair_options(url, options, takes_over=takes_over, needs_key=needs_key)
    # Inspecting a pair has shown that both stores exist, or that the one that is missing may be
    # filled.
    options = {**options, "create": create or "secondary" in options}
    with _open(url, options, None if knows_types else OpaqueCodec(), needs_key) as store:
        _check_encrypted(store, options.get("key"))
        yield store


def _open(url: str, options: dict[str, Any], codec: OpaqueCodec | None, needs_key: bool) -> OpenedStore:
    from outlive.factory import open_parts
    from outlive.layers.encryption.keyring import KeyRing

    check_url(url)
    config = configure_store(url, options)
    if codec is not None:
        config = replace(config, codec=codec)
    try:
        return OpenedStore(run_now(open_parts(config)))
    except KeyMissing:
        if needs_key or "key" in options:
            raise
    return OpenedStore(run_now(open_parts(replace(config, ring=KeyRing()))))


def check_url(url: str) -> None:
    """Refuse the path of a folder: a plain path means a SQLite file."""
    if os.path.isdir(url):
        raise BadArgument(f"{url!r} is a folder; for a store in this folder write file:{quote_path(url)}")


def to_url(location: str) -> str:
    """Return the URL of a store that may be named by a plain path."""
    check_url(location)
    return location if is_url(location) else f"sqlite:///{quote_path(location)}"


def pair_options(
    url: str, options: dict[str, Any], *, takes_over: bool = False, needs_key: bool = True
) -> dict[str, Any]:
    """Return the options with which a pair is opened without changing it."""
    if "secondary" not in options:
        return options
    from outlive.cli.pair_state import inspect_pair, options_of_pair

    return options_of_pair(inspect_pair(url, options), options, takes_over=takes_over, needs_key=needs_key)


def _check_encrypted(store: OpenedStore, ring: KeyRing | None) -> None:
    """Refuse an empty ring for a store that is not encrypted: all of it would look damaged."""
    if ring is None or ring.ids:
        return
    from outlive.layers.encryption.keyring import is_encrypted

    if not is_encrypted(run_now(store.backend.identity(b""))):
        raise NotEncrypted
