"""Records in a folder: an append-only log for each thread, shared by many threads and processes.

    DIR/lock            locked (flock) for every write, never renamed; has the revision of each log
    DIR/store           the naming key, written once
    DIR/index           a log of all threads and runs
    DIR/reserve         space for deletions on a full disk
    DIR/wake            other bytes after every commit that brings work for other processes
    DIR/threads/X.log   the log of a thread; X is the digest of (tenant, id) in hex

Theory of operation
-------------------
A thread is a `Table` in memory, filled by replaying its log (`log.py` explains frames and torn
tails). Chunks stay in the file: the table knows their places. Before every use a table catches up
with its file, without a lock. What looks damaged to a reader may be a write in progress: the reader
looks again with the lock, and trusts only that.

A group of commits takes the lock once. What a crash leaves after each step:
    decide                nothing
    append to the logs    for each thread a torn tail, or whole frames that no caller was told about
    fsync each log        the commits, and marks before them
    write the marks       the commits
The log of a new thread is written under a temporary name and renamed. Its index entry is on disk
before the rename and says "may exist". A second entry follows when the folder is synced and says
"exists". So every log is listed, a deleted log is noticed, and a crash causes neither error.

A log is rewritten after the thread is deleted, after a deletion that erases, and when too much of
it is dead. A crash before that leaves the deletion done and the bytes in the file; the next commit
of the thread rewrites the log.

On a full disk a deletion uses the reserved space (`reserved_space.py`). If the new log does not fit
even then, the blocks of removed chunks are freed in place, and a later commit rewrites the log.

A process that dies between a rename and the fsync of its folder leaves a file that everyone sees
and that a power cut would remove. One byte in `lock` tells the next writer to sync the folders
first. That byte needs no fsync: after a power cut, whatever is visible is on disk.

For local file systems, with flock and rename as on Linux, and up to some thousands of threads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import TypeVar

from outlive.backend import Commit, Receipt, ThreadKey, ThreadQuery, ThreadRecord, escape
from outlive.backend.entries import wakes
from outlive.backends.file.disk import BUSY_S, THREADS, Disk, WriteLock, busy, translated
from outlive.backends.file.group_writer import Batch, GroupWriter
from outlive.backends.file.index import Index
from outlive.backends.file.log import FORMAT
from outlive.backends.file.revision_marks import Marks
from outlive.backends.file.store_file import make_folders, read_format, read_key, write_key
from outlive.backends.file.table import LoggedTable, log_of, problems
from outlive.backends.local.memory import MemoryBackend, ReadChunks, Table
from outlive.backends.local.run_index import RunIndex
from outlive.backends.rules.snapshot import is_deletion
from outlive.errors import BadURL, Corrupt, OutliveError, StoreError

T = TypeVar("T")
_GROUP = 64  # commits, and so at most as many open files
_CACHED_TABLES = 4096  # a search for entries reads all threads, and is frequent
_CACHED_BYTES = 32 << 20
_WAKE, _WAKE_BYTES = "wake", 16  # its name, and its size
_SETTLED = 256  # logs whose marks are synced at close; the kernel has long written older ones


class FileBackend(MemoryBackend):
    """A folder of logs, with tables in memory, under one lock.

    With fsync="normal" a log is synced about once a second while it is written, and at close. A
    killed process loses nothing. A power cut may lose the last saves; the rest is intact.
    """

    name = "file"

    def __init__(
        self, path: str, *, fsync: str = "full", timeout_s: float | None = None, disk: Disk | None = None
    ) -> None:
        super().__init__()
        if fsync not in ("full", "normal"):
            raise BadURL(f'fsync must be "full" or "normal", not {fsync!r}')
        self._is_full = fsync == "full"
        self._disk = disk or Disk(path)
        self._guard = WriteLock(self._disk, timeout_s or BUSY_S)
        self._marks = Marks(self._disk, self._guard)
        self._index = Index(self._disk, self._marks)
        self._writer = GroupWriter(
            self._disk, self._guard, self._index, self._marks, syncs_always=self._is_full
        )
        self._cache: OrderedDict[bytes, LoggedTable] = OrderedDict()
        self._cached_bytes = 0
        with translated():
            make_folders(self._disk)

    def __repr__(self) -> str:
        return f"<FileBackend {self._disk.root!r} fsync={'full' if self._is_full else 'normal'}>"

    # Identity

    def identity(self, offered: bytes) -> bytes:
        with translated():
            key = read_key(self._disk)
            if key is not None:
                return key
            with self._guard.held():
                return read_key(self._disk) or self._adopt(offered)

    def _adopt(self, offered: bytes) -> bytes:
        if self._index.is_there() or any(name.endswith(".log") for name in self._disk.names(THREADS)):
            raise self._key_is_gone()
        if offered:
            write_key(self._disk, self._guard, offered)
        return offered

    # Committing

    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Commit a group with one fsync for each log.

        Large groups are split: open files are limited.
        """
        parts = (commits[at : at + _GROUP] for at in range(0, len(commits), _GROUP))
        results = [result for part in parts for result in self._commit_part(part)]
        if any(wakes(commit.entries) for commit in commits):
            self._wake()
        return results

    def _commit_part(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Wait for the lock as long as the least patient commit.

        Commits with more time are sent again, without that one.
        """
        start = time.monotonic()
        try:
            with translated(), self._guard.held(min(map(self._patience, commits))):
                return self._commit_group(commits, time.monotonic() - start)
        except OutliveError as error:
            return [error] * len(commits)

    def _commit_group(self, commits: Sequence[Commit], waited_s: float) -> list[Receipt | OutliveError]:
        batches: dict[bytes, Batch] = {}
        try:
            results = [self._commit_in_memory(batches, commit, waited_s) for commit in commits]
            self._writer.store(list(batches.values()))
        finally:
            for batch in batches.values():
                batch.close()
        for batch in batches.values():
            if batch.failure is None and batch.is_kept and not batch.is_new:
                self._keep(batch.table)
        asked = [batches.get(commit.thread.digest) for commit in commits]
        return [_answer(batch, result) for batch, result in zip(asked, results, strict=True)]

    def _commit_in_memory(
        self, batches: dict[bytes, Batch], commit: Commit, waited_s: float
    ) -> Receipt | OutliveError:
        """Change the table of a thread in memory; a refusal changes nothing. The log has nothing of it yet: a crash loses it."""
        digest = commit.thread.digest
        if waited_s > self._patience(commit):
            return busy(self._patience(commit))
        try:
            with translated():
                if digest not in batches:
                    batches[digest] = self._open_batch(commit)
                return batches[digest].commit(commit)
        except OutliveError as error:
            return error

    def _patience(self, commit: Commit) -> float:
        return self._guard.patience_s if commit.timeout_s is None else commit.timeout_s

    def _open_batch(self, commit: Commit) -> Batch:
        """Open a thread for writing. A damaged one can be deleted, which starts a new log."""
        try:
            return self._opened_batch(commit.thread)
        except Corrupt:
            if not is_deletion(commit):
                raise
        if self._marked(commit.thread):  # a new log must not look like an older copy
            self._marks.note(self._index.slot(commit.thread) or 0, commit.thread.digest, 0)
            self._guard.sync()
        log = log_of(self._disk, commit.thread)
        log.begin()
        return Batch(LoggedTable(commit.thread, log), self._disk, is_new=True, was_damaged=True)

    def _opened_batch(self, thread: ThreadKey) -> Batch:
        """Open a thread for writing. Its table is cached again only after a success."""
        log = log_of(self._disk, thread)
        try:
            fd = log.open(write=True)
        except FileNotFoundError:
            self._check_absent(thread)
            log.begin()
            return Batch(LoggedTable(thread, log), self._disk, is_new=True)
        try:
            table = self._caught_up(thread, fd)
            table.log.cut(fd)
            self._index.confirm([thread])  # a crash may have left it at "may exist"
        except BaseException:
            self._disk.close(fd)
            raise
        return Batch(table, self._disk, fd)

    # Reading

    def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRecord]:
        """Read no more logs than the page needs."""
        if query.only is not None:
            return self._visible(ThreadKey.of(query.tenant, query.only), query.heads)
        if query.newest:
            return [table.summary() for table in self._newest(query)]
        start = None if query.after is None else escape(query.after)
        rows: list[ThreadRecord] = []
        keys = [
            key for key in self._threads() if key.tenant == query.tenant and key.id.startswith(query.prefix)
        ]
        for text, key in sorted(((escape(key.id), key) for key in keys), key=itemgetter(0)):
            if len(rows) >= query.limit:
                break
            if start is None or text > start:
                rows += self._visible(key, query.heads)
        return rows

    def _visible(self, thread: ThreadKey, heads: bool) -> list[ThreadRecord]:
        try:
            table = self._table(thread)
        except Corrupt:
            if heads:
                raise
            return [Table(thread).summary()]  # it exists, and no more is known
        return [table.summary()] if table.is_listed else []

    def _all_tables(self) -> Iterable[Table]:
        return (self._table(key) for key in self._threads())

    def _run_index(self) -> RunIndex:
        with translated():
            self._believed(self._index.catch_up)
        return self._index.runs

    def _threads(self) -> list[ThreadKey]:
        with translated():
            return self._believed(lambda: list(self._index.catch_up().values()))

    def _table(self, thread: ThreadKey) -> Table:
        return self._look(thread, lambda table, data: table, None)

    def _look(self, thread: ThreadKey, look: Callable[[Table, ReadChunks], T], timeout_s: float | None) -> T:
        with translated():
            return self._believed(lambda: self._look_once(thread, look), timeout_s)

    def _look_once(self, thread: ThreadKey, look: Callable[[Table, ReadChunks], T]) -> T:
        try:
            fd = log_of(self._disk, thread).open()
        except FileNotFoundError:
            self._check_absent(thread)
            return look(Table(thread), lambda names, checkpoint: {})
        try:
            table = self._caught_up(thread, fd)
            self._keep(table)
            return look(table, partial(table.data, fd))
        finally:
            self._disk.close(fd)

    def _believed(self, look: Callable[[], T], timeout_s: float | None = None) -> T:
        """Look without the lock, and again with it if a write in progress may look like damage."""
        try:
            return look()
        except Corrupt:
            with self._guard.held(timeout_s):
                return look()

    def _caught_up(self, thread: ThreadKey, fd: int) -> LoggedTable:
        """Take a table from the cache and bring it up to date. An interrupt leaves it uncached."""
        table = self._cache.pop(thread.digest, None)
        if table is not None:
            self._cached_bytes -= table.weight
        if table is None or not table.log.resume(fd):
            table = LoggedTable(thread, log_of(self._disk, thread))
            table.log.resume(fd)
            table.catch_up(fd)
            self._check_newest(table)
        else:
            table.catch_up(fd)
        return table

    def _check_newest(self, table: LoggedTable) -> None:
        """Raise when a log had more commits before.

        The table that this process has cached counts as evidence too.
        """
        marked = self._marked(table.key)
        revision = 0 if table.counters is None else table.counters.revision
        if revision < marked:
            raise table.log.corrupt(
                f"{table.log.name} is an older copy of itself: it ends with commit {revision}, and {marked} were acknowledged"
            )

    def _keep(self, table: LoggedTable) -> None:
        self._cache[table.key.digest] = table
        self._cached_bytes += table.weight
        while len(self._cache) > _CACHED_TABLES or (
            self._cached_bytes > _CACHED_BYTES and len(self._cache) > 1
        ):
            self._cached_bytes -= self._cache.popitem(last=False)[1].weight

    def _marked(self, thread: ThreadKey) -> int:
        """Return the least number of commits that the log of a thread has had.

        Without the index nobody knows; a listing reports that.
        """
        try:
            slot = self._index.slot(thread)
        except Corrupt:
            return 0
        return 0 if slot is None else self._marks.read(slot, thread.digest)

    def _check_absent(self, thread: ThreadKey) -> None:
        self._index.catch_up()
        if self._marked(thread) or self._index.is_confirmed(thread):
            raise Corrupt("its log is gone", thread=thread.id)

    def _key_is_gone(self) -> Corrupt:
        file = f"{self._disk.root}/store"
        return Corrupt(f"the file {file} with the naming key is gone; put it back from a backup")

    # Care

    def facts(self) -> dict[str, object]:
        settings = {"fsync": "full" if self._is_full else "normal"}
        facts = {**super().facts(), "location": self._disk.root, "settings": settings}
        with translated(), contextlib.suppress(FileNotFoundError):  # which has no naming key yet
            facts |= {"format": read_format(self._disk), "format_written": FORMAT}
        return facts

    def version(self) -> object:
        """Return what is in the file that a commit writes when it brings work."""
        with translated():
            try:
                fd = self._disk.open(_WAKE)
            except FileNotFoundError:
                return b""
            try:
                return self._disk.read(fd, _WAKE_BYTES, 0)
            finally:
                self._disk.close(fd)

    def _wake(self) -> None:
        """Let other processes see that there is work. If this fails, they find it later."""
        with contextlib.suppress(OutliveError), translated():
            fd = self._disk.open(_WAKE, create=True)
            try:
                self._disk.write(fd, os.urandom(_WAKE_BYTES), 0)
            finally:
                self._disk.close(fd)

    def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        with translated():
            look = self._audit_store if thread is None else lambda: self._audit_thread(thread)
            if not look():
                return []
            with self._guard.held():  # what looks damaged may be a write in progress
                return look()

    def _audit_thread(self, thread: ThreadKey) -> list[Corrupt]:
        """Read the whole log again, past the cache."""
        table = LoggedTable(thread, log_of(self._disk, thread))
        try:
            fd = table.log.open()
        except FileNotFoundError:
            return problems(lambda: self._check_absent(thread))
        try:
            return table.audit(fd) or problems(lambda: self._check_newest(table))
        finally:
            self._disk.close(fd)

    def _audit_store(self) -> list[Corrupt]:
        index = Index(self._disk, self._marks)
        damage = problems(self._audit_key) + problems(index.catch_up)
        if damage:
            return damage
        known = {f"{digest.hex()}.log" for digest in index.catch_up()}
        strangers = sorted(set(self._disk.names(THREADS)) - known)
        return [Corrupt(f"{THREADS}/{name} belongs to no thread of this store") for name in strangers]

    def _audit_key(self) -> None:
        if read_key(self._disk) is None and self._index.is_there():
            raise self._key_is_gone()

    def before_fork(self) -> None:
        """No file is open between two calls."""

    def roll_back(self) -> None:
        """Free the lock, which an interrupt at the end of a call may have left taken."""
        self._guard.release()

    def close(self) -> None:
        """Bring the last marks to disk; with fsync="normal" the last commits too."""
        waiting = [table.key for table in self._cache.values() if not table.log.is_settled]
        waiting = waiting[-_SETTLED:] if self._is_full else waiting
        try:
            with translated():
                if waiting or not self._index.log.is_settled:
                    with self._guard.held():
                        self._settle(waiting)
        except StoreError:
            if not self._is_full:  # otherwise all is on disk but the marks
                raise
        self._cache.clear()
        self._cached_bytes = 0

    def _settle(self, threads: list[ThreadKey]) -> None:
        self._index.settle()
        for key in threads:
            batch = self._opened_batch(key)
            try:
                if batch.fd is not None:
                    batch.log.settle(batch.fd)
                    self._writer.note([batch])
            finally:
                batch.close()


def _answer(batch: Batch | None, result: Receipt | OutliveError) -> Receipt | OutliveError:
    """Return the failure of the batch, if any: its results were decided on a state that is gone."""
    return batch.failure if batch is not None and batch.failure is not None else result
