"""The connection to one SQLite file, checked before anything is written, reopened after a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import apsw

from outlive.backends.sqlite.wal import MarkFile, find_loss, sound_frames
from outlive.errors import (
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
from outlive.runtime.platform import system

SCHEMA_VERSION = 1
APPLICATION_ID = 0x6F75746C  # "outl"
_MEMORY = ":memory:"
_CHECK_S = 0.1  # between two looks of readers whether the file is still the one that they have open
# The clock of a file system is coarse. A folder changed less than this ago may change again and
# keep its time: some count in seconds, others in hundredths or finer.
_SETTLED_NS = 2_000_000_000
_FINE_SETTLED_NS = 100_000_000
_creating = threading.Lock()


class Connection:
    """One connection, and the file beside it that says what was acknowledged."""

    def __init__(
        self, path: str, *, fsync: str, busy_s: float, accepts_loss: bool, on_rollback: Callable[[], None]
    ) -> None:
        self.path = path  # as the caller says it
        # SQLite has its other files beside the real one.
        self._file = path if path == _MEMORY else os.path.realpath(path)
        self._synchronous = {"full": 2, "normal": 1}[fsync]
        self._busy_s = busy_s
        self._accepts_loss = accepts_loss
        self._on_rollback = on_rollback
        self._connection: apsw.Connection | None = None
        self._marks: MarkFile | None = None
        self._page_size = 0
        self._moved = array("i", [0])  # an int of C, for SQLite to write to
        self._moved_at = self._moved.buffer_info()[0]
        self._next_check = 0.0
        self._timeout_s = 0.0  # that SQLite was told last
        self._reading = _Transaction(self, "deferred")
        self.writing = _Transaction(self, "immediate")
        self._folder = os.path.dirname(self._file)
        # As it was when all files were in place.
        self._checked_folder: tuple[int, int, int] | None = None
        self._is_closed = False

    def db(self) -> apsw.Connection:
        if self._is_closed:
            raise StoreClosed
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def before_fork(self) -> None:
        """Close the file: a child must not inherit what SQLite believes of its locks."""
        if self.path != _MEMORY:
            self._disconnect()

    def close(self) -> None:
        self._is_closed = True
        with self.translated():
            self._disconnect()

    def _disconnect(self) -> None:
        try:
            if self._marks is not None:
                self._marks.close_log()
            if self._connection is not None:
                self._connection.close()
        finally:
            self._connection = self._checked_folder = None
            if self._marks is not None:
                self._marks.close()
            self._marks = None

    def transaction(self, kind: str, busy_s: float | None = None) -> _Transaction:
        """Return a transaction for a `with` block; its errors are translated as by `translated`.

        `busy_s`: how long this one waits for other processes, if not as long as the connection
        does. There is one at a time.
        """
        transaction = self.writing if kind == "immediate" else self._reading
        transaction.busy_s = busy_s or self._busy_s
        return transaction

    def roll_back(self, db: apsw.Connection) -> None:
        self._on_rollback()
        with contextlib.suppress(apsw.Error):
            db.execute("rollback")

    def roll_back_open(self) -> None:
        """Roll back the transaction that an interrupted call has left open, if there is one."""
        db = self._connection
        if db is not None and db.in_transaction:
            self.roll_back(db)

    def check_file(self, db: apsw.Connection, *, is_reading: bool) -> None:
        """Refuse a file that was moved or deleted: before every commit, sometimes when reading."""
        now = time.monotonic()
        if self._marks is None or (is_reading and now < self._next_check):
            return
        self._next_check = now + _CHECK_S
        try:
            state = os.stat(self._folder)
            folder = (state.st_dev, state.st_ino, state.st_mtime_ns)
        except OSError:
            folder = None
        if folder is not None and folder == self._checked_folder:
            return  # nothing in it was created, deleted or renamed since
        db.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, self._moved_at)
        if self._moved[0] or self._marks.log_is_gone:
            self._next_check, self._checked_folder = 0.0, None
            raise self._is_gone()
        self._checked_folder = folder if folder is not None and _is_settled(folder[2]) else None

    def _is_gone(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the SQLite file {self.path!r}, or its -wal or -shm file, was deleted, moved or replaced under this store, and nothing "
            "of this call is stored there; put the files back if that was a mistake, and open the store again"
        )

    def audit_log(self) -> list[Corrupt]:
        """Compare the log on disk with what SQLite believes is committed. Not in a transaction."""
        if self._marks is None:
            return []
        db = self.db()
        frames, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        sound = sound_frames(f"{self._file}-wal", self._page_size, frames)
        now, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if sound >= frames or now < frames:  # or the log was begun again meanwhile
            return []
        return [
            Corrupt(
                f"SQLite: {sound} of {frames} frames of {self._file + '-wal'!r} are sound: the saves in the others are lost when "
                "this process is killed; close the store to move them into the database"
            )
        ]

    # Opening

    def _open(self) -> apsw.Connection:
        if self.path != _MEMORY:
            self._prepare_file()
        db = apsw.Connection(self._file)
        try:
            # 1. Look first: a file that is refused is left as it is, with its log.
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.set_busy_timeout(max(1, int(self._busy_s * 1000)))
            self._timeout_s = self._busy_s
            db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            # Without this, many statements are prepared again for every value.
            db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            db.execute(
                "pragma trusted_schema = off; pragma cell_size_check = on; pragma temp_store = memory"
            ).fetchall()
            self._is_ours(db)
            if self.path != _MEMORY:
                self._check_log(db)
            # 2. Take it. A crash while the tables are made leaves an empty file, which the next opener
            #    makes a store.
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            self._configure(db)
            self._migrate(db)
            if self._marks is not None and not self._marks.open_log():
                raise self._is_gone()
        except BaseException:
            self._connection = db
            self._disconnect()
            raise
        return db

    def _prepare_file(self) -> None:
        """Create the file for its owner alone. SQLite gives its mode to the files beside it."""
        if not Path(self._file).parent.is_dir():
            raise FolderMissing(f"the folder of {self.path!r} does not exist; create it first")
        if os.path.isdir(self.path):
            raise BadURL(f"{self.path!r} is a folder; give the path of a file in it")
        # Closing it later would drop SQLite's locks.
        with _creating, contextlib.suppress(FileExistsError):
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _check_log(self, db: apsw.Connection) -> None:
        """Compare what SQLite can read of its log with what was acknowledged."""
        self._page_size = fetch_one(db, "pragma page_size")[0]
        marks = self._marks = MarkFile(self._file, system.boot_id(), is_synced=self._synchronous == 2)
        log = f"{self._file}-wal"
        if not os.path.exists(log):
            return
        # The mark is read first: a live process only ever adds frames to those it acknowledged. The
        # read that follows makes SQLite look at the file again, which another process may have put
        # into WAL mode since this one opened it.
        mark = marks.read() if marks.existed else None
        self._is_ours(db)
        frames = 0
        if fetch_one(db, "pragma journal_mode")[0] == "wal":
            frames = max(0, db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0])
        lost = find_loss(log, self._page_size, frames, marks, mark)
        if lost is None:
            return
        if not self._accepts_loss:
            marks.discard()
            raise Corrupt(
                f"the write-ahead log {log!r} is damaged: {lost}, so saves would be lost. All files are left as they are; "
                "restore them from a backup, or continue without these saves: outlive.open(url, accept_loss=True)"
            )
        import shutil  # slow to import

        shutil.copy2(log, _unused(f"{log}.damaged"))
        db.execute("pragma wal_checkpoint(truncate)").fetchall()
        marks.forget()

    def _configure(self, db: apsw.Connection) -> None:
        if self._is_ours(db) is None:
            db.execute("pragma auto_vacuum = incremental")
        _patiently(lambda: db.execute("pragma journal_mode = wal").fetchall(), self._busy_s)
        # On macOS, fsync leaves data in the cache of the drive. Other systems ignore the last two.
        db.execute(
            f"pragma secure_delete = on; pragma synchronous = {self._synchronous}; "
            "pragma fullfsync = on; pragma checkpoint_fullfsync = on"
        ).fetchall()
        if fetch_one(db, "pragma synchronous")[0] != self._synchronous:
            raise StoreUnavailable("SQLite does not take the synchronous setting; nothing would be durable")

    def _is_ours(self, db: apsw.Connection) -> bool | None:
        """Tell whether the file is a store; None when it is empty.

        Raise for files of other programs.
        """
        if fetch_one(db, "select count(*) from sqlite_schema")[0] == 0:
            return None
        if fetch_one(db, "pragma application_id")[0] != APPLICATION_ID:
            raise BadURL(f"{self.path!r} is {_foreign_file(db)}")
        version = fetch_one(db, "pragma user_version")[0]
        if version > SCHEMA_VERSION:
            raise NewerFormat(f"the SQLite file {os.path.basename(self.path)!r}", version, SCHEMA_VERSION)
        return True

    def _migrate(self, db: apsw.Connection) -> None:
        if self._is_ours(db):
            return
        # Of several first openers one makes the tables, the others find them.
        db.execute("begin immediate")
        try:
            if self._is_ours(db) is None:
                from importlib import resources  # only who makes a file pays for it

                db.execute(resources.files(__package__).joinpath("schema.sql").read_text("utf-8"))
                db.execute(
                    f"pragma application_id = {APPLICATION_ID}; pragma user_version = {SCHEMA_VERSION}"
                )
            db.execute("commit")
        except BaseException:
            db.execute("rollback")
            raise

    # Errors

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate errors of SQLite and the system into errors of this library."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # raised again
            self.raise_translated(error)

    def raise_translated(self, error: BaseException) -> NoReturn:
        """Raise an error of SQLite or the system as one of this library."""
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            raise StoreBusy("other processes held the SQLite file for the whole timeout") from error
        if isinstance(error, apsw.FullError):
            raise StoreFull(
                "no space is left for the SQLite file; nothing of this call was stored"
            ) from error
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            raise Corrupt(f"SQLite: {error} ({self.path!r})").with_advice(_advice(error)) from error
        if isinstance(error, apsw.Error):
            raise StoreUnavailable(f"SQLite: {error} ({self.path!r})").with_advice(_advice(error)) from error
        if isinstance(error, OutliveError):
            raise error
        if isinstance(error, OSError):
            raise StoreUnavailable(
                f"SQLite: {error.strerror} ({self.path!r}); check that this user may read and write the file and its folder"
            ) from error
        if isinstance(error, TypeError | ValueError):  # a column that holds what it never should
            raise Corrupt(f"a row cannot be read ({error})") from error
        raise error


class _Transaction:
    """A transaction of a connection, as a `with` block: committed at its end, or rolled back."""

    __slots__ = ("_begin", "_connection", "_db", "_is_reading", "busy_s")

    def __init__(self, connection: Connection, kind: str) -> None:
        self._connection = connection
        self._begin = f"begin {kind}"
        self._is_reading = kind == "deferred"
        self.busy_s = 0.0

    def __enter__(self) -> apsw.Connection:
        connection = self._connection
        db = connection._connection
        try:
            if db is None:
                db = connection.db()
            if self.busy_s != connection._timeout_s:  # of the transaction before
                db.set_busy_timeout(max(1, int(self.busy_s * 1000)))
                connection._timeout_s = self.busy_s
            db.execute(self._begin)
        except BaseException as error:  # noqa: BLE001  # raised again
            connection._timeout_s = 0.0  # an interrupt may have come before it was noted
            if db is not None:
                connection.roll_back(db)
            connection.raise_translated(error)
        self._db = db
        return db

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        connection, db = self._connection, self._db
        if error is None:
            try:
                connection.check_file(db, is_reading=self._is_reading)
                # Full fsync: a crash before leaves nothing of it, a crash after all of it.
                db.execute("commit")
            except BaseException as failure:  # noqa: BLE001  # raised again
                error = failure
        if error is not None:
            connection.roll_back(db)
            connection.raise_translated(error)
        # A crash here leaves a commit that its caller was not told of. Past it, a log that has lost
        # the commit is noticed. Without the mark the commit is done all the same.
        if not self._is_reading and connection._marks is not None:
            try:
                frames, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
                connection._marks.acknowledge(frames, connection._page_size)
            except (apsw.Error, OSError):
                pass


# What SQLite reports → what to do.
_ADVICE = {
    "file is not a database": "this file is not a store; check the path",
    "malformed": "restore the file from a backup, or save what is left with the .recover command of sqlite3",
    "readonly database": "SQLite needs lock files even to read: give this user write access to the file and its folder, "
    "or copy the file to a folder that is writable",
    "unable to open database file": "check that this user may read and write the file and its folder",
    "disk I/O error": "check the disk, its free space and its mount",
}


def _advice(error: apsw.Error) -> str | None:
    return next((advice for words, advice in _ADVICE.items() if words in str(error)), None)


def fetch_one(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """Return the first row or None, leaving no statement open."""
    rows = db.execute(sql, values).fetchall()
    return rows[0] if rows else None


def _is_settled(changed_ns: int) -> bool:
    """Tell whether a folder that changes now gets another time than this one."""
    counts_seconds = changed_ns % 1_000_000_000 == 0
    return time.time_ns() - changed_ns > (_SETTLED_NS if counts_seconds else _FINE_SETTLED_NS)


def _foreign_file(db: apsw.Connection) -> str:
    """Say what a file of another program is, and what to do."""
    names = "select count(*) from sqlite_schema where type = 'table' and name in ('checkpoints', 'writes')"
    if fetch_one(db, names)[0] == 2:
        return (
            "a database of LangGraph's SqliteSaver; choose another path, "
            "and import its threads with outlive import-langgraph"
        )
    return "a SQLite file of another program; choose another path"


def _unused(path: str) -> str:
    number = 0
    while os.path.exists(name := f"{path}-{number}" if number else path):
        number += 1
    return name


def _patiently(work: Callable[[], Any], timeout_s: float) -> None:
    """Retry what SQLite refuses at once, without its busy handler, while others open the file."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            work()
            return
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
