"""kill -9 at any moment: what was acknowledged is there, what was not is there whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest
import redis

import outlive
from outlive.testing.patience import eventually
from rig.crash import BACKENDS, LONG, SERVERS, ForkServer, ram_folder, rounds, url_of
from rig.crash.conversation import Doing, Ledger, act, script, state

pytestmark = pytest.mark.heavy

NAMES = ("trip-42", "trip 43 / späť", "x" * 300)
KILLS = 6 if LONG else 2  # of one store; then a new one, so that its first moments are hit too


@pytest.fixture
def server(workers):
    return workers


@pytest.fixture
def quick_path():
    with ram_folder() as folder:
        yield folder


def converse(report, url, seed):
    """Three Python threads, each with a conversation of its own, on one store."""
    store = outlive.open(url)

    def go_on(name):
        thread = store.thread(name)
        step = (thread.load() or {"step": 0})["step"]
        for doing in script(name, step, seed):
            report("begin", name, doing)
            act(thread, doing)
            report("done", name)

    savers = [threading.Thread(target=go_on, args=(name,)) for name in NAMES]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join()


def converse_async(report, url, seed):
    """The same with tasks."""

    async def go_on(store, name):
        thread = store.thread(name)
        step = (await thread.load() or {"step": 0})["step"]
        for doing in script(name, step, seed):
            report("begin", name, doing)
            await act(thread, doing)
            report("done", name)

    async def main():
        async with outlive.open_async(url) as store:
            await asyncio.gather(*(go_on(store, name) for name in NAMES))

    asyncio.run(main())


def note(ledgers: dict[str, Ledger], message: tuple) -> None:
    match message:
        case "begin", name, doing:
            ledgers[name].begin(doing)
        case "done", name:
            ledgers[name].done()


def kill_in_the_middle(server: ForkServer, work, url: str, seed: str, ledgers: dict[str, Ledger]) -> None:
    """Let a worker save for a random while, kill it, and note all that it said."""
    rng, before = random.Random(seed), sessions(url)
    with server.spawn(work, url, seed) as worker:
        if rng.random() < 0.1:  # while it opens the store
            time.sleep(rng.uniform(0, 0.02))
        else:
            for _ in range(rng.randint(1, 60)):
                note(ledgers, worker.receive())
            time.sleep(rng.uniform(0, 0.005))
        worker.kill()
        for message in worker:
            note(ledgers, message)
    eventually(lambda: sessions(url) <= before)  # a server still does what it was sent last


def sessions(url: str) -> int:
    """Return how many clients a server has."""
    if url.startswith("postgresql"):
        with psycopg.connect(url.partition("?")[0]) as connection:
            sql = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'outlive'"
            return connection.execute(sql).fetchone()[0]
    if url.startswith("redis"):
        with redis.Redis.from_url(url.partition("?")[0]) as client:
            return len(client.client_list())
    return 0


def check(store: outlive.Store, ledgers: dict[str, Ledger]) -> None:
    for ledger in ledgers.values():
        ledger.check(store)
    assert store.verify().problems == ()


ENGINES = (*BACKENDS, *SERVERS)
WORKS = (converse, converse_async)
EVERY = [(backend, work) for backend in ENGINES for work in WORKS]
EACH = [*zip(ENGINES, WORKS * 2, strict=True)]  # one local engine and one server for each


@pytest.mark.parametrize("backend, work", EVERY if LONG else EACH)
def test_after_kill_9_every_acknowledged_save_is_there(backend, work, server, tmp_path, quick_path, url_for):
    for batch in range(rounds(2, long=40)):
        # Every other time a neighbour has the store open; without one, the next opener recovers it alone.
        folder, has_neighbour = (tmp_path, True) if batch % 2 else (quick_path, False)
        folder /= str(batch)
        folder.mkdir()
        url, ledgers = url_for(backend, folder), {name: Ledger(name) for name in NAMES}
        with outlive.open(url) if has_neighbour else contextlib.nullcontext() as neighbour:
            for kill in range(KILLS):
                seed = f"{work.__name__} {batch} {kill}"
                print("seed", seed)
                kill_in_the_middle(server, work, url, seed, ledgers)
                with outlive.open(url) as store:
                    check(store, ledgers)
                    save_one_more(store, ledgers)
                if neighbour is not None:
                    check(neighbour, ledgers)


def save_one_more(store: outlive.Store, ledgers: dict[str, Ledger]) -> None:
    for name, ledger in ledgers.items():
        step = ledger.last + 1
        ledger.begin(("save", step, f"after {step}"))
        act(store.thread(name), ledger.doing)
        ledger.done()


# Before every change on disk -------------------------------------------------------------------------

BACKEND_FILES = str(Path(outlive.__file__).parent / "backends") + os.sep


CHANGES = {
    *("mkdir", "write", "pwrite", "writev", "pwritev", "posix_fallocate", "ftruncate", "truncate", "fsync"),
    *("fdatasync", "link", "rename", "replace", "unlink", "remove", "rmdir", "execute", "executemany"),
}


def changes_something(function) -> bool:
    """Tell whether a C function changes a file, or lets SQLite do so."""
    owner = getattr(function, "__self__", None)
    modules = (getattr(function, "__module__", None), type(owner).__module__)
    return function.__name__ in CHANGES and any(module in ("posix", "_io", "apsw") for module in modules)


def die_at(number: int) -> list[int]:
    """Kill this process before the `number`th change that a backend makes; return the count, running."""
    count = [0]

    def hook(frame, event, function):
        if (
            event == "c_call"
            and frame.f_code.co_filename.startswith(BACKEND_FILES)
            and changes_something(function)
        ):
            count[0] += 1
            if count[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(hook)
    return count


SCRIPT: tuple[Doing, ...] = (
    *(("save", step, f"c{step}") for step in range(1, 6)),
    ("write", "c5", 0),
    ("prune", 2),
    ("save", 6, "c6"),
)


def follow_script(report, url, number):
    count = die_at(number)
    with outlive.open(url) as store:
        thread = store.thread("t")
        for doing in SCRIPT:
            report("begin", "t", doing)
            act(thread, doing)
            report("done", "t")
    sys.setprofile(None)
    report("calls", count[0])


def sample(count: int, normal: int) -> list[int]:
    """Return some of 1..count, evenly; all of them in long mode."""
    size = min(count, rounds(normal, long=count))
    return sorted({1 + at * count // size for at in range(size)})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kill_before_any_change_on_disk_loses_nothing_acknowledged(backend, server, quick_path):
    with server.spawn(follow_script, url_of(backend, quick_path), 0) as worker:
        calls = worker.finish()[-1][1]
    for number in sample(calls, 20):
        folder = quick_path / str(number)
        folder.mkdir()
        url, ledgers = url_of(backend, folder), {"t": Ledger("t")}
        with server.spawn(follow_script, url, number) as worker:
            for message in worker:
                note(ledgers, message)
        for _ in range(2):  # what is saved behind a torn end must be there the next time
            with outlive.open(url) as store:
                check(store, ledgers)
                save_one_more(store, ledgers)


def fork_and_delete(report, url, number):
    count = die_at(number)
    with outlive.open(url) as store:
        store.thread("source").fork("branch")
        report("forked")
        store.thread("source").copy("copy")
        report("copied")
        store.delete("doomed")
        report("deleted")
    sys.setprofile(None)
    report("calls", count[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fork_copy_or_deletion_that_was_killed_is_done_whole_or_not_at_all(backend, server, quick_path):
    pattern = quick_path / "pattern"
    pattern.mkdir()
    with outlive.open(url_of(backend, pattern)) as store:
        for name in ("source", "doomed"):
            for step in range(1, 6):
                store.thread(name).save(state(name, step), id=f"{name}{step}", step=step)
        store.thread("source").write("task", [("out", "x" * 5000)])
    shutil.copytree(pattern, quick_path / "dry")
    with server.spawn(fork_and_delete, url_of(backend, quick_path / "dry"), 0) as worker:
        calls = worker.finish()[-1][1]
    for number in sample(calls, 12):
        folder = quick_path / str(number)
        shutil.copytree(pattern, folder)
        with server.spawn(fork_and_delete, url_of(backend, folder), number) as worker:
            said = [message[0] for message in worker]
        with outlive.open(url_of(backend, folder)) as store:
            check_whole_or_absent(store, said)


def check_whole_or_absent(store: outlive.Store, said: list[str]) -> None:
    steps = {info.id: info.checkpoints for info in store.threads()}
    assert steps["source"] == 5
    assert steps.get("branch", 0) in ((1,) if "forked" in said else (0, 1))
    assert steps.get("copy", 0) in ((5,) if "copied" in said else (0, 5))
    assert steps.get("doomed", 0) in ((0,) if "deleted" in said else (0, 5))
    for name in steps:
        origin = "doomed" if name == "doomed" else "source"
        assert store.thread(name).load() == state(origin, 5)
        if origin == "source":
            assert [write.value for write in store.thread(name).writes()] == ["x" * 5000]
    for name in ("branch", "copy"):  # what a killed attempt left behind is in nobody's way
        if name not in steps:
            assert store.thread("source").fork(name).load() == state("source", 5)
    assert store.verify().problems == ()
