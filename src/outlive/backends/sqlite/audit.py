"""What is wrong with a SQLite store: every row of a thread, and rows that belong to none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import apsw

from outlive.backend import unescape
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.entries import audit_entries
from outlive.backends.sqlite.reader import Reader
from outlive.backends.sqlite.tables import RECENT_US, RECORD, TABLES, THREADS, chunk_crc, listed_thread
from outlive.errors import Corrupt


class Audit:
    """Looks at every row of one thread, and lists what is wrong."""

    def __init__(self, db: apsw.Connection, view: Reader) -> None:
        self._db = db
        self._view = view
        self._damage: list[Corrupt] = []

    def run(self) -> list[Corrupt]:
        view = self._view
        if view.counters is None:
            return []
        self._try(lambda: view.check_count(None))
        sql = "select metadata, metadata_json, metadata_checksum from thread where key = ?"
        self._try(lambda: view.summary(*fetch_one(self._db, sql, (view.key,))))
        self._try(self._check_recent)
        for row in self._db.execute(f"{RECORD} where thread = ?", (view.key,)).fetchall():
            self._try(partial(view.record, row))
        heads = "select namespace from head where digest = ? union select namespace from checkpoint where thread = ?"
        spaces: list[Any] = self._db.execute(heads, (view.thread.digest, view.key)).fetchall()
        for (namespace,) in spaces:
            self._try(partial(self._check_namespace, unescape(namespace)))
        self._try(lambda: [view.writes_of(*pair) for pair in view.written()])
        self._damage += audit_entries(self._db, view.key, view.thread.id, view.entries)
        self._check_chunks()
        return self._damage

    def _try(self, look: Callable[[], Any]) -> None:
        try:
            look()
        except Corrupt as error:
            self._damage.append(error)

    def _check_recent(self) -> None:
        view = self._view
        (recent,) = fetch_one(self._db, "select recent from thread where key = ?", (view.key,))
        if recent != view.updated_at // RECENT_US:
            raise Corrupt("it is not listed at the time of its last change", thread=view.thread.id)

    def _check_namespace(self, namespace: str) -> None:
        self._view.newest(namespace, None)
        self._view.check_count(namespace)

    def _check_chunks(self) -> None:
        view = self._view
        sql = "select name, revision, crc, data from chunk where thread = ?"
        for name, revision, crc, data in self._db.execute(sql, (view.key,)):
            if crc != chunk_crc(view.key, name, revision, data):
                self._damage.append(Corrupt(f"chunk {name.hex()} is damaged", thread=view.thread.id))


def unlisted(id: object) -> Corrupt:
    """Return the error for a thread that has a row or is in the roster, but not both."""
    thread = unescape(id) if isinstance(id, str) else repr(id)
    return Corrupt("its row, or its place in the list of threads, is gone or changed", thread=thread)


def orphans(db: apsw.Connection) -> list[Corrupt]:
    """Find rows whose thread is gone, and damaged rows of threads that nobody lists."""
    damage: list[Corrupt] = []
    rows: list[Any] = db.execute(f"{THREADS} where not t.listed").fetchall()
    for row in rows:
        try:
            thread, unchecked = listed_thread(row)
            view = Reader(db, thread, unchecked=unchecked)
            # Worded as by the audit of that thread, so that `verify` lists each problem once.
            damage += Audit(db, view).run()
        except Corrupt as error:
            damage.append(error)
        *_, metadata, _, check = row
        if metadata is not None or check is not None:
            damage.append(Corrupt("a thread without content has metadata"))
    sql = (
        "select tenant, id from roster except select tenant, id from thread where listed "
        "union all select * from (select tenant, id from thread where listed except select tenant, id from roster)"
    )
    damage += [unlisted(row[1]) for row in db.execute(sql)]
    for table in TABLES:
        count = fetch_one(db, f"select count(*) from {table} where thread not in (select key from thread)")[0]
        if count:
            damage.append(Corrupt(f"{count} rows of {table} belong to no thread"))
    lost = fetch_one(db, "select count(*) from head where digest not in (select digest from thread)")[0]
    return damage + ([Corrupt(f"{lost} heads belong to no thread")] if lost else [])
