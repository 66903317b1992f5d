"""The commits of one thread in a group of the file backend."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outlive.backend import Commit, Receipt
from outlive.backend.entries import RUN
from outlive.backends.file.disk import Disk
from outlive.backends.file.log import Log
from outlive.backends.file.table import LoggedTable, plain, removes
from outlive.backends.rules.clock import clock, new_token
from outlive.backends.rules.decide import decide
from outlive.backends.rules.expectations import check_found
from outlive.backends.rules.view import Effect
from outlive.errors import OutliveError


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
        effect, receipt = decide(commit, self.table, clock(), new_token())
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
