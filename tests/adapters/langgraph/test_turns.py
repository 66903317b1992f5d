"""The order of those who write to one thread."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import outlive
from adapters.langgraph.making import at, checkpoint, ids, meta, put
from outlive.adapters.langgraph import OutliveSaver
from outlive.adapters.langgraph.write_order import WriteOrder
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S


def test_a_turn_comes_when_all_before_it_are_over_in_whatever_order_they_end():
    order = WriteOrder()
    first, second, third = (order.take("t") for _ in range(3))
    run_now(order.take("another thread").wait())
    run_now(first.wait())
    second.end()  # it failed before its turn came
    assert not third.has_come.done()
    first.end()
    run_now(third.wait())
    third.end()
    third.end()
    assert order.take("t").has_come is None


def test_thousands_may_stand_in_one_line():
    order = WriteOrder()
    line = [order.take("t") for _ in range(5_000)]
    for turn in line[1:-1]:
        turn.end()
    line[0].end()
    run_now(line[-1].wait())


def test_writes_of_parallel_tasks_share_a_transaction(tmp_path, monkeypatch):
    groups, commit_all, go = [], SQLiteBackend.commit_all, threading.Event()

    def commit(self, group):
        groups.append(len(group))
        if len(groups) == 2:  # the first of the writes: hold the store until the others are in its queue
            assert go.wait(PATIENCE_S)
        return commit_all(self, group)

    monkeypatch.setattr(SQLiteBackend, "commit_all", commit)
    with OutliveSaver(f"sqlite:///{tmp_path}/a.db") as saver, ThreadPoolExecutor(4) as pool:
        put(saver, "1")
        begun = [pool.submit(saver.put_writes, at(id="1"), [("a", n)], f"task {n}") for n in range(4)]
        while len(saver._shared.sync._engine.backend._queue) < 3:
            time.sleep(0.001)
        go.set()
        for future in begun:
            future.result(PATIENCE_S)
        assert groups == [1, 1, 3]
        assert len(saver.get_tuple(at(id="1")).pending_writes) == 4


@pytest.fixture(params=["url", "loop"])
def opened(request, loop, url):
    """A saver, by URL and on a store that belongs to the loop."""
    if request.param == "url":
        with OutliveSaver(url) as saver:
            yield saver
        return
    store = loop.run_until_complete(outlive.open_async(url)._open())
    with OutliveSaver(store) as saver:
        yield saver
    loop.run_until_complete(store.close())


@pytest.mark.parametrize("is_in_thread", [False, True])
def test_a_sync_put_that_stops_a_loop_does_not_wait_for_what_only_the_loop_can_finish(
    opened, loop, is_in_thread, tuned
):
    tuned(blocked_loop_s=0.05)

    async def main():
        begun = asyncio.create_task(opened.aput_writes(at(id="1"), [("a", 1)], "task"))
        await asyncio.sleep(0)  # it has taken its turn, and can do nothing more while we hold the loop
        if is_in_thread:  # as LangGraph does when a graph is invoked on a loop
            with ThreadPoolExecutor(1) as pool:
                pool.submit(put, opened, "1").result(PATIENCE_S)
        else:
            put(opened, "1")
        await begun
        return opened.get_tuple(at()).pending_writes

    assert loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S)) == [("task", "a", 1)]


def test_more_writers_than_workers_on_several_loops_do_not_wait_for_each_other_forever(url):
    with OutliveSaver(url) as saver:

        async def write(name):
            await asyncio.gather(
                *[saver.aput_writes(at(id="1"), [("a", n)], f"{name} {n}") for n in range(40)],
                *[saver.aput(at(), checkpoint(f"{name} {n}"), meta(), {}) for n in range(10)],
            )

        threads = [threading.Thread(target=lambda n=n: asyncio.run(write(n)), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
        put(saver, "1")
        assert len(saver.get_tuple(at(id="1")).pending_writes) == 160
        assert len(ids(saver.list(at()))) == 41
