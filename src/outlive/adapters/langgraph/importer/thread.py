"""Importing one thread: read it from the source, store it in the target, read it back and compare.

A thread is imported whole or left alone:

    the target has nothing of it                          import it
    the target has all of it                              skip it (compared, when `verify` is on)
    the target has a part, and nothing else               delete that part and import the thread again
    the target was used since, the source was not         leave it alone; it counts as `ahead`
    any other difference                                  leave it alone and report it

What is compared are digests (`values/digest.py`): of what the rows of the source say, and of what
the saver returns from the target. Neither goes through the code of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outlive.adapters.langgraph.importer.batch import IMPORTED, Batch
from outlive.adapters.langgraph.importer.decoder import DecodedCheckpoint, Decoder
from outlive.adapters.langgraph.importer.source import (
    PAGE,
    CheckpointKey,
    CheckpointRow,
    ThreadView,
    WriteKey,
    WriteRow,
)
from outlive.adapters.langgraph.pages import Pages
from outlive.adapters.langgraph.session import Session
from outlive.adapters.langgraph.values.digest import digest
from outlive.backend import CheckpointRecord, ThreadKey
from outlive.errors import CallerError, Corrupt, OutliveError, StaleBase, UnknownTag
from outlive.threads.prune import ThreadContents, read_contents

_TRIES = 5
# What reading a hostile row may raise.
MALFORMED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a thread was not imported, and what to do about it."""

    thread: str | None
    checkpoint: str | None
    sentence: str
    unknown: str | None = None  # the class that is missing in types

    def __str__(self) -> str:
        where = "" if self.thread is None else f"thread {self.thread!r}"
        where += "" if self.checkpoint is None else f", checkpoint {self.checkpoint!r}"
        return f"{where}: {self.sentence}" if where else self.sentence


class ThreadRefused(Exception):
    """A thread cannot be imported; the target keeps what it had of it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(slots=True)
class ThreadResult:
    """What was done with a thread."""

    checkpoints: int = 0  # imported
    writes: int = 0
    present: int = 0  # checkpoints that the target had, and keeps
    compared: int = 0
    is_again: bool = False  # the target had a part of it, or an older state
    is_ahead: bool = False  # the target was used since
    is_absent: bool = False  # the source has nothing of it


@dataclass(slots=True)
class ThreadImport:
    """One thread on its way."""

    session: Session
    decoder: Decoder
    view: ThreadView
    thread: str
    report: Callable[[int], None]
    verify: bool
    dry_run: bool

    async def run(self) -> ThreadResult:
        """Import the thread. Raises ThreadRefused, and then the target is as it was."""
        with self._locating(None):
            key = self.session.key(self.thread)
        for _ in range(_TRIES):
            try:
                return await self._import(key)
            except StaleBase:  # others write to this thread of the target: look again
                continue
        raise StaleBase(self.thread)

    async def _import(self, key: ThreadKey) -> ThreadResult:
        with self._locating(None):
            checkpoint_keys, write_keys = self.view.checkpoint_keys(), self.view.write_keys()
        contents = await read_contents(self.session.engine, key)
        difference = _Difference(checkpoint_keys, write_keys, contents)
        if difference.is_used and difference.is_behind:
            raise ThreadRefused(Problem(self.thread, None, _DIVERGED))
        present = ThreadResult(present=difference.shared, is_ahead=difference.is_used)
        present.is_absent = difference.is_source_empty
        if difference.is_used or present.is_absent:
            return present
        if not difference.is_behind and await self._is_same(key, difference, present):
            return present
        if difference.has_more:
            raise ThreadRefused(Problem(self.thread, None, _PRUNED))
        return await self._store(key, difference)

    async def _is_same(self, key: ThreadKey, difference: _Difference, result: ThreadResult) -> bool:
        """Tell whether the target has what the source says; without `verify`, believe it."""
        if not self.verify:
            return True
        expected = await self._read_source(difference.checkpoint_keys, None)
        actual = await self._read_target(key, expected)
        result.compared = len(actual.checkpoints)
        return expected.first_difference(actual) is None

    async def _store(self, key: ThreadKey, difference: _Difference) -> ThreadResult:
        """Import the whole thread, in place of what the target has of it."""
        contents = difference.contents
        is_again = bool(contents.records or contents.writes)
        batch = Batch(self.session, key, replaced=contents if is_again else None, dry_run=self.dry_run)
        expected = await self._read_source(difference.checkpoint_keys, batch)
        await batch.commit()
        result = ThreadResult(batch.checkpoints, batch.writes, is_again=is_again)
        if self.verify and not self.dry_run:
            actual = await self._read_target(key, expected)
            if (differing := expected.first_difference(actual)) is not None:
                raise ThreadRefused(Problem(self.thread, differing, _UNFAITHFUL))
            result.compared = len(actual.checkpoints)
        return result

    # Reading the source

    async def _read_source(self, keys: Sequence[CheckpointKey], batch: Batch | None) -> Digests:
        """Decode the whole thread, page by page; put it into a batch, and return its digests."""
        digests = Digests()
        for number, row in enumerate(self._rows(keys), 1):
            with self._locating(row.id):
                decoded = self.decoder.checkpoint(row)
                digests.add(decoded)
                if batch is not None:
                    await batch.add(decoded)
            await self._read_writes(row.writes, batch, digests)
            if batch is not None and batch.is_full:
                await batch.commit()
            self.report(number)
        with self._locating(None):
            lone = self.view.lone_writes()
        await self._read_writes(lone, batch, digests)
        return digests

    def _rows(self, keys: Sequence[CheckpointKey]) -> Iterator[CheckpointRow]:
        with self._locating(None):
            for at in range(0, len(keys), PAGE):
                yield from self.view.rows(keys[at : at + PAGE])

    async def _read_writes(self, rows: Sequence[WriteRow], batch: Batch | None, digests: Digests) -> None:
        for row in rows:
            with self._locating(row.checkpoint):
                value = self.decoder.write(row)
                digests.add_write(row.key, row.channel, row.path, value)
                if batch is not None:
                    await batch.add_write(row, value)

    @contextmanager
    def _locating(self, checkpoint: Any) -> Iterator[None]:
        """Turn what is wrong with a row into a problem that says where it is, and what to do."""
        try:
            yield
        except (CallerError, Corrupt, *MALFORMED) as error:
            sentence = error.what if isinstance(error, Corrupt) else str(error)
            if not isinstance(error, OutliveError):
                sentence = f"it is not as LangGraph writes it ({type(error).__name__}: {error})"
            unknown = error.tag if isinstance(error, UnknownTag) else None
            if unknown is not None:
                name = unknown.rpartition(".")[2]
                sentence = f"it contains an object of {unknown}, which is not in types: add types=[{name}], or --type {unknown}"
            shown = checkpoint if isinstance(checkpoint, str | None) else repr(checkpoint)
            raise ThreadRefused(Problem(self.thread, shown, sentence, unknown)) from error

    # Reading the target

    async def _read_target(self, key: ThreadKey, expected: Digests) -> Digests:
        """Return the digests of what the target has of the checkpoints and writes of the source."""
        actual, engine = Digests(), self.session.engine
        pages = Pages(engine, key, None, None)
        while (
            page := await pages.next(lambda record: (record.namespace, record.id) in expected.checkpoints)
        ) is not None:
            for record in page.records:
                with self._locating(record.id):
                    _, state, writes = page.open(record)
                    actual.add(self._as_returned(key, record, state))
                    for write in writes:
                        write_key = (record.namespace, record.id, write.task, write.index)
                        actual.add_write(write_key, write.channel, write.path, write.value)
        lone = expected.writes.keys() - actual.writes.keys()
        rows = [row for row in await engine.backend.writes(key, None) if row.key in lone]
        if rows:
            data = await engine.backend.fetch(key, list({name for row in rows for name in row.chunks}))
            for row, write in zip(rows, engine.pending(key, rows, data), strict=True):
                actual.add_write(row.key, write.channel, write.path, write.value)
        return actual

    def _as_returned(self, key: ThreadKey, record: CheckpointRecord, state: Any) -> DecodedCheckpoint:
        """Return a checkpoint as the saver returns it to LangGraph."""
        stored = self.session.checkpoint_tuple(key, record, state, ())
        return DecodedCheckpoint(
            record.namespace, record.id, record.parent, {**stored.checkpoint}, {**stored.metadata}
        )


class _Difference:
    """A thread of the source beside the same thread of the target."""

    def __init__(
        self, checkpoint_keys: list[CheckpointKey], write_keys: set[WriteKey], contents: ThreadContents
    ) -> None:
        self.checkpoint_keys = checkpoint_keys
        self.contents = contents
        self.is_source_empty = not checkpoint_keys and not write_keys
        stored = {(record.namespace, record.id): record for record in contents.records}
        written = {write.key for write in contents.writes}
        shared = set(checkpoint_keys) & stored.keys()
        extra = [record for key, record in stored.items() if key not in shared]
        newest = max((stored[key].order for key in shared), default=None)
        self.shared = len(shared)
        self.is_behind = len(shared) < len(checkpoint_keys) or not write_keys <= written
        # Checkpoints and writes that the source does not have: deleting them would lose them.
        self.has_more = bool(extra) or not written <= write_keys
        # The target was used: it has a newer checkpoint, a write of its own on a checkpoint that
        # both have, or a control write that was overwritten. (Older checkpoints of its own were
        # pruned from the source.)
        self.is_used = (
            any(newest is None or record.order > newest for record in extra)
            or any(key[:2] in shared for key in written - write_keys)
            or any(write.index < 0 and write.rank != IMPORTED for write in contents.writes)
        )


class Digests:
    """Digests of checkpoints and writes."""

    def __init__(self) -> None:
        self.checkpoints: dict[CheckpointKey, bytes] = {}
        self.writes: dict[WriteKey, bytes] = {}

    def add(self, decoded: DecodedCheckpoint) -> None:
        fields = sorted([name, value] for name, value in decoded.checkpoint.items() if name != "id")
        metadata = sorted(map(list, decoded.metadata.items()), key=lambda item: item[0])
        self.checkpoints[decoded.namespace, decoded.id] = digest([decoded.parent, fields, metadata])

    def add_write(self, key: WriteKey, channel: str, path: str, value: Any) -> None:
        self.writes[key] = digest([channel, path, value])

    def first_difference(self, actual: Digests) -> str | None:
        """Return the id of a checkpoint that differs, or has a write that does; None when all are the same."""
        for key, expected in self.checkpoints.items():
            if actual.checkpoints.get(key) != expected:
                return key[1]
        for write_key, expected in self.writes.items():
            if actual.writes.get(write_key) != expected:
                return write_key[1]
        return None


_DIVERGED = (
    "it was used in the target, and in the source as well; nothing was imported. "
    "Leave it out, or delete it in the target and repeat the import"
)
_PRUNED = (
    "it has changed in the source, and the target has checkpoints or writes that the source no longer has; "
    "nothing was imported. Leave it out, or delete it in the target and repeat the import"
)
_UNFAITHFUL = (
    "the target does not return what the source says; delete the thread in the target, and report this"
)
