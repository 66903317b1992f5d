"""Calls of models and tools of the Agents SDK as steps of the current run.

`prepare` replaces the models and tools of an agent, and of those it reaches, by ones that ask the
ledger first. Without a current run they only pass calls on, so an agent that was prepared can be
used as before.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agents import Agent, FunctionTool, Handoff, Model, ModelProvider, ModelResponse, Usage
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage

from outlive.adapters.common.current import Work, current_work
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.plain import Plain

_responses: Plain[ModelResponse] = Plain(ModelResponse, is_sparse=True)
_structured: Plain[Any] = Plain(ToolOutputText | ToolOutputImage | ToolOutputFileContent)
_STRUCTURED = "outlive:structured"
# The ids of the calls of agents used as tools, around this call: agents in parallel are told apart
# by them.
_path: ContextVar[tuple[str, ...]] = ContextVar("outlive_agents_path", default=())


def prepare(agent: Agent[Any], seen: set[int] | None = None) -> None:
    """Let the models and tools of an agent ask the ledger, and those of its handoffs and agents used as tools."""
    seen = set() if seen is None else seen
    if id(agent) in seen:
        return
    seen.add(id(agent))
    if isinstance(agent.model, Model):
        agent.model = kept_model(agent.model)
    agent.tools[:] = [kept_tool(tool) for tool in agent.tools]
    if agent.mcp_servers and not isinstance(agent.__dict__.get("get_mcp_tools"), _McpTools):
        agent.__dict__["get_mcp_tools"] = _McpTools(agent.get_mcp_tools)
    for inner in _reached(agent):
        prepare(inner, seen)


def _reached(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    """Return the agents that an agent hands over to, or uses as tools."""
    for handoff in agent.handoffs:
        target = handoff._agent_ref() if isinstance(handoff, Handoff) and handoff._agent_ref else handoff
        if isinstance(target, Agent):
            yield target
    for tool in agent.tools:
        if isinstance(tool, FunctionTool) and isinstance(tool._agent_instance, Agent):
            yield tool._agent_instance


class _McpTools:
    """The tools of MCP servers, which the SDK makes for each turn."""

    def __init__(self, get_tools: Callable[..., Awaitable[list[Any]]]) -> None:
        self._get_tools = get_tools

    async def __call__(self, *args: Any, **options: Any) -> list[Any]:
        return [kept_tool(tool) for tool in await self._get_tools(*args, **options)]


# Tools


def kept_tool(tool: Any) -> Any:
    """Return a function tool whose calls are steps; other tools are returned as they are."""
    if not isinstance(tool, FunctionTool) or isinstance(tool.on_invoke_tool, KeptInvoker):
        return tool
    made = copy.copy(tool)
    made.on_invoke_tool = KeptInvoker(made.on_invoke_tool, tool.name, is_agent=tool._is_agent_tool)
    return made


class KeptInvoker:
    """Invokes a tool once for each id of a call. The calls inside an agent that is used as a tool are steps, not its own."""

    def __init__(self, invoke: Any, name: str, *, is_agent: bool) -> None:
        self._invoke = invoke
        self._name = name
        self._is_agent = is_agent

    def __getattr__(self, name: str) -> Any:  # what the SDK has noted on the function
        return getattr(self.__dict__["_invoke"], name)

    def __agents_bind_function_tool__(self, tool: FunctionTool) -> KeptInvoker:
        """Bind to a copy of the tool, as the SDK does."""
        bind = getattr(self._invoke, "__agents_bind_function_tool__", None)
        return KeptInvoker(bind(tool) if bind else self._invoke, self._name, is_agent=self._is_agent)

    async def __call__(self, ctx: ToolContext[Any], input: str) -> Any:
        if self._is_agent:
            with _inside(ctx.tool_call_id):
                return await self._invoke(ctx, input)
        key = "/".join((*_path.get(), ctx.tool_call_id))
        return await kept(
            f"tool:{self._name}",
            lambda: self._invoke(ctx, input),
            key=key,
            dump=_plain_output,
            load=_output_of,
        )


@contextmanager
def _inside(call_id: str) -> Iterator[None]:
    token = _path.set((*_path.get(), call_id))
    try:
        yield
    finally:
        _path.reset(token)


def _plain_output(output: Any) -> Any:
    """Return what is stored of an output: itself, or what the model sees of it."""
    if isinstance(output, list | tuple) and any(isinstance(part, _Structured) for part in output):
        return {_STRUCTURED: [_structured.dump(part) for part in output]}
    if isinstance(output, _Structured):
        return {_STRUCTURED: _structured.dump(output)}
    if hasattr(output, "model_dump"):
        return str(output)  # as the SDK does
    try:
        json.dumps(output)
    except (TypeError, ValueError):
        return str(output)
    return output


_Structured = ToolOutputText | ToolOutputImage | ToolOutputFileContent


def _output_of(stored: Any) -> Any:
    if isinstance(stored, dict) and stored.keys() == {_STRUCTURED}:
        parts = stored[_STRUCTURED]
        return (
            [_structured.load(part) for part in parts] if isinstance(parts, list) else _structured.load(parts)
        )
    return stored


# Models


def kept_model(model: Model) -> Model:
    """Return a model whose responses are steps."""
    return model if isinstance(model, KeptModel) else KeptModel(model)


class KeptProvider(ModelProvider):
    """Makes models by name, whose responses are steps."""

    def __init__(self, provider: ModelProvider) -> None:
        self._provider = provider

    def get_model(self, model_name: str | None) -> Model:
        """Return the model of a name."""
        return kept_model(self._provider.get_model(model_name))

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()


class KeptModel(Model):
    """A model that is asked once for each request of a run."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)

    def get_retry_advice(self, request: Any) -> Any:
        """Return the advice of the model."""
        return self._model.get_retry_advice(request)

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **options: Any
    ) -> ModelResponse:
        """Return the response to a request: the stored one, if an earlier attempt of the run got it."""

        async def ask() -> ModelResponse:
            return await self._model.get_response(system_instructions, input, *args, **options)

        with _request_key(input) as key:
            return await kept("model", ask, key=key, dump=_responses.dump, load=_responses.load)

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """Stream a response. Of a stored one there is only the end, which has all of it."""
        events: asyncio.Queue[Any] = asyncio.Queue()
        was_asked = False

        async def ask() -> ModelResponse:
            nonlocal was_asked
            was_asked, output, completed = True, [], None
            async for event in self._model.stream_response(system_instructions, input, *args, **options):
                events.put_nowait(event)
                if event.type == "response.output_item.done":
                    output.append(event.item)
                completed = event if isinstance(event, ResponseCompletedEvent) else completed
            if completed is None:
                raise _Incomplete
            return _response_of(completed.response, output)

        async def answer(key: str | None) -> ModelResponse:
            try:
                return await kept("model", ask, key=key, dump=_responses.dump, load=_responses.load)
            finally:
                events.put_nowait(None)

        if current_work() is None:
            async for event in self._model.stream_response(system_instructions, input, *args, **options):
                yield event
            return
        with _request_key(input) as key:
            task = asyncio.create_task(answer(key))
            last: Any = None  # the event that ends the response is passed on when the response is stored
            try:
                while (event := await events.get()) is not None:
                    if isinstance(event, ResponseCompletedEvent):
                        last = event
                    else:
                        yield event
                try:
                    response = await task
                except _Incomplete:
                    return  # an event has said why
            finally:
                task.cancel()
            yield last if was_asked else _completed(response)


class _Incomplete(Exception):
    """A stream has ended without a complete response."""


@contextmanager
def _request_key(input: Any) -> Iterator[str | None]:
    """Name a request by what it comes after: the kinds of its items and the ids of its calls, not their texts.

    (A text may have the time of day in it.) A request that fails may be made again under its name.
    """
    work = current_work()
    if work is None:
        yield None
        return
    items = [] if isinstance(input, str) else input
    shape = [[item.get("type"), item.get("role"), item.get("call_id"), item.get("name")] for item in items]
    digest = hashlib.blake2b(json.dumps(shape).encode(), digest_size=12).hexdigest()
    name = "/".join((*_path.get(), digest))
    number = work.counts[name]
    work.counts[name] += 1
    try:
        yield f"{name}:{number}"
    except BaseException:
        _give_back(work, name)
        raise


def _give_back(work: Work, name: str) -> None:
    work.counts[name] -= 1


def _response_of(response: Response, output: list[Any]) -> ModelResponse:
    usage, used = response.usage, Usage()
    if usage is not None:
        used = Usage(
            requests=1,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            total_tokens=usage.total_tokens,
            input_tokens_details=usage.input_tokens_details,
            output_tokens_details=usage.output_tokens_details,
        )
    return ModelResponse(output=response.output or output, usage=used, response_id=response.id)


def _completed(response: ModelResponse) -> ResponseCompletedEvent:
    """Return the event that ends the stream of a response."""
    used = response.usage
    usage = ResponseUsage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.total_tokens,
        input_tokens_details=used.input_tokens_details,
        output_tokens_details=used.output_tokens_details,
    )
    whole = Response.model_construct(
        id=response.response_id or "", created_at=0, model="", object="response", output=response.output,
        parallel_tool_calls=True, tool_choice="auto", tools=[], usage=usage,
    )  # fmt: skip
    return ResponseCompletedEvent.model_construct(
        response=whole, sequence_number=0, type="response.completed"
    )
