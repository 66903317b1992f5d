"""Calls of models and tools that are not repeated by the process that resumes their run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from outlive.adapters.common.current import Work, current_work
from outlive.runs.run import AsyncStepDecorator

T = TypeVar("T")
_is_inside: ContextVar[bool] = ContextVar("outlive_inside_call", default=False)


def is_inside_step() -> bool:
    """Tell whether this is called by the body of a step: it is a part of that, and no step of its own."""
    return _is_inside.get()


async def kept(
    name: str,
    body: Callable[[], Awaitable[T]] | Callable[[], T],
    *,
    key: str | None = None,
    dump: Callable[[T], Any] = lambda value: value,
    load: Callable[[Any], T] = lambda value: value,
    work: Work | None = None,
    **options: Any,
) -> T:
    """Call `body` as a step of the current run, or plainly when there is none.

    `key` is the id of a tool call: parallel calls of one tool need it. `dump` makes a plain value
    of the result, and `load` the result of a stored one. `body` closes over its arguments: messages
    have fresh timestamps in every attempt, and would never equal those of the step before.
    `options` are those of `run.step`, such as `effect=True`. `work` is the current one unless you
    pass it, from a thread that has another context.
    """
    work = work or current_work()
    if work is None or _is_inside.get():  # what a tool calls is part of its step
        return cast(T, await _awaited(body()))
    results: list[T] = []
    raised: list[BaseException] = []

    async def call() -> Any:
        token = _is_inside.set(True)
        try:
            results.append(await _awaited(body()))
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            _is_inside.reset(token)
        return dump(results[0])

    work.check()
    step: AsyncStepDecorator = work.run.step(name, key=key, **options)
    try:
        stored = await step(call)()  # type: ignore[no-untyped-call]
    except BaseException as error:
        work.note(error, is_ours=error not in raised)
        raise
    return results[0] if results else load(stored)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
