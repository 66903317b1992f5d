"""Work that the runtime repeats in the background, in a thread or in a task."""

from __future__ import annotations

import asyncio
import threading
import warnings

import pytest

from outlive.runtime.loop import AsyncRuntime
from outlive.runtime.runtime import SyncRuntime
from outlive.testing.patience import eventually, eventually_async


class Failing:
    """Work that fails every time."""

    def __init__(self):
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        raise ZeroDivisionError(f"call {self.calls}")


def run_three_times(work):
    ticker = SyncRuntime().tick("outlive-x", 0.001, work)
    assert "outlive-x" in [thread.name for thread in threading.enumerate()]
    eventually(lambda: work.calls > 2)
    ticker.stop()
    eventually(lambda: "outlive-x" not in [thread.name for thread in threading.enumerate()])


def test_work_that_raises_is_repeated_and_its_error_is_shown():
    with pytest.warns(RuntimeWarning, match="outlive-x failed, and will be tried again") as shown:
        run_three_times(Failing())
    assert "ZeroDivisionError: call 2" in str(shown[1].message)
    assert "in __call__" in str(shown[1].message)  # where it went wrong


def test_work_that_raises_is_repeated_in_an_event_loop():
    async def main():
        work = Failing()
        ticker = AsyncRuntime().tick("outlive-x", 0.001, work)
        assert "outlive-x" in [task.get_name() for task in asyncio.all_tasks()]

        async def is_repeated():
            return work.calls > 2

        await eventually_async(is_repeated, asyncio.sleep)
        ticker.stop()

    with pytest.warns(RuntimeWarning, match="outlive-x failed") as shown:
        asyncio.run(main())
    assert "ZeroDivisionError: call 2" in str(shown[1].message)


def test_work_that_raises_is_repeated_where_warnings_are_errors(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_three_times(Failing())
    assert "ZeroDivisionError: call 2" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [-1, 0, 0.001])
def test_sleeping_takes_what_is_left_of_a_time(seconds):
    coroutine = SyncRuntime().sleep(seconds)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    asyncio.run(AsyncRuntime().sleep(seconds))
