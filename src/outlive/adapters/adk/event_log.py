"""A session in a thread: its own state and its events, each event a checkpoint.

The thread's state is `{"state": {...}, "time": ..., "events": [...]}`. An event is saved only after
the checkpoint that its session was read at, or had saved last: a writer that has not seen what
another one added is told, and changes nothing. Inside a run of that thread, the event carries the
fence of the run.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError

from outlive.adapters.common.current import run_on
from outlive.errors import BadArgument, CheckpointMissing, HeadMoved
from outlive.format.splitter import Growing
from outlive.runtime.fork import reset_in_child
from outlive.store import AsyncStore
from outlive.threads.thread import AsyncThread
from outlive.values import NEW, New

_KNOWN = 64  # sessions whose events are remembered
Delta = dict[str, Any]


@dataclass(slots=True)
class Stored:
    """A session as it is stored, and the checkpoint that has it."""

    head: str
    state: dict[str, Any]
    time: float
    growing: Growing

    @property
    def events(self) -> list[Any]:
        """The events, oldest first, as plain values."""
        return self.growing.elements


class EventLog:
    """Reads sessions and appends events. It remembers what it saved last, so that an append reads nothing."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Any, str], Stored] = OrderedDict()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        self._known = OrderedDict()

    async def read(self, store: AsyncStore, thread_id: str, at: str | None = None) -> Stored | None:
        """Return a session, as it is or as it was at a checkpoint; None when there is none."""
        thread = store.thread(thread_id)
        stored = await thread._read(at, None, None)
        if stored is None and at is not None:
            raise CheckpointMissing(thread_id, at)
        if stored is None:
            return None
        head = stored[0].record.id
        return _session_in(head, store._engine.unpack(thread._key, head, stored[1]))

    async def create(self, store: AsyncStore, thread_id: str, state: Delta, time: float) -> Stored:
        """Store a new session. Raises AlreadyExistsError."""
        new = Stored("", state, time, Growing([]))
        try:
            return await self._save(store, store.thread(thread_id), new, NEW, {"events": 0})
        except HeadMoved:
            raise AlreadyExistsError(f"the session {thread_id} exists already") from None

    async def check(self, store: AsyncStore, thread_id: str, marker: str | None) -> Stored:
        """Return the session that a writer has seen. Raises SessionNotFoundError, StaleSessionError."""
        stored = await self.read(store, thread_id)
        if stored is None:
            raise SessionNotFoundError(f"there is no session {thread_id}")
        if marker is not None and stored.head != marker:
            raise _stale(thread_id)
        return stored

    async def append(
        self, store: AsyncStore, thread_id: str, marker: str | None, event: Delta, delta: Delta
    ) -> str:
        """Add an event, with what it changes in the session's own state, and return the checkpoint.

        Raises SessionNotFoundError, and StaleSessionError when the session has changed since its
        marker.
        """
        key = (store._engine, thread_id)
        known = self._known.pop(key, None)
        if known is None or known.head != marker:
            known = await self.check(store, thread_id, marker)
        codec = store._engine.codec
        own, changed = codec.unpack(
            codec.pack([event, delta], "event")
        )  # the caller may change its own later
        known.events.append(own)
        known.state.update(changed)
        known.time = own["timestamp"]
        metadata = {
            "events": len(known.events), "author": own.get("author"), "invocation": own.get("invocation_id"),
        }  # fmt: skip
        return await self._save_seen(store, thread_id, known, metadata)

    async def drop(self, store: AsyncStore, thread_id: str, marker: str | None, ids: set[str]) -> str:
        """Remove events, and return the checkpoint without them; state that they changed stays. Raises as `append`."""
        known = await self.check(store, thread_id, marker)
        known.growing = Growing([event for event in known.events if event["id"] not in ids])
        return await self._save_seen(store, thread_id, known, {"events": len(known.events)})

    async def _save_seen(
        self, store: AsyncStore, thread_id: str, session: Stored, metadata: dict[str, Any]
    ) -> str:
        """Save what has become of the newest checkpoint that the writer has seen."""
        try:
            saved = await self._save(store, store.thread(thread_id), session, session.head, metadata)
        except HeadMoved as error:
            if error.head is None:
                raise SessionNotFoundError(f"the session {thread_id} was deleted") from error
            raise _stale(thread_id) from error
        return saved.head

    async def _save(
        self,
        store: AsyncStore,
        thread: AsyncThread[Any],
        session: Stored,
        expect: str | New,
        metadata: dict[str, Any],
    ) -> Stored:
        draft = thread._draft(expect=expect, metadata=metadata)
        draft.growing = session.growing
        plain = {"state": session.state, "time": session.time, "events": session.events}
        work = run_on(store._engine, thread._key)
        with nullcontext() if work is None else work.guarded():
            if work is not None:
                draft.fence, draft.run = work.run._fence_of(store._engine, thread._key), work.run.id
            saved = await thread._save(plain, draft)
        session.head = saved.id
        self._known[store._engine, thread.id] = session
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return session

    def forget(self, store: AsyncStore, thread_id: str) -> None:
        """Drop what is remembered of a session that is deleted."""
        self._known.pop((store._engine, thread_id), None)


def _session_in(head: str, state: Any) -> Stored | None:
    if state is None:  # the first checkpoint of a run
        return None
    if not isinstance(state, dict) or not isinstance(state.get("events"), list):
        raise BadArgument("this thread holds another state than a session of ADK")
    return Stored(head, state["state"], state["time"], Growing(state["events"]))


def _stale(thread_id: str) -> StaleSessionError:
    return StaleSessionError(
        f"the session {thread_id} has changed since it was read: read it again, and append to that one"
    )
