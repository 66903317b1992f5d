"""A run inside the block of another one waits: the outer run waits too, and both continue where they were."""

import asyncio
import contextlib
import contextvars
import functools
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import outlive
from outlive.errors import BadArgument, ChildWaits, Corrupt, RunEnded, RunSuspended
from outlive.testing.interposed import Interposed
from outlive.testing.patience import PATIENCE_S, eventually
from rig.crash import SERVERS, ram_folder, rounds
from rig.replicas import open_pair

SEED = int(os.environ.get("OUTLIVE_SEED", "1"))


@pytest.fixture
def store():
    with outlive.open("memory:") as store:
        yield store


@pytest.fixture
def short_sleeps_wait(tuned):
    """Let runs wait for sleeps that a process would sleep itself."""
    tuned(live_sleep_s=0.0)


class Agents:
    """A planner that leaves a question to a run of its own, and notes which functions are called."""

    def __init__(self, **options):
        self.calls = []
        self.options = options

    def plan(self, run):
        run.step("plan", self.calls.append, "plan")
        with run.child("notes", agent="writer", **self.options) as child:
            child.complete(self.write(child))
        return run.step("sum up", lambda: self.calls.append("sum up") or child.result)

    def write(self, run):
        run.step("draft", self.calls.append, "draft")
        return run.ask("publish?", {"by": run.info.agent})


def begin(store, plan, run_id="p", thread="t"):
    with store.run(thread, run_id=run_id, agent="planner") as run:
        run.complete(plan(run))
    return run


@pytest.mark.parametrize(
    "options", [{}, {"run_id": "c"}, {"exclusive": False}], ids=["unnamed", "named", "shared"]
)
def test_a_child_that_waits_makes_its_parent_wait_and_both_continue(store, options):
    agents = Agents(**options)
    run = begin(store, agents.plan)
    child = next(store.runs(agent="writer"))
    assert (run.status, child.status, child.parent) == ("waiting", "waiting", "p")
    info = store.find_run("p")
    assert (info.waits.runs, info.waits.names, info.owner) == ((child.id,), (), run.info.owner)
    assert [(question.run, question.name) for question in store.questions()] == [(child.id, "publish?")]
    store.answer(child.id, "publish?", "yes")
    assert (store.find_run("p").status, store.find_run(child.id).status) == ("released", "released")
    report = store.recover({"planner": agents.plan, "*": lambda run: pytest.fail("claimed alone")})
    assert [(run.id, run.result, run.attempt) for run in report.resumed] == [("p", "yes", 1)]
    assert [skipped.code for skipped in report.skipped] in ([], ["inside_run"], ["finished"])
    assert [(run.id, run.status, run.attempt) for run in store.runs(agent="writer")] == [
        (child.id, "completed", 1)
    ]
    assert agents.calls == ["plan", "draft", "sum up"]
    assert store.verify().ok


def test_a_child_in_the_place_of_its_parent_continues_too(store):
    def plan(run):
        with run.child("t", agent="writer") as child:
            child.complete(child.ask("publish?"))
        return child.result

    begin(store, plan)
    child = next(store.runs(agent="writer"))
    assert child.shares_place
    store.answer(child.id, "publish?", 1)
    assert [run.result for run in store.recover({"planner": plan}).resumed] == [1]
    assert [run.id for run in store.runs(agent="writer")] == [child.id]


@pytest.mark.parametrize("place", ["step", "group"])
def test_a_child_may_wait_inside_a_step_and_inside_a_group(store, place):
    def child(run):
        with run.child("notes", agent="writer") as inner:
            inner.complete(inner.ask("publish?"))
        return inner.result

    def plan(run):
        if place == "step":
            return run.step("child", child, run)
        try:
            return child(run)
        except RunSuspended as suspended:
            raise BaseExceptionGroup("branches", [suspended]) from None

    begin(store, plan)
    assert store.find_run("p").status == "waiting"
    store.answer(next(store.questions()).run, "publish?", "yes")
    assert [run.result for run in store.recover({"planner": plan}).resumed] == ["yes"]


def test_nothing_waits_inside_an_effect_of_an_outer_run(store):
    def child(run):
        with run.child("notes", agent="writer") as inner:
            inner.ask("publish?")

    with pytest.raises(BadArgument, match="inside a step with effect=True"):
        begin(store, lambda run: run.step("pay", effect=True)(child)(run))
    assert list(store.questions()) == []


def test_a_child_that_was_started_without_a_block_makes_its_parent_wait(store):
    def plan(run):
        child = run.child("notes", agent="writer").start()
        child.complete(child.ask("publish?"))
        return child.result

    begin(store, plan)
    child = next(store.runs(agent="writer"))
    assert store.find_run("p").waits.runs == (child.id,)
    store.answer(child.id, "publish?", "yes")
    assert [run.result for run in store.recover({"planner": plan}).resumed] == ["yes"]


def test_runs_three_deep_wait_and_continue(store, short_sleeps_wait):
    calls = []

    def deep(run, level=0):
        run.step(f"level {level}", calls.append, level)
        if level == 2:
            first = run.ask("first?")
            run.sleep(0.2)
            return [first, run.ask("second?")]
        with run.child(f"level {level + 1}", agent="deep") as child:
            child.complete(deep(child, level + 1))
        return child.result

    begin(store, deep)
    assert {run.status for run in store.runs()} == {"waiting"}
    inner = next(store.questions()).run
    store.answer(inner, "second?", 2)  # before it is asked
    store.answer(inner, "first?", 1)
    assert [run.status for run in store.recover({"planner": deep}).suspended] == ["waiting"]
    results = []
    eventually(
        lambda: results.extend(run.result for run in store.recover({"planner": deep}).resumed) or results
    )
    assert results == [[1, 2]]
    assert calls == [0, 1, 2]
    assert {run.status for run in store.runs()} == {"completed"}


def test_two_children_in_branches_wait_and_each_continues_with_its_own_answer(store):
    calls, both = [], threading.Barrier(2)

    def draft(name):
        both.wait(PATIENCE_S)  # a branch that comes after the run was suspended would ask when it is resumed
        calls.append(name)

    def branch(run, name):
        with run.child(f"notes {name}", agent="writer", run_id=name) as child:
            if not child.is_finished:
                child.step("draft", draft, name)
                child.complete(child.ask("publish?"))
        return child.result

    def plan(run):
        with ThreadPoolExecutor(2) as pool:
            parts = [
                pool.submit(contextvars_run(functools.partial(branch, run, name))) for name in ("a", "b")
            ]
        return [part.result() for part in parts]

    begin(store, plan)
    assert sorted(store.find_run("p").waits.runs) == ["a", "b"]
    store.answer("b", "publish?", 2)
    assert [run.waits.runs for run in store.recover({"planner": plan}).suspended] == [("a",)]
    store.answer("a", "publish?", 1)
    assert [run.result for run in store.recover({"planner": plan}).resumed] == [[1, 2]]
    assert sorted(calls) == ["a", "b"]


def contextvars_run(function):
    return functools.partial(contextvars.copy_context().run, function)


def test_children_in_tasks_wait_for_each_other(tmp_path):
    """A child at work in another branch is not cut off: its parent waits when it has ended or waits too."""
    calls = []

    async def branch(run, name):
        async with run.child(f"notes {name}", agent="writer", run_id=name) as child:
            if not child.is_finished:
                if name == "a":
                    await child.complete(await child.ask("publish?"))
                else:
                    await child.step("work", slow, name)
                    await child.complete(name)
        return child.result

    async def slow(name):
        await asyncio.sleep(0.3)
        calls.append(name)

    async def plan(run):
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(branch(run, name)) for name in ("a", "b")]
        return [part.result() for part in parts]

    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/store.db?fsync=normal") as store:
            async with store.run("t", run_id="p", agent="planner") as run:
                await plan(run)
            assert (run.status, (await store.find_run("b")).status) == ("waiting", "completed")
            await store.answer("a", "publish?", 1)
            return await store.recover({"planner": plan})

    assert [run.result for run in asyncio.run(main()).resumed] == [[1, "b"]]
    assert calls == ["b"]


def test_of_equal_children_the_one_that_waited_continues(store):
    """The code of the parent is called again: its first child has its result, the second continues."""
    calls = []

    def plan(run):
        results = []
        for n in range(2):
            with run.child("notes", agent="writer") as child:
                child.step("draft", calls.append, n)
                child.complete(child.ask("publish?") if n else "first")
            results.append(child.result)
        return results

    begin(store, plan)
    waiting = next(store.questions()).run
    store.answer(waiting, "publish?", "yes")
    assert [run.result for run in store.recover({"planner": plan}).resumed] == [["first", "yes"]]
    assert calls == [0, 1]
    assert len(list(store.runs(agent="writer"))) == 2


@pytest.mark.parametrize("how", ["cancelled", "deleted", "completed", "parked"])
def test_a_child_that_ends_while_it_waits_wakes_its_parent(store, how):
    agents = Agents()
    begin(store, agents.plan)
    child = next(store.runs(agent="writer"))
    if how == "cancelled":
        store.cancel(child.id)
    elif how == "parked":
        store.park(child.id)
    elif how == "deleted":
        store.delete("notes")
    else:
        with store.run("notes", run_id=child.id) as run:
            run.complete("by hand")
    assert store.find_run("p").status == "released"
    report = store.recover({"planner": agents.plan})
    if how == "deleted":  # it begins again
        assert [run.waits.runs for run in report.suspended] == [(next(store.questions()).run,)]
    else:
        assert [(run.code, run.message) for run in report.failed] == [
            ("RunEnded", str(RunEnded(child.id, how)))
        ]


def test_a_thread_whose_runs_cannot_be_read_is_deleted_all_the_same(store):
    begin(store, Agents().plan)
    engine = store._store._engine
    engine.backend = Interposed(engine.backend)

    async def damaged(*args):
        raise Corrupt("damaged")

    engine.backend.before("entries", damaged)
    assert store.delete("notes")
    assert not store.thread("notes").exists()


@pytest.mark.parametrize("how", ["failed", "cancelled", "parked"])
def test_a_child_that_did_not_complete_continues_when_its_parent_is_retried(store, how):
    calls = []

    def plan(run):
        with run.child("notes", agent="writer") as child:
            child.step("draft", calls.append, "draft")
            answer = child.ask("publish?")
            if len(calls) == 1:
                calls.append("end")
                if how == "cancelled":
                    child.cancel()
                raise KeyError("first")
            child.complete(answer)
        return child.result

    begin(store, plan)
    child = next(store.questions()).run
    store.answer(child, "publish?", 1)
    assert [run.code for run in store.recover({"planner": plan}).failed] == ["KeyError"]
    if how == "parked":
        store.park(child)
    assert store.find_run(child).status == how
    with store.retry("p") as run:
        run.complete(plan(run))
    assert (run.result, calls) == (1, ["draft", "end"])
    assert [(run.id, run.status) for run in store.runs(agent="writer")] == [(child, "completed")]


@pytest.mark.parametrize("kind", ["sqlite", *SERVERS])
def test_a_child_that_completed_does_nothing_again(kind, tmp_path, url_for):
    """Neither after a wait of its parent nor after a crash; another thread, agent, prompt or order is another child."""
    calls = []

    def write(run, thread, agent, prompt, **options):
        with run.child(thread, agent=agent, prompt=prompt, **options) as child:
            child.step("draft", calls.append, [thread, agent, prompt])
            child.save({"draft": prompt}, usage={"tokens": 1})
            child.complete(child.id)
        return child.result

    def plan(run):
        ids = [run.step("inside", write, run, "notes", "writer", {"of": 1})]
        asked = [
            ("notes", "writer", {"of": 1}),
            ("notes", "writer", {"of": 1}),
            ("notes", "writer", {"of": 2}),
        ]
        asked += [("notes", "editor", {"of": 1}), ("other", "editor", {"of": 1}), ("other", "editor", None)]
        ids += [write(run, *where) for where in asked]
        run.ask("go on?")
        return ids

    with outlive.open(url_for(kind, tmp_path)) as store:
        for _ in range(2):
            store.run("t", run_id="p", agent="planner").start().release()
            begin(store, plan)
        assert (len(calls), store.find_run("p").usage) == (7, {"tokens": 7})
        store.answer("p", "go on?", True)
        ids = store.recover({"planner": plan}).resumed[0].result
        assert len(set(ids)) == len(calls) == 7
        assert store.find_run("p").usage == {"tokens": 7}
        with store.run("t", run_id="q", agent="planner") as run:  # another run has other children
            write(run, "notes", "writer", {"of": 1})
            write(run, "notes", "writer", {"of": 1}, new=True)
        assert len(calls) == 9


def test_a_child_without_a_parent_that_waits_is_claimed_alone(store):
    agents = Agents()
    begin(store, agents.plan)
    child = next(store.runs(agent="writer")).id
    store.cancel("p")
    store.answer(child, "publish?", "yes")
    assert [run.id for run in store.recover({"writer": agents.write}).resumed] == [child]


def test_a_parent_of_another_store_cannot_wait(store):
    with (
        outlive.open("memory:") as other,
        pytest.raises(ChildWaits, match="'c' waits for 'publish\\?'"),
        other.run("t", run_id="p"),
        store.run("notes", run_id="c") as child,
    ):
        child.ask("publish?")
    assert store.find_run("c").status == "waiting"


def test_events_of_inner_runs_are_not_questions(store):
    agents = Agents()
    begin(store, agents.plan)
    info = store.find_run("p")
    with pytest.raises(BadArgument, match="runs inside a run"):
        store.answer("p", info.waits._all_names[0], 1)
    assert [question.run for question in store.questions(events=True, status=None)] != ["p"]
    child = next(store.runs(agent="writer"))
    assert ("run", child.id) in [(step.kind, step.name) for step in store.steps("p")]


# Races and crashes


@pytest.mark.parametrize("kind", ["sqlite", *SERVERS])
def test_no_answer_at_any_moment_strands_the_parent(kind, tmp_path, url_for):
    """An answer comes before, between and after the two commits that park the child and its parent."""
    chance = random.Random(f"{SEED} {kind}")
    url = url_for(kind, tmp_path)
    with outlive.open(url) as store, outlive.open(url) as desk:
        for n in range(rounds(15, long=500)):
            agents = Agents(run_id=f"c{n}")
            answering = threading.Thread(target=answer, args=(desk, f"c{n}", chance.random() * 0.03))
            answering.start()
            begin(store, agents.plan, f"p{n}", f"t{n}")
            answering.join()
            for _ in range(3):
                if store.find_run(f"p{n}").is_finished:
                    break
                report = store.recover({"planner": agents.plan})
                assert report.failed == []
            info = store.find_run(f"p{n}")
            assert (info.status, info.result, info.attempt) == ("completed", "yes", 1), f"stranded: {info}"
            assert agents.calls == ["plan", "draft", "sum up"]


def answer(desk, child, pause_s):
    time.sleep(pause_s)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(outlive.errors.RunMissing):
            desk.answer(child, "publish?", "yes")
            return
        time.sleep(0.001)


def die_at(report, url, number, name):
    """Do something, and end this process before one of its calls of the store."""
    with outlive.open(url) as store:
        engine = store._store._engine
        engine.backend = interposed = Interposed(engine.backend)

        async def die():
            os._exit(1)

        interposed.before_call(number, die)
        agents = Agents()
        if name == "begin":
            begin(store, agents.plan)
        elif name == "answer":
            store.answer(next(store.questions()).run, "publish?", "yes")
        elif name == "recover":
            store.recover({"planner": agents.plan})
        report(len(interposed.calls))


@pytest.mark.parametrize("name", ["begin", "answer", "recover"])
def test_a_crash_at_any_call_of_the_store_strands_no_run(workers, name):
    """The next process continues: the parent completes with the answer, and a child that waited is not begun again."""
    number = 0
    while True:
        with ram_folder() as folder:
            url = f"sqlite:///{folder}/store.db?fsync=normal"
            with outlive.open(url) as store:
                if name != "begin":
                    begin(store, Agents().plan)
                if name == "recover":
                    store.answer(next(store.questions()).run, "publish?", "yes")
            with workers.spawn(die_at, url, number, name) as worker:
                calls = worker.receive()
            with outlive.open(url) as store:
                assert finish(store) == "yes", f"a crash before call {number} of {name} stranded the run"
                # Another attempt of the parent begins a child again that had ended, and has no id of its own.
                assert len(list(store.runs(agent="writer"))) <= 1 + (name == "recover")
        if calls is not None:
            assert number > 3
            return
        number += 1


def finish(store):
    """Recover, answer what is asked, and return the result of the parent."""
    agents = Agents()
    for _ in range(6):
        report = store.recover({"planner": agents.plan})
        assert report.failed == []
        with contextlib.suppress(outlive.errors.AlreadyAnswered):
            for question in list(store.questions()):
                store.answer(question.run, question.name, "yes")
    info = store.find_run("p")
    if info is None:  # the crash came before it was stored
        begin(store, agents.plan)
        return finish(store)
    return info.result


def test_a_worker_continues_the_parent_of_a_child_that_slept(store, short_sleeps_wait):
    def plan(run):
        with run.child("notes", agent="writer") as child:
            child.sleep(0.2)
            child.complete("slept")
        return child.result

    worker = store.worker({"planner": plan, "*": plan}, interval_s=0.1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        store.submit("t", run_id="p", agent="planner")
        eventually(lambda: store.find_run("p").result == "slept")
    finally:
        worker.stop()
        thread.join(PATIENCE_S)


def test_an_answer_after_a_failover_wakes_the_parent_too(tmp_path):
    ring = outlive.KeyRing({"k": bytes(range(32))})
    urls = [f"sqlite:///{tmp_path}/{n}.db?fsync=normal" for n in range(2)]
    agents = Agents()
    with open_pair(*urls, key=ring) as store:
        begin(store, agents.plan)
        store.promote()
        store.answer(next(store.questions()).run, "publish?", "yes")
        assert store.find_run("p").status == "released"
        report = store.recover({"planner": agents.plan}, after_failover=True)
        assert [run.result for run in report.resumed] == ["yes"]
        store.failback()
        assert {run.status for run in store.runs()} == {"completed"}
        assert store.verify().ok
    assert agents.calls == ["plan", "draft", "sum up"]


def _edit(run, calls):
    with run.child("notes", agent="writer") as child:
        draft = child.step("draft", lambda: calls.append("draft") or "a draft")
        child.save({"draft": draft})
        child.emit("text")
        child.complete(draft if child.ask("publish?") else None)
    return child.result, run.ask("print?")


def test_a_completed_run_inside_is_replayed_and_does_nothing_again(store):
    calls = []
    with store.run("article", run_id="r", agent="editor") as run:
        _edit(run, calls)
    for name in ("publish?", "print?"):
        (question,) = store.questions()
        assert question.name == name
        store.answer(question.run, name, True)
        report = store.recover({"editor": lambda run: _edit(run, calls)})
        assert report.failed == []
    assert store.find_run("r").result == ("a draft", True)
    assert calls == ["draft"]


def test_a_completed_run_inside_refuses_what_it_did_not_do(store):
    def work(run, name):
        with run.child("notes", agent="writer") as child:
            child.step(name, lambda: 1)
            child.complete(child.ask("go?"))
        run.ask("more?")

    with store.run("article", run_id="r", agent="editor") as run:
        work(run, "one")
    for name in ("one", "another"):
        (question,) = store.questions()
        store.answer(question.run, question.name, True)
        report = store.recover({"editor": lambda run, name=name: work(run, name)})
    assert [failed.code for failed in report.failed] == ["RunEnded"]
