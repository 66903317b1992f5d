"""The races that are run on more than one engine: saving, loading, and a crowd of savers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from statistics import median

import ours
import outlive
import peer
import yardstick
from measure import Race, settled
from workloads import State

_WARM_UP = 20  # checkpoints that the peer has at first


class SaveRace:
    """Lanes at the same step of a conversation: save, the bare engine, the peer's put; behind each lap a `packb`.

    The `packb` that is timed comes right behind one that is not, so that its buffer is warm: what malloc did
    before can make it four times as slow.
    """

    def __init__(
        self,
        thread: outlive.Thread,
        bare: Callable[[State, bytes], object],  # given the state and the new message, packed
        saver: peer.Saver | None = None,
        seed: int = 0,
    ) -> None:
        self.race = Race(seed)
        self._thread, self._bare, self._saver = thread, bare, saver
        self._config = peer.thread()
        self._prepared: peer.Prepared | None = None

    def run(self, states: list[State], tail: int) -> Race:
        """Race over the last states, after all before them were saved."""
        first = len(states) - tail
        self._warm_up(states[:first])
        for step, state in enumerate(states[first:], first):
            self._lap(step, state)
        if self._saver is not None and peer.state_of(self._saver, peer.thread()) != states[-1]:
            raise AssertionError("the peer's newest state is another state")
        return self.race

    def _warm_up(self, states: list[State]) -> None:
        for state in states:
            self._thread.save(state)
        for step, state in enumerate(states[-_WARM_UP:], len(states) - _WARM_UP):
            self._bare(state, b"warm")
            if self._saver is not None:
                self._put(self._prepare(state, step))

    def _lap(self, step: int, state: State) -> None:
        message = yardstick.pack(state["messages"][-1])
        lanes: dict[str, Callable[[], object]] = {
            "save": partial(self._thread.save, state),
            "bare": partial(self._bare, state, message),
        }
        if self._saver is not None:
            lanes["put"] = partial(self._put, self._prepare(state, step))
        self.race.lap(**lanes)
        yardstick.pack(state)
        self.race.time("packb", partial(yardstick.pack, state))

    def _prepare(self, state: State, step: int) -> peer.Prepared:
        self._prepared = peer.prepare(state, step, self._prepared)
        return self._prepared

    def _put(self, prepared: peer.Prepared) -> None:
        assert self._saver is not None
        self._config = peer.put(self._saver, self._config, prepared)


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


class CrowdRace:
    """Concurrent savers, each with a thread of its own; the sides run one after the other in every round."""

    def __init__(self, talks: Sequence[list[State]], warm_ups: int = 1) -> None:
        self.rates: list[tuple[float, float]] = []  # saves per second of ours and of the peer's
        self._talks = talks
        self._prepared = [peer.prepare_all(states) for states in talks]
        self._warm_ups = warm_ups  # concurrent ones, so that each connection has been used

    def round(
        self,
        store: Callable[[], outlive.AsyncStore],
        saver: Callable[[], AbstractAsyncContextManager[peer.Saver]],
    ) -> None:
        sides: list[Callable[[], Coroutine[None, None, float]]] = [
            partial(self._ours, store),
            partial(self._peer, saver),
        ]
        rates: dict[int, float] = {}
        for side in (0, 1) if len(self.rates) % 2 == 0 else (1, 0):
            with settled():
                rates[side] = asyncio.run(sides[side]())
        self.rates.append((rates[0], rates[1]))

    def ratios(self) -> list[float]:
        return sorted(mine / theirs for mine, theirs in self.rates)

    def medians(self) -> tuple[float, float]:
        mine, theirs = zip(*self.rates, strict=True)
        return median(mine), median(theirs)

    async def _ours(self, open_store: Callable[[], outlive.AsyncStore]) -> float:
        async with open_store() as store:
            warm = [store.thread(f"warm-up-{n}").save(self._talks[0][0]) for n in range(self._warm_ups)]
            await asyncio.gather(*warm)
            threads = [store.thread(f"talk-{n}") for n in range(len(self._talks))]
            rate = await _rate([_save_talk(*pair) for pair in zip(threads, self._talks, strict=True)])
        async with open_store() as store:
            for n, states in enumerate(self._talks):
                if await store.thread(f"talk-{n}").load() != states[-1]:
                    raise AssertionError(f"talk {n} came back as another state")
        return rate

    async def _peer(self, open_saver: Callable[[], AbstractAsyncContextManager[peer.Saver]]) -> float:
        async with open_saver() as saver:
            first = self._prepared[0][0]
            warm = [peer.aput(saver, peer.thread(f"warm-up-{n}"), first) for n in range(self._warm_ups)]
            await asyncio.gather(*warm)
            configs = [peer.thread(f"talk-{n}") for n in range(len(self._talks))]
            return await _rate(
                [_put_talk(saver, *pair) for pair in zip(configs, self._prepared, strict=True)]
            )


async def _rate(savers: Sequence[Coroutine[None, None, int]]) -> float:
    start = time.perf_counter()
    saves = sum(await asyncio.gather(*savers))
    return saves / (time.perf_counter() - start)


async def _save_talk(thread: outlive.AsyncThread, states: list[State]) -> int:
    for state in states:
        await thread.save(state)
    return len(states)


async def _put_talk(saver: peer.Saver, config: peer.RunnableConfig, checkpoints: list[peer.Prepared]) -> int:
    for prepared in checkpoints:
        config = await peer.aput(saver, config, prepared)
    return len(checkpoints)
