"""Runs: who owns one, what is not done again, and who goes on when a process dies. On every backend, in both colours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time

import pytest

import outlive
from crash import BACKENDS, SERVERS, ForkServer, ram_folder, rounds
from outlive.errors import (
    AmbiguousStep,
    LeaseLost,
    RunBusy,
    RunEnded,
    StepMismatch,
    StepUnfinished,
    ThreadBusy,
)

ALL = [*BACKENDS, *SERVERS]


@pytest.fixture(scope="module")
def workers():
    with ForkServer() as server:
        yield server


@pytest.fixture
def url(backend, url_for):
    if backend == "memory":
        yield "memory:"
        return
    with ram_folder() as folder:
        yield url_for(backend, folder)


def dead_run(report, url, run_id, steps, lease_s):
    """Start a run, do some steps and die in the next."""
    with outlive.open(url) as store:
        run = store.run("t", run_id=run_id, agent="planner", lease_s=lease_s).start()
        for n in range(steps):
            run.step("add", lambda n=n: n * 10)
            run.save({"n": n}, iteration=n)
        report(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


def kill_one(workers, url, run_id="r", steps=2, lease_s=30):
    with workers.spawn(dead_run, url, run_id, steps, lease_s) as worker:
        worker.receive()
        while worker.receive() is not None:
            pass
        worker.kill()


# Living and ending ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_a_run_has_its_place_alone_and_leaves_it_when_it_ends(backend, url):
    with outlive.open(url) as store:
        with store.run(
            "t", run_id="r", agent="planner", prompt={"ask": 1}, attributes={"caller_id": 7}
        ) as run:
            run.save({"n": 1}, iteration=1, phase="plan", usage={"tokens": 5})
            with pytest.raises(ThreadBusy) as busy:
                store.run("t").start()
            assert busy.value.holder == "r"
            with pytest.raises(RunBusy):
                store.run("t", run_id="r").start()
            with store.run("t", namespace="beside"), store.run("t", exclusive=False):
                pass
            run.complete({"answer": 42})
        with pytest.raises(RunEnded, match="completed"):
            run.save({"n": 2})
        (held,) = store.runs(agent="planner")
        assert (held.status, held.result, held.iteration, held.phase) == (
            "completed",
            {"answer": 42},
            1,
            "plan",
        )
        assert (held.prompt, held.attributes, held.usage) == ({"ask": 1}, {"caller_id": 7}, {"tokens": 5})
        again = store.run("t", run_id="r").start()
        assert (again.is_finished, again.result) == (True, {"answer": 42})
        assert store.thread("t").load() == {"n": 1}
        assert store.thread("t").checkpoint().run == "r"
        with store.run("t") as other:
            assert other.load() == {"n": 1}
        assert list(store.interrupted()) == []


def die_by(error, store):
    with store.run("t", run_id="r", agent="a") as run:
        run.save({"n": 1})
        raise error


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize(
    "error, status",
    [(ValueError("bad"), "failed"), (KeyboardInterrupt(), "interrupted"), (SystemExit(1), "interrupted")],
)
def test_how_the_block_ends_decides_what_becomes_of_the_run(backend, url, error, status):
    with outlive.open(url) as store:
        with pytest.raises(type(error)):
            die_by(error, store)
        (held,) = store.runs()
        assert held.status == status
        assert [one.id for one in store.interrupted()] == (["r"] if status == "interrupted" else [])
        assert held.error == ("ValueError: bad" if status == "failed" else None)


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_a_cancelled_task_leaves_its_run_to_be_recovered(backend, url):
    async def main():
        async with outlive.open_async(url) as store:
            started = asyncio.Event()

            async def work():
                async with store.run("t", run_id="r", agent="a") as run:
                    await run.save({"n": 1})
                    started.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [one.id async for one in store.interrupted()] == ["r"]

            async def go_on(run):
                return (await run.load())["n"] + 1

            report = await store.recover({"a": go_on})
            assert [(one.id, one.status, one.result) for one in report.resumed] == [("r", "completed", 2)]
            assert [one async for one in store.interrupted()] == []

    asyncio.run(main())


# Steps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_a_step_that_was_done_is_not_done_again(backend, url):
    done = []

    def work(run, until):
        for n in range(until):
            done.append((n, run.step("think", lambda n=n: done.append(n) or n * 10)))
        return run.step("sum", lambda *numbers: sum(numbers), 1, 2, key="total")

    with outlive.open(url) as store:
        with contextlib.suppress(KeyboardInterrupt), store.run("t", run_id="r", agent="a") as run:
            assert work(run, 3) == 3
            raise KeyboardInterrupt
        called = [entry for entry in done if isinstance(entry, int)]
        with store.run("t", run_id="r") as run:
            assert run.info.attempt == 2
            assert work(run, 4) == 3
            with pytest.raises(StepMismatch, match="sum"):
                run.step("sum", lambda *numbers: sum(numbers), 1, 3, key="total")
        assert [entry for entry in done if isinstance(entry, int)] == [*called, 3]


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgresql"])
def test_a_step_that_raised_runs_again_and_one_that_cannot_be_kept_is_named(backend, url):
    with outlive.open(url) as store, store.run("t") as run:
        with pytest.raises(ZeroDivisionError):
            run.step("divide", lambda: 1 / 0, key="a")
        assert run.step("divide", lambda: 4 / 2, key="a") == 2
        with pytest.raises(outlive.Unencodable, match="step 'odd'"):
            run.step("odd", object)
        with pytest.raises(outlive.BadArgument, match="step 'large' returned"):
            run.step("large", lambda: b"x" * (17 << 20))


def test_an_effect_that_had_begun_goes_to_its_policy(workers):
    with ram_folder() as folder:
        url = f"sqlite:///{folder}/store.db"
        with workers.spawn(die_in_effect, url) as worker:
            worker.receive()
            while worker.receive() is not None:
                pass
            worker.kill()
        with outlive.open(url) as store:
            with store.run("t", run_id="r") as run:
                with pytest.raises(StepUnfinished, match="pay"):
                    run.step("pay", lambda: 1, key="bill", effect=True, on_unfinished="ask")
                asked = []
                value = run.step(
                    "pay",
                    lambda: 1,
                    key="bill",
                    effect=True,
                    on_unfinished=lambda s: asked.append(s.name) or ("value", 9),
                )
                assert (value, asked) == (9, ["pay"])
                assert run.step("pay", lambda: 1, key="bill", effect=True) == 9
                assert run.step("other", lambda: 1, effect=True) == 1


def die_in_effect(report, url):
    with outlive.open(url) as store:
        run = store.run("t", run_id="r").start()
        report("started")
        run.step("pay", os.kill, os.getpid(), signal.SIGKILL, key="bill", effect=True)


def test_steps_of_one_name_at_once_need_keys_and_keep_their_results_apart():
    async def main():
        async with outlive.open_async("memory:") as store:

            async def slow(n):
                await asyncio.sleep(0.01 * (3 - n))
                return n

            async with store.run("t", run_id="r") as run:
                with pytest.raises(AmbiguousStep):
                    await asyncio.gather(*(run.step("ask", slow, n) for n in range(3)))
                assert await asyncio.gather(*(run.step("ask", slow, n, key=str(n)) for n in range(3))) == [
                    0,
                    1,
                    2,
                ]

    asyncio.run(main())


# Dying ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ALL)
def test_a_killed_run_is_claimed_at_once_on_its_own_machine(backend, url, workers):
    kill_one(workers, url, lease_s=600)
    with outlive.open(url) as store:
        start = time.monotonic()
        seen = []
        report = store.recover(
            {"planner": lambda run: seen.append([run.step("add", lambda: 99) for _ in range(3)])}
        )
        assert time.monotonic() - start < 2
        assert [one.id for one in report.resumed] == ["r"]
        assert seen == [[0, 10, 99]]
        assert store.thread("t").load() == {"n": 1}
        (held,) = store.runs()
        assert (held.status, held.attempt) == ("completed", 2)


def compete(report, url, at):
    time.sleep(max(0, at - time.time()))
    with outlive.open(url) as store:
        found = store.recover({"planner": lambda run: run.save({"by": os.getpid()}).seq})
        report([one.id for one in found.resumed])


@pytest.mark.parametrize("backend", ALL)
def test_of_many_that_compete_for_a_dead_run_one_resumes_it(backend, url, workers):
    for turn in range(rounds(2, long=40)):
        kill_one(workers, url, run_id=f"r{turn}", lease_s=600)
        at = time.time() + 0.1
        running = [workers.spawn(compete, url, at) for _ in range(5)]
        resumed = []
        for worker in running:
            with worker:
                resumed += [id for (ids,) in worker.finish() for id in ids]
        assert resumed == [f"r{turn}"]
        with outlive.open(url) as store:
            (held,) = [one for one in store.runs() if one.id == f"r{turn}"]
            assert (held.status, held.attempt) == ("completed", 2)


def stop_and_go_on(report, url):
    with outlive.open(url) as store:
        run = store.run("t", run_id="r", agent="planner", lease_s=0.4).start()
        run.save({"by": "first"})
        report("saved")
        os.kill(os.getpid(), signal.SIGSTOP)
        refused = []
        for write in (
            lambda: run.save({"by": "zombie"}),
            lambda: run.step("s", lambda: 1),
            lambda: run.complete(1),
        ):
            try:
                write()
            except (LeaseLost, RunEnded) as error:
                refused.append(type(error).__name__)
        report(refused)


@pytest.mark.parametrize("backend", ALL)
def test_a_zombie_that_wakes_after_its_lease_is_refused(backend, url, workers):
    with workers.spawn(stop_and_go_on, url) as worker:
        assert worker.receive() == ("saved",)
        with outlive.open(url) as store:
            end = time.monotonic() + 5
            while not list(store.interrupted()):
                assert time.monotonic() < end
                time.sleep(0.05)
            report = store.recover({"planner": lambda run: run.save({"by": "second"}).seq})
            assert [one.id for one in report.resumed] == ["r"]
            os.kill(worker.pid, signal.SIGCONT)
            (refused,) = worker.receive()
            assert refused == ["LeaseLost"] * 3
            assert store.thread("t").load() == {"by": "second"}
        worker.finish()


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgresql", "redis"])
def test_a_quiet_run_stays_alive_by_its_heartbeat(backend, url):
    with outlive.open(url) as store, store.run("t", run_id="r", lease_s=0.5) as run:
        time.sleep(1.5)
        assert list(store.interrupted()) == []
        with pytest.raises(RunBusy):
            store.run("t", run_id="r").start()
        run.save({"n": 1})


def test_a_run_that_keeps_killing_its_process_is_parked(workers):
    with ram_folder() as folder:
        url = f"sqlite:///{folder}/store.db"
        with workers.spawn(die_at_once, url, None) as worker:
            [None for _ in iter(worker.receive, None)]
            worker.kill()
        for _ in range(2):
            with workers.spawn(die_at_once, url, "recover") as worker:
                [None for _ in iter(worker.receive, None)]
                worker.kill()
        with outlive.open(url) as store:
            report = store.recover({"a": lambda run: None})
            assert [(one.run.id, one.reason) for one in report.refused] == [("r", "parked after 3 attempts")]
            assert [one.status for one in store.runs()] == ["parked"]
            assert list(store.interrupted()) == []


def die_at_once(report, url, how):
    with outlive.open(url) as store:
        if how is None:
            store.run("t", run_id="r", agent="a", max_attempts=3).start()
            os.kill(os.getpid(), signal.SIGKILL)
        store.recover({"a": lambda run: os.kill(os.getpid(), signal.SIGKILL)})


def test_what_cannot_be_recovered_is_said_with_its_reason():
    with outlive.open("memory:") as store:
        for agent in ("known", "unknown", "old"):
            version = "1" if agent == "old" else None
            store.run(agent, run_id=agent, agent=agent, code_version=version).start().interrupt()
        report = store.recover(
            {"known": lambda run: 5, "old": lambda run: 6}, policy="hold", code_version="2"
        )
        assert [(one.id, one.result) for one in report.resumed] == [("known", 5)]
        assert [one.reason for one in report.refused] == [
            "it was started by code version '1'",
            "no handler for agent 'unknown'",
        ]


def test_a_result_that_cannot_be_kept_fails_the_run_and_is_named():
    with outlive.open("memory:") as store:
        with pytest.raises(outlive.Unencodable, match=r"run 'r'\.result"), store.run("t", run_id="r") as run:
            run.info.result = object()
        assert [(one.status, one.error[:11]) for one in store.runs()] == [("failed", "Unencodable")]


def test_many_live_runs_are_renewed_by_one_call():
    with outlive.open("memory:") as store:
        runs = [store.run(f"t{n}", lease_s=0.6).start() for n in range(50)]
        calls = []
        backend = store._store._engine.backend
        real = backend.commit_all
        done = threading.Event()

        async def commit_all(commits):
            calls.append(len(commits))
            done.set()
            return await real(commits)

        backend.commit_all = commit_all
        assert done.wait(2)
        del backend.commit_all
        assert calls[0] == 50
        for run in runs:
            run.complete()
