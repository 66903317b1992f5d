"""A race of an ask and its answers: no run is stranded, and each answer is used once."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import Executor

import outlive
from outlive.errors import AlreadyAnswered, RunMissing


class Booking:
    """An agent that may book once, with the answer that it was given."""

    def __init__(self) -> None:
        self.booked: list[str] = []

    def __call__(self, run: outlive.Run) -> None:
        answer = run.ask("book?", {"trip": run.id})
        run.step("book", self.booked.append, answer)


def race(pool: Executor, stores: Sequence[outlive.Store], id: str, chance: random.Random) -> None:
    """Let one store ask, two answer, and one recover what is ready; fail if the run is stranded or an answer used twice."""
    agent = Booking()
    asking = pool.submit(_begin, stores[0], id, agent, chance.random() * 0.01)
    answers = [
        pool.submit(answer, stores[1 + n % 2], id, f"desk {n}", chance.random() * 0.03) for n in range(2)
    ]
    asking.result()
    first = [who for who in (each.result() for each in answers) if who is not None]
    _expect_one_booking(stores, id, agent, first)


def answer(store: outlive.Store, id: str, who: str, pause_s: float) -> str | None:
    """Answer as soon as there is a run; tell whether this answer counts."""
    time.sleep(pause_s)
    while True:
        try:
            store.answer(id, "book?", who, by=who)
            return who
        except AlreadyAnswered:
            return None
        except RunMissing:
            time.sleep(0.001)


def _begin(store: outlive.Store, id: str, agent: Booking, pause_s: float) -> None:
    time.sleep(pause_s)
    with store.run(f"thread {id}", run_id=id, agent=id) as run:
        agent(run)


def _expect_one_booking(stores: Sequence[outlive.Store], id: str, agent: Booking, first: list[str]) -> None:
    info = stores[0].find_run(id)
    if info is not None and info.status != "completed":
        assert info.status == "released", f"stranded: {info}"
        stores[2].recover({id: agent}, concurrency=1)
        info = stores[0].find_run(id)
    assert info is not None
    assert (info.status, info.attempt) == ("completed", 1), f"stranded: {info}"
    assert (len(first), agent.booked) == (1, first), f"{agent.booked} were booked, {first} answered"
