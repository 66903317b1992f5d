"""A thread as one JSON text that a person can read, and a thread from such a text.

Checkpoints are in the order in which they were saved. The first state of a namespace is written as
a whole, the others as changes of the one before, where that is shorter. `readable.py` writes values
that JSON does not have, so an imported thread equals the exported one, byte for byte. Runs are not
part of it: they belong to the store that runs them.
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
    ThreadRecord,
    WriteRecord,
    retry_stale,
)
from outlive.errors import BadArgument, CallerError, Corrupt, MetadataMoved, NewerFormat, StaleBase
from outlive.format import manifest
from outlive.format.planner import Plan, plan_chunks
from outlive.format.readable import Json, changed, changes, packed, readable, readable_text, text_of
from outlive.format.splitter import SplitState, split
from outlive.threads.engine import Engine, Located
from outlive.threads.metadata import check_vacant, drop_stray_writes, pack_metadata, unpack_metadata
from outlive.threads.save import Draft
from outlive.values import micros, moment

FORMAT = 1
_LARGEST = (1 << 53) - 1  # of a counter: what every engine can hold
_BATCH_BYTES = 8 << 20
_FIELDS = {
    "metadata": "metadata", "next": "next_nodes", "done": "completed_tasks", "interrupts": "interrupts", "needs_parent": "needs_parent",
    "written": "written",
}  # fmt: skip


# Export -------------------------------------------------------------------------------------------


async def export_thread(engine: Engine, key: ThreadKey) -> str:
    """Return a thread as it was at one moment."""

    async def attempt() -> str | None:
        generation = (await engine.backend.inventory(key)).generation
        try:
            document = await _Export(engine, key).document()
        except Corrupt:
            if not await engine.has_moved(key, generation):
                raise
            return None  # deleted by another process while it was read
        return json.dumps(document, indent=1, ensure_ascii=False)

    return await retry_stale(key.id, attempt)


class _Export:
    def __init__(self, engine: Engine, key: ThreadKey) -> None:
        self._engine = engine
        self._key = key
        self._before: dict[str, tuple[str, Json]] = {}  # namespace → the last id and its state

    async def document(self) -> Json:
        backend, key = self._engine.backend, self._key
        records = list(reversed(await self._engine.records(key)))
        writes = await backend.writes(key, None)
        rows = await backend.threads(ThreadQuery(key.tenant, only=key.id))
        ids = {record.key for record in records}
        document = {"outlive": FORMAT, "thread": readable_text(key.id), **self._info(rows)}
        document["checkpoints"] = [await self._checkpoint(record, writes) for record in records]
        early = [write for write in writes if write.checkpoint_key not in ids]
        if early:  # writes of checkpoints that were never saved
            document["writes"] = [
                {
                    "namespace": readable_text(write.namespace),
                    "checkpoint": readable_text(write.checkpoint),
                    **await self._write(write),
                }
                for write in early
            ]
        return document

    def _info(self, rows: Sequence[ThreadRecord]) -> dict[str, Json]:
        metadata, origin = unpack_metadata(self._engine, rows[0] if rows else None)
        fields: dict[str, Json] = {}
        if metadata:
            fields["metadata"] = readable(self._engine.codec.pack(metadata))
        if origin:
            fields["forked_from"] = [readable_text(part) for part in origin]
        return fields

    async def _checkpoint(self, record: CheckpointRecord, writes: Sequence[WriteRecord]) -> Json:
        pair = record.key
        fields: dict[str, Json] = {
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
        fields = {
            name: value
            for name, value in fields.items()
            if value not in (None, "") and (name, value) != ("epoch", 0)
        }
        with Located(self._key, record.id):
            fields |= {
                _FIELDS.get(name, name): readable(data)
                for name, data in manifest.fields_of(record.body).items()
            }
        fields |= self._state(record, await self._stream(record))
        own = [await self._write(write) for write in writes if write.checkpoint_key == pair]
        return fields | ({"writes": own} if own else {})

    def _state(self, record: CheckpointRecord, stream: bytes) -> dict[str, Json]:
        """Return a state, as a whole or as changes."""
        state = readable(stream)
        before = self._before.get(record.namespace)
        self._before[record.namespace] = (record.id, state)
        if before is None:
            return {"state": state}
        edits = changes(before[1], state)
        is_short = len(json.dumps(edits)) * 2 < len(stream)
        if is_short and packed(changed(before[1], edits)) == stream:
            return {"changes_of": readable_text(before[0]), "changes": edits}
        return {"state": state}

    async def _write(self, write: WriteRecord) -> Json:
        data = await self._engine.backend.fetch(self._key, write.chunks) if write.chunks else {}
        with Located(self._key, write.checkpoint):
            stream = self._engine.assemble(write.chunks, write.body, None, data)
        fields: dict[str, Json] = {
            "task": readable_text(write.task),
            "index": write.index,
            "channel": readable_text(write.channel),
            "value": readable(stream),
        }
        if write.path:
            fields["path"] = readable_text(write.path)
        return fields | ({"rank": list(write.rank)} if write.index < 0 else {})

    async def _stream(self, record: CheckpointRecord) -> bytes:
        reading = await self._engine.backend.read(self._key, record.namespace, record.id)
        if reading.record is None:
            raise Corrupt("it is gone", thread=self._key.id, checkpoint=record.id)
        return self._engine.stream(self._key, reading)


# Import -------------------------------------------------------------------------------------------


def parse(text: str | bytes) -> dict[str, Any]:
    """Return the document of an export.

    Raises BadArgument if it is none, NewerFormat if a newer outlive wrote it.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError, TypeError) as error:
        raise BadArgument(f"this is not an exported thread: {error}") from None
    version = document.get("outlive") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        raise BadArgument(
            'this is not an exported thread: it has no "outlive" field with the number of a format'
        )
    if version > FORMAT:
        raise NewerFormat("an exported thread", version, FORMAT)
    return dict(document)


def id_of(document: Mapping[str, Any]) -> str:
    """Return the id of the thread that was exported."""
    return check_id("thread", text_of(document.get("thread")))


async def import_thread(engine: Engine, key: ThreadKey, document: Mapping[str, Any]) -> None:
    """Create a thread from an export: chunks first, then all records in one commit.

    The commit expects an empty thread.
    """
    importing = _Import(engine, key)
    records = [await importing.checkpoint(_object(fields)) for fields in _list(document, "checkpoints")]
    for fields in _list(document, "writes"):
        fields = _object(fields)
        await importing.write(text_of(fields.get("namespace", "")), text_of(fields.get("checkpoint")), fields)
    metadata = importing.unpacked(document.get("metadata", {}))
    origin = _list(document, "forked_from")
    if type(metadata) is not dict or len(origin) not in (0, 2):
        raise BadArgument("metadata must be an object, and forked_from a pair of ids")
    pair = (text_of(origin[0]), text_of(origin[1])) if origin else None
    body, projection = pack_metadata(engine, metadata, pair)
    commit = Commit(
        key,
        checkpoints=tuple(records),
        writes=tuple(importing.writes),
        metadata=body if metadata or pair else None,
        metadata_projection=projection,
        expect_empty=True,
    )
    await check_vacant(engine, key)  # before anything is stored
    await importing.flush()

    async def attempt() -> Receipt:
        version = await check_vacant(engine, key)
        await drop_stray_writes(engine, key, _pairs(records, importing.writes))
        return await engine.commit(replace(commit, metadata_version=version, token=os.urandom(8)))

    # Another process may write to the thread between the check and the commit.
    await retry_stale(key.id, attempt, errors=(StaleBase, MetadataMoved))


def _pairs(records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]) -> set[tuple[str, str]]:
    return {record.key for record in records} | {write.checkpoint_key for write in writes}


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    items = fields.get(name, [])
    if not isinstance(items, list):
        raise BadArgument(f"{name} must be a list")
    return items


def _object(fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise BadArgument(f"a checkpoint or a write must be an object, not {fields!r:.60}")
    return fields


class _Import:
    def __init__(self, engine: Engine, key: ThreadKey) -> None:
        self._engine = engine
        self._key = key
        self._ids: set[tuple[str, str]] = set()
        self._states: dict[tuple[str, str], Json] = {}
        self._bases: dict[str, SplitState] = {}
        self._chunks: dict[bytes, bytes] = {}
        self._seq = 0
        self.writes: list[WriteRecord] = []

    def unpacked(self, form: Json) -> Any:
        """Return a value that can be loaded; unknown types stay what they are."""
        codec, data = self._engine.codec, packed(form)
        try:
            # A value whose type this process does not know may still be intact.
            with contextlib.suppress(CallerError):
                codec.unpack(data)
            return codec.unpack(data, opaque=True)
        except Corrupt as error:
            raise BadArgument(f"a value of this document cannot be read ({error.what})") from None

    async def checkpoint(self, fields: dict[str, Any]) -> CheckpointRecord:
        namespace = check_namespace(text_of(fields.get("namespace", "")))
        id = check_id("id", text_of(fields.get("id")))
        if (namespace, id) in self._ids:
            raise BadArgument(f"checkpoint {id!r:.60} is in this document twice")
        self._ids.add((namespace, id))
        draft = Draft(
            namespace,
            id,
            parent=optional_id("parent", _maybe_text(fields.get("parent"))),
            follows=False,
            step=check_step(fields.get("step")),
            source=check_source(fields.get("source", "loop")),
            run=optional_id("run", _maybe_text(fields.get("run"))),
        )
        plan = await self._plan(namespace, self._state(namespace, id, fields))
        body = manifest.encode_fields(
            plan.layout, {name: packed(fields[long]) for name, long in _FIELDS.items() if long in fields}
        )
        contents = self._check_body(body)
        for write in _list(fields, "writes"):
            await self.write(namespace, id, _object(write))
        return replace(
            draft.record(self._engine, plan),
            body=body,
            projection=manifest.projection(contents.metadata),
            created_at=_moment(fields.get("created_at")),
            seq=self._place(fields),
            epoch=_number(fields.get("epoch", 0), 0),
        )

    def _check_body(self, body: bytes) -> manifest.Manifest:
        try:
            return manifest.decode(self._engine.codec, body, opaque=True)
        except Corrupt as error:
            raise BadArgument(f"a checkpoint of this document cannot be read ({error.what})") from None

    def _place(self, fields: dict[str, Any]) -> int:
        seq = _number(fields.get("seq", self._seq + 1), 1)
        self._seq = max(self._seq, seq)
        return seq

    def _state(self, namespace: str, id: str, fields: dict[str, Any]) -> Json:
        if "changes_of" in fields:
            base = (namespace, text_of(fields["changes_of"]))
            if base not in self._states:
                raise BadArgument(
                    f"checkpoint {id!r} has changes of {base[1]!r}, which does not come before it"
                )
            state = changed(self._states.pop(base), fields.get("changes"))
        elif "state" in fields:
            state = fields["state"]
        else:
            raise BadArgument(f"checkpoint {id!r} has neither a state nor changes")
        self._states[namespace, id] = state
        return state

    async def _plan(self, namespace: str, form: Json) -> Plan:
        engine, old = self._engine, self._bases.get(namespace)
        pieces = split(engine.codec, self.unpacked(form), old)
        plan = plan_chunks(engine.codec, engine.namer, pieces, old)
        plan.record_spans()  # before the commit: if that fails, nothing is stored or read
        self._bases[namespace] = pieces
        await self._bring(plan.chunks)
        return plan

    async def write(self, namespace: str, checkpoint: str, fields: dict[str, Any]) -> None:
        index = _number(fields.get("index"), -_LARGEST)
        rank = [_number(part, 0) for part in _list(fields, "rank") or (0, 0, 0)]
        if len(rank) != 3:
            raise BadArgument("the rank of a control write has three numbers")
        record, chunks = self._engine.write_record(
            check_namespace(namespace),
            check_id("checkpoint", checkpoint),
            check_id("task", text_of(fields.get("task"))),
            index,
            check_text("channel", text_of(fields.get("channel"))),
            self.unpacked(fields.get("value")),
            check_text("path", text_of(fields.get("path", ""))),
        )
        self.writes.append(replace(record, rank=(rank[0], rank[1], rank[2])))
        await self._bring(chunks)

    async def _bring(self, chunks: Mapping[bytes, bytes]) -> None:
        self._chunks |= chunks
        if sum(map(len, self._chunks.values())) >= _BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Store the chunks so far.

        A crash leaves them without a record; the next deletion removes them.
        """
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
