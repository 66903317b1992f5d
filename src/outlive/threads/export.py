"""A thread as one JSON text that a person can read, and a thread made of such a text.

Checkpoints stand in the order in which they were saved. The state of the first of a namespace is told as a whole, those of the others as
changes of the one before, where that is shorter. Values that JSON does not have are told by `readable.py`, so that what is
imported is equal to what was exported, byte for byte. Runs are not part of it: they belong to the store that drives them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlive.arguments import check_id, check_namespace, check_source, check_step, check_text, optional_id
from outlive.backend import (
    CheckpointRecord,
    Commit,
    Receipt,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    WriteRecord,
    retry_stale,
)
from outlive.errors import BadArgument, CallerError, Corrupt, MetadataMoved, NewerFormat, StaleBase
from outlive.format import manifest
from outlive.format import planner as planning
from outlive.format.readable import Json, changed, changes, packed, readable, readable_text, text_of
from outlive.format.splitter import Pieces, split
from outlive.threads.engine import Draft, Engine, Located
from outlive.threads.metadata import check_vacant, drop_stray_writes, open_info, pack_info
from outlive.values import micros, moment

FORMAT = 1
_LARGEST = (1 << 53) - 1  # of a counter: what every engine can hold
_BATCH_BYTES = 8 << 20
_SAID = {
    "metadata": "metadata", "next": "next_nodes", "done": "completed_tasks", "interrupts": "interrupts", "leans": "leans",
    "written": "written",
}  # fmt: skip


# Out -----------------------------------------------------------------------------------------------------


async def export_thread(engine: Engine, key: ThreadKey) -> str:
    """Return a thread as it was at one moment."""

    async def attempt() -> str | None:
        generation = (await engine.backend.inventory(key)).generation
        try:
            document = await _Exporting(engine, key).document()
        except Corrupt:
            if not await engine.has_moved(key, generation):
                raise
            return None  # deleted by another process while it was read
        return json.dumps(document, indent=1, ensure_ascii=False)

    return await retry_stale(key.id, attempt)


class _Exporting:
    def __init__(self, engine: Engine, key: ThreadKey) -> None:
        self._engine = engine
        self._key = key
        self._before: dict[str, tuple[str, Json]] = {}  # namespace → the last id and its state

    async def document(self) -> Json:
        backend, key = self._engine.backend, self._key
        records = list(reversed(await self._engine.records(key)))
        writes = await backend.writes(key, None)
        rows = await backend.threads(ThreadQuery(key.tenant, only=key.id))
        ids = {(record.namespace, record.id) for record in records}
        document = {"outlive": FORMAT, "thread": readable_text(key.id), **self._info(rows)}
        document["checkpoints"] = [await self._checkpoint(record, writes) for record in records]
        early = [write for write in writes if (write.namespace, write.checkpoint) not in ids]
        if early:  # of checkpoints that were never saved
            document["writes"] = [
                {
                    "namespace": readable_text(write.namespace),
                    "checkpoint": readable_text(write.checkpoint),
                    **await self._write(write),
                }
                for write in early
            ]
        return document

    def _info(self, rows: Sequence[ThreadRow]) -> dict[str, Json]:
        metadata, origin = open_info(self._engine, rows[0] if rows else None)
        found: dict[str, Json] = {}
        if metadata:
            found["metadata"] = readable(self._engine.codec.pack(metadata))
        if origin:
            found["forked_from"] = [readable_text(part) for part in origin]
        return found

    async def _checkpoint(self, record: CheckpointRecord, writes: Sequence[WriteRecord]) -> Json:
        pair = (record.namespace, record.id)
        told: dict[str, Json] = {
            "id": readable_text(record.id),
            "namespace": readable_text(record.namespace),
            "parent": None if record.parent is None else readable_text(record.parent),
            "seq": record.seq,
            "epoch": record.epoch,
            "created_at": moment(record.created_at).isoformat(timespec="microseconds"),
            "source": record.source,
            "step": record.step,
            "run": None if record.run is None else readable_text(record.run),
        }
        told = {
            name: value
            for name, value in told.items()
            if value not in (None, "") and (name, value) != ("epoch", 0)
        }
        with Located(self._key, record.id):
            told |= {_SAID[name]: readable(data) for name, data in manifest.said_of(record.body).items()}
        told |= self._state(record, await self._stream(record))
        own = [await self._write(write) for write in writes if (write.namespace, write.checkpoint) == pair]
        return told | ({"writes": own} if own else {})

    def _state(self, record: CheckpointRecord, stream: bytes) -> dict[str, Json]:
        """Tell a state, as a whole or by what changed."""
        state = readable(stream)
        before = self._before.get(record.namespace)
        self._before[record.namespace] = (record.id, state)
        if before is None:
            return {"state": state}
        said = changes(before[1], state)
        is_short = len(json.dumps(said)) * 2 < len(stream)
        if is_short and packed(changed(before[1], said)) == stream:
            return {"changes_of": readable_text(before[0]), "changes": said}
        return {"state": state}

    async def _write(self, write: WriteRecord) -> Json:
        data = await self._engine.backend.fetch(self._key, write.chunks) if write.chunks else {}
        with Located(self._key, write.checkpoint):
            stream = self._engine.assemble(write.chunks, write.body, None, data)
        told: dict[str, Json] = {
            "task": readable_text(write.task),
            "index": write.index,
            "channel": readable_text(write.channel),
            "value": readable(stream),
        }
        if write.path:
            told["path"] = readable_text(write.path)
        return told | ({"rank": list(write.rank)} if write.index < 0 else {})

    async def _stream(self, record: CheckpointRecord) -> bytes:
        reading = await self._engine.backend.read(self._key, record.namespace, record.id)
        if reading.record is None:
            raise Corrupt("it is gone", thread=self._key.id, checkpoint=record.id)
        return self._engine.stream(self._key, reading)


# In -------------------------------------------------------------------------------------------------------


def parse(text: str | bytes) -> dict[str, Any]:
    """Return what an export says; raise BadArgument when it is none, NewerFormat when it is of a newer outlive."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError, TypeError) as error:
        raise BadArgument(f"this is no exported thread: {error}") from None
    version = document.get("outlive") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        raise BadArgument('this is no exported thread: it has no "outlive" with the number of a format')
    if version > FORMAT:
        raise NewerFormat("an exported thread", version, FORMAT)
    return dict(document)


def id_of(document: Mapping[str, Any]) -> str:
    """Return the id of the thread that was exported."""
    return check_id("thread", text_of(document.get("thread")))


async def import_thread(engine: Engine, key: ThreadKey, document: Mapping[str, Any]) -> None:
    """Make a thread of an export: its chunks first, then all records in one commit that expects an empty thread."""
    importing = _Importing(engine, key)
    records = [await importing.checkpoint(_object(told)) for told in _list(document, "checkpoints")]
    for told in _list(document, "writes"):
        told = _object(told)
        await importing.write(text_of(told.get("namespace", "")), text_of(told.get("checkpoint")), told)
    metadata = importing.unpacked(document.get("metadata", {}))
    origin = _list(document, "forked_from")
    if type(metadata) is not dict or len(origin) not in (0, 2):
        raise BadArgument("the metadata of this thread is no mapping, or forked_from no pair of ids")
    pair = (text_of(origin[0]), text_of(origin[1])) if origin else None
    info, projection = pack_info(engine, metadata, pair)
    commit = Commit(
        key,
        checkpoints=tuple(records),
        writes=tuple(importing.writes),
        info=info if metadata or pair else None,
        info_projection=projection,
        expect_empty=True,
    )
    await check_vacant(engine, key)  # before anything is stored
    await importing.flush()

    async def attempt() -> Receipt:
        version = await check_vacant(engine, key)
        await drop_stray_writes(engine, key, _pairs(records, importing.writes))
        return await engine.commit(replace(commit, info_version=version, token=os.urandom(8)))

    # Another process may write to the thread between the check and the commit.
    await retry_stale(key.id, attempt, errors=(StaleBase, MetadataMoved))


def _pairs(records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]) -> set[tuple[str, str]]:
    return {(record.namespace, record.id) for record in records} | {write.key[:2] for write in writes}


def _list(told: Mapping[str, Any], name: str) -> list[Any]:
    found = told.get(name, [])
    if not isinstance(found, list):
        raise BadArgument(f"{name} must be a list")
    return found


def _object(told: Any) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise BadArgument(f"a checkpoint or a write must be an object, not {told!r:.60}")
    return told


class _Importing:
    def __init__(self, engine: Engine, key: ThreadKey) -> None:
        self._engine = engine
        self._key = key
        self._ids: set[tuple[str, str]] = set()
        self._states: dict[tuple[str, str], Json] = {}
        self._bases: dict[str, Pieces] = {}
        self._chunks: dict[bytes, bytes] = {}
        self._seq = 0
        self.writes: list[WriteRecord] = []

    def unpacked(self, form: Json) -> Any:
        """Return a value that can be loaded; unknown types stay what they are."""
        codec, data = self._engine.codec, packed(form)
        try:
            with contextlib.suppress(
                CallerError
            ):  # what this process has no types for may be whole all the same
                codec.unpack(data)
            return codec.unpack(data, opaque=True)
        except Corrupt as error:
            raise BadArgument(f"this is no value that was exported ({error.what})") from None

    async def checkpoint(self, told: dict[str, Any]) -> CheckpointRecord:
        namespace = check_namespace(text_of(told.get("namespace", "")))
        id = check_id("id", text_of(told.get("id")))
        if (namespace, id) in self._ids:
            raise BadArgument(f"checkpoint {id!r:.60} stands here twice")
        self._ids.add((namespace, id))
        draft = Draft(
            namespace,
            id,
            parent=optional_id("parent", _maybe_text(told.get("parent"))),
            follows=False,
            step=check_step(told.get("step")),
            source=check_source(told.get("source", "loop")),
            run=optional_id("run", _maybe_text(told.get("run"))),
        )
        plan = await self._plan(namespace, self._state(namespace, id, told))
        body = manifest.encode_said(
            plan.layout, {name: packed(told[long]) for name, long in _SAID.items() if long in told}
        )
        said = self._check_body(body)
        for write in _list(told, "writes"):
            await self.write(namespace, id, _object(write))
        return replace(
            self._engine.record(draft, plan),
            body=body,
            projection=manifest.projection(said.metadata),
            created_at=_moment(told.get("created_at")),
            seq=self._place(told),
            epoch=_number(told.get("epoch", 0), 0),
        )

    def _check_body(self, body: bytes) -> manifest.Manifest:
        try:
            return manifest.decode(self._engine.codec, body, opaque=True)
        except Corrupt as error:
            raise BadArgument(f"what is said of a checkpoint cannot be read ({error.what})") from None

    def _place(self, told: dict[str, Any]) -> int:
        seq = _number(told.get("seq", self._seq + 1), 1)
        self._seq = max(self._seq, seq)
        return seq

    def _state(self, namespace: str, id: str, told: dict[str, Any]) -> Json:
        if "changes_of" in told:
            base = (namespace, text_of(told["changes_of"]))
            if base not in self._states:
                raise BadArgument(
                    f"checkpoint {id!r} is told as changes of {base[1]!r}, which does not stand before it"
                )
            state = changed(self._states.pop(base), told.get("changes"))
        elif "state" in told:
            state = told["state"]
        else:
            raise BadArgument(f"checkpoint {id!r} has neither a state nor changes")
        self._states[namespace, id] = state
        return state

    async def _plan(self, namespace: str, form: Json) -> planning.Plan:
        engine, old = self._engine, self._bases.get(namespace)
        pieces = split(engine.codec, self.unpacked(form), old)
        plan = planning.plan(engine.codec, engine.namer, pieces, old)
        plan.settle()  # nobody reads it before all is stored, and nothing is when this fails
        self._bases[namespace] = pieces
        await self._bring(plan.chunks)
        return plan

    async def write(self, namespace: str, checkpoint: str, told: dict[str, Any]) -> None:
        index = _number(told.get("index"), -_LARGEST)
        rank = [_number(part, 0) for part in _list(told, "rank") or (0, 0, 0)]
        if len(rank) != 3:
            raise BadArgument("the rank of a control write has three numbers")
        record, chunks = self._engine.write_record(
            check_namespace(namespace),
            check_id("checkpoint", checkpoint),
            check_id("task", text_of(told.get("task"))),
            index,
            check_text("channel", text_of(told.get("channel"))),
            self.unpacked(told.get("value")),
            check_text("path", text_of(told.get("path", ""))),
        )
        self.writes.append(replace(record, rank=(rank[0], rank[1], rank[2])))
        await self._bring(chunks)

    async def _bring(self, chunks: Mapping[bytes, bytes]) -> None:
        self._chunks |= chunks
        if sum(map(len, self._chunks.values())) >= _BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Store the chunks so far. Nobody reads them yet; if this goes no further, the next deletion takes them along."""
        if self._chunks:
            await self._engine.commit(Commit(self._key, chunks=tuple(self._chunks.items())))
            self._chunks = {}


def _maybe_text(form: Json) -> str | None:
    return None if form is None else text_of(form)


def _number(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value <= _LARGEST:
        raise BadArgument(
            f"seq, epoch, index and rank are numbers from {least} to {_LARGEST}, not {value!r:.60}"
        )
    return value


def _moment(text: Any) -> int:
    if text is None:
        return 0
    try:
        return micros(dt.datetime.fromisoformat(text))
    except (TypeError, ValueError):
        raise BadArgument(f"created_at must be a moment with a time zone, not {text!r:.60}") from None
