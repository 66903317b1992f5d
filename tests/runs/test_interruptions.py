"""A start, an end or a wait that is interrupted: the run is released, failed or refused, never left behind."""

import asyncio
import dataclasses
import itertools
import signal
import subprocess
import sys
import threading
import time

import pytest

import outlive
from outlive.errors import BadArgument, RunEnded, StepTimeout, StoreClosed
from outlive.runtime.loop import AsyncRuntime
from outlive.testing.interposed import Interposed
from outlive.testing.patience import PATIENCE_S, eventually


@pytest.mark.parametrize("is_new", [True, False])
def test_a_task_that_is_cancelled_while_it_starts_a_run_leaves_it_as_it_was(tmp_path, is_new):
    """Whatever call of the store the cancellation meets: the run is not held by this process afterwards."""

    async def main(number):
        async with outlive.open_async(f"sqlite:///{tmp_path}/{is_new}{number}.db?fsync=normal") as store:
            if not is_new:
                await store.submit("t", run_id="r", agent="a")
            engine = store._engine
            engine.backend = interposed = Interposed(engine.backend)
            task = asyncio.create_task(store.run("t", run_id="r", agent="a").start())

            async def cancel():
                task.cancel()

            interposed.before_call(number, cancel)
            try:
                await task
            except asyncio.CancelledError:
                run = await store.find_run("r")
                assert (run.status if run else None) == (None if is_new else "released"), f"call {number}"
                return True
            return False

    number = 0
    while asyncio.run(main(number)):
        number += 1
    assert number >= 2


def test_shielded_work_ends_and_the_cancellation_is_raised_then():
    done = []

    async def work():
        await asyncio.sleep(0.05)
        done.append("work")
        return 5

    async def undo(value):
        done.append(value)

    async def main():
        task = asyncio.create_task(AsyncRuntime().shielded(work(), undo))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["work", 5]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await AsyncRuntime().shielded(work())
        assert await AsyncRuntime().shielded(work(), undo) == 5

    asyncio.run(main())
    assert done == ["work", 5, "work", "work"]


def test_a_run_whose_store_is_closed_says_so():
    store = outlive.open("memory:")
    run = store.run("t", run_id="r").start()
    store.close()
    for call in (lambda: run.ask("ok?"), lambda: run.step("one", int), lambda: run.save({}), run.alive):
        with pytest.raises(StoreClosed):
            call()


def test_arguments_are_refused_with_what_is_allowed():
    with outlive.open("memory:") as store:
        with (
            pytest.raises(BadArgument, match="at most 1,000,000,000, not 10000000000"),
            store.run("t", run_id="r") as run,
        ):
            run.ask("ok?", timeout_s=1e10)
        for listing in (store.questions, store.runs):
            with pytest.raises(BadArgument, match="agent must be"):
                list(listing(agent=5))


@dataclasses.dataclass
class Claim:
    eur: int


def test_steps_and_questions_with_types_that_a_process_does_not_know_are_listed(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    code = f"""
import outlive
with outlive.open({url!r}) as store:
    print([(step.name, step.status, type(step.value).__name__) for step in store.steps("r")])
"""
    with outlive.open(url) as store:
        outlive.register(Claim, tag="test.interruptions.claim")
        with store.run("t", run_id="r") as run:
            run.step("claim", Claim, 5)
            run.ask("ok?", Claim(6))
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert shown.stderr == ""
    assert "('claim', 'done', 'Opaque')" in shown.stdout
    assert "('ok?', 'started', 'NoneType')" in shown.stdout


def leave(run):
    sys.exit(3)


async def leave_async(run):
    sys.exit(3)


def test_sys_exit_in_a_handler_fails_its_run_in_the_main_thread_too():
    assert threading.current_thread() is threading.main_thread()
    with outlive.open("memory:") as store:
        store.submit("t", run_id="r", agent="a")
        report = store.recover({"a": leave}, concurrency=1)
        assert [(run.run_id, run.code) for run in report.failed] == [("r", "HandlerExited")]

    async def main():
        async with outlive.open_async("memory:") as store:
            await store.submit("t", run_id="r", agent="a")
            return await store.recover({"a": leave_async})

    assert [run.code for run in asyncio.run(main()).failed] == ["HandlerExited"]


@pytest.mark.parametrize("kind", ["function", "object"])
def test_sys_exit_of_a_signal_handler_releases_the_run(kind):
    class Handler:
        def __call__(self, number, frame):
            sys.exit(0)

    def interrupted(run):
        signal.raise_signal(signal.SIGUSR1)

    handler = Handler() if kind == "object" else Handler().__call__
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with outlive.open("memory:") as store:
            store.submit("t", run_id="r", agent="a")
            with pytest.raises(SystemExit):
                store.recover({"a": interrupted}, concurrency=1)
            assert store.find_run("r").status == "released"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_only_releases_is_called_ever_more_seldom():
    calls = []

    def release(run):
        calls.append(time.monotonic())
        run.release()

    with outlive.open("memory:") as store:
        store.submit("t", run_id="r", agent="a")
        worker = store.worker({"a": release}, interval_s=0.02)
        thread = threading.Thread(target=worker.run)
        thread.start()
        eventually(lambda: len(calls) >= 6)
        worker.stop()
        thread.join(PATIENCE_S)
        run = store.find_run("r")
    pauses = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert pauses[4] >= 0.02 * 2**4
    assert (run.failures, run.status) == (0, "released")


@pytest.mark.parametrize("name", ["cancel", "release", "flush"])
def test_what_is_left_of_a_step_that_ran_out_of_time_cannot_end_its_run(name):
    may_continue, errors = threading.Event(), []

    def late(run):
        may_continue.wait(PATIENCE_S)
        try:
            getattr(run, name)()
        except Exception as error:
            errors.append(error)

    with outlive.open("memory:") as store, store.run("t", run_id="r") as run:
        with pytest.raises(StepTimeout):
            run.step("late", timeout_s=0.01)(late)(run)
        may_continue.set()
        eventually(lambda: errors)
        assert [type(error) for error in errors] == [StepTimeout]
        assert run.status == "running"
    assert run.status == "completed"


def test_a_run_that_has_ended_is_refused_as_before():
    with outlive.open("memory:") as store:
        run = store.run("t", run_id="r").start()
        run.complete()
        with pytest.raises(RunEnded):
            run.ask("ok?")
