"""Agents and workflows of the framework as runs: begun by one process, finished by it or by another.

An agent is started again with its input, and its finished calls return what is stored. A workflow
is continued from its last checkpoint; in the superstep that was under way, finished calls of its
agents return what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_framework import Agent, AgentResponse, Workflow

from outlive.adapters.agent_framework.agents import AgentDrive
from outlive.adapters.agent_framework.checkpoints import Types
from outlive.adapters.agent_framework.workflows import WorkflowDrive
from outlive.adapters.common import running
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.options import SubmitOptions
from outlive.runs.run import AsyncRun
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store

_OURS = frozenset(SubmitOptions.__optional_keys__)
_RUNS_OWN = ("session", "stream", "checkpoint_storage", "checkpoint_id", "responses", "prompt")
OnEvent = Callable[[Any], Any]
Subject = Agent[Any] | Workflow


@dataclass(slots=True)
class AgentOutcome:
    """What became of a run of an agent or a workflow."""

    run: RunInfo
    # Of an agent: its text, or the value of its response_format. Of a workflow: the list of its
    # outputs.
    output: Any = None
    # Of an agent; None for a run that waits, or had ended before.
    response: AgentResponse[Any] | None = None

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run waits for answers; `store.questions()` lists the questions."""
        return self.run.status == "waiting"


def run(
    subject: Subject,
    input: Any,
    *,
    thread_id: str,
    store: Store,
    allowed_checkpoint_types: Types = (),
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an agent or a workflow as a run of `store`, on that thread, and return its outcome.

    An agent has the history of the thread; a workflow leaves its checkpoints there, which may hold
    `allowed_checkpoint_types`. With the `run_id` of a run that has ended, return its output and
    call nothing. `on_event` gets the updates of the agent's stream, or the events of the workflow.
    Options of `store.run` (`run_id`, `agent`, `lease_s`, ...) describe the run; `store.recover`
    chooses a handler by `agent` (default: the name of the agent or workflow). All others go to
    `subject.run`. Raises ThreadBusy while another run has this thread, LeaseLost when another
    process has taken this one.
    """
    ours, theirs = _split(subject, options)
    drive = _drive(subject, theirs, on_event, allowed_checkpoint_types)
    ours["prompt"] = drive.prompt(input)
    return _outcome(drive, running.begin(store, running.in_loop(drive), thread_id, **ours))


async def arun(
    subject: Subject,
    input: Any,
    *,
    thread_id: str,
    store: AsyncStore,
    allowed_checkpoint_types: Types = (),
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an agent or a workflow as a run of `store`, which `outlive.open_async` has opened; see `run`."""
    ours, theirs = _split(subject, options)
    drive = _drive(subject, theirs, on_event, allowed_checkpoint_types)
    ours["prompt"] = drive.prompt(input)
    return _outcome(drive, await running.abegin(store, drive, thread_id, **ours))


def resume(
    subject: Subject,
    run: Run,
    *,
    allowed_checkpoint_types: Types = (),
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Continue a run that this process has claimed; `options` go to `subject.run`: pass them again."""
    drive = _drive(subject, _checked(options), on_event, allowed_checkpoint_types)
    running.resume(run, running.in_loop(drive))
    return _outcome(drive, running.Outcome(run.info))


async def aresume(
    subject: Subject,
    run: AsyncRun,
    *,
    allowed_checkpoint_types: Types = (),
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Continue a run that this process has claimed; `options` go to `subject.run`: pass them again."""
    drive = _drive(subject, _checked(options), on_event, allowed_checkpoint_types)
    await running.aresume(run, drive)
    return _outcome(drive, running.Outcome(run.info))


def _split(subject: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the options of the run, and those of the framework."""
    theirs = _checked(
        {name: value for name, value in options.items() if name not in _OURS or name == "prompt"}
    )
    name = getattr(subject, "name", None)
    return {"agent": name, **{key: options[key] for key in options if key in _OURS}}, theirs


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    if wrong := [name for name in _RUNS_OWN if name in options]:
        raise BadArgument(f"the run has a thread for that: leave out {', '.join(wrong)}")
    return options


def _drive(
    subject: Any, options: dict[str, Any], on_event: OnEvent | None, types: Types
) -> AgentDrive | WorkflowDrive:
    if isinstance(subject, Workflow):
        return WorkflowDrive(subject, options, on_event, types)
    if isinstance(subject, Agent):
        return AgentDrive(subject, options, on_event)
    raise BadArgument(f"run takes an Agent or a Workflow of agent_framework, not {type(subject).__name__}")


def _outcome(drive: AgentDrive | WorkflowDrive, outcome: running.Outcome[Any]) -> AgentOutcome:
    if isinstance(drive, WorkflowDrive):
        has_ended = outcome.run.status == "completed"
        stored = outcome.run.result if has_ended else None
        return AgentOutcome(outcome.run, stored if drive.outputs is None else drive.outputs)
    output = outcome.run.result if drive.response is None else drive.output
    return AgentOutcome(outcome.run, output, drive.response)
