"""Records in one SQLite file, shared by any number of threads and processes.

WAL, `synchronous=FULL`, one writer at a time by BEGIN IMMEDIATE. Commits that wait together share one
transaction and so one fsync; one that is refused is taken back alone. A crash at any moment leaves the last
committed transaction: SQLite rolls back the rest when the file is opened next.

Every row carries a checksum over all of its columns. Rows that could vanish without a trace are counted
elsewhere (`head`, `tally`). SQLite's bookkeeping of POSIX locks does not survive a fork, so the
connection is closed just before one and opened again afterwards, in parent and child alike.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from ..backend import (
    CheckpointRecord,
    Commit,
    Cursor,
    Entry,
    EntryCursor,
    Inventory,
    Known,
    Page,
    Reading,
    Receipt,
    ThreadKey,
    ThreadRow,
    WriteRecord,
    checksum,
    escape,
)
from ..entry_kind import RUN
from ..errors import (
    BadURL,
    Corrupt,
    FolderMissing,
    NewerFormat,
    OutliveError,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreUnavailable,
)
from .memory import clock, new_token, same, write_order
from .rules import decide
from .snapshot import is_deletion
from .sqlite_audit import orphans
from .sqlite_rows import ENTRY, THREAD, KnownKeys, Rows, entry_of, one, thread_key
from .sqlite_writer import Writer
from .view import fitting

T = TypeVar("T")
SCHEMA_VERSION = 1
APPLICATION_ID = 0x6F75746C  # "outl"
_BUSY_S = 30.0
_VACUUM_PAGES = 4000  # given back after a deletion at most: a bounded pause for others
_WORTH_PAGES = 256  # less than this waits until more has gathered, or the store is closed: giving back takes as long as a save


class SQLiteBackend:
    """One connection to one file, under one lock."""

    name = "sqlite"

    def __init__(self, path: str, *, fsync: str = "full", timeout_s: float | None = None) -> None:
        self._path = path
        self._busy_s = timeout_s or _BUSY_S  # for what says nothing of its own
        self._synchronous = {"full": 2, "normal": 1}[fsync]
        self._connection: apsw.Connection | None = None
        self._is_closed = False
        self._has_freed = False  # something was deleted, and its pages may not be given back yet
        self._known = KnownKeys()
        self.lock = threading.RLock()
        with _translated():
            self._db()

    def before_fork(self) -> None:
        """Close the file: a child must not inherit what SQLite believes of its locks."""
        if self._connection is not None and self._path != ":memory:":
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            with _translated():
                if self._has_freed:
                    with contextlib.suppress(apsw.Error):
                        self._connection.execute(f"pragma incremental_vacuum({_VACUUM_PAGES})").fetchall()
                self._connection.close()
            self._connection = None

    def identity(self, offered: bytes) -> bytes:
        with _translated():
            with self._transaction("deferred") as db:  # only the first opener has to write
                key = self._naming_key(db)
            if key is None:
                with self._transaction("immediate") as db:
                    key = self._naming_key(db) or self._adopt(db, offered)
            return key

    def _naming_key(self, db: apsw.Connection) -> bytes | None:
        row = one(db, "select value, checksum from meta where name = 'naming key'")
        if row is None:
            if one(db, "select 1 from thread limit 1") is not None:
                raise Corrupt("the naming key of this store is gone")
            return None
        if row[1] != checksum("naming key", row[0]):
            raise Corrupt("the naming key of this store is damaged")
        return bytes(row[0])

    def _adopt(self, db: apsw.Connection, key: bytes) -> bytes:
        if key:
            db.execute("insert into meta values('naming key', ?, ?)", (key, checksum("naming key", key)))
        return key

    # Committing

    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Commit a group in one transaction, with one fsync; each succeeds or is refused on its own."""
        try:
            with _translated():
                self._set_timeout(min((c.timeout_s or _BUSY_S for c in commits), default=_BUSY_S))
                with self._transaction("immediate") as db:
                    results = self._commit_group(db, commits)
                self._clean_up(commits, results)
                return results
        except OutliveError as error:  # the transaction is rolled back: none of them is stored
            return [error] * len(commits)

    def _commit_group(self, db: apsw.Connection, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Commit all in one savepoint; only when one is refused, which is rare, start again with one for each."""
        if len(commits) == 1:  # its refusal may roll back the whole transaction
            return [self._commit(db, commits[0])]
        receipts = self._in_savepoint(db, lambda: [self._commit(db, commit) for commit in commits])
        if isinstance(receipts, list):
            return [*receipts]
        return [self._in_savepoint(db, partial(self._commit, db, commit)) for commit in commits]

    def _in_savepoint(self, db: apsw.Connection, work: Callable[[], T]) -> T | OutliveError:
        """Do all of some work or none of it; return what came of it, or why it was refused."""
        db.execute("savepoint one")
        try:
            with _translated():
                done = work()
        except OutliveError as error:
            if not db.in_transaction:  # SQLite gave up all of it: the others are gone too
                raise
            self._known.forget()
            db.execute("rollback to one")
            db.execute("release one")
            return error
        db.execute("release one")
        return done

    def _commit(self, db: apsw.Connection, commit: Commit) -> Receipt:
        draft = commit.checkpoints[0] if commit.checkpoints else None
        view = Rows(db, commit.thread, draft=draft, deletes=is_deletion(commit))
        effect, receipt = decide(commit, view, clock(), new_token())
        if effect is not None:
            Writer(db, view, effect, self._known).write()
        return receipt

    def _clean_up(self, commits: Sequence[Commit], results: Sequence[Receipt | OutliveError]) -> None:
        """Give space back after a deletion. Only a courtesy, but for erasure: whatever is in the way, it is deleted."""
        if not any(isinstance(result, Receipt) and (result.freed or result.removed) for result in results):
            return
        db = self._db()
        self._has_freed = True
        erases = any(commit.removal is not None and commit.removal.erase for commit in commits)
        with contextlib.suppress(apsw.Error):
            if not erases and one(db, "pragma freelist_count")[0] < _WORTH_PAGES:
                return
            db.execute(f"pragma incremental_vacuum({_VACUUM_PAGES})").fetchall()
            if erases:
                db.execute("pragma wal_checkpoint(truncate)").fetchall()  # the log still had the erased bytes
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
        known: Known | None = None,
        chunks: bool = True,
        timeout_s: float | None = None,
    ) -> Reading:
        with _translated(), self._transaction("deferred") as db:
            view = Rows(db, thread)
            if view.row is None:
                return Reading(0)
            record = view.newest(namespace, at) if id is None else view.find(namespace, id)
            if record is None:
                view.check_absent(namespace)
                return Reading(view.row.generation)
            writes = view.writes_of(namespace, record.id)
            wanted = [] if known is not None and same(known, record) else list(record.chunks)
            wanted += [name for write in writes for name in write.chunks]
            return Reading(view.row.generation, record, view.data(wanted) if chunks else {}, tuple(writes))

    def history(
        self,
        thread: ThreadKey,
        namespace: str | None,
        *,
        before: Cursor | None = None,
        limit: int = 100,
        run: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, list[CheckpointRecord]]:
        with _translated(), self._transaction("deferred") as db:
            view = Rows(db, thread)
            if view.row is None:
                return 0, []
            return view.row.generation, view.page(namespace, before, limit, run)

    def states(
        self,
        thread: ThreadKey,
        namespace: str | None,
        *,
        before: Cursor | None = None,
        limit: int = 100,
        run: str | None = None,
        max_bytes: int,
        timeout_s: float | None = None,
    ) -> Page:
        with _translated(), self._transaction("deferred") as db:
            view = Rows(db, thread)
            if view.row is None:
                return Page(0)
            page = view.page(namespace, before, limit, run)
            records, names = fitting(page, view, max_bytes)
            return Page(view.row.generation, records, view.data(names), len(records) < len(page))

    def writes(
        self, thread: ThreadKey, checkpoints: Sequence[tuple[str, str]] | None, timeout_s: float | None = None
    ) -> list[WriteRecord]:
        with _translated(), self._transaction("deferred") as db:
            view = Rows(db, thread)
            pairs = view.written() if checkpoints is None else checkpoints
            return sorted((write for pair in pairs for write in view.writes_of(*pair)), key=write_order)

    def entries(
        self,
        tenant: str,
        kind: str,
        *,
        thread: ThreadKey | None = None,
        statuses: Sequence[str] | None = None,
        lapsed: bool | None = None,
        prefix: str = "",
        after: EntryCursor | None = None,
        limit: int = 100,
        timeout_s: float | None = None,
    ) -> list[tuple[ThreadKey, Entry]]:
        by_id = kind == RUN and thread is None and statuses is None
        table = "entry e indexed by entry_run" if by_id else "entry e"
        where: list[tuple[str, Sequence[Any]]] = [
            ("t.tenant = ?", [escape(tenant)]),
            ("e.kind = 'run'", []) if by_id else ("e.kind = ?", [escape(kind)]),
            ("e.key >= ? and e.key < ?", _prefix_range(prefix)),
        ]
        if thread is not None:
            where.append(("t.digest = ?", [thread.digest]))
        if statuses is not None:
            where.append(
                (f"e.status in ({', '.join('?' * len(statuses))})", [escape(status) for status in statuses])
            )
        if lapsed is not None:
            now = clock()
            where.append((f"(e.clock <> ? or e.until <= ?) = {int(lapsed)}", [now.id, now.lease]))
        if after is not None:
            where.append(("(e.key, t.digest) > (?, ?)", [escape(after[0]), after[1]]))
        columns = ", ".join(f"e.{name}" for name in ENTRY.split(", "))
        sql = (
            f"select t.key, t.tenant, t.id, t.digest, {columns} from {table} join thread t on t.key = e.thread "
            f"where {' and '.join(condition for condition, _ in where)} order by e.key, t.digest limit ?"
        )
        values = [value for _, some in where for value in some]
        with _translated(), self._transaction("deferred") as db:
            rows: list[Any] = db.execute(sql, [*values, limit]).fetchall()
            found = [(thread_key(*row[1:4]), row) for row in rows]
            return [(key, entry_of(row[0], key.id, row[4:])) for key, row in found]

    def threads(
        self,
        tenant: str,
        *,
        only: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        heads: bool = True,
        timeout_s: float | None = None,
    ) -> list[ThreadRow]:
        low, high = _prefix_range(prefix)
        start = escape(after) if after is not None and escape(after) >= low else None
        where, values = (
            f"id {'>=' if start is None else '>'} ? and id < ?",
            [low if start is None else start, high],
        )
        if only is not None:
            where, values = "id = ?", [escape(only)]
        sql = (
            f"select {THREAD}, info, info_json, info_checksum from thread "
            f"where tenant = ? and listed and {where} order by id limit ?"
        )
        with _translated(), self._transaction("deferred") as db:
            rows: list[Any] = db.execute(sql, [escape(tenant), *values, limit]).fetchall()
            roster = f"select id from roster where tenant = ? and {where} order by id limit ?"
            expected = [row[0] for row in db.execute(roster, [escape(tenant), *values, limit])]
            if expected != [row[3] for row in rows]:
                raise Corrupt("the list of threads is damaged: a row of it is gone or changed")
            return [
                Rows(db, thread_key(row[2], row[3], row[1]), row[:16]).summary(
                    row[16], row[17], row[18], heads
                )
                for row in rows
            ]

    def inventory(self, thread: ThreadKey, timeout_s: float | None = None) -> Inventory:
        with _translated(), self._transaction("deferred") as db:
            view = Rows(db, thread)
            if view.row is None:
                return Inventory(0, 0, {})
            rows = db.execute("select name, length(data), revision from chunk where thread = ?", (view.key,))
            return Inventory(
                view.row.generation, view.row.revision, {bytes(n): (size, rev) for n, size, rev in rows}
            )

    def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        with _translated(), self._transaction("deferred") as db:
            return Rows(db, thread).data(names)

    def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        with _translated():
            self._set_timeout(self._busy_s)
        with _translated(), self._transaction("immediate") as db:
            data = Rows(db, source).data(names)
            return self._commit(db, Commit(target, chunks=tuple(data.items()))).generation

    def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        with _translated(), self._transaction("deferred") as db:
            if thread is not None:
                return Rows(db, thread).audit()
            rows = db.execute("pragma integrity_check").fetchall()
            return [Corrupt(f"SQLite: {row[0]}") for row in rows if row[0] != "ok"] + orphans(db)

    # The connection

    def _db(self) -> apsw.Connection:
        if self._is_closed:
            raise StoreClosed
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> apsw.Connection:
        if self._path != ":memory:" and not Path(self._path).absolute().parent.is_dir():
            raise FolderMissing(f"the folder of {self._path!r} does not exist; create it first")
        if os.path.isdir(self._path):
            raise BadURL(f"{self._path!r} is a folder; give the path of a file in it")
        db = apsw.Connection(self._path)
        try:
            self._configure(db)
            self._migrate(db)
        except BaseException:
            db.close()
            raise
        return db

    def _configure(self, db: apsw.Connection) -> None:
        db.set_busy_timeout(_milliseconds(self._busy_s))
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        db.execute(
            "pragma trusted_schema = off; pragma cell_size_check = on; pragma temp_store = memory"
        ).fetchall()
        if self._is_ours(db) is None:
            db.execute("pragma auto_vacuum = incremental")
        _patiently(lambda: db.execute("pragma journal_mode = wal").fetchall(), self._busy_s)
        db.execute(f"pragma secure_delete = on; pragma synchronous = {self._synchronous}").fetchall()
        if one(db, "pragma synchronous")[0] != self._synchronous:
            raise StoreUnavailable("SQLite does not take the synchronous setting; nothing would be durable")

    def _is_ours(self, db: apsw.Connection) -> bool | None:
        """Tell whether the file is a store: None when it is empty. Anything else is left as it is."""
        if one(db, "select count(*) from sqlite_schema")[0] == 0:
            return None
        if one(db, "pragma application_id")[0] != APPLICATION_ID:
            raise BadURL(f"{self._path!r} is a SQLite file of another program; choose another path")
        version = one(db, "pragma user_version")[0]
        if version > SCHEMA_VERSION:
            raise NewerFormat(f"the SQLite file {os.path.basename(self._path)!r}", version, SCHEMA_VERSION)
        return True

    def _migrate(self, db: apsw.Connection) -> None:
        if self._is_ours(db):
            return
        db.execute("begin immediate")  # of several first openers one makes the tables, the others find them
        try:
            if self._is_ours(db) is None:
                from importlib import resources  # only who makes a file pays for it

                db.execute(resources.files(__package__).joinpath("sqlite_schema.sql").read_text("utf-8"))
                db.execute(
                    f"pragma application_id = {APPLICATION_ID}; pragma user_version = {SCHEMA_VERSION}"
                )
            db.execute("commit")
        except BaseException:
            db.execute("rollback")
            raise

    def _set_timeout(self, timeout_s: float) -> None:
        self._db().set_busy_timeout(_milliseconds(timeout_s))

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[apsw.Connection]:
        db = self._db()
        try:
            db.execute(f"begin {kind}")
            yield db
            db.execute("commit")  # full fsync: a crash before leaves nothing of it, a crash after all of it
        except BaseException:
            self._known.forget()
            with contextlib.suppress(apsw.Error):
                db.execute("rollback")
            raise


def _prefix_range(prefix: str) -> tuple[str, str]:
    """Return the bounds between which escaped ids with this prefix lie."""
    low = escape(prefix)
    return low, low + "\U0010ffff" * 1001


def _milliseconds(timeout_s: float) -> int:
    return max(1, int(timeout_s * 1000))


def _patiently(work: Any, timeout_s: float) -> None:
    """Repeat what SQLite refuses at once, without asking the busy handler, while others open the same file."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            work()
            return
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Say in the library's words what SQLite says in its own."""
    try:
        yield
    except OutliveError:
        raise
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreBusy("other processes held the SQLite file for the whole timeout") from error
    except apsw.FullError as error:
        raise StoreFull("no space is left for the SQLite file; nothing of this call was stored") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise Corrupt(f"SQLite: {error}") from error
    except apsw.Error as error:
        raise StoreUnavailable(f"SQLite: {error}") from error
    except (TypeError, ValueError) as error:  # a column that holds what it never should
        raise Corrupt(f"a row cannot be read ({error})") from error
