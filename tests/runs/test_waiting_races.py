"""An ask and its answer at the same moment: no run is stranded, and each answer is used once."""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import outlive
from outlive.errors import AlreadyAnswered
from rig.crash import BACKENDS, SERVERS, rounds

KINDS = [*BACKENDS, *SERVERS]
RACES = rounds(120, long=10_000 * len(KINDS)) // len(KINDS)  # on each backend
SEED = int(os.environ.get("OUTLIVE_SEED", "1"))


class Booking:
    """An agent that may book once, with the answer that it was given."""

    def __init__(self):
        self.booked = []

    def __call__(self, run):
        answer = run.ask("book?", {"trip": run.id})
        run.step("book", self.booked.append, answer)


def begin(store, id, agent, pause_s):
    time.sleep(pause_s)
    with store.run(f"thread {id}", run_id=id, agent="a") as run:
        agent(run)


def answer(store, id, who, pause_s):
    """Answer as soon as there is a run; tell whether this answer counts."""
    time.sleep(pause_s)
    while True:
        try:
            store.answer(id, "book?", who, by=who)
            return who
        except AlreadyAnswered:
            return None
        except outlive.errors.RunMissing:
            time.sleep(0.001)


def race(pool, stores, id, chance):
    """Let one process ask, two answer, and recover whatever is ready; return what was booked and who answered first."""
    agent = Booking()
    asking = pool.submit(begin, stores[0], id, agent, chance.random() * 0.01)
    answers = [
        pool.submit(answer, stores[1 + n % 2], id, f"desk {n}", chance.random() * 0.03) for n in range(2)
    ]
    asking.result()
    first = [who for who in (each.result() for each in answers) if who is not None]
    return agent, first


@pytest.mark.parametrize("kind", KINDS)
def test_no_race_of_an_ask_and_its_answers_strands_a_run(kind, tmp_path, url_for):
    chance = random.Random(f"{SEED} {kind}")
    print(f"OUTLIVE_SEED={SEED}: {RACES} races on {kind}")
    url = url_for(kind, tmp_path)
    stores = [outlive.open(url) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for n in range(RACES):
            agent, first = race(pool, stores, f"r{n}", chance)
            info = stores[0].find_run(f"r{n}")
            if info.status != "completed":
                assert info.status == "released", f"stranded: {info}"
                stores[2].recover({"a": agent}, concurrency=1)
                info = stores[0].find_run(f"r{n}")
            assert (info.status, info.attempt) == ("completed", 1)
            assert (len(first), agent.booked) == (1, first)
    for store in stores:
        store.close()


def test_many_answers_to_one_question_are_one(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db?fsync=normal"
    agent = Booking()
    with outlive.open(url) as store:
        with store.run("t", run_id="r", agent="a") as run:
            agent(run)
        start = threading.Barrier(8)

        def answer_together(n):
            start.wait()
            return answer(store, "r", f"desk {n}", 0)

        with ThreadPoolExecutor(8) as pool:
            first = [who for who in pool.map(answer_together, range(8)) if who is not None]
        store.recover({"a": agent})
        assert (len(first), agent.booked) == (1, first)
