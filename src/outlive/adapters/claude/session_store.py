"""`OutliveSessionStore`: the sessions of the Claude Agent SDK on any store."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fork_session_via_store,
)

from outlive.adapters.claude.names import key_of, namespace_of, prefix_of, thread_of
from outlive.adapters.claude.transcripts import Transcript, summary_of
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.travel import Past
from outlive.arguments import optional_id
from outlive.runtime.fork import reset_in_child
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import Change, CheckpointInfo, ThreadInfo

T = TypeVar("T")
_KNOWN = 64  # transcripts whose entries are remembered


class Home(Protocol):
    """What calls the store of a session store."""

    async def acall(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        """Work on the store."""
        ...


class OutliveSessionStore(SessionStore):
    """Sessions in threads: `OutliveSessionStore("sqlite:///agent.db")`, or on a store that is open.

    Pass it as `ClaudeAgentOptions(session_store=..., session_store_flush="eager")`: with "batched",
    which is the default of the SDK, a process that is killed loses its turn. Every append is a
    checkpoint: `history`, `diff` and `fork` look back, and `load(key, at=...)` returns a transcript
    as it was. Processes that append at once lose nothing. Options are those of `outlive.open`. Use
    it with asyncio or trio, from any event loop, thread or forked child.
    """

    def __init__(self, store: str | Store | AsyncStore, **options: Any) -> None:
        self._use(StoreHome.of(store, options, "OutliveSessionStore"))

    def _use(self, home: Home) -> None:
        self._home = home
        self._known: OrderedDict[tuple[str, str], Transcript] = OrderedDict()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Forget what the parent remembers."""
        self._known = OrderedDict()

    def __repr__(self) -> str:
        return f"<OutliveSessionStore {self._home.url if isinstance(self._home, StoreHome) else 'in a run'}>"

    # The interface of the SDK

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries to a transcript: when this returns, they survive a crash. An entry whose uuid is there is not added again."""
        transcript = self._transcript(key)
        await self._home.acall(lambda store: transcript.add(store, entries))

    async def load(self, key: SessionKey, at: str | None = None) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript, as they are or as they were `at` a checkpoint; None when there are none."""
        transcript, checkpoint = self._transcript(key), optional_id("at", at)
        return await self._home.acall(lambda store: transcript.entries(store, checkpoint))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project and when each was changed, without reading their entries."""

        async def read(store: AsyncStore) -> list[SessionStoreListEntry]:
            return [
                {"session_id": key_of(info.id)["session_id"], "mtime": _mtime(info)}
                async for info in _sessions(store, project_key)
            ]

        return await self._home.acall(read)

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the sessions of a project, without reading their entries."""

        async def read(store: AsyncStore) -> list[SessionSummaryEntry]:
            return [
                {
                    "session_id": key_of(info.id)["session_id"],
                    "mtime": _mtime(info),
                    "data": (summary_of(info.head) or {})["data"],
                }
                async for info in _sessions(store, project_key)
            ]

        return await self._home.acall(read)

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its subagents, history and runs, or one subagent: no byte stays in the store."""
        thread_id, namespace = thread_of(key), namespace_of(key)
        self._forget(thread_id, namespace)

        async def delete(store: AsyncStore) -> None:
            thread = store.thread(thread_id, namespace=namespace)
            if namespace:
                await thread.delete_namespace(erase=True)
            else:
                await thread.delete(erase=True)

        await self._home.acall(delete)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session."""
        thread_id = thread_of(key)
        names = await self._home.acall(lambda store: store.thread(thread_id).namespaces())
        return [name for name in names if name]

    # Time travel

    async def history(self, key: SessionKey, limit: int | None = None) -> list[CheckpointInfo]:
        """Return the checkpoints of a transcript, newest first; the id of one is what `at=` takes."""
        return await self._home.acall(lambda store: _past(key).history(store, limit))

    async def diff(self, key: SessionKey, old: str, new: str | None = None) -> list[Change]:
        """Return what changed between two checkpoints of a transcript (default: up to the newest), path by path."""
        return await self._home.acall(lambda store: _past(key).diff(store, old, new))

    async def fork(self, key: SessionKey, *, at: str | None = None, title: str | None = None) -> SessionKey:
        """Make a new session of this one, as it is or as it was at a checkpoint, and return its key.

        The SDK gives its entries new uuids and the new session id. Subagents are not copied.
        """
        view: Any = _ForkView(self, key, optional_id("at", at))
        forked = await fork_session_via_store(view, key["session_id"], title=title)
        return {"project_key": key["project_key"], "session_id": forked.session_id}

    async def prune(self, key: SessionKey, keep_last: int) -> int:
        """Keep the newest checkpoints of a transcript, erase the others, and return how many those were. No entry is lost."""
        return await self._home.acall(lambda store: _past(key).prune(store, keep_last))

    # Inside

    def _transcript(self, key: SessionKey) -> Transcript:
        place = thread_of(key), namespace_of(key)
        transcript = self._known.pop(place, None) or Transcript(key)
        self._known[place] = transcript
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return transcript

    def _forget(self, thread_id: str, namespace: str) -> None:
        for place in list(self._known):
            if place[0] == thread_id and namespace in ("", place[1]):
                self._known.pop(place, None)

    # Closing

    def close(self) -> None:
        """Close the store if it was opened here, and nothing else of this process uses it."""
        if isinstance(self._home, StoreHome):
            self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ForkView:
    """A session at a moment, which the SDK forks: it reads that, and appends the fork to the same project."""

    def __init__(self, sessions: OutliveSessionStore, key: SessionKey, at: str | None) -> None:
        self._sessions = sessions
        self._key = key
        self._at = at

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        return await self._sessions.load(self._key, self._at)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        await self._sessions.append({**key, "project_key": self._key["project_key"]}, entries)


async def _sessions(store: AsyncStore, project_key: str) -> AsyncIterator[ThreadInfo]:
    """Iterate over the threads of a project that have a main transcript."""
    async for info in store.threads(prefix=prefix_of(project_key)):
        if summary_of(info.head) is not None:
            yield info


def _mtime(info: ThreadInfo) -> int:
    """Return when the main transcript was changed, in milliseconds."""
    changed = info.head.created_at if info.head is not None else None
    return int((changed or info.updated_at).astimezone(dt.UTC).timestamp() * 1000)


def _past(key: SessionKey) -> Past:
    return Past(thread_of(key), namespace_of(key))
