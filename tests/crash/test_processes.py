"""Several processes, many threads, one store: no error reaches a caller, nothing is lost, order holds."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import outlive
from rig.crash import BACKENDS, LONG, SERVERS, WAYS, ForkServer, ram_folder, rounds
from rig.crash.conversation import state

pytestmark = pytest.mark.heavy

PROCESSES = 8


@pytest.fixture
def server(workers):
    return workers


@pytest.fixture
def quick_path():
    with ram_folder() as folder:
        yield folder


@contextlib.contextmanager
def workers(server: ForkServer, jobs: list[tuple]):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(server.spawn(*job)) for job in jobs]


def run(server: ForkServer, *jobs: tuple) -> list[list]:
    """Run all jobs at the same time; return what each said."""
    with workers(server, list(jobs)) as started:
        return [worker.finish() for worker in started]


# Saving -------------------------------------------------------------------------------------------------


def save_both(report, url, who, saves):
    """Save in turn to a thread of one's own and to one that all share."""
    with outlive.open(url) as store:
        own, shared = store.thread(f"own {who}"), store.thread("shared")
        for step in range(1, saves + 1):
            own.save(state(f"own {who}", step), step=step)
            report(shared.save({"who": who, "step": step}, step=step, metadata={"who": who}).id)


def save_both_async(report, url, who, saves):
    async def main():
        async with outlive.open_async(url) as store:
            own, shared = store.thread(f"own {who}"), store.thread("shared")
            for step in range(1, saves + 1):
                saved = shared.save({"who": who, "step": step}, step=step, metadata={"who": who})
                _, checkpoint = await asyncio.gather(own.save(state(f"own {who}", step), step=step), saved)
                report(checkpoint.id)

    asyncio.run(main())


@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_what_eight_processes_save_at_once_is_all_there_in_order(backend, server, tmp_path, url_for):
    url, saves = url_for(backend, tmp_path), rounds(8, long=250)  # of each kind
    jobs = [(save_both if who % 2 else save_both_async, url, who, saves) for who in range(PROCESSES)]
    said = run(server, *jobs)
    with outlive.open(url) as store:
        past = list(reversed(list(store.thread("shared").history())))
        assert [checkpoint.seq for checkpoint in past] == list(range(1, PROCESSES * saves + 1))
        assert [checkpoint.parent for checkpoint in past] == [None, *(before.id for before in past[:-1])]
        for who in range(PROCESSES):
            mine = [(old.id, old.step) for old in past if old.metadata["who"] == who]
            assert mine == [(message[0], step) for step, message in enumerate(said[who], 1)]
            check_own(store.thread(f"own {who}"), f"own {who}", saves)
        assert store.verify().problems == ()


def check_own(thread: outlive.Thread, name: str, saves: int) -> None:
    past = list(thread.history())
    assert [(old.seq, old.step) for old in past] == [(step, step) for step in range(saves, 0, -1)]
    for old in (*past[:3], *past[:: max(1, saves // 10)]):
        assert thread.load(old.id) == state(name, old.step)


def open_at(report, url, at, who):
    time.sleep(max(0.0, at - time.time()))
    with outlive.open(url) as store:
        store.thread("shared").save({"who": who})


@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_eight_processes_that_open_an_empty_store_at_the_same_moment_all_succeed(
    backend, server, quick_path, url_for
):
    for attempt in range(rounds(2, long=60)):
        folder = quick_path / str(attempt)
        folder.mkdir()
        url, at = url_for(backend, folder), time.time() + 0.05
        run(server, *((open_at, url, at, who) for who in range(PROCESSES)))
        with outlive.open(url) as store:
            assert sorted(old.seq for old in store.thread("shared").history()) == list(
                range(1, PROCESSES + 1)
            )
            assert store.verify().problems == ()


# Compare-and-set ------------------------------------------------------------------------------------------


def count_up(thread, times: int) -> list[str]:
    """Raise a counter by compare-and-set; return the heads on which this caller won."""
    won = []
    while len(won) < times:
        head = thread.checkpoint()
        try:
            thread.save({"count": head.state["count"] + 1}, expect=head.id)
            won.append(head.id)
        except outlive.HeadMoved:
            continue
    return won


def count_up_in_threads(report, url, threads, times):
    with outlive.open(url) as store:

        def count():
            report(count_up(store.thread("counter"), times))

        in_threads([count] * threads)


@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_compare_and_set_has_one_winner_per_head_and_loses_no_update(backend, server, quick_path, url_for):
    url, processes, threads, times = url_for(backend, quick_path), 4, 2, rounds(8, long=100)
    with outlive.open(url) as store:
        thread = store.thread("counter")
        thread.save({"count": 0})
        said = run(server, *[(count_up_in_threads, url, threads, times)] * processes)
        won = collections.Counter(head for messages in said for (heads,) in messages for head in heads)
        assert len(won) == processes * threads * times
        assert set(won.values()) == {1}
        assert thread.load() == {"count": processes * threads * times}
        assert len(thread.lineage()) == 1 + processes * threads * times
        assert len(thread.tips()) == 1


# Deleting while others save -------------------------------------------------------------------------------


def save_until(report, url, name, stop):
    """Continue one's own part of a shared thread; remember and check what was saved last."""
    with outlive.open(url) as store:
        thread, step = store.thread(name), 0
        while (
            step < 3 or not stop.exists()
        ):  # on a busy machine the others may be through before this one begins
            step += 1
            saved = thread.save(state(name, 30 + step % 40), step=step)
            thread.write(f"task {step}", [("out", "x" * 500)], checkpoint=saved.id)
        report(step)


def repeat_until(report, url, what, stop):
    with outlive.open(url) as store:
        turns = 0
        while turns < 3 or not stop.exists():
            ACTS[what](store, turns)
            turns += 1
            time.sleep(0.002)
        report(turns)


def prune(store, turn):
    for name in ("a", "b"):
        store.thread(name).prune(keep_last=1 + turn % 4, erase=turn % 5 == 0)


def delete(store, turn):
    store.delete("b")


def fork(store, turn):
    if store.thread("a").exists():  # "a" is pruned but never deleted
        store.thread("a").fork(f"fork {turn}")


def read(store, turn):
    for name in ("a", "b"):
        thread = store.thread(name)
        head = thread.checkpoint()
        if head is not None:
            assert head.state == state(name, len(head.state["messages"]))
            assert all(write.value == "x" * 500 for write in head.pending_writes)
            assert thread.load(head.id) in (None, head.state)
        assert len(list(thread.history(limit=5))) <= 5


def verify(store, turn):
    for name in ("a", "b"):
        problems = store.thread(name).verify().problems
        assert problems == (), problems


def copy(store, turn):
    if store.thread("a").exists():
        store.thread("a").copy(f"copy {turn}")


OTHERS = (
    "prune prune",
    "prune delete",
    "prune fork",
    "prune copy",
    "prune read",
    "prune verify",
    "delete verify",
)
ACTS = {act.__name__: act for act in (prune, delete, fork, copy, read, verify)}
PLACES = [*BACKENDS, *SERVERS]
CASES = [
    (others, backend)
    for at, others in enumerate(OTHERS)
    for place, backend in enumerate(PLACES)
    if LONG or (at + place) % 2 == 0
]


@pytest.mark.parametrize("others, backend", CASES)
def test_savers_see_no_error_while_other_processes(others, backend, server, quick_path, url_for):
    url, stop = url_for(backend, quick_path), quick_path / "stop"
    jobs = [(save_until, url, name, stop) for name in ("a", "a", "b")]
    jobs += [(repeat_until, url, what, stop) for what in others.split()]
    with workers(server, jobs) as started:
        time.sleep(10 if LONG else 0.3)
        stop.touch()
        turns = [worker.finish()[-1][0] for worker in started]
    assert min(turns) > 0, "each of them was at work"
    with outlive.open(url) as store:
        for info in store.threads():
            head = store.thread(info.id).checkpoint()
            name = "b" if info.id == "b" else "a"
            if head is not None:  # a write may have come after everything was deleted
                assert head.state == state(name, len(head.state["messages"]))
            seqs = [old.seq for old in store.thread(info.id).history()]
            assert seqs == sorted(set(seqs), reverse=True)
        assert store.verify().problems == ()


# Many threads in one process ------------------------------------------------------------------------------


@contextlib.contextmanager
def busy_switching():
    """Let Python change threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(jobs):
    """Run all jobs at the same time in threads; raise the first error."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


def save_in_threads(report, url, count, saves, durability):
    with busy_switching(), outlive.open(url, durability=durability) as store:

        def go_on(who):
            own, shared = store.thread(f"own {who}"), store.thread("shared")
            for step in range(1, saves + 1):
                own.save(state(f"own {who}", step), step=step)
                shared.save({"who": who, "step": step}, step=step, metadata={"who": who})

        in_threads([functools.partial(go_on, who) for who in range(count)])


@pytest.mark.parametrize("backend, durability", WAYS)
def test_many_threads_of_one_process_share_one_store(backend, durability, server, quick_path, url_for):
    url, count, saves = url_for(backend, quick_path), 16, rounds(5, long=240)
    run(server, (save_in_threads, url, count, saves, durability))
    with outlive.open(url) as store:
        past = list(reversed(list(store.thread("shared").history())))
        assert [old.seq for old in past] == list(range(1, count * saves + 1))
        for who in range(count):
            assert [old.step for old in past if old.metadata["who"] == who] == list(range(1, saves + 1))
            check_own(store.thread(f"own {who}"), f"own {who}", saves)
        assert store.verify().problems == ()


def hurry_in_threads(report, url, count, seconds):
    """Small saves as fast as they go: what counts is how often two of them meet."""
    saved, end = [0] * count, time.monotonic() + seconds
    with busy_switching(), outlive.open(url) as store:

        def go_on(who):
            while not saved[who] or time.monotonic() < end:
                store.thread(f"own {who}").save(who)
                saved[who] += 1

        in_threads([functools.partial(go_on, who) for who in range(count)])
    report(saved)


def test_no_save_falls_out_of_the_group_that_it_joined(server):
    ((saved,),) = run(server, (hurry_in_threads, "memory:", 12, rounds(1)))[0]
    assert min(saved) > 0
