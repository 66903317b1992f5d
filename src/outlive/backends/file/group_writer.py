"""Writing a group of commits to the logs of a folder store, in an order that survives crashes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import field, replace

from outlive.backend import Commit, Receipt
from outlive.backend.clock import clock
from outlive.backend.entries import RUN
from outlive.backends.file.disk import THREADS, Disk, WriteLock, is_full, translated
from outlive.backends.file.index import Index
from outlive.backends.file.log import Log
from outlive.backends.file.reserved_space import Reserve
from outlive.backends.file.revision_marks import Marks
from outlive.backends.file.table import LoggedTable, log_of, plain, removes
from outlive.backends.rules.decide import check_found, decide
from outlive.backends.rules.view import Effect
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, NotErased, OutliveError, StoreError


@dataclass(slots=True)
class Batch:
    """The commits of one thread in a group, and its open file. A new thread has no file yet."""

    table: LoggedTable
    disk: Disk
    fd: int | None = None
    is_new: bool = False
    is_kept: bool = True  # the table is worth keeping
    has_effect: bool = False
    frees: bool = False  # something is removed: it may use what is set aside for that
    erases: bool = False  # and no byte of it may stay
    was_damaged: bool = False  # what was there is replaced, whatever it was
    runs: set[str] = field(default_factory=set)  # those that are written
    failure: OutliveError | None = None

    @property
    def log(self) -> Log:
        return self.table.log

    @property
    def file(self) -> int:
        assert self.fd is not None
        return self.fd

    def commit(self, commit: Commit) -> Receipt:
        effect, receipt = decide(commit, self.table, clock())
        if effect is not None:
            check_found(effect, self.table)
            self._add(plain(effect))
        return replace(receipt, removed=1) if self.was_damaged and not receipt.removed else receipt

    def _add(self, effect: Effect) -> None:
        meta, chunks = self.table.prepare(effect)
        self.table.commit(effect, meta, chunks)
        self.has_effect = True
        self.frees |= removes(effect)
        self.erases |= effect.erase
        self.runs.update([entry.key for entry in effect.entries if entry.kind == RUN])

    def close(self) -> None:
        if self.fd is not None:
            self.disk.close(self.fd)
            self.fd = None


_NORMAL_S = 1.0  # fsync="normal": a log is synced at most this often


class GroupWriter:
    """Makes a group of commits durable. The caller holds the store's lock."""

    def __init__(
        self, disk: Disk, guard: WriteLock, index: Index, marks: Marks, *, syncs_always: bool
    ) -> None:
        self._disk = disk
        self._guard = guard
        self._index = index
        self._marks = marks
        self._reserve = Reserve(disk)
        self._syncs_always = syncs_always

    def store(self, batches: list[Batch]) -> None:
        """Make the group durable. A thread whose write fails does not fail the others."""
        new = [batch for batch in batches if batch.is_new and batch.log.is_waiting]
        old = [batch for batch in batches if not batch.is_new]
        # 1. Index entries of new runs. A crash leaves entries of runs that do not exist.
        self._each(old, self._announce_runs)
        # 2. Frames. A crash leaves torn tails, or whole frames that no caller was told about.
        self._each(old, lambda batch: self._spared(batch, lambda: batch.log.write(batch.file)))
        # 3. Sync and mark, after all writes: one fsync often carries others along. A crash leaves
        #    the commits of the threads synced so far.
        self._each(old, self._make_durable)
        # 4. Logs of new threads. A crash leaves index entries and temporary files, or the logs.
        if new:
            self._create(new)
        # 5. Rewrites of logs with much dead content. A crash leaves the old or the new log.
        self._each([batch for batch in batches if batch.has_effect], self._tidy)
        # 6. Revisions, unsynced: after a crash they may be older than the logs, never newer.
        self.note([batch for batch in batches if batch.has_effect and batch.failure is None])
        self._reserve.keep()

    def note(self, batches: Iterable[Batch]) -> None:
        """Record elsewhere how long the logs are. If that fails, an older copy may go unnoticed."""
        with contextlib.suppress(OSError, Corrupt):
            for batch in batches:
                table, slot = batch.table, self._index.slot(batch.table.key)
                if slot is not None and table.counters is not None and table.log.acked == table.log.end:
                    self._marks.note(slot, table.key.digest, table.counters.revision)

    def _announce_runs(self, batch: Batch) -> None:
        """Add new runs to the index, synced, before they are stored: a crash leaves harmless index
        entries.
        """
        key = batch.table.key
        if new := [(key, run) for run in batch.runs if not self._index.runs.has(key, run)]:
            self._index.announce([], new, self._guard)

    def _each(self, batches: Iterable[Batch], step: Callable[[Batch], None]) -> None:
        for batch in batches:
            if batch.failure is None:
                try:
                    with translated():
                        step(batch)
                except OutliveError as error:
                    self._fail(batch, error)

    def _spared(self, batch: Batch, step: Callable[[], None]) -> None:
        """Do a step. On a full disk, a removal may use the space that is reserved for it."""
        try:
            step()
        except OSError as error:
            if not (is_full(error) and batch.frees and self._reserve.release()):
                raise
            step()

    def _fail(self, batch: Batch, error: OutliveError) -> None:
        """Cut what was written, as far as possible: a later replay would accept whole frames."""
        batch.failure = batch.failure or error
        if batch.fd is not None:
            batch.log.retreat(batch.fd)
        if batch.is_new:
            with contextlib.suppress(OSError):
                self._disk.remove(batch.log.name)

    def _make_durable(self, batch: Batch) -> None:
        """Sync and mark, including frames of a process that died before its fsync."""
        table = batch.table
        if table.log.end == table.log.acked:
            return
        now = time.monotonic()
        if self._syncs_always or now - table.synced_at >= _NORMAL_S:
            # The commit point: a crash before it may leave nothing, a crash after it leaves all.
            self._disk.sync(batch.file)
            table.log.acknowledge(batch.file)
            table.synced_at = now

    def _create(self, batches: list[Batch]) -> None:
        """Create the logs of new threads.

        Always synced: a rename may reach the disk before the contents.
        """
        try:
            with translated():
                runs = [(batch.table.key, run) for batch in batches for run in batch.runs]
                self._index.announce([batch.table.key for batch in batches], runs, self._guard)
                with self._guard.renaming(THREADS):
                    self._each(batches, lambda batch: self._spared(batch, lambda: self._create_one(batch)))
        except StoreError as error:
            for batch in batches:
                self._fail(batch, error)
        made = [batch for batch in batches if batch.failure is None]
        for batch in made:
            batch.is_new = False
        self._index.confirm([batch.table.key for batch in made])

    def _create_one(self, batch: Batch) -> None:
        with batch.log.aside():
            pass
        batch.fd = batch.log.open(write=True)

    def _tidy(self, batch: Batch) -> None:
        """Rewrite the file without what was removed.

        The removal itself is stored already. Only a caller that erases learns of a failure.
        """
        try:
            if batch.table.wants_rewrite():
                self._rewrite(batch)
        except (StoreError, OSError) as error:
            failure: BaseException | None = error
            if is_full(error) and batch.frees:
                failure = self._rewrite_without_room(batch)
            if failure is not None and batch.erases:
                raise NotErased(batch.table.key.id, str(failure)) from failure

    def _rewrite_without_room(self, batch: Batch) -> BaseException | None:
        """Free the removed chunks in place, and try once more; return the error, if any."""
        try:
            self._reserve.release()
            batch.table.free_dead(batch.file)
            self._rewrite(batch)
        except (StoreError, OSError) as error:
            return error
        return None

    def _rewrite(self, batch: Batch) -> None:
        """Rewrite the log from the table.

        A crash leaves the old or the new log, with the same content.
        """
        batch.is_kept = False  # the table has the old places of the chunks
        fresh = log_of(self._disk, batch.table.key)
        fresh.begin()
        with self._guard.renaming(THREADS), fresh.aside() as fd:
            for meta, data in batch.table.snapshot(batch.file):
                fresh.add(meta, data)
                fresh.write(fd)
