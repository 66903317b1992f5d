"""Sessions and run states of the OpenAI Agents SDK: `OutliveSession` beside the `SQLiteSession` that ships.

A conversation grows by two items of 800 characters with each add, up to 2,000 items. Both sides add in turn
on one event loop, on files with `synchronous=FULL`. `SQLiteSession` keeps the last state only, as rows;
`OutliveSession` keeps the state after each add, and all of them can be loaded. Then 50 sessions of one
file add at the same time. Run states are saved after each of 50 turns with results of 1 KB; no store
for them ships, so their JSON is the peer.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agents import Agent, Runner, SQLiteSession, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import outlive
from compare import Duel
from measure import Race, Rounds, bytes_in, settled
from outlive.adapters.openai_agents import OutliveRunStates, OutliveSession
from scale import Scale
from table import Row, Versus, megabytes, shown
from text import prose, records
from workloads import SEED

_SESSIONS, _TURNS = 50, 50
_STATES_BYTES = 150_000
Turn = list[dict[str, str]]
Open = Callable[[str], Any]


def run(scale: Scale, room: Path) -> Iterator[Row]:
    set_tracing_disabled(True)
    with asyncio.Runner() as runner:
        yield from _growing(runner, scale, room)
        yield _parallel(runner, scale, room)
        yield runner.run(_run_states(room / "states"))


def _turns(count: int, seed: int = SEED) -> list[Turn]:
    rng = random.Random(seed)
    return [[_item(rng, role) for role in ("user", "assistant")] for _ in range(count)]


def _item(rng: random.Random, role: str) -> dict[str, str]:
    return {"role": role, "content": prose(rng, 800)}


def _sides(room: Path, name: str) -> tuple[Open, Open]:
    """Return what opens a session on each side; each has a folder of its own."""
    mine, theirs = room / f"mine-{name}", room / f"theirs-{name}"
    mine.mkdir()
    theirs.mkdir()
    return (
        lambda name: OutliveSession(name, f"sqlite:///{mine}/agent.db"),
        lambda name: SQLiteSession(name, str(theirs / "agent.db")),
    )


def _growing(runner: asyncio.Runner, scale: Scale, room: Path) -> Iterator[Row]:
    turns = _turns(scale.steps)
    races = [_grow(runner, scale, _sides(room, f"growing-{n}"), turns, n) for n in range(scale.server_rounds)]
    rounds, count = Rounds(races), 2 * len(turns)
    adds, what = Duel(rounds, "mine", "theirs"), f"{len(turns):,} adds up to {count:,} items"
    yield adds.row(f"OpenAI Agents: {what} / SQLiteSession, CPU", 2.5, by="cpu")
    yield adds.row(f"OpenAI Agents: {what} / SQLiteSession", headline=f"OpenAI Agents: {what}", by="total")
    reads = Duel(rounds, "mine_read", "theirs_read")
    yield reads.row(f"OpenAI Agents: all {count:,} items read / SQLiteSession")
    yield _disk(room, len(turns), count)


def _grow(
    runner: asyncio.Runner, scale: Scale, sides: tuple[Open, Open], turns: Sequence[Turn], seed: int
) -> Race:
    race, (mine, theirs) = Race(seed), (side("talk") for side in sides)

    def add(session: Any, turn: Turn) -> Callable[[], object]:
        return lambda: runner.run(session.add_items(turn))

    def read(session: Any) -> Callable[[], object]:
        return lambda: runner.run(session.get_items())

    with settled():
        for turn in turns:
            race.lap(mine=add(mine, turn), theirs=add(theirs, turn))
        for _ in range(scale.laps):
            race.lap(mine_read=read(mine), theirs_read=read(theirs))
    _compare(runner, mine, theirs, turns)
    return race


def _compare(runner: asyncio.Runner, mine: Any, theirs: Any, turns: Sequence[Turn]) -> None:
    items = [item for turn in turns for item in turn]
    if not runner.run(mine.get_items()) == runner.run(theirs.get_items()) == items:
        raise AssertionError("a session came back with other items")
    mine.close()
    theirs.close()


def _disk(room: Path, states: int, count: int) -> Row:
    mine, theirs = bytes_in(room / "mine-growing-0"), bytes_in(room / "theirs-growing-0")
    note = (
        f"{mine / theirs:.2f}x: {megabytes(mine)} with {states:,} states / {megabytes(theirs)} with the last"
    )
    return shown(f"OpenAI Agents: bytes of {count:,} items / SQLiteSession", note, better="lower")


def _parallel(runner: asyncio.Runner, scale: Scale, room: Path) -> Row:
    talks = [_turns(scale.saves_each, SEED + n) for n in range(_SESSIONS)]
    races = [_crowd(runner, _sides(room, f"many-{n}"), talks, n) for n in range(scale.server_rounds)]
    what = f"OpenAI Agents: {_SESSIONS} sessions add {scale.saves_each} times at once, one file"
    duel = Duel(Rounds(races), "mine", "theirs")
    return duel.row(f"{what} / SQLiteSession", 1, headline=what, by="total")


def _crowd(
    runner: asyncio.Runner, sides: tuple[Open, Open], talks: Sequence[Sequence[Turn]], seed: int
) -> Race:
    race = Race(seed)
    mine, theirs = ([side(f"talk-{n}") for n in range(len(talks))] for side in sides)
    with settled():
        race.lap(
            mine=lambda: runner.run(_add_all(mine, talks)), theirs=lambda: runner.run(_add_all(theirs, talks))
        )
    for own, other, turns in zip(mine, theirs, talks, strict=True):
        _compare(runner, own, other, turns)
    return race


async def _add_all(sessions: Sequence[Any], talks: Sequence[Sequence[Turn]]) -> None:
    async def add(session: Any, turns: Sequence[Turn]) -> None:
        for turn in turns:
            await session.add_items(turn)

    await asyncio.gather(*map(add, sessions, talks))


async def _run_states(folder: Path) -> Row:
    folder.mkdir()
    url, rng, total = f"sqlite:///{folder}/agent.db", random.Random(SEED), 0
    states = OutliveRunStates("talk", url)

    @function_tool
    def work(n: int) -> str:
        """Work."""
        return records(rng, 1000)

    script = [[function_call("work", {"n": n}, call_id=f"c{n}")] for n in range(_TURNS)]
    agent = Agent(name="worker", model=ScriptedModel([*script, [assistant_message("done")]]), tools=[work])
    result = Runner.run_streamed(agent, "go", max_turns=_TURNS + 1)
    async for event in result.stream_events():
        if getattr(event, "name", "") == "tool_output":
            state = result.to_state()
            total += len(json.dumps(state.to_json()))
            await states.save(state)
    states.close()
    with outlive.open(url) as store:
        stored = store.thread("talk", namespace="run states").size().stored_bytes
    what = f"OpenAI Agents: {_TURNS} run states of a growing run"
    versus = Versus(what, megabytes(stored), megabytes(total))
    measured = f"{megabytes(stored)} ({megabytes(total)} as JSON)"
    return Row(what, measured, f"<= {megabytes(_STATES_BYTES)}", stored <= _STATES_BYTES, versus)
