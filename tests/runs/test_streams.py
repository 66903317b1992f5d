"""Streams over two stores, under a key, and from processes that are killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

import outlive
from outlive.testing.patience import PATIENCE_S
from rig.replicas import open_pair

KEY = outlive.KeyRing({"k": random.Random(5).randbytes(32)})


def values(store, run_id, **options):
    return [chunk.value for chunk in store.follow(run_id, **options)]


def test_a_client_rejoins_after_a_failover(tmp_path):
    one, two = (f"sqlite:///{tmp_path}/{n}.db?fsync=normal" for n in range(2))
    with open_pair(one, two) as store:
        run = store.run("t", run_id="r", lease_s=0.2).start()
        run.emit("a")
        run.emit("b")
        run.flush()
        first, second = store.follow("r", wait=False)
        store.promote()
        assert values(store, "r", after=first.cursor, wait=False) == ["b"]
        with contextlib.suppress(outlive.OutliveError):
            run.release()
        with store.run("t", run_id="r") as run:
            run.emit("c")
        assert values(store, "r", after=first.cursor) == ["b", "c"]
        assert values(store, "r", after=second.cursor) == ["c"]


def test_the_chunks_of_an_encrypted_store_are_encrypted(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with outlive.open(url, key=KEY) as store:
        with store.run("t", run_id="r") as run:
            run.emit("a secret that no file has")
        assert values(store, "r") == ["a secret that no file has"]
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"a secret" not in stored


WORK = """
import sys, time
import outlive
store = outlive.open(sys.argv[1])
with store.run("t", run_id="r", lease_s=0.5) as run:
    for n in range(10_000):
        run.emit(n)
        if n == 20:
            run.flush()
            print("ready", flush=True)
        time.sleep(0.005)
"""


def test_a_follower_sees_the_attempts_of_a_killed_process_and_of_its_successor(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db?fsync=normal"
    with subprocess.Popen([sys.executable, "-c", WORK, url], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        with outlive.open(url) as store:
            seen = []
            follower = threading.Thread(
                target=lambda: seen.extend(store.follow("r", idle_s=PATIENCE_S)), name="follower"
            )
            follower.start()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            with store.run("t", run_id="r") as run:
                for n in range(5):
                    run.emit(n)
            follower.join(PATIENCE_S)
            assert not follower.is_alive()
    dead = [chunk.value for chunk in seen if chunk.attempt == 1]
    assert dead == list(range(len(dead)))
    assert len(dead) >= 21
    assert [chunk.value for chunk in seen if chunk.attempt == 2] == list(range(5))
    assert [chunk.number for chunk in seen] == list(range(1, len(seen) + 1))
    assert [chunk.attempt for chunk in seen] == sorted(chunk.attempt for chunk in seen)


def test_the_timer_of_a_quiet_run_stops(monkeypatch):
    monkeypatch.setattr("outlive.runs.stream.FLUSH_S", 0.001)
    with outlive.open("memory:") as store, store.run("t", run_id="r") as run:
        for n in range(2):
            run.emit(n)
            stream = run._run._stream
            for _ in range(int(PATIENCE_S * 100)):
                if stream._ticker is None:
                    break
                threading.Event().wait(0.01)
            assert stream._ticker is None
            assert values(store, "r", wait=False) == list(range(n + 1))


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_chunks_do_not_wait_for_saves_that_do(durability):
    with outlive.open("memory:") as store, store.run("t", run_id="r", durability=durability) as run:
        run.save({"n": 1})
        run.emit("a")
        assert [chunk.value for chunk in _first(store.follow("r", idle_s=PATIENCE_S))] == ["a"]


def _first(chunks):
    yield next(chunks)
