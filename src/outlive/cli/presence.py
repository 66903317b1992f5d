"""Checks that a store exists before it is opened, because opening would create it.

Otherwise a typo in a URL would create an empty store, and the answer would be that all is well.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from outlive.errors import StoreUnavailable

if TYPE_CHECKING:
    from outlive.backends.server.urls import BackendFactory


class StoreMissing(StoreUnavailable):
    """There is no store at this URL."""


def factory() -> Any:
    """Return the module that opens stores, imported when it is needed: it takes its time."""
    from outlive import factory

    return factory


def check_path(url: str, served: BackendFactory) -> None:
    """Raise StoreMissing for a local store that does not exist."""
    path = local_path(url)
    if path is None:
        return
    exists = _is_begun(path) if url.startswith("sqlite") else os.path.exists(os.path.join(path, "store"))
    if not exists:
        raise StoreMissing(f"no store at {served.shown} ({path}); check the path, or save something first")


def _is_begun(path: str) -> bool:
    """Tell whether a SQLite file has content; that of a new one may be in its log only."""
    return any(
        os.path.exists(name) and (os.path.isdir(name) or os.path.getsize(name))
        for name in (path, f"{path}-wal")
    )


def check_served(backend: Any, served: BackendFactory) -> None:
    """Raise StoreMissing for a server that has no store; close the backend when it cannot be used."""
    from outlive.runtime.runtime import run_now

    if backend.name not in ("postgresql", "redis"):
        return
    try:
        if not run_now(_has_identity(backend)):
            raise StoreMissing(
                f"no store in {served.shown}, though the server answers; check database, schema or prefix, "
                "or save something first"
            )
    except BaseException:
        run_now(backend.close())
        raise


async def _has_identity(backend: Any) -> bool:
    if backend.name == "redis":
        return b"key" in await backend._identity._load()
    from outlive.errors import MissingSchema

    try:
        return bool(await backend._ask(backend._sql.identity))
    except MissingSchema:
        return False


def local_path(url: str) -> str | None:
    """Return the path of a local store; None for servers and memory."""
    scheme = url.partition(":")[0]
    if scheme not in ("sqlite", "file"):
        return None
    _, rest, _ = factory()._parts(url, {}, ("fsync", *factory()._COMMON))
    path = factory()._path(scheme, rest, "")
    return None if path == ":memory:" else os.path.abspath(path)
