"""Agents of the Agents SDK as runs, which another process finishes when theirs dies.

`run` starts a run on the thread of the conversation. Every response of a model and every result of
a tool is stored as a step. A process that resumes the run starts the agent again with its input;
steps that were finished return what is stored, so only the call that was under way is made again.
The conversation is read as it was when the run began, and what an earlier attempt has added to it
is not added again.

    store.recover({"planner": lambda run: resume(agent, run)})

A tool call that needs an approval makes the run wait for the answer to a question.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agents import Agent, RunConfig, Runner, TResponseInputItem
from agents.models.interface import Model
from agents.result import RunResult, RunResultStreaming
from pydantic import TypeAdapter

from outlive.adapters.common import running
from outlive.adapters.common.current import Work
from outlive.adapters.common.plain import jsonable
from outlive.adapters.common.questions import approval, ask_all, decision_of
from outlive.adapters.openai_agents.calls import KeptProvider, kept_model, prepare
from outlive.adapters.openai_agents.run_session import RunSession
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.options import SubmitOptions
from outlive.runs.run import AsyncRun
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store

_MARK = "openai-agents"
_OURS = frozenset(SubmitOptions.__optional_keys__)
_RUNS_OWN = ("session", "conversation_id", "previous_response_id", "auto_previous_response_id", "prompt")
Input = str | list[TResponseInputItem]
OnEvent = Callable[[Any], Any]


@dataclass(slots=True)
class AgentOutcome:
    """What became of a run of an agent."""

    run: RunInfo
    final_output: Any = None
    # Of the SDK; None for a run that had ended before.
    result: RunResult | RunResultStreaming | None = None

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run waits for answers; `store.questions()` lists the questions."""
        return self.run.status == "waiting"


def run(
    agent: Agent[Any],
    input: Input,
    *,
    thread_id: str,
    store: Store,
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an agent as a run of `store`, with the conversation of that thread, and return its outcome.

    With the `run_id` of a run that has ended, return its output and call nothing. `on_event` gets
    the events of the SDK's stream. Options of `store.run` (`run_id`, `agent`, `lease_s`, ...)
    describe the run; `store.recover` chooses a handler by `agent` (default: the agent's name). All
    others go to `Runner.run`. Raises ThreadBusy while another run has this thread, LeaseLost when
    another process has taken this one.
    """
    ours, theirs = _split(agent, input, options)
    work = _Drive(agent, theirs, on_event)
    return work.outcome(running.begin(store, running.in_loop(work), thread_id, **ours))


async def arun(
    agent: Agent[Any],
    input: Input,
    *,
    thread_id: str,
    store: AsyncStore,
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an agent as a run of `store`, which `outlive.open_async` has opened; see `run`."""
    ours, theirs = _split(agent, input, options)
    work = _Drive(agent, theirs, on_event)
    return work.outcome(await running.abegin(store, work, thread_id, **ours))


def resume(agent: Agent[Any], run: Run, *, on_event: OnEvent | None = None, **options: Any) -> AgentOutcome:
    """Continue a run that this process has claimed; `options` go to `Runner.run`, such as `context`."""
    work = _Drive(agent, options, on_event)
    running.resume(run, running.in_loop(work))
    return work.outcome(running.Outcome(run.info))


async def aresume(
    agent: Agent[Any], run: AsyncRun, *, on_event: OnEvent | None = None, **options: Any
) -> AgentOutcome:
    """Continue a run that this process has claimed; `options` go to `Runner.run`, such as `context`."""
    work = _Drive(agent, options, on_event)
    await running.aresume(run, work)
    return work.outcome(running.Outcome(run.info))


def _split(agent: Agent[Any], input: Input, options: dict[str, Any]) -> tuple[SubmitOptions, dict[str, Any]]:
    """Return the options of the run, with its input, and those of the SDK."""
    theirs = {name: value for name, value in options.items() if name not in _OURS}
    ours: Any = {"agent": agent.name, **{name: value for name, value in options.items() if name in _OURS}}
    if wrong := [name for name in _RUNS_OWN if name in options]:
        raise BadArgument(
            f"the run keeps its conversation in its thread: pass thread_id, without {', '.join(wrong)}"
        )
    ours["prompt"] = {_MARK: 1, "input": input if isinstance(input, str) else jsonable(input)}
    return ours, theirs


class _Drive:
    """Drives an agent in a run, from its input to its end or to a question."""

    def __init__(self, agent: Agent[Any], options: dict[str, Any], on_event: OnEvent | None) -> None:
        self._agent = agent
        self._options = {**options, "run_config": _kept_config(options.get("run_config"))}
        self._on_event = on_event
        self._result: RunResult | RunResultStreaming | None = None

    def outcome(self, outcome: running.Outcome[Any]) -> AgentOutcome:
        """Return what became of the run."""
        if self._result is not None:
            return AgentOutcome(outcome.run, self._result.final_output, self._result)
        stored = outcome.run.result
        if self._agent.output_type is not None and outcome.run.status == "completed":
            kind: Any = getattr(self._agent.output_type, "output_type", self._agent.output_type)
            stored = TypeAdapter(kind).validate_python(stored)
        return AgentOutcome(outcome.run, stored)

    async def __call__(self, current: Work) -> Any:
        prompt = current.run.info.prompt
        if not isinstance(prompt, dict) or _MARK not in prompt:
            raise BadArgument(
                f"run {current.run.id!r} was not started by this adapter: it has no input of an agent"
            )
        prepare(self._agent)
        session = RunSession(current)
        self._result = await self._go(prompt["input"], session)
        while self._result.interruptions:
            state = self._result.to_state()
            await self._ask(current, state, state.get_interruptions())
            self._result = await self._go(state, session)
            current.check()
        current.check()
        await current.run.complete(jsonable(self._result.final_output))
        return self._result.final_output

    async def _go(self, input: Any, session: RunSession) -> RunResult | RunResultStreaming:
        if self._on_event is None:
            return await Runner.run(self._agent, input, session=session, **self._options)
        result = Runner.run_streamed(self._agent, input, session=session, **self._options)
        async for event in result.stream_events():
            heard = self._on_event(event)
            if inspect.isawaitable(heard):
                await heard
        return result

    async def _ask(self, current: Work, state: Any, interruptions: list[Any]) -> None:
        """Approve or reject the calls in a state. Without all answers the run waits: raises RunSuspended."""
        questions = [approval(*_call_of(item), agent=item.agent.name) for item in interruptions]
        answers = await ask_all(current, dict(questions))
        for (name, _), item in zip(questions, interruptions, strict=True):
            decision = decision_of(answers[name])
            if decision.approve:
                state.approve(item, always_approve=decision.always)
            else:
                state.reject(item, always_reject=decision.always, rejection_message=decision.message)


def _call_of(item: Any) -> tuple[str, str, Any]:
    """Return the tool, the id and the arguments of a call that needs an approval."""
    raw: Any = item.raw_item
    call = raw if isinstance(raw, dict) else raw.model_dump()
    arguments: Any = call.get("arguments")
    with contextlib.suppress(TypeError, ValueError):  # else as the model wrote them
        arguments = json.loads(arguments)
    return item.tool_name or call.get("name") or "tool", call.get("call_id") or call["id"], arguments


def _kept_config(config: RunConfig | dict[str, Any] | None) -> RunConfig:
    """Return a configuration whose models ask the ledger."""
    made = RunConfig(**config) if isinstance(config, dict) else config or RunConfig()
    model = kept_model(made.model) if isinstance(made.model, Model) else made.model
    return dataclasses.replace(made, model=model, model_provider=KeptProvider(made.model_provider))
