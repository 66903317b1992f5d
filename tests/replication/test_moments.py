"""Every moment of a promotion and of a failback: the process is killed there, or the primary is gone again."""

import contextlib
import itertools
import os
import signal

import pytest

import outlive
from outlive.testing.patience import eventually
from rig.crash import LONG, ram_folder
from rig.proxy import FaultProxy
from rig.replicas import hasty, open_pair

pytestmark = pytest.mark.heavy

QUIET = {"timeout_s": 30, "health_check_interval_s": 1000}  # nothing happens by itself
QUICK = {"timeout_s": 30, "health_check_interval_s": 0.05, "auto_failover": False}
STRIDE = 1 if LONG else 9  # of moments at which the primary goes: each takes a second
STEP = 1 if LONG else 5  # of moments at which a process dies


class EventSink:
    """A backend that lets a test act before one of its calls."""

    def __init__(self, inner, calls, moments, act):
        self._inner, self._calls, self._moments, self._act = inner, calls, moments, act

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name in ("name", "local"):
            return found

        async def call(*args, **options):
            if next(self._calls) in self._moments:
                self._act()
            return await found(*args, **options)

        return call


@contextlib.contextmanager
def acting_at(store, number, act):
    """Let something happen before one of the next calls to either store of a pair."""
    stores, calls, moments = store._store._pair.stores, itertools.count(), {number}
    both = stores.both
    stores.both = tuple(EventSink(backend, calls, moments, act) for backend in both)
    yield
    stores.both = both
    moments.clear()  # what happens in the background may still have these


def prepare(store, action):
    """Save and delete in the epochs before a change of places; return what was acknowledged."""
    for n in range(3):
        store.thread("t").save({"n": n, "text": "x" * 700 * n}, id=f"{n}")
        store.thread("gone").save(n)
    if action == "failback":
        store.promote()
        store.thread("t").save({"n": 3}, id="3")
        store.thread("t").delete_checkpoints(["0"])
        store.thread("new").save("new", id="first")
        store.thread("gone").delete()
    return {("t", one.id) for one in store.thread("t").history()} | {
        ("new", one.id) for one in store.thread("new").history()
    }


def check(urls, acknowledged, *, is_deleted):
    """Make sure that both stores have what was acknowledged, agree, and have not brought back what was deleted."""
    found = []
    for url in urls:
        with outlive.open(url) as alone:
            threads = {
                info.id: [one.id for one in alone.thread(info.id).history()] for info in alone.threads()
            }
            assert alone.verify().problems == ()
            assert alone.thread("t").load() == {"n": "after"}
        found.append(threads)
        assert acknowledged <= {(id, one) for id, ids in threads.items() for one in ids}
        assert ("gone" in threads) == (not is_deleted)
        assert ("0" in threads["t"]) == (not is_deleted)
    assert found[0] == found[1]


def settle(store):
    eventually(lambda: is_back(store))
    eventually(lambda: is_saved(store, "after"))
    eventually(lambda: is_done(store.replication_status()))


def is_back(store):
    with contextlib.suppress(outlive.StoreError):
        return store.failback().epoch % 2 == 0
    return False


def is_saved(store, id):
    """Tell whether it could be saved: on a busy machine one call may be too short for a failover."""
    with contextlib.suppress(outlive.StoreError):
        return bool(store.thread("t").save({"n": id}, id=id))
    return False


def is_done(status):
    return status.is_exact and status.is_caught_up and not status.queued


# The process --------------------------------------------------------------------------------------------------------


def switch_and_die(report, urls, mode, action, number):
    with open_pair(urls[0], urls[1], mode=mode, **QUIET) as store:
        report(prepare(store, action))
        with acting_at(store, number, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            getattr(store, action)()
        report("over")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("action", ["promote", "failback"])
def test_a_process_that_is_killed_at_any_moment_of_a_change_of_places_loses_nothing(workers, mode, action):
    for number in itertools.count(mode == "async", STEP):
        with ram_folder() as folder:
            urls = [f"sqlite:///{folder}/{name}.db" for name in "ab"]
            with workers.spawn(switch_and_die, urls, mode, action, number) as worker:
                (acknowledged,) = worker.receive()
                is_over = worker.receive() is not None
            with open_pair(urls[0], urls[1], mode=mode, **QUICK) as store:
                settle(store)
            check(urls, acknowledged, is_deleted=action == "failback")
        if is_over:
            print(f"{number} moments")
            assert number > 5
            return


DEEDS = {
    "save": lambda store: store.thread("t").save({"n": "killed"}, id="killed"),
    "replace": lambda store: store.thread("t").save({"n": "other"}, id="1", replace=True),
    "remove": lambda store: store.thread("t").delete_checkpoints(["1"]),
    "prune": lambda store: store.thread("t").prune(keep_last=1, erase=True),
    "delete": lambda store: store.delete("t"),
    "run": lambda store: store.run("r", run_id="run").start(),
}


def do_and_die(report, urls, mode, deed, number):
    with open_pair(urls[0], urls[1], mode=mode, **QUIET) as store:
        prepare(store, "save")
        with acting_at(store, number, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            DEEDS[deed](store)
        report("over")
        os.kill(os.getpid(), signal.SIGKILL)


MODES = ("sync", "async")
CASES = [(deed, mode) for at, deed in enumerate(DEEDS) for mode in (MODES if LONG else MODES[at % 2 :][:1])]


@pytest.mark.parametrize("deed, mode", CASES)
def test_a_process_that_is_killed_at_any_moment_of_a_deed_leaves_two_stores_that_become_the_same(
    workers, mode, deed
):
    for number in itertools.count(mode == "async", STEP):
        with ram_folder() as folder:
            urls = [f"sqlite:///{folder}/{name}.db" for name in "ab"]
            with workers.spawn(do_and_die, urls, mode, deed, number) as worker:
                is_over = worker.receive() is not None
            with open_pair(urls[0], urls[1], mode=mode, **QUICK) as store:
                eventually(lambda store=store: is_done(store.replication_status()))
            views = [view(url) for url in urls]
            assert views[0] == views[1]
        if is_over:
            assert number > 0
            return


def view(url):
    """Return all that a store has of its threads."""
    with outlive.open(url) as alone:
        assert alone.verify().problems == ()
        threads = {
            info.id: [(one.id, one.seq, one.parent, alone.thread(info.id).load(one.id)) for one in thread]
            for info in alone.threads()
            if (thread := list(alone.thread(info.id).history()))
        }
        return threads, [(run.id, run.status) for run in alone.runs()]


# The primary --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_automatic", [True, False], ids=["by itself", "by hand"])
def test_a_primary_that_is_gone_again_at_any_moment_of_a_failback_is_left_again(
    valkey_server, tmp_path, is_automatic
):
    for number in itertools.count(3 * is_automatic, STRIDE):
        second = f"sqlite:///{tmp_path}/{number}.db"
        urls = f"{valkey_server.url}?prefix=m{number}:", second
        with FaultProxy(valkey_server.host, valkey_server.port) as network:
            options = {**QUIET, "auto_failover": is_automatic, "max_failover_attempts": 99}
            with open_pair(hasty(network.through(urls[0])), second, **options) as store:
                acknowledged = prepare(store, "failback")

                def cut(network=network):
                    network.mode = "refuse"
                    network.drop_connections()

                with acting_at(store, number, cut), contextlib.suppress(outlive.StoreError):
                    store.failback()
                if network.mode == "pass":
                    assert number > 5
                    return
                if not is_automatic:
                    store.promote()
                eventually(lambda store=store: is_saved(store, "meanwhile"))
                assert store.replication_status().active == "secondary"
                network.mode = "pass"
                settle(store)
            check(urls, {*acknowledged, ("t", "meanwhile")}, is_deleted=True)
