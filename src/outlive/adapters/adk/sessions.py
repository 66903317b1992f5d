"""`OutliveSessionService`: the sessions of ADK on any store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from google.adk.events import Event
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions._session_util import extract_json_safe_state_delta
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse

from outlive.adapters.adk import names
from outlive.adapters.adk.event_log import EventLog, Stored
from outlive.adapters.adk.scopes import merge_scope, read_scope
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.travel import Past
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import Change, CheckpointInfo

T = TypeVar("T")


class _Home(Protocol):
    async def acall(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T: ...


class OutliveSessionService(BaseSessionService):
    """Sessions in threads: `OutliveSessionService("sqlite:///agent.db")`, or on a store that is open.

    Every event is a checkpoint: `history`, `diff` and `fork` look back, and `get_session(at=...)`
    returns a session as it was. Of two processes that append at once, the one that has not seen the
    other's event gets StaleSessionError, and nothing is lost. Options are those of `outlive.open`.
    Use it from any event loop, thread or forked child.
    """

    def __init__(self, store: str | Store | AsyncStore, **options: Any) -> None:
        self._use(StoreHome.of(store, options, "OutliveSessionService"))

    def _use(self, home: _Home) -> None:
        self._home = home
        self._log = EventLog()

    # The interface of ADK

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session, with an id of its own unless you give it. Raises AlreadyExistsError."""
        id = (session_id or "").strip() or str(uuid.uuid4())
        thread_id = names.session_thread(app_name, user_id, id)
        deltas = extract_json_safe_state_delta(state or {})

        async def create(store: AsyncStore) -> Session:
            stored = await self._log.create(store, thread_id, deltas["session"], time.time())
            await self._share(store, app_name, user_id, deltas)
            return await self._session(store, thread_id, stored, [])

        return await self._home.acall(create)

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
        at: str | None = None,
    ) -> Session | None:
        """Return a session, as it is or as it was `at` a checkpoint; None when there is none.

        State of the app and of the user is as it is now, also with `at`.
        """
        thread_id = names.session_thread(app_name, user_id, session_id)

        async def get(store: AsyncStore) -> Session | None:
            stored = await self._log.read(store, thread_id, at)
            if stored is None:
                return None
            return await self._session(store, thread_id, stored, _chosen(stored.events, config))

        return await self._home.acall(get)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of an app, or of one user, without events; the one that changed last is the last."""

        async def read_all(store: AsyncStore) -> list[Session]:
            sessions = []
            async for info in store.threads(prefix=names.session_prefix(app_name, user_id)):
                stored = await self._log.read(store, info.id)
                if stored is not None:
                    sessions.append(await self._session(store, info.id, stored, []))
            return sessions

        sessions = await self._home.acall(read_all)
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its history and its runs: no byte stays in the store. State of the app and the user stays."""
        thread_id = names.session_thread(app_name, user_id, session_id)

        async def delete(store: AsyncStore) -> None:
            self._log.forget(store, thread_id)
            await store.thread(thread_id).delete(erase=True)

        await self._home.acall(delete)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that all sessions of a user share."""
        return await self._home.acall(lambda store: read_scope(store, names.user_thread(app_name, user_id)))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Add an event: when this returns, it survives a crash. Part of an event is not stored.

        Raises StaleSessionError when the session has changed in the store since this object was
        read.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        plain = event.model_dump(mode="json", exclude_none=True)
        deltas = extract_json_safe_state_delta(event.actions.state_delta)
        thread_id = names.session_thread(session.app_name, session.user_id, session.id)
        seen = session._storage_update_marker

        async def append(store: AsyncStore) -> str:
            if deltas["app"] or deltas["user"]:
                # Before the event: after a crash in between, the event is made again, with the same
                # change.
                await self._log.check(store, thread_id, seen)
                await self._share(store, session.app_name, session.user_id, deltas)
            return await self._log.append(store, thread_id, seen, plain, deltas["session"])

        session._storage_update_marker = await self._home.acall(append)
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    # Time travel

    async def history(
        self, *, app_name: str, user_id: str, session_id: str, limit: int | None = None
    ) -> list[CheckpointInfo]:
        """Return the checkpoints of a session, newest first; their metadata has the author and the invocation."""
        past = _past(app_name, user_id, session_id)
        return await self._home.acall(lambda store: past.history(store, limit))

    async def diff(
        self, old: str, new: str | None = None, *, app_name: str, user_id: str, session_id: str
    ) -> list[Change]:
        """Return what changed between two checkpoints (default: up to the newest), path by path."""
        past = _past(app_name, user_id, session_id)
        return await self._home.acall(lambda store: past.diff(store, old, new))

    async def fork(
        self, new_session_id: str, *, app_name: str, user_id: str, session_id: str, at: str | None = None
    ) -> Session:
        """Return a new session that starts with this one, as it is or as it was at a checkpoint."""
        past = _past(app_name, user_id, session_id)
        thread_id = names.session_thread(app_name, user_id, new_session_id)
        await self._home.acall(lambda store: past.fork(store, thread_id, at))
        forked = await self.get_session(app_name=app_name, user_id=user_id, session_id=new_session_id)
        assert forked is not None
        return forked

    async def prune(self, keep_last: int, *, app_name: str, user_id: str, session_id: str) -> int:
        """Keep the newest checkpoints of a session, erase the others, and return how many those were. No event is lost."""
        past = _past(app_name, user_id, session_id)
        return await self._home.acall(lambda store: past.prune(store, keep_last))

    # Inside

    async def _drop_events(self, session: Session, ids: set[str]) -> None:
        """Remove events from a session, in a new checkpoint: the history has them."""
        if ids:
            thread_id = names.session_thread(session.app_name, session.user_id, session.id)
            seen = session._storage_update_marker
            await self._home.acall(lambda store: self._log.drop(store, thread_id, seen, ids))

    async def _share(
        self, store: AsyncStore, app_name: str, user_id: str, deltas: dict[str, dict[str, Any]]
    ) -> None:
        if deltas["app"]:
            await merge_scope(store, names.app_thread(app_name), deltas["app"])
        if deltas["user"]:
            await merge_scope(store, names.user_thread(app_name, user_id), deltas["user"])

    async def _session(self, store: AsyncStore, thread_id: str, stored: Stored, events: list[Any]) -> Session:
        """Return a session of the caller's own, with the state that it shares."""
        app_name, user_id, id = names.parts_of(thread_id)
        codec = store._engine.codec
        state = codec.unpack(codec.pack(stored.state))
        for prefix, scope in (
            (State.APP_PREFIX, names.app_thread(app_name)),
            (State.USER_PREFIX, names.user_thread(app_name, user_id)),
        ):
            shared = await read_scope(store, scope)
            state.update({prefix + key: value for key, value in shared.items()})
        session = Session(
            id=id,
            app_name=app_name,
            user_id=user_id,
            state=state,
            events=[Event.model_validate(event) for event in events],
            last_update_time=stored.time,
        )
        session._storage_update_marker = stored.head
        return session

    # Closing

    def close(self) -> None:
        """Close the store if this service opened it, and nothing else of this process uses it."""
        if isinstance(self._home, StoreHome):
            self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _past(app_name: str, user_id: str, session_id: str) -> Past:
    return Past(names.session_thread(app_name, user_id, session_id))


def _chosen(events: list[Any], config: GetSessionConfig | None) -> list[Any]:
    """Return the events that a caller wants: the newest ones, back to a moment."""
    if config is None:
        return events
    if config.num_recent_events is not None:
        events = events[max(0, len(events) - config.num_recent_events) :]
    if (after := config.after_timestamp) is not None:
        older = [number for number, event in enumerate(events) if event["timestamp"] < after]
        events = events[older[-1] + 1 :] if older else events
    return events
