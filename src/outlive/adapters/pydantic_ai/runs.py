"""Agents of Pydantic AI as runs: begun by one process, finished by it or by another."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai import AgentRunResult, RunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelResponse, UserContent
from pydantic_ai.usage import RunUsage

from outlive.adapters.common import running
from outlive.adapters.common.current import Work
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.plain import Plain, jsonable
from outlive.adapters.pydantic_ai.durability import OutliveDurability
from outlive.adapters.pydantic_ai.log import Logs, loaded_record, plain_record
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.options import SubmitOptions
from outlive.runs.run import AsyncRun
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store

_MARK = "pydantic-ai"
_OURS = frozenset(SubmitOptions.__optional_keys__)
_RUNS_OWN = ("conversation", "message_history", "conversation_id", "deferred_tool_results", "prompt")
Prompt = str | Sequence[UserContent] | None
OnEvent = Callable[[Any], Any]
_prompts: Plain[Any] = Plain(str | list[UserContent] | None)


@dataclass(slots=True)
class AgentOutcome:
    """What became of a run of an agent."""

    run: RunInfo
    output: Any = None
    result: AgentRunResult[Any] | None = None  # None for a run that waits, or had ended before

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run waits for answers; `store.questions()` lists the questions."""
        return self.run.status == "waiting"


def run(
    agent: AbstractAgent[Any, Any],
    user_prompt: Prompt,
    *,
    thread_id: str,
    store: Store,
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an agent as a run of `store`, with the conversation of that id, and return its outcome.

    The agent needs the capability `OutliveDurability()`. With the `run_id` of a run that has ended,
    return its output and call nothing. `on_event` gets the events of the agent's stream. Options of
    `store.run` (`run_id`, `agent`, `lease_s`, ...) describe the run; `store.recover` chooses a
    handler by `agent` (default: the agent's name). All others go to `agent.run`. Raises ThreadBusy
    while another run has this thread, LeaseLost when another process has taken this one.
    """
    ours, theirs = _split(agent, user_prompt, options)
    work = _Drive(agent, theirs, on_event)
    return work.outcome(running.begin(store, running.in_loop(work), thread_id, **ours))


async def arun(
    agent: AbstractAgent[Any, Any],
    user_prompt: Prompt,
    *,
    thread_id: str,
    store: AsyncStore,
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an agent as a run of `store`, which `outlive.open_async` has opened; see `run`."""
    ours, theirs = _split(agent, user_prompt, options)
    work = _Drive(agent, theirs, on_event)
    return work.outcome(await running.abegin(store, work, thread_id, **ours))


def resume(
    agent: AbstractAgent[Any, Any], run: Run, *, on_event: OnEvent | None = None, **options: Any
) -> AgentOutcome:
    """Continue a run that this process has claimed; `options` go to `agent.run`, such as `deps`."""
    work = _Drive(agent, options, on_event)
    running.resume(run, running.in_loop(work))
    return work.outcome(running.Outcome(run.info))


async def aresume(
    agent: AbstractAgent[Any, Any], run: AsyncRun, *, on_event: OnEvent | None = None, **options: Any
) -> AgentOutcome:
    """Continue a run that this process has claimed; `options` go to `agent.run`, such as `deps`."""
    work = _Drive(agent, options, on_event)
    await running.aresume(run, work)
    return work.outcome(running.Outcome(run.info))


def _split(
    agent: AbstractAgent[Any, Any], prompt: Prompt, options: dict[str, Any]
) -> tuple[SubmitOptions, dict[str, Any]]:
    """Return the options of the run, with its prompt, and those of the framework."""
    if wrong := [name for name in _RUNS_OWN if name in options]:
        raise BadArgument(
            f"the run keeps its conversation in its thread: pass thread_id, without {', '.join(wrong)}"
        )
    theirs = {name: value for name, value in options.items() if name not in _OURS}
    ours: Any = {"agent": agent.name, **{name: value for name, value in options.items() if name in _OURS}}
    plain = prompt if isinstance(prompt, str) or prompt is None else list(prompt)
    ours["prompt"] = {_MARK: 1, "prompt": _prompts.dump(plain)}
    return ours, theirs


class _Drive:
    """Drives an agent in a run, from its prompt to its end or to a question."""

    def __init__(
        self, agent: AbstractAgent[Any, Any], options: dict[str, Any], on_event: OnEvent | None
    ) -> None:
        if not _is_durable(agent):
            raise BadArgument(
                f"agent {agent.name!r} is not durable: make it with capabilities=[OutliveDurability()]"
            )
        self._agent = agent
        self._options = options if on_event is None else {**options, "event_stream_handler": _heard(on_event)}
        self._result: AgentRunResult[Any] | None = None
        self._logs = Logs()

    def outcome(self, outcome: running.Outcome[Any]) -> AgentOutcome:
        """Return what became of the run."""
        if self._result is not None:
            return AgentOutcome(outcome.run, self._result.output, self._result)
        stored = outcome.run.result
        if outcome.run.status == "completed":
            stored = _typed(self._agent.output_type, stored)
        return AgentOutcome(outcome.run, stored)

    async def __call__(self, current: Work) -> Any:
        prompt = current.run.info.prompt
        if not isinstance(prompt, dict) or _MARK not in prompt:
            raise BadArgument(
                f"run {current.run.id!r} was not started by this adapter: it has no prompt of an agent"
            )
        store = cast(AsyncStore, current.run.thread._store)
        began = await self._began(store, current)
        conversation = await self._conversation(store, current.run.info.thread, began)
        result = await self._agent.run(
            _prompts.load(prompt["prompt"]), conversation=conversation, **self._options
        )
        current.check()
        await self._save(store, current, began, result)
        await current.run.complete(jsonable(result.output))
        self._result = result
        return result.output

    async def _began(self, store: AsyncStore, current: Work) -> ConversationRecord | None:
        """Return the record of the conversation that the first attempt of the run began with."""

        async def read() -> ConversationRecord | None:
            return await self._logs.record(store, current.run.info.thread)

        return await kept("conversation", read, dump=plain_record, load=loaded_record)

    async def _conversation(
        self, store: AsyncStore, thread_id: str, began: ConversationRecord | None
    ) -> Conversation:
        if began is None:
            return Conversation(conversation_id=thread_id)
        entries = await self._logs.line(store, thread_id, began.head_id)
        return Conversation(
            messages=[entry.message for entry in entries],
            usage=replace(began.usage),
            conversation_id=thread_id,
        )

    async def _save(
        self,
        store: AsyncStore,
        current: Work,
        began: ConversationRecord | None,
        result: AgentRunResult[Any],
    ) -> None:
        """Add the new messages to the conversation, unless an earlier attempt of the run has added them."""
        thread_id, revision = current.run.info.thread, f"{current.run.id}:messages"
        while not await store.thread(thread_id).exists(revision):
            latest = await self._logs.record(store, thread_id)
            record, entries = _extended(thread_id, began, latest, result)
            record.revision = revision
            try:
                await self._logs.write(store, record, entries, latest.revision if latest else None)
            except ConversationConflict:
                continue  # something else has saved meanwhile: ours comes after it


def _extended(
    thread_id: str,
    began: ConversationRecord | None,
    latest: ConversationRecord | None,
    result: AgentRunResult[Any],
) -> tuple[ConversationRecord, list[ConversationEntry]]:
    """Return the record of a conversation with the messages of a run, and their entries."""
    base = latest or ConversationRecord(conversation_id=thread_id, head_id=None)
    parent, entries = base.head_id, []
    for message in result.new_messages():
        entries.append(ConversationEntry(parent_id=parent, message=message))
        parent = entries[-1].id
    has_moved = (latest.revision if latest else None) != (began.revision if began else None)
    record = replace(
        base,
        head_id=parent,
        usage=_usage_after(base.usage, result) if has_moved else result.usage,
        deferred_tool_requests=result.conversation.deferred_tool_requests,
        updated_at=datetime.now(UTC),
    )
    return record, entries


def _usage_after(usage: RunUsage, result: AgentRunResult[Any]) -> RunUsage:
    total = replace(usage)
    for message in result.new_messages():
        if isinstance(message, ModelResponse):
            total = total + RunUsage(requests=1)
            total.incr(message.usage)
    return total


def _is_durable(agent: AbstractAgent[Any, Any]) -> bool:
    found: list[bool] = []
    agent.root_capability.apply(lambda leaf: found.append(isinstance(leaf, OutliveDurability)))
    return any(found)


def _heard(on_event: OnEvent) -> Any:
    async def handle(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        async for event in events:
            heard = on_event(event)
            if inspect.isawaitable(heard):
                await heard

    return handle


def _typed(kind: Any, stored: Any) -> Any:
    """Return a stored output as its type; as it is stored, when the type is one of the framework's markers."""
    kinds = list(kind) if isinstance(kind, Sequence) and not isinstance(kind, str) else [kind]
    if not all(isinstance(part, type) for part in kinds):
        return stored
    union: Any = functools.reduce(operator.or_, kinds)
    return TypeAdapter(union).validate_python(stored)
