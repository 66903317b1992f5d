"""Agents as runs: begun by one process, finished by it or by another, sync and async.

An adapter gives what identifies the run, and the work: a function of the run that drives the
framework and returns its output. The work calls `run.complete` with a plain result when the agent
has ended. The run is the current one while it works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from outlive.adapters.common.current import Work, working_on
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.options import SubmitOptions
from outlive.runs.run import AsyncRun
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store

T = TypeVar("T")


@dataclass(slots=True)
class Outcome(Generic[T]):
    """What became of a run: its record, and the output of the work unless it waits or had ended before."""

    run: RunInfo
    output: T | None = None

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run waits for an answer."""
        return self.run.status == "waiting"


def begin(
    store: Store,
    work: Callable[[Work], T],
    thread_id: str,
    **options: Unpack[SubmitOptions],
) -> Outcome[T]:
    """Do the work as a run of the store. A run with this `run_id` that has ended is returned as it is."""
    if not isinstance(store, Store):
        raise BadArgument("run(...) takes a store of outlive.open; use arun(...) for that of open_async")
    info = store._store._new_info(thread_id, options)
    is_named = options.get("run_id") is not None
    outcome: Outcome[T] = Outcome(info)
    with Run(store._store._run(info, is_bare=True, is_named=is_named)) as run:
        outcome.run = run.info
        if not run.is_finished:
            outcome.output = resume(run, work)
    outcome.run = run.info
    return outcome


async def abegin(
    store: AsyncStore,
    work: Callable[[Work], Awaitable[T]],
    thread_id: str,
    **options: Unpack[SubmitOptions],
) -> Outcome[T]:
    """Do the work as a run of the store. A run with this `run_id` that has ended is returned as it is."""
    if not isinstance(store, AsyncStore):
        raise BadArgument("arun(...) takes a store of outlive.open_async; use run(...) for that of open")
    info = store._new_info(thread_id, options)
    is_named = options.get("run_id") is not None
    outcome: Outcome[T] = Outcome(info)
    async with store._run(info, is_bare=True, is_named=is_named) as run:
        outcome.run = run.info
        if not run.is_finished:
            outcome.output = await aresume(run, work)
    outcome.run = run.info
    return outcome


def resume(run: Run, work: Callable[[Work], T]) -> T:
    """Do the work of a run that this process has claimed."""
    with working_on(run._run) as current:
        return work(current)


async def aresume(run: AsyncRun, work: Callable[[Work], Awaitable[T]]) -> T:
    """Do the work of a run that this process has claimed."""
    with working_on(run) as current:
        return await work(current)


def in_loop(work: Callable[[Work], Coroutine[Any, Any, T]]) -> Callable[[Work], T]:
    """Return the work of an async framework for `begin` and `resume`: it gets an event loop of its own.

    The writes of the run block that loop, on which nothing but this agent works.
    """

    def call(current: Work) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work(current))
        raise BadArgument("an event loop is running in this thread: use arun, with a store of open_async")

    return call
