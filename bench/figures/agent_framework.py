"""Checkpoints of Microsoft Agent Framework: `OutliveCheckpointStorage` beside the `FileCheckpointStorage` that ships.

A workflow of two executors makes 250 supersteps. Each adds two messages of 800 characters to a conversation
in the state of the workflow, and the framework saves a checkpoint after each. Both sides keep all of them.
Then a new storage finds the latest one, as a process does that continues the workflow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent_framework import (
    Executor,
    FileCheckpointStorage,
    Message,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

from measure import Race, bytes_in
from outlive.adapters.agent_framework import OutliveCheckpointStorage
from scale import Scale
from table import Row, Versus, duration, megabytes, milliseconds, within
from text import prose
from workloads import SEED

_SUPERSTEPS = 250
_BYTES, _LATEST_S = 2_500_000, 0.05
_NAME = "talk"
Open = Callable[[], Any]


class _Speaker(Executor):
    def __init__(self, id: str, rng: random.Random) -> None:
        super().__init__(id=id)
        self._rng = rng

    @handler
    async def speak(self, turn: int, ctx: WorkflowContext[int, int]) -> None:
        """Add two messages, and let the other one speak."""
        said = [Message(role, [prose(self._rng, 800)]) for role in ("user", "assistant")]
        ctx.set_state("conversation", [*(ctx.get_state("conversation") or []), *said])
        if turn == _SUPERSTEPS:
            await ctx.yield_output(turn)
        else:
            await ctx.send_message(turn + 1)


def run(scale: Scale, room: Path) -> Iterator[Row]:
    mine, theirs = room / "mine", room / "theirs"
    mine.mkdir()
    sides: dict[str, Open] = {
        "mine": lambda: OutliveCheckpointStorage(_NAME, f"sqlite:///{mine}/agent.db"),
        "theirs": lambda: FileCheckpointStorage(theirs),
    }
    race = Race(SEED)
    with asyncio.Runner() as runner:
        race.lap(**{name: _talk(runner, open) for name, open in sides.items()})
        yield _disk(bytes_in(mine), bytes_in(theirs), race)
        for _ in range(scale.rounds):
            race.lap(**{f"{name}_latest": _latest(runner, open) for name, open in sides.items()})
    ours, peer = race.wall("mine_latest"), race.wall("theirs_latest")
    what = f"Agent Framework: the latest of {_SUPERSTEPS} supersteps, found by a new storage"
    versus = Versus(what, milliseconds(ours), duration(peer))
    yield within(what, ours, _LATEST_S, f"FileCheckpointStorage {duration(peer)}", versus)


def _disk(mine: int, theirs: int, race: Race) -> Row:
    what = f"Agent Framework: bytes of {_SUPERSTEPS} supersteps"
    cpu = f"CPU {duration(race.cpu('mine'))} / {duration(race.cpu('theirs'))}"
    measured = f"{megabytes(mine)} (FileCheckpointStorage {megabytes(theirs)}; {cpu})"
    versus = Versus(what, megabytes(mine), megabytes(theirs))
    return Row(what, measured, f"<= {megabytes(_BYTES)}", mine <= _BYTES, versus)


def _talk(runner: asyncio.Runner, open: Open) -> Callable[[], object]:
    async def talk() -> None:
        storage, rng = open(), random.Random(SEED)
        one, two = _Speaker("one", rng), _Speaker("two", rng)
        builder = WorkflowBuilder(
            name=_NAME, start_executor=one, checkpoint_storage=storage, max_iterations=_SUPERSTEPS + 1
        )
        result = await builder.add_edge(one, two).add_edge(two, one).build().run(1)
        if result.get_outputs() != [_SUPERSTEPS]:
            raise AssertionError("the workflow did not end")
        _close(storage)

    return lambda: runner.run(talk())


def _latest(runner: asyncio.Runner, open: Open) -> Callable[[], object]:
    async def latest() -> None:
        storage = open()
        found = await storage.get_latest(workflow_name=_NAME)
        if len(found.state["conversation"]) != 2 * _SUPERSTEPS:
            raise AssertionError("the latest checkpoint has another conversation")
        _close(storage)

    return lambda: runner.run(latest())


def _close(storage: Any) -> None:
    if isinstance(storage, OutliveCheckpointStorage):
        storage.close()
