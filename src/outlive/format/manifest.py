"""The body of a checkpoint: its complete list of spans, and what the user said about it.

Pure, no I/O.

No checkpoint depends on another: each lists all of its spans, so any one can be deleted, forked or
copied alone. Spans name chunks by their position in the record's clear list of names, so chunks can
be renamed (by a copy into another store) without decoding a body, which may be encrypted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import ormsgpack

from outlive.backend import CheckpointRecord
from outlive.backend.undecrypted import refuse_undecrypted
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, NewerFormat
from outlive.format.codec import Codec
from outlive.format.layout import Layout, flatten, unflatten
from outlive.values import CheckpointInfo, Interrupt, moment

FORMAT = 1


@dataclass(slots=True)  # not frozen: that would triple the time to make one
class Manifest:
    """What a checkpoint's body says."""

    layout: Layout
    metadata: Mapping[str, Any] = field(default_factory=dict)
    next_nodes: tuple[str, ...] = ()
    completed_tasks: tuple[str, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    needs_parent: bool = False  # a framework needs the parent to make use of it
    written: bytes = b""  # digest of the pending writes that were saved with it


class Contents(Protocol):
    """What a caller says about a checkpoint: a manifest, or the draft of a save."""

    metadata: Mapping[str, Any]
    next_nodes: tuple[str, ...]
    completed_tasks: tuple[str, ...]
    interrupts: tuple[Interrupt, ...]
    needs_parent: bool


def describe(thread: str, record: CheckpointRecord, contents: Contents) -> CheckpointInfo:
    """Return a checkpoint as the user sees it."""
    return CheckpointInfo(
        thread=thread,
        id=record.id,
        namespace=record.namespace,
        parent=record.parent,
        seq=record.seq or None,
        epoch=record.epoch,
        step=record.step,
        source=record.source,
        run=record.run,
        created_at=moment(record.created_at) if record.created_at else None,
        state_bytes=record.size,
        new_bytes=record.added,
        metadata=contents.metadata,
        next_nodes=contents.next_nodes,
        completed_tasks=contents.completed_tasks,
        interrupts=contents.interrupts,
    )


def encode(codec: Codec, layout: Layout, contents: Contents, written: bytes = b"") -> bytes:
    """Return the body of a checkpoint."""
    fields: dict[str, Any] = {}
    if contents.metadata:
        fields["metadata"] = codec.pack(dict(contents.metadata), "metadata")
    if contents.next_nodes:
        fields["next"] = codec.pack(list(contents.next_nodes), "next_nodes")
    if contents.completed_tasks:
        fields["done"] = codec.pack(list(contents.completed_tasks), "completed_tasks")
    if contents.interrupts:
        rows = [[interrupt.id, interrupt.node, interrupt.payload] for interrupt in contents.interrupts]
        fields["interrupts"] = codec.pack(rows, "interrupts")
    if contents.needs_parent:
        fields["needs_parent"] = codec.pack(True)
    if written:
        fields["written"] = codec.pack(written)
    if not fields:
        return ormsgpack.packb([FORMAT, flatten(layout)])
    return encode_fields(layout, fields)


def decode(codec: Codec, body: bytes, *, opaque: bool = False) -> Manifest:
    """Return what a body says; raise Corrupt or NewerFormat."""
    layout, fields = _open(body)

    def part(name: str, kind: type, empty: Any) -> Any:
        value = codec.unpack(fields[name], opaque=opaque) if name in fields else empty
        if type(value) is not kind:
            raise Corrupt(f"the {name} of the manifest is no {kind.__name__}")
        return value

    try:
        return Manifest(
            layout,
            part("metadata", dict, {}),
            tuple(part("next", list, [])),
            tuple(part("done", list, [])),
            tuple(Interrupt(*row[:3]) for row in part("interrupts", list, [])),
            "needs_parent" in fields,
            part("written", bytes, b""),
        )
    except TypeError as error:
        raise Corrupt(f"the manifest cannot be read ({error})") from error


def needs_parent(body: bytes) -> bool:
    """Tell whether a checkpoint is of no use without its parent."""
    return "needs_parent" in _open(body)[1]


def layout_of(body: bytes) -> Layout:
    """Return only the layout of a body."""
    return _open(body)[0]


def fields_of(body: bytes) -> dict[str, bytes]:
    """Return the fields of a body, each packed."""
    return _open(body)[1]


def encode_fields(layout: Layout, fields: Mapping[str, bytes]) -> bytes:
    """Return a body of a layout and of fields that are packed already."""
    flat = flatten(layout)
    return ormsgpack.packb([FORMAT, flat, dict(fields)] if fields else [FORMAT, flat])


def with_layout(body: bytes, layout: Layout) -> bytes:
    """Return a body with the same fields and another layout."""
    return encode_fields(layout, fields_of(body))


def _open(body: bytes) -> tuple[Layout, dict[str, bytes]]:
    refuse_undecrypted(body)
    try:
        version, flat, *rest = ormsgpack.unpackb(body)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the body is no manifest ({error})") from error
    if type(version) is not int or version < 1:
        raise Corrupt("the body is no manifest")
    if version > FORMAT:
        raise NewerFormat("a checkpoint", version, FORMAT)
    fields = rest[0] if rest else {}
    if (
        type(flat) is not list
        or type(fields) is not dict
        or not all(type(part) is bytes for part in fields.values())
    ):
        raise Corrupt("the body is no manifest")
    return unflatten(flat), fields


def projection(value: Mapping[str, Any]) -> str | None:
    """Write metadata as JSON for people; what JSON cannot say is written as text."""
    if not value:
        return None
    text = json.dumps(_jsonable(value), ensure_ascii=True)
    return text.replace("\\u0000", "\\ufffd")  # PostgreSQL's JSONB takes no NUL


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else f"{value:#x}"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if isinstance(value, Mapping):
        return {str(_jsonable(key)): _jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [_jsonable(item) for item in value]
    return str(value)
