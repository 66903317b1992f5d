"""The races that are run on more than one engine: every step of a conversation, loads, and a crowd of savers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TypeAlias

import ours
import outlive
import peer
import yardstick
from measure import Race, Rounds, divide, quantile, settled
from table import Row, at_most, figure, milliseconds
from workloads import State

Lane: TypeAlias = Callable[
    [State, int], Callable[[], object]
]  # given a state and its step: the call to be timed
Lanes: TypeAlias = Mapping[str, Lane]


def race_steps(lanes: Lanes, states: Sequence[State], seed: int) -> Race:
    """Let every lane keep every state of a conversation, in turn; after each lap, one `packb` of the state.

    What a lane prepares is not timed. The `packb` that is timed comes right behind one that is not, so that its buffer is
    warm: what malloc did before can make it four times as slow.
    """
    race = Race(seed)
    with settled():
        for step, state in enumerate(states):
            race.lap(**{name: lane(state, step) for name, lane in lanes.items()})
            yardstick.pack(state)
            race.time("packb", partial(yardstick.pack, state))
    return race


def save_lane(thread: outlive.Thread) -> Lane:
    return lambda state, step: partial(thread.save, state)


def bare_lane(insert: Callable[[bytes], object]) -> Lane:
    """Give the new message alone to the bare engine."""
    return lambda state, step: partial(insert, yardstick.pack(state["messages"][-1]))


def against_least(
    what: str, rounds: Rounds, window: int, bar: float, packs: int = 2, is_cpu: bool = False
) -> Row:
    """Compare the last saves with what none can do without: the bare engine, and some `packb` of the state."""
    last, side = slice(-window, None), rounds.cpu if is_cpu else rounds.wall
    pairs = zip(side("bare", last), side("packb", last), strict=True)
    mine, least = side("save", last), [bare + packs * packb for bare, packb in pairs]
    ratio = divide(mine, least)
    note = f"{milliseconds(median(mine))} / {milliseconds(median(least))}"
    return at_most(what, ratio.value, bar, f"{note}; rounds {figure(ratio.low)}-{figure(ratio.high)}x")


class LoadRace:
    """The newest state, of handles that are opened again for every lap: cold at first, then warm."""

    def __init__(self, place: ours.Place, saver: Callable[[], AbstractContextManager[peer.Saver]]) -> None:
        self.cold, self.warm = Race(), Race()
        self._place, self._saver = place, saver

    def run(self, laps: int, expected: State) -> None:
        with settled():
            for _ in range(laps):
                self._lap(expected)

    def _lap(self, expected: State) -> None:
        with ours.open_store(self._place) as store, self._saver() as saver:
            _connect(store, saver)
            thread, config = store.thread("talk"), peer.thread()
            for race in (self.cold, self.warm):
                race.lap(load=thread.load, get_tuple=partial(saver.get_tuple, config))
            if thread.load() != expected or peer.state_of(saver, config) != expected:
                raise AssertionError("the newest state came back as another state")


def _connect(store: outlive.Store, saver: peer.Saver) -> None:
    if store.thread("absent").load() is not None or saver.get_tuple(peer.thread("absent")) is not None:
        raise AssertionError("a thread that nobody saved has a state")


@dataclass(frozen=True)
class Crowd:
    """What a crowd of savers did: saves per second, CPU seconds of one, and how long each took."""

    rate: float
    cpu_s: float
    taken_s: list[float]


class CrowdRace:
    """Concurrent savers, each with a thread of its own; the sides run one after the other in every round."""

    def __init__(self, talks: Sequence[list[State]], warm_ups: int = 1) -> None:
        self.rates: list[tuple[float, float]] = []  # saves per second of ours and of the peer's
        self._crowds: list[tuple[Crowd, Crowd]] = []
        self._talks = talks
        self._prepared = [peer.prepare_all(states) for states in talks]
        self._warm_ups = warm_ups  # concurrent ones, so that each connection has been used

    def round(
        self,
        store: Callable[[], outlive.AsyncStore],
        saver: Callable[[], AbstractAsyncContextManager[peer.Saver]],
    ) -> None:
        sides: list[Callable[[], Coroutine[None, None, Crowd]]] = [
            partial(self._ours, store),
            partial(self._peer, saver),
        ]
        crowds: dict[int, Crowd] = {}
        for side in (0, 1) if len(self.rates) % 2 == 0 else (1, 0):
            with settled():
                crowds[side] = asyncio.run(sides[side]())
        self._crowds.append((crowds[0], crowds[1]))
        self.rates.append((crowds[0].rate, crowds[1].rate))

    def ratios(self) -> list[float]:
        return sorted(mine / theirs for mine, theirs in self.rates)

    def medians(self) -> tuple[float, float]:
        mine, theirs = zip(*self.rates, strict=True)
        return median(mine), median(theirs)

    def note(self) -> str:
        """Tell what a ratio does not: both rates, the range of the rounds, latencies and CPU of a save."""
        (mine, theirs), ratios = self.medians(), self.ratios()
        rates = f"{mine:,.0f} / {theirs:,.0f} saves/s, rounds {ratios[0]:.1f}-{ratios[-1]:.1f}x"
        return f"{rates}; {self._each('median', 0.5)}, {self._each('p99', 0.99)}, {self._cpu()}"

    def _each(self, name: str, share: float) -> str:
        mine, theirs = (
            median(quantile(crowd.taken_s, share) for crowd in side)
            for side in zip(*self._crowds, strict=True)
        )
        return f"{name} {figure(mine * 1e3)} / {figure(theirs * 1e3)} ms"

    def _cpu(self) -> str:
        mine, theirs = (median(crowd.cpu_s for crowd in side) for side in zip(*self._crowds, strict=True))
        return f"CPU {figure(mine * 1e3)} / {figure(theirs * 1e3)} ms"

    async def _ours(self, open_store: Callable[[], outlive.AsyncStore]) -> Crowd:
        async with open_store() as store:
            warm = [store.thread(f"warm-up-{n}").save(self._talks[0][0]) for n in range(self._warm_ups)]
            await asyncio.gather(*warm)
            threads = [store.thread(f"talk-{n}") for n in range(len(self._talks))]
            crowd = await _crowd([_save_talk(*pair) for pair in zip(threads, self._talks, strict=True)])
        async with open_store() as store:
            for n, states in enumerate(self._talks):
                if await store.thread(f"talk-{n}").load() != states[-1]:
                    raise AssertionError(f"talk {n} came back as another state")
        return crowd

    async def _peer(self, open_saver: Callable[[], AbstractAsyncContextManager[peer.Saver]]) -> Crowd:
        async with open_saver() as saver:
            first = self._prepared[0][0]
            warm = [peer.aput(saver, peer.thread(f"warm-up-{n}"), first) for n in range(self._warm_ups)]
            await asyncio.gather(*warm)
            configs = [peer.thread(f"talk-{n}") for n in range(len(self._talks))]
            return await _crowd(
                [_put_talk(saver, *pair) for pair in zip(configs, self._prepared, strict=True)]
            )


async def _crowd(savers: Sequence[Coroutine[None, None, list[float]]]) -> Crowd:
    start, cpu = time.perf_counter(), time.process_time()
    taken_s = [seconds for taken in await asyncio.gather(*savers) for seconds in taken]
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return Crowd(len(taken_s) / wall_s, cpu_s / len(taken_s), taken_s)


async def _save_talk(thread: outlive.AsyncThread, states: list[State]) -> list[float]:
    marks = [time.perf_counter()]
    for state in states:
        await thread.save(state)
        marks.append(time.perf_counter())
    return _gaps(marks)


async def _put_talk(
    saver: peer.Saver, config: peer.RunnableConfig, checkpoints: list[peer.Prepared]
) -> list[float]:
    marks = [time.perf_counter()]
    for prepared in checkpoints:
        config = await peer.aput(saver, config, prepared)
        marks.append(time.perf_counter())
    return _gaps(marks)


def _gaps(marks: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(marks)]
