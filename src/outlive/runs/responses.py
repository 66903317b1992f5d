"""One prompt to several models, as part of a run: one stored record per model.

A record is an entry of kind "response" under (run, ordinal, model). The entry under the run alone
has the prompt and the order of the models. All are written with the fence of the run and renew its
leases.

An update changes the record in memory at once and marks it as not yet stored. The caller that gets
the mutex of the run writes all marked records in one commit. The next caller sees its own stored
already, or writes in turn what came meanwhile. A commit always has the newest version of a record,
so an older update neither follows a newer one nor costs a write. The revision of an entry counts
its updates, and the backend refuses an older one. An update that could not be stored is taken back,
and its call raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol, Self

from outlive.backend import EntryQuery, EntryRecord, Receipt, ThreadKey
from outlive.backend.entries import RESPONSE
from outlive.backend.paging import all_entries
from outlive.dataclass import dataclass
from outlive.errors import BadArgument, Corrupt, well_formed
from outlive.runs.response_values import (
    FAILED,
    INTERRUPTED,
    NOT_STARTED,
    RUNNING,
    FanOut,
    ModelKey,
    ModelResponse,
    PartialResponse,
    Record,
    Usage,
    as_error,
    as_partial,
    as_response,
    check_model,
    ending,
    name_of,
    not_started,
    numbered,
)
from outlive.runs.writing_run import WritingRun
from outlive.threads.engine import Engine

MAX_BYTES = 16 << 20  # of one record, and of the records that one commit adds to the first
_PAGE = 500


class Writer(WritingRun, Protocol):
    """The run that responses belong to."""

    @property
    def _is_started(self) -> bool: ...
    @property
    def _mutex(self) -> AbstractAsyncContextManager[Any]: ...
    async def _write_held(self, *entries: EntryRecord) -> Receipt: ...


class _Slot:
    """One record: the stored version, and newer ones whose callers wait."""

    __slots__ = ("revision", "stored", "stored_revision", "waiting")

    def __init__(self, record: Record, revision: int) -> None:
        self.stored = record
        self.stored_revision = self.revision = revision
        self.waiting: dict[int, tuple[Record, bytes]] = {}  # by revision, in that order

    @property
    def latest(self) -> Record:
        return self.waiting[max(self.waiting)][0] if self.waiting else self.stored

    def put(self, record: Record, body: bytes) -> int:
        self.revision += 1
        self.waiting[self.revision] = (record, body)
        return self.revision

    def settle(self, record: Record, revision: int) -> None:
        """Note the stored version, and forget older ones."""
        self.stored, self.stored_revision = record, revision
        self.waiting = {at: version for at, version in self.waiting.items() if at > revision}


class AsyncResponses:
    """The responses of the models of one run: `run.responses`.

    Call `open` before you ask the models.
    """

    def __init__(self, run: Writer) -> None:
        self._run = run
        self._lock = run._engine.runtime.lock()  # of the slots; never held while waiting
        self._slots: dict[ModelKey, _Slot] = {}
        self._shared = _Shared()
        self._is_read = False

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for slot in self._slots.values():
            status = slot.stored.response.status
            counts[status] = counts.get(status, 0) + 1
        summary = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"<{type(self).__name__} of run {self._run.id!r}: {summary or 'none'}>"

    @property
    def prompt(self) -> Any:
        """What the models were asked."""
        return self._shared.prompt

    @property
    def verbose(self) -> bool:
        """Tell whether the application asked for verbose output."""
        return self._shared.verbose

    # Opening

    async def open(
        self, model_ids: Sequence[str] | None = None, *, prompt: Any = None, verbose: bool = False
    ) -> Self:
        """Store that these models will be asked, or continue with the stored responses.

        Stored responses stay, also those of models that are no longer named. Without `model_ids` it
        only reads. Raises BadArgument for a prompt other than the stored one.
        """
        if not self._run._is_started:
            raise BadArgument(f"run {self._run.id!r} has not started; start it before you open its responses")
        model_keys = [] if model_ids is None else numbered(model_ids)
        async with self._run._mutex:
            if not self._is_read:
                await self._read(is_new=False)
            await self._create(
                [model_key for model_key in model_keys if model_key not in self._slots], prompt, verbose
            )
        return self

    async def _create(self, missing: Sequence[ModelKey], prompt: Any, verbose: bool) -> None:
        shared = self._shared
        if shared.revision and prompt is not None and prompt != shared.prompt:
            raise BadArgument(
                f"the responses of run {self._run.id!r} answer another prompt; start a new run for this one"
            )
        if not missing:
            return
        shared = shared.with_models(missing, prompt, verbose)
        where = f"responses of run {self._run.id!r}"
        records = {model_key: Record(not_started(*model_key)) for model_key in missing}
        entries = [
            self._entry(model_key, self._pack(model_key, record), NOT_STARTED, 1)
            for model_key, record in records.items()
        ]
        head = self._entry(None, self._run._engine.codec.pack(shared.fields(), where), "", shared.revision)
        await self._run._write_held(head, *entries)
        self._shared = shared
        self._slots.update({model_key: _Slot(record, 1) for model_key, record in records.items()})

    async def _read(self, *, is_new: bool) -> None:
        """Read the responses of earlier attempts; those that were running count as interrupted."""
        run = self._run
        if not is_new:
            self._shared, stored = await _read_entries(run._engine, run._key, run.id)
            for model_key, (response, earlier, revision) in stored.items():
                with well_formed(f"the response of {name_of(*model_key)}", run._key.id):
                    if response.status == RUNNING:
                        response = replace(response, status=INTERRUPTED)
                self._slots[model_key] = _Slot(Record(response, earlier), revision)
        self._is_read = True

    # Reading

    async def all(self) -> list[ModelResponse]:
        """Return all responses as they are stored, in the order in which the models were named."""
        if not self._is_read:
            raise BadArgument(f"the responses of run {self._run.id!r} are not open: call open() first")
        return [self._slots[model_key].stored.response for model_key in self._shared.order()]

    async def get(self, model_id: str, ordinal: int = 0) -> ModelResponse:
        """Return the response of one model, as it is stored."""
        return self._slot(model_id, ordinal).stored.response

    async def pending(self) -> list[ModelResponse]:
        """Return the responses that are not completed, including those that never began."""
        return [response for response in await self.all() if not response.is_completed]

    async def completed(self) -> list[ModelResponse]:
        """Return the responses that are completed: no need to ask again."""
        return [response for response in await self.all() if response.is_completed]

    async def usage(self) -> Usage:
        """Return the usage of all models together, in all attempts."""
        return sum((response.usage for response in await self.all()), Usage())

    async def build(self) -> FanOut | None:
        """Return everything as one value, to continue later; None if nothing was interrupted."""
        return FanOut.build(await self.all(), prompt=self.prompt, verbose=self.verbose)

    # Updates: each of these is stored when it returns

    async def begin(self, model_id: str, ordinal: int = 0) -> ModelResponse:
        """Store that a model is being asked. Optional: the first update does so too."""
        return await self._put(model_id, ordinal, Record.begin)

    async def update(
        self, model_id: str, partial: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        """Store how far a model has got: all of this attempt, in place of the last update.

        Returns the response with the usage of earlier attempts added.
        """
        checked = as_partial(partial)
        return await self._put(model_id, ordinal, lambda record: record.update(checked))

    async def complete(
        self, model_id: str, response: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        """Store the whole answer of a model.

        A response with an error is stored as failed, an interrupted one as interrupted.
        """
        answer = as_response(model_id, ordinal, response)
        status, error = ending(answer)
        return await self._put(model_id, ordinal, lambda record: record.end(status, answer, error))

    async def fail(
        self,
        model_id: str,
        error: BaseException | str,
        ordinal: int = 0,
        *,
        partial: PartialResponse | Mapping[str, Any] | None = None,
    ) -> ModelResponse:
        """Store that a model failed. Its last update stays, unless `partial` replaces it."""
        checked, message = None if partial is None else as_partial(partial), as_error(error)
        return await self._put(model_id, ordinal, lambda record: record.end(FAILED, checked, message))

    async def interrupt(
        self,
        model_id: str,
        ordinal: int = 0,
        *,
        partial: PartialResponse | Mapping[str, Any] | None = None,
    ) -> ModelResponse:
        """Store that a model was stopped, such as by a timeout.

        Its last update stays, unless `partial` replaces it.
        """
        checked = None if partial is None else as_partial(partial)
        return await self._put(model_id, ordinal, lambda record: record.end(INTERRUPTED, checked))

    # Storing

    async def _put(self, model_id: str, ordinal: int, change: Callable[[Record], Record]) -> ModelResponse:
        slot = self._slot(model_id, ordinal)
        with self._lock:
            record = change(slot.latest)
            if record == slot.stored and not slot.waiting:
                return record.response
            revision = slot.put(record, self._pack((model_id, ordinal), record))
        try:
            async with self._run._mutex:
                if slot.stored_revision < revision:  # else another caller has written it with its own
                    await self._write((model_id, ordinal))
        finally:
            with self._lock:  # if it was not stored, no later commit may write it: this call has raised
                slot.waiting.pop(revision, None)
        return record.response

    async def _write(self, first: ModelKey) -> None:
        """Write all waiting records in one commit of limited size, this one first."""
        with self._lock:
            group = self._group(first)
        await self._run._write_held(*(entry for _, _, entry in group))
        with self._lock:
            for slot, record, entry in group:
                slot.settle(record, entry.revision)

    def _group(self, first: ModelKey) -> list[tuple[_Slot, Record, EntryRecord]]:
        group: list[tuple[_Slot, Record, EntryRecord]] = []
        size = 0
        for model_key, slot in ((first, self._slots[first]), *self._slots.items()):
            if not slot.waiting or (group and model_key == first):
                continue
            revision = max(slot.waiting)
            record, body = slot.waiting[revision]
            size += len(body)
            if group and size > MAX_BYTES:
                break
            group.append((slot, record, self._entry(model_key, body, record.response.status, revision)))
        return group

    def _slot(self, model_id: str, ordinal: int) -> _Slot:
        slot = self._slots.get(check_model(model_id, ordinal))
        if slot is None:
            known = ", ".join(sorted({repr(model) for model, _ in self._slots})) or "none yet"
            raise BadArgument(f"{name_of(model_id, ordinal)} is not open (open: {known}); name it in open()")
        return slot

    def _pack(self, model_key: ModelKey, record: Record) -> bytes:
        where = f"response of {name_of(*model_key)}"
        body = self._run._engine.codec.pack([record.response, record.earlier], where)
        if len(body) > MAX_BYTES:
            raise BadArgument(f"the {where} has {len(body):,} bytes, and at most {MAX_BYTES:,} can be stored")
        return body

    def _entry(self, model_key: ModelKey | None, body: bytes, status: str, revision: int) -> EntryRecord:
        key = (
            f"{self._run.id}\n" if model_key is None else f"{self._run.id}\n{model_key[1]:04}\n{model_key[0]}"
        )
        epoch, fence = self._run._rank
        return EntryRecord(RESPONSE, key, body, status, epoch=epoch, fence=fence, revision=revision)


async def read_responses(engine: Engine, key: ThreadKey, run_id: str) -> list[ModelResponse]:
    """Return the responses of a run as they are stored, in the order in which the models were named."""
    shared, stored = await _read_entries(engine, key, run_id)
    return [stored[model_key][0] for model_key in shared.order()]


async def _read_entries(
    engine: Engine, key: ThreadKey, run_id: str
) -> tuple[_Shared, dict[ModelKey, tuple[Any, Any, int]]]:
    """Return what the responses of a run share, and (response, earlier attempts, revision) of each model."""
    shared, stored = _Shared(), dict[ModelKey, tuple[Any, Any, int]]()
    query = EntryQuery(key.tenant, RESPONSE, thread=key, prefix=f"{run_id}\n", limit=_PAGE)
    for _, entry in await all_entries(engine.backend, query):
        ordinal, _, model_id = entry.key[len(run_id) + 1 :].partition("\n")
        if not ordinal and not model_id:
            with well_formed(f"what the responses of run {run_id!r} share", key.id):
                shared = _Shared.unpack(engine.codec.unpack(entry.body or b""))
                set(shared.order())
        # An id may contain a line break: then the prefix also matches responses of other runs.
        elif ordinal.isdecimal() and model_id and "\n" not in model_id:
            with well_formed(f"the response of {model_id!r}", key.id):
                response, earlier, *_ = engine.codec.unpack(entry.body or b"")
            stored[model_id, int(ordinal)] = (response, earlier, entry.revision)
    named = set(shared.order())
    if other := sorted(named ^ set(stored), key=repr):
        what = "is missing" if other[0] in named else "is not in the list of models"
        raise Corrupt(f"the response of {name_of(*other[0])} of run {run_id!r} {what}", thread=key.id)
    return shared, stored


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the responses of a run have in common."""

    prompt: Any = None
    verbose: bool = False
    model_keys: Sequence[Sequence[Any]] = ()
    revision: int = 0

    @classmethod
    def unpack(cls, stored: Mapping[str, Any]) -> _Shared:
        """Return what is stored, without the fields of later versions."""
        return cls(**{name: stored[name] for name in cls.__slots__ if name in stored})

    def with_models(self, missing: Sequence[ModelKey], prompt: Any, verbose: bool) -> _Shared:
        model_keys = [*self.model_keys, *([model_id, ordinal] for model_id, ordinal in missing)]
        if self.revision:
            return replace(self, model_keys=model_keys, revision=self.revision + 1)
        return _Shared(prompt, bool(verbose), model_keys, 1)

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def order(self) -> list[ModelKey]:
        return [(model_id, ordinal) for model_id, ordinal in self.model_keys]
