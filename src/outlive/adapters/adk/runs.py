"""Agents of ADK as runs. The events of the session are what a run continues from; calls of tools are its steps."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import Session
from google.adk.workflow import BaseNode
from google.genai import types

from outlive.adapters.adk.names import session_thread
from outlive.adapters.adk.sessions import OutliveSessionService
from outlive.adapters.adk.tools import KeptTools
from outlive.adapters.common import running
from outlive.adapters.common.current import Work
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.plain import jsonable
from outlive.adapters.common.questions import ask_all, decision_of, yes_or_no
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.options import SubmitOptions
from outlive.runs.run import AsyncRun
from outlive.runs.waits import Question
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store

T = TypeVar("T")
_MARK = "adk"
_CONFIRMATION = "adk_request_confirmation"
_OURS = frozenset(SubmitOptions.__optional_keys__)
_GROUPS = (SequentialAgent, ParallelAgent, LoopAgent)
_OF_CALL = ("run_config", "state_delta")
OnEvent = Callable[[Event], Any]
Message = str | types.Content


@dataclass(slots=True)
class AgentOutcome:
    """What became of a run of an agent."""

    run: RunInfo
    output: Any = None  # the text of the last final response, or its output
    events: list[Event] = field(default_factory=list)  # of this attempt

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run waits for answers; `store.questions()` lists the questions."""
        return self.run.status == "waiting"


def run(
    app: App | BaseNode,
    message: Message,
    *,
    user_id: str,
    session_id: str,
    store: Store,
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an app, an agent or a workflow as a run of `store`, in that session, which is made if there is none.

    With the `run_id` of a run that has ended, return its output and call nothing. `on_event` gets
    the events of ADK. Options of `store.run` (`run_id`, `agent`, `lease_s`, ...) describe the run;
    `store.recover` chooses a handler by `agent` (default: the name of the app). `run_config` and
    `state_delta` go to `Runner.run_async`, all others to `Runner`, such as `artifact_service`.
    Raises ThreadBusy while another run has this session, LeaseLost when another process has taken
    this one.
    """
    drive = _Drive(app, options, on_event)
    ours, thread_id = drive.described(message, user_id, session_id, options)
    return drive.outcome(running.begin(store, running.in_loop(drive), thread_id, **ours))


async def arun(
    app: App | BaseNode,
    message: Message,
    *,
    user_id: str,
    session_id: str,
    store: AsyncStore,
    on_event: OnEvent | None = None,
    **options: Any,
) -> AgentOutcome:
    """Run an app, an agent or a workflow as a run of `store`, which `outlive.open_async` has opened; see `run`."""
    drive = _Drive(app, options, on_event)
    ours, thread_id = drive.described(message, user_id, session_id, options)
    return drive.outcome(await running.abegin(store, drive, thread_id, **ours))


def resume(app: App | BaseNode, run: Run, *, on_event: OnEvent | None = None, **options: Any) -> AgentOutcome:
    """Continue a run that this process has claimed; pass the options of ADK again."""
    drive = _Drive(app, options, on_event)
    running.resume(run, running.in_loop(drive))
    return drive.outcome(running.Outcome(run.info))


async def aresume(
    app: App | BaseNode, run: AsyncRun, *, on_event: OnEvent | None = None, **options: Any
) -> AgentOutcome:
    """Continue a run that this process has claimed; pass the options of ADK again."""
    drive = _Drive(app, options, on_event)
    await running.aresume(run, drive)
    return drive.outcome(running.Outcome(run.info))


class _Within:
    """The store of a run, from the loop that the run works on."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def acall(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        return await work(self._store)


class _Drive:
    """Drives an agent in a run, from its message to its end or to a question."""

    def __init__(self, app: App | BaseNode, options: dict[str, Any], on_event: OnEvent | None) -> None:
        self._app = _resumable(app)
        self._call = {name: options[name] for name in _OF_CALL if name in options}
        self._services = {
            name: value for name, value in options.items() if name not in _OURS and name not in _OF_CALL
        }
        if "session_service" in self._services or "prompt" in options:
            raise BadArgument("the run keeps its session in its store: leave out session_service and prompt")
        self._on_event = on_event
        self._events: list[Event] = []

    def described(
        self, message: Message, user_id: str, session_id: str, options: dict[str, Any]
    ) -> tuple[SubmitOptions, str]:
        """Return the options of the run, with its message, and its thread."""
        ours: Any = {"agent": self._app.name, **{key: options[key] for key in options if key in _OURS}}
        ours["prompt"] = {
            _MARK: 1, "user": user_id, "session": session_id.strip(), "message": _content(message).model_dump(mode="json", exclude_none=True),
        }  # fmt: skip
        return ours, session_thread(self._app.name, user_id, session_id)

    def outcome(self, outcome: running.Outcome[Any]) -> AgentOutcome:
        """Return what became of the run."""
        return AgentOutcome(outcome.run, outcome.run.result, self._events)

    async def __call__(self, current: Work) -> Any:
        prompt = current.run.info.prompt
        if not isinstance(prompt, dict) or _MARK not in prompt:
            raise BadArgument(f"run {current.run.id!r} was not started by this adapter: it has no message")
        service = OutliveSessionService.__new__(OutliveSessionService)
        service._use(_Within(cast(AsyncStore, current.run.thread._store)))
        place = {"user_id": prompt["user"], "session_id": prompt["session"]}
        session = await _opened(service, self._app.name, place)
        count = await kept("events", lambda: len(session.events))
        runner = Runner(app=self._app, session_service=service, **self._services)
        new: dict[str, Any] = {"new_message": types.Content.model_validate(prompt["message"]), **self._call}
        if session.events[count:]:
            new = await self._next(current, session.events[count:], self._app)
            if "invocation_id" in new:
                await service._drop_events(session, _lost_calls(self._app.root_agent, session.events[count:]))
        while new:
            async for event in self._stream(runner, {**place, **new}):
                self._events.append(event)
            current.check()
            session = await _opened(service, self._app.name, place)
            pending = _pending(session.events[count:])
            new = await self._answers(current, pending) if pending else {}
        output = _output(session.events[count:])
        await current.run.complete(output)
        return output

    async def _next(self, current: Work, events: list[Event], app: App) -> dict[str, Any]:
        """Return how to continue after the events that an earlier attempt has stored; nothing, if they are all."""
        if pending := _pending(events):
            return await self._answers(current, pending)
        if _has_ended(app.root_agent, events):
            return {}
        again = {name: value for name, value in self._call.items() if name == "run_config"}
        return {"invocation_id": events[0].invocation_id, **again}

    async def _stream(self, runner: Runner, arguments: dict[str, Any]) -> AsyncIterator[Event]:
        async for event in runner.run_async(**arguments):
            heard = None if self._on_event is None else self._on_event(event)
            if inspect.isawaitable(heard):
                await heard
            yield event

    async def _answers(self, current: Work, pending: list[types.FunctionCall]) -> dict[str, Any]:
        """Return a message with the answers to calls that wait for a person. Without all, the run waits: raises RunSuspended."""
        questions = [_question(call) for call in pending]
        answers = await ask_all(current, dict(questions))
        parts = [_response(call, answers[name]) for (name, _), call in zip(questions, pending, strict=True)]
        again = {name: value for name, value in self._call.items() if name == "run_config"}
        return {"new_message": types.Content(role="user", parts=parts), **again}


def _resumable(app: App | BaseNode) -> App:
    """Return a copy of an app whose invocations can be resumed, and whose tools are steps."""
    made = app if isinstance(app, App) else App(name=app.name, root_agent=app)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # ADK calls this one experimental
        config = ResumabilityConfig(is_resumable=True)
    return made.model_copy(update={"resumability_config": config, "plugins": [*made.plugins, KeptTools()]})


async def _opened(service: OutliveSessionService, app_name: str, place: dict[str, Any]) -> Session:
    session = await service.get_session(app_name=app_name, **place)
    return session or await service.create_session(app_name=app_name, **place)


def _content(message: Message) -> types.Content:
    if isinstance(message, str):
        return types.Content(role="user", parts=[types.Part(text=message)])
    return message


# Questions


def _pending(events: list[Event]) -> list[types.FunctionCall]:
    """Return the calls that wait for a person: long-running ones that nobody but the tool has answered."""
    answered = {
        response.id
        for event in events
        if event.author == "user"
        for response in event.get_function_responses()
    }
    return [
        call
        for event in events
        for call in event.get_function_calls()
        if call.id in (event.long_running_tool_ids or ()) and call.id not in answered
    ]


def _question(call: types.FunctionCall) -> tuple[str, Question]:
    arguments = call.args or {}
    if call.name == _CONFIRMATION:
        original = arguments["originalFunctionCall"]
        hint = arguments.get("toolConfirmation", {}).get("hint", "")
        return yes_or_no(original["name"], str(original["id"]), original.get("args"), hint=hint)
    payload = {"tool": call.name, "arguments": jsonable(arguments), "call_id": call.id}
    return f"{call.name}:{call.id}", Question(payload)


def _response(call: types.FunctionCall, answer: Any) -> types.Part:
    if call.name == _CONFIRMATION:
        response: dict[str, Any] = {"confirmed": decision_of(answer).approve}
    else:
        response = answer if isinstance(answer, dict) else {"result": answer}
    return types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=response))


def _has_ended(root: Any, events: list[Event]) -> bool:
    """Tell whether the events are all of an invocation. A crash may come between the last of them and the run's end."""
    if not isinstance(root, LlmAgent):
        return any(event.author == root.name and event.actions.end_of_agent for event in events)
    last = events[-1]
    is_end = bool(last.content and last.content.parts and last.is_final_response())
    return last.author == _active_agent(events) and (is_end or bool(last.actions.end_of_agent))


def _lost_calls(root: Any, events: list[Event]) -> set[str]:
    """Return the ids of the events with calls that ADK would neither make nor answer when it resumes the invocation.

    It makes the calls of an event again while that is the last one of its agent. Elsewhere it ends
    that agent as if it waited. Without the event, the agent asks its model again.
    """
    answered = {response.id for event in events for response in event.get_function_responses()}
    return {
        event.id
        for event in events
        if any(call.id not in answered for call in event.get_function_calls())
        and not event.long_running_tool_ids
        and not _makes_calls_again(root, event.author)
    }


def _makes_calls_again(root: Any, author: str) -> bool:
    agent = root.find_agent(author) if isinstance(root, BaseAgent) else None
    above = []
    while agent is not None and agent is not root:
        agent = agent.parent_agent
        above.append(agent)
    return agent is root and (
        all(isinstance(each, LlmAgent) for each in above) or all(type(each) in _GROUPS for each in above)
    )


def _active_agent(events: list[Event]) -> str | None:
    """Return the agent that was at work last: an agent that transfers to another one ends before that begins."""
    active = None
    for event in events:
        if event.author != "user":
            active = event.actions.transfer_to_agent or active or event.author
    return active


def _output(events: list[Event]) -> Any:
    """Return what the last final response says."""
    for event in reversed(events):
        if event.author == "user" or not event.is_final_response():
            continue
        if event.output is not None:
            return jsonable(event.output)
        texts = [part.text for part in (event.content and event.content.parts) or [] if part.text]
        if texts:
            return "".join(texts)
    return None
