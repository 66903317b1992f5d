"""How big a run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    steps: int  # saves of one conversation
    window: int  # steps of a curve's point; the last one is "at step N"
    turns: int  # of a LangGraph conversation
    size_saves: int  # of a state of each size
    tail: int  # laps of other races
    rounds: int  # repetitions of a whole race
    laps: int  # repetitions of a single call
    live_runs: int  # of one process
    kills: int  # of processes that own a run
    durable_steps: int  # of one run
    queued: int  # runs that are submitted to workers
    answers: int  # to runs that wait
    waiting: int  # runs that wait at the same time
    dead: int  # runs of a process that was killed
    samples: int  # checkpoints read back and compared after a workload
    savers: int
    saves_each: int
    server_rounds: int  # repetitions of a whole race on a server
    server_savers: int  # of a store on a server
    pool: int  # connections that these share
    threads: int  # threads in the store that is listed
    megabytes: int  # the large state
    cached_threads: int  # threads of some 100 KB that fill the default cache, and then some
    swept: int  # threads of 100 checkpoints that a sweep goes over
    cache_bytes: int | None  # None: the library's default
    ask_races: int  # on each backend
    starts: int  # of a program

    def describe(self) -> str:
        return (
            f"{self.steps:,} saves of a conversation, {self.turns} turns of a graph, {self.rounds} rounds "
            f"({self.server_rounds} on a server), {self.savers} savers"
        )


FULL = Scale(
    steps=1_000,
    window=50,
    turns=200,
    size_saves=50,
    tail=100,
    rounds=5,
    laps=30,
    live_runs=1_000,
    kills=10,
    durable_steps=500,
    queued=1_000,
    answers=200,
    waiting=1_000,
    dead=200,
    samples=50,
    savers=64,
    saves_each=50,
    server_rounds=3,
    server_savers=32,
    pool=8,
    threads=100_000,
    megabytes=64,
    cached_threads=1_000,
    swept=1_000,
    cache_bytes=None,
    ask_races=10_000,
    starts=20,
)

QUICK = Scale(
    steps=200,
    window=50,
    turns=40,
    size_saves=10,
    tail=40,
    rounds=2,
    laps=10,
    live_runs=1_000,
    kills=3,
    durable_steps=200,
    queued=200,
    answers=20,
    waiting=100,
    dead=40,
    samples=20,
    savers=64,
    saves_each=10,
    server_rounds=2,
    server_savers=32,
    pool=8,
    threads=5_000,
    megabytes=16,
    cached_threads=200,
    swept=50,
    cache_bytes=12 * 1024 * 1024,
    ask_races=100,
    starts=5,
)
