"""Which store a command is about: `--store URL`, OUTLIVE_STORE, or the one SQLite file of outlive's in this folder.

Looking must not create: a URL with a mistake in it would otherwise leave an empty store behind, and say that all is well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlive.errors import BadArgument, KeyMissing, NotEncrypted, StoreUnavailable

if TYPE_CHECKING:
    from outlive.backends.server.urls import BackendFactory
    from outlive.factory import StoreConfig
    from outlive.layers.encryption.keyring import KeyRing
    from outlive.store import AsyncStore
    from outlive.sync.facades import Store

_MAGIC = b"SQLite format 3\0"
_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_MANY = 8
_EXAMPLE = "outlive --store sqlite:///agent.db, or set OUTLIVE_STORE"


class NoStore(BadArgument):
    """There is no way to tell which store is meant."""


class Absent(StoreUnavailable):
    """There is no store where one was looked for."""


def find_store() -> str:
    """Return the URL of the one store in this folder."""
    names = sorted(path.name for path in Path().iterdir() if path.suffix in _SUFFIXES and _is_ours(path))
    if len(names) == 1:
        return f"sqlite:///{quoted(names[0])}"
    if names:
        example = _EXAMPLE.replace("agent.db", quoted(names[0]))
        some = ", ".join([*names[:_MANY], *(["…"] if len(names) > _MANY else [])])
        raise NoStore(f"there are several stores here ({some}); name one: {example}")
    raise NoStore(f"no store was named, and there is none in this folder; name one: {_EXAMPLE}")


def quoted(name: str) -> str:
    """Return a path as it stands in a URL."""
    return name.replace("%", "%25").replace("?", "%3F")


def _is_ours(path: Path) -> bool:
    """Tell whether a file is a store, by its header; one that was just made may have that in its log only."""
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
    return path.with_name(f"{path.name}-wal").exists() and _asked(path) == APPLICATION_ID


def _asked(path: Path) -> int | None:
    import apsw

    with contextlib.suppress(apsw.Error):
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        with contextlib.closing(db):
            return int(next(iter(db.execute("pragma application_id")))[0])
    return None


@contextlib.contextmanager
def opened(
    url: str,
    options: dict[str, Any],
    *,
    creates: bool = False,
    knows_types: bool = False,
    needs_key: bool = True,
    takes_over: bool = False,
) -> Iterator[Store]:
    """Open a store to work on it. Values of types that are not known here come as they are stored.

    With `knows_types` values are built, as a program would: its types must be registered. Without `needs_key` a store whose keys
    are not given is opened for what can be done without them.
    """
    from outlive.cli.output.opaque import OpaqueCodec
    from outlive.sync.facades import Store

    check_scheme(url)
    if not creates:
        options = checked(url, options, takes_over=takes_over, needs_key=needs_key)
    target = configured(url, options)
    if not creates and target.secondary is None:
        check_path(url, target.served)
    with Store(_built(target, creates, needs_key)) as store:
        if not knows_types:
            store._store._engine.codec = OpaqueCodec()
        yield store


def store_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as `outlive.open` takes them: those of a pair in one object."""
    from outlive.layers.replication.options import Replication

    pair = {name: value for name, value in options.items() if name in Replication.__slots__}
    others = {name: value for name, value in options.items() if name not in pair}
    return {**others, "replication": Replication(**pair)} if "secondary" in pair else others


def configured(url: str, options: dict[str, Any]) -> StoreConfig:
    """Return what a URL and options ask for."""
    from outlive.factory import configure

    return configure(url, **store_options(options))


def check_scheme(url: str) -> None:
    if ":" not in url:  # a person means the file
        meant = f"file:{quoted(url)}" if os.path.isdir(url) else f"sqlite:///{quoted(url)}"
        raise BadArgument(f"{url!r} is no URL; for the file or folder of that name write {meant}")


def checked(
    url: str, options: dict[str, Any], *, takes_over: bool = False, needs_key: bool = True
) -> dict[str, Any]:
    """Return options with which a pair can be opened without changing it."""
    if "secondary" not in options:
        return options
    from outlive.cli.pair_state import look, options_of_pair

    return options_of_pair(look(url, options), options, takes_over=takes_over, needs_key=needs_key)


def opening() -> Any:
    """Return the module that opens stores: it takes its time to import."""
    from outlive import factory as opening

    return opening


def _built(target: Any, creates: bool, needs_key: bool) -> AsyncStore:
    from outlive.runtime.runtime import SyncRuntime, run_now

    timeout_s = target.settings.timeout_s
    backend = target.served.sync(timeout_s)
    secondary = None if target.secondary is None else target.secondary.sync(timeout_s)
    if not creates and secondary is None:
        check_served(backend, target.served)
        _check_sealed(backend, target.ring)
    opener: Any = None  # of further stores: this program opens them itself
    try:
        built = opening()._build(
            backend, secondary, target, SyncRuntime(), opener, checks_pair=target.is_single
        )
        store: AsyncStore = run_now(built)
        return store
    except KeyMissing:
        if needs_key or target.ring is not None:
            raise
    from outlive.layers.encryption.keyring import KeyRing

    return _built(replace(target, ring=KeyRing()), creates, needs_key)


def _check_sealed(backend: Any, ring: KeyRing | None) -> None:
    """Refuse a ring without keys for a store that is not encrypted: all of it would be taken for broken."""
    if ring is None or ring.ids:
        return
    from outlive.layers.encryption.keyring import is_sealed
    from outlive.runtime.runtime import run_now

    if not is_sealed(run_now(backend.identity(b""))):
        run_now(backend.close())
        raise NotEncrypted


def check_path(url: str, served: BackendFactory) -> None:
    """Refuse a store of this machine that is not there, which opening would make."""
    path = local_path(url)
    if path is None:
        return
    is_there = _is_begun(path) if url.startswith("sqlite") else os.path.exists(os.path.join(path, "store"))
    if not is_there:
        raise Absent(
            f"there is no store at {served.shown} ({path}); check the path, or save something there first"
        )


def _is_begun(path: str) -> bool:
    """Tell whether a SQLite file is more than empty: SQLite would make a database of an empty one. A new one may be in its log only."""
    return any(
        os.path.exists(name) and (os.path.isdir(name) or os.path.getsize(name))
        for name in (path, f"{path}-wal")
    )


def check_served(backend: Any, served: BackendFactory) -> None:
    """Ask a server for the identity of the store, which opening would otherwise give it."""
    from outlive.runtime.runtime import run_now

    if backend.name not in ("postgresql", "redis"):
        return
    try:
        if not run_now(_has_identity(backend)):
            raise Absent(
                f"{served.shown} answers, but there is no store in it; check database, schema or prefix, "
                "or save something there first"
            )
    except BaseException:
        run_now(backend.close())
        raise


async def _has_identity(backend: Any) -> bool:
    if backend.name == "redis":
        return b"key" in await backend.store_identity.load()
    from outlive.errors import MissingSchema

    try:
        return bool(await backend._ask(backend._sql.identity))
    except MissingSchema:
        return False


def local_path(url: str) -> str | None:
    """Return where a store of this machine is kept; None for servers and memory."""
    scheme = url.partition(":")[0]
    if scheme not in ("sqlite", "file"):
        return None
    from outlive import urls

    return urls.local_path(url)
