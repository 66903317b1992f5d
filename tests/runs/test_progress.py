"""A run whose lease is renewed only while it makes progress, and what its heartbeats tell."""

from __future__ import annotations

import pytest

import outlive
from outlive.errors import RunEnded
from outlive.runtime.runtime import run_now


@pytest.fixture
def told():
    return []


@pytest.fixture
def store(told):
    with outlive.open("memory:", on_event=told.append) as store:
        yield store


def beat(store):
    """Beat once, and return when the lease of the run ends, in the time of its store."""
    run_now(store._store._heart.beat())
    return store.find_run("r")._entry.until


def be_quiet(run, seconds):
    run._run._progress.moved_at -= seconds


PROGRESS = {
    "a save": lambda run: run.save({"n": 1}),
    "a save that is held back": lambda run: run.save({"n": 1}, durability="exit"),
    "a save in the background": lambda run: run.save({"n": 1}, durability="async"),
    "a step": lambda run: run.step("s", int),
    "a word": lambda run: run.alive(),
}


@pytest.mark.parametrize("progress", PROGRESS)
def test_a_lease_is_renewed_while_there_is_progress(store, told, progress):
    run = store.run("t", run_id="r", lease_s=3600, progress_s=600).start()
    renewed = beat(store)
    be_quiet(run, 599)
    assert beat(store) > renewed
    renewed = beat(store)
    be_quiet(run, 2)
    assert beat(store) == renewed
    assert beat(store) == renewed
    assert [(event.run, event.duration_s > 600) for event in told if event.name == "stall"] == [("r", True)]
    PROGRESS[progress](run)
    assert beat(store) > renewed
    be_quiet(run, 601)
    beat(store)
    assert len([event for event in told if event.name == "stall"]) == 2
    run.complete()
    with pytest.raises(RunEnded):
        run.alive()


PAUSES = {
    "before a retry": lambda run: run.step("s", retries=1, backoff_s=60)(Flaky())(),
    "of run.sleep": lambda run: run.sleep(4),
}


class Flaky:
    calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            raise ConnectionError


@pytest.mark.parametrize("pause", PAUSES)
def test_a_run_that_pauses_on_purpose_does_not_stall(store, told, pause, monkeypatch):
    run = store.run("t", run_id="r", lease_s=3600, progress_s=600).start()
    slept = []

    async def sleep(self, seconds):
        if slept:
            return
        slept.append(seconds)
        renewed = store.find_run("r")._entry.until
        be_quiet(run, 601)
        run_now(run._run._heart.beat())
        assert store.find_run("r")._entry.until > renewed

    monkeypatch.setattr(type(run._run._engine.runtime), "sleep", sleep)
    PAUSES[pause](run)
    assert len(slept) == 1
    assert [event for event in told if event.name == "stall"] == []
    be_quiet(run, 601)
    beat(store)
    assert [event.name for event in told if event.name == "stall"] == ["stall"]
    run.complete()


def test_the_limit_belongs_to_the_run_and_outlives_its_process(store):
    store.run("t", run_id="r", progress_s=600).start().release()
    with store.run("t", run_id="r") as run:
        assert run.info.progress_s == 600


def test_a_step_that_hangs_stalls_its_run_and_is_named(store, told):
    run = store.run("t", run_id="r", progress_s=600).start()

    def hang():
        be_quiet(run, 300)
        beat(store)
        info = store.find_run("r")
        assert (info.step, round(info.quiet_s, -1)) == ("book", 300)
        be_quiet(run, 400)
        beat(store)

    run.step("book", hang)
    assert [(event.name, event.step) for event in told if event.name == "stall"] == [("stall", "book")]


def test_of_two_steps_at_once_the_last_begun_is_named(store):
    run = store.run("t", run_id="r").start()

    def inner():
        beat(store)
        return store.find_run("r").step

    def outer():
        names = [run.step("inner", inner)]
        beat(store)
        return [*names, store.find_run("r").step]

    assert run.step("outer", outer) == ["inner", "outer"]
    beat(store)
    assert store.find_run("r").step is None


def test_a_heartbeat_with_the_progress_keeps_the_rest_of_the_record(store):
    run = store.run("t", run_id="r", prompt={"ask": (1, 2)}, attributes={"caller": 7}).start()
    run.save({"n": 1}, phase="plan", iteration=3, usage={"tokens": 5})
    before = store.find_run("r")
    run.step("s", int)
    beat(store)
    after = store.find_run("r")
    assert after.updated_at > before.updated_at
    for name in ("prompt", "attributes", "phase", "iteration", "usage", "attempts", "owner", "started_at"):
        assert getattr(after, name) == getattr(before, name)


def test_a_heartbeat_takes_nothing_along_while_a_write_is_under_way(store):
    run = store.run("t", run_id="r").start()
    run.step("s", int)
    run._run._revision += 1  # as a write does, before it is stored
    (entry, *_) = run._run._renewal().entries
    assert entry.body is None
    run._run._revision -= 1
    (entry, *_) = run._run._renewal().entries
    assert entry.body is not None
    (entry, *_) = run._run._renewal().entries
    assert entry.body is None  # told once
    run._run._renewed(is_stored=False)
    (entry, *_) = run._run._renewal().entries
    assert entry.body is not None  # and again if that was not stored
