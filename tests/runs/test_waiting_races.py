"""An ask and its answer at the same moment: no run is stranded, and each answer is used once."""

import contextlib
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import outlive
from rig.asking import Booking, answer, race
from rig.crash import BACKENDS, SERVERS, rounds

KINDS = [*BACKENDS, *SERVERS]
RACES = rounds(120, long=10_000 * len(KINDS)) // len(KINDS)  # on each backend
IN_ONE_STORE = 200  # a race recovers, which takes the longer the more runs its store has
SEED = int(os.environ.get("OUTLIVE_SEED", "1"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_race_of_an_ask_and_its_answers_strands_a_run(kind, tmp_path, url_for):
    chance = random.Random(f"{SEED} {kind}")
    print(f"OUTLIVE_SEED={SEED}: {RACES} races on {kind}")
    for start in range(0, RACES, IN_ONE_STORE):
        folder = tmp_path / str(start)
        folder.mkdir()
        url = url_for(kind, folder)
        _race_in(url, range(start, min(RACES, start + IN_ONE_STORE)), chance)


def _race_in(url, numbers, chance):
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(outlive.open(url)) for _ in range(3)]
        pool = stack.enter_context(ThreadPoolExecutor(3))
        for n in numbers:
            race(pool, stores, f"r{n}", chance)


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
