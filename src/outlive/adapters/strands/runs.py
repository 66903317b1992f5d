"""Agents of Strands as runs, which another process finishes when theirs dies.

`run` starts a run on the thread of a session. The agent is saved with each of its messages, and
each result of a tool is stored as a step. A process that resumes the run makes its agent what that
one was, and continues it: only the calls that were under way are made again.

    store.recover({"planner": lambda run: resume(agent, run)})

An interrupt, of a hook or a tool, makes the run wait for the answer to a question.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter
from strands import Agent
from strands.agent import AgentResult
from strands.hooks import AfterInvocationEvent, MessageAddedEvent
from strands.interrupt import Interrupt
from strands.middleware import ExecuteToolStage
from strands.types.agent import AgentInput

from outlive.adapters.common import running
from outlive.adapters.common.current import Work
from outlive.adapters.common.plain import jsonable
from outlive.adapters.common.questions import ask_all
from outlive.adapters.strands.snapshots import (
    Snapshots,
    agent_namespace,
    captured,
    described,
    restore,
    restore_stash,
)
from outlive.adapters.strands.tools import keep_tool
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.options import SubmitOptions
from outlive.runs.run import AsyncRun
from outlive.runs.waits import Question
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store

_MARK = "strands"
_PREPARED = "outlive_prepared"
_OURS = frozenset(SubmitOptions.__optional_keys__)
OnEvent = Callable[[dict[str, Any]], Any]


@dataclass(slots=True)
class AgentOutcome:
    """What became of a run of an agent."""

    run: RunInfo
    output: Any = None  # the structured output, or the text of the last message
    result: AgentResult | None = None  # of Strands; None for a run that had ended before

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run waits for answers; `store.questions()` lists the questions."""
        return self.run.status == "waiting"


def run(
    agent: Agent,
    prompt: AgentInput,
    *,
    thread_id: str,
    store: Store,
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an agent as a run of `store`, with the session of that thread, and return its outcome.

    With the `run_id` of a run that has ended, return its output and call nothing. `on_event` gets
    the events of `agent.stream_async`. Options of `store.run` (`run_id`, `agent`, `lease_s`, ...)
    describe the run; `store.recover` chooses a handler by `agent` (default: the agent's name). All
    others go to `agent.stream_async`. Raises ThreadBusy while another run has this thread,
    LeaseLost when another process has taken this one.
    """
    drive, ours = _Drive(agent, options, on_event), _described(agent, prompt, options)
    return drive.outcome(running.begin(store, running.in_loop(drive), thread_id, **ours))


async def arun(
    agent: Agent,
    prompt: AgentInput,
    *,
    thread_id: str,
    store: AsyncStore,
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an agent as a run of `store`, which `outlive.open_async` has opened; see `run`."""
    drive, ours = _Drive(agent, options, on_event), _described(agent, prompt, options)
    return drive.outcome(await running.abegin(store, drive, thread_id, **ours))


def resume(agent: Agent, run: Run, *, on_event: OnEvent | None = None, **options: Any) -> AgentOutcome:
    """Continue a run that this process has claimed; `options` go to `agent.stream_async` again."""
    drive = _Drive(agent, options, on_event)
    running.resume(run, running.in_loop(drive))
    return drive.outcome(running.Outcome(run.info))


async def aresume(
    agent: Agent, run: AsyncRun, *, on_event: OnEvent | None = None, **options: Any
) -> AgentOutcome:
    """Continue a run that this process has claimed; `options` go to `agent.stream_async` again."""
    drive = _Drive(agent, options, on_event)
    await running.aresume(run, drive)
    return drive.outcome(running.Outcome(run.info))


def _described(agent: Agent, prompt: AgentInput, options: dict[str, Any]) -> SubmitOptions:
    """Return the options of the run, with its prompt."""
    if "prompt" in options:
        raise BadArgument("pass the prompt as the second argument")
    ours: Any = {"agent": agent.name, **{name: options[name] for name in options if name in _OURS}}
    ours["prompt"] = {_MARK: 1, "agent_id": agent.agent_id, "prompt": prompt}
    return cast(SubmitOptions, ours)


class _Drive:
    """Drives an agent in a run, from its prompt to its end or to a question."""

    def __init__(self, agent: Agent, options: dict[str, Any], on_event: OnEvent | None) -> None:
        if agent._session_manager is not None:
            raise BadArgument(
                "the run keeps the session in its thread: make the agent without session_manager"
            )
        self._agent = agent
        self._options = {name: value for name, value in options.items() if name not in _OURS}
        self._on_event = on_event
        self._result: AgentResult | None = None
        self._asked = 0  # how often the agent was interrupted
        self._unsaved = 0  # messages that it must have before it is saved: all of its prompt, or none
        self._is_redacted = False
        self._current: Work
        self._line: Snapshots

    def outcome(self, outcome: running.Outcome[Any]) -> AgentOutcome:
        """Return what became of the run."""
        if self._result is not None and outcome.run.status == "completed":
            return AgentOutcome(outcome.run, _output(self._result), self._result)
        stored, kind = outcome.run.result, self._options.get("structured_output_model")
        if kind is not None and outcome.run.status == "completed":
            stored = TypeAdapter(kind).validate_python(stored)
        return AgentOutcome(outcome.run, stored)

    async def __call__(self, current: Work) -> Any:
        prompt = current.run.info.prompt
        if not isinstance(prompt, dict) or _MARK not in prompt:
            raise BadArgument(f"run {current.run.id!r} was not started by this adapter: it has no prompt")
        if prompt["agent_id"] != self._agent.agent_id:
            raise BadArgument(
                f"the run is of the agent with the id {prompt['agent_id']!r}, not {self._agent.agent_id!r}"
            )
        self._current = current
        self._line = Snapshots(current.run.info.thread, agent_namespace(self._agent.agent_id))
        prepare(self._agent)
        with self._attached():
            return await self._work(prompt["prompt"])

    async def _work(self, prompt: Any) -> Any:
        state = await self._line.load(self._store)
        if state is not None:
            restore(self._agent, state)
            await restore_stash(self._agent, state)
        if state is None or state.get("run") != self._current.run.id:
            await self._begin(prompt)
        else:
            self._asked = state["asked"]
            await self._continue()
        while self._agent._interrupt_state.activated:
            await self._go(await self._answers())
        self._current.check()
        output = _text(self._agent.messages[-1]) if self._result is None else _output(self._result)
        await self._current.run.complete(jsonable(output))
        return output

    async def _begin(self, prompt: Any) -> None:
        if self._agent._interrupt_state.activated:
            raise BadArgument("the agent of this session waits for answers that its last run did not get")
        messages = self._agent.messages
        self._unsaved = len(messages) + _count(prompt) + (bool(messages) and _calls_tools(messages[-1]))
        await self._go(prompt)

    async def _continue(self) -> None:
        """Continue after the last message that is stored; nothing, if that is the last of all or the agent waits."""
        if self._agent._interrupt_state.activated:
            return
        last = self._agent.messages[-1]
        has_ended = last["role"] == "assistant" and not _calls_tools(last)
        if not has_ended or self._options.get("structured_output_model") is not None:
            await self._go(None)

    async def _go(self, prompt: Any) -> None:
        async for event in self._agent.stream_async(prompt, **self._options):
            if "result" in event:
                self._result = event["result"]
            heard = None if self._on_event is None else self._on_event(event)
            if inspect.isawaitable(heard):
                await heard
        self._current.check()

    # Questions

    async def _answers(self) -> list[Any]:
        """Return the answers to the interrupts of the agent. Without all of them the run waits: raises RunSuspended."""
        interrupts = [
            each for each in self._agent._interrupt_state.interrupts.values() if each.response is None
        ]
        names = {self._name(interrupt): interrupt for interrupt in interrupts}
        questions = {name: Question(_payload(interrupt)) for name, interrupt in names.items()}
        answers = await ask_all(self._current, questions)
        return [
            {"interruptResponse": {"interruptId": names[name].id, "response": answer}}
            for name, answer in answers.items()
        ]

    def _name(self, interrupt: Interrupt) -> str:
        """Return the name of a question; a hook may interrupt again under the id of an interrupt that was answered."""
        digest = hashlib.blake2b(f"{self._asked}:{interrupt.id}".encode(), digest_size=6).hexdigest()
        return f"{' '.join(interrupt.name.split())[:100]}:{digest}"

    # Snapshots

    @property
    def _store(self) -> AsyncStore:
        return cast(AsyncStore, self._current.run.thread._store)

    async def save(self, *, is_new: bool, is_interrupt: bool = False) -> None:
        """Save the agent, if it has all messages of its prompt."""
        self._current.check()
        if len(self._agent.messages) < self._unsaved:
            return
        self._unsaved = 0
        self._asked += is_interrupt
        state = {**await captured(self._agent), "run": self._current.run.id, "asked": self._asked}
        source: Any = "interrupt" if is_interrupt else "loop"
        metadata = described(self._agent)
        await self._line.save(self._store, state, is_new=is_new, source=source, metadata=metadata)
        if self._is_redacted:
            self._is_redacted = False
            await self._line.forget(self._store, metadata["messages"] - 1)

    # What Strands calls of a session manager, beside its hooks

    @property
    def session_id(self) -> str:
        """The session."""
        return self._current.run.info.thread

    def redact_latest_message(self, *args: Any, **options: Any) -> None:
        """Erase, with the next save, what the last message was."""
        self._is_redacted = True

    def sync_agent(self, *args: Any, **options: Any) -> None:
        """Do nothing: the next message saves the agent."""

    @contextlib.contextmanager
    def _attached(self) -> Iterator[None]:
        """Let the hooks of the agent save it, and be its session manager."""
        token = _drive.set(self)
        self._agent._session_manager = cast(Any, self)
        try:
            yield
        finally:
            self._agent._session_manager = None
            _drive.reset(token)


_drive: ContextVar[_Drive | None] = ContextVar("outlive_strands_drive", default=None)


def prepare(agent: Agent) -> None:
    """Let an agent be saved by the run that it works in, and its tools ask that first. Outside a run nothing changes."""
    if agent.__dict__.get(_PREPARED):
        return
    agent.__dict__[_PREPARED] = True
    agent.add_hook(_on_message, MessageAddedEvent)
    agent.add_hook(_on_invocation, AfterInvocationEvent)
    agent.add_middleware(ExecuteToolStage, keep_tool)


async def _on_message(event: MessageAddedEvent[Any]) -> None:
    drive = _drive.get()
    if drive is not None and drive._agent is event.agent:
        await drive.save(is_new=True)


async def _on_invocation(event: AfterInvocationEvent) -> None:
    drive = _drive.get()
    if drive is not None and drive._agent is event.agent:
        is_interrupt = event.result is not None and event.result.stop_reason == "interrupt"
        await drive.save(is_new=is_interrupt, is_interrupt=is_interrupt)


def _payload(interrupt: Interrupt) -> dict[str, Any]:
    return {"name": interrupt.name, "reason": jsonable(interrupt.reason)}


def _count(prompt: Any) -> int:
    """Return how many messages a prompt is."""
    if prompt is None or prompt == []:
        return 0
    is_messages = isinstance(prompt, list) and all("role" in part for part in prompt)
    return len(prompt) if is_messages else 1


def _calls_tools(message: Any) -> bool:
    return any("toolUse" in block for block in message["content"])


def _text(message: Any) -> str:
    return "\n".join(block["text"] for block in message["content"] if "text" in block)


def _output(result: AgentResult) -> Any:
    return _text(result.message) if result.structured_output is None else result.structured_output
