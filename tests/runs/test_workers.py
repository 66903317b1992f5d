"""Workers in processes of their own: each run is worked on once, limits hold, and a signal ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import outlive
from outlive.backend import Commit, ThreadKey
from outlive.backend.entries import READY, RUN
from outlive.runs import submit
from outlive.runs.lease import RunInfo
from outlive.runtime.runtime import new_id, run_now
from outlive.testing.interposed import Interposed
from outlive.testing.patience import PATIENCE_S, eventually
from rig.crash import SERVERS, ram_folder, rounds

ENGINES = ["sqlite", *SERVERS]


@pytest.fixture
def url(backend, url_for):
    with ram_folder() as folder:
        yield url_for(backend, folder)


@contextlib.contextmanager
def working(store, handlers, **options):
    """Let a worker work in a thread."""
    worker = store.worker(handlers, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def work_until_told(report, url, options):
    """Work until SIGTERM; report every call and the end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with outlive.open(url) as store:

        def handler(run):
            report("begin", run.id, run.info.attempt, os.getpid())
            if run.info.prompt == "hang" and run.info.attempt == 1:
                time.sleep(PATIENCE_S)
            run.step("work", time.sleep, run.info.prompt if isinstance(run.info.prompt, float) else 0)
            report("end", run.id)
            return run.id

        store.worker({"a": handler}, **options).run()
    report("over")


def finished(store):
    return all(run.is_finished for run in store.runs())


def drained(worker):
    """Tell a worker to end, and return what it has reported."""
    worker.signal(signal.SIGTERM)
    return worker.finish()


@pytest.mark.parametrize("backend", ENGINES)
def test_two_processes_work_on_each_of_200_submitted_runs_once(backend, url, workers):
    count = rounds(200, long=1000)
    with outlive.open(url) as store, contextlib.ExitStack() as stack:
        two = [stack.enter_context(workers.spawn(work_until_told, url, {})) for _ in range(2)]
        for number in range(count):
            store.submit(f"t{number}", run_id=f"r{number}", agent="a")
        eventually(lambda: finished(store))
        reports = [report for worker in two for report in drained(worker)]
        began = Counter(report[1] for report in reports if report[0] == "begin")
        assert began == {f"r{number}": 1 for number in range(count)}
        assert {(run.status, run.attempt) for run in store.runs()} == {("completed", 1)}
        assert [report for report in reports if report == ("over",)] == [("over",)] * 2
        assert list(store.workers()) == []


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_the_runs_of_a_killed_worker_are_taken_over(backend, url, workers):
    with outlive.open(url) as store:
        for number in range(4):
            store.submit(f"t{number}", run_id=f"r{number}", agent="a", prompt="hang")
        with workers.spawn(work_until_told, url, {"concurrency": 4}) as first:
            assert {first.receive()[1] for _ in range(4)} == {f"r{number}" for number in range(4)}
            (seen,) = store.workers()
            with workers.spawn(work_until_told, url, {"interval_s": 0.2}) as second:
                first.kill()
                eventually(lambda: finished(store))
                reports = drained(second)
        assert {(run.attempt, run.failures, run.status) for run in store.runs()} == {(2, 1, "completed")}
        assert len([report for report in reports if report[0] == "begin"]) == 4
        assert seen.id not in [worker.id for worker in store.workers()]


@pytest.mark.parametrize("backend", ENGINES)
def test_limits_are_never_exceeded_by_two_processes(backend, url, workers):
    with outlive.open(url) as store, contextlib.ExitStack() as stack:
        options = {"limits": {"a": 2}, "interval_s": 0.5}
        two = [stack.enter_context(workers.spawn(work_until_told, url, options)) for _ in range(2)]
        for number in range(16):
            store.submit(f"t{number}", agent="a", prompt=0.05)
        most = 0

        def is_done():
            nonlocal most
            runs = list(store.runs())
            most = max(most, sum(run.status == "running" for run in runs))
            return all(run.is_finished for run in runs)

        eventually(is_done)
        for worker in two:
            drained(worker)
        spans = [(run.attempts[0].began_at, run.attempts[0].ended_at) for run in store.runs()]
        live = [sum(began <= at < ended for began, ended in spans) for at, _ in spans]
        assert max(most, *live) == 2


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_sigterm_finishes_what_is_short_and_gives_back_the_rest(backend, url, workers):
    with outlive.open(url) as store:
        store.submit("long", run_id="long", agent="a", prompt="hang")
        store.submit("short", run_id="short", agent="a", prompt=0.5)
        with workers.spawn(work_until_told, url, {"grace_s": 5}) as worker:
            assert {worker.receive()[1] for _ in range(2)} == {"long", "short"}
            store.submit("late", run_id="late", agent="a")
            eventually(lambda: store.find_run("late").status != "released")
            worker.signal(signal.SIGTERM)
            eventually(lambda: any(seen.is_draining for seen in store.workers()))
            store.submit("too late", run_id="too late", agent="a")
            assert worker.finish()[-1] == ("over",)
        runs = {run.id: (run.status, run.failures) for run in store.runs()}
        assert runs == {
            "long": ("released", 0), "short": ("completed", 0), "late": ("completed", 0), "too late": ("released", 0),
        }  # fmt: skip


@pytest.mark.parametrize("backend", SERVERS)
def test_a_server_wakes_a_worker(backend, url):
    """It polls every ten minutes: only a notification can have woken it."""
    with outlive.open(url) as store, outlive.open(url) as other:

        def ask(run):
            return run.ask("go?")

        with working(store, {"a": ask}, interval_s=600):
            eventually(lambda: list(other.workers()))
            other.submit("t", run_id="r", agent="a")
            eventually(lambda: list(other.questions()))
            other.answer("r", "go?", True)
            eventually(lambda: other.find_run("r").result is True)


@pytest.mark.parametrize("backend", ["sqlite"])
def test_10_000_submitted_runs_are_claimed_without_a_scan(backend, url):
    with outlive.open(url) as store:
        engine = store._store._engine
        for start in range(0, 10_000, 500):
            commits = []
            for number in range(start, start + 500):
                run = RunInfo(new_id(), f"t{number}", agent="a")
                entries = submit._entries(engine, run, None, 1_000_000 + number)
                commits.append(Commit(ThreadKey.of("", f"t{number}"), entries=entries))
            assert not [
                result
                for result in run_now(engine.backend.commit_all(commits))
                if isinstance(result, Exception)
            ]
        engine.backend = backend = Interposed(engine.backend)
        rows = Counter()
        listings = []

        async def count(pages):
            rows.update(entry.kind for _, entry in pages)
            backend.after("entries", count)

        backend.after("entries", count)
        done = []
        with working(store, {"a": lambda run: done.append(run.thread.id)}, concurrency=4) as worker:
            eventually(lambda: len(done) >= 100)
            worker.stop()
        listings = [args[0] for name, args, _ in backend.calls if name == "entries"]
    assert set(done[:50]) <= {f"t{number}" for number in range(60)}  # first come, first served
    assert rows[READY] < 30 * len(done)
    assert rows[RUN] < 8 * len(done)
    assert all(
        query.thread is not None or query.lapsed is not None for query in listings if query.kind == RUN
    )


def test_a_plain_handler_of_an_async_store_does_not_hold_up_the_loop(tmp_path):
    async def main():
        async with await outlive.open_async(f"sqlite:///{tmp_path}/store.db") as store:
            both = threading.Barrier(2)
            threads = []

            def plain(run):
                threads.append(threading.get_ident())
                both.wait(PATIENCE_S)  # two at the same time, or it breaks
                return run.info.prompt

            worker = store.worker({"a": plain}, concurrency=2)
            task = asyncio.create_task(worker.run())
            for number in range(2):
                await store.submit(f"t{number}", agent="a", prompt=number)
            async with asyncio.timeout(PATIENCE_S):
                while not all([run.is_finished async for run in store.runs()]):
                    await asyncio.sleep(0.01)
            worker.stop()
            await task
            assert threading.get_ident() not in threads
            assert {run.result async for run in store.runs()} == {0, 1}

    asyncio.run(main())


def test_a_cancelled_worker_releases_its_runs(tmp_path):
    async def main():
        async with await outlive.open_async(f"sqlite:///{tmp_path}/store.db") as store:
            begun = asyncio.Event()

            async def hang(run):
                begun.set()
                await asyncio.sleep(PATIENCE_S)

            await store.submit("t", run_id="r", agent="a")
            task = asyncio.create_task(store.worker({"a": hang}).run())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            found = await store.find_run("r")
            assert (found.status, found.failures) == ("released", 0)
            assert [worker async for worker in store.workers()] == []

    asyncio.run(main())


def test_a_worker_survives_its_on_report(tmp_path):
    calls = []

    def report(done):
        calls.append(done)
        raise ValueError("the log is full")

    def work(store):
        with working(store, {"a": lambda run: run.id}, interval_s=0.05, on_report=report):
            eventually(lambda: len(calls) >= 3)
            store.submit("t", run_id="r", agent="a")
            eventually(lambda: finished(store))

    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store:
        with pytest.warns(RuntimeWarning, match="ValueError: the log is full"):
            work(store)
        assert store.find_run("r").result == "r"


async def coroutine(run):
    return run.id


@pytest.mark.parametrize(
    "handlers, options, fix",
    [
        ({}, {}, "handlers is empty"),
        ({"a": print}, {"limits": {"b": 2}}, "limits has 'b', for which there is no handler"),
        ({"a": print}, {"policy": "hold"}, "pass it too"),
        ({"a": coroutine}, {}, "use outlive.open_async, or a plain function"),
    ],
)
def test_a_worker_that_could_not_work_is_refused(tmp_path, handlers, options, fix):
    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store:
        with pytest.raises(outlive.errors.BadArgument, match=fix):
            store.worker(handlers, **options)
        store.worker({"*": print}, limits={"b": 2}, limit_tenant=3)
        with pytest.raises(outlive.errors.BadArgument, match="open_async"):
            store.recover({"a": coroutine})


@pytest.mark.parametrize("agent", ["", "*"])
def test_an_agent_has_a_name(tmp_path, agent):
    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store:
        with pytest.raises(outlive.errors.BadArgument, match="agent must be a name"):
            store.submit("t", agent=agent)
        with pytest.raises(outlive.errors.BadArgument, match="agent must be a name"):
            store.run("t", agent=agent)


def test_a_cancelled_run_is_told_that_it_was_cancelled(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store:
        run = store.run("t", run_id="r", agent="a").start()
        store.cancel("r")
        for _ in range(2):  # refused by the store, then known
            with pytest.raises(outlive.LeaseLost, match="it was cancelled; stop working on it"):
                run.save({"n": 1})


def test_the_report_tells_how_a_handler_ended_its_run(tmp_path):
    def end(run):
        getattr(run, run.info.prompt)(*(["no line"] if run.info.prompt == "fail" else []))

    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store:
        for name in ("fail", "cancel", "release", "complete"):
            store.submit(name, run_id=name, agent="a", prompt=name)
        store.submit("later", run_id="later", agent="a", prompt="fail", backoff_s=60)
        report = store.recover({"a": end})
    assert [run.id for run in report.resumed] == ["complete"]
    assert sorted((run.id, run.status) for run in report.left) == [
        ("cancel", "cancelled"),
        ("release", "released"),
    ]
    assert sorted((run.run_id, run.code, run.message) for run in report.failed) == [
        ("fail", "failed", "no line"),
        ("later", "failed", "no line"),
    ]
    assert report.suspended == []


class Exit(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), Exit("x"), asyncio.CancelledError()], ids=repr
)
def test_a_handler_that_exits_has_failed(tmp_path, error):
    def leave(run):
        raise error

    reports = []
    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.submit("t", run_id="r", agent="a")
        with working(store, {"a": leave}, on_report=reports.append):
            eventually(lambda: finished(store))
        run = store.find_run("r")
    text = f"the handler raised {error!r}"
    assert (run.status, run.attempt, run.failures) == ("failed", 1, 1)
    assert run.error == f"HandlerExited: {text}"
    failed = [(run.run_id, run.code, run.message) for report in reports for run in report.failed]
    assert failed == [("r", "HandlerExited", text)]


def test_a_handler_whose_run_waits_has_not_failed(tmp_path):
    async def main():
        async with await outlive.open_async(f"sqlite:///{tmp_path}/store.db") as store:

            async def ask_two(run):
                async with asyncio.TaskGroup() as group:
                    for name in ("one?", "two?"):
                        group.create_task(run.ask(name))

            await store.submit("t", run_id="r", agent="a")
            report = await store.recover({"a": ask_two})
            assert [run.id for run in report.suspended] == ["r"]
            found = await store.find_run("r")
            assert (found.status, found.failures) == ("waiting", 0)

    asyncio.run(main())


def test_a_handler_that_waits_for_a_cancelled_task_has_failed(tmp_path):
    async def main():
        async with await outlive.open_async(f"sqlite:///{tmp_path}/store.db") as store:

            async def waits(run):
                other = asyncio.create_task(asyncio.sleep(PATIENCE_S))
                other.cancel()
                await other

            def plain(run):
                raise SystemExit(3)

            await store.submit("t", run_id="waits", agent="waits")
            await store.submit("u", run_id="plain", agent="plain")
            worker = store.worker({"waits": waits, "plain": plain})
            task = asyncio.create_task(worker.run())
            async with asyncio.timeout(PATIENCE_S):
                while not all([run.is_finished async for run in store.runs()]):
                    await asyncio.sleep(0.01)
            worker.stop()
            await task
            assert {(run.id, run.status, run.failures) async for run in store.runs()} == {
                ("waits", "failed", 1),
                ("plain", "failed", 1),
            }

    asyncio.run(main())


def killed_script(report, url):
    with outlive.open(url) as store, store.run("trip", agent="planner") as run:
        for name in ("one", "two"):
            run.step(name, report, name)
        report("id", run.id)
        if run.info.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_a_script_that_was_killed_continues_when_it_is_run_again(backend, url, workers):
    reports = []
    with workers.spawn(killed_script, url) as worker:
        reports += iter(worker.receive, None)
        worker.kill()
    with workers.spawn(killed_script, url) as worker:
        reports += worker.finish()
    assert [report[0] for report in reports] == ["one", "two", "id", "id"]
    assert reports[2] == reports[3]
    with outlive.open(url) as store:
        assert [(run.status, run.attempt) for run in store.runs()] == [("completed", 2)]


def test_the_example_of_a_service_loses_nothing():
    project = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, project / "examples" / "worker_service.py", "demo"],
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("12 runs completed, ")


def test_a_run_that_waits_already_does_not_keep_the_others_from_being_given_back(tmp_path):
    """Its handler is still there: it is about to leave its block, or does not notice that the run waits."""
    left, errors = threading.Event(), []

    def asks(run):
        try:
            run.ask("ok?")
        finally:
            left.wait(PATIENCE_S)

    def works(run):
        with contextlib.suppress(outlive.errors.OutliveError):
            run.step("long", left.wait, PATIENCE_S)

    url = f"sqlite:///{tmp_path}/a.db?fsync=normal"
    with outlive.open(url) as store, outlive.open(url) as other:
        for n in range(6):
            store.submit(f"t{n}", run_id=f"r{n}", agent="asks" if n % 2 else "works")
        worker = store.worker({"asks": asks, "works": works}, concurrency=6)

        def work():
            try:
                worker.run()
            except BaseException as error:  # RunSuspended is no Exception
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        wanted = {"asks": {"waiting"}, "works": {"running"}}
        eventually(
            lambda: (
                wanted
                == {agent: {run.status for run in other.runs() if run.agent == agent} for agent in wanted}
            )
        )
        worker.drain(0)
        thread.join(PATIENCE_S)
        assert errors == []
        assert {run.status for run in other.runs() if run.agent == "works"} == {"released"}
        left.set()
