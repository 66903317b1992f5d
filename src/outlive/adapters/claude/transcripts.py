"""A transcript: the entries of a session or a subagent, a list in a namespace of a thread.

Each append is a checkpoint. That of the main transcript has the summary of the session in its
metadata, so a listing reads no entry.
"""

from __future__ import annotations

from typing import Any

from claude_agent_sdk import SessionKey, fold_session_summary

from outlive.adapters.claude.names import namespace_of, thread_of
from outlive.adapters.common.thread_list import ThreadList
from outlive.store import AsyncStore
from outlive.values import CheckpointInfo

SUMMARY = "summary"


class Transcript(ThreadList):
    """The entries under a key. Of two entries with one uuid, the first is kept."""

    def __init__(self, key: SessionKey) -> None:
        super().__init__(thread_of(key), namespace=namespace_of(key))
        self._key = key
        self._summary: tuple[str, Any] | None = None  # of a head
        self._uuids: tuple[str | None, set[str]] = (None, set())  # of the entries at a head

    async def add(self, store: AsyncStore, entries: list[Any]) -> None:
        """Add the entries that are new, all of them or none."""
        if not entries:
            return
        codec = store._engine.codec
        own = codec.unpack(codec.pack(entries, "entries"))  # the caller may change its own later

        async def grow(known: Any) -> None:
            head = known.head
            uuids, self._uuids = self._uuids, (None, set())
            seen = uuids[1] if uuids[0] == head else _uuids_of(known.items)
            fresh = _fresh(own, seen)
            if not fresh:
                self._uuids = (head, seen)
                self._known.append(known)
                return
            metadata = {} if self.namespace else {SUMMARY: await self._folded(store, head, fresh)}
            known.items.extend(fresh)  # if they are not saved, the list is read again
            saved = await self._save(store, known, source="loop", metadata=metadata)
            assert saved is not None
            self._uuids, self._summary = (saved.id, seen), (saved.id, metadata.get(SUMMARY))

        await self._change(store, grow)

    async def _folded(self, store: AsyncStore, head: str | None, entries: list[Any]) -> dict[str, Any]:
        """Return the summary of the session with new entries; the SDK knows what is in it."""
        before = None if head is None else await self._summary_at(store, head)
        data = None if before is None else {**before, "mtime": 0, "session_id": self._key["session_id"]}
        folded: Any = fold_session_summary(data, self._key, entries)  # type: ignore[arg-type]
        return {"data": folded["data"]}

    async def _summary_at(self, store: AsyncStore, head: str) -> dict[str, Any] | None:
        if self._summary is not None and self._summary[0] == head:
            codec = store._engine.codec
            copied: dict[str, Any] | None = codec.unpack(codec.pack(self._summary[1]))
            return copied
        stored = await self.thread(store).checkpoint(head)
        return summary_of(stored)

    async def entries(self, store: AsyncStore, at: str | None = None) -> list[Any] | None:
        """Return the entries, as they are or as they were at a checkpoint; None when there are none."""
        return await self.read(store, at=at) or None


def summary_of(info: CheckpointInfo | None) -> dict[str, Any] | None:
    """Return the summary that a checkpoint of the main transcript has."""
    summary = None if info is None else info.metadata.get(SUMMARY)
    return summary if isinstance(summary, dict) and isinstance(summary.get("data"), dict) else None


def _uuids_of(entries: list[Any]) -> set[str]:
    return {entry["uuid"] for entry in entries if isinstance(entry.get("uuid"), str)}


def _fresh(entries: list[Any], seen: set[str]) -> list[Any]:
    """Return the entries whose uuid was not seen, which then is; entries without one are all new."""
    fresh = []
    for entry in entries:
        uuid = entry.get("uuid")
        if isinstance(uuid, str):
            if uuid in seen:
                continue
            seen.add(uuid)
        fresh.append(entry)
    return fresh
