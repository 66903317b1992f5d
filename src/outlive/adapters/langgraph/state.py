"""A LangGraph checkpoint as a state in outlive, and back.

The state is a dict: `langgraph` (the version of this layout), the fields of the checkpoint except
its id, and `channel_values`. When values are sealed (see `values/codec.py`), all other fields are
one sealed value, `rest`. `deltas` is what was kept of a chain of DeltaChannel writes when
checkpoints of that chain were deleted (`delta_channels.py`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

from outlive.adapters.langgraph.values.codec import SHAPE, ValueCodec, is_snapshot
from outlive.adapters.langgraph.values.messages import opened
from outlive.backend import CheckpointRecord
from outlive.errors import BadArgument
from outlive.format.outline import Outline
from outlive.threads.save import Draft
from outlive.values import SOURCES

# Keys that we add to the metadata. _WHOLE contains them all, when they are sealed or have such a
# key.
_WHOLE = "__whole__"
_NO_SOURCE = "__no_source__"
_OURS = ("langgraph", "channel_values", "deltas", "rest")


@dataclass(slots=True)
class Delta:
    """What a DeltaChannel had before a checkpoint: a stored value, if any, and the writes since, oldest first."""

    writes: list[tuple[str, Any]]  # (task, value)
    seed: tuple[Any, ...] = ()  # none or one

    def pack(self) -> list[Any]:
        return [
            [[task, opened(value)] for task, value in self.writes],
            [opened(value) for value in self.seed],
        ]

    @classmethod
    def unpack(cls, stored: list[Any]) -> Delta:
        return cls([(task, value) for task, value in stored[0]], tuple(stored[1]))


@dataclass(slots=True)
class Snapshot:
    """A stored checkpoint, decoded."""

    fields: dict[str, Any]
    values: dict[str, Any]
    deltas: dict[str, Delta] = field(default_factory=dict)

    def checkpoint(self, id: str) -> Checkpoint:
        return cast(Checkpoint, {**self.fields, "id": id, "channel_values": self.values})


def pack_state(
    codec: ValueCodec,
    checkpoint: Checkpoint,
    parent: str | None,
    new_versions: Container[str],
    deltas: Mapping[str, Any],
) -> Outline:
    """Return the state to store; `deltas` is that entry, or empty.

    A channel that is not in `new_versions` keeps the bytes that it has in the parent.
    """
    fields = {
        name: value for name, value in checkpoint.items() if name not in ("id", "channel_values", *_OURS)
    }
    if not codec.is_open:
        fields = {"rest": codec.seal(fields, None, "checkpoint")}
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]

    def seal(channel: str, value: Any) -> Any:
        return codec.seal(value, versions.get(channel), f"channel_values.{channel}")

    return Outline(
        checkpoint["id"],
        parent,
        {"langgraph": SHAPE, **fields, **deltas},
        "channel_values",
        values,
        versions,
        new_versions,
        _opened if codec.is_open else seal,
        codec.is_open,
    )


def _opened(channel: str, value: Any) -> Any:
    return opened(value)


def pack_deltas(codec: ValueCodec, deltas: Mapping[str, Delta]) -> Any:
    """Return deltas as a state contains them."""
    if codec.is_open:
        return {channel: delta.pack() for channel, delta in deltas.items()}
    whole = {
        channel: [[list(write) for write in delta.writes], list(delta.seed)]
        for channel, delta in deltas.items()
    }
    return codec.seal(whole, None, "deltas")


def unpack_state(thread: str, id: str, state: Any) -> Snapshot:
    """Decode a stored state; raise BadArgument when LangGraph did not write it."""
    if not is_snapshot(state):
        raise BadArgument(
            f"checkpoint {id!r} of thread {thread!r} was not written by LangGraph: "
            "use another thread_id, or read it with store.thread(...)"
        )
    fields = state["rest"] if "rest" in state else {k: v for k, v in state.items() if k not in _OURS}
    deltas = {channel: Delta.unpack(stored) for channel, stored in state.get("deltas", {}).items()}
    return Snapshot(fields, state["channel_values"], deltas)


# Metadata -----------------------------------------------------------------------------------------


def describe(codec: ValueCodec, draft: Draft, metadata: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Put metadata into a draft; keys that a record has a field for go there, and are not stored twice."""
    rest = dict(metadata)
    counted = metadata.get("counters_since_delta_snapshot")
    draft.needs_parent = isinstance(counted, Mapping) and any(channel not in values for channel in counted)
    if isinstance(source := metadata.get("source"), str) and source in SOURCES:
        draft.source = rest.pop("source")
    step, run = metadata.get("step"), metadata.get("run_id")
    if type(step) is int and abs(step) < 1 << 62:
        draft.step = rest.pop("step")
    if type(run) is str and 0 < len(run) <= 1000:
        draft.run = rest.pop("run_id")
    if not codec.is_open:
        draft.metadata = {_WHOLE: codec.seal(rest, None, "metadata")}
    else:
        draft.metadata = {_WHOLE: rest} if rest.keys() & {_WHOLE, _NO_SOURCE} else rest
    if "source" not in metadata:
        draft.metadata[_NO_SOURCE] = True  # a record always has one


def metadata_of(record: CheckpointRecord, stored: Mapping[str, Any]) -> CheckpointMetadata:
    """Return the metadata as LangGraph passed them."""
    has_source = _NO_SOURCE not in stored
    rest = stored.get(_WHOLE) or {
        name: value for name, value in stored.items() if name not in (_WHOLE, _NO_SOURCE)
    }
    whole = {"source": record.source if has_source else None, "step": record.step, "run_id": record.run}
    whole = {name: value for name, value in whole.items() if value is not None and name not in rest}
    return cast(CheckpointMetadata, {**whole, **rest})
