"""Drives a workflow in a run, from its input or a checkpoint to its end or to a question."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from agent_framework import (
    Agent,
    AgentExecutor,
    AgentResponse,
    AgentResponseUpdate,
    Content,
    Message,
    Workflow,
    WorkflowCheckpoint,
    WorkflowEvent,
    WorkflowExecutor,
)

from outlive.adapters.agent_framework.agents import answer_to, check_client, question_of
from outlive.adapters.agent_framework.calls import KeptModel, KeptTools, superstep
from outlive.adapters.agent_framework.checkpoints import CheckpointLog, Types, encoded, plain_value
from outlive.adapters.common.current import Work
from outlive.adapters.common.plain import jsonable
from outlive.adapters.common.questions import ask_all
from outlive.errors import BadArgument
from outlive.runs.answer_schema import schema_of
from outlive.runs.waits import Question
from outlive.store import AsyncStore

_MARK = "agent-framework workflow"
Pending = dict[str, WorkflowEvent[Any]]


class WorkflowDrive:
    """Drives a workflow in a run."""

    def __init__(
        self,
        workflow: Workflow,
        options: dict[str, Any],
        on_event: Callable[[Any], Any] | None,
        types: Types,
    ) -> None:
        prepare(workflow)
        self._workflow = workflow
        self._options = options
        self._on_event = on_event
        self._types = tuple(types)
        self.outputs: list[Any] | None = None

    @staticmethod
    def prompt(input: Any) -> Any:
        """Return the message of a workflow as it is stored."""
        return {_MARK: 1, "message": plain_value(input)}

    async def __call__(self, current: Work) -> Any:
        prompt = current.run.info.prompt
        if not isinstance(prompt, dict) or _MARK not in prompt:
            raise BadArgument(f"run {current.run.id!r} was not started by this adapter with a workflow")
        checkpoints = _RunCheckpoints(current, self._types)
        token = superstep.set(lambda: checkpoints.last)
        try:
            arguments = await self._first(current, checkpoints, prompt["message"])
            while arguments:
                pending = await self._follow(current, checkpoints, arguments)
                arguments = {"responses": await _responses(current, pending)} if pending else {}
        finally:
            superstep.reset(token)
        self.outputs = checkpoints.outputs
        await current.run.complete(jsonable(_plain_output(self.outputs)))
        return self.outputs

    async def _first(self, current: Work, checkpoints: _RunCheckpoints, message: Any) -> dict[str, Any]:
        """Return how to start the workflow: with its message, or with the last checkpoint of this run."""
        latest = await checkpoints.latest()
        if latest is None:
            return {"message": checkpoints.log.value(message)}
        arguments: dict[str, Any] = {"checkpoint_id": latest.checkpoint_id}
        if latest.pending_request_info_events and not latest.messages:
            arguments["responses"] = await _responses(current, latest.pending_request_info_events)
        return arguments

    async def _follow(
        self, current: Work, checkpoints: _RunCheckpoints, arguments: dict[str, Any]
    ) -> Pending:
        """Pass events on until the workflow is idle, and return its pending requests.

        The framework only logs that a checkpoint was not stored; here that ends the run, before the
        next superstep.
        """
        pending: Pending = {}
        stream = self._workflow.run(**arguments, stream=True, checkpoint_storage=checkpoints, **self._options)
        async with stream:
            async for event in stream:
                current.check()
                if event.type == "request_info":
                    pending[event.request_id] = event
                checkpoints.note(event)
                heard = None if self._on_event is None else self._on_event(event)
                if inspect.isawaitable(heard):
                    await heard
        current.check()
        return pending


class _RunCheckpoints:
    """The checkpoints of a run, which also have the outputs so far."""

    def __init__(self, current: Work, types: Types) -> None:
        self.log = CheckpointLog(current.run.info.thread, types)
        self.last = ""
        self.outputs: list[Any] = []
        self._updates: dict[str | None, list[AgentResponseUpdate]] = {}  # by executor
        self._current = current
        self._store = cast(AsyncStore, current.run.thread._store)

    def note(self, event: WorkflowEvent[Any]) -> None:
        """Keep an output. An agent streams updates: they are one output, as without a stream, when it has ended."""
        if event.type == "output" and isinstance(event.data, AgentResponseUpdate):
            self._updates.setdefault(event.executor_id, []).append(event.data)
        elif event.type == "output":
            self.outputs.append(_said(event.data))
        elif event.type == "executor_completed" and event.executor_id in self._updates:
            self.outputs.append(_said(AgentResponse.from_updates(self._updates.pop(event.executor_id))))

    async def latest(self) -> WorkflowCheckpoint | None:
        """Return the last checkpoint of this run, and restore the outputs that it has."""
        thread = self.log.past.thread(self._store)
        async for info in thread.history(run=self._current.run.id, limit=1):
            state = await self.log.read(self._store, info.id)
            self.outputs = self.log.value(state["outputs"])
            return self.log.decoded(state)
        return None

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        try:
            plain, outputs = encoded(checkpoint), plain_value(self.outputs)
            await self.log.save(self._store, plain, outputs=outputs)
        except Exception as error:
            self._current.ended_by = self._current.ended_by or error
            raise
        self.last = checkpoint.checkpoint_id
        return self.last

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        self.last = checkpoint_id
        return await self.log.load(self._store, checkpoint_id)

    # The workflow does not call these.

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        return await self.log.all(self._store, workflow_name)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        return await self.log.ids(self._store, workflow_name)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        return await self.log.latest(self._store, workflow_name)

    async def delete(self, checkpoint_id: str) -> bool:
        raise BadArgument("a run keeps its checkpoints until it has ended")


def _said(output: Any) -> Any:
    return output.text if isinstance(output, AgentResponse) else output


def _plain_output(output: Any) -> Any:
    """Return an output as data, if it is a message of the framework or a list of those."""
    if isinstance(output, list):
        return [_plain_output(part) for part in output]
    return output.to_dict() if isinstance(output, Message | Content) else output


def prepare(workflow: Workflow, path: str = "") -> None:
    """Let the agents of a workflow ask the ledger. Outside a run they only pass calls on."""
    for id, executor in workflow.executors.items():
        if isinstance(executor, WorkflowExecutor):
            prepare(executor.workflow, f"{path}{id}/")
        agent = executor.agent if isinstance(executor, AgentExecutor) else None
        if not isinstance(agent, Agent):
            continue
        check_client(agent)
        middleware = list(agent.middleware or ())
        if not any(isinstance(each, KeptModel) for each in middleware):
            agent.middleware = [*middleware, KeptTools(f"{path}{id}"), KeptModel(f"{path}{id}")]


# Questions


async def _responses(current: Work, pending: Pending) -> dict[str, Any]:
    """Return the responses to requests. Without all, the run waits: raises RunSuspended."""
    questions = {id: _question(event) for id, event in pending.items()}
    answers = await ask_all(current, dict(questions.values()))
    return {id: _response(event, answers[questions[id][0]]) for id, event in pending.items()}


def _question(event: WorkflowEvent[Any]) -> tuple[str, Question]:
    if isinstance(event.data, Content):
        return question_of(event.data)
    payload = {"executor": event.source_executor_id, "request": jsonable(event.data)}
    return f"{event.source_executor_id}:{event.request_id}", Question(payload, _schema(event.response_type))


def _schema(kind: Any) -> Any:
    """Return the schema of a response, if its type has one; the framework makes the type of it."""
    try:
        return schema_of(kind)
    except BadArgument:
        return None


def _response(event: WorkflowEvent[Any], answer: Any) -> Any:
    return answer_to(event.data, answer) if isinstance(event.data, Content) else answer
