"""Calls of models and tools of the framework as steps of the current run: two middlewares that ask the ledger first.

A request to a model has no id of its own. It is named by what it comes after: the kinds of its
messages and the ids of the calls in them. Inside a workflow many agents work at once, and each
superstep begins with a checkpoint, so there the name has that checkpoint, the agent and the texts
too.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agent_framework import (
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    Message,
    MiddlewareException,
    MiddlewareFailure,
    ResponseStream,
    UserInputRequiredException,
)

from outlive.adapters.common.current import Work, current_work
from outlive.adapters.common.ledger import is_inside_step, kept
from outlive.adapters.common.plain import jsonable
from outlive.errors import OutliveError

Next = Callable[[], Awaitable[None]]
# Returns the checkpoint that the superstep began with; None outside a workflow.
superstep: ContextVar[Callable[[], str] | None] = ContextVar("outlive_superstep", default=None)


def _durable_work() -> Work | None:
    return None if is_inside_step() else current_work()


def _place(agent: str) -> str:
    checkpoint = superstep.get()
    return "" if checkpoint is None else f"{checkpoint()}/{agent}/"


# Models


class KeptModel(ChatMiddleware):
    """Asks a model once for each request of a run. Outside a run it only passes requests on."""

    def __init__(self, agent: str = "") -> None:
        self._agent = agent

    async def process(self, context: ChatContext, call_next: Next) -> None:
        """Set the response to a request: the stored one, if an earlier attempt of the run got it."""
        work = _durable_work()
        if work is None:
            await call_next()
        elif context.stream:
            await self._stream(work, context, call_next)
        else:

            async def ask() -> Any:
                await call_next()
                return context.result

            context.result = await self._kept(work, context, ask)

    async def _kept(self, work: Work, context: ChatContext, ask: Callable[[], Awaitable[Any]]) -> Any:
        load = functools.partial(_response_of, _format_of(context))
        with _request_key(work, _place(self._agent), context.messages) as key:
            return await kept("model", ask, key=key, dump=_plain_response, load=load)

    async def _stream(self, work: Work, context: ChatContext, call_next: Next) -> None:
        """Pass updates on as they come. Those of a stored response are made of it."""
        updates: asyncio.Queue[ChatResponseUpdate | None] = asyncio.Queue()
        begun = asyncio.Event()
        was_asked = False

        async def ask() -> Any:
            nonlocal was_asked
            was_asked = True
            await call_next()
            stream = context.result
            if not isinstance(stream, ResponseStream):
                return stream
            begun.set()
            async for update in stream:
                updates.put_nowait(update)
            return await stream.get_final_response()

        async def answer() -> Any:
            try:
                return await self._kept(work, context, ask)
            finally:
                updates.put_nowait(None)
                begun.set()

        async def passed_on() -> AsyncIterator[ChatResponseUpdate]:
            try:
                while (update := await updates.get()) is not None:
                    yield update
                response = await task  # the stream ends when the response is stored
                for update in [] if was_asked or response is None else response.to_updates():
                    yield update
            finally:
                task.cancel()

        task = asyncio.create_task(answer())
        await begun.wait()  # the middlewares inside this one have been called, or are not needed
        kind = _format_of(context)
        context.result = ResponseStream(
            passed_on(), finalizer=lambda parts: ChatResponse.from_updates(parts, output_format_type=kind)
        )


def _format_of(context: ChatContext) -> Any:
    return context.options.get("response_format") if isinstance(context.options, Mapping) else None


def _plain_response(response: Any) -> Any:
    if not isinstance(response, ChatResponse):
        return None  # a middleware has ended the call without one
    return {**response.to_dict(), "additional_properties": jsonable(response.additional_properties)}


def _response_of(kind: Any, stored: Any) -> ChatResponse[Any] | None:
    if stored is None:
        return None
    fields = {name: value for name, value in stored.items() if name != "type"}
    return ChatResponse(**fields, response_format=kind)


@contextmanager
def _request_key(work: Work, place: str, messages: Sequence[Message]) -> Iterator[str]:
    """Name a request. One that fails may be made again under its name."""
    shape = [
        [str(message.role), [_outline(part, place) for part in message.contents]] for message in messages
    ]
    digest = hashlib.blake2b(json.dumps(shape).encode(), digest_size=12).hexdigest()
    name = f"{place}{digest}"
    number = work.counts[name]
    work.counts[name] += 1
    try:
        yield f"{name}:{number}"
    except BaseException:
        work.counts[name] -= 1
        raise


def _outline(part: Content, place: str) -> list[str | None]:
    return [part.type, part.call_id, part.name, part.text if place else None]


# Tools


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a tool raised. It is stored as well: the model was told, and has answered to that."""

    error: Exception


class ToolFailed(Exception):
    """What a tool raised in an earlier attempt of the run, by its text."""


class KeptTools(FunctionMiddleware):
    """Calls a tool once for each call of a model. Outside a run it only passes calls on."""

    def __init__(self, agent: str = "") -> None:
        self._agent = agent

    async def process(self, context: FunctionInvocationContext, call_next: Next) -> None:
        """Set the result of a call: the stored one, if an earlier attempt of the run got it.

        The framework tells the model about errors of tools. An error that ends the run must not be
        one of them.
        """
        work = _durable_work()
        if work is None:
            await call_next()
            return
        try:
            outcome = await _called_once(work, _place(self._agent), context, call_next)
        except Exception as error:
            if work.ended_by is not None:
                raise MiddlewareFailure(str(work.ended_by)) from error
            raise
        if isinstance(outcome, _Failure):
            raise outcome.error
        context.result = outcome


async def _called_once(work: Work, place: str, context: FunctionInvocationContext, call_next: Next) -> Any:
    was_called, tools = False, list(context.tools or ())

    async def call() -> Any:
        nonlocal was_called
        was_called = True
        try:
            await call_next()
        except (MiddlewareException, UserInputRequiredException, OutliveError):
            raise
        except Exception as error:  # noqa: BLE001 - any of a tool
            return _Failure(error)
        return context.result

    def dump(outcome: Any) -> Any:
        has_changed_tools = list(context.tools or ()) != tools
        return {"again": True} if has_changed_tools else _plain_outcome(outcome)

    name = f"tool:{context.function.name}"
    outcome = await kept(name, call, key=_call_key(work, place, context), dump=dump, load=_outcome_of)
    # A tool that changed the tools of the agent does so again: these are no data.
    return await call() if outcome is _AGAIN and not was_called else outcome


_AGAIN = object()


def _call_key(work: Work, place: str, context: FunctionInvocationContext) -> str:
    """Return a name for a call: its id, with a number if the model used that before."""
    key = f"{place}{context.metadata.get('call_id')}"
    number = work.counts[f"call:{key}"]
    work.counts[f"call:{key}"] += 1
    return f"{key}:{number}" if number else key


def _plain_outcome(outcome: Any) -> Any:
    """Return what the framework makes of an outcome: contents, or a text."""
    if isinstance(outcome, _Failure):
        return {"error": str(outcome.error)}
    if isinstance(outcome, Content):
        return {"content": outcome.to_dict()}
    if isinstance(outcome, list) and all(isinstance(part, Content) for part in outcome):
        return {"contents": [part.to_dict() for part in outcome]}
    return {"text": outcome if outcome is None else str(outcome)}


def _outcome_of(stored: Any) -> Any:
    match stored:
        case {"error": text}:
            return _Failure(ToolFailed(text))
        case {"content": content}:
            return Content.from_dict(content)
        case {"contents": contents}:
            return [Content.from_dict(content) for content in contents]
        case {"again": True}:
            return _AGAIN
    return stored["text"]
