"""How a run that waits leaves its block: in a script, in tasks, in threads, in handlers, and in a pair of stores."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import enum
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import outlive
from outlive.errors import (
    AmbiguousStep,
    BadArgument,
    LeaseLost,
    QuestionChanged,
    QuestionClosed,
    RunEnded,
    RunSuspended,
)
from outlive.runs import answer_schema
from outlive.runs.answer_schema import Mismatch
from outlive.testing.interposed import Interposed
from outlive.testing.patience import PATIENCE_S, eventually
from rig.replicas import open_pair


@pytest.fixture
def store():
    with outlive.open("memory:") as store:
        yield store


def _renewals(before):
    """Return the threads that renew leases and were not there before: other tests may have left some."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name == "outlive-renewal" and thread not in before
    ]


def approve(run):
    """A careful agent, which catches every Exception."""
    try:
        return run.ask("ok?")
    except Exception:
        return "caught"


def test_a_plain_block_ends_without_an_error_and_says_what_it_waits_for(store):
    for status in ("waiting", "waiting"):  # the script may be run again and again
        with store.run("t", run_id="r") as run:
            run.save({"n": 1})
            approve(run)
            raise AssertionError("it continues without an answer")
        assert (run.status, run.info.waits.names, run.is_finished) == (status, ("ok?",), False)
    store.answer("r", "ok?", True)
    with store.run("t", run_id="r") as run:
        assert approve(run) is True
    assert (run.status, run.info.attempt) == ("completed", 1)


def test_questions_answers_and_wakes_are_told():
    told = []
    with outlive.open("memory:", on_event=lambda event: told.append((event.name, event.step))) as store:
        with store.run("t", run_id="r", agent="x") as run:
            approve(run)
        store.answer("r", "ok?", 1)
        store.recover({"x": approve})
        assert [(info.number, info.outcome) for info in store.attempts("r")] == [
            (1, "waiting"),
            (1, "completed"),
        ]
    names = ["claim", "question", "end", "answer", "wake", "claim", "end"]
    assert [name for name, _ in told if name in names] == names
    assert [step for name, step in told if name in ("question", "answer")] == ["ok?", "ok?"]


def test_nothing_is_done_for_a_suspended_run(store):
    before = threading.enumerate()
    run = store.run("t", run_id="r").start()
    assert _renewals(before)
    with pytest.raises(RunSuspended):
        run.ask("ok?")
    for call in (lambda: run.step("s", int), lambda: run.save({}), run.complete, run.flush):
        with pytest.raises(RunSuspended):
            call()
    eventually(lambda: not _renewals(before), "its lease is still renewed")
    run.start()  # takes it up again
    with pytest.raises(RunSuspended):
        run.ask("ok?")


def test_what_was_held_back_is_stored_before_the_run_waits(store):
    for options in ({"throttle_s": 1000}, {"durability": "exit"}, {"durability": "async"}):
        with store.run(str(options), run_id=str(options), **options) as run:
            run.save({"n": 1})
            run.save({"n": 2})
            run.ask("ok?")
        assert store.thread(str(options)).load() == {"n": 2}


def test_an_error_of_the_agent_is_not_taken_for_a_wait(store):
    def agent(run):
        try:
            run.ask("ok?")
        finally:
            raise KeyError("of the agent")

    with pytest.raises(KeyError), store.run("t", run_id="r") as run:
        agent(run)
    assert store.find_run("r").status == "waiting"
    with pytest.raises(RunSuspended), store.run("u", run_id="s"):
        raise RunSuspended("another run")
    assert store.find_run("s").status == "released"


def test_a_waiting_run_that_was_taken_over_is_not_suspended_twice(store):
    run = store.run("t", run_id="r").start()
    store.park("r")
    with pytest.raises(LeaseLost):
        run.ask("ok?")
    assert list(store.questions()) == []


@pytest.mark.parametrize("how", ["gather", "group", "gather and wait"])
def test_tasks_that_ask_at_once(tmp_path, how):
    async def branch(run, name):
        await run.step("prepare", key=name)(asyncio.sleep)(0.01)
        return f"{name}: {await run.ask(name)}"

    async def agent(run):
        if how == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(branch(run, name)) for name in "abc"]
            return [task.result() for task in tasks]
        works = [branch(run, name) for name in "abc"]
        results = await asyncio.gather(*works, return_exceptions=how != "gather")
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/store.db?fsync=normal") as store:
            async with store.run("t", run_id="r", agent="x") as run:
                await agent(run)
            while (info := await store.find_run("r")).status != "completed":
                # A branch that gather left behind may still be storing its question.
                asked = [question.name async for question in store.questions()]
                assert asked or info.status == "released"
                for name in asked[:1]:
                    await store.answer("r", name, name.upper())
                await store.recover({"x": agent})
            return info

    info = asyncio.run(main())
    assert (info.result, info.attempt) == (["a: A", "b: B", "c: C"], 1)


def test_threads_that_ask_at_once(store):
    calls = []

    def branch(run, name):
        run.step("prepare", key=name)(calls.append)(name)
        return f"{name}: {run.ask(name)}"

    def agent(run):
        with ThreadPoolExecutor(3) as pool:
            return [future.result() for future in [pool.submit(branch, run, name) for name in "abc"]]

    with store.run("t", run_id="r", agent="x") as run:
        agent(run)
    while (info := store.find_run("r")).status != "completed":
        question = next(iter(store.questions()))
        store.answer("r", question.name, question.name.upper())
        assert store.find_run("r").status == "released"
        store.recover({"x": agent})
    assert (info.result, sorted(calls)) == (["a: A", "b: B", "c: C"], ["a", "b", "c"])


def test_a_question_inside_a_step_does_not_wait_for_that_step(store):
    def agent(run):
        return run.step("outer", lambda: run.ask("ok?"))

    with store.run("t", run_id="r", agent="x") as run:
        agent(run)
    assert run.status == "waiting"
    store.answer("r", "ok?", 1)
    assert store.recover({"x": agent}).resumed[0].result == 1


def test_a_worker_takes_an_answered_run_up(store):
    done = []

    def agent(run):
        done.append(run.ask("ok?"))

    worker = store.worker({"x": agent}, interval_s=0.02, concurrency=2)
    thread = threading.Thread(target=worker.run)
    with store.run("t", run_id="r", agent="x") as run:
        agent(run)
    thread.start()
    try:
        time.sleep(0.1)
        assert done == []
        store.answer("r", "ok?", "yes")
        eventually(lambda: done == ["yes"], "the worker does not resume the run")
    finally:
        worker.stop()
        thread.join()


def test_waiting_runs_cost_nothing(tmp_path):
    before = threading.enumerate()
    with outlive.open(f"sqlite:///{tmp_path}/store.db?fsync=normal") as store:
        for n in range(50):
            with store.run(f"t{n}", run_id=f"r{n}", agent="x") as run:
                run.ask("ok?", timeout_s=3600)
        eventually(lambda: not _renewals(before), "a lease is still renewed")
        report = store.recover({"x": approve})
        assert (report.resumed, report.waiting, report.skipped) == ([], [], [])
        assert len(list(store.questions())) == 50


def test_an_answer_after_a_failover(tmp_path):
    urls = [f"sqlite:///{tmp_path}/{n}.db?fsync=normal" for n in range(2)]
    agent_calls = []

    def agent(run):
        agent_calls.append(run.ask("ok?", {"n": 1}))

    with open_pair(*urls) as store:
        with store.run("t", run_id="r", agent="x") as run:
            agent(run)
        with store.run("u", run_id="s", agent="x") as run:
            run.sleep(3600)
        store.promote()
        assert [question.name for question in store.questions()] == ["ok?"]
        store.answer("r", "ok?", "yes", by="desk")
        with pytest.raises(outlive.errors.AlreadyAnswered):
            store.answer("r", "ok?", "no")
        assert [info.id for info in store.recover({"x": agent}, after_failover=True).resumed] == ["r"]
        store.failback()
        assert {info.id: info.status for info in store.runs()} == {"r": "completed", "s": "waiting"}
        assert agent_calls == ["yes"]
    with outlive.open(urls[0], replication=None, single=True) as store:
        assert store.find_run("r").status == "completed"


def test_a_branch_that_sleeps_is_waited_for(store):
    done = []

    def sleeper(run):
        run.sleep(0.3)
        run.step("after", done.append, 1)

    with store.run("t", run_id="r") as run, ThreadPoolExecutor(2) as pool:
        branch = pool.submit(sleeper, run)
        time.sleep(0.1)
        with pytest.raises(RunSuspended):
            run.ask("ok?")
        branch.result()
    assert (run.status, done) == ("waiting", [1])


def test_a_waiting_run_is_copied_with_its_timers_and_answered_there(tmp_path):
    ring = outlive.KeyRing({"k": bytes(range(32))})

    def agent(run):
        return run.ask("ok?", {"secret": "word"}, timeout_s=3600)

    with outlive.open(f"sqlite:///{tmp_path}/one.db?fsync=normal", key=ring) as store:
        with store.run("t", run_id="r", agent="x", prompt="p") as run:
            agent(run)
        with store.run("u", run_id="s", agent="y") as run:
            run.release()
        with outlive.open("memory:") as other:
            store.copy_to(other)
            for each in (store, other):
                assert each.verify().ok
                assert [question.payload for question in each.questions()] == [{"secret": "word"}]
                each.answer("r", "ok?", "yes")
                report = each.recover({"x": agent, "y": lambda run: "resumed"})
                assert {info.id: info.result for info in report.resumed} == {"r": "yes", "s": "resumed"}
                assert list(each.questions()) == []
    assert b"secret" not in (tmp_path / "one.db").read_bytes()


def test_nothing_waits_in_a_store_that_keeps_nothing():
    with outlive.open("null:") as store:
        with store.run("t", run_id="r") as run:
            run.ask("ok?")
        assert run.status == "waiting"
        assert list(store.questions()) == []


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "n": {"type": "integer", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2, "uniqueItems": True},
        "either": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "^[A-Z]+$"},
    },
    "required": ["kind"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "maxLength": 3}},
}


@pytest.mark.parametrize(
    "value, path",
    [
        ({"kind": "a"}, None),
        ({"kind": "b", "n": 5.0, "tags": ["x", "y"], "either": None, "code": "AB"}, None),
        ({"kind": "c"}, "answer.kind"),
        ({}, "answer.kind"),
        ([], "answer"),
        ({"kind": "a", "n": 0}, "answer.n"),
        ({"kind": "a", "n": True}, "answer.n"),
        ({"kind": "a", "n": 1.5}, "answer.n"),
        ({"kind": "a", "tags": ["x", "long"]}, "answer.tags[1]"),
        ({"kind": "a", "tags": ["x", "x"]}, "answer.tags"),
        ({"kind": "a", "tags": ["x", "y", "z"]}, "answer.tags"),
        ({"kind": "a", "either": "x"}, "answer.either"),
        ({"kind": "a", "code": "ab"}, "answer.code"),
        ({"kind": "a", "other": 1}, "answer.other"),
    ],
)
def test_a_value_is_checked_against_a_json_schema(value, path):
    if path is None:
        answer_schema.check(SCHEMA, value)
        return
    with pytest.raises(Mismatch) as mismatch:
        answer_schema.check(SCHEMA, value)
    assert mismatch.value.path == path


def test_a_schema_that_refers_to_itself_ends():
    loop = {"$ref": "#"}
    with pytest.raises(Mismatch):
        answer_schema.check(loop, 1)
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False}
    answer_schema.check(tree, {"child": {"child": {}}})
    with pytest.raises(Mismatch, match=r"child\.child\.x"):
        answer_schema.check(tree, {"child": {"child": {"x": 1}}})


def test_a_stored_schema_that_is_none_is_refused_with_its_question(store, monkeypatch):
    monkeypatch.setattr(answer_schema, "check_schema", lambda schema: None)  # another version of the code
    with store.run("t", run_id="r") as run:
        run.ask("ok?", schema={"type": "string", "minLength": "many"})
    with pytest.raises(outlive.errors.AnswerRefused, match="not a JSON Schema"):
        store.answer("r", "ok?", "text")


def test_a_pydantic_model_is_a_schema_and_comes_back_as_itself(store):
    pydantic = pytest.importorskip("pydantic")

    class Approval(pydantic.BaseModel):
        ok: bool
        limit: int = pydantic.Field(default=1, ge=0)

    def agent(run):
        answer = run.ask("ok?", schema=Approval)
        assert isinstance(answer, Approval)
        return answer.limit

    with store.run("t", run_id="r", agent="x") as run:
        agent(run)
    for wrong in ({"ok": "maybe"}, {"ok": True, "limit": -1}, {}):
        with pytest.raises(outlive.errors.AnswerRefused):
            store.answer("r", "ok?", wrong)
    store.answer("r", "ok?", Approval(ok=True, limit=7))
    assert store.recover({"x": agent}).resumed[0].result == 7
    with pytest.raises(outlive.errors.BadArgument, match="schema must be"), store.run("u") as run:
        run.ask("ok?", schema=object())


# Branches


def test_branches_that_ask_inside_steps_do_not_wait_for_each_other(tmp_path):
    async def agent(run):
        return await asyncio.gather(run.step("a", run.ask, "qa"), run.step("b", run.ask, "qb"))

    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/a.db") as store:

            async def attempt():
                async with store.run("t", run_id="r", agent="x") as run:
                    await run.complete(await agent(run))

            await asyncio.wait_for(attempt(), PATIENCE_S)
            assert (await store.find_run("r")).status == "waiting"
            assert [question.name async for question in store.questions()] == ["qa", "qb"]
            await store.answer("r", "qa", 1)
            await store.answer("r", "qb", 2)
            await asyncio.wait_for(attempt(), PATIENCE_S)
            assert (await store.find_run("r")).result == [1, 2]

    asyncio.run(main())


def test_answers_reach_threads_of_a_step_that_waits_for_them(store):
    def panel(run):
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(run.ask, ["qa", "qb"]))

    def attempt():
        with store.run("t", run_id="r") as run:
            run.complete(run.step("panel", panel, run))

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(attempt)
        eventually(lambda: len(list(store.questions())) == 2, "the questions are not asked")
        store.answer("r", "qa", 1)
        store.answer("r", "qb", 2)
        ended.result(PATIENCE_S)
    assert store.find_run("r").result == [1, 2]


@pytest.mark.parametrize("how", ["answer", "deadline"])
def test_an_answer_or_a_deadline_reaches_a_branch_while_another_works(store, how):
    got = threading.Event()
    with store.run("t", run_id="r") as run, ThreadPoolExecutor(1) as pool:
        begun = threading.Event()

        def slow():
            begun.set()
            return got.wait(PATIENCE_S)

        other = pool.submit(run.step, "slow", slow)
        begun.wait()
        if how == "answer":
            threading.Timer(0.2, lambda: store.answer("r", "q", "yes")).start()
        value = run.ask("q", timeout_s=0.3 if how == "deadline" else None, default="late")
        got.set()
        assert other.result() is True, "the branch had to wait for the other one"
    assert value == ("yes" if how == "answer" else "late")


@pytest.mark.parametrize("how", ["gather", "group"])
def test_all_questions_that_are_asked_at_once_are_stored_at_once(tmp_path, how):
    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/a.db") as store:
            async with store.run("t", run_id="r") as run:
                if how == "gather":
                    await asyncio.gather(*(run.ask(f"q{n}") for n in range(3)))
                else:
                    async with asyncio.TaskGroup() as group:
                        for n in range(3):
                            group.create_task(run.ask(f"q{n}"))
            info = await store.find_run("r")
            assert info.waits is not None
            assert sorted(info.waits.names) == ["q0", "q1", "q2"]
            assert [question.name async for question in store.questions()] == ["q0", "q1", "q2"]

    asyncio.run(main())


def test_a_run_that_fails_withdraws_what_another_branch_asked(store):
    failed = threading.Event()

    def other(run):
        try:
            run.ask("ok?")
        finally:
            failed.wait(PATIENCE_S)

    def bad(pool, run):
        pool.submit(other, run)
        eventually(lambda: list(store.questions()), "it is not asked")
        raise KeyError("bad")

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyError), store.run("t", run_id="r") as run:
            run.step("bad", bad, pool, run)
        failed.set()
    assert [question.status for question in store.questions(status=None)] == ["withdrawn"]


def test_what_a_step_contains_is_counted_in_that_step(store, tuned):
    """A later attempt gets the step from the ledger: what follows it must not be taken for what it contained."""
    tuned(live_sleep_s=0.0)
    calls = []

    def agent(run):
        run.step("outer", lambda: run.step("call", lambda: calls.append("inside") or "inside"))
        run.step("nap", lambda: run.sleep(0.001))
        run.ask("ok?")
        run.sleep(0.001)
        return run.step("call", lambda: calls.append("after") or "after")

    with store.run("t", run_id="r", agent="a") as run:
        agent(run)
    eventually(lambda: store.recover({"a": agent}).suspended and [*store.questions()])
    store.answer("r", "ok?", True)
    (waits,) = store.recover({"a": agent}).suspended  # it sleeps again
    assert waits.waits.until is not None
    eventually(lambda: store.recover({"a": agent}).resumed)
    assert (store.find_run("r").result, calls) == ("after", ["inside", "after"])
    keys = [(step.name, step.key) for step in store.steps("r") if step.name in ("outer", "call")]
    assert keys == [("outer", "#1"), ("call", "#1@3a9d277c6b71"), ("call", "#1")]


def test_sleeps_of_parallel_branches_need_keys(tmp_path):
    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/a.db") as store:
            run = await store.run("t", run_id="r").start()
            with pytest.raises(AmbiguousStep):
                await asyncio.gather(run.sleep(0.2), run.sleep(1000))
            await asyncio.gather(run.sleep(0.01, key="a"), run.sleep(0.01, key="b"))
            await run.complete()

    asyncio.run(main())


def test_an_ask_that_is_cancelled_waits_or_does_not(tmp_path):
    """A caller that gives up during the commit finds the run as that commit left it."""

    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/a.db") as store:
            for at in range(30):
                async with store.run(f"t{at}", run_id=f"r{at}") as run:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(run.ask("ok?"), 0.008 + at * 0.0005)
                    await run.step("continues", int)
                assert run.status == (await store.find_run(run.id)).status
                assert run.status in ("waiting", "completed")

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_a_block_that_is_left_while_a_branch_parks_ends_its_run(tmp_path, error):
    """The suspension is refused, because its question was answered in between: the run must not stay with nobody."""

    async def main():
        url = f"sqlite:///{tmp_path}/a.db"
        async with outlive.open_async(url) as store, outlive.open_async(url) as desk:
            store._engine.backend = interposed = Interposed(store._engine.backend)
            is_parking, is_left = asyncio.Event(), asyncio.Event()

            async def answer(*args):
                is_parking.set()
                await is_left.wait()
                await desk.answer("r", "ok?", True)

            with contextlib.suppress(error):
                async with store.run("t", run_id="r") as run:
                    interposed.before("commit_all", answer)
                    asking = asyncio.create_task(run.ask("ok?"))
                    await is_parking.wait()
                    asyncio.get_running_loop().call_later(0.05, is_left.set)
                    raise error
            with contextlib.suppress(outlive.RunSuspended, RunEnded):
                await asking
            assert run.status == (await desk.find_run("r")).status
            assert run.status == ("failed" if error is ValueError else "released")

    asyncio.run(main())


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_block_that_is_left_while_a_branch_suspends_its_run_ends_as_it_was_left(tmp_path, error):
    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/a.db") as store:
            is_parking, is_left = asyncio.Event(), asyncio.Event()
            with contextlib.nullcontext() if error is None else pytest.raises(error):
                async with store.run("t", run_id="r") as run:
                    flush = run._flush

                    async def slow_flush():
                        is_parking.set()
                        await is_left.wait()
                        await flush()

                    run._flush = slow_flush
                    asking = asyncio.create_task(run.ask("ok?"))
                    await is_parking.wait()
                    asyncio.get_running_loop().call_later(0.05, is_left.set)
                    if error is not None:
                        raise error
            with contextlib.suppress(outlive.RunSuspended):
                await asking
            assert (run.status, (await store.find_run("r")).status) == ("waiting", "waiting")

    asyncio.run(main())


# Deadlines and effects


def test_an_answer_after_the_deadline_is_refused_without_any_worker(store):
    def agent(run):
        run.complete(run.ask("ok?", timeout_s=0.01, default="late"))

    with store.run("t", run_id="r", agent="x") as run:
        agent(run)
    eventually(lambda: not list(store.questions()), "it is still listed as open")
    assert [question.status for question in store.questions(status="expired")] == ["expired"]
    assert [question.status for question in store.questions(status=None)] == ["expired"]
    for _ in range(2):
        with pytest.raises(QuestionClosed) as caught:
            store.answer("r", "ok?", True)
        assert caught.value.status == "expired"
    store.recover({"x": agent})
    assert store.find_run("r").result == "late"


def test_nothing_waits_inside_an_effect(store):
    def effect(run):
        for wait in (lambda: run.ask("ok?"), lambda: run.wait("event"), lambda: run.sleep(1000)):
            with pytest.raises(BadArgument, match="before or after the step"):
                wait()
        run.sleep(0.001)
        return "sent"

    with store.run("t", run_id="r") as run:
        assert run.step("send", effect=True)(effect)(run) == "sent"
    assert (run.status, list(store.questions(status=None))) == ("completed", [])


# Asking again


def test_an_answer_that_the_type_refuses_is_asked_for_again(store):
    pydantic = pytest.importorskip("pydantic")

    class Payment(pydantic.BaseModel, strict=True):
        on: dt.date

    def agent(run):
        run.complete(str(run.ask("when?", schema=Payment).on))

    with store.run("t", run_id="r", agent="x") as run:
        agent(run)
    store.answer("r", "when?", {"on": "next monday"})
    store.recover({"x": agent})
    assert store.find_run("r").status == "waiting"
    (question,) = store.questions()
    assert "ValidationError" in question.refused
    store.answer("r", "when?", {"on": "2026-12-01"})
    store.recover({"x": agent})
    assert (store.find_run("r").result, store.find_run("r").attempt) == ("2026-12-01", 1)


def test_a_question_is_the_same_with_other_notes_and_another_order(store):
    first = {
        "type": "object",
        "title": "A",
        "properties": {"title": {"type": "string"}, "n": {"type": "integer"}},
    }
    second = {"properties": {"n": {"type": "integer", "description": "of all"}, "title": {"type": "string"}}}
    with store.run("t", run_id="r") as run:
        run.ask("ok?", {"a": 1, "b": [{"c": 2, "d": 3}]}, schema=first)
    store.answer("r", "ok?", {"n": 1})
    with store.run("t", run_id="r") as run:
        same = {"b": [{"d": 3, "c": 2}], "a": 1}
        assert run.ask("ok?", same, schema={**second, "type": "object"}) == {"n": 1}
        for other in ({"type": "object"}, {**second, "type": "object", "properties": {"n": {}}}):
            with pytest.raises(QuestionChanged):
                run.ask("ok?", same, schema=other)
        with pytest.raises(QuestionChanged):
            run.ask("ok?", {**same, "a": 2}, schema=first)


@pytest.mark.parametrize("options", [{}, {"backoff_s": 0.001}])
def test_what_nobody_answered_is_asked_again_after_the_failure(store, options):
    def agent(run):
        run.complete(run.ask("ok?", timeout_s=0.01))

    def attempt():
        with store.run("t", run_id="r", agent="x", **options) as run:
            agent(run)

    attempt()
    eventually(lambda: not list(store.questions()), "it does not expire")
    store.recover({"x": agent})
    assert store.find_run("r").error.startswith("Unanswered")
    with store.retry("r") as run:
        run.ask("ok?")
    assert run.status == "waiting"
    store.answer("r", "ok?", True)
    store.recover({"x": lambda run: run.complete(run.ask("ok?"))})
    assert store.find_run("r").result is True


def test_a_question_leaves_room_for_its_answer(store):
    with pytest.raises(BadArgument, match="can be stored"), store.run("t", run_id="r") as run:
        run.ask("ok?", "x" * ((1 << 20) - 200))
    with store.run("u", run_id="s") as run:
        run.ask("ok?", "x" * ((1 << 20) - (1 << 16) - 1000))
    assert store.answer("s", "ok?", "y" * 60_000).status == "answered"


# Schemas


@pytest.mark.parametrize(
    "schema, where",
    [
        ({"type": "str"}, "schema.type"),
        ({"type": 5}, "schema.type"),
        ({"type": []}, "schema.type"),
        ({"pattern": "("}, "schema.pattern"),
        ({"multipleOf": 0}, "schema.multipleOf"),
        ({"minLength": "many"}, "schema.minLength"),
        ({"properties": {"a": {"items": 5}}}, "schema.properties.a.items"),
        ({"properties": []}, "schema.properties"),
        ({"patternProperties": {"(": {}}}, "schema.patternProperties"),
        ({"anyOf": [{}, {"enum": 1}]}, "schema.anyOf.1.enum"),
        ({"anyOf": {}}, "schema.anyOf"),
        ({"required": "name"}, "schema.required"),
        ({"$ref": "https://example.com/schema"}, "schema.$ref"),
        ({"if": {}, "then": {}}, "schema.if"),
    ],
)
def test_a_schema_that_nobody_could_answer_is_refused(store, schema, where):
    run = store.run("t", run_id="r").start()
    with pytest.raises(BadArgument) as caught:
        run.ask("ok?", schema=schema)
    assert str(caught.value).startswith(f"{where} of a question ")
    run.complete()
    assert list(store.questions(status=None)) == []


def test_models_inside_other_types_are_schemas_too(store):
    pydantic = pytest.importorskip("pydantic")

    class Item(pydantic.BaseModel):
        sku: str = pydantic.Field(alias="SKU")

    class Order(pydantic.BaseModel):
        items: list[Item]

    @dataclasses.dataclass
    class Both:
        first: Order
        second: Order | None = None
        count: int = dataclasses.field(default=0, init=False)

    order = Order(items=[Item(SKU="x")])
    answers = [
        (list[Order], [order]),
        (Order | None, order),
        (Order | None, None),
        (dict[str, Order], {"a": order}),
        (Both, Both(order)),
    ]
    for number, (schema, value) in enumerate(answers):
        id = f"r{number}"
        with store.run(id, run_id=id) as run:
            run.ask("order?", schema=schema)
        with pytest.raises(outlive.errors.AnswerRefused):
            store.answer(id, "order?", [{"items": [{"SKU": 1}]}])
        store.answer(id, "order?", value)
        with store.run(id, run_id=id) as run:
            assert run.ask("order?", schema=schema) == value


class Corner(enum.Enum):
    TOP = (0, 0)
    BOTTOM = (1, 1)


@pytest.mark.parametrize(
    "schema, value, result",
    [
        (Corner, Corner.TOP, Corner.TOP),
        (int, 3.0, 3),
        (float, 3, 3.0),
        ({"type": "number", "multipleOf": 0.01}, 19.99, 19.99),
        (
            {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
            {"x1": 1},
            {"x1": 1},
        ),
    ],
)
def test_answers_that_fit(store, schema, value, result):
    with store.run("t", run_id="r") as run:
        run.ask("q", schema=schema)
    store.answer("r", "q", value)
    with store.run("t", run_id="r") as run:
        answer = run.ask("q", schema=schema)
    assert (answer, type(answer)) == (result, type(result))


@pytest.mark.parametrize(
    "schema, value",
    [
        ({"type": "number"}, float("nan")),
        ({"multipleOf": 0.01}, 19.995),
        ({"multipleOf": 2}, float("inf")),
        ({"patternProperties": {"^x": {"type": "integer"}}}, {"x1": "1"}),
        ({"propertyNames": {"maxLength": 1}}, {"xx": 1}),
    ],
)
def test_answers_that_do_not_fit(schema, value):
    with pytest.raises(Mismatch):
        answer_schema.check(schema, value)


def test_an_early_answer_of_any_form_is_asked_for_again(store):
    with store.run("t", run_id="r") as run:
        store.answer("r", "q", {"a": 1})
        run.ask("q", schema={"type": "object", "properties": {"a": {"type": "string"}}})
    assert run.status == "waiting"
    assert "must be string" in next(iter(store.questions())).refused


def test_no_step_begins_while_another_branch_suspends_the_run(store):
    """Its function would be called, and its result be refused: the step would be repeated without need."""
    calls, errors = [], []

    def branch(run):
        try:
            run.step("late", calls.append, 1)
        except outlive.RunSuspended as error:
            errors.append(error)

    with store.run("t", run_id="r") as run:
        end = run._run._end
        suspend, late = end.suspend, threading.Thread(target=branch, args=(run,))

        async def slow_suspend(*args, **kwargs):
            late.start()
            time.sleep(0.1)
            await suspend(*args, **kwargs)

        end.suspend = slow_suspend
        run.ask("ok?")
    late.join(PATIENCE_S)
    assert calls == []
    assert len(errors) == 1
    store.answer("r", "ok?", True)
    with store.run("t", run_id="r") as run:
        branch(run)
        assert run.ask("ok?") is True
    assert calls == [1]


def test_the_age_of_a_question_counts_by_the_clock_of_the_store(store, monkeypatch):
    async def an_hour_ahead(engine):
        return 3_600_000_000

    monkeypatch.setattr("outlive.runs.store_clock._measure", an_hour_ahead)
    with store.run("t", run_id="r") as run:
        run.ask("ok?")
    assert [question.name for question in store.questions(older_than_s=0)] == ["ok?"]
    assert list(store.questions(older_than_s=600)) == []
