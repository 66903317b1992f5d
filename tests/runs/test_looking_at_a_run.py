"""The steps and responses of a run can be read from the store, also while the run is alive."""

from __future__ import annotations

import asyncio

import pytest

import outlive
from outlive.errors import RunMissing


@pytest.fixture
def store():
    with outlive.open("memory:") as store:
        yield store


def test_the_steps_of_a_live_run_are_listed_in_the_order_in_which_they_began(store):
    with store.run("t", run_id="r") as run:
        run.step("b", lambda: 1)
        run.step("a", key="x")(lambda: 2)()
        with pytest.raises(ZeroDivisionError):
            run.step("c", lambda: 1 / 0)
        steps = store.steps("r")
        assert [(step.name, step.key, step.status, step.value) for step in steps] == [
            ("b", "#1", "done", 1),
            ("a", "=x", "done", 2),
            ("c", "#1", "raised", None),
        ]
        assert steps[2].error == "ZeroDivisionError: division by zero"


def test_the_responses_are_listed_as_they_are_stored(store):
    with store.run("t", run_id="r") as run:
        responses = run.responses.open(["z", "a"])
        responses.begin("z")
        responses.complete("a", {"text": "yes"})
        assert [(response.model_id, response.status) for response in store.responses("r")] == [
            ("z", "running"),
            ("a", "completed"),
        ]


def test_a_run_with_a_line_break_in_its_id_is_not_taken_for_another(store):
    for id in ("r", "r\nx"):
        with store.run("t", run_id=id) as run:
            run.step(f"step of {len(id)}", lambda: None)
    assert [step.name for step in store.steps("r")] == ["step of 1"]
    assert [step.name for step in store.steps("r\nx")] == ["step of 3"]


def test_a_run_that_does_not_exist_is_an_error(store):
    for look in (store.steps, store.responses):
        with pytest.raises(RunMissing):
            look("r")


def test_the_async_store_has_both():
    async def look():
        async with outlive.open_async("memory:") as store:
            async with store.run("t", run_id="r") as run:
                await run.step("a", lambda: 1)
            return await store.steps("r", thread="t"), await store.responses("r")

    steps, responses = asyncio.run(look())
    assert [step.value for step in steps] == [1]
    assert responses == []
