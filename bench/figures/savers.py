"""Many concurrent savers on one SQLite file, `synchronous=FULL`.

Each saver has a thread of its own that grows by a message a save. All states (and the peer's checkpoints)
are made before the clock starts. Both sides run in every round, on new files, in alternating order; the
median of the rounds' ratios counts. The peer is `AsyncSqliteSaver`; the aim beyond the bar is 10x.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from statistics import median

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import ours
import outlive
import peer
from measure import settled
from scale import Scale
from table import Row, Versus, at_least
from workloads import SEED, State, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    talks = [conversation(scale.saves_each, seed=SEED + 100 + n) for n in range(scale.savers)]
    rates = [_round(talks, room / str(n), ours_first=n % 2 == 0) for n in range(scale.rounds)]
    mine, theirs = (median(rate[side] for rate in rates) for side in (0, 1))
    ratios = sorted(rate[0] / rate[1] for rate in rates)
    what = f"{scale.savers} concurrent async savers, one file"
    versus = Versus(what, f"{mine:,.0f} saves/s", f"{theirs:,.0f} saves/s")
    note = f"{mine:,.0f} against {theirs:,.0f} saves/s; rounds {ratios[0]:.1f}-{ratios[-1]:.1f}x"
    yield at_least(f"{scale.savers} concurrent savers / AsyncSqliteSaver", median(ratios), 5, note, versus)


def _round(talks: Sequence[list[State]], folder: Path, *, ours_first: bool) -> tuple[float, float]:
    """One race of both sides: saves per second of ours and of the peer's."""
    folder.mkdir()
    prepared = [peer.prepare_all(states) for states in talks]
    sides: list[Callable[[], Coroutine[None, None, float]]] = [
        lambda: _ours(folder / "store.db", talks),
        lambda: _peer(folder / "peer.db", prepared),
    ]
    rates: dict[int, float] = {}
    for side in (0, 1) if ours_first else (1, 0):
        with settled():
            rates[side] = asyncio.run(sides[side]())
    return rates[0], rates[1]


async def _rate(savers: Sequence[Coroutine[None, None, int]]) -> float:
    start = time.perf_counter()
    saves = sum(await asyncio.gather(*savers))
    return saves / (time.perf_counter() - start)


async def _ours(path: Path, talks: Sequence[list[State]]) -> float:
    async with ours.open_async(path) as store:
        await store.thread("warm-up").save(talks[0][0])
        return await _rate([_save_talk(store.thread(f"talk-{n}"), states) for n, states in enumerate(talks)])


async def _save_talk(thread: outlive.AsyncThread, states: list[State]) -> int:
    for state in states:
        await thread.save(state)
    return len(states)


async def _peer(path: Path, talks: Sequence[list[peer.Prepared]]) -> float:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await peer.aput(saver, peer.thread("warm-up"), talks[0][0])
        return await _rate([_put_talk(saver, f"talk-{n}", prepared) for n, prepared in enumerate(talks)])


async def _put_talk(saver: AsyncSqliteSaver, thread_id: str, checkpoints: list[peer.Prepared]) -> int:
    config = peer.thread(thread_id)
    for prepared in checkpoints:
        config = await peer.aput(saver, config, prepared)
    return len(checkpoints)
