"""`OutliveConversationStore`: the conversations of Pydantic AI, each in a thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord, ConversationStore

from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.thread_list import items_of
from outlive.adapters.common.travel import Past
from outlive.adapters.pydantic_ai.log import Log, Logs, loaded_entries, record_of
from outlive.arguments import check_id
from outlive.errors import CheckpointMissing
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import Change, CheckpointInfo

T = TypeVar("T")
_ENDS = 10_000  # ends of histories whose conversation is remembered


class OutliveConversationStore(ConversationStore):
    """Conversations on any store: `OutliveConversationStore("sqlite:///agent.db")`, or on a store that is open.

    A conversation is the thread of its id. Every save is a checkpoint: `history()` lists them,
    `at()` returns the conversation as it was, `diff()` what changed. Two processes that save at
    once: the one that has not seen the other's messages gets ConversationConflict. `delete` also
    erases the history; a fork has a copy of the messages. All other options are those of
    `outlive.open`. Use it from any event loop, thread or forked child.
    """

    def __init__(self, store: str | Store | AsyncStore, **options: Any) -> None:
        self._logs = Logs()
        self._ends: dict[str, str] = {}  # the conversation of an entry that a history ends with
        self._home = StoreHome.of(store, options, "OutliveConversationStore")

    def __repr__(self) -> str:
        return f"<OutliveConversationStore {self._home.url}>"

    async def _do(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        return await self._home.acall(work)

    # What the framework calls

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None when there is no such conversation."""
        check_id("conversation_id", conversation_id)
        record = await self._do(lambda store: self._logs.record(store, conversation_id))
        return None if record is None else self._noted(record)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records, those of conversations that were saved last first; no message is read."""

        async def read(store: AsyncStore) -> list[ConversationRecord]:
            records: list[ConversationRecord] = []
            if limit == 0:
                return records
            async for record in self._logs.records(store):
                if scope is None or record.scope == scope:
                    records.append(record)
                    if len(records) == limit:
                        break
            return records

        return [self._noted(record) for record in await self._do(read)]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Save a record with its new entries, both or neither: when this returns, they survive a crash.

        Raises ConversationConflict.
        """
        check_id("conversation_id", record.conversation_id)
        await self._do(lambda store: self._logs.write(store, record, new_entries, expected_revision))
        self._noted(record)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with its history and its runs, and leave no byte of it. Raises ConversationConflict."""
        await self._do(lambda store: self._logs.delete(store, conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry. Raises LookupError."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to one of them, or the last `limit` of these. Raises LookupError."""
        if head_id is None:
            return []
        conversation_id = self._ends.get(head_id)
        if conversation_id is not None:
            try:
                return await self._do(lambda store: self._logs.line(store, conversation_id, head_id, limit))
            except KeyError:
                self._ends.pop(head_id, None)  # deleted; a fork may have it too
        return await self._do(lambda store: self._find(store, head_id, limit))

    async def _find(self, store: AsyncStore, head_id: str, limit: int | None) -> list[ConversationEntry]:
        conversation_id = await self._logs.find(store, head_id)
        if conversation_id is None:
            raise LookupError(f"no entry with id {head_id!r}")
        return await self._logs.line(store, conversation_id, head_id, limit)

    def _noted(self, record: ConversationRecord) -> ConversationRecord:
        """Remember which conversation the ends of histories belong to: the framework asks by the entry alone."""
        for entry_id in (record.head_id, *record.branches):
            if entry_id is not None:
                self._ends[entry_id] = record.conversation_id
        for entry_id in list(self._ends)[: max(0, len(self._ends) - _ENDS)]:
            self._ends.pop(entry_id, None)
        return record

    # The past

    async def history(self, conversation_id: str, limit: int | None = None) -> list[CheckpointInfo]:
        """Return the checkpoints, newest first; the id of one is what `at()` takes."""
        return await self._do(lambda store: Past(conversation_id).history(store, limit))

    async def at(self, conversation_id: str, checkpoint: str) -> Conversation:
        """Return a conversation as it was; to continue from there, `fork` it with `from_entry`. Raises CheckpointMissing."""

        async def read(store: AsyncStore) -> tuple[ConversationRecord, list[ConversationEntry]]:
            stored = await store.thread(conversation_id).checkpoint(checkpoint)
            record = record_of(stored)
            if stored is None or record is None:
                raise CheckpointMissing(conversation_id, checkpoint)
            return record, loaded_entries(Log.of(items_of(stored.state)).line(record.head_id))

        record, entries = await self._do(read)
        return Conversation(
            messages=[entry.message for entry in entries],
            usage=record.usage,
            conversation_id=conversation_id,
            deferred_tool_requests=record.deferred_tool_requests,
        )

    async def diff(self, conversation_id: str, old: str, new: str | None = None) -> list[Change]:
        """Return what changed between two checkpoints (default: up to the newest), path by path."""
        return await self._do(lambda store: Past(conversation_id).diff(store, old, new))

    async def prune(self, conversation_id: str, keep_last: int) -> int:
        """Keep the newest checkpoints, erase the others, and return how many those were. No message is lost."""
        return await self._do(lambda store: Past(conversation_id).prune(store, keep_last))

    # Closing

    def close(self) -> None:
        """Close the store if it was opened here, and nothing else of this process uses it."""
        self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
