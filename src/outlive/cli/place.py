"""Which store a command is about: `--store URL`, OUTLIVE_STORE, or the one SQLite file of outlive's in this folder.

Looking must not create: a URL with a mistake in it would otherwise leave an empty store behind, and say that all is well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadArgument, StoreUnavailable

if TYPE_CHECKING:
    from ..sync import Store

_MAGIC = b"SQLite format 3\0"
_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_EXAMPLE = "outlive --store sqlite:///agent.db, or set OUTLIVE_STORE"


class NoStore(BadArgument):
    """There is no way to tell which store is meant."""


def find_store() -> str:
    """Return the URL of the one store in this folder."""
    names = sorted(path.name for path in Path().iterdir() if path.suffix in _SUFFIXES and _is_ours(path))
    if len(names) == 1:
        return f"sqlite:///{quoted(names[0])}"
    if names:
        raise NoStore(f"there are several stores here ({', '.join(names)}); name one: {_EXAMPLE}")
    raise NoStore(f"no store was named, and there is none in this folder; name one: {_EXAMPLE}")


def quoted(name: str) -> str:
    """Return a path as it stands in a URL."""
    return name.replace("%", "%25").replace("?", "%3F")


def _is_ours(path: Path) -> bool:
    """Tell whether a file is a store, by its header; one that was just made may have that in its log only."""
    from ..backends.sqlite import APPLICATION_ID

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
    url: str, tenant: str | None, *, creates: bool = False, knows_types: bool = False
) -> Iterator[Store]:
    """Open a store to work on it. Values of types that are not known here come as they are stored.

    With `knows_types` values are built, as a program would: its types must be registered.
    """
    from .. import opening
    from ..runtime import SyncRuntime, run_now
    from ..sync import Store
    from .opaque import OpaqueCodec

    target = opening._parse(url, {**({} if tenant is None else {"tenant": tenant}), **key_option()})
    if not creates:
        _check_path(url, target)
    backend = target.served.sync(target.settings.timeout_s)
    if not creates:
        _check_served(backend, target)
    opener: Any = None  # of further stores: this program opens them itself
    with Store(run_now(opening._build(backend, None, target, SyncRuntime(), opener))) as store:
        if not knows_types:
            store._store._engine.codec = OpaqueCodec()
        yield store


def key_option() -> dict[str, Any]:
    """Return the keys of an encrypted store. They come from the environment: others can see a command line."""
    said = os.environ.get("OUTLIVE_KEYS")
    if not said:
        return {}
    from ..layers.keyring import KeyRing

    return {"key": KeyRing.parse(said)}


def _check_path(url: str, target: Any) -> None:
    path = local_path(url)
    if path is None:
        return
    if not os.path.exists(path if url.startswith("sqlite") else os.path.join(path, "store")):
        raise StoreUnavailable(
            f"there is no store at {target.served.shown} ({path}); check the path, or save something there first"
        )


def _check_served(backend: Any, target: Any) -> None:
    """Ask a server for the identity of the store, which opening would otherwise give it."""
    from ..runtime import run_now

    if backend.name not in ("postgresql", "redis"):
        return
    try:
        if not run_now(_has_identity(backend)):
            raise StoreUnavailable(
                f"{target.served.shown} answers, but there is no store in it; check database, schema or prefix, "
                "or save something there first"
            )
    except BaseException:
        run_now(backend.close())
        raise


async def _has_identity(backend: Any) -> bool:
    if backend.name == "redis":
        return b"key" in await backend._identity._load()
    from ..backends.postgres_link import MissingSchema

    try:
        return bool(await backend._ask(backend._sql.identity))
    except MissingSchema:
        return False


def local_path(url: str) -> str | None:
    """Return where a store of this machine is kept; None for servers and memory."""
    from .. import opening

    scheme = url.partition(":")[0]
    if scheme not in ("sqlite", "file"):
        return None
    _, rest, _ = opening._parts(url, {}, ("fsync", *opening._COMMON))
    path = opening._path(scheme, rest, "")
    return None if path == ":memory:" else os.path.abspath(path)
