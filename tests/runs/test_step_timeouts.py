"""What becomes of a function that its step stopped waiting for."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

import outlive
from outlive.errors import StepTimeout
from outlive.testing.patience import PATIENCE_S, eventually


@pytest.fixture
def store():
    with outlive.open("memory:") as store:
        yield store


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "outlive-step"]


def test_it_continues_alone_and_its_result_is_dropped(store):
    release, done = threading.Event(), []
    with store.run("t", run_id="r") as run:

        def late():
            release.wait(PATIENCE_S)
            done.append(1)
            return "late"

        with pytest.raises(StepTimeout):
            run.step("s", timeout_s=0.01)(late)()
        assert done == []
        release.set()
        eventually(lambda: done and not threads())
        assert [(step.status, step.value) for step in store.steps("r")] == [("raised", None)]


LATE = {
    "save": lambda run: run.save({"late": 1}),
    "step": lambda run: run.step("late", int),
    "ask": lambda run: run.ask("late?"),
    "ask_all": lambda run: run.ask_all({"late?": 1}),
    "ask_any": lambda run: run.ask_any({"late?": 1}),
    "wait": lambda run: run.wait("late"),
    "sleep": lambda run: run.sleep(0),
    "emit": lambda run: run.emit("late"),
    "complete": lambda run: run.complete("late"),
    "fail": lambda run: run.fail("late"),
}


@pytest.mark.parametrize("call", LATE)
def test_it_cannot_change_the_run_any_more(store, call):
    release, raised = threading.Event(), []
    with store.run("t", run_id="r") as run:
        run.save({"n": 1})

        def late():
            release.wait(PATIENCE_S)
            try:
                LATE[call](run)
            except BaseException as error:
                raised.append(error)

        with pytest.raises(StepTimeout):
            run.step("s", timeout_s=0.01)(late)()
        assert run.step("s", timeout_s=PATIENCE_S)(lambda: run.step("inner", int))() == 0
        release.set()
        eventually(lambda: raised and not threads())
        assert [type(error) for error in raised] == [StepTimeout]
        assert run.status == "running"
        assert run.load() == {"n": 1}
        assert [step.name for step in store.steps("r")] == ["s", "s", "inner"]
        assert list(store.questions()) == []


def test_what_it_raises_later_is_dropped_too(store, capfd):
    release = threading.Event()
    with store.run("t") as run:

        def late():
            release.wait(PATIENCE_S)
            raise ValueError("nobody waits for this")

        with pytest.raises(StepTimeout):
            run.step("s", timeout_s=0.01)(late)()
        release.set()
        eventually(lambda: not threads())
    assert capfd.readouterr().err == ""


def test_an_async_step_drops_what_a_thread_returns_late(recwarn):
    release = threading.Event()

    async def main():
        async with outlive.open_async("memory:") as store, store.run("t") as run:
            late = [lambda: release.wait(PATIENCE_S), lambda: (release.wait(PATIENCE_S), asyncio.sleep(0))[1]]
            for function in late:
                with pytest.raises(StepTimeout):
                    await run.step("s", timeout_s=0.01)(function)()
            release.set()
            while threads():
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert [str(warning.message) for warning in recwarn] == []


def test_a_coroutine_is_cancelled():
    cancelled = []

    async def hang():
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def main():
        async with outlive.open_async("memory:") as store, store.run("t") as run:
            with pytest.raises(StepTimeout):
                await run.step("s", timeout_s=0.01)(hang)()
            assert run.status == "running"

    asyncio.run(main())
    assert cancelled == [1]


def test_it_sees_the_context_and_the_key_of_its_step(store):
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)
    with store.run("t", run_id="r") as run:
        call = run.step("s", timeout_s=PATIENCE_S, effect=True)(lambda: (variable.get(), str(run.effect_key)))
        assert call() == (7, store.steps("r")[0].effect_key)


def test_a_call_that_is_interrupted_in_a_thread_interrupts_the_caller(store):
    def leave():
        raise SystemExit(3)

    with pytest.raises(SystemExit), store.run("t", run_id="r") as run:
        run.step("s", timeout_s=PATIENCE_S)(leave)()
    assert store.find_run("r").status == "released"
