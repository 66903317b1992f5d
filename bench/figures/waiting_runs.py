"""What runs that wait cost while they wait: threads, leases and writes of the process that started them.

Each run asks a question, and nobody answers. Writes are counted for some seconds on SQLite, by the version of the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ours
from scale import Scale
from table import Row

_WATCHED_S = 5.0


def run(scale: Scale, room: Path) -> Iterator[Row]:
    before = threading.active_count()
    with ours.open_store(room / "waiting.db") as store:
        for number in range(scale.waiting):
            with store.run(f"t{number}", agent="asks") as run:
                run.ask("go?")
        live = len(store._store._heart._runs)
        threads = threading.active_count() - before
        version = _version(store)
        time.sleep(_WATCHED_S)
        writes = _version(store) - version
        assert sum(1 for _ in store.questions()) == scale.waiting
    measured = f"{threads} threads, {live} leases, {writes / _WATCHED_S:g} writes/s"
    yield Row(f"{scale.waiting:,} runs that wait", measured, "0, 0, 0", not threads + live + writes)


def _version(store: ours.outlive.Store) -> int:
    """Return a number that every commit of any process raises."""
    import apsw

    path = store._store._settings.url.removeprefix("sqlite:///")
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(db.execute("select coalesce(sum(revision), 0) from thread").fetchone()[0])
    finally:
        db.close()
