"""A store, the codec of one serializer, and an engine that uses both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from outlive.adapters.langgraph.config import CheckpointRef
from outlive.adapters.langgraph.state import metadata_of, unpack_state
from outlive.adapters.langgraph.values.codec import ValueCodec
from outlive.backend import CheckpointRecord, ReadResult, ThreadKey
from outlive.format import manifest
from outlive.store import AsyncStore
from outlive.threads.engine import Engine, Located
from outlive.values import PendingWrite


@dataclass(frozen=True, slots=True)
class Session:
    """What every operation on LangGraph checkpoints needs."""

    store: AsyncStore
    codec: ValueCodec
    engine: Engine

    @classmethod
    def of(cls, store: AsyncStore, serde: SerializerProtocol) -> Self:
        """Return a session on a store that stores values through a serializer."""
        codec = ValueCodec(store._engine.codec.registry, maybe_add_typed_methods(serde))
        return cls(store, codec, store._engine.with_codec(codec))

    @property
    def timeout_s(self) -> float | None:
        return self.store._timeout(None)

    def key(self, thread: str) -> ThreadKey:
        return self.store._key(thread)

    async def load(self, key: ThreadKey, namespace: str, id: str | None) -> tuple[ReadResult, bytes] | None:
        """Return a checkpoint's records and the bytes of its state, or None; the newest when `id` is None."""
        return await self.engine.load(key, namespace, id, None, self.timeout_s)

    def metadata(self, key: ThreadKey, record: CheckpointRecord) -> CheckpointMetadata:
        """Return the metadata of a record as LangGraph passed them."""
        with Located(key, record.id):
            return metadata_of(record, manifest.decode(self.codec, record.body).metadata)

    def checkpoint_tuple(
        self, key: ThreadKey, record: CheckpointRecord, state: Any, writes: Sequence[PendingWrite]
    ) -> CheckpointTuple:
        """Return a checkpoint as LangGraph sees it."""
        parent = None if record.parent is None else CheckpointRef(key.id, record.namespace, record.parent)
        return CheckpointTuple(
            config=CheckpointRef(key.id, record.namespace, record.id).config,
            checkpoint=unpack_state(key.id, record.id, state).checkpoint(record.id),
            metadata=self.metadata(key, record),
            parent_config=None if parent is None else parent.config,
            pending_writes=[(write.task, write.channel, write.value) for write in writes],
        )
