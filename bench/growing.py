"""A conversation that grows by two items of 800 characters with each add, in our adapter and in what ships beside it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence

from measure import Race, settled
from scale import Scale
from table import Row, Versus, duration, megabytes, shown
from text import prose
from workloads import SEED

Turn = tuple[str, str]
Add = Callable[[Turn], Awaitable[object]]


def turns_of(scale: Scale) -> list[Turn]:
    rng = random.Random(SEED)
    return [(prose(rng, 800), prose(rng, 800)) for _ in range(scale.steps)]


def grow(runner: asyncio.Runner, mine: Add, theirs: Add, turns: Sequence[Turn]) -> Race:
    """Add the turns to both in turn."""
    race = Race(SEED)

    def call(add: Add, turn: Turn) -> Callable[[], object]:
        async def once() -> None:
            await add(turn)

        return lambda: runner.run(once())

    with settled():
        for turn in turns:
            race.lap(mine=call(mine, turn), theirs=call(theirs, turn))
    return race


def rows(name: str, peer: str, race: Race, mine: int, beside: str) -> Iterator[Row]:
    """Return the time and the bytes of what has grown; `beside` is what the bytes stand beside."""
    adds = len(race.wall_s["mine"])
    what = f"{name}: {adds:,} adds up to {2 * adds:,} items"
    sums = {lane: (sum(race.wall_s[lane]), sum(race.cpu_s[lane])) for lane in ("mine", "theirs")}
    walls, cpus = ([duration(sums[lane][n]) for lane in ("mine", "theirs")] for n in range(2))
    measured = f"{walls[0]}, CPU {cpus[0]} ({peer} {walls[1]}, CPU {cpus[1]})"
    yield shown(what, measured, Versus(what, *walls), better="lower")
    note = f"{megabytes(mine)} with every state ({beside})"
    yield shown(f"{name}: bytes of {2 * adds:,} items", note, better="lower")
