"""What the tests of crashes and of several processes share: stores in a folder, and workers to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import outlive

from .server import ForkServer, Worker

BACKENDS = ("sqlite", "file")
SERVERS = ("postgresql", "redis")
LONG = os.environ.get("OUTLIVE_LONG", "") not in ("", "0")
# Each engine, and each durability on one engine in a folder and on one server; with OUTLIVE_LONG=1 on all of them.
WAYS = [
    (backend, durability)
    for number, backend in enumerate((*BACKENDS, *SERVERS))
    for place, durability in enumerate(("sync", "async"))
    if LONG or number % 2 == place
]


def url_of(backend: str, folder: Path) -> str:
    """Return the URL of a store of its own in a folder."""
    return f"sqlite:///{folder}/store.db" if backend == "sqlite" else f"file://{folder}/store"


@contextlib.contextmanager
def ram_folder() -> Iterator[Path]:
    """A folder in memory where there is one: a killed process loses nothing there that it keeps on a disk."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="outlive-", dir=parent) as folder:
        yield Path(folder)


def stop_between_calls(store: outlive.Store) -> None:
    """Stop this process until SIGCONT, while it commits nothing: else it would keep a lock of a file as long as it is stopped."""
    local = getattr(store._store._engine.backend, "local", None)
    with local.lock if local is not None else contextlib.nullcontext():
        os.kill(os.getpid(), signal.SIGSTOP)


def rounds(normal: int, long: int | None = None) -> int:
    """Return how often a test repeats: `long` times (20 times as often by default) with OUTLIVE_LONG=1."""
    return (normal * 20 if long is None else long) if LONG else normal


__all__ = [
    "BACKENDS",
    "LONG",
    "SERVERS",
    "WAYS",
    "ForkServer",
    "Worker",
    "ram_folder",
    "rounds",
    "stop_between_calls",
    "url_of",
]
