"""A server that is restarted again and again under saves of several processes.

Downtime is far within the deadline of a call. So nobody sees an error, no process is started again, and everything that
was acknowledged is there: in order, once, and whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time

import pytest

import outlive
from outlive.testing.patience import PATIENCE_S
from rig.crash import LONG, rounds
from rig.crash.conversation import state
from rig.servers import PostgresServer, ValkeyServer

pytestmark = pytest.mark.heavy

PROCESSES, THREADS = 4, 3
SAVES = rounds(30, long=2_000)  # of each thread, at least
SAVE_PAUSE_S = 0 if LONG else 0.02  # between two saves of a thread: twelve of them are at work
RESTARTS = rounds(3, long=100)  # at least
PAUSE_S = 0.5  # between two restarts


def steps(stop):
    """Count until there were enough saves and enough restarts."""
    step = 0
    while step < SAVES or not stop.exists():
        step += 1
        yield step


def converse(report, url, who, stop):
    """Save to threads of one's own and to one that all share; say what was acknowledged."""
    with outlive.open(url, timeout_s=PATIENCE_S) as store, contextlib.ExitStack() as stack:
        failures = []

        def work(number):
            own, shared = store.thread(f"own {who} {number}"), store.thread("shared")
            try:
                for step in steps(stop):
                    time.sleep(SAVE_PAUSE_S)
                    report(own.id, own.save(state("talk", step % 40), step=step).seq)
                    if step % 10 == 0:
                        report("shared", shared.save({"who": who, "step": step}).id)
            except BaseException as error:
                failures.append(error)
                raise

        running = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in running:
            thread.start()
            stack.callback(thread.join)
    report("failures", [repr(failure) for failure in failures])


def converse_async(report, url, who, stop):
    async def work(store, number):
        own, shared = store.thread(f"own {who} {number}"), store.thread("shared")
        for step in steps(stop):
            await asyncio.sleep(SAVE_PAUSE_S)
            report(own.id, (await own.save(state("talk", step % 40), step=step)).seq)
            if step % 10 == 0:
                report("shared", (await shared.save({"who": who, "step": step})).id)

    async def main():
        async with outlive.open_async(url, timeout_s=PATIENCE_S) as store:
            found = await asyncio.gather(
                *(work(store, number) for number in range(THREADS)), return_exceptions=True
            )
            report("failures", [repr(failure) for failure in found if failure is not None])

    asyncio.run(main())


@contextlib.contextmanager
def restarted(server, ways, seed, enough):
    """Restart the server every so often until the block ends; yields its downtimes. `enough` is made after some.

    The server is up for as long as it was down at least: on a busy machine nobody would get anything done otherwise.
    """
    rng, stop, downtimes = random.Random(seed), threading.Event(), []

    def restart():
        while not stop.wait(rng.uniform(0.3, PAUSE_S) + (downtimes[-1] if downtimes else 0)):
            start = time.monotonic()
            rng.choice(ways)(server)
            time.sleep(rng.uniform(0, 0.2))
            server.start()
            downtimes.append(time.monotonic() - start)
            if len(downtimes) >= RESTARTS:
                enough.touch()

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        yield downtimes
    finally:
        stop.set()
        thread.join()


WAYS = {
    "postgresql": [lambda s: s.stop("fast"), lambda s: s.stop("immediate"), lambda s: s.kill()],
    "redis": [lambda s: s.stop(), lambda s: s.kill()],
}


@pytest.fixture
def server(backend):
    if backend == "postgresql":
        with PostgresServer(ram=True, settings={"max_connections": "60"}) as server:
            yield server
    else:
        with ValkeyServer(ram=True, appendonly=True, appendfsync="always") as server:
            yield server


@pytest.mark.parametrize("backend", WAYS)
def test_restarts_under_load_lose_nothing_and_show_nobody_an_error(backend, server, workers, tmp_path):
    url, said, stop = server.url, {}, tmp_path / "stop"
    with contextlib.ExitStack() as stack:
        jobs = [converse_async if who % 2 else converse for who in range(PROCESSES)]
        running = [stack.enter_context(workers.spawn(job, url, who, stop)) for who, job in enumerate(jobs)]
        with restarted(server, WAYS[backend], 1, stop) as downtimes:
            for worker in running:
                for thread, value in worker.finish():
                    said.setdefault(thread, []).append(value)
    print(f"{len(downtimes)} restarts, {sum(downtimes):.1f} s down")
    assert len(downtimes) >= RESTARTS
    assert [failure for failures in said.pop("failures") for failure in failures] == []
    with outlive.open(url) as store:
        shared = said.pop("shared")
        assert sorted(one.id for one in store.thread("shared").history()) == sorted(shared)
        for thread, seqs in said.items():
            last = len(seqs)
            assert seqs == list(range(1, last + 1)), thread
            assert [one.step for one in store.thread(thread).history()] == list(range(last, 0, -1))
            assert store.thread(thread).load() == state("talk", last % 40)
        assert len(said) == PROCESSES * THREADS
        assert store.verify().problems == ()
