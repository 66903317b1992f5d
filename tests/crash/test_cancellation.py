"""Calls that end before their time: cancelled, timed out, interrupted. Nothing is held or half done."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

import outlive
from outlive.testing.patience import PATIENCE_S
from rig.crash import BACKENDS, LONG, ForkServer, ram_folder, rounds, url_of
from rig.crash.conversation import state

pytestmark = pytest.mark.heavy

SOON_S = PATIENCE_S
LOCK_S = (
    PATIENCE_S / 10
)  # for a lock that an interrupt may have left: the worker reports before its own time is over


@pytest.fixture
def server(workers):
    return workers


@pytest.fixture
def folder():
    with ram_folder() as folder:
        yield folder


@pytest.fixture
def url(backend, folder):
    return url_of(backend, folder)


def run(main) -> Any:
    """Run a coroutine; whatever asyncio would complain about in the log is an error."""
    complaints = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        result = await main
        gc.collect()  # a future that nobody asks for its exception complains when it goes
        return result

    result = asyncio.run(watched())
    assert complaints == []
    return result


# Somebody else -----------------------------------------------------------------------------------------


def save_one(report, url):
    with outlive.open(url) as store:
        store.thread("neighbour").save({"pid": os.getpid()}, timeout_s=SOON_S)


def neighbour_saves(server: ForkServer, url: str) -> None:
    """Make sure that another process can write at once."""
    with server.spawn(save_one, url) as worker:
        worker.finish()


def hold(report, path):
    """Keep everybody else from writing: with SQLite's lock, or the one of a folder."""
    if os.path.isdir(path):
        with open(os.path.join(path, "lock"), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            report("held")
            time.sleep(10 * SOON_S)
    else:
        db = apsw.Connection(path)
        db.execute("begin immediate")
        report("held")
        time.sleep(10 * SOON_S)


@contextlib.contextmanager
def locked(server: ForkServer, url: str):
    """Lock the store from another process until the block ends."""
    with server.spawn(hold, url.removeprefix("sqlite:///").removeprefix("file://")) as worker:
        assert worker.receive() == ("held",)
        yield


# Cancelled tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_save_is_stored_whole_or_not_at_all_and_holds_nothing(backend, server, url):
    async def main():
        async with outlive.open_async(url) as store:
            thread, stored = store.thread("t"), 0
            await thread.save(state("t", 1))
            for seed in range(rounds(30)):
                rng = random.Random(seed)
                task = asyncio.create_task(_anything(thread, seed, rng))
                await asyncio.sleep(rng.choice((0, 0, rng.uniform(0, 0.002))))
                task.cancel()
                await asyncio.wait([task], timeout=SOON_S)
                after = await asyncio.wait_for(thread.save(state("t", seed % 40), timeout_s=SOON_S), SOON_S)
                found = await thread.checkpoint(f"cancelled {seed}")
                if found is not None:
                    stored += 1
                    assert found.state == state("t", seed % 50)
                    assert found.seq < after.seq
                elif not task.cancelled() and task.exception() is None:
                    assert task.result() != "saved", f"seed {seed}: acknowledged and gone"
                if seed % 50 == 0:
                    await asyncio.to_thread(neighbour_saves, server, url)
            assert (await store.verify()).problems == ()
            return stored

    print("cancelled saves that were stored:", run(main()))


async def _anything(thread: outlive.AsyncThread, seed: int, rng: random.Random) -> str:
    match rng.choice(("save", "save", "save", "load", "prune", "history")):
        case "save":
            await thread.save(state("t", seed % 50), id=f"cancelled {seed}")
            return "saved"
        case "load":
            await thread.load()
        case "prune":
            await thread.prune(keep_last=20)
        case "history":
            [past async for past in thread.history()]
    return "done"


@pytest.mark.parametrize("backend", ["memory", *BACKENDS])
def test_a_task_that_saves_for_ever_ends_when_it_is_cancelled(backend, folder):
    """Also when the cancellation meets the answer of the store."""
    url = "memory:" if backend == "memory" else url_of(backend, folder)

    async def save_for_ever(thread):
        while True:
            await thread.save({"n": 1})

    async def main():
        async with outlive.open_async(url) as store:
            for seed in range(rounds(40 if backend == "memory" else 10)):
                rng = random.Random(seed)
                task = asyncio.create_task(save_for_ever(store.thread("t")))
                for _ in range(rng.randint(1, 60)):
                    await asyncio.sleep(0)
                task.cancel()
                done, _ = await asyncio.wait([task], timeout=SOON_S)
                assert done, f"seed {seed}: the cancellation was swallowed"

    run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_save_that_is_cancelled_while_it_waits_is_not_stored_after_a_later_one(backend, server, url):
    async def main():
        async with outlive.open_async(url) as store:
            thread = store.thread("t")
            await thread.save({"n": 0})
            with locked(server, url):
                saves = [asyncio.create_task(thread.save({"n": n}, id=f"waiting {n}")) for n in range(5)]
                await asyncio.sleep(0.1)
                for save in saves:
                    save.cancel()
                saving = asyncio.create_task(thread.save({"n": "last"}, timeout_s=SOON_S))
                await asyncio.sleep(0.1)
            await asyncio.wait(saves)
            last = await saving
            assert await thread.load() == {"n": "last"}
            await asyncio.to_thread(neighbour_saves, server, url)
            assert (await thread.checkpoint()).id == last.id

    run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_can_be_opened_after_its_opening_was_cancelled(backend, url):
    async def main():
        for seed in range(rounds(10)):
            task = asyncio.create_task(_open_and_save(url))
            await asyncio.sleep(random.Random(seed).uniform(0, 0.005))
            task.cancel()
            await asyncio.wait([task], timeout=SOON_S)
            await asyncio.wait_for(_open_and_save(url), SOON_S)

    threads = threading.active_count()
    run(main())
    assert threading.active_count() <= threads + 2, "workers of stores that nobody holds"


async def _open_and_save(url: str) -> None:
    async with outlive.open_async(url) as store:
        await store.thread("t").save({"n": 1})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_goes_on_in_another_event_loop_after_the_first_ended_in_the_middle_of_a_save(backend, url):
    async def opened():
        return await outlive.open_async(url)

    async def cut_short(store, seed):
        save = asyncio.ensure_future(store.thread("t").save(state("t", 30), id=f"cut {seed}"))
        await asyncio.sleep(random.Random(seed).uniform(0, 0.002))
        del save  # the end of the loop cancels it

    store = asyncio.run(opened())
    for seed in range(rounds(10)):
        asyncio.run(cut_short(store, seed))
        asyncio.run(store.thread("t").save({"seed": seed}, timeout_s=SOON_S))
        assert asyncio.run(store.thread("t").load(timeout_s=SOON_S)) == {"seed": seed}
    asyncio.run(store.close())


@pytest.mark.parametrize("pause_s", [None, 0, 0.005])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_delayed_is_stored_by_close_although_the_loop_is_told_to_end(backend, url, pause_s):
    """By SIGTERM or Ctrl-C, which end the loop from a handler: asyncio then cancels every task, also that of the queue."""

    def end():
        raise SystemExit(143)

    async def main():
        async with outlive.open_async(url) as store, store.run("r", run_id="r", durability="async") as run:
            for n in range(30):
                await store.thread("t").save({"n": n}, durability="async")
                await run.save({"n": n})
            if pause_s is not None:
                await asyncio.sleep(pause_s)
            asyncio.get_running_loop().call_soon(end)
            await asyncio.sleep(PATIENCE_S)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    with outlive.open(url) as store:
        for thread, expected in {"t": 30, "r": 31}.items():
            assert store.thread(thread).load() == {"n": 29}
            assert len(list(store.thread(thread).history())) == expected
        assert store.find_run("r").status == "released"
        assert store.verify().ok


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_what_is_delayed_when_its_loop_ends_is_stored_in_the_next(is_cancelled, folder):
    async def delayed():
        store = await outlive.open_async(f"sqlite:///{folder}/store.db")
        for n in range(30):
            await store.thread("t").save({"n": n}, durability="async")
        return store

    async def flushed(store):
        await asyncio.wait_for(store.flush(), SOON_S)
        state = await store.thread("t").load()
        await store.close()
        return state

    if is_cancelled:
        store = asyncio.run(delayed())
    else:
        loop = asyncio.new_event_loop()
        store = loop.run_until_complete(delayed())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # it is left behind on purpose
        loop.close()
    assert asyncio.run(flushed(store)) == {"n": 29}


@pytest.mark.parametrize("backend", BACKENDS)
def test_saves_that_wait_when_the_store_is_closed_are_stored_or_refused_at_once(backend, server, url):
    async def main():
        store = await outlive.open_async(url)
        await store.thread("t").save({"n": 0})
        with locked(server, url):
            saves = []
            for n in range(4):  # one is on its way to the disk, the others wait
                saves.append(asyncio.create_task(store.thread("t").save({"n": n}, id=f"s{n}")))
                await asyncio.sleep(0.02)
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0.1)
        await asyncio.wait_for(closing, SOON_S)
        _, pending = await asyncio.wait(saves, timeout=SOON_S)
        assert not pending, "nobody answers them any more"
        return {
            n for n, save in enumerate(saves) if not isinstance(save.exception(), outlive.errors.StoreClosed)
        }

    answered = run(main())
    with outlive.open(url) as store:
        found = {past.id for past in store.thread("t").history()}
        assert {f"s{n}" for n in answered} <= found


# Timeouts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_save_that_finds_the_store_locked_says_so_in_time_and_can_be_repeated(backend, server, url):
    with outlive.open(url) as store:
        thread = store.thread("t")
        thread.save({"n": 0})
        with locked(server, url):
            began = time.monotonic()
            with pytest.raises(outlive.errors.StoreBusy):
                thread.save({"n": 1}, id="one", timeout_s=0.2)
            assert time.monotonic() - began < SOON_S
        assert thread.checkpoint("one") is None, "busy means that nothing was stored"
        for _ in range(2):
            assert thread.save({"n": 1}, id="one").seq == 2
        assert [past.seq for past in thread.history()] == [2, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_save_without_an_answer_in_time_is_stored_once_by_a_retry_with_its_id(backend, server, url):
    async def main():
        async with outlive.open_async(url) as store:
            thread = store.thread("t")
            await thread.save({"n": 0})
            with locked(server, url):
                began = time.monotonic()
                with pytest.raises((outlive.OutcomeUnknown, outlive.errors.StoreBusy)) as caught:
                    await thread.save({"n": 1}, id="one", timeout_s=0.2)
                assert time.monotonic() - began < SOON_S
                if isinstance(caught.value, outlive.OutcomeUnknown):
                    assert caught.value.checkpoint == "one"
            for _ in range(2):
                await thread.save({"n": 1}, id="one")
            assert [past.id async for past in thread.history(limit=1)] == ["one"]
            assert len([past async for past in thread.history()]) == 2

    run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_short_timeout_of_one_save_does_not_shorten_that_of_another(backend, server, url):
    """The hasty ones come first, so that the patient ones wait in a group with them."""
    limits = {f"t{n}": 0.15 if n < 4 else SOON_S for n in range(8)}
    with outlive.open(url) as store, ThreadPoolExecutor(8) as pool:
        for name in limits:
            store.thread(name).save({"n": 0})
        with locked(server, url):
            saves = {}
            for name, limit in limits.items():
                saves[name] = pool.submit(store.thread(name).save, {"n": 1}, timeout_s=limit)
                time.sleep(0.01)
            for n in range(4):
                saves[f"t{n}"].exception()  # they are over before the lock is
        errors = {name: save.exception() for name, save in saves.items()}
    check_limits(errors)


def check_limits(errors: dict[str, BaseException | None]) -> None:
    """The hasty saves were over before the lock was; the patient ones had all the time."""
    assert [name for name, error in errors.items() if error is None] == ["t4", "t5", "t6", "t7"]
    assert all(
        isinstance(errors[f"t{n}"], outlive.errors.StoreBusy | outlive.OutcomeUnknown) for n in range(4)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_short_timeout_of_one_task_does_not_shorten_that_of_another(backend, server, url):
    limits = {f"t{n}": 0.15 if n < 4 else SOON_S for n in range(8)}

    async def save(store, name):
        try:
            await store.thread(name).save({"n": 1}, timeout_s=limits[name])
        except outlive.OutliveError as error:
            return error

    async def main():
        async with outlive.open_async(url) as store:
            await asyncio.gather(*(store.thread(name).save({"n": 0}) for name in limits))
            with locked(server, url):
                saves = [asyncio.create_task(save(store, name)) for name in limits]
                await asyncio.wait(saves[:4])
            return dict(zip(limits, await asyncio.gather(*saves), strict=True))

    check_limits(run(main()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_save_that_was_refused_as_busy_is_never_stored_later(backend, server, url):
    """When somebody else may still commit it in a group, the answer must be another one."""
    limits = {"leader": 0.3, "patient": SOON_S, "hasty": 0.6}
    with outlive.open(url) as store, ThreadPoolExecutor(3) as pool:
        for name in limits:
            store.thread(name).save({"n": 0})
        saves = {}
        with locked(server, url):
            for name, limit in limits.items():
                saves[name] = pool.submit(store.thread(name).save, {"n": 1}, timeout_s=limit)
                time.sleep(0.05)
            for name in ("leader", "hasty"):
                saves[name].exception()
        errors = {name: save.exception() for name, save in saves.items()}
        for name, error in errors.items():
            if isinstance(error, outlive.errors.StoreBusy):
                assert store.thread(name).load() == {"n": 0}, f"{name} was told that nothing is stored"


def fail_and_go_on(report, url, turns):
    """Delayed saves that fail while the caller continues to save."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    failures, step = 0, 0
    with outlive.open(url, durability="async", timeout_s=0.002) as store:
        thread = store.thread("t")
        while failures < turns:
            step += 1
            try:
                thread.save(state("t", step % 60), step=step)
            except (outlive.errors.DelayedSaveFailed, outlive.errors.StoreBusy):
                failures += 1
        sys.setswitchinterval(before)
        with contextlib.suppress(outlive.errors.DelayedSaveFailed):
            store.flush()
    report(step)


def block_now_and_then(report, path):
    db = apsw.Connection(path)
    db.set_busy_timeout(100_000)
    report("started")
    while True:
        db.execute("begin immediate")
        time.sleep(0.01)
        db.execute("rollback")
        time.sleep(0.02)


def test_a_delayed_save_never_builds_on_one_that_failed(server, folder):
    """SQLite only: its lock can be taken and given back many times a second."""
    url = url_of("sqlite", folder)
    with outlive.open(url) as store:
        store.thread("t").save(state("t", 5))
        with server.spawn(block_now_and_then, url.removeprefix("sqlite:///")) as blocker:
            blocker.receive()
            with server.spawn(fail_and_go_on, url, rounds(20, long=800)) as worker:
                worker.finish()
        assert store.verify().problems == ()


# Interrupts --------------------------------------------------------------------------------------------


SOURCE = str(Path(outlive.__file__).parent) + os.sep
PLACES = SOURCE if LONG else SOURCE + "backends"  # where a commit is made; the rest holds nothing


@contextlib.contextmanager
def interrupted_at(number: int):
    """Raise KeyboardInterrupt where a signal could: the `number`th time outlive is entered or returned to."""
    count = [0]

    def hook(frame, event, argument):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PLACES):
            count[0] += 1
            if count[0] == number:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(hook)
    try:
        yield count
    finally:
        sys.setprofile(None)


def interrupt_saves(report, url):
    """Interrupt a save at many places, each in a store of its own; report what is wrong afterwards."""
    places = interrupt_one(url, 0)
    problems = []
    for place in range(1, places + 1, 1 if LONG else 1 + places // 20):
        try:
            interrupt_one(f"{url}{place}", place)
        except (AssertionError, outlive.OutliveError) as error:
            problems.append(f"{place}: {error!r}")
    report(places, problems)


def interrupt_one(url: str, place: int) -> int:
    with outlive.open(url, fsync="normal") as store, ThreadPoolExecutor(1) as pool:
        thread = store.thread("t")
        thread.save(state("t", 8))
        with contextlib.suppress(KeyboardInterrupt), interrupted_at(place) as count:
            thread.save(state("t", 9), id="interrupted")
        found = thread.load("interrupted")
        assert found in (None, state("t", 9))
        with outlive.open(url) as neighbour:  # meets no lock on the disk
            neighbour.thread("neighbour").save(place, timeout_s=LOCK_S)
        # Another Python thread meets no lock in this process, and commits nothing that was left behind.
        pool.submit(store.thread("other").save, place, timeout_s=LOCK_S).result()
        assert thread.load("interrupted") == found, "stored late"
        thread.save(state("t", 10), timeout_s=LOCK_S)
        assert store.verify().problems == ()
        return count[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_keyboard_interrupt_at_any_place_of_a_save_leaves_the_store_usable(backend, server, url):
    with server.spawn(interrupt_saves, url) as worker:
        ((places, problems),) = worker.finish()
    print("places in a save:", places, problems)
    assert problems == []


def interrupt_by_signal(report, url, times):
    """The real thing: SIGINT from outside at a random moment."""
    with outlive.open(url) as store, ThreadPoolExecutor(1) as pool:
        thread = store.thread("t")
        for seed in range(times):
            rng = random.Random(seed)
            bell = threading.Timer(rng.uniform(0, 0.004), os.kill, (os.getpid(), signal.SIGINT))
            try:
                bell.start()
                for n in range(1_000_000):
                    thread.save(state("t", n % 40), step=seed)
                raise AssertionError("the signal did not come")
            except KeyboardInterrupt:
                bell.join()
            pool.submit(store.thread("other").save, seed, timeout_s=SOON_S).result()
            thread.save(state("t", seed % 40), step=seed, timeout_s=SOON_S)
            assert thread.load() == state("t", seed % 40)
            thread.prune(keep_last=1)
        assert store.verify().problems == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_in_the_middle_of_a_save_leaves_the_store_usable(backend, server, url):
    with server.spawn(interrupt_by_signal, url, rounds(20)) as worker:
        worker.finish()
    neighbour_saves(server, url)
