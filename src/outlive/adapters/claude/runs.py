"""Queries of the Claude Agent SDK as runs, which another process finishes when theirs dies.

`run` starts a run on the thread of a session. The transcript is stored while the program that the
SDK drives works. A process that resumes the run starts that program again with the stored
transcript, and asks it to continue: tool calls that are finished are in there, and a call that was
under way is reported to the model as interrupted.

    store.recover({"claude": lambda run: resume(options, run)})
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from claude_agent_sdk import (
    ClaudeAgentOptions,
    Message,
    MirrorErrorMessage,
    ResultMessage,
    SessionKey,
    SessionStoreEntry,
    project_key_for_directory,
    query,
)

from outlive.adapters.claude.names import thread_of
from outlive.adapters.claude.permissions import Permissions
from outlive.adapters.claude.session_store import OutliveSessionStore
from outlive.adapters.common import running
from outlive.adapters.common.current import Work
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.plain import jsonable
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.options import SubmitOptions
from outlive.runs.run import AsyncRun
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store

T = TypeVar("T")
_MARK = "claude"
_OF_RUNS = ("session_store", "session_id", "resume", "continue_conversation", "fork_session")
CONTINUE = "Continue where you were interrupted."
OnMessage = Callable[[Message], Any]


@dataclass(slots=True)
class QueryOutcome:
    """What became of a run of a query."""

    run: RunInfo
    output: Any = None  # the structured output, or the text of the result
    result: ResultMessage | None = None  # of the SDK; None for a run that had ended before

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run waits for answers; `store.questions()` lists the questions."""
        return self.run.status == "waiting"


def run(
    options: ClaudeAgentOptions,
    prompt: str,
    *,
    session_id: str,
    store: Store,
    ask: bool = False,
    on_message: OnMessage | None = None,
    **described: Any,
) -> QueryOutcome:
    """Send a prompt as a run of `store`, in that session (a UUID), which is made if there is none.

    With the `run_id` of a run that has ended, return its output and start nothing. With `ask=True`,
    every permission that the SDK would pass to `can_use_tool` is a question of the run.
    `on_message` gets the messages of the SDK. `described` are options of `store.run` (`run_id`,
    `agent`, `lease_s`, ...); `store.recover` chooses a handler by `agent` (default: "claude").
    Raises ThreadBusy while another run has this session, LeaseLost when another process has taken
    this one.
    """
    drive = _Drive(options, ask, on_message)
    ours, thread_id = _described(options, prompt, session_id, described)
    return drive.outcome(running.begin(store, running.in_loop(drive), thread_id, **ours))


async def arun(
    options: ClaudeAgentOptions,
    prompt: str,
    *,
    session_id: str,
    store: AsyncStore,
    ask: bool = False,
    on_message: OnMessage | None = None,
    **described: Any,
) -> QueryOutcome:
    """Send a prompt as a run of `store`, which `outlive.open_async` has opened; see `run`."""
    drive = _Drive(options, ask, on_message)
    ours, thread_id = _described(options, prompt, session_id, described)
    return drive.outcome(await running.abegin(store, drive, thread_id, **ours))


def resume(
    options: ClaudeAgentOptions, run: Run, *, ask: bool = False, on_message: OnMessage | None = None
) -> QueryOutcome:
    """Continue a run that this process has claimed; pass the options of the SDK again."""
    drive = _Drive(options, ask, on_message)
    running.resume(run, running.in_loop(drive))
    return drive.outcome(running.Outcome(run.info))


async def aresume(
    options: ClaudeAgentOptions, run: AsyncRun, *, ask: bool = False, on_message: OnMessage | None = None
) -> QueryOutcome:
    """Continue a run that this process has claimed; pass the options of the SDK again."""
    drive = _Drive(options, ask, on_message)
    await running.aresume(run, drive)
    return drive.outcome(running.Outcome(run.info))


def _described(
    options: ClaudeAgentOptions, prompt: str, session_id: str, described: dict[str, Any]
) -> tuple[SubmitOptions, str]:
    """Return the options of the run, with its prompt, and its thread."""
    if not isinstance(prompt, str):
        raise BadArgument("the prompt of a run is a str: another process may have to send it again")
    if "prompt" in described:
        raise BadArgument("pass the prompt as the second argument")
    try:
        session = str(uuid.UUID(session_id))
    except (ValueError, AttributeError, TypeError):
        raise BadArgument(f"session_id must be a UUID, not {session_id!r:.100}: str(uuid.uuid4())") from None
    key: SessionKey = {"project_key": project_key_for_directory(options.cwd), "session_id": session}
    ours: Any = {"agent": "claude", **described, "prompt": {_MARK: 1, **key, "prompt": prompt}}
    return cast(SubmitOptions, ours), thread_of(key)


class _Within:
    """The store of a run, from the loop that the run works on."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def acall(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        return await work(self._store)


class _RunSessions(OutliveSessionStore):
    """The session of a run, under its own project, from whichever folder the run is resumed."""

    def __init__(self, current: Work, key: SessionKey) -> None:
        self._use(_Within(cast(AsyncStore, current.run.thread._store)))
        self._current = current
        self._own = key
        self.has_failed = asyncio.Event()
        self.error: BaseException | None = None

    def _key(self, key: Any) -> Any:
        return {**key, "project_key": self._own["project_key"]}

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries. What ends the run is noted: the SDK drops an error of a store."""
        try:
            await super().append(self._key(key), entries)
        except BaseException as error:
            self.error = error
            if self._current.ended_by is not None:
                self.has_failed.set()
            raise
        self.error = None

    async def load(self, key: SessionKey, at: str | None = None) -> list[SessionStoreEntry] | None:
        """Return the entries."""
        return await super().load(self._key(key), at)

    async def list_subkeys(self, key: Any) -> list[str]:
        """Return the subpaths of a session."""
        return await super().list_subkeys(self._key(key))


class _Drive:
    """Drives queries in a run, from its prompt to a result or to a question."""

    def __init__(self, options: ClaudeAgentOptions, ask: bool, on_message: OnMessage | None) -> None:
        if not isinstance(options, ClaudeAgentOptions):
            raise BadArgument(f"pass ClaudeAgentOptions first, not {type(options).__name__}")
        ours = [name for name in _OF_RUNS if getattr(options, name)]
        if ours:
            raise BadArgument(f"the run keeps its session in its store: leave out {', '.join(ours)}")
        if ask and options.can_use_tool is not None:
            raise BadArgument("with ask=True people decide: leave out can_use_tool")
        self._options = options
        self._ask = ask
        self._on_message = on_message
        self._result: ResultMessage | None = None
        self._error = ""

    def outcome(self, outcome: running.Outcome[Any]) -> QueryOutcome:
        """Return what became of the run."""
        return QueryOutcome(outcome.run, outcome.run.result, self._result)

    async def __call__(self, current: Work) -> Any:
        prompt = current.run.info.prompt
        if not isinstance(prompt, dict) or _MARK not in prompt:
            raise BadArgument(f"run {current.run.id!r} was not started by this adapter: it has no prompt")
        key: SessionKey = {"project_key": prompt["project_key"], "session_id": prompt["session_id"]}
        sessions = _RunSessions(current, key)
        permissions = Permissions(current)
        await permissions.read()
        while self._result is None:
            await self._attempt(current, sessions, permissions, key, prompt["prompt"])
            current.check()
            if self._result is None and not permissions.is_asked.is_set():
                raise RuntimeError(f"the query has ended without a result{self._error}")
            if self._result is None:
                await permissions.ask()
        output = jsonable(_output(self._result))
        await current.run.complete(output)
        return output

    async def _attempt(
        self, current: Work, sessions: _RunSessions, permissions: Permissions, key: SessionKey, prompt: str
    ) -> None:
        """Work until there is a result, a question or an end of the run."""
        entries = await sessions.load(key) or []
        count = await kept("transcript", lambda: len(entries), key="begin")
        was_sent = any(entry.get("type") == "user" for entry in entries[count:])
        text = CONTINUE + await permissions.told() if was_sent else prompt
        changes: dict[str, Any] = {"session_store": sessions, "session_store_flush": "eager"}
        changes["resume" if entries else "session_id"] = key["session_id"]
        if self._ask:
            changes["can_use_tool"] = permissions
        options = dataclasses.replace(self._options, **changes)
        await _until(
            [permissions.is_asked, sessions.has_failed], self._consume(current, sessions, options, text)
        )

    async def _consume(
        self, current: Work, sessions: _RunSessions, options: ClaudeAgentOptions, text: str
    ) -> None:
        async with contextlib.aclosing(cast(Any, query(prompt=text, options=options))) as messages:
            async for message in messages:
                current.check()
                if isinstance(message, MirrorErrorMessage):
                    raise sessions.error or RuntimeError(f"the transcript is not stored: {message.error}")
                heard = None if self._on_message is None else self._on_message(message)
                if inspect.isawaitable(heard):
                    await heard
                if isinstance(message, ResultMessage):
                    self._result = None if message.is_error else message
                    self._error = f": {message.result or message.subtype}" if message.is_error else ""


async def _until(events: list[asyncio.Event], work: Coroutine[Any, Any, None]) -> None:
    """Work until one of the events. The program that the SDK drives is then stopped, and what it wrote is stored."""
    task = asyncio.create_task(work)
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait([task, *waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_done = task.done()
        for each in (task, *waiting):
            each.cancel()
        await asyncio.wait([task, *waiting])
    if is_done or not task.cancelled():
        task.result()


def _output(result: ResultMessage) -> Any:
    return result.result if result.structured_output is None else result.structured_output
