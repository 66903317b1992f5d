"""Many threads, event loops and processes with one saver.

The order that is guaranteed: of two calls that write to one thread through one saver, the one that began first is stored first.
So a reader who sees a checkpoint sees the writes whose storing began before its own.
"""

import asyncio
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Command

import outlive
from adapters.langgraph.graphs import Chat, Driver, Log, asks, delta_graph, fan, line, says, thread
from adapters.langgraph.making import at, checkpoint, ids, meta, put
from conftest import SEED
from outlive.adapters.langgraph import OutliveSaver
from outlive.testing.patience import PATIENCE_S
from rig.crash import rounds

SOON_S = PATIENCE_S


class Slow:
    """A value that is packed when it is allowed to be."""

    def __init__(self, may_go_on=None, delay_s=0.0):
        self.may_go_on = may_go_on
        self.delay_s = delay_s


def _pack(value):
    if value.may_go_on is not None:
        assert value.may_go_on.wait(SOON_S)
    time.sleep(value.delay_s)
    return value.delay_s


outlive.register(Slow, tag="tests.langgraph.Slow", encode=_pack, decode=lambda delay: Slow(None, delay))


@pytest.fixture
def often():
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# Many at once -----------------------------------------------------------------------------------------------


def test_graphs_in_many_threads_share_a_saver(saver, often):
    graph = Driver(saver).compile(fan(Log, says("first"), says("last"), a=says("a"), b=says("b")))

    def talk(name):
        for turn in range(3):
            graph.invoke({"log": [f"{name} {turn}"]}, thread(name))
        return graph.get_state(thread(name)).values["log"]

    with ThreadPoolExecutor(6) as pool:
        logs = list(pool.map(talk, [f"t{n}" for n in range(12)]))
    for number, log in enumerate(logs):
        assert log == [word for turn in range(3) for word in (f"t{number} {turn}", "first", "a", "b", "last")]


def test_a_saver_serves_one_event_loop_after_the_other_and_several_at_once(saver):
    graph = Driver(saver).compile(line(Log, a=says("a")))

    async def talk(name):
        await asyncio.gather(*[graph.ainvoke({"log": [name]}, thread(f"{name} {n}")) for n in range(3)])
        return [(await graph.aget_state(thread(f"{name} {n}"))).values["log"] for n in range(3)]

    for turn in range(2):
        assert asyncio.run(talk(f"after {turn}")) == [[f"after {turn}", "a"]] * 3
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda name: asyncio.run(talk(name)), ["x", "y", "z"]))
    assert found == [[[name, "a"]] * 3 for name in "xyz"]


@pytest.mark.parametrize("kind", ["url", "store", "async store"])
def test_sync_methods_work_inside_a_running_loop(kind, url):
    async def main():
        if kind == "url":
            saver = OutliveSaver(url)
        elif kind == "store":
            saver = OutliveSaver(outlive.open(url))
        else:
            saver = OutliveSaver(await outlive.open_async(url))
        graph = Driver(saver).compile(line(Log, a=says("a"), ask=asks("ask")))
        graph.invoke({"log": []}, thread())
        await graph.ainvoke(Command(resume="yes"), thread())
        assert graph.get_state(thread()).values == (await graph.aget_state(thread())).values
        assert len(list(saver.list(at()))) == len([one async for one in saver.alist(at())])
        saver.delete_thread("t")
        assert await saver.aget_tuple(at()) is None
        saver.close()

    asyncio.run(asyncio.wait_for(main(), SOON_S))


def test_closing_what_was_opened_by_a_saver_on_an_async_store_leaves_the_store_open(url):
    async def main():
        async with outlive.open_async(url) as store:
            async with OutliveSaver(store) as saver:
                put(saver, "1")
            assert (await OutliveSaver(store).aget_tuple(at())).config == at(id="1")
        with pytest.raises(outlive.errors.StoreClosed):
            saver.get_tuple(at())

    asyncio.run(main())


# A list that pauses -------------------------------------------------------------------------------------------


def test_a_list_that_pauses_holds_nothing(saver):
    for number in range(80):
        put(saver, f"{number:03}", values={"n": number})
    listed = saver.list(at())
    first = next(listed)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(put, saver, "new", "079").result(SOON_S)
        pool.submit(saver.put_writes, at(id="new"), [("a", 1)], "task").result(SOON_S)
        pool.submit(saver.delete_thread, "another").result(SOON_S)
    assert ids([first, *listed]) == [f"{number:03}" for number in reversed(range(80))]


def test_an_async_list_that_pauses_holds_nothing(url):
    async def main(saver):
        for number in range(80):
            await saver.aput(at(), checkpoint(f"{number:03}"), meta(), {})
        listed = saver.alist(at())
        first = await anext(listed)
        await asyncio.wait_for(saver.aput(at(), checkpoint("new"), meta(), {}), SOON_S)
        assert ids([first, *[one async for one in listed]]) == [f"{n:03}" for n in reversed(range(80))]

    async def on_loop():
        async with outlive.open_async(url) as store:
            await main(OutliveSaver(store))

    with OutliveSaver("memory:") as saver:
        asyncio.run(main(saver))
    asyncio.run(on_loop())


def test_a_list_whose_thread_is_pruned_meanwhile_goes_on_with_what_is_left(saver):
    for number in range(150):
        put(saver, f"{number:03}", f"{number - 1:03}", values={"n": [number, "x" * 50]})
    listed = saver.list(at())
    found = [next(listed) for _ in range(3)]
    saver.prune(["t"], keep_last=100)
    found += listed
    assert [one.checkpoint["channel_values"]["n"][0] for one in found][:100] == list(range(149, 49, -1))


# Order ------------------------------------------------------------------------------------------------------


def test_a_put_waits_for_writes_that_began_before_it(saver):
    go_on = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        writing = pool.submit(saver.put_writes, at(id="1"), [("a", Slow(go_on))], "task")
        _until(lambda: saver._shared.write_order._lines)
        putting = pool.submit(put, saver, "2", "1")
        other = pool.submit(put, saver, "1", thread="another thread")
        other.result(SOON_S)
        time.sleep(0.05)
        assert saver.get_tuple(at()) is None
        go_on.set()
        putting.result(SOON_S)
        put(saver, "1")
        assert len(saver.get_tuple(at(id="1")).pending_writes) == 1
        writing.result(SOON_S)


@pytest.mark.parametrize("backend", ["memory", "sqlite", "file", "postgresql", "redis"])
def test_whoever_sees_a_checkpoint_sees_the_writes_of_its_step(backend, url_for, folder, often):
    chance = random.Random(SEED)
    url = "memory:" if backend == "memory" else url_for(backend, folder)
    steps = rounds(25)
    with OutliveSaver(url) as saver:
        put(saver, "0")
        done, problems = threading.Event(), []

        def watch():
            while not done.is_set():
                newest = saver.get_tuple(at())
                parent = newest.parent_config
                if parent and len(saver.get_tuple(parent).pending_writes) != 3:
                    problems.append(newest.config)

        async def main():
            begun = []
            for step in range(steps):
                for task in range(3):
                    value = Slow(delay_s=chance.choice([0, 0, 0.002, 0.01]))
                    begun.append(
                        asyncio.create_task(
                            saver.aput_writes(at(id=str(step)), [("a", value)], f"task {task}")
                        )
                    )
                made = checkpoint(str(step + 1), {"a": Slow(delay_s=chance.choice([0, 0.002]))})
                begun.append(asyncio.create_task(saver.aput(at(id=str(step)), made, meta(), {})))
                await asyncio.sleep(chance.choice([0, 0, 0.003]))
            await asyncio.gather(*begun)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            asyncio.run(main())
        finally:
            done.set()
            watcher.join()
        assert problems == []
        assert ids(saver.list(at())) == [str(step) for step in reversed(range(steps + 1))]


def test_a_call_that_fails_lets_the_next_one_go_on(saver):
    async def main():
        failing = [saver.aput_writes(at(id="1"), [("a", object())], str(n)) for n in range(30)]
        results = await asyncio.gather(
            *failing, saver.aput(at(), checkpoint("1"), meta(), {}), return_exceptions=True
        )
        assert all(isinstance(result, outlive.errors.Unencodable) for result in results[:-1])
        assert results[-1] == at(id="1")

    asyncio.run(asyncio.wait_for(main(), SOON_S))
    assert saver.get_tuple(at()).pending_writes == []


@pytest.mark.parametrize("kind", ["url", "async store"])
def test_a_put_that_was_begun_is_finished_when_its_caller_is_cancelled(kind, url):
    async def main():
        store = None if kind == "url" else await outlive.open_async(url)
        saver = OutliveSaver(url if store is None else store)
        for number in range(20):
            made = checkpoint(str(number), {"a": Slow(delay_s=0.002)})
            putting = asyncio.create_task(saver.aput(at(), made, meta(), {}))
            await asyncio.sleep(0.0005 * (number % 4))
            putting.cancel()
            begun = await asyncio.gather(putting, return_exceptions=True)
            if number % 4:  # cancelled before it ran, a task never begins
                assert (await saver.aget_tuple(at(id=str(number)))) is not None, begun
        assert await asyncio.wait_for(saver.aput(at(), checkpoint("last"), meta(), {}), SOON_S) == at(
            id="last"
        )
        await saver.aclose()
        if store is not None:
            await store.close()

    asyncio.run(main())


# Deletions meanwhile -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "sqlite", "file", "postgresql", "redis"])
def test_a_graph_goes_on_while_its_thread_is_pruned(backend, url_for, folder, often):
    """By one who shares nothing with the graph but the store: what a saver remembers of it may be gone any moment."""
    url = "memory:" if backend == "memory" else url_for(backend, folder)
    turns = rounds(12)
    with outlive.open(url) as store, outlive.open(url) as other:
        saver, sweeper = OutliveSaver(store), OutliveSaver(store if backend == "memory" else other)
        done = threading.Event()

        def reply(state):
            return {
                "messages": [AIMessage(f"answer {len(state['messages'])} " + "x" * 300)],
                "turn": state.get("turn", 0) + 1,
            }

        graphs = [
            Driver(saver).compile(
                line(Chat, reply=reply, more=lambda state: {"messages": [AIMessage("more")]})
            ),
            delta_graph(Driver(saver), 5),
        ]

        def sweep():
            while not done.is_set():
                sweeper.prune(["chat", "deltas"], keep_last=2)
                sweeper.delete_for_runs(["nobody's"])

        with ThreadPoolExecutor(1) as pool:
            sweeping = pool.submit(sweep)
            try:
                for turn in range(turns):
                    graphs[0].invoke(
                        {"messages": [HumanMessage(f"question {turn} " + "y" * 300)]}, thread("chat")
                    )
                    graphs[1].invoke({"log": [f"in {turn}"]}, thread("deltas"))
            finally:
                done.set()
            sweeping.result(SOON_S)
        said = graphs[0].get_state(thread("chat")).values
        assert (len(said["messages"]), said["turn"]) == (3 * turns, turns)
        assert [message.content.split()[0] for message in said["messages"]] == [
            "question",
            "answer",
            "more",
        ] * turns
        log = graphs[1].get_state(thread("deltas")).values["log"]
        assert log == [word for turn in range(turns) for word in (f"in {turn}", f"work {turn + 1}", "more")]
        assert store.verify().problems == ()


# The guard of the head -----------------------------------------------------------------------------------------


@pytest.fixture
def guarded(url):
    with OutliveSaver(url, refuse_stale=True) as made:
        yield made


def meeting_graph(driver, meet):
    """A graph in whose node two runs meet before either continues."""

    def node(state):
        meet.wait()
        return {"log": ["met"]}

    return driver.compile(line(Log, a=says("a"), node=node, b=says("b")))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("is_new", [False, True])
def test_of_two_runs_at_once_one_is_refused(guarded, durability, is_new):
    meet = threading.Barrier(2, timeout=SOON_S)
    graph = meeting_graph(Driver(guarded), meet)
    if not is_new:
        Driver(guarded).compile(line(Log, a=says("first"))).invoke({"log": []}, thread())
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(graph.invoke, {"log": [name]}, thread(), durability=durability) for name in "xy"]
        failures = []
        for run in as_completed(runs, SOON_S):
            if run.exception() is not None:
                failures.append(run.exception())
                meet.abort()  # the other one would wait for it
    moved = [failure for failure in failures if isinstance(failure, outlive.HeadMoved)]
    assert len(moved) == 1
    tuples = list(guarded.list(at()))
    assert len(parents_in(tuples)) == len(set(parents_in(tuples))), "the thread forked"


def parents_in(tuples):
    return [one.parent_config and one.parent_config["configurable"]["checkpoint_id"] for one in tuples]


def test_without_refuse_stale_two_runs_fork_the_thread(saver):
    meet = threading.Barrier(2, timeout=SOON_S)
    graph = meeting_graph(Driver(saver), meet)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: graph.invoke({"log": [name]}, thread()), "xy"))
    parents = parents_in(saver.list(at()))
    assert len(parents) > len(set(parents))


@pytest.mark.parametrize("is_async", [False, True])
def test_refuse_stale_lets_everything_else_through(guarded, loop, is_async):
    driver = Driver(guarded, loop if is_async else None)
    inner = line(Log, i=says("i"), ask=asks("ask")).compile(checkpointer=True)
    forgetful = line(Log, f=says("f")).compile()
    graph = driver.compile(line(Log, a=says("a"), sub=inner, other=forgetful, b=says("b")))
    for turn in range(2):
        driver.invoke(graph, {"log": [str(turn)]}, thread())
        driver.invoke(graph, Command(resume="ok"), thread())
    driver.update(graph, thread(), {"log": ["updated"]})
    old = driver.history(graph, thread())[5]
    driver.invoke(graph, None, old.config)  # replay
    driver.invoke(graph, Command(resume="otherwise"), thread())
    driver.update(graph, old.config, {"log": ["an old one updated"]})
    driver.invoke(graph, {"log": ["continues"]}, thread())
    driver.invoke(graph, Command(resume="ok"), thread())
    for old in driver.history(graph, thread()):
        forked = driver.update(graph, old.config, {"log": ["forked"]}, as_node="a")
        driver.invoke(graph, None, forked)
        driver.invoke(graph, Command(resume="ok"), thread())
    assert driver.state(graph, thread()).next == ()


# Processes -------------------------------------------------------------------------------------------------


def in_child(job):
    """Run a function in a forked child and tell whether it succeeded."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            job()
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + SOON_S
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)
    return done[1] == 0


def test_a_saver_works_on_in_a_forked_child_and_in_its_parent(saver):
    graph = Driver(saver).compile(line(Log, a=says("a")))

    async def talk(name):
        return await graph.ainvoke({"log": [name]}, thread())

    asyncio.run(talk("before"))  # worker threads exist, which the child does not have
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:  # and a turn is taken, by a thread that the child does not have
        pool.submit(saver.put_writes, at(id="x"), [("a", Slow(go_on))], "task")
        _until(lambda: saver._shared.write_order._lines)

        def child():
            graph.invoke({"log": ["child"]}, thread())
            asyncio.run(talk("child, async"))

        assert in_child(child)
        go_on.set()
    asyncio.run(talk("parent"))
    assert graph.get_state(thread()).values["log"] == [
        "before",
        "a",
        "child",
        "a",
        "child, async",
        "a",
        "parent",
        "a",
    ]


def _until(holds):
    end = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)
