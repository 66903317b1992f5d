"""Runs: who owns one, what is not done again, and who continues when a process dies. On every backend, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import apsw
import psycopg
import pytest
import redis

import outlive
from outlive.backend import NEXT, Commit, ThreadKey
from outlive.errors import (
    AmbiguousStep,
    LeaseLost,
    RunBusy,
    RunEnded,
    StepMismatch,
    StepUnfinished,
    ThreadBusy,
)
from outlive.format.codec import Codec
from outlive.format.registry import Registry
from outlive.runs import lease
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S, eventually
from rig.crash import BACKENDS, SERVERS, ram_folder, rounds, stop_between_calls
from rig.servers import PostgresServer

ALL = [*BACKENDS, *SERVERS]


@pytest.fixture
def url(backend, url_for):
    if backend == "memory":
        yield "memory:"
        return
    with ram_folder() as folder:
        yield url_for(backend, folder)


def dead_run(report, url, run_id, steps, lease_s, thread):
    """Start a run, do some steps and die in the next."""
    with outlive.open(url) as store:
        run = store.run(thread, run_id=run_id, agent="planner", lease_s=lease_s).start()
        for n in range(steps):
            run.step("add", lambda n=n: n * 10)
            run.save({"n": n}, iteration=n)
        report(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


def kill_one(workers, url, run_id="r", steps=2, lease_s=30, thread="t"):
    with workers.spawn(dead_run, url, run_id, steps, lease_s, thread) as worker:
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
        assert [(one.run, one.source) for one in store.thread("t").history()][-2:] == [
            ("r", "loop"),
            ("r", "input"),
        ]
        with store.run("t") as other:
            assert other.load() == {"n": 1}
        assert list(store.recoverable()) == []


def die_by(error, store):
    with store.run("t", run_id="r", agent="a") as run:
        run.save({"n": 1})
        raise error


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize(
    "error, status",
    [(ValueError("bad"), "failed"), (KeyboardInterrupt(), "released"), (SystemExit(1), "released")],
)
def test_how_the_block_ends_decides_what_becomes_of_the_run(backend, url, error, status):
    with outlive.open(url) as store:
        with pytest.raises(type(error)):
            die_by(error, store)
        (held,) = store.runs()
        assert held.status == status
        assert [one.id for one in store.recoverable()] == (["r"] if status == "released" else [])
        assert held.error == ("ValueError: bad" if status == "failed" else None)


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_a_run_is_parked_and_cancelled_from_outside_by_its_id(backend, url):
    with outlive.open(url) as store:
        run = store.run("t", run_id="r", agent="a", lease_s=600).start()
        assert store.park("r").status == "parked"
        with pytest.raises(LeaseLost):
            run.save({"n": 1})
        assert [one.id for one in store.recoverable()] == []
        with pytest.raises(RunEnded):
            store.park("r")
        again = store.retry("r").start()
        assert store.cancel("r").ended_at is not None
        with pytest.raises(LeaseLost):
            again.save({"n": 2})
        assert [one.status for one in store.runs()] == ["cancelled"]
        store.run("t", run_id="next").start().complete()  # its place is free at once
        for end in (store.park, store.cancel):
            with pytest.raises(RunEnded):
                end("next")
            with pytest.raises(outlive.errors.RunMissing, match="no run with id 'nex'"):
                end("nex")

    async def both():
        async with outlive.open_async(url) as store:
            for end, status in ((store.park, "parked"), (store.cancel, "cancelled")):
                run = await store.run("t", run_id=status, lease_s=600).start()
                assert (await end(status)).status == status
                with pytest.raises(LeaseLost):
                    await run.save({"n": 1})

    asyncio.run(both())


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
            assert [one.id async for one in store.recoverable()] == ["r"]

            async def go_on(run):
                return (await run.load())["n"] + 1

            report = await store.recover({"a": go_on})
            assert [(one.id, one.status, one.result) for one in report.resumed] == [("r", "completed", 2)]
            assert [one async for one in store.recoverable()] == []

    asyncio.run(main())


# Steps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_a_step_that_was_done_is_not_done_again(backend, url):
    done = []

    def work(run, until):
        for n in range(until):
            done.append((n, run.step("think", lambda n=n: done.append(n) or n * 10)))
        return run.step("sum", key="total")(lambda *numbers: sum(numbers))(1, 2)

    with outlive.open(url) as store:
        with contextlib.suppress(KeyboardInterrupt), store.run("t", run_id="r", agent="a") as run:
            assert work(run, 3) == 3
            raise KeyboardInterrupt
        called = [entry for entry in done if isinstance(entry, int)]
        with store.run("t", run_id="r") as run:
            assert run.info.attempt == 2
            assert work(run, 4) == 3
            with pytest.raises(StepMismatch, match="sum"):
                run.step("sum", key="total")(lambda *numbers: sum(numbers))(1, 3)
        assert [entry for entry in done if isinstance(entry, int)] == [*called, 3]


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgresql"])
def test_a_step_that_raised_runs_again_and_one_that_cannot_be_kept_is_named(backend, url):
    with outlive.open(url) as store, store.run("t") as run:
        with pytest.raises(ZeroDivisionError):
            run.step("divide", key="a")(lambda: 1 / 0)()
        assert run.step("divide", key="a")(lambda: 4 / 2)() == 2
        with pytest.raises(outlive.errors.Unencodable, match="step 'odd'"):
            run.step("odd", object)
        with pytest.raises(outlive.errors.BadArgument, match="step 'large' returned"):
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
                    run.step("pay", key="bill", effect=True, on_unfinished="ask")(lambda: 1)()
                asked = []
                value = run.step(
                    "pay",
                    key="bill",
                    effect=True,
                    on_unfinished=lambda s: asked.append(s.name) or ("value", 9),
                )(lambda: 1)()
                assert (value, asked) == (9, ["pay"])
                assert run.step("pay", key="bill", effect=True)(lambda: 1)() == 9
                assert run.step("other", effect=True)(lambda: 1)() == 1


def die_in_effect(report, url):
    with outlive.open(url) as store:
        run = store.run("t", run_id="r").start()
        report("started")
        run.step("pay", key="bill", effect=True)(os.kill)(os.getpid(), signal.SIGKILL)


def test_a_run_may_have_any_id():
    with outlive.open("memory:") as store:
        for run_id in ("a\nb", "a", "\n", "r\0", "\ud800"):
            store.run(f"t {run_id!r}", run_id=run_id, agent="a").start().release()
            run = store.run(f"t {run_id!r}", run_id=run_id).start()
            run.step("x", lambda: 1)
            run.release()
            with store.run(f"t {run_id!r}", run_id=run_id) as run:
                assert run.step("x", lambda: 2) == 1


def test_steps_of_one_name_at_once_need_keys_and_keep_their_results_apart():
    async def main():
        async with outlive.open_async("memory:") as store:

            async def slow(n):
                await asyncio.sleep(0.01 * (3 - n))
                return n

            async with store.run("t", run_id="r") as run:
                with pytest.raises(AmbiguousStep):
                    await asyncio.gather(*(run.step("ask", slow, n) for n in range(3)))
                assert await asyncio.gather(*(run.step("ask", key=str(n))(slow)(n) for n in range(3))) == [
                    0,
                    1,
                    2,
                ]

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_steps_in_many_threads_keep_their_results_apart(backend, url):
    with outlive.open(url) as store, store.run("t", run_id="r") as run, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: run.step("ask", key=str(n))(lambda n: f"answer {n}")(n), range(40)))
        assert found == [f"answer {n}" for n in range(40)]
        gate = threading.Barrier(8)

        def meet(key):
            gate.wait()
            try:
                return run.step("meet", key=key)(lambda: time.sleep(0.05) or key)()
            except AmbiguousStep:
                return "ambiguous"

        for key in (None, "same"):
            told = list(pool.map(lambda _, key=key: meet(key), range(8)))
            assert told.count("ambiguous") == 7


# Dying ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ALL)
def test_a_killed_run_is_claimed_at_once_on_its_own_machine(backend, url, workers):
    kill_one(workers, url, lease_s=600)
    with outlive.open(url) as store:
        seen = []
        report = store.recover(
            {"planner": lambda run: seen.append([run.step("add", lambda: 99) for _ in range(3)])}
        )
        assert [one.id for one in report.resumed] == ["r"], "though its lease lasts for ten minutes"
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
    for turn in range(rounds(3, long=60)):
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


def stop_and_go_on(report, url, run_id):
    with outlive.open(url) as store:
        run = store.run(run_id, run_id=run_id, agent="planner", lease_s=0.4).start()
        run.save({"by": "first"})
        report("saved")
        stop_between_calls(store)
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
    count = rounds(5, long=60)
    with contextlib.ExitStack() as stack:
        zombies = [stack.enter_context(workers.spawn(stop_and_go_on, url, f"r{n}")) for n in range(count)]
        for zombie in zombies:
            assert zombie.receive() == ("saved",)
        store = stack.enter_context(outlive.open(url))
        resumed = []

        def recover_some():
            report = store.recover({"planner": lambda run: run.save({"by": "second"}).seq})
            resumed.extend(one.id for one in report.resumed)
            return len(resumed) >= count

        eventually(recover_some)
        assert sorted(resumed) == sorted(f"r{n}" for n in range(count))
        for n, zombie in enumerate(zombies):
            zombie.signal(signal.SIGCONT)
            assert zombie.receive() == (["LeaseLost"] * 3,)
            assert store.thread(f"r{n}").load() == {"by": "second"}
            zombie.finish()


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgresql", "redis"])
def test_a_quiet_run_stays_alive_by_its_heartbeat(backend, url):
    with outlive.open(url) as store, store.run("t", run_id="r", lease_s=4.0) as run:
        renewed = {lease_end(store, lease.RUN, "r")}
        eventually(lambda: renewed.add(lease_end(store, lease.RUN, "r")) or len(renewed) == 3)
        assert list(store.recoverable()) == []
        with pytest.raises(RunBusy):
            store.run("t", run_id="r").start()
        run.save({"n": 1})


def lease_end(store, kind, key):
    return run_now(lease.find(store._store._engine, ThreadKey.of("", "t"), kind, key)).until


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
            assert [(one.run.id, one.message) for one in report.skipped] == [("r", "parked after 3 attempts")]
            assert [one.status for one in store.runs()] == ["parked"]
            assert list(store.recoverable()) == []


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
            store.run(agent, run_id=agent, agent=agent, code_version=version).start().release()
        report = store.recover(
            {"known": lambda run: 5, "old": lambda run: 6}, policy="hold", code_version="2"
        )
        assert [(one.id, one.result) for one in report.resumed] == [("known", 5)]
        assert [one.message for one in report.skipped] == [
            "it was started by code version '1'",
            "no handler for agent 'unknown'",
        ]


def test_a_run_that_ended_since_it_was_listed_is_in_the_report():
    with outlive.open("memory:") as store:
        for id in ("a", "b"):
            store.run(id, run_id=id, agent="x").start().release()

        def finish_both(run):
            with store.run("b", run_id="b") as other:
                other.complete("elsewhere")

        report = store.recover({"x": finish_both}, concurrency=1)
        assert [run.id for run in report.resumed] == ["a"]
        assert [(skipped.run_id, skipped.code, skipped.message) for skipped in report.skipped] == [
            ("b", "finished", "it ended since it was listed: completed")
        ]
        assert report.skipped[0].run.result == "elsewhere"


def test_a_lease_is_renewed_again_after_a_renewal_that_went_wrong(monkeypatch):
    with outlive.open("memory:") as store, store.run("t", run_id="r", lease_s=5):
        later = store.find_run("r").lease_expires_at + dt.timedelta(seconds=1)
        backend = store._store._engine.backend
        commit_all, failures = backend.commit_all, []

        async def fail_once(commits):
            if not failures:
                failures.append(commits)
                raise ZeroDivisionError("a bug")
            return await commit_all(commits)

        monkeypatch.setattr(backend, "commit_all", fail_once)
        with pytest.warns(RuntimeWarning, match=r"outlive-renewal failed(?s:.*)a bug"):
            eventually(lambda: failures and store.find_run("r").lease_expires_at > later)


@dataclass
class Elsewhere:
    """A class that only another program knows."""

    n: int


def test_a_run_that_cannot_be_read_hides_no_other(url_for, tmp_path):
    registry = Registry()
    registry.add(Elsewhere, "elsewhere")
    with outlive.open(url_for("sqlite", tmp_path)) as store:
        for id in ("a", "strange", "z"):
            store.run(id, run_id=id, agent="known").start().release()
        engine, key = store._store._engine, store.thread("strange")._thread._key
        entry = run_now(lease.find(engine, key, lease.RUN, "strange"))
        body = Codec(registry).pack({"agent": "known", "prompt": Elsewhere(1)})
        run_now(
            engine.commit(
                Commit(key, entries=(replace(entry, body=body, revision=entry.revision + 1, expect=None),))
            )
        )
        assert [(run.id, run.status, run.is_readable) for run in store.runs()] == [
            ("a", "released", True),
            ("strange", "released", False),
            ("z", "released", True),
        ]
        report = store.recover({"known": lambda run: 5})
        assert sorted(one.id for one in report.resumed) == ["a", "z"]
        assert [(one.run.id, "elsewhere" in one.message) for one in report.skipped] == [("strange", True)]


def damage_run(backend, url, id):
    """Change the stored body of a run."""
    if backend == "sqlite":
        with contextlib.closing(apsw.Connection(url.removeprefix("sqlite:///"))) as db:
            db.execute("update entry set body = x'00' where kind = 'run' and key = ?", (id,))
            assert db.changes() == 1
    elif backend == "postgresql":
        address, _, schema = url.partition("?schema=")
        with psycopg.connect(address, autocommit=True) as db:
            said = f"update {schema}.entry set body = 'x' where kind = 'run' and key = %s"
            assert db.execute(said, (id,)).rowcount == 1
    else:
        address, _, prefix = url.partition("?prefix=")
        with contextlib.closing(redis.Redis.from_url(address)) as server:
            (key,) = server.scan_iter(f"{prefix}*{ThreadKey.of('', id).digest.hex()}*:e")
            field = f"run\0{id}".encode()
            value = server.hget(key, field)
            server.hset(key, field, value[:-20] + bytes(20))


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_a_run_whose_row_is_damaged_hides_no_other(backend, url, tuned):
    tuned(recovery_page=5)
    names = [f"{n:02}" for n in range(14)]
    damaged = {"00", "03", "04", "13"}
    with outlive.open(url) as store:
        for id in names:
            store.run(id, run_id=id, agent="known").start().release()
        for id in damaged:
            damage_run(backend, url, id)
        assert [(run.id, run.thread, run.is_readable) for run in store.runs()] == [
            (id, id, id not in damaged) for id in names
        ]
        report = store.recover({"known": lambda run: 5})
        assert sorted(one.id for one in report.resumed) == [id for id in names if id not in damaged]
        assert {one.run.id for one in report.skipped} == damaged
        assert all("does not match its checksum" in one.message for one in report.skipped)
        assert [store.find_run(id) for id in ("0", "1")] == [None, None]
        store.run("other", run_id="0").start().complete()  # its neighbour is damaged
        for call in (lambda: store.run("03", run_id="03").start(), lambda: store.retry("03")):
            with pytest.raises(outlive.Corrupt):  # nobody takes what nobody can read
                call()


def test_a_result_that_cannot_be_kept_fails_the_run_and_is_named():
    with outlive.open("memory:") as store:
        with (
            pytest.raises(outlive.errors.Unencodable, match=r"run 'r'\.result"),
            store.run("t", run_id="r") as run,
        ):
            run.info.result = object()
        assert [(one.status, one.error[:11]) for one in store.runs()] == [("failed", "Unencodable")]


@pytest.mark.parametrize("overtaken", ["beat", "step"])
@pytest.mark.parametrize("backend", ALL)
def test_a_beat_and_a_step_that_overtake_each_other_are_both_done(backend, url, overtaken):
    with outlive.open(url) as store, store.run("t") as run:
        probe, heart = store._store._engine.backend, store._store._heart
        calls = {"beat": lambda: run_now(heart.beat()), "step": lambda: run.step("add", lambda: 1)}
        real = probe.commit_all

        async def commit_all(commits):
            del probe.commit_all
            calls["step" if overtaken == "beat" else "beat"]()
            return await real(commits)

        probe.commit_all = commit_all
        calls[overtaken]()
        assert run.step("add", lambda: 2) == 2
        assert [one.status for one in store.runs()] == ["running"]


def test_many_live_runs_are_renewed_by_one_call():
    with outlive.open("memory:") as store:
        runs = [store.run(f"t{n}", lease_s=3).start() for n in range(50)]
        calls = []
        backend = store._store._engine.backend
        real = backend.commit_all
        done = threading.Event()

        async def commit_all(commits):
            calls.append(len(commits))
            done.set()
            return await real(commits)

        backend.commit_all = commit_all
        assert done.wait(PATIENCE_S)
        del backend.commit_all
        assert calls[0] == 50
        for run in runs:
            run.complete()


def look_with_another_clock(report, url, shift_s):
    """Recover with a wall clock that is wrong by an hour."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + shift_s
    time.time_ns = lambda: real_ns() + int(shift_s * 1e9)
    with outlive.open(url) as store:
        found = store.recover({"*": lambda run: run.step("by", lambda: shift_s)})
        report([one.id for one in found.resumed])


@pytest.mark.parametrize("backend", ALL)
def test_wall_clocks_that_differ_by_an_hour_change_nothing(backend, url, workers):
    with outlive.open(url) as store, store.run("live", run_id="live", lease_s=PATIENCE_S):
        for turn, shift_s in enumerate((3600, -3600) * rounds(2, long=20)):
            kill_one(workers, url, run_id=f"dead {turn}", lease_s=600)
            with workers.spawn(look_with_another_clock, url, shift_s) as worker:
                assert worker.finish() == [([f"dead {turn}"],)]
            assert list(store.recoverable()) == []
            store.delete("t")


def live_elsewhere(report, url, change):
    """Hold a run as a process of another machine or container would."""
    import outlive.runs.owner as owner

    real = owner._me
    owner._me = lambda pid: tuple(change.get(at, field) for at, field in enumerate(real(pid)))
    with outlive.open(url) as store:
        store.run("t", run_id="r", agent="planner", lease_s=600).start()
        report("started")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("change", [{0: "another host"}, {1: "another boot"}, {2: "another pid namespace"}])
def test_what_cannot_be_known_to_be_dead_from_here_is_left_alone(change, workers):
    with ram_folder() as folder:
        url = f"sqlite:///{folder}/store.db"
        with workers.spawn(live_elsewhere, url, change) as worker:
            assert worker.receive() == ("started",)
            worker.receive()
            worker.kill()
        with outlive.open(url) as store:
            assert list(store.recoverable()) == []
            with pytest.raises(RunBusy):
                store.run("t", run_id="r").start()


NAMESPACED = """
import sys, time, outlive
with outlive.open(sys.argv[1]) as store:
    run = store.run("t", run_id="r", agent="planner", lease_s=600).start()
    print("started", flush=True)
    time.sleep(600)
"""


def test_a_live_run_in_another_pid_namespace_of_this_machine_is_not_claimed(tmp_path):
    try:
        subprocess.run(["unshare", "-U", "-r", "-p", "-f", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system does not let us make pid namespaces")
    url = f"sqlite:///{tmp_path}/store.db"
    source = str(Path(outlive.__file__).parent.parent)
    command = ["unshare", "-U", "-r", "-p", "-f", "--kill-child", sys.executable, "-c", NAMESPACED, url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": source})
    try:
        assert process.stdout.readline() == b"started\n"
        with outlive.open(url) as store:
            assert list(store.recoverable()) == []
            assert store.recover({"*": lambda run: None}).resumed == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_server_that_restarts_during_recovery_strands_no_run(workers):
    with PostgresServer(ram=True) as server:
        url = server.database("agents")
        count = rounds(12, long=100)
        for n in range(count):
            kill_one(workers, url, run_id=f"r{n}", lease_s=600, thread=f"t{n}")
        with outlive.open(url) as store, ThreadPoolExecutor(2) as pool:
            seen = []

            def go_on(run):
                time.sleep(0.05)
                seen.append(run.id)
                run.save({"by": run.id})

            def recover_all():
                while list(store.recoverable()):
                    store.recover({"planner": go_on})

            recovering = [pool.submit(recover_all) for _ in range(2)]
            for share in (4, 2, 1.4):  # in the middle of the work, whatever the machine does beside it
                eventually(lambda share=share: len(seen) >= count / share)
                server.restart("immediate")
            for future in recovering:
                future.result(PATIENCE_S)
            assert sorted(seen) == sorted(f"r{n}" for n in range(count))
            assert {run.status for run in store.runs()} == {"completed"}


def gather_and_die(report, url):
    async def main():
        async with outlive.open_async(url) as store, store.run("t", run_id="r", agent="a") as run:

            async def ask(n):
                await asyncio.sleep(0.01 * (5 - n))
                if n == 0:
                    await asyncio.wait(others)
                    os.kill(os.getpid(), signal.SIGKILL)
                return f"answer {n}"

            others = [asyncio.create_task(run.step("ask", key=f"model {n}")(ask)(n)) for n in range(1, 5)]
            await run.step("ask", key="model 0")(ask)(0)

    report("started")
    asyncio.run(main())


@pytest.mark.parametrize("backend", ALL)
def test_gathered_steps_of_one_name_keep_their_results_apart_after_a_crash(backend, url, workers):
    with workers.spawn(gather_and_die, url) as worker:
        for _ in iter(worker.receive, None):
            pass
        worker.kill()
    with outlive.open(url) as store, store.run("t", run_id="r") as run:
        called = []
        found = [
            run.step("ask", key=f"model {n}")(lambda n: called.append(n) or f"answer {n}")(n)
            for n in range(5)
        ]
        assert found == [f"answer {n}" for n in range(5)]
        assert called == [0]


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_heartbeats_and_saves_at_once_do_not_stand_in_each_others_way(backend, url):
    with outlive.open(url) as store, contextlib.ExitStack() as stack:
        runs = [stack.enter_context(store.run(f"t{n}", lease_s=30)) for n in range(4)]
        beats = threading.Thread(target=lambda: [run_now(store._store._heart.beat()) for _ in range(60)])
        beats.start()
        n = 0
        while n < 20 or beats.is_alive():
            n += 1
            for run in runs:
                run.save({"n": n})
                run.step("s", lambda n=n: n)
        beats.join()


def test_a_forked_child_does_not_write_in_the_name_of_its_parents_run(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store, store.run("t", run_id="r") as run:
        run.save({"n": 1})
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with pytest.raises(RunBusy):
                    run.save({"n": "child"})
                run.__exit__(SystemExit, SystemExit(), None)
                store.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        run.save({"n": 2})


# Beside -----------------------------------------------------------------------------------------------------------


def test_a_lock_of_another_store_or_tenant_protects_nothing(tmp_path):
    """Its fence may be the number that somebody else's lock has there."""
    url = f"sqlite:///{tmp_path}/store.db"
    with (
        outlive.open(url) as store,
        outlive.open(url) as same,
        outlive.open(url, tenant="b") as tenant,
        outlive.open("memory:") as other,
        store.lock("t") as lock,
        tenant.lock("t"),
        other.lock("t"),
    ):
        same.thread("t").save({"n": 1}, fence=lock)
        for place in (tenant, other):
            with pytest.raises(outlive.errors.BadArgument, match="another store or tenant"):
                place.thread("t").save({"n": 2}, fence=lock)
            assert place.thread("t").load() is None


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_a_lock_is_the_same_lease_without_a_run(backend, url):
    with outlive.open(url) as store:
        with store.lock("t", lease_s=4) as lock:
            assert lock.is_held
            with pytest.raises(ThreadBusy):
                store.run("t").start()
            with pytest.raises(ThreadBusy):
                store.lock("t", timeout_s=0.1).acquire()
            with store.lock("t", namespace="beside"), store.lock("other"):
                pass
            renewed = {lease_end(store, lease.LOCK, "")}
            eventually(lambda: renewed.add(lease_end(store, lease.LOCK, "")) or len(renewed) == 2)
        with store.run("t", run_id="r"), pytest.raises(ThreadBusy) as busy:
            store.lock("t", timeout_s=0.1).acquire()
        assert busy.value.holder == "r"
        waited = threading.Thread(target=lambda: store.lock("t", timeout_s=PATIENCE_S).acquire().release())
        with store.lock("t"):
            waited.start()
            time.sleep(0.1)
        waited.join(PATIENCE_S)
        assert not waited.is_alive()


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgresql", "redis"])
def test_a_failed_run_is_retried_from_where_it_was(backend, url):
    with outlive.open(url) as store:
        with pytest.raises(ValueError, match="bad"):
            die_by(ValueError("bad"), store)
        assert store.run("t", run_id="r").start().is_finished
        with store.retry("r") as run:
            assert (run.load(), run.info.error) == ({"n": 1}, None)
        assert [(one.status, one.error) for one in store.runs()] == [("completed", None)]
        with pytest.raises(outlive.errors.RunMissing, match="no run with id"):
            store.retry("nobody")


def test_a_throttled_run_writes_seldom_and_never_loses_the_last():
    with outlive.open("memory:") as store:
        with store.run("t", throttle_s=PATIENCE_S) as run:
            saved = [run.save({"n": n}) for n in range(10)]
            assert [one is not None for one in saved] == [True] + [False] * 9
            assert store.thread("t").load() == {"n": 0}
            state = {"n": 10}
            run.save(state)
            state["n"] = 99  # what was saved is what it was
        assert store.thread("t").load() == {"n": 10}
        assert len([one for one in store.thread("t").history() if one.source == "loop"]) == 2
        with store.run("u", throttle_s=0.3) as run:
            run.save({"n": 0})
            run.save({"n": 1})
            eventually(lambda: store.thread("u").load() == {"n": 1}, "the timer did not store the last")


def test_a_child_run_works_in_its_parents_place():
    with outlive.open("memory:") as store, store.run("t", run_id="parent") as parent:
        with store.run("t", run_id="child", parent="parent") as child:
            child.save({"by": "child"})
        with pytest.raises(ThreadBusy):
            store.run("t", parent="somebody").start()
        parent.save({"by": "parent"})


def test_steps_may_be_decorated():
    with outlive.open("memory:") as store, store.run("t", run_id="r") as run:

        @run.step("double", key="a")
        def double(n):
            return n * 2

        assert (double(4), double(4)) == (8, 8)
        with pytest.raises(StepMismatch):
            double(5)


def test_a_store_that_keeps_nothing_runs_everything():
    with outlive.open("null:") as store:
        with store.run("t", run_id="r", throttle_s=0.1) as run:
            run.save({"n": 1})
            assert [run.step("s", lambda n=n: n) for n in range(3)] == [0, 1, 2]
        with store.lock("t"), store.run("t"):
            pass
        assert list(store.runs()) == list(store.recoverable()) == []
        assert store.recover({"*": lambda run: None}).resumed == []


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_worker_recovers_until_it_is_stopped(backend, url):
    with outlive.open(url) as store:
        reports = []
        worker = store.worker({"a": lambda run: 7}, interval_s=0.05, on_report=reports.append)
        running = threading.Thread(target=worker.run)
        running.start()
        for n in range(3):
            store.run(f"t{n}", run_id=f"r{n}", agent="a").start().release()
            eventually(lambda n=n: sum(len(report.resumed) for report in reports) > n)
        worker.stop()
        running.join(PATIENCE_S)
        assert [run.id for report in reports for run in report.resumed] == ["r0", "r1", "r2"]
        assert {run.result for run in store.runs()} == {7}


def work_until_terminated(report, url, in_thread):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    store = outlive.open(url)

    def work():
        with store.run("t", run_id="r", agent="a", throttle_s=60) as run:
            for n in range(5):
                run.save({"n": n})
            report("saved")
            time.sleep(PATIENCE_S)

    try:
        if in_thread:
            with store.run("main", run_id="m"):  # so that the handler is set
                thread = threading.Thread(target=work, daemon=True)
                thread.start()
                thread.join()
        else:
            work()
    finally:  # as the interpreter does when it ends, and this worker does not
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("backend", ALL)
def test_sigterm_in_a_throttle_window_loses_nothing(backend, in_thread, url, workers):
    with workers.spawn(work_until_terminated, url, in_thread) as worker:
        assert worker.receive() == ("saved",)
        worker.signal(signal.SIGTERM)
        for _ in iter(lambda: quietly(worker), None):
            pass
        with outlive.open(url) as store:
            assert store.thread("t").load() == {"n": 4}
            assert [one.status for one in store.runs() if one.id == "r"] == ["released"]


def quietly(worker):
    try:
        return worker.receive()
    except AssertionError:  # it says that it ended by SystemExit
        return None


def test_a_store_that_is_closed_gives_up_its_runs_though_one_was_lost(tmp_path):
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with outlive.open(url) as mine, outlive.open(url) as other:
        lost = mine.run("t-1", run_id="r-1").start()
        mine.run("t-2", run_id="r-2").start()
        entry = run_now(lease.find(other._store._engine, lost._run._key, lease.RUN, "r-1"))
        taken = replace(entry, fence=NEXT, expect=entry.rank, status=lease.CANCELLED, lease_s=None)
        run_now(other._store._engine.commit(Commit(lost._run._key, entries=(taken,))))
        mine.close()
        assert {one.id: one.status for one in other.runs()} == {"r-1": "cancelled", "r-2": "released"}


# What is said to people --------------------------------------------------------------------------------------------


def test_a_run_that_was_not_started_says_so():
    with outlive.open("memory:") as store:
        run = store.run("t", run_id="r")
        for call in (
            lambda: run.save({}),
            lambda: run.step("s", int),
            run.complete,
            run.flush,
            run.release,
        ):
            with pytest.raises(outlive.errors.RunNotStarted, match=r"run 'r' has not started.*start\(\)"):
                call()
        run.start()
        with pytest.raises(RunBusy, match="alive in this process"):
            run.start()
        run.save({"n": 1})
        run.complete()


@pytest.mark.parametrize("handlers", [print, [print], {"a": 5}, None, "planner"])
def test_handlers_that_are_none_are_refused(handlers):
    with outlive.open("memory:") as store:
        store.run("t", run_id="r", agent="a").start().release()
        for call in (store.recover, store.worker):
            with pytest.raises(outlive.errors.BadArgument, match="handlers must be a dict"):
                call(handlers)
        assert [one.status for one in store.runs()] == ["released"]

    async def main():
        async with outlive.open_async("memory:") as store:
            with pytest.raises(outlive.errors.BadArgument, match="handlers must be a dict"):
                await store.recover(handlers)
            with pytest.raises(outlive.errors.BadArgument, match="handlers must be a dict"):
                store.worker(handlers)

    asyncio.run(main())


def test_a_step_passes_every_argument_to_its_function():
    def told(name, *, key, effect, function=None):
        return [name, key, effect, function]

    with outlive.open("memory:") as store, store.run("t") as run:
        assert run.step("sort", sorted, [3, 1, 2], key=abs) == [1, 2, 3]
        assert run.step("tell", told, name="n", key=1, effect=2, function=3) == ["n", 1, 2, 3]
        assert run.step("tell", key="a", effect=True)(told)("m", key=4, effect=5) == ["m", 4, 5, None]
        with pytest.raises(
            outlive.errors.BadArgument, match="has no option 'n', only key, effect, on_unfinished, retries"
        ):
            run.step("tell", n=1)


def dead_runs(store, count):
    for n in range(count):
        store.run(f"t{n}", run_id=f"r{n}", agent="a").start().release()


def test_recover_resumes_several_runs_at_a_time_each_once(tmp_path):
    met, seen = threading.Barrier(4), []

    def handler(run):
        met.wait(PATIENCE_S)  # nobody passes unless four are here
        seen.append((run.id, threading.get_ident()))
        run.save({"by": run.id})

    with outlive.open(tmp_path / "a.db") as store:
        dead_runs(store, 8)
        report = store.recover({"a": handler}, concurrency=4)
        assert sorted(run.id for run in report.resumed) == [f"r{n}" for n in range(8)]
        assert (report.failed, report.waiting, report.skipped) == ([], [], [])
        assert sorted(id for id, _ in seen) == [f"r{n}" for n in range(8)]
        assert threading.get_ident() not in {ident for _, ident in seen}
        assert {run.status for run in store.runs()} == {"completed"}


def test_recover_one_at_a_time_stays_in_the_calling_thread():
    with outlive.open("memory:") as store:
        dead_runs(store, 3)
        seen = []
        store.recover({"*": lambda run: seen.append(threading.get_ident())}, concurrency=1)
        assert seen == [threading.get_ident()] * 3
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(
                outlive.errors.BadArgument, match="concurrency must be a whole number, 1 or more"
            ):
                store.recover({}, concurrency=wrong)


def test_recover_async_resumes_several_runs_at_a_time():
    async def scenario():
        async with outlive.open_async("memory:") as store:
            for n in range(6):
                await (await store.run(f"t{n}", run_id=f"r{n}", agent="a").start()).release()
            met = asyncio.Barrier(3)

            async def handler(run):
                await asyncio.wait_for(met.wait(), PATIENCE_S)

            report = await store.recover({"a": handler}, concurrency=3)
            assert sorted(run.id for run in report.resumed) == [f"r{n}" for n in range(6)]

    asyncio.run(scenario())


def test_a_recovery_that_is_cancelled_releases_its_runs():
    async def scenario():
        async with outlive.open_async("memory:") as store:
            for n in range(4):
                await (await store.run(f"t{n}", run_id=f"r{n}", agent="a").start()).release()
            begun = asyncio.Event()

            async def handler(run):
                begun.set()
                await asyncio.sleep(3600)

            task = asyncio.create_task(store.recover({"a": handler}, concurrency=2))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert {run.status async for run in store.runs()} == {"released"}

    asyncio.run(scenario())


def test_ctrl_c_in_a_recovery_releases_the_runs_of_its_threads():
    with outlive.open("memory:") as store:
        dead_runs(store, 4)
        begun, end, lost = threading.Barrier(3), threading.Event(), []

        def handler(run):
            begun.wait(PATIENCE_S)
            end.wait(PATIENCE_S)
            try:
                run.save({"late": 1})
            except outlive.RunEnded:
                lost.append(run.id)
                raise

        def interrupt():
            begun.wait(PATIENCE_S)
            os.kill(os.getpid(), signal.SIGINT)

        # A background job of a shell ignores SIGINT, and so would this process.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                store.recover({"a": handler}, concurrency=2)
        finally:
            signal.signal(signal.SIGINT, before)
        assert {run.status for run in store.runs()} == {"released"}
        end.set()
        eventually(lambda: len(lost) == 2)
        assert {run.status for run in store.runs()} == {"released"}
