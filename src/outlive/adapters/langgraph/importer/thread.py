"""Moving one thread: read it from the source, store what the target does not have, read that back and compare.

What is compared are digests over what the source's rows say and over what the saver returns from the target, each through the whole
way of its own (`canonical.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outlive.adapters.langgraph.importer.batch import Cargo
from outlive.adapters.langgraph.importer.decoder import Decoder, Found
from outlive.adapters.langgraph.importer.existing import Held
from outlive.adapters.langgraph.importer.source import (
    PAGE,
    CheckpointKey,
    Row,
    ThreadView,
    WriteKey,
    WriteRow,
)
from outlive.adapters.langgraph.operations import CheckpointOperations
from outlive.adapters.langgraph.pages import Pages
from outlive.adapters.langgraph.values.digest import digest
from outlive.backend import CheckpointRecord, ThreadKey
from outlive.errors import CallerError, Corrupt, OutliveError, StaleBase, UnknownTag
from outlive.values import PendingWrite

_TRIES = 5
_ODD = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)  # in hostile rows


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a thread was not moved, and what mends it."""

    thread: str | None
    checkpoint: str | None
    sentence: str
    unknown: str | None = None  # the class that nobody named

    def __str__(self) -> str:
        where = "" if self.thread is None else f"thread {self.thread!r}"
        where += "" if self.checkpoint is None else f", checkpoint {self.checkpoint!r}"
        return f"{where}: {self.sentence}" if where else self.sentence


class Unmovable(Exception):
    """A thread stays where it is."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(slots=True)
class Done:
    """What was done with a thread."""

    checkpoints: int = 0  # brought
    writes: int = 0
    renewed: int = 0  # were there, and had changed in the source
    present: int = 0  # were there
    compared: int = 0
    is_ahead: bool = False  # the target went on
    is_absent: bool = False  # the source has nothing of it


class ThreadMove:
    """One thread on its way."""

    def __init__(
        self,
        keeper: CheckpointOperations,
        decoder: Decoder,
        view: ThreadView,
        thread: str,
        tell: Callable[[int], None],
        *,
        verify: bool,
        dry_run: bool,
    ) -> None:
        self._keeper = keeper
        self._decoder = decoder
        self._view = view
        self._thread = thread
        self._tell = tell
        self._verify = verify
        self._dry_run = dry_run

    async def run(self) -> Done:
        """Move what is missing. Raises Unmovable, and then nothing was stored but what was there."""
        with self._about(None):
            key = self._keeper.key(self._thread)
        for _ in range(_TRIES):
            try:
                return await self._once(key)
            except StaleBase:  # others write to this thread of the target: look again
                continue
        raise StaleBase(self._thread)

    async def _once(self, key: ThreadKey) -> Done:
        with self._about(None):
            pairs, write_keys = self._view.pairs(), self._view.write_keys()
        held = await Held.read(self._keeper.engine, key, pairs, write_keys)
        done = Done(present=sum(pair in held.records for pair in pairs), is_ahead=held.has_gone_on)
        if done.is_ahead:
            if held.is_behind:
                raise Unmovable(Problem(self._thread, None, _DIVERGED))
            return done  # it is the target's now
        done.is_absent = not pairs and not write_keys
        expected = Expected()
        cargo = Cargo(self._keeper, key, held.generation, held.namespaces, dry_run=self._dry_run)
        await self._load(held, held.pairs if self._verify else held.lacking, cargo, expected)
        await cargo.commit()
        done.checkpoints, done.writes = cargo.checkpoints, cargo.writes
        if self._verify:
            await self._compare(key, held, expected, done)
        return done

    # Reading the source

    async def _load(
        self, held: Held, pairs: Sequence[CheckpointKey], cargo: Cargo, expected: Expected
    ) -> None:
        places = held.places()
        for number, row in enumerate(self._rows(pairs), 1):
            found = self._read(row)
            with self._about(row.id):
                expected.add(found)
            if row.pair not in held.records:
                with self._about(row.id):
                    await cargo.add(found, places.get(row.pair))
            await self._load_writes(row.writes, held, cargo, expected)
            if cargo.is_full:
                await cargo.commit()
            self._tell(number)
        await self._load_writes(self._view.lone_writes(), held, cargo, expected)

    def _rows(self, pairs: Sequence[CheckpointKey]) -> Iterator[Row]:
        with self._about(None):
            for at in range(0, len(pairs), PAGE):
                yield from self._view.rows(pairs[at : at + PAGE])

    def _read(self, row: Row) -> Found:
        with self._about(row.id):
            return self._decoder.checkpoint(row)

    async def _load_writes(
        self, rows: Sequence[WriteRow], held: Held, cargo: Cargo, expected: Expected
    ) -> None:
        for row in rows:
            with self._about(row.checkpoint):
                value = self._decoder.write(row)
                expected.add_write(row, value)
                if row.key not in held.writes:
                    await cargo.add_write(row, value)

    @contextmanager
    def _about(self, checkpoint: Any) -> Iterator[None]:
        """Turn what is wrong with a row into a problem that says where it is, and what to do."""
        try:
            yield
        except (CallerError, Corrupt, *_ODD) as error:
            sentence = error.what if isinstance(error, Corrupt) else str(error)
            if not isinstance(error, OutliveError):
                sentence = f"it is not as LangGraph writes it ({type(error).__name__}: {error})"
            unknown = error.tag if isinstance(error, UnknownTag) else None
            if unknown is not None:
                name = unknown.rpartition(".")[2]
                sentence = f"it holds an object of {unknown}, which nobody named: give types=[{name}], or --type {unknown}"
            shown = checkpoint if isinstance(checkpoint, str | None) else repr(checkpoint)
            raise Unmovable(Problem(self._thread, shown, sentence, unknown)) from error

    # Comparing

    async def _compare(self, key: ThreadKey, held: Held, expected: Expected, done: Done) -> None:
        """Read the target and compare; what was there before and has changed in the source is brought up to date."""
        actual = await self._actual(key, expected)
        pairs = expected.differing(actual)
        keys = expected.differing_writes(actual)
        if self._dry_run:  # what is not there yet cannot differ
            pairs = [pair for pair in pairs if pair in held.records]
            keys = [one for one in keys if one in held.writes]
        done.compared = len(actual.checkpoints)
        if not pairs and not keys:
            return
        is_old = all(pair in held.records for pair in pairs) and all(one in held.writes for one in keys)
        if not is_old or any(one[3] >= 0 for one in keys):  # nobody writes these twice
            checkpoint = pairs[0][1] if pairs else keys[0][1]
            raise Unmovable(Problem(self._thread, checkpoint, _DIFFERS if is_old else _UNFAITHFUL))
        done.renewed = len({*pairs, *((one[0], one[1]) for one in keys)})
        if not self._dry_run:
            await self._renew(key, pairs, set(keys))
            again = await self._actual(key, expected)
            if expected.differing(again) or expected.differing_writes(again):
                raise Unmovable(Problem(self._thread, None, _UNFAITHFUL))

    async def _renew(self, key: ThreadKey, pairs: list[CheckpointKey], keys: set[WriteKey]) -> None:
        """Replace checkpoints and control writes by what the source has now; they keep their places."""
        generation = (await self._keeper.engine.backend.read(key, "", chunks=False)).generation
        cargo = Cargo(self._keeper, key, generation, set())
        wanted = dict.fromkeys((*pairs, *((one[0], one[1]) for one in keys)))
        for row in self._rows(list(wanted)):
            if row.pair in pairs:
                await cargo.add(self._read(row))
            for write in row.writes:
                if write.key in keys:
                    await cargo.add_write(write, self._decoder.write(write))
        for write in self._view.lone_writes():
            if write.key in keys:
                await cargo.add_write(write, self._decoder.write(write))
        await cargo.commit(replace=True)

    async def _actual(self, key: ThreadKey, expected: Expected) -> Expected:
        """Return the digests of what the target has."""
        actual, engine = Expected(), self._keeper.engine
        pages = Pages(engine, key, None, None)
        while (
            page := await pages.next(lambda one: (one.namespace, one.id) in expected.checkpoints)
        ) is not None:
            for record in page.records:
                with self._about(record.id):
                    _, state, writes = page.open(record)
                    actual.add(self._returned(key, record, state))
                    for write in writes:
                        actual.add_pending(record, write)
        if lone := [one for one in await engine.backend.writes(key, None) if one.key in expected.writes and one.key not in actual.writes]:  # fmt: skip
            data = await engine.backend.fetch(key, list({name for one in lone for name in one.chunks}))
            for one, write in zip(lone, engine.pending(key, lone, data), strict=True):
                actual.writes[one.key] = _write_digest(write.channel, write.path, write.value)
        return actual

    def _returned(self, key: ThreadKey, record: CheckpointRecord, state: Any) -> Found:
        """Return a checkpoint as the saver gives it to LangGraph."""
        whole = self._keeper.describe(key, record, state, ())
        above = whole.parent_config
        return Found(
            record.namespace,
            whole.checkpoint["id"],
            None if above is None else above["configurable"]["checkpoint_id"],
            {**whole.checkpoint},
            {**whole.metadata},
        )


class Expected:
    """Digests of checkpoints and writes."""

    def __init__(self) -> None:
        self.checkpoints: dict[CheckpointKey, bytes] = {}
        self.writes: dict[WriteKey, bytes] = {}

    def add(self, found: Found) -> None:
        fields = sorted((name, value) for name, value in found.checkpoint.items() if name != "id")
        whole = [
            found.parent,
            [list(pair) for pair in fields],
            sorted(map(list, found.metadata.items()), key=lambda pair: pair[0]),
        ]
        self.checkpoints[found_pair(found)] = digest(whole)

    def add_write(self, row: WriteRow, value: Any) -> None:
        self.writes[row.key] = _write_digest(row.channel, row.path, value)

    def add_pending(self, record: CheckpointRecord, write: PendingWrite) -> None:
        key = (record.namespace, record.id, write.task, write.index)
        self.writes[key] = _write_digest(write.channel, write.path, write.value)

    def differing(self, actual: Expected) -> list[CheckpointKey]:
        return [pair for pair, one in self.checkpoints.items() if actual.checkpoints.get(pair) != one]

    def differing_writes(self, actual: Expected) -> list[WriteKey]:
        return [key for key, one in self.writes.items() if actual.writes.get(key) != one]


def found_pair(found: Found) -> CheckpointKey:
    return (found.namespace, found.id)


def _write_digest(channel: str, path: str, value: Any) -> bytes:
    return digest([channel, path, value])


_DIVERGED = (
    "it went on in the target, and in the source as well; nothing was brought. "
    "Leave it out, or delete it in the target and repeat"
)
_DIFFERS = "a write of it is in the target already with another value; delete the thread there and repeat"
_UNFAITHFUL = (
    "what the target gives back is not what the source says; delete the thread there, and report this"
)
