"""Reading what `SqliteSaver` and `AsyncSqliteSaver` wrote.

The file may be in use, and of any version.

Like them, it uses Python's sqlite3 and not apsw. Each of the two contains its own SQLite, and when
one of them closes a file, the other loses its locks on it. So a saver that is open in this process
stays safe.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

from outlive.adapters.langgraph.importer.source import CheckpointKey, CheckpointRow, WriteKey, WriteRow
from outlive.backends.sqlite.connection import APPLICATION_ID
from outlive.errors import BadArgument, BadURL, Corrupt, StoreBusy, StoreUnavailable

_BUSY_S = 10
_CHECKPOINTS = {
    "thread_id",
    "checkpoint_ns",
    "checkpoint_id",
    "parent_checkpoint_id",
    "type",
    "checkpoint",
    "metadata",
}
_WRITES = {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "value"}
_NEXT = """select cast(min(thread_id) as blob) from (
    select min(thread_id) as thread_id from checkpoints where thread_id > cast(?1 as text) and typeof(thread_id) = 'text'
    union all
    select min(thread_id) from writes where thread_id > cast(?1 as text) and typeof(thread_id) = 'text'
)"""


class SQLiteSource:
    """A LangGraph database in SQLite, opened read-only."""

    def __init__(self, url: str) -> None:
        path = _path(url)
        self.shown = url
        with _translated(self.shown):
            self._db = _connect(path)
            try:
                self._path_column = self._check()
            except BaseException:
                self._db.close()
                raise

    def _check(self) -> str:
        """Make sure that these are tables of LangGraph; return the expression that selects a task's path."""
        columns = {
            table: {row[1] for row in self._db.execute(f"pragma table_info({table})")}
            for table in ("checkpoints", "writes")
        }
        if (
            not columns["checkpoints"]
            and next(self._db.execute("pragma application_id"))[0] == APPLICATION_ID
        ):
            raise BadArgument(f"{self.shown} is an outlive store already; use store.copy_to, or outlive copy")
        if not (columns["checkpoints"] >= _CHECKPOINTS and columns["writes"] >= _WRITES):
            raise BadArgument(f"{self.shown} does not have the tables of SqliteSaver")
        return "task_path" if "task_path" in columns["writes"] else "''"

    def close(self) -> None:
        self._db.close()

    def count(self) -> int:
        with _translated(self.shown):
            return int(next(self._db.execute("select count(*) from checkpoints"))[0])

    def threads(self) -> Iterator[str]:
        last: bytes | None = next(self._ask("select cast('' as blob)"))[0]
        if any(self._ask("select 1 from checkpoints where thread_id = '' limit 1")):
            yield ""
        while (last := next(self._ask(_NEXT, last))[0]) is not None:
            try:
                id = last.decode()
            except UnicodeDecodeError:
                continue  # reported by `unreadable`
            yield id

    def unreadable(self) -> list[str]:
        sentences = []
        (count,) = next(self._ask("select count(*) from checkpoints where typeof(thread_id) <> 'text'"))
        if count:
            sentences.append(f"{count:,} rows of the table checkpoints have a thread_id that is not text")
        last = b""
        while (last := next(self._ask(_NEXT, last))[0]) is not None:
            try:
                last.decode()
            except UnicodeDecodeError:
                sentences.append(f"the thread id {last[:100]!r} is not UTF-8")
        return sentences

    @contextlib.contextmanager
    def thread(self, id: str) -> Iterator[_View]:
        with _translated(self.shown, id):
            self._db.execute("begin")  # one transaction: one moment
            try:
                yield _View(self._db, id, self._path_column)
            finally:
                self._db.rollback()

    def _ask(self, sql: str, *values: Any) -> Iterator[Any]:
        with _translated(self.shown):
            return iter(self._db.execute(sql, values).fetchall())


class _View:
    """One thread."""

    def __init__(self, db: sqlite3.Connection, id: str, path_column: str) -> None:
        self._db = db
        self._id = id
        self._write_columns = (
            f"checkpoint_ns, checkpoint_id, task_id, {path_column}, idx, channel, type, value"
        )

    def checkpoint_keys(self) -> list[CheckpointKey]:
        sql = "select checkpoint_ns, checkpoint_id from checkpoints where thread_id = ? order by checkpoint_id, checkpoint_ns"
        rows = self._db.execute(sql, (self._id,)).fetchall()
        return [(_text("checkpoint_ns", namespace), _text("checkpoint_id", id)) for namespace, id in rows]

    def write_keys(self) -> set[WriteKey]:
        sql = "select checkpoint_ns, checkpoint_id, task_id, idx from writes where thread_id = ?"
        return {tuple(row) for row in self._db.execute(sql, (self._id,))}

    def rows(self, keys: Sequence[CheckpointKey]) -> Iterator[CheckpointRow]:
        sql = (
            "select parent_checkpoint_id, metadata, type, checkpoint from checkpoints "
            "where thread_id = ? and checkpoint_ns = ? and checkpoint_id = ?"
        )
        for namespace, id in keys:
            stored: list[Any] = self._db.execute(sql, (self._id, namespace, id)).fetchall()
            for parent, metadata, kind, data in stored:
                row = CheckpointRow(namespace, id, parent or None, metadata, whole=(kind, data))
                row.writes = self._writes("checkpoint_ns = ? and checkpoint_id = ?", namespace, id)
                yield row

    def lone_writes(self) -> list[WriteRow]:
        return self._writes(
            "not exists (select 1 from checkpoints c where c.thread_id = writes.thread_id "
            "and c.checkpoint_ns = writes.checkpoint_ns and c.checkpoint_id = writes.checkpoint_id)"
        )

    def _writes(self, which: str, *values: str) -> list[WriteRow]:
        sql = f"select {self._write_columns} from writes where thread_id = ? and {which}"  # noqa: S608
        return [
            WriteRow(namespace, id, task, path, index, channel, (kind, data))
            for namespace, id, task, path, index, channel, kind, data in self._db.execute(sql, (self._id, *values))
        ]  # fmt: skip


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise Corrupt(f"a {name} is {value!r:.100} instead of text")
    return value


def _path(url: str) -> str:
    if "?" in url:
        raise BadURL("a SQLite source takes no options; write a '?' in the path as %3F")
    rest = unquote(url.partition(":")[2])
    path = rest.removeprefix("///")
    if rest.startswith("//") and not rest.startswith("///"):
        raise BadURL("sqlite: takes no host; write sqlite:///old.db, or sqlite:////home/me/old.db")
    if not path.strip("/") or path == ":memory:" or "\0" in path:
        raise BadURL("sqlite: needs the path of a file; write sqlite:///old.db")
    if not os.path.isfile(path):
        raise StoreUnavailable(f"there is no file {os.path.abspath(path)!r}")
    return os.path.abspath(path)


def _connect(path: str) -> sqlite3.Connection:
    """Open a file read-only, with its write-ahead log, also while others write."""
    db = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_BUSY_S, isolation_level=None)
    try:
        for setting in ("query_only = on", "trusted_schema = off", "cell_size_check = on"):
            db.execute(f"pragma {setting}")
        db.execute("select count(*) from sqlite_schema").fetchall()
    except sqlite3.OperationalError as error:
        db.close()
        if _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) and os.access(path, os.R_OK):
            # Readers of a write-ahead log share memory with its writers: a file beside the
            # database.
            raise StoreUnavailable(
                f"SQLite must create a file beside {path!r} to read it; copy it to a folder that you can write to"
            ) from error
        raise
    except BaseException:
        db.close()
        raise
    return db


def _code(error: sqlite3.Error) -> int | None:
    """Return the primary result code of SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


@contextlib.contextmanager
def _translated(shown: str, thread: str | None = None) -> Iterator[None]:
    """Turn errors of SQLite into those of outlive."""
    try:
        yield
    except sqlite3.Error as error:
        code = _code(error)
        if code == sqlite3.SQLITE_NOTADB:
            raise BadArgument(f"{shown} is not a SQLite database") from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusy(f"{shown} was locked by another process for {_BUSY_S} s") from error
        if code in (None, sqlite3.SQLITE_CORRUPT):  # None: text that is not UTF-8
            raise Corrupt(f"{shown} cannot be read ({error})", thread=thread) from error
        raise StoreUnavailable(f"{shown} cannot be read ({error})") from error
