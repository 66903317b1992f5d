"""Calls of tools of Strands as steps of the current run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from strands.middleware import ExecuteToolContext, ToolResultEvent

from outlive.adapters.common.current import Work, current_work
from outlive.adapters.common.ledger import is_inside_step, kept

_MISSING = object()


class _Interrupted(BaseException):
    """A tool has a question: nothing of its call is stored, and it is called again with the answer."""


async def keep_tool(context: ExecuteToolContext, next_fn: Any) -> AsyncGenerator[Any, None]:
    """Call a tool once for each id of a call, and pass its events on. Outside a run, only pass them on."""
    work = current_work()
    if work is None or is_inside_step():
        async for event in next_fn(context):
            yield event
        return
    call = _Call(work, context, next_fn)
    async for event in call.events():
        yield event


class _Call:
    """A call of a tool in a run."""

    def __init__(self, work: Work, context: ExecuteToolContext, next_fn: Any) -> None:
        self._work = work
        self._context = context
        self._next = next_fn
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    async def events(self) -> AsyncGenerator[Any, None]:
        task = asyncio.create_task(self._kept())
        try:
            while (event := await self._queue.get()) is not None:
                yield event
            result = await task
        finally:
            task.cancel()
        if result is not None:
            yield result

    async def _kept(self) -> ToolResultEvent | None:
        """Return the result of the call: the stored one, if an earlier attempt of the run got it. None: it has a question."""
        key = self._key()
        number = self._work.counts[key]  # a hook may have a call made again
        try:
            event = await kept(
                f"tool:{self._context.tool_use['name']}",
                self._called,
                key=f"{key}:{number}" if number else key,
                dump=self._dumped,
                load=self._loaded,
                work=self._work,
            )
            self._work.counts[key] += 1
            return event
        except _Interrupted:
            return None
        finally:
            self._queue.put_nowait(None)

    def _key(self) -> str:
        """Name the call by its id, and by the message that has it: some models use an id again in another one."""
        message: Any = self._context.agent.messages[-1] if self._context.agent.messages else {}
        return f"{message.get('tracking_id', '')}/{self._context.tool_use['toolUseId']}"

    async def _called(self) -> ToolResultEvent:
        self._before = self._context.agent.state.get()
        result: ToolResultEvent | None = None
        async for event in self._next(self._context):
            if isinstance(event, ToolResultEvent):
                result = event
                continue
            self._queue.put_nowait(event)
            if _is_question(event):
                raise _Interrupted
        if result is None:
            raise RuntimeError(f"the tool {self._context.tool_use['name']!r} returned no result")
        if result.exception is not None:
            self._work.note(result.exception)
            self._work.check()
        return result

    def _dumped(self, event: ToolResultEvent) -> Any:
        """Return what is stored of a call: its result, and what it changed in the state of the agent."""
        state = self._context.agent.state.get()
        changed = {key: value for key, value in state.items() if self._before.get(key, _MISSING) != value}
        return {
            "result": event.tool_result,
            "state": changed,
            "gone": list(self._before.keys() - state.keys()),
        }

    def _loaded(self, stored: Any) -> ToolResultEvent:
        for key, value in stored["state"].items():
            self._context.agent.state.set(key, value)
        for key in stored["gone"]:
            self._context.agent.state.delete(key)
        return ToolResultEvent(stored["result"])


def _is_question(event: Any) -> bool:
    return isinstance(event, dict) and "tool_interrupt_event" in event
