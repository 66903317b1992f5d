"""Histories of a pair in strict mode under random faults, and a checker of them.

Three client processes save to the same pair of servers, each through networks of its own. Meanwhile either server is killed or frozen, networks are
cut, stalled or lose replies, clients are killed or frozen, and the stores change places by themselves and by hand. Every client logs each operation
before it begins and when it ends. At the end everything is healed, and both stores must hold what the logs say:

- acknowledged: on the line of its thread, exactly once;
- refused: nowhere;
- unknown (also: its client was killed): at most once, and then on the line too;
- a thread that is only written by compare-and-set has no branch, and its line agrees with real time.

OUTLIVE_PAIR_S says for how many seconds; OUTLIVE_SEED repeats a schedule, as far as processes can be repeated.
"""

import contextlib
import json
import os
import random
import signal
import threading
import time
import uuid

import pytest

import outlive
from outlive.testing.patience import eventually
from rig.crash import LONG
from rig.proxy import FaultProxy
from rig.replicas import open_pair
from rig.servers import PostgresServer, ValkeyServer

pytestmark = pytest.mark.heavy

SECONDS = float(os.environ.get("OUTLIVE_PAIR_S") or (120 if LONG else 4))
ROUND_S = 25.0
SEED = int(os.environ.get("OUTLIVE_SEED") or (random.SystemRandom().randrange(1 << 32) if LONG else 1))
CLIENTS = 3
OPTIONS = {
    "timeout_s": 1.5, "health_check_interval_s": 0.2, "failback_delay_s": 0.3, "max_failover_attempts": 1_000_000,
}  # fmt: skip
PAIRS = [("redis", "redis"), ("redis", "postgresql"), ("postgresql", "redis")]


# A client -----------------------------------------------------------------------------------------------------------


class Log:
    """One line for every beginning and end of an operation, in the file before the operation continues."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, *fields):
        os.write(self._fd, json.dumps([time.monotonic(), *fields]).encode() + b"\n")


def client(report, urls, folder, name, seed):
    """Save until told to stop; then say which outcomes are still unknown, by the log."""
    log, stop = Log(f"{folder}/{name}.log"), f"{folder}/stop"
    works = [single_writer, many_writers, plain_saves, changes_places]
    report("ready")
    while not os.path.exists(stop):
        try:
            store = open_pair(urls[0], urls[1], **OPTIONS)
            break
        except outlive.StoreError:
            time.sleep(0.05)
    else:
        return
    tasks = [
        threading.Thread(target=work, args=(store, log, name, random.Random(seed * 10 + at), stop))
        for at, work in enumerate(works)
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    with contextlib.suppress(outlive.OutliveError):
        store.close()
    report("over")


def attempt(thread, log, state, id, rng, stop, **expected):
    """Save under one id, asking again while the outcome is unknown, or not; return the last answer."""
    answer = "not stored"
    while True:
        log("begin", thread.id, id, answer)
        reason = None
        try:
            thread.save(state, id=id, **expected)
            answer = "acknowledged"
        except outlive.HeadMoved as error:
            answer, reason = "refused", str(error)
        except outlive.OutcomeUnknown as error:
            answer, reason = "unknown", str(error)
        except outlive.StoreError as error:
            reason = repr(error)  # this time nothing was stored: what was unknown before stays so
        log("end", thread.id, id, answer, reason)
        if answer in ("acknowledged", "refused") or rng.random() < 0.2 or os.path.exists(stop):
            return answer
        time.sleep(rng.uniform(0, 0.1))


def single_writer(store, log, name, rng, stop):
    """Compare-and-set on a thread that nobody else writes to."""
    thread, last = store.thread(f"own {name}"), None
    while not os.path.exists(stop):
        id = str(uuid.UUID(int=rng.getrandbits(128)))
        answer = attempt(
            thread, log, {"by": name, "text": "x" * rng.randrange(900)}, id, rng, stop, expect=last
        )
        if answer == "acknowledged":
            last = id
        else:
            with contextlib.suppress(outlive.StoreError):
                head = thread.checkpoint()
                last = None if head is None else head.id
        time.sleep(rng.uniform(0, 0.02))


def many_writers(store, log, name, rng, stop):
    """Compare-and-set on a thread that all write to."""
    thread = store.thread("shared")
    while not os.path.exists(stop):
        with contextlib.suppress(outlive.StoreError):
            head = thread.checkpoint()
            number, last = (0, None) if head is None else (head.state["n"] + 1, head.id)
            id = str(uuid.UUID(int=rng.getrandbits(128)))
            attempt(thread, log, {"n": number, "by": name}, id, rng, stop, expect=last)
        time.sleep(rng.uniform(0, 0.03))


def plain_saves(store, log, name, rng, stop):
    """Save without expecting anything."""
    thread = store.thread("log")
    while not os.path.exists(stop):
        attempt(thread, log, {"by": name}, str(uuid.UUID(int=rng.getrandbits(128))), rng, stop)
        time.sleep(rng.uniform(0, 0.05))


def changes_places(store, log, name, rng, stop):
    """Now and then somebody promotes or fails back by hand."""
    while not os.path.exists(stop):
        time.sleep(rng.uniform(0.1, 1.0))
        if rng.random() < 0.3:
            with contextlib.suppress(outlive.StoreError):
                store.promote() if rng.random() < 0.5 else store.failback()


# The monkey ---------------------------------------------------------------------------------------------------------


class Round:
    """One pair of servers, its clients, and what happens to them."""

    def __init__(self, kinds, folder, seed, workers, stack):
        self.folder, self.seed, self.workers, self.stack = folder, seed, workers, stack
        self.rng = random.Random(seed)
        self.servers = [stack.enter_context(new_server(kind)) for kind in kinds]
        self.urls = [url_of(server) for server in self.servers]
        self.networks = [
            [stack.enter_context(FaultProxy(server.host, server.port)) for server in self.servers]
            for _ in range(CLIENTS)
        ]
        self.clients = [None] * CLIENTS
        self.lives = 0
        self.faults = []
        for at in range(CLIENTS):
            self.spawn(at)

    def spawn(self, at):
        urls = [network.through(url) for network, url in zip(self.networks[at], self.urls, strict=True)]
        self.lives += 1
        worker = self.workers.spawn(
            client, urls, str(self.folder), f"{at}-{self.lives}", self.seed + self.lives
        )
        self.clients[at] = self.stack.enter_context(worker)

    def run(self, seconds):
        end = time.monotonic() + seconds
        time.sleep(0.3)
        while time.monotonic() < end:
            fault = self.rng.choice(
                [
                    self.kill,
                    self.kill,
                    self.freeze,
                    self.part,
                    self.part,
                    self.kill_client,
                    self.freeze_client,
                ]
            )
            self.faults.append(fault.__name__)
            with fault():
                time.sleep(self.rng.choice([0.1, 0.5, 1.0, 2.0]) * self.rng.random())
                if self.rng.random() < 0.3:  # two at once
                    with self.part():
                        time.sleep(self.rng.uniform(0.1, 0.8))
            time.sleep(self.rng.uniform(0.05, 0.5))

    @contextlib.contextmanager
    def kill(self):
        server = self.rng.choice(self.servers)
        server.kill()
        yield
        server.start()

    @contextlib.contextmanager
    def freeze(self):
        server = self.rng.choice(self.servers)
        server.pause()
        yield
        server.resume()

    @contextlib.contextmanager
    def part(self):
        """Some clients do not reach one of the servers, or do not hear it."""
        which, mode = (
            self.rng.randrange(2),
            self.rng.choice(["refuse", "blackhole", "lose_replies", "stall", "reset"]),
        )
        chosen = self.rng.sample(self.networks, self.rng.randint(1, CLIENTS))
        for networks in chosen:
            networks[which].mode = mode
            if mode == "refuse":
                networks[which].drop_connections()
        yield
        for networks in chosen:
            networks[which].mode = "pass"

    @contextlib.contextmanager
    def kill_client(self):
        at = self.rng.randrange(CLIENTS)
        self.clients[at].kill()
        yield
        self.spawn(at)

    @contextlib.contextmanager
    def freeze_client(self):
        worker = self.clients[self.rng.randrange(CLIENTS)]
        worker.signal(signal.SIGSTOP)
        yield
        worker.signal(signal.SIGCONT)

    # The check

    def settle(self):
        """Let the clients come to an end, go back to the primary, and let both stores get everything."""
        (self.folder / "stop").touch()
        for worker in self.clients:
            worker.finish()
        with open_pair(self.urls[0], self.urls[1], **{**OPTIONS, "timeout_s": 30}) as store:

            def is_settled():
                with contextlib.suppress(outlive.StoreError):
                    store.failback()
                    status = store.replication_status()
                    return status.active == "primary" and status.is_exact and not status.queued
                return False

            eventually(is_settled)

    def check(self):
        history = read_logs(self.folder)
        threads = {thread for thread, _ in history}
        found = [read_store(url, threads) for url in self.urls]
        assert found[0] == found[1]
        for thread in sorted(threads):
            operations = {id: one for (name, id), one in history.items() if name == thread}
            check_thread(thread, operations, *found[0][thread])
        answers = [one["answer"] for one in history.values()]
        return {answer: answers.count(answer) for answer in sorted(set(answers))}


def new_server(kind):
    if kind == "redis":
        return ValkeyServer(appendonly=True, appendfsync="always", ram=True)
    return PostgresServer(ram=True)


def url_of(server):
    return server.url


def read_logs(folder):
    """Return what became of each operation: by (thread, id). One whose last attempt did not end is unknown."""
    history = {}
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text().splitlines():
            at, what, thread, id, answer, *reason = json.loads(line)
            one = history.setdefault((thread, id), {"begin": at, "log": []})
            one["log"].append([at, what, answer, *reason])
            one["answer"], one["end"] = (answer, at) if what == "end" else ("unknown", float("inf"))
    return history


def read_store(url, threads):
    """Return of each thread the ids of its history with their parents, newest first, and its line."""
    with outlive.open(url, timeout_s=30) as store:
        assert store.verify().problems == ()
        return {
            id: (
                [(one.id, one.parent) for one in store.thread(id).history()],
                [one.id for one in store.thread(id).lineage()],
            )
            for id in threads
        }


def check_thread(thread, operations, history, line):
    ids = [id for id, _ in history]
    assert len(ids) == len(set(ids))
    by_answer = {}
    for id, one in operations.items():
        by_answer.setdefault(one["answer"], set()).add(id)
    lost = by_answer.get("acknowledged", set()) - set(line)
    assert not lost, f"{thread}: acknowledged and not on the line: {lost}, of {history}"
    stored = (by_answer.get("refused", set()) | by_answer.get("not stored", set())) & set(ids)
    told = {id: operations[id]["log"] for id in stored}
    assert not stored, f"{thread}: refused and stored: {told}, of {history}"
    assert set(ids) <= set(operations)
    if thread == "log":
        return
    assert ids == line, f"{thread}: a branch: {set(ids) - set(line)}, of {history}"
    latest = 0.0  # the beginnings of what comes later on the line: none of them ended before
    for id in reversed(line):
        one = operations[id]
        assert one["end"] > latest or one["answer"] != "acknowledged", f"{thread}: {id} out of order"
        latest = max(latest, one["begin"]) if one["answer"] == "acknowledged" else latest


def test_acknowledged_is_on_the_line_once_and_refused_is_nowhere_under_random_faults(workers, tmp_path):
    end, number = time.monotonic() + SECONDS, 0
    while number == 0 or time.monotonic() < end:
        seed, kinds = SEED + number, PAIRS[number % len(PAIRS)]
        folder = tmp_path / f"{number}"
        folder.mkdir()
        print(f"OUTLIVE_SEED={seed}: {'+'.join(kinds)} in {folder}", flush=True)
        with contextlib.ExitStack() as stack:
            world = Round(kinds, folder, seed, workers, stack)
            world.run(min(SECONDS, ROUND_S))
            world.settle()
            answers = world.check()
        print(f"{len(world.faults)} faults, {answers}", flush=True)
        assert answers.get("acknowledged", 0) > 0
        number += 1
