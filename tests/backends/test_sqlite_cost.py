"""What an ordinary small save to SQLite and a step cost: counts of calls and statements, which no machine changes."""

from __future__ import annotations

import os
import sys
import sysconfig

import pytest

import outlive

MOST_CALLS = (
    60  # of Python functions, those of other packages too; what the standard library calls differs by version
)
MOST_STATEMENTS = 6  # begin, thread, chunk, head, checkpoint, commit
MOST_CALLS_OF_STEP = 122
MOST_STATEMENTS_OF_STEP = 10  # begin, thread, head, two rows of a step and of two leases, commit


class Costs:
    """Count the Python functions that are called, and the statements that SQLite executes."""

    def __init__(self):
        self.calls = []
        self.statements = 0

    def count(self, function):
        sys.setprofile(self._note)
        try:
            function()
        finally:
            sys.setprofile(None)
        return self

    def _note(self, frame, event, argument):
        if event == "call" and not self._is_of_python(frame.f_code.co_filename):
            self.calls.append(f"{frame.f_code.co_filename}: {frame.f_code.co_name}")
        elif event == "c_call" and argument.__name__ == "execute":
            self.statements += 1

    @staticmethod
    def _is_of_python(file):
        return file.startswith(sysconfig.get_path("stdlib")) and "site-packages" not in file


@pytest.fixture
def thread(tmp_path):
    with outlive.open(tmp_path / "store.db") as store:
        yield store.thread("t")


def state(step):
    return {"messages": [{"role": "user", "content": f"message {step} " * 20}], "step": step}


def warm(thread, folder):
    for step in range(3):
        thread.save(state(step))
    # A folder that changed just now is looked at closely, as it may change again and keep its time.
    os.utime(folder, (0, 0))
    thread.save(state(3))


def test_a_small_save_makes_few_calls_and_statements(thread, tmp_path):
    warm(thread, tmp_path)
    new = state(4)
    costs = Costs().count(lambda: thread.save(new))
    assert len(costs.calls) - 1 <= MOST_CALLS, "\n".join(costs.calls)  # without the lambda
    assert 0 < costs.statements <= MOST_STATEMENTS
    assert thread.load() == new


def test_a_save_of_what_is_stored_already_writes_no_chunk(thread, tmp_path):
    warm(thread, tmp_path)
    costs = Costs().count(lambda: thread.save(state(3)))
    assert 0 < costs.statements < MOST_STATEMENTS


def test_a_step_makes_few_calls_and_statements(tmp_path):
    with outlive.open(tmp_path / "store.db") as store, store.run("t", run_id="r") as run:
        for _ in range(3):
            run.step("warm", int)
        os.utime(tmp_path, (0, 0))
        run.step("warm", int)
        costs = Costs().count(lambda: run.step("n", int))
        assert len(costs.calls) - 1 <= MOST_CALLS_OF_STEP, "\n".join(costs.calls)
        assert 0 < costs.statements <= MOST_STATEMENTS_OF_STEP
        assert [step.name for step in store.steps("r")] == ["warm"] * 4 + ["n"]
