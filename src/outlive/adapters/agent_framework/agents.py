"""Drives an agent in a run, from its input to its end or to a question."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, cast

from agent_framework import (
    Agent,
    AgentResponse,
    AgentSession,
    ChatMiddlewareLayer,
    Content,
    FunctionInvocationLayer,
    HistoryProvider,
    InMemoryHistoryProvider,
    Message,
    normalize_messages,
)

from outlive.adapters.agent_framework.calls import KeptModel, KeptTools
from outlive.adapters.agent_framework.history import OutliveHistoryProvider, RunHistory, dumped, loaded
from outlive.adapters.common.current import Work, save_in_run
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.plain import jsonable
from outlive.adapters.common.questions import ask_all, decision_of, yes_or_no
from outlive.errors import BadArgument
from outlive.runs.waits import Question
from outlive.store import AsyncStore

_MARK = "agent-framework agent"
_SESSION = "session"  # the namespace of what a session has beside its messages
_APPROVAL = "function_approval_request"


class AgentDrive:
    """Drives an agent in a run."""

    def __init__(
        self, agent: Agent[Any], options: dict[str, Any], on_event: Callable[[Any], Any] | None
    ) -> None:
        check_client(agent)
        self._agent = agent
        self._history = _history_of(agent)
        middleware = [*(options.pop("middleware", None) or ()), KeptTools(), KeptModel()]
        self._options = {**options, "middleware": middleware}
        self._on_event = on_event
        self.response: AgentResponse[Any] | None = None

    @staticmethod
    def prompt(input: Any) -> Any:
        """Return the input of an agent as it is stored."""
        return {_MARK: 1, "messages": dumped(normalize_messages(input))}

    @property
    def output(self) -> Any:
        """What the agent answered: a value if it has a format, otherwise a text."""
        assert self.response is not None
        value = self.response.value
        return self.response.text if value is None else value

    async def __call__(self, current: Work) -> Any:
        prompt = current.run.info.prompt
        if not isinstance(prompt, dict) or _MARK not in prompt:
            raise BadArgument(f"run {current.run.id!r} was not started by this adapter with an agent")
        store = cast(AsyncStore, current.run.thread._store)
        agent = copy.copy(self._agent)
        agent.context_providers = self._providers(RunHistory(current, store, self._history))
        session = await _begun_session(current, store)
        response = await self._go(agent, loaded(prompt["messages"]), session)
        while response.user_input_requests:
            current.check()
            answers = await _answers(current, response.user_input_requests)
            response = await self._go(agent, answers, session)
        current.check()
        await _save_session(current, store, session)
        self.response = response
        await current.run.complete(jsonable(self.output))
        return self.output

    def _providers(self, history: RunHistory) -> list[Any]:
        others = [each for each in self._agent.context_providers if not _is_loading(each)]
        return [history, *others]

    async def _go(
        self, agent: Agent[Any], messages: list[Message], session: AgentSession
    ) -> AgentResponse[Any]:
        if self._on_event is None:
            response: AgentResponse[Any] = await agent.run(messages, session=session, **self._options)
            return response
        stream = agent.run(messages, session=session, stream=True, **self._options)
        async for update in stream:
            heard = self._on_event(update)
            if inspect.isawaitable(heard):
                await heard
        final: AgentResponse[Any] = await stream.get_final_response()
        return final


def check_client(agent: Agent[Any]) -> None:
    """Refuse an agent whose client calls no middleware: nothing of it would be stored."""
    client = agent.client
    if not isinstance(client, ChatMiddlewareLayer) or not isinstance(client, FunctionInvocationLayer):
        raise BadArgument(
            f"the client {type(client).__name__} calls no middleware: derive it from FunctionInvocationLayer and ChatMiddlewareLayer"
        )


def _is_loading(provider: Any) -> bool:
    return isinstance(provider, HistoryProvider) and provider.load_messages


def _history_of(agent: Agent[Any]) -> HistoryProvider | None:
    """Return the history provider that the run takes the place of."""
    loading = [each for each in agent.context_providers if _is_loading(each)]
    for provider in loading:
        if not isinstance(provider, OutliveHistoryProvider | InMemoryHistoryProvider):
            raise BadArgument(
                f"the run keeps the history in its thread: make the agent without {type(provider).__name__}, "
                "or with load_messages=False"
            )
    return next((each for each in loading if isinstance(each, OutliveHistoryProvider)), None)


# What a session has beside its messages


async def _begun_session(current: Work, store: AsyncStore) -> AgentSession:
    """Return the session as it was when the run began."""
    thread_id = current.run.info.thread

    async def read() -> Any:
        return await store.thread(thread_id, namespace=_SESSION).load()

    stored: Any = await kept(_SESSION, read)
    if stored is None:
        return AgentSession(session_id=thread_id)
    return AgentSession.from_dict({**stored, "session_id": thread_id})


async def _save_session(current: Work, store: AsyncStore, session: AgentSession) -> None:
    plain = session.to_dict()
    if any(plain["state"].values()) or plain["service_session_id"] is not None:
        thread = store.thread(current.run.info.thread, namespace=_SESSION)
        await save_in_run(thread, plain, id=f"{current.run.id}:session")


# Questions


async def _answers(current: Work, requests: list[Content]) -> list[Message]:
    """Return messages with the answers to requests. Without all, the run waits: raises RunSuspended."""
    questions = [question_of(request) for request in requests]
    answers = await ask_all(current, dict(questions))
    parts = [
        answer_to(request, answers[name]) for (name, _), request in zip(questions, requests, strict=True)
    ]
    roles = {part.type: "tool" if part.type == "function_result" else "user" for part in parts}
    return [Message(role, [part for part in parts if part.type == kind]) for kind, role in roles.items()]


def question_of(request: Content) -> tuple[str, Question]:
    """Return the question that a request of an agent asks, and its name. Raises BadArgument for a kind that is unknown."""
    if request.type == _APPROVAL and request.function_call is not None:
        call = request.function_call
        return yes_or_no(str(call.name), str(call.call_id), call.parse_arguments())
    if request.type == "function_call":  # of a tool that is only declared
        arguments = jsonable(request.parse_arguments())
        payload = {"tool": request.name, "arguments": arguments, "call_id": request.call_id}
        return f"{request.name}:{request.call_id}", Question(payload)
    raise BadArgument(f"the agent asks for {request.type!r}, which no answer of a person can be")


def answer_to(request: Content, answer: Any) -> Content:
    """Return the content that answers a request."""
    if request.type == _APPROVAL:
        return request.to_function_approval_response(decision_of(answer).approve)
    return Content.from_function_result(call_id=str(request.call_id), id=request.id, result=jsonable(answer))
