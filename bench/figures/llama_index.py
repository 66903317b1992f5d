"""Workflows of LlamaIndex as runs: `run` beside a program that writes the context after each step itself.

No store for contexts ships. A workflow makes 250 steps, and each adds two messages of 800 characters to the store
of its context. Ours saves the context before and after each step, and can load all of them. The other side calls
`ctx.to_dict()` after each step, and writes a file of JSON for it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StepState, StepStateChanged, StopEvent

import outlive
from measure import Race, bytes_in
from outlive.adapters.llama_index import OutliveContexts
from outlive.adapters.llama_index import run as run_workflow
from scale import Scale
from table import Row, Versus, duration, megabytes, shown
from text import prose
from workloads import SEED

_STEPS = 250


class _Turn(Event):
    number: int


class _Talk(Workflow):
    def __init__(self) -> None:
        super().__init__(timeout=None)
        self._rng = random.Random(SEED)

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> _Turn:
        await ctx.store.set("messages", [])
        return _Turn(number=1)

    @step
    async def speak(self, ctx: Context, ev: _Turn) -> _Turn | StopEvent:
        said = [{"role": role, "content": prose(self._rng, 800)} for role in ("user", "assistant")]
        await ctx.store.set("messages", [*await ctx.store.get("messages"), *said])
        return StopEvent(result=ev.number) if ev.number == _STEPS else _Turn(number=ev.number + 1)


def run(scale: Scale, room: Path) -> Iterator[Row]:
    mine, theirs = room / "mine", room / "theirs"
    mine.mkdir()
    theirs.mkdir()
    race = Race(SEED)
    race.lap(mine=lambda: _ours(mine), theirs=lambda: asyncio.run(_by_hand(theirs)))
    what = f"LlamaIndex: {_STEPS} steps that add to the context"
    times = [duration(race.wall(side)) for side in ("mine", "theirs")]
    cpus = [duration(race.cpu(side)) for side in ("mine", "theirs")]
    yield shown(
        what, f"{times[0]}, CPU {cpus[0]} (files {times[1]}, CPU {cpus[1]})", Versus(what, *times), "lower"
    )
    what = f"LlamaIndex: bytes of the contexts of {_STEPS} steps"
    sizes = [megabytes(bytes_in(side)) for side in (mine, theirs)]
    yield shown(what, f"{sizes[0]} (a file for each {sizes[1]})", Versus(what, *sizes), "lower")


def _ours(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        run_workflow(_Talk(), thread_id="talk", store=store)
        contexts = OutliveContexts("talk", store)
        last: Any = asyncio.run(contexts.load(_Talk()))
        if len(asyncio.run(last.store.get("messages"))) != 2 * _STEPS:
            raise AssertionError("the last context has other messages")


async def _by_hand(folder: Path) -> None:
    handler, number = _Talk().run(), 0
    async for event in handler.stream_events(expose_internal=True):
        if isinstance(event, StepStateChanged) and event.step_state == StepState.NOT_RUNNING:
            number += 1
            (folder / f"{number}.json").write_text(json.dumps(handler.ctx.to_dict()))
    await handler
