"""Records in a folder: an append-only log for each thread, shared by any number of threads and processes.

    DIR/lock            never renamed; flock'ed for every write
    DIR/store           the naming key, written once
    DIR/index           a log of the threads that there are
    DIR/threads/X.log   a log of what the commits of a thread did; X is the digest of (tenant, id) in hex

Theory of operation
-------------------
A thread is a `Table` in memory, filled by replaying its log (`log.py` tells what a frame is and what a torn
tail). Chunks stay in the file: the table knows their places. Before every use a table catches up with its
file; readers take no lock for that. What a reader finds bad may be a write in motion, so it looks again with
the lock and believes only that.

A group of commits takes the lock once. What a crash leaves behind after each step:
    decide                nothing
    append to the logs    torn tails, or whole frames that nobody was told about; each thread for itself
    fsync each log        the commits, and marks before them
    write the marks       the commits
The log of a new thread is written aside and renamed. Its index entry comes first and says "may be"; it is on
disk before the rename. A second one follows when the folder is synced, and says "is". So every log is listed,
a log that someone deleted is missed, and a crash in between leaves neither.

After a deletion of the whole thread, after one that erases, and when too much of it is dead, a log is written
anew with what is left. A crash before that leaves the deletion done and the bytes in the file; the next commit
of the thread sees to them.

A process that dies between a rename and the fsync of its folder leaves a file that everyone sees and that a
power cut would take back. One byte in `lock` tells the next writer to sync the folders before it builds on
them. That byte needs no fsync: after a power cut, what one sees is on disk.

For local file systems, with flock and rename as Linux has them, and up to some thousands of threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import ormsgpack

from ..backend import (
    CheckpointRecord,
    Commit,
    Entry,
    Known,
    Reading,
    Receipt,
    ThreadKey,
    ThreadRow,
    WriteRecord,
    escape,
    unescape,
)
from ..errors import (
    BadArgument,
    BadURL,
    Corrupt,
    NewerFormat,
    OutliveError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from .log import BUSY_S, FORMAT, START, THREADS, Disk, Frame, Log, NotAFile, WriteLock, busy
from .memory import MemoryBackend, Table, clock, new_token, same
from .rules import Effect, Row, decide

T = TypeVar("T")
_GROUP = 64  # commits, and so at most as many open files
_NORMAL_S = 1.0  # fsync="normal": a log is synced at most this often
_CACHED_TABLES = 4096  # a search for entries goes through all threads, and often
_CACHED_BYTES = 32 << 20
_SETTLED = 256  # logs whose marks are synced at close; the kernel has long seen to older ones
_WASTE_BYTES = 64 << 10  # less dead bytes are not worth a rewrite
_SNAPSHOT_BYTES = 4 << 20  # data in one frame of a log that is written anew
_CHUNK_BYTES = 40  # what a frame says of a chunk, at most
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileBackend(MemoryBackend):
    """A folder of logs behind tables in memory, under one lock.

    With fsync="normal" a log is synced about once a second while it is written, and at close: the end of a
    process loses nothing, a power cut may take the last saves, and what is left is whole.
    """

    name = "file"

    def __init__(self, path: str, *, fsync: str = "full", disk: Disk | None = None) -> None:
        super().__init__()
        if fsync not in ("full", "normal"):
            raise BadURL(f'fsync must be "full" or "normal", not {fsync!r}')
        self._is_full = fsync == "full"
        self._disk = disk or Disk(path)
        self._index = Index(self._disk)
        self._guard = WriteLock(self._disk)
        self._cache: OrderedDict[bytes, LoggedTable] = OrderedDict()
        self._cached_bytes = 0
        with _translated():
            _make_folders(self._disk)

    def __repr__(self) -> str:
        return f"<FileBackend {self._disk.root!r} fsync={'full' if self._is_full else 'normal'}>"

    # Identity

    def identity(self, offered: bytes) -> bytes:
        with _translated():
            key = self._read_key()
            if key is not None:
                return key
            with self._guard.held():
                return self._read_key() or self._write_key(offered)

    def _read_key(self) -> bytes | None:
        try:
            fd = self._disk.open("store")
        except FileNotFoundError:
            return None
        try:
            return _unpack_store(self._disk.read(fd, 4096, 0))
        finally:
            self._disk.close(fd)

    def _write_key(self, offered: bytes) -> bytes:
        """Write the file aside and rename it: it is there as a whole or not at all."""
        if self._index.is_there() or self._log_names():
            raise Corrupt("the file 'store' with the naming key is gone")
        with self._guard.renaming(""):
            fd = self._disk.create("store.tmp")
            try:
                self._disk.write(fd, _pack_store(offered), 0)
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)
            self._disk.rename("store.tmp", "store")
        return offered

    # Committing

    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Commit a group: one fsync for each log that it touches. Many go in parts: files are limited."""
        parts = (commits[at : at + _GROUP] for at in range(0, len(commits), _GROUP))
        return [result for part in parts for result in self._commit_part(part)]

    def _commit_part(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Wait for the lock as long as the most patient commit; by then others may have had their time."""
        start = time.monotonic()
        try:
            with _translated(), self._guard.held(max(_patience(commit) for commit in commits)):
                return self._commit_group(commits, time.monotonic() - start)
        except OutliveError as error:
            return [error] * len(commits)

    def _commit_group(self, commits: Sequence[Commit], waited_s: float) -> list[Receipt | OutliveError]:
        batches: dict[bytes, _Batch] = {}
        try:
            results = [self._decide(batches, commit, waited_s) for commit in commits]
            self._store(list(batches.values()))
        finally:
            for batch in batches.values():
                batch.close()
        for batch in batches.values():
            if batch.failure is None and batch.is_kept and not batch.is_new:
                self._keep(batch.table)
        asked = [batches.get(commit.thread.digest) for commit in commits]
        return [_answer(batch, result) for batch, result in zip(asked, results, strict=True)]

    def _decide(
        self, batches: dict[bytes, _Batch], commit: Commit, waited_s: float
    ) -> Receipt | OutliveError:
        """Change the table in memory. A refusal changes nothing; so does what cannot be encoded."""
        digest = commit.thread.digest
        if waited_s > _patience(commit):
            return busy(_patience(commit))
        try:
            with _translated():
                if digest not in batches:
                    batches[digest] = self._open_batch(commit.thread)
                return batches[digest].commit(commit)
        except OutliveError as error:
            return error

    def _open_batch(self, thread: ThreadKey) -> _Batch:
        """Open a thread for writing. Its table is kept in memory again only when all went well."""
        log = self._log(thread)
        try:
            fd = log.open(write=True)
        except FileNotFoundError:
            self._check_absent(thread)
            log.begin()
            return _Batch(LoggedTable(thread, log), self._disk, is_new=True)
        try:
            table = self._caught_up(thread, fd)
            table.log.cut(fd)
            self._index.confirm([thread])  # a crash may have left it at "may be"
        except BaseException:
            self._disk.close(fd)
            raise
        return _Batch(table, self._disk, fd)

    def _store(self, batches: list[_Batch]) -> None:
        """Make the group last; a thread whose disk refuses fails alone."""
        new = [batch for batch in batches if batch.is_new and batch.log.is_waiting]
        old = [batch for batch in batches if not batch.is_new]
        self._each(old, lambda batch: batch.log.write(batch.file))
        self._each(old, self._make_durable)  # after all writes: one fsync often carries others along
        if new:
            self._create(new)
        self._each([batch for batch in batches if batch.has_effect], self._tidy)

    def _each(self, batches: Iterable[_Batch], step: Callable[[_Batch], None]) -> None:
        for batch in batches:
            if batch.failure is None:
                try:
                    with _translated():
                        step(batch)
                except OutliveError as error:
                    self._fail(batch, error)

    def _fail(self, batch: _Batch, error: OutliveError) -> None:
        """Cut what was written, as far as the disk lets us, or it would be found and believed."""
        batch.failure = batch.failure or error
        if batch.fd is not None:
            batch.log.retreat(batch.fd)
        if batch.is_new:
            with contextlib.suppress(OSError):
                self._disk.remove(batch.log.name)

    def _make_durable(self, batch: _Batch) -> None:
        """Sync and mark: also what a process left that died before its fsync, if this commit has seen it."""
        table = batch.table
        if table.log.end == table.log.acked:
            return
        now = time.monotonic()
        if self._is_full or now - table.synced_at >= _NORMAL_S:
            self._disk.sync(batch.file)  # the commit point: a crash before may leave nothing, after it all
            table.log.acknowledge(batch.file)
            table.synced_at = now

    def _create(self, batches: list[_Batch]) -> None:
        """Make the logs of new threads. Always synced: a rename may reach the disk before the contents."""
        try:
            with _translated():
                self._index.announce([batch.table.key for batch in batches], self._guard)
                with self._guard.renaming(THREADS):
                    self._each(batches, self._create_one)
        except StoreError as error:
            for batch in batches:
                self._fail(batch, error)
        made = [batch for batch in batches if batch.failure is None]
        for batch in made:
            batch.is_new = False
        self._index.confirm([batch.table.key for batch in made])

    def _create_one(self, batch: _Batch) -> None:
        with batch.log.aside():
            pass
        batch.fd = batch.log.open(write=True)

    def _tidy(self, batch: _Batch) -> None:
        """Take what was removed out of the file. Only who erases something is told when that fails."""
        try:
            if batch.table.wants_rewrite():
                self._rewrite(batch)
        except (StoreError, OSError):
            if batch.erases:
                raise

    def _rewrite(self, batch: _Batch) -> None:
        """Write the log anew from the table. A crash leaves the old one or the new one: both say the same."""
        batch.is_kept = False  # every chunk will have moved
        fresh = self._log(batch.table.key)
        fresh.begin()
        with self._guard.renaming(THREADS), fresh.aside() as fd:
            for meta, data in batch.table.snapshot(batch.file):
                fresh.add(meta, data)
                fresh.write(fd)

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
        def look(table: LoggedTable, fd: int) -> Reading:
            generation = table.row.generation if table.row else 0
            record = table.find_at(namespace, id, at)
            if record is None:
                return Reading(generation)
            writes = table.writes_of([(namespace, record.id)])
            wanted = [] if known is not None and same(known, record) else list(record.chunks)
            wanted += [name for write in writes for name in write.chunks]
            data = table.data(fd, wanted, record.id) if chunks else {}
            return Reading(generation, record, data, tuple(writes))

        return self._look(thread, look)

    def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        return self._look(thread, lambda table, fd: table.data(fd, names))

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
        """Read no more logs than the page needs."""
        if only is not None:
            return self._visible(ThreadKey.of(tenant, only), heads)
        start = None if after is None else escape(after)
        rows: list[ThreadRow] = []
        keys = [key for key in self._threads() if key.tenant == tenant and key.id.startswith(prefix)]
        for text, key in sorted(((escape(key.id), key) for key in keys), key=itemgetter(0)):
            if len(rows) >= limit:
                break
            if start is None or text > start:
                rows += self._visible(key, heads)
        return rows

    def _visible(self, thread: ThreadKey, heads: bool) -> list[ThreadRow]:
        try:
            table = self._table(thread)
        except Corrupt:
            if heads:
                raise
            return [Table(thread).summary()]  # there is one, and no more is known
        return [table.summary()] if table.is_listed else []

    def _all_tables(self) -> Iterable[Table]:
        return (self._table(key) for key in self._threads())

    def _threads(self) -> list[ThreadKey]:
        with _translated():
            return self._believed(lambda: list(self._index.catch_up().values()))

    def _table(self, thread: ThreadKey) -> Table:
        return self._look(thread, lambda table, fd: table)

    def _look(self, thread: ThreadKey, look: Callable[[LoggedTable, int], T]) -> T:
        """Show the newest table and its open file, both of one moment."""
        with _translated():
            return self._believed(lambda: self._look_once(thread, look))

    def _look_once(self, thread: ThreadKey, look: Callable[[LoggedTable, int], T]) -> T:
        try:
            fd = self._log(thread).open()
        except FileNotFoundError:
            self._check_absent(thread)
            return look(LoggedTable(thread, self._log(thread)), -1)
        try:
            table = self._caught_up(thread, fd)
            self._keep(table)
            return look(table, fd)
        finally:
            self._disk.close(fd)

    def _believed(self, look: Callable[[], T]) -> T:
        """Without the lock, what looks damaged may only be in motion: look again with it."""
        try:
            return look()
        except Corrupt:
            with self._guard.held():
                return look()

    def _caught_up(self, thread: ThreadKey, fd: int) -> LoggedTable:
        """Take the table out of the cache and bring it up to date. An interrupt half-way leaves it out."""
        table = self._cache.pop(thread.digest, None)
        if table is not None:
            self._cached_bytes -= table.weight
        if table is None or not table.log.resume(fd):
            table = LoggedTable(thread, self._log(thread))
            table.log.resume(fd)
        table.catch_up(fd)
        return table

    def _keep(self, table: LoggedTable) -> None:
        self._cache[table.key.digest] = table
        self._cached_bytes += table.weight
        while len(self._cache) > _CACHED_TABLES or (
            self._cached_bytes > _CACHED_BYTES and len(self._cache) > 1
        ):
            self._cached_bytes -= self._cache.popitem(last=False)[1].weight

    def _check_absent(self, thread: ThreadKey) -> None:
        self._index.catch_up()
        if self._index.is_confirmed(thread):
            raise Corrupt("its log is gone", thread=thread.id)

    def _log(self, thread: ThreadKey) -> Log:
        return Log(self._disk, f"{THREADS}/{thread.digest.hex()}.log", thread.digest, thread.id)

    def _log_names(self) -> list[str]:
        return [name for name in self._disk.names(THREADS) if name.endswith(".log")]

    # Care

    def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        with _translated():
            look = self._audit_store if thread is None else lambda: self._audit_thread(thread)
            if not look():
                return []
            with self._guard.held():  # in motion, or really so?
                return look()

    def _audit_thread(self, thread: ThreadKey) -> list[Corrupt]:
        """Read the whole log again, past the cache."""
        table = LoggedTable(thread, self._log(thread))
        try:
            fd = table.log.open()
        except FileNotFoundError:
            return _problems(lambda: self._check_absent(thread))
        try:
            return table.audit(fd)
        finally:
            self._disk.close(fd)

    def _audit_store(self) -> list[Corrupt]:
        index = Index(self._disk)
        found = _problems(self._audit_key) + _problems(index.catch_up)
        if found:
            return found
        known = {f"{digest.hex()}.log" for digest in index.catch_up()}
        strangers = sorted(set(self._disk.names(THREADS)) - known)
        return [Corrupt(f"{THREADS}/{name} belongs to no thread of this store") for name in strangers]

    def _audit_key(self) -> None:
        if self._read_key() is None and self._index.is_there():
            raise Corrupt("the file 'store' with the naming key is gone")

    def before_fork(self) -> None:
        """No file is open between two calls."""

    def close(self) -> None:
        """Bring the last marks to disk; with fsync="normal" the last commits too."""
        waiting = [table.key for table in self._cache.values() if not table.log.is_settled]
        waiting = waiting[-_SETTLED:] if self._is_full else waiting
        try:
            with _translated():
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
            batch = self._open_batch(key)
            try:
                if batch.fd is not None:
                    batch.log.settle(batch.fd)
            finally:
                batch.close()


@dataclass(slots=True)
class _Batch:
    """The commits of one thread in a group, and its open file; a new thread has none until the end."""

    table: LoggedTable
    disk: Disk
    fd: int | None = None
    is_new: bool = False
    is_kept: bool = True  # the table is worth keeping
    has_effect: bool = False
    erases: bool = False
    failure: OutliveError | None = None

    @property
    def log(self) -> Log:
        return self.table.log

    @property
    def file(self) -> int:
        assert self.fd is not None
        return self.fd

    def commit(self, commit: Commit) -> Receipt:
        effect, receipt = decide(commit, self.table, clock(), new_token())
        if effect is not None:
            self._add(_plain(effect))
        return receipt

    def _add(self, effect: Effect) -> None:
        meta, chunks = self.table.prepare(effect)
        self.table.commit(effect, meta, chunks)
        self.has_effect = True
        self.erases |= effect.erase or effect.everything

    def close(self) -> None:
        if self.fd is not None:
            self.disk.close(self.fd)
            self.fd = None


def _patience(commit: Commit) -> float:
    return BUSY_S if commit.timeout_s is None else commit.timeout_s


def _answer(batch: _Batch | None, result: Receipt | OutliveError) -> Receipt | OutliveError:
    """What was decided in a batch that failed was decided on a state that never was."""
    return batch.failure if batch is not None and batch.failure is not None else result


# A thread and its log ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk as a frame names it. One that is there already is only stamped again."""

    name: bytes
    size: int
    crc: int
    revision: int
    is_new: bool


class LoggedTable(Table):
    """A table filled from a log. It knows where the chunks are and leaves them there."""

    def __init__(self, key: ThreadKey, log: Log) -> None:
        super().__init__(key)
        self.log = log
        self.weight = 0  # bytes of meta that were replayed: about what it takes in memory
        self.synced_at = float("-inf")
        self._places: dict[bytes, tuple[int, int, int]] = {}  # name → (place, size, crc)
        self._must_go = False  # something in the file may not stay there
        self._has_removed = False  # something was removed since the waste was last counted
        self._look_at = _WASTE_BYTES  # how long the log may grow before its waste is counted again

    # From the log

    def catch_up(self, fd: int) -> None:
        for frame in self.log.frames(fd):
            try:
                self._replay(frame)
            except (KeyError, ValueError, TypeError, IndexError) as error:
                raise self.log.corrupt(f"a frame of {self.log.name} makes no sense ({error!r})") from error

    def _replay(self, frame: Frame) -> None:
        effect, chunks = _unpack_effect(frame.meta, self.key)
        if sum(chunk.size for chunk in chunks if chunk.is_new) != frame.data_bytes:
            raise ValueError("its chunks do not fill its data")
        self._change(effect, chunks, frame.data_at)
        self.weight += len(frame.meta)

    def _change(self, effect: Effect, chunks: Sequence[Chunk], at: int) -> None:
        self.apply(effect)
        self._must_go |= effect.erase or effect.everything
        self._has_removed |= _removes(effect)
        gone = list(self._places) if effect.everything else effect.removed_chunks
        for name in gone:
            del self._places[name]
        for chunk in chunks:
            if chunk.is_new:
                self._places[chunk.name] = (at, chunk.size, chunk.crc)
                at += chunk.size
            self.chunks[chunk.name] = (chunk.size, chunk.revision)

    # Into the log

    def prepare(self, effect: Effect) -> tuple[bytes, list[Chunk]]:
        """Encode what a commit does; nothing is changed yet."""
        chunks = [self._chunk(effect, name, data) for name, data in dict(effect.chunks).items()]
        return _pack_effect(effect, chunks), chunks

    def _chunk(self, effect: Effect, name: bytes, data: bytes) -> Chunk:
        """What is there stays as it is; what the same commit removes is written again."""
        if name in self._places and not effect.everything and name not in effect.removed_chunks:
            _, size, crc = self._places[name]
            return Chunk(name, size, crc, effect.row.revision, False)
        return Chunk(name, len(data), zlib.crc32(data, zlib.crc32(name)), effect.row.revision, True)

    def commit(self, effect: Effect, meta: bytes, chunks: list[Chunk]) -> None:
        """Change the table, then put the frame into the log: what cannot be applied is never written."""
        self._change(effect, chunks, self.log.data_at(meta))
        data = dict(effect.chunks)
        self.log.add(meta, [data[chunk.name] for chunk in chunks if chunk.is_new])
        self.weight += len(meta)

    def wants_rewrite(self) -> bool:
        """Tell whether the log holds too much of what is gone. Counting costs, and waits until it matters."""
        if not (self._must_go or self._has_removed or self.log.end >= self._look_at):
            return False
        chunks = sum(size + _CHUNK_BYTES for size, _ in self.chunks.values())
        live = START + len(self._snapshot_meta()) + chunks
        part = live // 3 if self._has_removed else live  # a quarter of the whole, or half of it
        self._look_at = live + max(live, _WASTE_BYTES)
        self._has_removed = False
        return self._must_go or self.log.end - live > max(part, _WASTE_BYTES)

    def snapshot(self, fd: int) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield frames that build this table again. Chunks keep stamp and checksum, the damaged ones too."""
        yield self._snapshot_meta(), []
        chunks: list[Chunk] = []
        total = 0
        for name, (size, revision) in self.chunks.items():
            if total + size > _SNAPSHOT_BYTES and chunks:
                yield self._snapshot_chunks(fd, chunks)
                chunks, total = [], 0
            chunks.append(Chunk(name, size, self._places[name][2], revision, True))
            total += size
        if chunks:
            yield self._snapshot_chunks(fd, chunks)

    def _snapshot_meta(self) -> bytes:
        effect = replace(
            self._bare_effect(),
            checkpoints=tuple(self.records.values()),
            writes=tuple(write for writes in self.pending.values() for write in writes.values()),
            entries=tuple(self.notes.values()),
            info=self.metadata,
        )
        return _pack_effect(effect, [])

    def _snapshot_chunks(self, fd: int, chunks: list[Chunk]) -> tuple[bytes, list[bytes]]:
        data = [self._bytes(fd, chunk.name) for chunk in chunks]
        if any(len(one) != chunk.size for one, chunk in zip(data, chunks, strict=True)):
            raise self.log.corrupt(f"{self.log.name} ends before its chunks do")
        return _pack_effect(self._bare_effect(), chunks), data

    def _bare_effect(self) -> Effect:
        assert self.row is not None
        return Effect(self.key, self.row, self.updated_at)

    # Chunks

    def data(self, fd: int, names: Sequence[bytes], checkpoint: str | None = None) -> dict[bytes, bytes]:
        return {name: self._sound(fd, name, checkpoint) for name in names if name in self._places}

    def _sound(self, fd: int, name: bytes, checkpoint: str | None) -> bytes:
        data = self._bytes(fd, name)
        _, size, crc = self._places[name]
        if len(data) != size or zlib.crc32(data, zlib.crc32(name)) != crc:
            user = checkpoint or next((r.id for r in self.records.values() if name in r.chunks), None)
            raise Corrupt(f"chunk {name.hex()} is damaged", thread=self.key.id, checkpoint=user)
        return data

    def _bytes(self, fd: int, name: bytes) -> bytes:
        at, size, _ = self._places[name]
        return self.log.disk.read(fd, size, at)

    def audit(self, fd: int) -> list[Corrupt]:
        """Read every frame, and every chunk that counts."""

        def replay() -> None:
            self.log.resume(fd)
            self.catch_up(fd)

        found = _problems(replay)
        if found:
            return found
        for name in self._places:
            found += _problems(lambda name=name: self._sound(fd, name, None))  # type: ignore[misc]
        if self.log.has_bad_mark(fd):
            found.append(self.log.corrupt(f"one of the two marks of {self.log.name} is damaged"))
        return found


def _removes(effect: Effect) -> bool:
    return effect.everything or bool(effect.removed or effect.removed_chunks)


def _plain(effect: Effect) -> Effect:
    """Drop what `everything` says already, and what is said twice: a replay must not stumble over it."""
    if effect.everything:
        return replace(effect, removed=(), removed_chunks=())
    if not _removes(effect):
        return effect
    once = tuple(dict.fromkeys(effect.removed)), tuple(dict.fromkeys(effect.removed_chunks))
    return replace(effect, removed=once[0], removed_chunks=once[1])


# The index ---------------------------------------------------------------------------------------------


class Index:
    """The threads that there may be, and those of which that is certain. An entry is never taken back."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._forget()

    def _forget(self) -> None:
        self.log = Log(self._disk, "index", bytes(16))
        self._keys: dict[bytes, ThreadKey] = {}
        self._certain: set[bytes] = set()

    def is_there(self) -> bool:
        return "index" in self._disk.names()

    def is_confirmed(self, thread: ThreadKey) -> bool:
        return thread.digest in self._certain

    def catch_up(self) -> dict[bytes, ThreadKey]:
        """Return the threads by digest."""
        try:
            fd = self.log.open()
        except FileNotFoundError:
            self._check_empty()
            self._forget()
            return {}
        try:
            return self._read_on(fd)
        finally:
            self._disk.close(fd)

    def _check_empty(self) -> None:
        """The index comes before the first log: without it there is none."""
        if any(name.endswith(".log") for name in self._disk.names(THREADS)):
            raise Corrupt("the index of the threads is gone")

    def _read_on(self, fd: int) -> dict[bytes, ThreadKey]:
        try:
            if not self.log.resume(fd):
                self._forget()
                self.log.resume(fd)
            for frame in self.log.frames(fd):
                self._apply(*_unpack(frame.meta))
        except BaseException:
            self._forget()
            raise
        return self._keys

    def _apply(self, is_certain: bool, names: Sequence[tuple[str, str]]) -> None:
        keys = [ThreadKey.of(*name) for name in names]
        self._keys.update((key.digest, key) for key in keys)
        if is_certain:
            self._certain.update(key.digest for key in keys)

    def announce(self, threads: Sequence[ThreadKey], guard: WriteLock) -> None:
        """Note threads before their logs are made. A crash leaves notes of threads that never came."""
        self.catch_up()
        if not self.is_there():
            self._create(guard)
        with self._writing() as fd:
            self._add(False, [thread for thread in threads if thread.digest not in self._keys])
            self.log.write(fd)
            if self.log.acked < self.log.end:  # also what a process left that died before its fsync
                self._disk.sync(fd)
                self.log.acknowledge(fd)

    def confirm(self, threads: Sequence[ThreadKey]) -> None:
        """Note that logs are there to stay. Not synced, and may fail: the threads are listed already."""
        if all(self.is_confirmed(thread) for thread in threads):
            return
        with contextlib.suppress(OSError, Corrupt), self._writing() as fd:
            self._add(True, [thread for thread in threads if not self.is_confirmed(thread)])
            self.log.write(fd)

    def _add(self, is_certain: bool, threads: Sequence[ThreadKey]) -> None:
        if threads:
            names = [(thread.tenant, thread.id) for thread in threads]
            self.log.add(_pack((is_certain, names)))
            self._apply(is_certain, names)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[int]:
        fd = self.log.open(write=True)
        try:
            self._read_on(fd)
            self.log.cut(fd)
            yield fd
        except BaseException:
            self.log.retreat(fd)
            self._forget()
            raise
        finally:
            self._disk.close(fd)

    def _create(self, guard: WriteLock) -> None:
        self._forget()
        self.log.begin()
        with guard.renaming(""), self.log.aside():
            pass

    def settle(self) -> None:
        if not self.log.is_settled:
            with self._writing() as fd:
                self.log.settle(fd)


# Bytes -------------------------------------------------------------------------------------------------
#
# Fields are listed here, not taken from the classes: their order is on disk for ever, new ones go to the end.

_ROW = ("generation", "revision", "epoch", "seq", "created_at", "info_version")
_CHECKPOINT = (
    "namespace", "id", "parent", "run", "step", "source", "size", "added", "chunks", "body", "projection",
    "format", "epoch", "seq", "created_at", "version",
)  # fmt: skip
_WRITE = ("namespace", "checkpoint", "task", "index", "channel", "path", "body", "chunks", "rank")
_ENTRY = ("kind", "key", "body", "status", "epoch", "fence", "revision", "until", "clock", "gone")
_CHUNK = ("name", "size", "crc", "revision", "is_new")
_row, _checkpoint, _write, _entry, _chunk = (
    attrgetter(*names) for names in (_ROW, _CHECKPOINT, _WRITE, _ENTRY, _CHUNK)
)
_STORE_MAGIC = b"outlive\0"
_STORE = struct.Struct("<8sII")  # magic, format, bytes of the key


def _pack_effect(effect: Effect, chunks: Sequence[Chunk]) -> bytes:
    return _pack(
        (
            (effect.thread.tenant, effect.thread.id),
            _row(effect.row),
            effect.at,
            [_checkpoint(record) for record in (*effect.checkpoints, *effect.rewrites)],
            [_chunk(chunk) for chunk in chunks],
            [_write(write) for write in effect.writes],
            [_entry(entry) for entry in effect.entries],
            effect.removed,
            effect.removed_chunks,
            effect.everything,
            effect.erase,
            effect.info,
        )
    )


def _unpack_effect(meta: bytes, key: ThreadKey) -> tuple[Effect, list[Chunk]]:
    """Return an effect without the data of its chunks, which are listed beside it."""
    who, row, at, records, chunks, writes, entries, removed, gone, everything, erase, info = _unpack(meta)
    if tuple(who) != (key.tenant, key.id):
        raise ValueError("it belongs to another thread")
    effect = Effect(
        thread=key,
        row=Row(*row),
        at=at,
        checkpoints=tuple(CheckpointRecord(**_named(_CHECKPOINT, values)) for values in records),
        writes=tuple(WriteRecord(**_named(_WRITE, values)) for values in writes),
        entries=tuple(Entry(**_named(_ENTRY, values)) for values in entries),
        removed=tuple((pair[0], pair[1]) for pair in removed),
        removed_chunks=tuple(gone),
        everything=everything,
        erase=erase,
        info=info,
    )
    return effect, [Chunk(*values) for values in chunks]


def _named(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Pair values with names. An older frame may have fewer; whatever is a list was a tuple."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in zip(names, values, strict=False)
    }


def _pack(fields: Sequence[Any]) -> bytes:
    try:
        return ormsgpack.packb((FORMAT, False, fields))
    except TypeError:  # a lone surrogate, most likely
        try:
            return ormsgpack.packb((FORMAT, True, _each_text(escape, fields)))
        except TypeError as error:
            raise BadArgument(f"a record of this commit cannot be stored: {error}") from error


def _unpack(meta: bytes) -> Any:
    version, is_escaped, fields = ormsgpack.unpackb(meta)
    if version > FORMAT:
        raise NewerFormat("a frame of a log", version, FORMAT)
    return _each_text(unescape, fields) if is_escaped else fields


def _each_text(convert: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_each_text(convert, one) for one in value]
    return convert(value) if isinstance(value, str) else value


def _pack_store(key: bytes) -> bytes:
    head = _STORE.pack(_STORE_MAGIC, FORMAT, len(key)) + key
    return head + _checksum(head)


def _unpack_store(data: bytes) -> bytes:
    if len(data) < _STORE.size + 16 or data[-16:] != _checksum(data[:-16]):
        raise Corrupt("the file 'store' with the naming key is damaged")
    magic, version, size = _STORE.unpack_from(data)
    if magic != _STORE_MAGIC:
        raise Corrupt("the file 'store' is not of outlive")
    if version > FORMAT:
        raise NewerFormat("the store", version, FORMAT)
    return data[_STORE.size : _STORE.size + size]


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=16, person=b"outlive.store").digest()


# Edges -------------------------------------------------------------------------------------------------


def _make_folders(disk: Disk) -> None:
    """Make what is not there. A folder with other things in it is not taken for a store."""
    if os.path.islink(disk.root):
        raise BadURL(f"{disk.root!r} is a symbolic link; name the folder that it leads to")
    if not os.path.isdir(disk.root):
        _make_root(disk)
    names = set(disk.names())
    if THREADS in names:
        return
    if others := {name for name in names if not name.startswith(".")} - {"lock", "lost+found"}:
        raise BadURL(f"{disk.root!r} holds {min(others)!r}, which is not of outlive; choose an empty folder")
    with contextlib.suppress(FileExistsError):  # of several first openers one makes it
        disk.make_folder(THREADS)
    disk.sync_folder("")


def _make_root(disk: Disk) -> None:
    try:
        disk.make_folder()
    except FileExistsError:
        if not os.path.isdir(disk.root):
            raise BadURL(f"{disk.root!r} is not a folder") from None
    except FileNotFoundError:
        raise BadURL(f"the folder that should hold {disk.root!r} does not exist; create it first") from None
    Disk(os.path.dirname(os.path.abspath(disk.root))).sync_folder("")


def _problems(look: Callable[[], object]) -> list[Corrupt]:
    try:
        look()
    except Corrupt as error:
        return [error]
    return []


class _translated:  # noqa: N801 - reads like a function where it stands; as a generator it would cost more
    """Say in the library's words what the system says in its own."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NotAFile):
            raise Corrupt(error.what) from error
        if isinstance(error, OSError) and not isinstance(error, OutliveError):
            if error.errno in _FULL:
                raise StoreFull(f"no space is left for the store's files ({error.strerror})") from error
            raise StoreUnavailable(f"the store's files: {error}") from error
