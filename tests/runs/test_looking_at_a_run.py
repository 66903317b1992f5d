"""The steps and responses of a run can be read from the store, also while the run is alive."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import outlive
from outlive.backend import Commit, EntryQuery
from outlive.errors import Corrupt, RunMissing
from outlive.runtime.runtime import run_now


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


@pytest.mark.parametrize(
    "damage",
    [
        {"attempts": 7},
        {"attempts": [[1, "owner", "host", "yesterday", 0, "", ""]]},
        {"attempts": [[1, "owner", "host", 1 << 62, 0, "", ""]]},
        {"attempts": [[1]]},
        {"budget": {"tokens": 5}},
        {"budget": [-1, None, None]},
        {"effect_seed": "text"},
        {"effect_seed": b"x" * 65},
    ],
    ids=str,
)
def test_a_damaged_record_is_said_to_be_damaged(store, damage):
    store.run("t", run_id="r").start().release()
    inner = store._store
    key, entry = run_now(inner._the_run("r", None))
    fields = inner._engine.codec.unpack(entry.body, opaque=True)
    body = inner._engine.codec.pack({**fields, **damage})
    run_now(inner._engine.commit(Commit(key, entries=(replace(entry, body=body),))))
    assert [info.is_readable for info in store.runs()] == [False]
    with pytest.raises(Corrupt):
        store.attempts("r")


@pytest.mark.parametrize(
    "damage",
    [(7, [[7]]), (7, [[1, 2, 3, 4]]), (7, [["1", 2, 3, "text"]]), (3, 1 << 62), (4, "now"), (5, None)],
    ids=str,
)
def test_a_damaged_step_is_said_to_be_damaged(store, damage):
    with store.run("t", run_id="r") as run:
        run.step("s", int)
    inner = store._store
    key, _ = run_now(inner._the_run("r", None))
    ((_, entry),) = run_now(inner._engine.backend.entries(EntryQuery("", "step", thread=key, limit=9)))
    fields = inner._engine.codec.unpack(entry.body)
    fields[damage[0]] = damage[1]
    run_now(
        inner._engine.commit(Commit(key, entries=(replace(entry, body=inner._engine.codec.pack(fields)),)))
    )
    with pytest.raises(Corrupt):
        store.steps("r")
