"""What a store tells its watchers."""

from __future__ import annotations

import asyncio

import pytest

import outlive


def work(store):
    store.thread("t").save({"n": 1}, id="c1")
    store.thread("t").load()
    with store.run("t", run_id="r") as run:
        run.save({"n": 2}, id="c2")


def test_saves_loads_and_runs_are_told():
    told = []
    with outlive.open("memory:", on_event=told.append) as store:
        work(store)
    names = [(event.name, event.checkpoint, event.run, event.status) for event in told]
    assert names[:2] == [("save", "c1", None, None), ("load", "c1", None, None)]
    assert [name for name in names if name[0] != "load"][1:] == [
        ("claim", None, "r", "running"),
        ("save", "c2", "r", None),
        ("end", None, "r", "completed"),
    ]
    assert told[0].state_bytes == 4
    assert told[0].thread == "t"
    assert all(event.duration_s >= 0 for event in told)


def test_steps_are_told_when_they_begin_and_end():
    told = []
    with outlive.open("memory:", on_event=told.append) as store:
        with store.run("t", run_id="r") as run:
            run.step("a", lambda: 1)
            with pytest.raises(ZeroDivisionError):
                run.step("b", key="k")(lambda: 1 / 0)()
            with pytest.raises(KeyboardInterrupt):
                run.step("c", interrupted)
            assert run.step("a", key="k")(lambda: 2)() == run.step("a", key="k")(lambda: 3)() == 2
    steps = [event for event in told if event.name.startswith("step_")]
    assert [(event.name, event.step, event.key, event.status) for event in steps] == [
        ("step_begin", "a", "#1", "started"), ("step_end", "a", "#1", "done"),
        ("step_begin", "b", "=k", "started"), ("step_end", "b", "=k", "raised"),
        ("step_begin", "c", "#1", "started"), ("step_end", "c", "#1", "interrupted"),
        ("step_begin", "a", "=k", "started"), ("step_end", "a", "=k", "done"),
    ]  # fmt: skip
    assert [event.error for event in steps if event.error] == ["ZeroDivisionError: division by zero"]
    assert {(event.run, event.thread, event.attempt) for event in steps} == {("r", "t", 1)}


def interrupted():
    raise KeyboardInterrupt


def test_they_are_told_in_the_async_colour_too():
    told = []

    async def main():
        async with outlive.open_async("memory:", on_event=told.append) as store:
            await store.thread("t").save({"n": 1})
            await store.thread("t").load()

    asyncio.run(main())
    assert [event.name for event in told] == ["save", "load"]


def test_a_watcher_that_raises_does_not_stop_the_work():
    with outlive.open("memory:", on_event=lambda event: 1 / 0) as store:
        with pytest.warns(UserWarning, match="on_event raised ZeroDivisionError"):
            store.thread("t").save({"n": 1})
    with pytest.raises(outlive.errors.BadArgument, match="on_event must be a function"):
        outlive.open("memory:", on_event=7)


def test_questions_answers_and_wakes_are_told():
    told = []
    with outlive.open("memory:", on_event=told.append) as store:
        with store.run("t", run_id="r", agent="a") as run:
            run.ask_all({"one": 1, "two": 2})
        for name in ("one", "two"):
            store.answer("r", name, True)
        with store.run("t", run_id="r") as run:
            run.sleep(3600)
    names = [(event.name, event.step, event.status, event.previous) for event in told]
    assert [name for name in names if name[0] not in ("load", "save")] == [
        ("claim", None, "running", None),
        ("question", "one", "waiting", None),
        ("question", "two", "waiting", None),
        ("end", None, "waiting", None),
        ("answer", "one", None, None),
        ("answer", "two", None, None),
        ("wake", None, "released", None),
        ("claim", None, "running", "waiting"),
        ("end", None, "waiting", None),
    ]
    assert {event.agent for event in told if event.name in ("question", "answer")} == {"a"}


def test_a_step_that_begins_is_told_to_end_once_even_if_its_result_is_not_stored():
    told = []
    with outlive.open("memory:", on_event=told.append) as store:
        run = store.run("t", run_id="r").start()
        with pytest.raises(outlive.errors.Unencodable):
            run.step("a", object)
        store.cancel("r")
        for effect in (True, False):
            with pytest.raises(outlive.LeaseLost):
                run.step("b", effect=effect)(int)()
    steps = [(event.name, event.step, event.status) for event in told if event.name.startswith("step_")]
    assert steps == [("step_begin", "a", "started"), ("step_end", "a", "interrupted")]
