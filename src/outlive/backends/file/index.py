"""The index of the file backend: all threads and their runs. It reveals a log that vanished."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from outlive.backend import ThreadKey
from outlive.backends.file.disk import THREADS, Disk, WriteLock
from outlive.backends.file.effects import pack, unpack
from outlive.backends.file.log import Log
from outlive.backends.file.revision_marks import INDEX, Marks
from outlive.backends.local.run_index import RunIndex
from outlive.errors import Corrupt


class Index:
    """All threads that may exist, and those that certainly do. An entry is never withdrawn."""

    def __init__(self, disk: Disk, marks: Marks) -> None:
        self._disk = disk
        self._marks = marks
        self._forget()

    def _forget(self) -> None:
        self.log = Log(self._disk, "index", bytes(16))
        self._keys: dict[bytes, ThreadKey] = {}
        self._certain: set[bytes] = set()
        self._slots: dict[bytes, int] = {}  # where each thread has its mark
        self.runs = RunIndex()

    def is_there(self) -> bool:
        return "index" in self._disk.names()

    def is_confirmed(self, thread: ThreadKey) -> bool:
        return thread.digest in self._certain

    def slot(self, thread: ThreadKey) -> int | None:
        """Return where a thread has its mark; None when the index does not know it."""
        if thread.digest not in self._slots:
            self.catch_up()
        return self._slots.get(thread.digest)

    def catch_up(self) -> dict[bytes, ThreadKey]:
        """Return the threads by digest."""
        try:
            fd = self.log.open()
        except FileNotFoundError:
            self._check_empty()
            self._forget()
            self._check_newest()
            return {}
        try:
            return self._read_on(fd)
        finally:
            self._disk.close(fd)

    def _check_empty(self) -> None:
        """Raise if there are logs: the index is written before the first of them."""
        if any(name.endswith(".log") for name in self._disk.names(THREADS)):
            raise Corrupt("the index of the threads is gone")

    def _check_newest(self) -> None:
        """Raise when more threads were listed before than are now."""
        marked = self._marks.read(INDEX, self.log.digest)
        if len(self._keys) < marked:
            raise Corrupt(
                f"the index of the threads is an older copy of itself, or gone: it has {len(self._keys)} threads, and {marked} were listed"
            )

    def _read_on(self, fd: int) -> dict[bytes, ThreadKey]:
        is_known = bool(self._keys)
        try:
            if not self.log.resume(fd):
                self._forget()
                self.log.resume(fd)
                is_known = False
            for frame in self.log.frames(fd):
                self._apply(*unpack(frame.meta))
            if not is_known:
                self._check_newest()
        except BaseException:
            self._forget()
            raise
        return self._keys

    def _apply(self, is_certain: bool | None, names: Sequence[Sequence[str]]) -> None:
        if is_certain is None:
            for tenant, id, run in names:
                self.runs.add(ThreadKey.of(tenant, id), run)
            return
        keys = [ThreadKey.of(tenant, id) for tenant, id in names]
        for key in keys:
            self._slots.setdefault(key.digest, len(self._slots) + 1)
        self._keys.update((key.digest, key) for key in keys)
        if is_certain:
            self._certain.update(key.digest for key in keys)

    def announce(
        self, threads: Sequence[ThreadKey], runs: Sequence[tuple[ThreadKey, str]], guard: WriteLock
    ) -> None:
        """Add threads before their logs exist, and runs before they are stored.

        A crash leaves entries of threads and runs that do not exist.
        """
        self.catch_up()
        if not self.is_there():
            self._create(guard)
        with self._writing() as fd:
            self._add(False, [thread for thread in threads if thread.digest not in self._keys])
            self._add_runs([(thread, run) for thread, run in runs if not self.runs.has(thread, run)])
            self.log.write(fd)
            if self.log.acked < self.log.end:  # also frames of a process that died before its fsync
                self._disk.sync(fd)
                self.log.acknowledge(fd)
        with contextlib.suppress(OSError):  # then an older copy may go unnoticed
            self._marks.note(INDEX, self.log.digest, len(self._keys))

    def confirm(self, threads: Sequence[ThreadKey]) -> None:
        """Record that logs exist. Not synced, and may fail: the threads are listed already."""
        if all(self.is_confirmed(thread) for thread in threads):
            return
        with contextlib.suppress(OSError, Corrupt), self._writing() as fd:
            self._add(True, [thread for thread in threads if not self.is_confirmed(thread)])
            self.log.write(fd)

    def _add(self, is_certain: bool, threads: Sequence[ThreadKey]) -> None:
        if threads:
            names = [(thread.tenant, thread.id) for thread in threads]
            self.log.add(pack((is_certain, names)))
            self._apply(is_certain, names)

    def _add_runs(self, runs: Sequence[tuple[ThreadKey, str]]) -> None:
        if runs:
            names = [(thread.tenant, thread.id, run) for thread, run in runs]
            self.log.add(pack((None, names)))
            self._apply(None, names)

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
