"""Workflows of LlamaIndex as runs: begun by one process, finished by it or by another.

Before a step begins, and when it has ended, the context is saved, with the results of the steps
before and the event of this one. So the process that resumes the run repeats only the steps that
were under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

from workflows import Context, Workflow
from workflows.context import JsonSerializer
from workflows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    InternalDispatchEvent,
    StartEvent,
    StepState,
    StepStateChanged,
    StopEvent,
)
from workflows.handler import WorkflowHandler

from outlive.adapters.common import running
from outlive.adapters.common.current import Work, save_in_run
from outlive.adapters.common.plain import jsonable
from outlive.adapters.common.questions import ask_all
from outlive.adapters.llama_index.contexts import NAMESPACE, Types, dumped_in_run, loaded, serializer_of
from outlive.arguments import check_flag
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.options import SubmitOptions
from outlive.runs.run import AsyncRun
from outlive.runs.waits import Question
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store
from outlive.threads.thread import AsyncThread

_MARK = "llama-index"
Start = Mapping[str, Any] | StartEvent | None
OnEvent = Callable[[Event], Any]
Respond = Callable[[Any], Event]


@dataclass(slots=True)
class WorkflowOutcome:
    """What became of a run of a workflow."""

    run: RunInfo
    result: Any = None

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run waits for answers; `store.questions()` lists the questions."""
        return self.run.status == "waiting"


def run(
    workflow: Workflow,
    start: Start = None,
    *,
    thread_id: str,
    store: Store,
    types: Types = (),
    on_event: OnEvent | None = None,
    respond: Respond | None = None,
    keep_context: bool = False,
    **options: Any,
) -> WorkflowOutcome:
    """Run a workflow as a run of `store`, and return its outcome.

    `start` is its start event, or what makes one. `types` are classes that its context may hold,
    other than its events, its state and the models in its module. `on_event` gets what it writes to
    its stream. `respond` makes an event of an answer; by default a HumanResponseEvent. With
    `keep_context` the run begins with the context that the last run of this thread left, otherwise
    with an empty one. `options` are those of `store.run`; `store.recover` chooses a handler by
    `agent` (default: the name of the workflow's class). With the `run_id` of a run that has ended,
    return its result and call nothing. Raises ThreadBusy while another run has this thread,
    LeaseLost when another process has taken this one.
    """
    work = _Drive(workflow, types, on_event, respond)
    return work.outcome(
        running.begin(
            store, running.in_loop(work), thread_id, **_described(workflow, start, keep_context, options)
        )
    )


async def arun(
    workflow: Workflow,
    start: Start = None,
    *,
    thread_id: str,
    store: AsyncStore,
    types: Types = (),
    on_event: OnEvent | None = None,
    respond: Respond | None = None,
    keep_context: bool = False,
    **options: Any,
) -> WorkflowOutcome:
    """Run a workflow as a run of `store`, which `outlive.open_async` has opened; see `run`."""
    work = _Drive(workflow, types, on_event, respond)
    return work.outcome(
        await running.abegin(store, work, thread_id, **_described(workflow, start, keep_context, options))
    )


def resume(
    workflow: Workflow,
    run: Run,
    *,
    types: Types = (),
    on_event: OnEvent | None = None,
    respond: Respond | None = None,
) -> WorkflowOutcome:
    """Continue a run that this process has claimed."""
    work = _Drive(workflow, types, on_event, respond)
    running.resume(run, running.in_loop(work))
    return work.outcome(running.Outcome(run.info))


async def aresume(
    workflow: Workflow,
    run: AsyncRun,
    *,
    types: Types = (),
    on_event: OnEvent | None = None,
    respond: Respond | None = None,
) -> WorkflowOutcome:
    """Continue a run that this process has claimed."""
    work = _Drive(workflow, types, on_event, respond)
    await running.aresume(run, work)
    return work.outcome(running.Outcome(run.info))


def _described(
    workflow: Workflow, start: Start, keep_context: bool, options: dict[str, Any]
) -> SubmitOptions:
    """Return the options of the run, with its start event."""
    event = start if isinstance(start, StartEvent) else workflow.start_event_class(**(start or {}))
    check_flag("keep_context", keep_context)
    prompt = {_MARK: 1, "start": json.loads(JsonSerializer().serialize(event)), "keep": keep_context}
    described: Any = {"agent": type(workflow).__name__, **options, "prompt": prompt}
    return cast(SubmitOptions, described)


class _Drive:
    """Drives a workflow in a run, from its start or a stored context to its end or to a question."""

    def __init__(
        self, workflow: Workflow, types: Types, on_event: OnEvent | None, respond: Respond | None
    ) -> None:
        self._workflow = workflow
        self._serializer = serializer_of(workflow, types)
        self._on_event = on_event
        self._respond = respond or _human_response
        self._results: list[Any] = []
        self._questions: dict[str, Any] = {}  # that have no answer yet
        self._answers_later: dict[str, Any] = {}
        self._asked = 0
        self._saving = asyncio.Lock()
        self._current: Work
        self._handler: WorkflowHandler

    def outcome(self, outcome: running.Outcome[Any]) -> WorkflowOutcome:
        """Return what became of the run."""
        return WorkflowOutcome(outcome.run, self._results[0] if self._results else outcome.run.result)

    async def __call__(self, current: Work) -> Any:
        prompt = current.run.info.prompt
        if not isinstance(prompt, dict) or _MARK not in prompt:
            raise BadArgument(
                f"run {current.run.id!r} was not started by this adapter: it has no start event"
            )
        self._current = current
        prepare(self._workflow)
        token = _drive.set(self)
        try:
            await self._begin(prompt["start"], keeps=prompt["keep"])
            try:
                await self._follow()
                result = await self._handler
            finally:
                await self._end()
        finally:
            _drive.reset(token)
        current.check()
        await current.run.complete(jsonable(result))
        self._results.append(result)
        return result

    async def _begin(self, start: Any, *, keeps: bool) -> None:
        """Start the workflow, or continue it where the last context of this run was saved."""
        stored = await self._thread.load()
        if not isinstance(stored, dict) or stored.get("run") != self._current.run.id:
            event = self._serializer.deserialize(json.dumps(start))
            context = self._kept(stored) if keeps and stored is not None else None
            self._handler = self._workflow.run(start_event=event, ctx=context)
            return
        self._questions, self._asked = dict(stored["questions"]), stored["asked"]
        answers = await self._answers()
        context = loaded(self._workflow, stored, self._serializer)
        self._handler = self._workflow.run(ctx=context)
        if _has_requirements(stored["context"]):
            self._answers_later = answers  # first the steps that wait say again what they wait for
        else:
            await self._send(answers)

    def _kept(self, stored: Any) -> Context[Any]:
        """Return the context that the last run left. Raises BadArgument when that run had not ended."""
        context = loaded(self._workflow, stored, self._serializer)
        if stored["context"]["is_running"]:
            raise BadArgument(
                "the last run of this thread ended in the middle of its workflow: leave out keep_context"
            )
        return context

    async def _follow(self) -> None:
        """Pass events on until the workflow ends. When it has questions and nothing else to do, ask them."""
        async for event in self._handler.stream_events(expose_internal=True):
            if isinstance(event, InputRequiredEvent):
                self._note(event)
            if isinstance(event, StepStateChanged) and event.step_state == StepState.NOT_RUNNING:
                await self.save(event.name)  # no step may follow that would save it
            if self._on_event is not None and not isinstance(event, InternalDispatchEvent):
                heard = self._on_event(event)
                if inspect.isawaitable(heard):
                    await heard
            if self._questions and not isinstance(event, StopEvent) and self._is_idle():
                answers, self._answers_later = self._answers_later, {}
                await self.save("question")
                await self._send(answers or await self._answers())

    async def _end(self) -> None:
        """Stop the steps that are under way, if the run has not ended."""
        if not self._handler.is_done():
            with contextlib.suppress(Exception):
                await self._handler.cancel_run()
        with contextlib.suppress(BaseException):
            await self._handler

    # Questions

    def _note(self, event: InputRequiredEvent) -> None:
        payload = {"event": type(event).__name__, **jsonable({**event.model_dump(), **dict(event.items())})}
        if payload in self._questions.values():  # a step that waits says so again when it is resumed
            return
        self._asked += 1
        self._questions[f"{type(event).__name__}:{self._asked}"] = payload

    async def _answers(self) -> dict[str, Any]:
        if not self._questions:
            return {}
        asked = {name: Question(payload) for name, payload in self._questions.items()}
        return await ask_all(self._current, asked)

    async def _send(self, answers: dict[str, Any]) -> None:
        for name, answer in answers.items():
            await self._handler.send_event(self._respond(answer))
            del self._questions[name]

    def _is_idle(self) -> bool:
        workers = self._handler.ctx.to_dict(self._serializer)["workers"].values()
        return not any(worker["queue"] or worker["in_progress"] for worker in workers)

    # Contexts

    @property
    def _thread(self) -> AsyncThread[Any]:
        store = cast(AsyncStore, self._current.run.thread._store)
        return store.thread(self._current.run.info.thread, namespace=NAMESPACE)

    async def save(self, step: str) -> None:
        """Save the context as it is before a step begins.

        While a step is under way whose events were received, the context before it stays: the step
        runs again after a crash, and sends them again.
        """
        async with self._saving:
            plain = dumped_in_run(self._handler.ctx, self._serializer)
            if _is_sending(plain["context"]):
                return
            state = {
                **plain,
                "run": self._current.run.id,
                "questions": self._questions,
                "asked": self._asked,
            }
            await save_in_run(self._thread, state, metadata={"step": step})


_drive: ContextVar[_Drive | None] = ContextVar("outlive_workflow_drive", default=None)


def _has_requirements(context: dict[str, Any]) -> bool:
    workers = context["workers"].values()
    return any(waiter["has_requirements"] for worker in workers for waiter in worker["collected_waiters"])


def _is_sending(context: dict[str, Any]) -> bool:
    workers = context["workers"].values()
    return any(attempt["received"] for worker in workers for attempt in worker["in_progress"])


def _human_response(answer: Any) -> Event:
    fields = answer if isinstance(answer, dict) else {"response": answer}
    return HumanResponseEvent(**fields)


def prepare(workflow: Workflow) -> None:
    """Let the steps of a workflow wait until the context is saved. Outside a run they begin at once."""
    for name, step in workflow._get_steps().items():
        if hasattr(step, "outlive_step"):
            continue
        body = getattr(step, "__func__", None)  # of a method
        begin = _saved_before(name, body or step)
        workflow.__dict__[name] = begin if body is None else MethodType(begin, workflow)


def _saved_before(name: str, body: Any) -> Any:
    @functools.wraps(body)
    async def begin(*args: Any, **options: Any) -> Any:
        drive = _drive.get()
        if drive is not None:
            await drive.save(name)
        if asyncio.iscoroutinefunction(body):
            return await body(*args, **options)
        return await asyncio.to_thread(body, *args, **options)  # as the framework does

    begin.__dict__["outlive_step"] = name
    return begin
