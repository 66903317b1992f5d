"""Records in one SQLite file, shared by any number of threads and processes.

WAL, `synchronous=FULL`, one writer at a time by BEGIN IMMEDIATE. Commits that wait together share
one transaction and so one fsync; a refused one is rolled back alone. A crash at any moment leaves
the last committed transaction: SQLite rolls back the rest when the file is opened next.

Every row carries a checksum over all of its columns. Rows that could vanish without a trace are
counted elsewhere (`head`, `tally`). SQLite's bookkeeping of POSIX locks does not survive a fork, so
the connection is closed just before one and opened again afterwards, in parent and child alike.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw

from outlive.backend import (
    CachedHead,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Inventory,
    Page,
    ReadResult,
    Receipt,
    ThreadKey,
    ThreadQuery,
    ThreadRecord,
    Totals,
    WriteRecord,
    checksum,
    escape,
)
from outlive.backend.clock import clock, lease_facts
from outlive.backends.rules.decide import decide
from outlive.backends.rules.snapshot import is_deletion
from outlive.backends.rules.view import fitting, write_order
from outlive.backends.sqlite.append import Remembered, Unusual, append
from outlive.backends.sqlite.audit import Audit, orphans, unlisted
from outlive.backends.sqlite.connection import SCHEMA_VERSION, Connection, fetch_one
from outlive.backends.sqlite.entries import EntrySearch, prefix_range
from outlive.backends.sqlite.reader import Reader
from outlive.backends.sqlite.tables import RECENT_US, THREADS, ThreadColumns, listed_thread
from outlive.backends.sqlite.view import SQLiteView
from outlive.backends.sqlite.writer import Writer
from outlive.errors import Corrupt, OutliveError

T = TypeVar("T")
_CommitOne = Callable[[apsw.Connection, Commit], Receipt]
_BUSY_S = 30.0
_LEAST_S = 0.001  # the shortest wait that SQLite knows
_ID = ThreadColumns._fields.index("id")
_END = (1 << 63) - 1  # after every moment
_VACUUM_PAGES = 4000  # freed after a deletion at most: a bounded pause for others
_WORTH_PAGES = 256  # fewer free pages wait for more: freeing them takes as long as a save


class SQLiteBackend:
    """One connection to one file, under one lock.

    `timeout_s` of a commit limits how long it waits for the processes that write. Reads take a
    `timeout_s`, as every backend does, and need none: in WAL mode a reader waits for no writer.
    Only a process that recovers the log after a crash makes readers wait, at most as long as the
    connection does.
    """

    name = "sqlite"

    def __init__(
        self, path: str, *, fsync: str = "full", timeout_s: float | None = None, accept_loss: bool = False
    ) -> None:
        self._busy_s = timeout_s or _BUSY_S  # of calls without a timeout
        self._has_freed = False  # something was deleted, and its pages may not be free yet
        self._remembered = Remembered()
        self.lock = threading.RLock()
        self._connection = Connection(
            path,
            fsync=fsync,
            busy_s=self._busy_s,
            accepts_loss=accept_loss,
            on_rollback=self._remembered.forget,
        )
        with self._connection.translated():
            self._connection.db()

    def before_fork(self) -> None:
        self._connection.before_fork()

    def roll_back(self) -> None:
        self._connection.roll_back_open()

    def close(self) -> None:
        if self._has_freed and self._connection.is_open:
            with self._connection.translated(), contextlib.suppress(apsw.Error):
                self._connection.db().execute(f"pragma incremental_vacuum({_VACUUM_PAGES})").fetchall()
        self._connection.close()

    def identity(self, offered: bytes) -> bytes:
        with self._connection.transaction("deferred") as db:  # only the first opener writes
            key = self._naming_key(db)
        if key is None:
            with self._connection.transaction("immediate") as db:
                key = self._naming_key(db)
                if key is None:
                    key = offered
                    if key:
                        row = (key, checksum("naming key", key))
                        db.execute("insert into meta(name, value, checksum) values('naming key', ?, ?)", row)
        return key

    def _naming_key(self, db: apsw.Connection) -> bytes | None:
        row = fetch_one(db, "select value, checksum from meta where name = 'naming key'")
        if row is None:
            if fetch_one(db, "select 1 from thread limit 1") is not None:
                raise Corrupt("the naming key of this store is gone")
            return None
        if row[1] != checksum("naming key", row[0]):
            raise Corrupt("the naming key of this store is damaged")
        return bytes(row[0])

    # Committing

    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Commit a group in one transaction, with one fsync.

        Each is stored or refused on its own.
        """
        if len(commits) == 1:
            busy_s = commits[0].timeout_s or self._busy_s
        else:
            busy_s = min([commit.timeout_s or self._busy_s for commit in commits], default=self._busy_s)
        start = time.monotonic()
        try:
            results = self._commit_together(commits, busy_s)
        except Unusual:  # the transaction is rolled back: take the general path in the time that is left
            left_s = max(busy_s - (time.monotonic() - start), _LEAST_S)
            results = self._commit_together(commits, left_s, is_general=True)
        for result in results:
            if isinstance(result, Receipt) and (result.freed or result.removed):
                self._free_pages(commits)
                break
        return results

    def _commit_together(
        self, commits: Sequence[Commit], busy_s: float, *, is_general: bool = False
    ) -> list[Receipt | OutliveError]:
        transaction = self._connection.writing
        transaction.busy_s = busy_s
        try:
            with transaction as db:
                if len(commits) > 1:
                    return self._commit_group(
                        db, commits, self._commit_by_rules if is_general else self._commit
                    )
                # Alone, a commit needs no savepoint: its refusal may roll back the whole
                # transaction.
                receipt = None if is_general else append(db, commits[0], self._remembered)
                return [receipt or self._commit_by_rules(db, commits[0])]
        except OutliveError as error:  # the transaction is rolled back: none of them is stored
            return [error] * len(commits)

    def _commit_group(
        self, db: apsw.Connection, commits: Sequence[Commit], do: _CommitOne
    ) -> list[Receipt | OutliveError]:
        """Commit all in one savepoint.

        A refusal is rare: then start again with a savepoint for each.
        """
        receipts = self._in_savepoint(db, lambda: [do(db, commit) for commit in commits])
        if isinstance(receipts, list):
            return [*receipts]
        return [self._in_savepoint(db, partial(do, db, commit)) for commit in commits]

    def _in_savepoint(self, db: apsw.Connection, work: Callable[[], T]) -> T | OutliveError:
        """Do all of some work or none of it; return its result, or why it was refused."""
        db.execute("savepoint one")
        try:
            with self._connection.translated():
                result = work()
        except OutliveError as error:
            if not db.in_transaction:  # SQLite rolled back the whole transaction
                raise
            self._remembered.forget()
            db.execute("rollback to one")
            db.execute("release one")
            return error
        db.execute("release one")
        return result

    def _commit(self, db: apsw.Connection, commit: Commit) -> Receipt:
        """Do a commit on the fast path if it can, otherwise on the general one."""
        return append(db, commit, self._remembered) or self._commit_by_rules(db, commit)

    def _commit_by_rules(self, db: apsw.Connection, commit: Commit) -> Receipt:
        """Let `decide` judge a commit, and write what it decided. After an error the caller rolls back."""
        draft = commit.checkpoints[0] if commit.checkpoints else None
        deletes = commit.removal is not None and is_deletion(commit)
        view = SQLiteView(db, commit.thread, draft=draft, deletes=deletes)
        effect, receipt = decide(commit, view, clock())
        if commit.removal is not None and receipt.removed < len(commit.removal.checkpoints):
            view.check_index()  # make sure that what was not found never existed
        if effect is not None:
            Writer(db, view, effect, self._remembered).write()
        return receipt

    def _free_pages(self, commits: Sequence[Commit]) -> None:
        """Free pages after a deletion, which is stored already: only an erasure needs this."""
        db = self._connection.db()
        self._has_freed = True
        erases = any(commit.removal is not None and commit.removal.erase for commit in commits)
        with contextlib.suppress(apsw.Error):
            if not erases and fetch_one(db, "pragma freelist_count")[0] < _WORTH_PAGES:
                return
            db.execute(f"pragma incremental_vacuum({_VACUUM_PAGES})").fetchall()
            if erases:
                # The log still had the erased bytes.
                db.execute("pragma wal_checkpoint(truncate)").fetchall()
            else:
                db.execute("pragma wal_checkpoint(passive)").fetchall()

    # Reading

    def read(
        self,
        thread: ThreadKey,
        namespace: str,
        id: str | None = None,
        *,
        at: int | None = None,
        known: CachedHead | None = None,
        chunks: bool = True,
        timeout_s: float | None = None,
    ) -> ReadResult:
        with self._connection.transaction("deferred") as db:
            view = Reader(db, thread, namespace)
            if view.counters is None:
                return ReadResult(0)
            record = view.newest(namespace, at) if id is None else view.find(namespace, id)
            if record is None:
                view.check_absent(namespace)
                return ReadResult(view.counters.generation)
            writes = view.writes_of(namespace, record.id)
            wanted = [] if known is not None and known.matches(record) else list(record.chunks)
            wanted += [name for write in writes for name in write.chunks]
            data = view.data(wanted if chunks else ())
            return ReadResult(view.counters.generation, record, data, tuple(writes))

    def history(
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]:
        with self._connection.transaction("deferred") as db:
            view = Reader(db, query.thread, query.namespace or "")
            if view.counters is None:
                return 0, []
            return view.counters.generation, view.page(query)

    def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page:
        with self._connection.transaction("deferred") as db:
            view = Reader(db, query.thread, query.namespace or "")
            if view.counters is None:
                return Page(0)
            page = view.page(query)
            records, names = fitting(page, view, max_bytes)
            return Page(view.counters.generation, records, view.data(names), len(records) < len(page))

    def writes(
        self,
        thread: ThreadKey,
        checkpoints: Sequence[tuple[str, str]] | None,
        *,
        timeout_s: float | None = None,
    ) -> list[WriteRecord]:
        with self._connection.transaction("deferred") as db:
            view = Reader(db, thread)
            pairs = view.written() if checkpoints is None else checkpoints
            return sorted((write for pair in pairs for write in view.writes_of(*pair)), key=write_order)

    def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        with self._connection.transaction("deferred") as db:
            search = EntrySearch(db, query, clock())
            if query.thread is None:
                return search.of_tenant()
            view = Reader(db, query.thread)
            if view.counters is None or query.thread.tenant != query.tenant:
                return []
            return search.of_thread(query.thread, view.key)

    def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRecord]:
        if query.newest and query.only is None:
            return self._newest(query)
        low, high = prefix_range(query.prefix)
        start = escape(query.after) if query.after is not None and escape(query.after) >= low else None
        where = f"t.id {'>=' if start is None else '>'} ? and t.id < ?"
        values: list[Any] = [low if start is None else start, high]
        if query.only is not None:
            where, values = "t.id = ?", [escape(query.only)]
        values = [escape(query.tenant), *values, query.limit]
        with self._connection.transaction("deferred") as db:
            rows: list[Any] = db.execute(
                f"{THREADS} where t.tenant = ? and t.listed and {where} order by t.id limit ?", values
            ).fetchall()
            roster = f"select t.id from roster t where t.tenant = ? and {where} order by t.id limit ?"
            expected = [row[0] for row in db.execute(roster, values)]
            if expected != (listed := [row[_ID] for row in rows]):
                raise self._unlisted(expected, listed)
            return [self._summary(db, row, query.heads) for row in rows]

    @staticmethod
    def _unlisted(expected: list[Any], listed: list[Any]) -> Corrupt:
        """Return the error for the first thread that is only in one of two lists by id."""
        differing = set(expected) ^ set(listed)
        if not differing:
            return Corrupt("the list of threads is damaged: a row of it is there twice")
        return unlisted(min(differing))

    def _newest(self, query: ThreadQuery) -> list[ThreadRecord]:
        at, id = query.before or (_END, "")
        last: tuple[Any, ...] = (at // RECENT_US, at, at, escape(id))
        page = (
            "select key from thread t indexed by thread_recent where t.tenant = ? and t.listed and t.recent <= ? "
            "and (t.updated_at < ? or (t.updated_at = ? and t.id > ?)) "
            "order by t.recent desc, t.updated_at desc, t.id limit ?"
        )
        with self._connection.translated(), self._connection.transaction("deferred") as db:
            rows: list[Any] = db.execute(
                f"{THREADS} where t.key in ({page}) order by t.updated_at desc, t.id",
                (escape(query.tenant), *last, query.limit),
            ).fetchall()
            return [self._summary(db, row, query.heads) for row in rows]

    def totals(self, tenant: str, *, timeout_s: float | None = None) -> Totals:
        sql = "select count(*), coalesce(sum(checkpoints), 0), coalesce(sum(stored), 0) from thread where tenant = ? and listed"
        with self._connection.translated(), self._connection.transaction("deferred") as db:
            return Totals(*fetch_one(db, sql, (escape(tenant),)))

    def _summary(self, db: apsw.Connection, row: Sequence[Any], heads: bool) -> ThreadRecord:
        thread, unchecked = listed_thread(row)
        view = Reader(db, thread, unchecked=unchecked)
        *_, metadata, projection, check = row
        return view.summary(metadata, projection, check, heads)

    def inventory(self, thread: ThreadKey, *, timeout_s: float | None = None) -> Inventory:
        with self._connection.transaction("deferred") as db:
            view = Reader(db, thread)
            if view.counters is None:
                return Inventory(0, 0, {})
            rows = db.execute("select name, length(data), revision from chunk where thread = ?", (view.key,))
            return Inventory(
                view.counters.generation,
                view.counters.revision,
                {bytes(n): (size, rev) for n, size, rev in rows},
            )

    def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], *, timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        with self._connection.transaction("deferred") as db:
            return Reader(db, thread).data(names)

    def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        with self._connection.transaction("immediate") as db:
            data = Reader(db, source).data(names)
            return self._commit(db, Commit(target, chunks=tuple(data.items()))).generation

    def facts(self) -> dict[str, object]:
        def pragma(name: str) -> Any:
            return fetch_one(self._connection.db(), f"pragma {name}")[0]

        with self._connection.translated():
            page_bytes = pragma("page_size")
            return {
                "backend": self.name,
                "engine": f"SQLite {apsw.sqlite_lib_version()}",
                "location": self._connection.path,
                "format": pragma("user_version"),
                "format_written": SCHEMA_VERSION,
                "settings": {
                    "journal_mode": pragma("journal_mode"),
                    "synchronous": ("off", "normal", "full", "extra")[pragma("synchronous")],
                },
                "file_bytes": pragma("page_count") * page_bytes,
                "unused_bytes": pragma("freelist_count") * page_bytes,
                **lease_facts(),
            }

    def version(self) -> object:
        """Return a number that every commit on another connection changes."""
        with self._connection.translated():
            return fetch_one(self._connection.db(), "pragma data_version")[0]

    def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        with self._connection.transaction("deferred") as db:
            if thread is not None:
                return Audit(db, Reader(db, thread)).run()
            rows = db.execute("pragma integrity_check").fetchall()
            damage = [Corrupt(f"SQLite: {row[0]}") for row in rows if row[0] != "ok"] + orphans(db)
        with self._connection.translated():
            return damage + self._connection.audit_log()
