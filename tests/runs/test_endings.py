"""How runs end: nothing that a caller says can leave a run that cannot end, and an orderly end counts as no failure."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass

import pytest

import outlive
from outlive.errors import LeaseLost, RunBusy, RunEnded, StoreUnavailable, ThreadBusy, UnknownTag
from outlive.format.registry import default_registry
from outlive.runs.owner import Owner
from outlive.runs.start import Start
from outlive.testing.patience import PATIENCE_S
from rig.crash import BACKENDS, SERVERS, ram_folder

ALL = [*BACKENDS, *SERVERS]


@pytest.fixture
def url(backend, url_for):
    if backend == "memory":
        yield "memory:"
        return
    with ram_folder() as folder:
        yield url_for(backend, folder)


@pytest.fixture
def store():
    with outlive.open("memory:") as store:
        yield store


def states(store, thread="t"):
    return [store.thread(thread).load(one.id) for one in reversed(list(store.thread(thread).history()))]


# Attempts -----------------------------------------------------------------------------------------------------------


def test_an_orderly_end_is_no_failed_attempt(store):
    store.run("t", run_id="r", agent="a", max_attempts=2).start().release()

    def interrupted_again(run):
        run.release()

    for attempt in range(2, 8):
        report = store.recover({"a": interrupted_again})
        assert [(info.id, info.attempt, info.failures) for info in report.left] == [("r", attempt, 0)]
    report = store.recover({"a": lambda run: "done"})
    assert [(one.status, one.result) for one in report.resumed] == [("completed", "done")]


def terminated(report, url):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with outlive.open(url) as store:

        def work(run):
            run.save({"attempt": run.info.attempt})
            report(run.info.attempt)
            time.sleep(PATIENCE_S)

        if not list(store.runs()):
            with store.run("t", run_id="r", agent="a", max_attempts=2) as run:
                work(run)
        store.recover({"a": work})


def test_sigterm_is_no_failed_attempt_and_a_kill_is_one(workers):
    with ram_folder() as folder:
        url = f"sqlite:///{folder}/store.db"
        for attempt, number in enumerate([signal.SIGTERM] * 3 + [signal.SIGKILL], 1):
            with workers.spawn(terminated, url) as worker:
                assert worker.receive() == (attempt,)
                worker.signal(number)
                with contextlib.suppress(AssertionError):  # it says that it ended by SystemExit
                    worker.receive()
                worker.kill()
        with outlive.open(url) as store:
            with store.run("t", run_id="r") as run:
                assert (run.info.attempt, run.info.failures) == (5, 1)
                run.release()
            (held,) = store.runs()
            assert (held.status, held.failures) == ("released", 1)


def recovers_in_threads(report, url):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with outlive.open(url) as store:

        def work(run):
            run.save({"n": 0})
            report(run.id)
            for n in itertools.count(1):
                run.save({"n": n})  # refused after the run was released, which ends this thread
                time.sleep(0.01)

        store.recover({"a": work}, concurrency=2)


def test_sigterm_during_a_recovery_in_threads_releases_each_run_without_a_failure(workers):
    with ram_folder() as folder:
        url = f"sqlite:///{folder}/store.db"
        with outlive.open(url) as store:
            for name in ("r1", "r2"):
                store.run(name, run_id=name, agent="a", lease_s=3600).start().release()
        with workers.spawn(recovers_in_threads, url) as worker:
            assert {worker.receive(), worker.receive()} == {("r1",), ("r2",)}
            worker.signal(signal.SIGTERM)
            with pytest.raises(AssertionError, match="SystemExit"):
                worker.receive()
        with outlive.open(url) as store:
            assert [(run.id, run.status, run.attempt, run.failures) for run in store.runs()] == [
                ("r1", "released", 2, 0),
                ("r2", "released", 2, 0),
            ]
            report = store.recover({"a": lambda run: run.load() is not None})
            assert [run.result for run in report.resumed] == [True, True]


def test_a_run_that_failed_is_counted_until_it_is_retried(store):
    with pytest.raises(ValueError, match="bad"), store.run("t", run_id="r"):
        raise ValueError("bad")
    assert store.find_run("r").failures == 1
    with store.retry("r") as run:
        assert (run.info.failures, run.info.attempt) == (0, 2)


# A place that is shared -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_a_child_keeps_the_place_when_its_parent_ends(backend, url):
    with outlive.open(url) as store:
        parent = store.run("t", run_id="parent", lease_s=50).start()
        child = store.run("t", run_id="child", parent="parent", lease_s=40).start()
        parent.save({"by": "parent"})
        parent.complete()
        for start in (store.run("t").start, store.lock("t", timeout_s=0.1).acquire):
            with pytest.raises(ThreadBusy) as busy:
                start()
            assert busy.value.holder == "child"
            assert busy.value.lease_expires_at is not None
        child.save({"by": "child"})
        grandchild = store.run("t", run_id="grandchild", parent="child").start()
        child.complete()
        with pytest.raises(ThreadBusy, match="grandchild"):
            store.run("t").start()
        grandchild.complete()
        with store.run("t", run_id="next") as run:
            assert run.load() == {"by": "child"}
            with pytest.raises(ThreadBusy, match="next"):
                store.run("t").start()
        with store.lock("t"):
            pass


def hold_as_parent(report, url):
    with outlive.open(url) as store:
        store.run("t", run_id="parent", agent="a", lease_s=600).start()
        report("started")
        time.sleep(PATIENCE_S)


@pytest.mark.parametrize("backend", ["file", "sqlite", "postgresql", "redis"])
def test_a_child_keeps_the_place_when_its_parents_process_dies(backend, url, workers):
    with workers.spawn(hold_as_parent, url) as worker:
        assert worker.receive() == ("started",)
        with outlive.open(url) as store:
            child = store.run("t", run_id="child", parent="parent").start()
            worker.kill()
            with pytest.raises(ThreadBusy) as busy:
                store.run("t").start()
            assert busy.value.holder == "child"
            report = store.recover({"a": lambda run: run.save({"by": "successor"}).seq})
            assert [one.id for one in report.resumed] == ["parent"]  # in the place that was its own
            child.save({"by": "child"})
            with pytest.raises(ThreadBusy, match="child"):
                store.run("t").start()
            child.complete()
            store.run("t").start().complete()


def test_a_place_whose_parent_and_child_are_dead_is_free(workers):
    with ram_folder() as folder:
        url = f"sqlite:///{folder}/store.db"
        with workers.spawn(die_with_child, url) as worker:
            [None for _ in iter(worker.receive, None)]
            worker.kill()
        with outlive.open(url) as store:
            with store.run("t", run_id="other"):
                with pytest.raises(ThreadBusy, match="other"):
                    store.run("t", run_id="child").start()
            with store.run("t", run_id="child") as child:
                assert child.info.failures == 1
                with pytest.raises(ThreadBusy, match="child"):
                    store.run("t").start()


def die_with_child(report, url):
    with outlive.open(url) as store:
        store.run("t", run_id="parent", lease_s=600).start()
        store.run("t", run_id="child", parent="parent", lease_s=600).start()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_children_that_start_while_their_parent_writes_all_start(backend, url):
    with outlive.open(url) as store, store.run("t", run_id="parent") as parent:
        is_over = threading.Event()

        def write():
            while not is_over.is_set():
                parent.save({"n": 1})

        writing = threading.Thread(target=write)
        writing.start()
        try:
            children = [store.run("t", run_id=f"c{n}", parent="parent").start() for n in range(5)]
        finally:
            is_over.set()
            writing.join()
        parent.save({"n": 2})
        for child in children:
            child.complete()


# What cannot be stored ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_a_result_that_cannot_be_stored_leaves_the_run_as_it_was(backend, url):
    with outlive.open(url) as store:
        for id, end in {"a": lambda run: run.complete({"n": 1}), "b": lambda run: run.fail("no")}.items():
            run = store.run(id, run_id=id).start()
            with pytest.raises(outlive.errors.Unencodable, match="result"):
                run.complete(object())
            assert (run.status, run.result) == ("running", None)
            run.save({"n": 1})
            end(run)
        assert [(one.status, one.result) for one in store.runs()] == [
            ("completed", {"n": 1}),
            ("failed", None),
        ]


def test_a_block_that_is_left_with_what_cannot_be_stored_leaves_nobody_in_the_run(store):
    with pytest.raises(outlive.errors.Unencodable), store.run("t", run_id="r") as run:
        run.complete(object())
    assert store._store._heart._runs == {}
    assert [one.status for one in store.runs()] == ["failed"]
    store.run("t").start().complete()


@pytest.mark.parametrize("throttle_s", [0, 60])
def test_what_a_save_says_wrongly_is_told_at_once_and_changes_nothing(store, throttle_s):
    store.thread("t").save({"other": 1}, id="taken")
    with store.run("t", run_id="r", throttle_s=throttle_s) as run:
        run.save({"n": 0}, iteration=1, phase="plan", usage={"tokens": 1})
        for wrong, error in {
            ("usage", "nested"): outlive.errors.Unencodable,
            ("usage", 5): outlive.errors.BadArgument,
            ("usage", ((1, 2),)): outlive.errors.BadArgument,
            ("iteration", "two"): outlive.errors.BadArgument,
            ("iteration", True): outlive.errors.BadArgument,
            ("iteration", 1 << 80): outlive.errors.BadArgument,
            ("phase", 5): outlive.errors.BadArgument,
            ("phase", "x" * 1001): outlive.errors.BadArgument,
            ("metadata", 5): outlive.errors.BadArgument,
            ("metadata", "nested"): outlive.errors.Unencodable,
            ("step", "x"): outlive.errors.BadArgument,
            ("source", "x"): outlive.errors.BadArgument,
            ("timeout_s", -1): outlive.errors.BadArgument,
            ("durability", "never"): outlive.errors.BadArgument,
            ("id", "taken"): outlive.CheckpointExists,
            ("id", ""): outlive.errors.BadArgument,
            ("writes", (("task", "channel", object()),)): outlive.errors.Unencodable,
            ("nonsense", 1): outlive.errors.BadArgument,
            ("run", "other"): outlive.errors.BadArgument,
        }.items():
            name, value = wrong
            if value == "nested":
                value = {"deep": {"deeper": object()}}
            with pytest.raises(error):
                run.save({"n": 1}, **{name: value})
            assert (run.info.iteration, run.info.phase, run.info.usage) == (1, "plan", {"tokens": 1}), wrong
        with pytest.raises(outlive.errors.Unencodable):
            run.save({"n": object()})
        run.save({"n": 2}, iteration=2, usage={"calls": 1})
    (held,) = store.runs()
    assert (held.status, held.iteration, held.usage) == ("completed", 2, {"tokens": 1, "calls": 1})
    assert store.thread("t").load() == {"n": 2}


@pytest.mark.parametrize("options", [{"fence": None}, {"run": "other"}, {"metdata": {}}])
def test_an_option_that_is_not_of_a_run_is_refused_by_its_name(store, options):
    with store.run("t") as run:
        with pytest.raises(outlive.errors.BadArgument, match=rf"run\.save takes no {next(iter(options))}="):
            run.save({"n": 1}, **options)
        run.save({"n": 2})
    assert states(store)[1:] == [{"n": 2}]


def test_a_save_that_is_held_back_is_what_it_was_when_it_was_saved(store):
    state, metadata, usage, prompt, write = {"n": [1]}, {"m": [1]}, {"u": [1]}, {"p": [1]}, [1]
    with store.run("t", run_id="r", throttle_s=60, prompt=prompt) as run:
        run.save({"n": [0]})
        assert run.save(state, metadata=metadata, usage=usage, writes=[("task", "channel", write)]) is None
        for mutable in (state["n"], metadata["m"], usage["u"], prompt["p"], write):
            mutable.append(object())
    newest = store.thread("t").checkpoint()
    assert (newest.state, newest.metadata) == ({"n": [1]}, {"m": [1]})
    assert [one.value for one in newest.pending_writes] == [[1]]
    (held,) = store.runs()
    assert (held.usage, held.prompt) == ({"u": [1]}, {"p": [1]})


def test_an_id_that_is_taken_after_a_save_was_held_back_loses_no_state(store):
    for end in ("complete", "release", "cancel", "flush"):
        with store.run(end, throttle_s=60) as run:
            run.save({"n": 0})
            assert run.save({"n": 1}, id="mine") is None
            store.thread(end).save({"by": "another"}, id="mine")
            getattr(run, end)()
        assert states(store, end)[-2:] == [{"by": "another"}, {"n": 1}]


def test_a_save_that_needs_an_answer_is_not_held_back(store):
    with store.run("t", throttle_s=60) as run:
        head = run.save({"n": 0})
        saved = run.save({"n": 1}, expect=head.id)
        assert saved.seq == head.seq + 1
        with pytest.raises(outlive.HeadMoved):
            run.save({"n": 2}, expect=head.id)
        assert run.save({"n": 1}, id=saved.id, parent=head.id).seq == saved.seq  # the same save again


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_an_end_that_could_not_be_stored_can_be_repeated(backend, url):
    with outlive.open(url) as store:
        run = store.run("t", run_id="r", throttle_s=60).start()
        run.save({"n": 0})
        run.save({"n": 1})
        probe = store._store._engine.backend
        real, stored = probe.commit_all, []

        async def commit_all(commits):
            if stored:  # the end itself is stored, and its answer gets lost
                await real(commits)
                raise outlive.OutcomeUnknown("t", "", 1.0)
            stored.append(await real(commits))
            return stored[0]

        probe.commit_all = commit_all
        with pytest.raises(outlive.OutcomeUnknown):
            run.complete({"n": 1})
        del probe.commit_all
        assert run.status == "running"
        run.complete({"n": 1})
        assert (run.status, run.result) == ("completed", {"n": 1})
        assert [(one.status, one.result) for one in store.runs()] == [("completed", {"n": 1})]
        assert store.thread("t").load() == {"n": 1}


def test_a_store_that_fails_at_the_end_leaves_nobody_in_the_run(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store:
        probe = store._store._engine.backend

        async def commit_all(commits):
            raise outlive.errors.StoreUnavailable("down")

        with pytest.raises(outlive.errors.StoreUnavailable), store.run("t", run_id="r"):
            probe.commit_all = commit_all
        del probe.commit_all
        assert store._store._heart._runs == {}
        assert [one.status for one in store.runs()] == ["running"]  # until its lease has run out


def test_an_error_whose_text_cannot_be_told_ends_the_run_all_the_same(store):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no")

    with pytest.raises(Silent), store.run("t", run_id="r"):
        raise Silent
    assert [(one.status, one.error) for one in store.runs()] == [("failed", "Silent")]


# When the checkpoints of a run are stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", *ALL])
@pytest.mark.parametrize("end", ["complete", "fail", "cancel", "release", "block"])
def test_a_run_with_exit_durability_stores_its_newest_checkpoint_when_it_ends(backend, url, end):
    with outlive.open(url) as store:
        run = store.run("t", run_id="r", durability="exit").start()
        assert [run.save({"n": n}, iteration=n) for n in range(5)] == [None] * 5
        assert list(store.thread("t").history()) == []
        if end == "block":
            with run:
                pass
        else:
            getattr(run, end)(*(["why"] if end == "fail" else []))
        assert states(store) == [{"n": 4}]
        (held,) = store.runs()
        assert held.iteration == 4


def test_a_save_may_choose_when_it_is_stored(store):
    with store.run("t", durability="exit") as run:
        run.save({"n": 1})
        run.save({"n": 2}, durability="sync")
        run.save({"n": 3})
    assert states(store) == [{"n": 2}, {"n": 3}]
    with store.run("u", throttle_s=60) as run:
        for n in range(3):
            assert run.save({"n": n}, durability="sync").seq is not None
        assert run.save({"n": 3}) is None
        assert run.save({"n": 4}, durability="exit") is None
        run.flush()
        assert store.thread("u").load() == {"n": 4}
        with pytest.raises(outlive.errors.BadArgument, match="expect"):
            run.save({"n": 5}, durability="exit", expect="x")
    with store.run("v") as run:
        assert run.save({"n": 0}, durability="exit") is None
        delayed = [run.save({"n": n}, durability="async") for n in range(1, 20)]
        assert {one.seq for one in delayed} == {None}
    assert [state["n"] for state in states(store, "v")[1:]] == list(range(1, 20))
    assert {one.run for one in store.thread("v").history()} == {run.id}
    with pytest.raises(outlive.errors.BadArgument, match="for runs"):
        store.thread("t").save({"n": 1}, durability="exit")
    with pytest.raises(outlive.errors.BadArgument, match="durability"):
        store.run("t", durability="never")


def test_delayed_saves_of_a_run_that_was_lost_are_refused(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with outlive.open(url) as store, outlive.open(url) as other:
        run = store.run("t", run_id="r", durability="async").start()
        run.save({"n": 1})
        run.flush()
        other.cancel("r")
        run.save({"n": 2})
        with pytest.raises((outlive.errors.DelayedSaveFailed, LeaseLost)):
            run.flush()
        with pytest.raises((LeaseLost, RunEnded)):
            run.complete()
        assert other.thread("t").load() == {"n": 1}


@pytest.mark.parametrize("error, status", [(ValueError, "failed"), (KeyboardInterrupt, "released")])
def test_a_block_is_left_by_its_own_error_although_delayed_saves_were_lost(store, error, status):
    store.thread("t").save({"n": 0}, id="one")

    def work():
        with store.run("t", run_id="r", durability="async") as run:
            run.save({"n": 1}, id="one")
            raise error

    with pytest.raises(error) as raised:
        work()
    assert "1 delayed save(s) of thread 't' failed" in raised.value.__notes__[0]
    assert store.find_run("r").status == status


def test_a_cancelled_task_stays_cancelled_although_delayed_saves_were_lost():
    async def main():
        async with outlive.open_async("memory:") as store:
            await store.thread("t").save({"n": 0}, id="one")
            is_saved = asyncio.Event()

            async def work():
                async with store.run("t", run_id="r", durability="async") as run:
                    await run.save({"n": 1}, id="one")
                    is_saved.set()
                    await asyncio.sleep(PATIENCE_S)

            task = asyncio.create_task(work())
            await is_saved.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await store.find_run("r")).status == "released"

    asyncio.run(main())


def work_until_terminated(report, url):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with outlive.open(url) as store, store.run("t", run_id="r", durability="exit") as run:
        for n in range(5):
            run.save({"n": n})
        report("saved")
        time.sleep(PATIENCE_S)


@pytest.mark.parametrize("number, stored", [(signal.SIGTERM, [{"n": 4}]), (signal.SIGKILL, [])])
def test_exit_durability_survives_sigterm_and_not_a_kill(number, stored, workers):
    with ram_folder() as folder:
        url = f"sqlite:///{folder}/store.db"
        with workers.spawn(work_until_terminated, url) as worker:
            assert worker.receive() == ("saved",)
            worker.signal(number)
            with contextlib.suppress(AssertionError):
                worker.receive()
            worker.kill()
        with outlive.open(url) as store:
            assert states(store) == stored
            assert [one.id for one in store.recoverable()] == ["r"]


def test_the_throttle_goes_by_the_clock_that_it_is_given(store):
    now = [100.0]
    with store.run("t", throttle_s=5, clock=lambda: now[0]) as run:
        assert run.save({"n": 0}) is not None
        assert run.save({"n": 1}) is None
        now[0] += 4.9
        assert run.save({"n": 2}) is None
        now[0] += 0.2
        assert run.save({"n": 3}) is not None
        assert run.save({"n": 4}) is None
    assert [state["n"] for state in states(store)[1:]] == [0, 3, 4]


# Steps of a run that is over --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [False, True])
def test_a_step_of_a_run_that_is_over_is_not_called(effect, tmp_path):
    called = []
    url = f"sqlite:///{tmp_path}/store.db"
    with outlive.open(url) as store, outlive.open(url) as other:
        run = store.run("t", run_id="r")
        with pytest.raises(outlive.errors.BadArgument, match="has not started"):
            run.step("s", effect=effect)(called.append)(1)
        run.start()
        other.cancel("r")
        with pytest.raises(LeaseLost):
            run.save({"n": 1})
        with pytest.raises(LeaseLost):
            run.step("s", effect=effect)(called.append)(1)
        done = store.run("t", run_id="done").start()
        done.step("s", lambda: 1)
        done.complete()
        with pytest.raises(RunEnded):
            done.step("s", effect=effect)(called.append)(1)
        with store.run("t", run_id="forked") as run:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    with pytest.raises(RunBusy, match="forked"):
                        run.step("s", effect=effect)(called.append)(1)
                    status = len(called)
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
    assert called == []


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_an_effect_of_a_run_that_another_has_taken_does_not_happen(backend, url):
    called = []

    async def main():
        async with outlive.open_async(url) as store:
            run = await store.run("t", run_id="r").start()
            await store.cancel("r")  # this handle does not know
            with pytest.raises(LeaseLost):
                await run.step("pay", effect=True)(called.append)(1)

    with outlive.open(url) as store:
        run = store.run("u", run_id="s").start()
        assert run.step("pay", effect=True)(lambda: 5)() == 5
        with pytest.raises(ValueError, match="no"):
            run.step("raises", effect=True)(raising)()
        store.cancel("s")
        for name in ("more", "raises"):
            with pytest.raises(LeaseLost):
                run.step(name, effect=True)(called.append)(1)
    asyncio.run(main())
    assert called == []


def raising():
    raise ValueError("no")


# What an earlier attempt did cannot be read --------------------------------------------------------------------------


@outlive.register(tag="run-endings-plan")
@dataclass
class Plan:
    n: int


@pytest.fixture
def forgets(monkeypatch):
    """Return a function: from its call on, the class is one that this process does not know."""

    def forget():
        known = {tag: one for tag, one in default_registry._by_tag.items() if tag != "run-endings-plan"}
        monkeypatch.setattr(default_registry, "_by_tag", known)

    return forget


@pytest.mark.parametrize("backend", ["memory", "file", "sqlite"])
def test_a_run_whose_steps_cannot_be_read_hides_no_other_and_is_given_back(
    backend, url, forgets, monkeypatch
):
    with outlive.open(url) as store:
        run = store.run("t1", run_id="a", agent="a", max_attempts=2).start()
        run.step("plan", Plan, 1)
        run.release()
        store.run("t2", run_id="b", agent="a").start().release()
        forgets()
        for _ in range(3):
            report = store.recover({"a": lambda run: "done"})
            assert [(one.run.id, "UnknownTag" in one.message) for one in report.skipped] == [("a", True)]
            assert (report.failed, report.waiting) == ([], [])
        with pytest.raises(UnknownTag):
            store.retry("a").start()
        monkeypatch.undo()
        found = store.find_run("a")
        assert (found.status, found.attempt, found.failures) == ("released", 1, 0)
        assert store.find_run("b").result == "done"
        store.run("t1").start().complete()  # its place is free
        report = store.recover({"a": lambda run: run.step("plan", Plan, 1).n})
        assert [(one.id, one.result, one.attempt) for one in report.resumed] == [("a", 1, 2)]


def test_a_failed_run_that_cannot_be_read_stays_failed_and_a_dead_one_is_counted_once(
    store, forgets, monkeypatch
):
    for name in ("failed", "dead"):
        run = store.run(name, run_id=name, agent="a", max_attempts=2).start()
        run.step("plan", Plan, 1)
        if name == "failed":
            run.fail("broken")
        else:
            run._run._leave()  # as if its process had died
    monkeypatch.setattr(Owner, "is_gone", lambda self: True)
    forgets()
    with pytest.raises(UnknownTag):
        store.retry("failed").start()
    found = store.find_run("failed")
    assert (found.status, found.attempt, found.failures, found.error) == ("failed", 1, 1, "broken")
    for _ in range(3):
        assert [one.run.id for one in store.recover({"a": print}).skipped] == ["dead"]
    found = store.find_run("dead")
    assert (found.status, found.attempt, found.failures) == ("released", 1, 1)


def test_a_store_error_while_a_run_is_given_back_hides_nothing(store, forgets, monkeypatch):
    run = store.run("t", run_id="r").start()
    run.step("plan", Plan, 1)
    run.release()
    forgets()

    async def let_go(self, *args):
        raise StoreUnavailable("gone")

    monkeypatch.setattr(Start, "_give_back", let_go)
    with pytest.raises(UnknownTag):
        store.retry("r").start()
