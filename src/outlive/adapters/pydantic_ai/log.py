"""The log of a conversation: all its entries in a thread, and the record that says where its history ends.

The state is `{"items": [...]}`, each entry once, with that of the branches the conversation has
left. The record is metadata of the checkpoint, whose id is the revision. So records are listed
without reading a state, and a save is a compare-and-set that packs the new entries alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord

from outlive.adapters.common.current import run_on
from outlive.adapters.common.plain import Plain
from outlive.adapters.common.thread_list import ITEMS, items_of
from outlive.errors import BadArgument, CheckpointExists, CheckpointMissing, HeadMoved
from outlive.format.splitter import Growing
from outlive.store import AsyncStore
from outlive.threads.thread import AsyncThread
from outlive.values import NEW, CheckpointInfo, New

_RECORD = "conversation"
_DELETED = "deleted"
_KEPT = 64  # logs that were written last: the next save of one reads nothing
_entries: Plain[ConversationEntry] = Plain(ConversationEntry)
_records: Plain[ConversationRecord] = Plain(ConversationRecord)


@dataclass(slots=True)
class Log:
    """The entries of a conversation, as they are stored, in the order of their saves."""

    growing: Growing
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, items: list[Any]) -> Log:
        """Return the log of stored entries."""
        log = cls(Growing([]))
        log.extend(items)
        return log

    def extend(self, items: list[Any]) -> None:
        """Add entries at the end."""
        for item in items:
            self.numbers[item["id"]] = len(self.growing.elements)
            self.growing.elements.append(item)

    def line(self, head: str | None, limit: int | None = None) -> list[Any]:
        """Return the entries up to one of them, oldest first. Raises KeyError when it is not there."""
        entries: list[Any] = []
        while head is not None and (limit is None or len(entries) < limit):
            entry = self.growing.elements[self.numbers[head]]
            entries.append(entry)
            head = entry["parent_id"]
        return entries[::-1]


class Logs:
    """The logs of the conversations of a store. Its methods take the store, as those of `ThreadList` do."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], Log] = {}  # by conversation and revision

    # Reading

    async def record(self, store: AsyncStore, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None when there is no such conversation."""
        info = await store.thread(conversation_id).info()
        return None if info is None else record_of(info.head)

    async def records(self, store: AsyncStore) -> AsyncIterator[ConversationRecord]:
        """Iterate over all records, beginning with the conversation that was saved last."""
        async for info in store.threads(order="updated"):
            if (record := record_of(info.head)) is not None:
                yield record

    async def read(self, store: AsyncStore, conversation_id: str, at: str | None = None) -> Log:
        """Return the log of a conversation, as it is or as it was at a checkpoint."""
        thread = store.thread(conversation_id)
        stored = await thread._read(at, None, None)
        if stored is None:
            if at is not None:
                raise CheckpointMissing(conversation_id, at)
            return Log.of([])
        return Log.of(items_of(store._engine.unpack(thread._key, stored[0].record.id, stored[1])))

    async def line(
        self, store: AsyncStore, conversation_id: str, head: str | None, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to one of them, oldest first. Raises KeyError when it is not there."""
        return loaded_entries((await self.read(store, conversation_id)).line(head, limit))

    async def find(self, store: AsyncStore, entry_id: str) -> str | None:
        """Return the conversation that has an entry: one that ends with it, or else any."""
        others = []
        async for record in self.records(store):
            if entry_id == record.head_id or entry_id in record.branches:
                return record.conversation_id
            others.append(record.conversation_id)
        for conversation_id in others:
            if entry_id in (await self.read(store, conversation_id)).numbers:
                return conversation_id
        return None

    # Writing

    async def write(
        self,
        store: AsyncStore,
        record: ConversationRecord,
        new_entries: Sequence[ConversationEntry],
        expected: str | None,
    ) -> None:
        """Save entries and the record, both or neither. Raises ConversationConflict and LeaseLost."""
        plain = [_entries.dump(entry) for entry in new_entries]
        metadata = {_RECORD: _records.dump(record)}
        conversation_id = record.conversation_id
        log = self._written.pop((conversation_id, expected or ""), None)
        if log is None:
            log = await self._before(store, record, expected)
        log.extend(plain)
        if record.head_id is not None and record.head_id not in log.numbers:
            raise ConversationConflict(conversation_id)
        head = expected or await _vacant(store.thread(conversation_id))
        await self._save(store, conversation_id, log, record.revision, head, metadata)
        for key in list(self._written)[: max(0, len(self._written) - _KEPT + 1)]:
            self._written.pop(key, None)
        self._written[(conversation_id, record.revision)] = log

    async def _before(self, store: AsyncStore, record: ConversationRecord, expected: str | None) -> Log:
        """Return the log that a save extends; that of a fork begins with the line of the other conversation."""
        if expected is not None:
            try:
                return await self.read(store, record.conversation_id, expected)
            except CheckpointMissing:
                raise ConversationConflict(record.conversation_id) from None
        if record.forked_from is None or record.forked_at is None:
            return Log.of([])
        try:
            return Log.of((await self.read(store, record.forked_from)).line(record.forked_at))
        except KeyError:
            raise ConversationConflict(record.conversation_id) from None

    async def delete(self, store: AsyncStore, conversation_id: str, expected: str) -> None:
        """Delete a conversation, and leave no byte of it. Raises ConversationConflict.

        A crash in between leaves a thread that has no record, and is as good as deleted: the next
        conversation of that id comes after it.
        """
        if (record := await self.record(store, conversation_id)) is None or record.revision != expected:
            raise ConversationConflict(conversation_id)
        await self._save(store, conversation_id, Log.of([]), None, expected, {_DELETED: True})
        await store.thread(conversation_id).delete(erase=True)

    async def _save(
        self,
        store: AsyncStore,
        conversation_id: str,
        log: Log,
        id: str | None,
        head: str | New,
        metadata: dict[str, Any],
    ) -> None:
        thread = store.thread(conversation_id)
        elements = log.growing.elements
        draft = thread._draft(id=id, expect=head, metadata={"items": len(elements), **metadata})
        draft.growing = log.growing
        work = run_on(store._engine, thread._key)
        with nullcontext() if work is None else work.guarded():
            if work is not None:
                draft.fence, draft.run = work.run._fence_of(store._engine, thread._key), work.run.id
            try:
                await thread._save({ITEMS: elements}, draft)
            except (HeadMoved, CheckpointExists):
                raise ConversationConflict(conversation_id) from None


def record_of(info: CheckpointInfo | None) -> ConversationRecord | None:
    """Return the record in a checkpoint; None when it has none."""
    plain = None if info is None else info.metadata.get(_RECORD)
    return None if plain is None else _records.load(plain)


def loaded_entries(stored: list[Any]) -> list[ConversationEntry]:
    """Return entries of a log."""
    return [_entries.load(entry) for entry in stored]


def plain_record(record: ConversationRecord | None) -> Any:
    """Return a record as a plain value."""
    return None if record is None else _records.dump(record)


def loaded_record(plain: Any) -> ConversationRecord | None:
    """Return the record of a plain value."""
    return None if plain is None else _records.load(plain)


async def _vacant(thread: AsyncThread[Any]) -> str | New:
    """Return what a new conversation comes after: nothing, a deleted one, or the first checkpoint of a run."""
    stored = await thread.checkpoint()
    if stored is None or _RECORD in stored.metadata:
        return NEW
    if stored.state is not None and _DELETED not in stored.metadata:
        raise BadArgument(
            f"thread {thread.id!r} holds no conversation of Pydantic AI: give the conversation an id of its own"
        )
    return stored.id
