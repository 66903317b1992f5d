"""A process that forks with a store open, as gunicorn --preload does: parent and children continue to save."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

import outlive
from outlive.testing.patience import PATIENCE_S
from rig.crash import BACKENDS, SERVERS, WAYS, ForkServer, ram_folder, rounds, url_of
from rig.crash.conversation import state

pytestmark = pytest.mark.heavy

SOON_S = PATIENCE_S  # a child that is not done by then hangs


@pytest.fixture
def server(workers):
    return workers


@pytest.fixture
def url(backend, url_for):
    with ram_folder() as folder:
        yield url_for(backend, folder)


def run(server: ForkServer, work, *args) -> list:
    with server.spawn(work, *args) as worker:
        return worker.finish()


def fork(job, *args) -> int:
    """Run `job` in a child; its exit status tells whether it succeeded."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        job(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def join(*pids: int) -> None:
    """Wait for children; raise when one failed or hangs."""
    deadline = time.monotonic() + SOON_S
    for pid in pids:
        while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGUSR1)  # print where it hangs
                time.sleep(0.2)
                raise AssertionError(f"child {pid} hangs")
            time.sleep(0.002)
        assert done[1] == 0, f"child {pid} failed"


def save_some(store: outlive.Store, who: str, saves: int = 5, first: int | None = None) -> None:
    """Continue one's own thread, and one that all share."""
    own, shared = store.thread(who), store.thread("shared")
    if first is None:
        first = (own.load() or {"step": 0})["step"] + 1
    for step in range(first, first + saves):
        own.save(state(who, step), step=step)
        shared.save({"who": who, "step": step}, step=step, metadata={"who": who})


async def save_some_async(store: outlive.AsyncStore, who: str, saves: int = 5) -> None:
    own, shared = store.thread(who), store.thread("shared")
    first = (await own.load() or {"step": 0})["step"] + 1
    for step in range(first, first + saves):
        saved = shared.save({"who": who, "step": step}, step=step, metadata={"who": who})
        await asyncio.gather(own.save(state(who, step), step=step), saved)


def check(url: str, expected: dict[str, int]) -> None:
    """Make sure that everyone's saves are there, in order, with no gap between them."""
    with outlive.open(url) as store:
        past = list(reversed(list(store.thread("shared").history())))
        assert [old.seq for old in past] == list(range(1, sum(expected.values()) + 1))
        for who, saves in expected.items():
            assert [old.step for old in past if old.metadata["who"] == who] == list(range(1, saves + 1))
            assert store.thread(who).load() == state(who, saves)
        assert store.verify().problems == ()


# Fork and continue -----------------------------------------------------------------------------------------


def preload(report, url):
    store = outlive.open(url)
    save_some(store, "parent")

    def serve(who):
        save_some(store, who)
        join(fork(save_some, store, f"{who}'s child"))
        store.close()

    children = [fork(serve, f"child {number}") for number in range(4)]
    save_some(store, "parent")
    join(*children)
    save_some(store, "parent")
    store.close()


def preload_async(report, url):
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(_opened(url))
    loop.run_until_complete(save_some_async(store, "parent"))

    def serve(who):
        async def main():
            await save_some_async(store, who)
            grandchild = fork(asyncio.run, save_some_async(store, f"{who}'s child"))  # while the loop runs
            await asyncio.to_thread(join, grandchild)
            await store.close()

        asyncio.run(main())

    children = [fork(serve, f"child {number}") for number in range(4)]
    loop.run_until_complete(save_some_async(store, "parent"))
    join(*children)
    loop.run_until_complete(save_some_async(store, "parent"))
    loop.run_until_complete(store.close())
    loop.close()


async def _opened(url):
    return await outlive.open_async(url)


@pytest.mark.parametrize("work", [preload, preload_async])
@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_parent_children_and_grandchildren_go_on_with_the_store_they_inherited(work, backend, server, url):
    run(server, work, url)
    children = {f"child {number}": 5 for number in range(4)}
    grandchildren = {f"{child}'s child": 5 for child in children}
    check(url, {"parent": 15, **children, **grandchildren})


def hand_to_pool(report, url):
    context = multiprocessing.get_context("fork")
    with outlive.open(url) as store:
        save_some(store, "parent")
        one = context.Process(target=save_some, args=(store, "process"))
        one.start()
        _inherited.append(store)
        with ProcessPoolExecutor(3, mp_context=context) as pool:  # forks from a thread of its own
            list(pool.map(_save_some_inherited, [f"job {number}" for number in range(6)], timeout=SOON_S))
        one.join(SOON_S)
        assert one.exitcode == 0
        save_some(store, "parent")


_inherited: list[outlive.Store] = []


def _save_some_inherited(who):
    save_some(_inherited[0], who)


@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_multiprocessing_children_go_on_with_the_store_they_inherited(backend, server, url):
    run(server, hand_to_pool, url)
    check(url, {"parent": 10, "process": 5, **{f"job {number}": 5 for number in range(6)}})


# In the middle of something -------------------------------------------------------------------------------


def fork_while_saving(report, url, forks, durability="sync"):
    """Three threads save most of the time; the main thread forks."""
    with outlive.open(url, durability=durability, timeout_s=PATIENCE_S) as store:
        stop = threading.Event()

        def go_on(who):
            count = 0
            while not stop.is_set() or not count:
                start = time.monotonic()
                save_some(store, who, 3, count + 1)
                count += 3
                # However slow the machine is, the children find the store unlocked at times.
                time.sleep(count / 30_000 + 2 * (time.monotonic() - start))
            store.flush()
            return count

        with ThreadPoolExecutor(3) as pool:
            savers = {who: pool.submit(go_on, who) for who in ("thread 1", "thread 2", "thread 3")}
            children = []
            for number in range(forks):
                children.append(fork(save_and_close, store, f"child {number}", 2))
                time.sleep(0.003)
            join(*children)
            stop.set()
            report({who: saver.result(SOON_S) for who, saver in savers.items()})


def save_and_close(store, who, saves):
    save_some(store, who, saves)
    store.close()  # stores what is delayed


def fork_while_delaying(report, url, forks):
    fork_while_saving(report, url, forks, "async")


def fork_while_saving_async(report, url, forks):
    """Three tasks save all the time; another task forks."""

    async def main():
        async with outlive.open_async(url) as store:
            stop = asyncio.Event()

            async def go_on(who):
                count = 0
                while not stop.is_set() or not count:
                    await save_some_async(store, who, 1)
                    count += 1
                return count

            names = ("thread 1", "thread 2", "thread 3")
            savers = [asyncio.create_task(go_on(who)) for who in names]
            children = []
            for number in range(forks):
                job = save_some_async(store, f"child {number}", 2)
                children.append(fork(asyncio.run, job))
                job.close()  # it is the child's
                await asyncio.sleep(0.003)
            await asyncio.to_thread(join, *children)
            stop.set()
            report(dict(zip(names, await asyncio.wait_for(asyncio.gather(*savers), SOON_S), strict=True)))

    asyncio.run(main())


@pytest.mark.parametrize("work", [fork_while_saving, fork_while_delaying, fork_while_saving_async])
@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_a_fork_in_the_middle_of_saves_neither_hangs_nor_loses_one(work, backend, server, url):
    forks = rounds(2, long=100)
    ((saved,),) = run(server, work, url, forks)
    check(url, {**saved, **{f"child {number}": 2 for number in range(forks)}})


def fork_from_threads(report, urls, times):
    """Several threads fork at once, with two stores open."""
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(outlive.open(url)) for url in urls]

        def go_on(who):
            for number in range(times):
                save_some(stores[0], f"thread {who}", 1)
                join(fork(save_some, stores[number % 2], f"child {who}.{number}", 1))

        sys.setswitchinterval(1e-5)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(go_on, range(4), timeout=SOON_S))


@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_threads_that_fork_at_the_same_moment_do_not_stand_in_each_others_way(backend, server, url):
    run(server, fork_from_threads, (url, f"{url}2"), rounds(2, long=50))
    with outlive.open(url) as store, outlive.open(f"{url}2") as other:
        assert store.verify().problems == other.verify().problems == ()


# Delayed saves ------------------------------------------------------------------------------------------


def fork_with_a_queue(report, url, durability):
    with outlive.open(url, durability="async") as store:
        for step in range(1, 31):
            store.thread("parent").save(state("parent", step), step=step)
        child = fork(_save_beside_the_queue, store, durability)
        for step in range(31, 41):
            store.thread("parent").save(state("parent", step), step=step)
        store.flush()
        join(child)


def _save_beside_the_queue(store, durability):
    for step in range(1, 6):
        store.thread("child").save(state("child", step), step=step, durability=durability)
        store.thread("parent").save(state("parent", 20 + step), durability=durability, source="update")
    store.close()


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_delayed_saves_of_the_parent_are_stored_once_by_the_parent(durability, backend, server, url):
    run(server, fork_with_a_queue, url, durability)
    with outlive.open(url) as store:
        past = [old for old in store.thread("parent").history() if old.source == "loop"]
        assert [old.step for old in past] == list(range(40, 0, -1))
        assert store.thread("parent").load(past[0].id) == state("parent", 40)
        assert [old.step for old in store.thread("child").history()] == [5, 4, 3, 2, 1]
        assert store.verify().problems == ()


def orphan(report, url):
    """A child continues a thread whose newest saves its parent has queued and will never store."""
    store = outlive.open(url, durability="async")
    store.thread("t").save(state("t", 1), step=1, durability="sync")
    for step in range(2, 60):
        store.thread("t").save(state("t", step), step=step)
    parent = os.getpid()

    def go_on():
        assert os.getppid() == parent
        os.kill(parent, signal.SIGKILL)
        saved = store.thread("t").save(state("t", 60), durability="sync", step=60)
        report(saved.id)

    fork(go_on)
    time.sleep(SOON_S)


@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_a_child_builds_on_nothing_that_its_parent_has_only_queued(backend, server, tmp_path):
    url = url_of(backend, tmp_path)  # on a disk, so that the queue is long when the parent dies
    with server.spawn(orphan, url) as worker:
        ((saved,),) = list(worker)
    with outlive.open(url) as store:
        assert store.verify().problems == ()
        assert store.thread("t").load(saved) == state("t", 60)
        assert store.thread("t").checkpoint().id == saved


# What a child inherits ----------------------------------------------------------------------------------


def list_descriptors(report, url):
    with outlive.open(url) as store:
        save_some(store, "parent")
        join(fork(lambda: report([os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors()])))
        save_some(store, "parent")


def _descriptors():
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.readlink(f"/proc/self/fd/{fd}")
            yield fd


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc to look into")
@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_child_inherits_no_open_sqlite_file(backend, server, url):
    """SQLite: "Do not open an SQLite database connection, then fork(), then use it in the child"."""
    ((inherited,),) = run(server, list_descriptors, url)
    assert [path for path in inherited if "store.db" in path] == []


@pytest.mark.parametrize("backend, durability", WAYS)
def test_a_program_that_forks_ends_by_itself_and_says_nothing(durability, backend, url):
    """A whole interpreter, from start to exit: nothing is raised in a fork hook or at shutdown."""
    program = f"""
        import multiprocessing, outlive

        def work(number):
            store.thread(f"child {{number}}").save({{"number": number}})

        store = outlive.open({url!r}, durability={durability!r})
        store.thread("parent").save({{"step": 1}})
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(number,)) for number in range(3)]
        for child in children:
            child.start()
        store.thread("parent").save({{"step": 2}})
        for child in children:
            child.join({PATIENCE_S})
            assert child.exitcode == 0
        """
    source = Path(outlive.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with outlive.open(url) as store:
        assert store.thread("parent").load() == {"step": 2}
        assert [store.thread(f"child {number}").load() for number in range(3)] == [
            {"number": number} for number in range(3)
        ]
