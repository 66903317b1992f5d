"""What an error says is true, names what it is about, and tells what to do."""

from __future__ import annotations

import sys

import numpy
import pytest

import outlive
from rig.replicas import open_pair


def test_a_state_that_needs_numpy_is_not_called_corrupt(monkeypatch):
    with outlive.open("memory:") as store:
        store.thread("t").save({"array": numpy.arange(4)})
        monkeypatch.setitem(sys.modules, "numpy", None)
        with pytest.raises(outlive.errors.ExtraMissing, match="needs numpy: pip install numpy"):
            store.thread("t").load()


def test_a_completed_run_is_not_to_be_retried():
    with outlive.open("memory:") as store:
        with store.run("t", run_id="done") as done:
            pass
        with pytest.raises(outlive.RunEnded, match=r"'done' is completed: start a new run$"):
            done.save(1)
        failed = store.run("t", run_id="failed").start()
        failed.fail("broken")
        with pytest.raises(outlive.RunEnded, match=r"is failed: .*store\.retry\('failed'\)"):
            failed.save(1)


def test_a_run_that_is_known_to_be_lost_names_no_fence_of_nobody():
    with outlive.open("memory:") as store:
        run = store.run("t", run_id="r").start()
        store.cancel("r")
        for _ in range(2):  # told by the store, then known
            with pytest.raises(outlive.LeaseLost, match="it was cancelled") as error:
                run.save(1)
            assert "None" not in str(error.value)


def test_keys_that_do_not_fit_say_what_does(tmp_path):
    plain, sealed = (f"sqlite:///{tmp_path}/{name}.db" for name in ("plain", "sealed"))
    outlive.open(plain).close()
    ring = outlive.KeyRing({"k": outlive.KeyRing.new_key()})
    outlive.open(sealed, key=ring).close()
    with pytest.raises(outlive.errors.NotEncrypted) as error:
        outlive.open(plain, key=ring)
    assert "corrupt" not in str(error.value)
    assert "open it without key=" in str(error.value)
    with pytest.raises(outlive.errors.WrongKey, match="Give the ring the key that the store was made with"):
        outlive.open(sealed, key=outlive.KeyRing({"k": outlive.KeyRing.new_key()}))


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_file_that_is_damaged_is_named(tmp_path, damage):
    with outlive.open(f"file://{tmp_path}/store") as store:
        store.thread("t").save(1)
    file = tmp_path / "store" / "store"
    file.unlink() if damage == "gone" else file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(outlive.Corrupt, match=f"{file} .* {damage}; put it back from a backup"):
        outlive.open(f"file://{tmp_path}/store")


def test_what_is_not_taken_is_not_said_to_be_done(tmp_path):
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("a", "b")]
    with open_pair(urls[0], urls[1], health_check_interval_s=60) as store:
        store.thread("t").save(1)
        pair = store._store._pair.stores

        async def unreachable(*args, **options):
            raise outlive.errors.StoreUnavailable("no network")

        pair.both[1].entries = unreachable
        with pytest.raises(
            outlive.NotReplicated, match="no run or lock is taken while the secondary cannot be asked"
        ):
            store.run("t").start()
        del pair.both[1].entries


def test_a_filter_meets_an_array_among_other_values(tmp_path):
    numpy = pytest.importorskip("numpy")
    with outlive.open(f"sqlite:///{tmp_path}/a.db") as store:
        for id, value in (("array", numpy.array([1, 2])), ("number", 1), ("nested", [numpy.array([1, 2])])):
            store.run(id, run_id=id, attributes={"v": value}).start().complete()
            store.thread(id).save(1, metadata={"v": value})
        assert [run.id for run in store.runs(attributes={"v": 1})] == ["number"]
        assert [run.id for run in store.runs(attributes={"v": numpy.array([1, 2])})] == ["array"]
        assert [one.thread for one in store.thread("array").history(filter={"v": 1})] == []
        with pytest.raises(outlive.errors.BadArgument, match="status must be a status"):
            list(store.runs(status=5))


@pytest.mark.parametrize(
    "text",
    [
        '{"timestamp": "9999-12-31T23:59:59-05:00"}',
        '{"responses": [{"model_id": "m", "latency_ms": 1e400}], "adapter_ids": ["m"]}',
    ],
)
def test_a_fan_out_with_numbers_out_of_range_is_refused(text):
    with pytest.raises(outlive.errors.BadArgument):
        outlive.FanOut.from_json(text)


def test_a_deletion_without_an_answer_is_to_be_repeated_not_saved():
    error = outlive.OutcomeUnknown("t", "", 5.0)
    assert str(error) == "no answer within 5.0 s: thread 't' may or may not be changed; repeat the call"
    assert "save(state, id='c')" in str(outlive.OutcomeUnknown("t", "c", 5.0))


def test_what_depends_on_others_is_a_conflict():
    conflicts = {
        name
        for name, kind in vars(outlive.errors).items()
        if isinstance(kind, type) and issubclass(kind, outlive.Conflict)
    }
    assert conflicts >= {"HeadMoved", "MetadataMoved", "ThreadBusy", "SweepBusy", "RunBusy"}
    assert not conflicts & {"LeaseLost", "RunEnded", "CheckpointExists", "BadArgument", "Unencodable"}
    with outlive.open("memory:") as store:
        store.thread("t").save(1, id="a")
        with pytest.raises(outlive.Conflict, match="is 'a', and the call expects no checkpoint, so"):
            store.thread("t").save(2, expect=outlive.NEW)
        with pytest.raises(outlive.Conflict, match="has no checkpoint, and the call expects 'a'"):
            store.thread("other").save(2, expect="a")


def test_an_error_that_is_not_a_name_of_the_package_says_where_it_is():
    with pytest.raises(
        AttributeError, match=r"no attribute 'Unencodable'; it is outlive\.errors\.Unencodable"
    ):
        _ = outlive.Unencodable
    with pytest.raises(AttributeError, match=r"no attribute 'Undecodable'$"):
        _ = outlive.Undecodable


def test_an_empty_thread_is_not_told_to_list_its_checkpoints():
    with outlive.open("memory:") as store:
        with pytest.raises(
            outlive.errors.CheckpointMissing, match="has no checkpoint yet; save a state first"
        ):
            store.thread("t").fork("other")
