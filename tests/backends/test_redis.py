"""Redis and Valkey: failovers, slots that move, TTLs, memory, damage, and what an id can and cannot do.

What holds for every server (deadlines, lost replies, round trips, restarts under load) is in test_faults and test_chaos.
"""

import asyncio
import contextlib
import itertools
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
import redis.sentinel

import outlive
from outlive.backend import (
    NEXT,
    Commit,
    EntryQuery,
    EntryRecord,
    Fence,
    HistoryQuery,
    Removal,
    ThreadKey,
    ThreadQuery,
)
from outlive.backend import commit as commit_one
from outlive.backends.postgres import urls as postgres_url
from outlive.backends.redis import urls as redis_url
from outlive.backends.redis.clients import parse_client
from outlive.backends.redis.connection import Connection, ConnectionSettings
from outlive.backends.redis.io_modes import Async, Sync
from outlive.backends.redis.rows import server_checksum
from outlive.backends.server.attempts import Attempt, AttemptFailed
from outlive.errors import (
    BadArgument,
    BadURL,
    Corrupt,
    LeaseLost,
    NotReplicated,
    OutcomeUnknown,
    OutliveError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from outlive.runtime.runtime import Deadline, run_now
from outlive.testing import Opener, Trial
from outlive.testing.patience import PATIENCE_S, eventually
from outlive.testing.thread_records import draft
from outlive.testing.trial import AsyncDriver, SyncDriver
from rig.proxy import FaultProxy
from rig.servers import ValkeyServer
from rig.servers.resp import Refused
from rig.servers.valkey import _make_certificate

LONG = bool(os.environ.get("OUTLIVE_LONG"))
IO_MODES = {"sync": SyncDriver, "async": AsyncDriver}


@contextlib.contextmanager
def opened(url, io_mode="sync", **options):
    """Open a store in a mode; its methods are awaited in both. Gives (run, store)."""
    found = redis_url.parse_url(url, options) if isinstance(url, str) else parse_client(url, options)
    with IO_MODES[io_mode]() as driver:
        trial = Trial(Opener(lambda: found.sync(PATIENCE_S), lambda: found.asynchronous(PATIENCE_S)), driver)
        try:
            yield driver.run, driver.run(trial.store())
        finally:
            driver.run(trial.close())


@pytest.fixture(params=IO_MODES)
def io_mode(request):
    return request.param


def in_one_mode(*places):
    """Parametrize `where`, each place in one mode, which are taken in turn; in both in long mode."""
    each = [*zip(places, itertools.cycle(IO_MODES), strict=False)]
    every = [*itertools.product(places, IO_MODES)]
    return pytest.mark.parametrize("where, io_mode", every if LONG else each, indirect=["io_mode"])


@pytest.fixture
def proxy(valkey_server):
    with FaultProxy("127.0.0.1", valkey_server.port) as proxy:
        yield proxy


# Deadlines ------------------------------------------------------------------------------------------------


@in_one_mode("sentinels", "cluster")
def test_looking_for_the_right_server_ends_with_the_deadline_too(where, io_mode, request):
    servers = request.getfixturevalue(where)
    everybody = [*servers.servers, *getattr(servers, "sentinels", ())]
    with opened(servers.url, io_mode) as (run, store):
        run(store.thread("t").save({"n": 1}))
        with contextlib.ExitStack() as stack:
            for server in everybody:
                server.pause()
                stack.callback(server.resume)
            for call in (
                lambda: store.thread("t").save({"n": 2}, id="second", timeout_s=0.6),
                lambda: store.thread("t").load(timeout_s=0.6),
                lambda: store._engine.backend.threads(ThreadQuery(""), timeout_s=0.6),
            ):
                began = time.monotonic()
                with pytest.raises((OutcomeUnknown, StoreUnavailable)):
                    run(call())
                assert time.monotonic() - began < PATIENCE_S / 2, "that of the store is PATIENCE_S"
        run(store.thread("t").save({"n": 2}, id="second"))
        assert run(store.thread("t").load()) == {"n": 2}


def test_a_load_that_is_slow_but_moves_is_not_given_up(io_mode, proxy, valkey_url):
    state = {"blob": random.Random(1).randbytes(600_000)}
    with opened(valkey_url) as (run, store):
        run(store.thread("t").save(state))
    with opened(proxy.through(valkey_url), io_mode, max_retries=0) as (run, store):
        proxy.slow(0, 250_000)
        began = time.monotonic()
        assert run(store.thread("t").load(timeout_s=4)) == state
        assert time.monotonic() - began > 2.05, "no longer than the half that one attempt has without moving"


def test_an_upload_that_is_slow_but_moves_is_not_given_up():
    got = []

    def read(listener):
        peer, _ = listener.accept()
        with peer:
            while sum(got) < 3 << 20:
                got.append(len(peer.recv(1 << 16)))
                time.sleep(0.04)
            peer.sendall(b"+OK\r\n")

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        reader = threading.Thread(target=read, args=(listener,))
        reader.start()
        attempt = Attempt(Deadline(PATIENCE_S), 0)
        attempt._idle_s = 1.5
        attempt.extend(1.5)
        host, port = listener.getsockname()
        connection = run_now(Connection.open(ConnectionSettings(host, port), Sync(), attempt))
        connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        began = time.monotonic()
        assert run_now(connection.call([("SET", "key", bytes(3 << 20))], attempt)) == [b"OK"]
        assert time.monotonic() - began > 1.5
        connection.close()
        reader.join()


def test_an_address_that_does_not_answer_leaves_time_for_the_next(valkey_server, io_mode, monkeypatch):
    port, real = valkey_server.port, socket.getaddrinfo

    def look_up(name, *args, **options):
        if name == "two.example.org":
            return [row for ip in ("127.0.0.2", "127.0.0.1") for row in real(ip, *args, **options)]
        return real(name, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        for _ in range(3):  # nobody accepts: when its queue is full, it is silent
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.2", port))
        with opened(f"redis://two.example.org:{port}", io_mode, dial_timeout_s=6, max_retries=0) as (
            run,
            store,
        ):
            run(store.thread("t").save({"n": 1}))


def test_a_name_that_nobody_can_tell_ends_with_the_deadline(io_mode, monkeypatch):
    told = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: (told.wait(PATIENCE_S), [])[1])
    url = "redis://silent.example.org?timeout_s=0.6"
    opening = {"sync": lambda: outlive.open(url), "async": lambda: asyncio.run(started(url))}[io_mode]
    with pytest.raises(
        StoreUnavailable, match="cannot be found"
    ):  # which says that the name was not told yet
        opening()
    assert not told.is_set()
    told.set()


def test_a_lost_reply_does_not_change_what_a_deletion_or_a_copy_says(io_mode, proxy, valkey_url):
    with opened(proxy.through(valkey_url), io_mode) as (run, store):
        thread = whole_thread(run, store)
        for number in range(4):
            run(thread.save({"n": number}, id=f"{number}"))

        def losing(call):
            lost = proxy.replies_lost
            proxy.lose_reply(skip=1)  # first it is looked at, then it is done
            result = run(call)
            assert proxy.replies_lost == lost + 1
            return result

        assert losing(thread.delete_checkpoints(["0", "1"])).checkpoints == 2
        assert losing(thread.save({"n": "other"}, id="3", replace=True)).seq == 5
        losing(thread.set_metadata({"title": "another"}))
        assert run(thread.metadata())["title"] == "another"
        for skip in range(6):
            proxy.lose_reply(skip=skip)
            run(thread.copy(f"copy {skip}"))
            assert run(store.thread(f"copy {skip}").load()) == {"n": "other"}
        proxy.lose_reply()
        assert run(thread.delete())
        assert run(store.verify()).problems == ()


async def listed(thread):
    return [item async for item in thread.history(limit=10_000)]


def test_a_cancelled_call_never_lets_another_read_its_reply(valkey_url):
    rounds = 600 if LONG else 60

    async def scenario(store):
        threads = [store.thread(f"{number}") for number in range(4)]
        for number, thread in enumerate(threads):
            await thread.save({"who": number})
        chance = random.Random(3)
        for _ in range(rounds):
            tasks = [asyncio.ensure_future(thread.load()) for thread in threads]
            await asyncio.sleep(chance.random() * 0.003)
            chance.choice(tasks).cancel()
            for number, result in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                assert result == {"who": number} or isinstance(result, asyncio.CancelledError)

    with opened(valkey_url, "async", pool_size=2) as (run, store):
        run(scenario(store))


def test_more_threads_than_connections_take_turns(valkey_url):
    with opened(valkey_url, pool_size=2) as (_, store):
        store = store._inner
        results = []

        def work(number):
            for turn in range(20):
                store.thread(f"{number}").save({"turn": turn})
            results.append(store.thread(f"{number}").load())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert results == [{"turn": 19}] * 8


def test_a_call_that_finds_all_connections_in_use_says_so(proxy, valkey_url, io_mode):
    with opened(proxy.through(valkey_url), io_mode, pool_size=1) as (run, store):
        run(store.thread("t").save({"n": 1}))
        proxy.mode, before = "stall", proxy.request_bytes
        with ThreadPoolExecutor(1) if io_mode == "sync" else contextlib.nullcontext() as pool:
            if pool is not None:
                slow = pool.submit(store._inner.thread("t").load, timeout_s=PATIENCE_S)
                eventually(lambda: proxy.request_bytes > before)
                with pytest.raises(StoreBusy, match="pool_size"):
                    run(store.thread("t").load(timeout_s=0.3))
            else:

                async def both():
                    first = asyncio.ensure_future(store.thread("t").load(timeout_s=PATIENCE_S))
                    while proxy.request_bytes == before:
                        await asyncio.sleep(0.001)
                    with pytest.raises(StoreBusy, match="pool_size"):
                        await store.thread("t").load(timeout_s=0.3)
                    return first

                slow = run(both())
            proxy.mode = "pass"
            assert (slow.result() if pool is not None else run(finished(slow))) == {"n": 1}


async def finished(task):
    return await task


def test_a_deletion_and_an_update_get_their_turn_on_a_busy_thread(valkey_url):
    async def scenario(store):
        busy, ended = store.thread("busy"), asyncio.Event()

        async def save():
            while not ended.is_set():
                await busy.save({"text": random.randbytes(200).hex()})

        saving = [asyncio.ensure_future(save()) for _ in range(8)]
        while await busy.checkpoint() is None or (await busy.checkpoint()).seq < 40:
            await asyncio.sleep(0.01)
        first = [item async for item in busy.history()][-1]
        try:
            await busy.set_metadata({"title": "x"})
            await busy.delete_checkpoints([first.id])
            await busy.prune(keep_last=20)
        finally:
            ended.set()
            await asyncio.gather(*saving)
        assert await busy.load(first.id) is None
        assert (await busy.metadata())["title"] == "x"
        assert (await store.verify()).problems == ()

    with opened(valkey_url, "async") as (run, store):
        run(scenario(store))


# Servers that come and go -----------------------------------------------------------------------------------


class Saver(threading.Thread):
    """Saves in a loop, in a thread of its own, and notes what was acknowledged."""

    def __init__(self, url, id="t", **options):
        super().__init__()
        self.url, self.id, self.options = url, id, options
        self.acknowledged, self.errors = [], []
        self._ended = threading.Event()

    def run(self):
        with opened(self.url, **self.options) as (_, store):
            thread = store._inner.thread(self.id)
            number = 0
            while not self._ended.is_set():
                try:
                    thread.save({"n": number, "text": "x" * 500}, id=f"{number}", timeout_s=PATIENCE_S)
                    self.acknowledged.append(f"{number}")
                except OutliveError as error:
                    self.errors.append(error)
                number += 1

    def __enter__(self):
        self.start()
        self.wait_for_more()
        return self

    def __exit__(self, *error):
        try:
            self.wait_for_more()
        finally:
            self._ended.set()
            self.join()

    def wait_for_more(self):
        enough = len(self.acknowledged) + 20
        eventually(lambda: len(self.acknowledged) >= enough or not self.is_alive(), "saves do not continue")

    def lost(self, url):
        """Return what was acknowledged and is not there."""
        with opened(url) as (run, store):
            thread = store.thread(self.id)
            there = {item.id for item in run(listed(thread))}
            assert run(thread.verify()).problems == ()
            return [id for id in self.acknowledged if id not in there]


def test_a_server_that_dies_and_comes_back_loses_nothing_and_fails_nobody():
    rounds = 10 if LONG else 2
    with ValkeyServer(appendonly=True, appendfsync="always", ram=True) as server:
        with Saver(server.url) as saver:
            for number in range(rounds):
                (server.kill if number % 2 == 0 else server.stop)()
                server.start()
                saver.wait_for_more()
        assert (saver.errors, saver.lost(server.url)) == ([], [])


def test_a_save_after_the_server_lost_commits_refers_to_nothing_that_is_gone(io_mode):
    """A primary that comes back with an old snapshot, or a replica that lagged: the process continues with its base."""
    messages = [random.Random(number).randbytes(500).hex() for number in range(60)]
    with ValkeyServer(ram=True) as server, opened(server.url, io_mode) as (run, store):
        thread, other = store.thread("t"), store.thread("t", namespace="sub")
        for number in range(10, 20):
            run(thread.save({"messages": messages[:number]}))
        server.call("SAVE")
        for number in range(20, 40):
            run(thread.save({"messages": messages[:number]}))
        server.kill()
        server.start()
        for number in range(40, 50):
            run(thread.save({"messages": messages[:number]}))
            run(other.save({"n": number}))
        with opened(server.url) as (again, reader):
            assert again(reader.thread("t").load()) == {"messages": messages[:49]}
            assert again(reader.verify()).problems == ()
            assert len(again(listed(reader.thread("t")))) == 20


def test_a_server_that_comes_back_empty_gets_its_identity_from_who_still_has_it(io_mode):
    with ValkeyServer(ram=True) as server, opened(server.url, io_mode) as (run, store):
        run(store.thread("t").save({"n": 1}))
        server.kill()
        server.start()
        run(store.thread("t").save({"text": "x" * 5000}))
        with opened(server.url) as (again, other):
            assert again(other.thread("t").load()) == {"text": "x" * 5000}
            assert again(thread_ids(other)) == ["t"]
            assert again(other.verify()).problems == ()


@pytest.mark.parametrize("where", ["valkey_server", "cluster"])
@pytest.mark.parametrize("id", ["t", "new"])
def test_a_store_that_was_emptied_under_a_process_is_still_its_own(where, id, io_mode, request):
    servers = request.getfixturevalue(where)
    with opened(servers.url, io_mode) as (run, store):
        run(store.thread("t").save({"n": 1, "text": "x" * 5000}))
        for server in [servers] if where == "valkey_server" else servers.masters():
            server.call("FLUSHALL")
        run(store.thread(id).save({"n": 2, "text": "x" * 5000}))
        with opened(servers.url) as (again, other):
            assert again(other.thread(id).load()) == {"n": 2, "text": "x" * 5000}
            assert again(thread_ids(other)) == [id]
            again(other.thread("u").save({"text": "y" * 5000}))
            assert run(store.thread("u").load()) == {"text": "y" * 5000}
            assert again(other.verify()).problems == ()


def test_a_store_that_was_emptied_and_begun_anew_takes_no_new_thread_of_who_knew_the_old_one(valkey_server):
    with opened(valkey_server.url) as (run, store):
        run(store.thread("t").save({"n": 1}))
        valkey_server.call("FLUSHALL")
        other = redis_url.parse_url(valkey_server.url, {}).sync(30)
        run_now(other.identity(b"n" * 32))
        run_now(commit_one(other, Commit(ThreadKey.of("", "theirs"), (draft("a"),))))
        for call in (
            lambda: store.thread("t").save({"n": 2}),
            lambda: store.thread("new").save({"n": 2}),
            lambda: store.thread("new").set_metadata({"title": "x"}),
        ):
            with pytest.raises(StoreUnavailable, match="new one there"):
                run(call())
        assert [row.id for row in run_now(other.threads(ThreadQuery("")))] == ["theirs"]
        run_now(other.close())


def test_a_store_that_somebody_began_anew_is_not_written_by_who_knew_the_old_one(io_mode):
    with ValkeyServer(ram=True) as server, opened(server.url, io_mode) as (run, store):
        run(store.thread("t").save({"n": 1}))
        server.kill()
        server.start()
        backend = redis_url.parse_url(server.url, {}).sync(30)
        assert run_now(backend.identity(b"n" * 32)) == b"n" * 32
        with pytest.raises((StoreUnavailable, OutcomeUnknown), match="new one there"):
            run(store.thread("t").save({"n": 2}))
        run_now(backend.close())


def test_an_identity_that_a_cluster_lost_is_restored_with_all_buckets(cluster):
    with opened(cluster.url) as (run, store), opened(cluster.url) as (again, other):
        again(other.thread("first").save({"n": 1}))
        assert run(thread_ids(store)) == again(thread_ids(other)) == ["first"]
        run(store.thread("second").save({"n": 1}))  # in a bucket that the other has not met
        for server in cluster.masters():
            with contextlib.suppress(Refused):  # of those that do not have it
                server.call("DEL", "outlive:identity")
        again(other.thread("third").save({"n": 1}))
        for ask, one in ((again, other), (run, store)):
            assert ask(thread_ids(one)) == ["first", "second", "third"]
            assert ask(one.verify()).problems == ()


def test_scripts_that_a_server_forgets_are_sent_again(valkey_server, io_mode):
    with opened(valkey_server.url, io_mode) as (run, store):
        for number in range(20):
            valkey_server.call("SCRIPT", "FLUSH")
            run(store.thread("t").save({"n": number}))
            valkey_server.call("SCRIPT", "FLUSH")
            assert run(store.thread("t").load()) == {"n": number}
        assert len(run(listed(store.thread("t")))) == 20


def test_a_sentinel_failover_loses_nothing_that_a_replica_confirmed(sentinels):
    with Saver(sentinels.url, wait_replicas=1) as saver:
        for _ in range(3 if LONG else 1):
            sentinels.kill_master()
            sentinels.start()
    assert [error for error in saver.errors if not isinstance(error, OutcomeUnknown)] == []
    assert saver.lost(sentinels.url) == []
    assert len(saver.acknowledged) > 40


def test_a_cluster_failover_loses_nothing_that_a_replica_confirmed(cluster):
    slot = cluster.slot_of(key_of("t"))
    with Saver(cluster.url, wait_replicas=1) as saver:
        for _ in range(3 if LONG else 1):
            cluster.kill_master_of(slot)
            cluster.start()
    assert [error for error in saver.errors if not isinstance(error, OutcomeUnknown)] == []
    assert saver.lost(cluster.url) == []


def test_a_node_that_was_left_alone_is_not_believed(cluster, io_mode):
    with ValkeyServer(ram=True, settings={"cluster-enabled": "yes"}) as lonely:
        good = cluster.masters()[0]
        for addresses in (f"{lonely.address},{good.address}", f"{good.address},{lonely.address}"):
            with opened(f"redis+cluster://{addresses}", io_mode) as (run, store):
                run(store.thread("t").save({"n": 1}))


@pytest.mark.parametrize("where", ["sentinels", "cluster"])
def test_threads_that_look_for_the_server_at_once_do_not_disturb_each_other(where, request):
    """As after a failover: all find that the server which they knew is none any more."""
    failed, ends = [], time.monotonic() + (10 if LONG else 1)
    with opened(request.getfixturevalue(where).url) as (run, store):
        run(store.thread("t").save({"n": 1}))
        nodes = store._engine.backend.session.client.nodes

        def look():
            try:
                while time.monotonic() < ends and not failed:
                    pool = run_now(nodes.pool(0, Deadline(PATIENCE_S)))
                    nodes.distrust(pool)
                    assert run_now(pool.call([("PING",)], Deadline(PATIENCE_S))) == [b"PONG"]
            except BaseException as error:
                failed.append(error)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=look) for _ in range(8)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
        finally:
            sys.setswitchinterval(interval)
        assert failed == []


def test_a_slot_that_moves_in_the_middle_of_saves_loses_nothing(cluster):
    slot = cluster.slot_of(key_of("t"))
    with Saver(cluster.url) as saver:
        for _ in range(10 if LONG else 2):
            target = next(server for server in cluster.masters() if server is not cluster.master_of(slot))
            with cluster.moving(slot, target) as move:
                time.sleep(0.05)
                move(3)  # some keys of the thread are here, some there
                time.sleep(0.1)
    assert (saver.errors, saver.lost(cluster.url)) == ([], [])


def key_of(id, prefix="outlive:"):
    from outlive.backends.redis.keys import Keys

    return Keys.of(prefix, ThreadKey.of("", id).digest, is_single=True).all[0]


# How long a thread lives -------------------------------------------------------------------------------------


def whole_thread(run, store, id="t"):
    """Give a thread something under each of its keys."""
    thread = store.thread(id)
    run(thread.save({"n": 1, "text": "x" * 3000}))
    run(thread.write("task", [("c", "y" * 3000)]))
    run(thread.set_metadata({"title": "T"}))
    key = ThreadKey.of("", id)
    entry = EntryRecord("run", "r", b"body", "running", fence=1, lease_s=60)
    run(commit_one(store._engine.backend, Commit(key, entries=(entry,))))
    return thread


def test_a_thread_has_six_keys_at_most_and_all_in_one_slot(valkey_server):
    with opened(valkey_server.url) as (run, store):
        whole_thread(run, store)
        keys = valkey_server.call("KEYS", "*")
        digest = ThreadKey.of("", "t").digest.hex().encode()
        own = [key for key in keys if digest in key]
        assert len(own) == 6
        assert len(keys) == 6 + 5  # three indexes and the roster of the bucket, and the identity
        assert len({key[key.index(b"{") : key.index(b"}")] for key in keys if b"{" in key}) == 1


def test_all_keys_of_a_thread_end_at_the_same_millisecond(valkey_server, io_mode):
    with opened(valkey_server.url, io_mode, ttl_s=100) as (run, store):
        whole_thread(run, store)
        digest = ThreadKey.of("", "t").digest.hex().encode()
        own = [key for key in valkey_server.call("KEYS", "*") if digest in key]
        with valkey_server.connect() as connection:
            connection.call("MULTI")  # within which no time passes
            for key in own:
                connection.call("PTTL", key)
            left = connection.call("EXEC")
        assert len(own) == 6
        assert len(set(left)) == 1
        assert 0 < left[0] <= 100_000


def test_a_handle_without_a_ttl_keeps_the_one_that_a_thread_has(valkey_server):
    with opened(valkey_server.url, ttl_s=100) as (run, store):
        run(store.thread("t").save({"n": 1, "text": "x" * 3000}))
    with opened(valkey_server.url) as (run, store):
        whole_thread(run, store)
    digest = ThreadKey.of("", "t").digest.hex().encode()
    own = [key for key in valkey_server.call("KEYS", "*") if digest in key]
    left = [valkey_server.call("PTTL", key) for key in own]
    assert len(own) == 6
    assert all(0 < one <= 100_000 for one in left)


def test_a_thread_ends_with_its_ttl_as_a_whole(valkey_server, io_mode):
    with opened(valkey_server.url, io_mode, ttl_s=3) as (run, store):
        thread = whole_thread(run, store)
        first = run(thread.checkpoint())
        generation = run(store._engine.backend.inventory(ThreadKey.of("", "t"))).generation
        eventually(lambda: run(thread.load()) is None)
        assert run(listed(thread)) == []
        assert run(thread_ids(store)) == []
        assert run(store._engine.backend.entries(EntryQuery("", "run"))) == []
        left = [key for key in valkey_server.call("KEYS", "*") if not key.endswith(b"identity")]
        assert left == [b"outlive:{310}:roster"]  # the lines of the indexes were cleared by the listings
        assert sorted(valkey_server.call("HGETALL", left[0])) == [b"0", b"0", b"entries", b"threads"]
        saved = run(thread.save({"n": 2}))
        assert (saved.seq, saved.parent) == (1, None)
        assert run(store._engine.backend.inventory(ThreadKey.of("", "t"))).generation != generation
        assert run(thread.load(first.id)) is None
        assert run(store.verify()).problems == ()


@pytest.mark.parametrize("io_mode, puts_metadata", [("sync", False), ("async", True)])
def test_a_thread_that_ended_and_began_again_shows_nothing_of_its_former_life(
    puts_metadata, valkey_server, io_mode
):
    key, metadata = ThreadKey.of("", "t"), b"metadata" if puts_metadata else None
    with opened(valkey_server.url, io_mode, ttl_s=3) as (run, store):
        backend = store._engine.backend

        def put(**fields):
            entry = EntryRecord("run", "r", fence=NEXT, **fields)
            return run(commit_one(backend, Commit(key, entries=(entry,), metadata=metadata))).entries[0].fence

        def bodies(**asked):
            return [entry.body for _, entry in run(backend.entries(EntryQuery("", "run", **asked)))]

        old = put(body=b"old", status="running", lease_s=0.1)
        for other in ("other", "third"):
            run(
                commit_one(
                    backend,
                    Commit(key, entries=(EntryRecord("run", other, b"old", "running"),), metadata=metadata),
                )
            )
        own = backend.session.keys(key).all[0]
        eventually(lambda: not valkey_server.call("EXISTS", own))
        new = put(body=b"new", status="completed", lease_s=600)
        assert new > old + 3
        with pytest.raises(LeaseLost):
            run(commit_one(backend, Commit(key, fence=Fence("run", "r", 0, old))))
        assert bodies(statuses=["running"]) == bodies(lapsed=True) == []
        assert bodies() == bodies(lapsed=False) == bodies(statuses=["completed", ""]) == [b"new"]
        lines = valkey_server.call("ZRANGE", backend.session.keys(key).all[7], 0, -1)
        assert len(lines) == 2  # by key, and by status
        assert run(backend.audit(key)) == []


def test_a_save_that_builds_on_a_thread_that_ended_starts_anew(valkey_url):
    with opened(valkey_url, ttl_s=2) as (run, store):
        messages = ["x" * 1000 for _ in range(20)]
        run(store.thread("t").save({"messages": messages}))
        with opened(valkey_url) as (again, other):
            eventually(lambda: again(other.thread("t").load()) is None)
        run(store.thread("t").save({"messages": [*messages, "y"]}))
        with opened(valkey_url) as (again, other):
            assert again(other.thread("t").load()) == {"messages": [*messages, "y"]}


@pytest.mark.parametrize("refreshes", [True, False])
def test_reading_keeps_a_thread_alive_when_that_is_asked_for(refreshes, valkey_server):
    with opened(valkey_server.url, ttl_s=1_000, refresh_ttl_on_read=refreshes) as (run, store):
        run(store.thread("t").save({"n": 1, "text": "x" * 3000}))
        digest = ThreadKey.of("", "t").digest.hex().encode()
        own = [key for key in valkey_server.call("KEYS", "*") if digest in key]
        for key in own:  # as if half of the time were over
            valkey_server.call("PEXPIRE", key, 500_000)
        assert run(store.thread("t").load())["n"] == 1
        assert {valkey_server.call("PTTL", key) > 500_000 for key in own} == {refreshes}


async def nap(seconds):
    time.sleep(seconds)


async def thread_ids(store):
    return [info.id async for info in store.threads()]


# Memory -------------------------------------------------------------------------------------------------------


def test_a_deleted_thread_leaves_one_small_key(valkey_server):
    with opened(valkey_server.url) as (run, store):
        thread = whole_thread(run, store)
        run(thread.save({"blob": random.Random(1).randbytes(5_000_000)}))
        assert run(thread.delete())
        left = [
            key
            for key in valkey_server.call("KEYS", "*")
            if ThreadKey.of("", "t").digest.hex().encode() in key
        ]
        assert len(left) == 1
        assert valkey_server.call("MEMORY", "USAGE", left[0]) < 500
        assert run(thread.save({"n": 1})).seq == 3


def test_a_pruned_thread_gives_its_memory_back(valkey_server):
    with opened(valkey_server.url) as (run, store):
        thread = store.thread("t")
        for number in range(10):
            run(thread.save({"blob": random.Random(number).randbytes(300_000)}))
        before = int(valkey_server.info("memory")["used_memory"])
        run(thread.prune(keep_last=1))
        assert before - int(valkey_server.info("memory")["used_memory"]) > 2_000_000
        assert run(store.verify()).problems == ()


def test_a_full_server_refuses_saves_and_still_deletes(io_mode):
    with ValkeyServer(ram=True, settings={"maxmemory": "20mb"}) as server:
        with opened(server.url, io_mode) as (run, store):
            saved = []

            def fill():
                for number in range(100):
                    run(store.thread(f"{number}").save({"blob": random.Random(number).randbytes(1_000_000)}))
                    saved.append(f"{number}")

            with pytest.raises(StoreFull, match="maxmemory"):
                fill()
            assert len(saved) > 5
            with pytest.raises(StoreFull):
                run(store.thread("0").save({"blob": random.Random(999).randbytes(3_000_000)}))
            assert run(store.verify()).problems == ()
            for id in saved[:4]:
                assert run(store.delete(id))
            eventually(lambda: has_room(server))  # the memory is freed in the background
            run(store.thread("late").save({"n": 1}))
            assert run(store.verify()).problems == ()
            assert sorted(run(thread_ids(store))) == sorted([*saved[4:], "late"])


def has_room(server):
    facts = server.info("memory")
    return int(facts["used_memory"]) < int(facts["maxmemory"]) - 1_000_000


def test_a_process_that_has_not_saved_yet_deletes_on_a_full_server(valkey_server, io_mode):
    with opened(valkey_server.url) as (run, store):
        run(store.thread("t").save({"n": 1}))
        with opened(valkey_server.url, io_mode) as (other, newcomer):
            valkey_server.call("CONFIG", "SET", "maxmemory", "1")
            try:
                with pytest.raises(StoreFull):
                    other(newcomer.thread("u").save({"n": 1}))
                assert other(newcomer.thread("t").delete())
            finally:
                valkey_server.call("CONFIG", "SET", "maxmemory", "0")
            assert not run(store.thread("t").exists())
            other(newcomer.thread("u").save({"n": 1}))
        assert run(thread_ids(store)) == ["u"]
        assert run(store.verify()).problems == ()


def test_a_thread_that_is_deleted_before_it_begins_takes_its_place_in_the_store(
    valkey_server, cluster, io_mode
):
    for url in (valkey_server.url, cluster.url):
        with opened(url, io_mode) as (run, store):
            backend = store._engine.backend
            for number in range(5):
                key = ThreadKey.of("", f"{number}")
                run(commit_one(backend, Commit(key, removal=Removal(everything=True))))
                run(commit_one(backend, Commit(key, removal=Removal(checkpoints=(("", "a"),)))))
            assert run(thread_ids(store)) == []
            with opened(url, io_mode) as (again, other):
                for number in range(5):
                    again(other.thread(f"{number}").save({"n": number}))
            assert run(thread_ids(store)) == [f"{number}" for number in range(5)]
            assert run(store.verify()).problems == ()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru", "noeviction"])
def test_a_server_that_throws_records_away_is_refused(policy):
    with ValkeyServer(ram=True, maxmemory_policy=policy) as server:
        if policy.startswith("allkeys"):
            with pytest.raises(BadArgument, match="CONFIG SET maxmemory-policy noeviction"):
                with opened(server.url):
                    pass
            with (
                pytest.warns(UserWarning, match=policy),
                opened(server.url, allow_eviction=True) as (run, store),
            ):
                run(store.thread("t").save({}))
        elif policy.startswith("volatile"):
            with opened(server.url):
                pass
            with pytest.warns(UserWarning, match=policy), opened(server.url, ttl_s=5):
                pass
        else:
            with opened(server.url, ttl_s=5):
                pass


def test_who_may_not_ask_for_the_policy_is_not_told(valkey_server):
    valkey_server.call("ACL", "SETUSER", "modest", "on", ">secret", "~*", "+@all", "-config")
    with opened(valkey_server.url.replace("redis://", "redis://modest:secret@")) as (run, store):
        run(store.thread("t").save({"n": 1}))
        assert run(store.thread("t").load()) == {"n": 1}


# Replicas -------------------------------------------------------------------------------------------------------


def test_a_save_that_no_replica_confirms_says_that_the_primary_has_it(valkey_url, io_mode):
    with opened(valkey_url, io_mode, wait_replicas=1) as (run, store):
        with pytest.raises(NotReplicated, match="the primary has stored checkpoint 'a'") as failed:
            run(store.thread("t").save({"n": 1}, id="a", timeout_s=2.5))
        assert (failed.value.checkpoint, failed.value.confirmed, failed.value.wanted) == ("a", 0, 1)
        with pytest.raises(NotReplicated):  # its retry is answered by what is there, and waits all the same
            run(store.thread("t").save({"n": 1}, id="a", timeout_s=2.5))
    with opened(valkey_url, io_mode) as (run, store):
        assert run(store.thread("t").load()) == {"n": 1}


@pytest.mark.parametrize("what", ["a plain save", "two checkpoints", "what is there"])
def test_a_lost_reply_is_no_reason_not_to_wait_for_replicas(what, valkey_server, proxy):
    drafts = (draft("a"),) if what == "a plain save" else (draft("a"), draft("b"))
    key = ThreadKey.of("", "t")
    with opened(proxy.through(valkey_server.url), wait_replicas=1) as (run, store):
        backend = store._engine.backend
        if what == "what is there":
            with pytest.raises(NotReplicated):
                run(commit_one(backend, Commit(key, drafts, timeout_s=2.5)))
        else:
            proxy.lose_reply(skip=len(drafts) - 1)
        with pytest.raises(NotReplicated):
            run(commit_one(backend, Commit(key, drafts, timeout_s=4)))
        assert proxy.replies_lost == (what != "what is there")


def test_a_save_that_was_confirmed_is_on_the_replica(valkey_server):
    with ValkeyServer(ram=True, replica_of=valkey_server) as replica:
        # it gets all that there is first
        eventually(lambda: b"master_link_status:up" in replica.call("INFO", "replication"))
        with opened(valkey_server.url, wait_replicas=1) as (run, store):
            for number in range(20):
                run(store.thread("t").save({"n": number}, id=f"{number}"))
                fields = replica.call("HKEYS", key_of("t")[:-1] + "r")
                assert b"\0%d" % number in fields


# Who may, and what nobody is told -------------------------------------------------------------------------------

SECRET = "s3cr3t:p@ss/w?rd"


@contextlib.contextmanager
def encrypted(server, folder):
    """Put TLS in front of a server; give the URL of that. (The servers from the wheels are built without.)"""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    _make_certificate(certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def parse_url(reader, writer):
        inner, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            await asyncio.gather(pump(reader, to_server), pump(inner, writer))
        finally:
            writer.transport.abort()
            to_server.transport.abort()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    front = asyncio.run_coroutine_threadsafe(
        asyncio.start_server(parse_url, "127.0.0.1", 0, ssl=context), loop
    ).result()
    user = server.url.partition("://")[2].rpartition("@")[0]
    port = front.sockets[0].getsockname()[1]
    try:
        yield f"rediss://{user}@127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
    finally:

        async def end():
            front.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # let what was aborted close

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_password_and_tls_are_taken_from_the_url(io_mode, tmp_path):
    with ValkeyServer(ram=True, password=SECRET) as server, encrypted(server, tmp_path) as url:
        with opened(url, io_mode) as (run, store):
            run(store.thread("t").save({"n": 1}))
            assert run(store.thread("t").load()) == {"n": 1}
        plain = url.partition("?")[0]
        with pytest.raises(StoreUnavailable, match="certificate"):
            with opened(plain, io_mode):
                pass
        with opened(f"{plain}?ssl_cert_reqs=none", io_mode) as (run, store):
            assert run(store.thread("t").load()) == {"n": 1}


def test_a_wrong_password_is_told_at_once_and_never_shown(io_mode, caplog):
    with ValkeyServer(ram=True, password="right") as server:
        caplog.set_level(0)
        quoted = "wr0ng%3As3cret"
        url = server.url.replace(":right@", f"me:{quoted}@")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as failed:
            with opened(url, io_mode):
                pass
        assert time.monotonic() - began < PATIENCE_S / 2, "not when its time is over"
        shown = "".join(traceback.format_exception(failed.value)) + repr(failed.value) + caplog.text
        for secret in ("wr0ng", "s3cret", "right"):
            assert secret not in shown


def test_no_secret_is_in_an_error_or_a_repr(io_mode, proxy, caplog):
    caplog.set_level(0)
    with ValkeyServer(ram=True, password=SECRET) as server, FaultProxy("127.0.0.1", server.port) as proxy:
        found = redis_url.parse_url(proxy.through(server.url), {})
        texts = [found.shown, repr(found)]
        with opened(proxy.through(server.url), io_mode) as (run, store):
            texts += [repr(store), repr(store._engine.backend)]
            for mode in ("reset", "blackhole", "refuse"):
                proxy.mode = mode
                proxy.drop_connections()
                with pytest.raises(StoreError) as failed:
                    run(store.thread("t").load(timeout_s=0.2))
                texts += ["".join(traceback.format_exception(failed.value)), repr(failed.value)]
                proxy.mode = "pass"
        texts.append(caplog.text)
    for secret in (SECRET, quote(SECRET, safe="")):
        assert not [text for text in texts if secret in text]


# Ids ------------------------------------------------------------------------------------------------------------

HOSTILE = [
    "../../x", "/etc/x", "..", ".", "a/b", "a\\b", "C:\\x", "a\0b", "a\nb", "CON", "x" * 1000, "A", "a", "é", "e\u0301",
    "123", "None", '["a"]', '{"$ne":null}', "\ud800", "*", "?", "[a]", "{a}", "}{", "a}b", "{", "}", ":", "a:b", "a:b:c",
    "\r\n", "*1\r\n$8\r\nFLUSHALL\r\n", "x}) | (@thread_id:{*", "outlive:identity", "identity", "'; redis.call('FLUSHALL') --",
    "漢" * 1000, "$", "x') OR '1'='1", "x' UNION SELECT 1--", "%", "_", "a b",
]  # fmt: skip


@pytest.mark.parametrize("where", ["valkey_url", "cluster"])
def test_no_id_reaches_the_keys_of_another(where, request):
    fixture = request.getfixturevalue(where)
    url = fixture if isinstance(fixture, str) else fixture.url
    with opened(url) as (run, store):
        for number, id in enumerate(HOSTILE):
            run(store.thread(id).save({"n": number}, id=id, run=id))
            run(store.thread("all", namespace=id).save({"n": number}, id=id))
        for number, id in enumerate(HOSTILE):
            assert run(store.thread(id).load()) == {"n": number}, repr(id)
            assert run(store.thread("all", namespace=id).load(id)) == {"n": number}, repr(id)
        assert sorted(run(thread_ids(store))) == sorted([*HOSTILE, "all"])
        assert run(store.verify()).problems == ()
        for id in HOSTILE:
            assert run(store.delete(id))
        assert run(thread_ids(store)) == ["all"]
    with opened(url, prefix="outlive:other:") as (run, store):
        assert run(thread_ids(store)) == []


def test_two_prefixes_are_two_stores(valkey_url):
    for prefix in ("a:", "a:b:", "", "*", "a[b]"):
        with opened(valkey_url, prefix=prefix) as (run, store):
            run(store.thread("t").save({"prefix": prefix}))
    for prefix in ("a:", "a:b:", "", "*", "a[b]"):
        with opened(valkey_url, prefix=prefix) as (run, store):
            assert (run(store.thread("t").load()), run(thread_ids(store))) == ({"prefix": prefix}, ["t"])


# Damage -----------------------------------------------------------------------------------------------------------


def test_no_flipped_bit_is_ever_a_wrong_state(valkey_server):
    """Whatever is damaged: a load raises or gives what was saved, and verify finds it."""
    rounds = 20 if LONG else 2
    chance = random.Random(11)
    with opened(valkey_server.url) as (run, store):
        thread = whole_thread(run, store)
        state = run(thread.load())
        digest = ThreadKey.of("", "t").digest.hex().encode()
        hashes = [
            key
            for key in valkey_server.call("KEYS", "*")
            if digest in key and valkey_server.call("TYPE", key) == b"hash"
        ]
        unnoticed = []
        for key in hashes:
            flat = valkey_server.call("HGETALL", key)
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                for _ in range(rounds if value else 0):
                    damaged = bytearray(value)
                    place = chance.randrange(len(damaged))
                    damaged[place] ^= 1 << chance.randrange(8)
                    valkey_server.call("HSET", key, field, bytes(damaged))
                    if not run(thread.verify()).problems:
                        unnoticed.append((key[-1:], field, place, value))
                    with opened(valkey_server.url) as (again, other):
                        with contextlib.suppress(Corrupt):
                            assert again(other.thread("t").load()) == state
                    valkey_server.call("HSET", key, field, value)
        assert unnoticed == []
        assert run(store.verify()).problems == ()


def test_a_value_that_is_gone_is_noticed(valkey_server):
    with opened(valkey_server.url) as (run, store):
        thread = whole_thread(run, store)
        digest = ThreadKey.of("", "t").digest.hex().encode()
        for key in [
            key for key in valkey_server.call("KEYS", "*") if digest in key and not key.endswith(b":o")
        ]:
            flat = valkey_server.call("HGETALL", key)
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                valkey_server.call("HDEL", key, field)
                assert run(thread.verify()).problems, (key, field)
                valkey_server.call("HSET", key, field, value)
        order = next(key for key in valkey_server.call("KEYS", "*") if digest in key and key.endswith(b":o"))
        for member in valkey_server.call("ZRANGE", order, 0, -1):
            score = valkey_server.call("ZSCORE", order, member)
            valkey_server.call("ZREM", order, member)
            assert run(thread.verify()).problems, member
            valkey_server.call("ZADD", order, score, member)
        for index in ("threads", "entries"):
            key = key_of("t")[: -len("dd36512605158b9a3c54290941255110:m")] + index
            for member in valkey_server.call("ZRANGE", key, 0, -1):
                valkey_server.call("ZREM", key, member)
                assert run(thread.verify()).problems, member
                valkey_server.call("ZADD", key, 0, member)
        assert run(store.verify()).problems == ()


def test_a_damaged_record_can_be_removed(valkey_server):
    with opened(valkey_server.url) as (run, store):
        thread = store.thread("t")
        run(thread.save({"n": 1}, id="a"))
        run(thread.save({"n": 2}, id="b"))
        valkey_server.call("HSET", key_of("t")[:-1] + "r", b"\0b", b"x" * 100)
        with pytest.raises(Corrupt) as corrupt:
            run(thread.load())
        assert (corrupt.value.thread, corrupt.value.checkpoint) == ("t", "b")
        removal = Removal(checkpoints=(("", "b"),))
        assert (
            run(commit_one(store._engine.backend, Commit(ThreadKey.of("", "t"), removal=removal))).removed
            == 1
        )
        assert run(thread.load()) == {"n": 1}
        assert run(store.verify()).problems == ()


@pytest.mark.parametrize("place", ["parent", "names", "body", "run", "everything"])
def test_a_checkpoint_with_a_flipped_bit_can_be_removed_and_its_thread_goes_on(place, valkey_server):
    with opened(valkey_server.url) as (run, store):
        thread, backend, key = store.thread("t"), store._engine.backend, ThreadKey.of("", "t")
        for id in "abcd":
            run(thread.save({"id": id}, id=id))
        records = key_of("t")[:-1] + "r"
        value = bytearray(valkey_server.call("HGET", records, b"\0b"))
        parent = int.from_bytes(value[24:28], "big")
        at = {"parent": 24, "names": 36 + parent, "body": 40 + parent, "run": 44 + parent, "everything": 0}[
            place
        ]
        value[at] ^= 0x40
        valkey_server.call("HSET", records, b"\0b", b"" if place == "everything" else bytes(value))
        removal = Removal(checkpoints=(("", "b"),))
        assert run(commit_one(backend, Commit(key, removal=removal))).removed == 1
        assert [item.id for item in run(listed(thread))] == ["d", "c", "a"]
        run(thread.save({"id": "e"}, id="e"))
        assert run(store.verify()).problems == ()
        assert run(backend.threads(ThreadQuery("")))[0].stored >= 0
        assert run(thread.delete())


def damage_row(server):
    server.call("HSET", key_of("t"), "row", b"x")


def damage_info(server):
    server.call("HSET", key_of("t"), "metadata", b"damaged....")


def damage_entry(server):
    key = key_of("t")[:-1] + "e"
    field, value = server.call("HGETALL", key)
    server.call("HSET", key, field, value[:20])
    server.call("HSET", key, b"a name without its middle", value)


@pytest.mark.parametrize("damage", [damage_row, damage_info, damage_entry])
def test_a_damaged_thread_can_be_deleted_and_begun_again(damage, valkey_server, io_mode):
    with opened(valkey_server.url, io_mode) as (run, store):
        thread, backend, key = whole_thread(run, store), store._engine.backend, ThreadKey.of("", "t")
        last = run(thread.save({"n": 2}))
        revision = run(backend.inventory(key)).revision
        damage(valkey_server)
        receipt = run(commit_one(backend, Commit(key, removal=Removal(everything=True))))
        assert (receipt.removed, receipt.revision > revision) == (2, True)
        assert run(thread_ids(store)) == []
        assert run(backend.entries(EntryQuery("", "run"))) == []
        assert run(thread.save({"n": 3})).seq == last.seq + 1
        assert run(store.verify()).problems == ()


def test_a_row_that_no_script_takes_is_damage_to_every_reader(valkey_server):
    with opened(valkey_server.url) as (run, store):
        whole_thread(run, store)
        backend, key = store._engine.backend, ThreadKey.of("", "t")
        text, _, _ = valkey_server.call("HGET", key_of("t"), "row").rpartition(b" ")
        words = text.split(b" ")
        words[9] = b"-5"
        text = b" ".join(words)
        valkey_server.call(
            "HSET", key_of("t"), "row", text + b" " + server_checksum(key.digest.hex().encode() + text)
        )
        for call in (
            lambda: backend.read(key, ""),
            lambda: backend.history(HistoryQuery(key, None)),
            lambda: backend.writes(key, None),
            lambda: backend.writes(key, [("", "a")]),
            lambda: backend.inventory(key),
            lambda: backend.entries(EntryQuery("", "run", thread=key)),
            lambda: backend.threads(ThreadQuery("", only="t")),
            lambda: backend.threads(ThreadQuery("")),
            lambda: commit_one(backend, Commit(key, writes=())),
            lambda: commit_one(backend, Commit(key, metadata=b"x")),
        ):
            with pytest.raises(Corrupt, match="its row is damaged"):
                run(call())
        assert run(backend.audit(key))


def test_a_store_whose_naming_key_is_gone_is_not_given_another(valkey_server):
    with opened(valkey_server.url) as (run, store):
        run(store.thread("t").save({"n": 1}))
    for command in (("HDEL", "outlive:identity", "key"), ("DEL", "outlive:identity")):
        valkey_server.call(*command)
        with pytest.raises(Corrupt, match="naming key"):
            with opened(valkey_server.url):
                pass


# Processes ------------------------------------------------------------------------------------------------------


def test_a_child_uses_no_connection_of_its_parent_to_a_cluster(cluster):
    with opened(cluster.url) as (_, store):
        store = store._inner
        for number in range(20):
            store.thread(f"{number}").save({"who": "parent"})
        children = []
        for child in range(3):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    for number in range(20):
                        store.thread(f"{number}").save({"who": child})
                        assert store.thread(f"{number}").load() is not None
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        for number in range(20):
            store.thread(f"{number}").save({"who": "parent"})
            assert store.thread(f"{number}").load() is not None
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
        for number in range(20):
            assert len(list(store.thread(f"{number}").history())) == 5
        assert store.verify().problems == ()


def test_a_store_goes_on_in_another_event_loop(valkey_url):
    found = redis_url.parse_url(valkey_url, {})

    async def first():
        backend = await found.asynchronous(30)
        await backend.identity(b"k" * 32)
        await commit_one(backend, Commit(ThreadKey.of("", "t"), chunks=((b"n" * 16, b"data"),)))
        return backend

    async def second(backend):
        assert await backend.fetch(ThreadKey.of("", "t"), [b"n" * 16]) == {b"n" * 16: b"data"}
        await backend.close()

    backend = asyncio.run(first())
    asyncio.run(second(backend))


def test_the_connections_of_loops_that_ended_are_closed(valkey_server):
    async def open_it():
        return await outlive.open_async(valkey_server.url)

    async def use(store):
        await asyncio.gather(*(store.thread(f"{number}").save({"n": 1}) for number in range(4)))

    async def close(store):
        await store.close()

    files = len(os.listdir("/proc/self/fd"))
    store = asyncio.run(open_it())
    for _ in range(10):
        asyncio.run(use(store))
    assert len(os.listdir("/proc/self/fd")) <= files + 4
    asyncio.run(close(store))
    assert len(os.listdir("/proc/self/fd")) <= files


def test_two_loops_that_run_at_once_keep_their_connections(valkey_server):
    store = asyncio.run(started(valkey_server.url))
    loops = [asyncio.new_event_loop() for _ in range(2)]
    for number in range(20):
        loops[number % 2].run_until_complete(store.thread("t").save({"n": number}))
    assert int(valkey_server.info("clients")["connected_clients"]) <= 4  # of each loop one, and who asks
    loops[1].close()
    loops[0].run_until_complete(store.close())
    loops[0].close()


async def started(url):
    return await outlive.open_async(url)


# Clients and options ----------------------------------------------------------------------------------------------


def test_a_client_that_exists_is_taken(valkey_url):
    client = redis.Redis.from_url(valkey_url, decode_responses=True)
    with opened(client) as (run, store):
        run(store.thread("t").save({"n": 1}))
        client.close()
        assert run(store.thread("t").load()) == {"n": 1}
        assert "Redis" in repr(store._engine.backend)
    with opened(redis.asyncio.Redis.from_url(valkey_url), "async", prefix="outlive:") as (run, store):
        assert run(store.thread("t").load()) == {"n": 1}


def test_a_client_of_a_cluster_is_taken(cluster):
    host, port = cluster.servers[0].address.split(":")
    client = redis.RedisCluster(host=host, port=int(port))
    with opened(client) as (run, store):
        run(store.thread("t").save({"n": 1}))
        assert run(store.thread("t").load()) == {"n": 1}
    client.close()
    with opened(redis.asyncio.RedisCluster(host=host, port=int(port)), "async") as (run, store):
        assert run(store.thread("t").load()) == {"n": 1}


def test_a_client_of_sentinels_is_taken(sentinels):
    places = [tuple(one.address.split(":")) for one in sentinels.sentinels]
    manager = redis.sentinel.Sentinel([(host, int(port)) for host, port in places])
    with opened(manager.master_for(sentinels.service)) as (run, store):
        run(store.thread("t").save({"n": 1}))
        assert run(store.thread("t").load()) == {"n": 1}


def test_the_settings_of_a_client_are_those_of_the_store(io_mode, tmp_path):
    """Database, user, client name and the path of a Unix socket."""
    path = f"{tmp_path}/valkey.sock"
    with ValkeyServer(ram=True, settings={"unixsocket": path}) as server:
        server.call("ACL", "SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all")
        make = redis.Redis if io_mode == "sync" else redis.asyncio.Redis
        client = make(unix_socket_path=path, db=3, username="ann", password="secret", client_name="the-agent")
        with opened(client, io_mode) as (run, store):
            run(store.thread("t").save({"n": 1}))
            rows = server.call("CLIENT", "LIST").decode().splitlines()
            (row,) = [row for row in rows if "name=the-agent" in row]
            assert {"db=3", "user=ann", "resp=2"} <= set(row.split())
        with opened(server.url.replace("/0", "/3"), io_mode) as (run, store):
            assert run(store.thread("t").load()) == {"n": 1}


def test_a_client_with_a_credential_provider_is_taken(io_mode):
    class Provider(redis.CredentialProvider):
        def get_credentials(self):
            return "ann", "secret"

    with ValkeyServer(ram=True, password="other") as server:
        server.call("ACL", "SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all")
        make = redis.Redis if io_mode == "sync" else redis.asyncio.Redis
        client = make(host="127.0.0.1", port=server.port, credential_provider=Provider())
        with opened(client, io_mode) as (run, store):
            run(store.thread("t").save({"n": 1}))
            assert run(store.thread("t").load()) == {"n": 1}


def test_a_client_with_tls_is_taken(io_mode, tmp_path):
    make = redis.Redis if io_mode == "sync" else redis.asyncio.Redis
    with ValkeyServer(ram=True, password=SECRET) as server, encrypted(server, tmp_path) as url:
        options = {"port": int(url.rpartition("@")[2].split(":")[1].split("/")[0]), "password": SECRET}
        trusted = make(host="127.0.0.1", ssl=True, ssl_ca_certs=f"{tmp_path}/certificate.pem", **options)
        with opened(trusted, io_mode) as (run, store):
            run(store.thread("t").save({"n": 1, "text": "x" * 3_000_000}))
            assert run(store.thread("t").load())["n"] == 1
        with pytest.raises(StoreUnavailable, match="certificate"):
            with opened(make(host="127.0.0.1", ssl=True, **options), io_mode):
                pass


def test_a_certificate_for_another_host_is_refused(io_mode, tmp_path, monkeypatch):
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda name, *args, **options: real("127.0.0.1", *args, **options)
    )
    with ValkeyServer(ram=True, password=SECRET) as server, encrypted(server, tmp_path) as url:
        other = url.replace("@127.0.0.1:", "@other.example.org:")
        with pytest.raises(StoreUnavailable, match="certificate"):
            with opened(other, io_mode):
                pass


def test_tls_files_that_cannot_be_read_are_named_at_once(io_mode):
    with pytest.raises(BadArgument, match="ssl_ options"):
        with opened("rediss://127.0.0.1:1?ssl_ca_certs=/nowhere/ca.pem", io_mode):
            pass


def test_a_client_whose_connections_cannot_be_imitated_is_refused(valkey_url):
    class Recorder(redis.connection.Connection):
        pass

    pool = redis.ConnectionPool.from_url(valkey_url, connection_class=Recorder)
    with pytest.raises(BadArgument, match="Recorder"):
        parse_client(redis.Redis(connection_pool=pool), {}).sync(30)
    with pytest.raises(BadArgument, match="OCSP"):
        parse_client(redis.Redis(ssl=True, ssl_validate_ocsp=True), {}).sync(30)


class Scripted:
    """A server that answers commands with what it is told, one connection after the other."""

    def __init__(self, *connections):
        self._connections = connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.received = []
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def _serve(self):
        for replies in self._connections:
            peer, _ = self._listener.accept()
            with peer:
                for reply in replies:
                    self.received.append(peer.recv(1 << 16))
                    peer.sendall(reply)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._thread.join()
        self._listener.close()


def exchange(port, io_mode, *commands, **settings):
    """Open a connection, call it, and close it."""

    async def work():
        mode = Sync() if io_mode == "sync" else Async()
        connection = await Connection.open(
            ConnectionSettings("127.0.0.1", port, **settings), mode, Deadline(PATIENCE_S)
        )
        try:
            return await connection.call(commands, Deadline(PATIENCE_S))
        finally:
            connection.close()

    return run_now(work()) if io_mode == "sync" else asyncio.run(work())


@pytest.mark.parametrize(
    "reply, error",
    [
        (b"-LOADING the dataset is in memory soon\r\n", AttemptFailed),
        (b"-ERR max number of clients reached\r\n", AttemptFailed),
        (b"-NOAUTH Authentication required.\r\n", StoreUnavailable),
        (b"?what is this\r\n", AttemptFailed),
        (b"$5\r\nab", AttemptFailed),
        (b"", AttemptFailed),
    ],
)
def test_a_connection_that_serves_no_command_fails(reply, error, io_mode):
    with Scripted([reply]) as server:
        with pytest.raises(error):
            exchange(server.port, io_mode, ("GET", "x"))


def test_replies_that_come_in_pieces_are_put_together(io_mode):
    class Slow(Scripted):
        def _serve(self):
            peer, _ = self._listener.accept()
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.recv(1 << 16)
                for byte in b"*2\r\n$3\r\na\r\n\r\n-ERR inside\r\n:42\r\n":
                    peer.sendall(bytes((byte,)))
                    time.sleep(0.001)

    with Slow() as server:
        (text, inside), number = exchange(server.port, io_mode, ("A",), ("B",))
    assert (text, str(inside), number) == (b"a\r\n", "ERR inside", 42)


def test_a_client_of_the_other_mode_is_refused(valkey_url):
    with pytest.raises(BadArgument, match="open_async"):
        parse_client(redis.asyncio.Redis.from_url(valkey_url), {}).sync(30)
    with pytest.raises(BadArgument, match=r"outlive\.open"):
        asyncio.run(parse_client(redis.Redis.from_url(valkey_url), {}).asynchronous(30))
    with pytest.raises(BadArgument, match="not by str"):
        parse_client("redis", {})


WRONG = {
    "redis://": "host is missing",
    "redis://host:port": "port is not a number",
    "redis://host/x": "number of a database",
    "redis://host/1/2": "number of a database",
    "redis://a,b": "one host",
    "redis+cluster://host/3": "no databases",
    "redis+sentinel://host": "service is missing",
    "redis://host?io_mode=red": "no option 'io_mode'; it has allow_eviction",
    "redis://host?ttl_s=soon": "ttl_s must be a number of seconds",
    "redis://host?ttl_s=0": "more than 0",
    "redis://host?pool_size=0": "1 or more",
    "redis://host?pool_size=many": "whole number",
    "redis://host?max_retries=-1": "whole number",
    "redis://host?wait_replicas=1.5": "whole number",
    "redis://host?refresh_ttl_on_read=maybe": "True or False",
    "redis://host?pool_size=²": "whole number",
    "redis://host?refresh_ttl_on_read=true": "needs ttl_s",
    "redis://host?prefix={a}": "without braces",
    "redis://host?ssl_ca_certs=x": "rediss://",
    "rediss://host?ssl_cert_reqs=perhaps": "required, optional or none",
    "redis://me:s3cret@host/x": "number of a database",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_url_is_told_what_to_type(url):
    with pytest.raises(BadURL, match=WRONG[url]) as wrong:
        redis_url.parse_url(url, {})
    assert "s3cret" not in str(wrong.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:12?hunter2@host:6379/0",
        "redis://12?hunter2@host/0",
        "redis://user:1@2?hunter2&x@host/0",
        "redis://user:12?timeout_s=hunter2@host/0",
        "redis+sentinel://user:1?hunter2@host/service",
        "redis+cluster://user:1?x=hunter2@host",
        "postgresql://user:12?hunter2@127.0.0.1/db",
        "postgresql://user:9?application_name=a&hunter2@127.0.0.1/db",
    ],
)
def test_a_question_mark_in_a_password_does_not_show_the_rest_of_it(url):
    parse_url = postgres_url.parse_url if url.startswith("postgres") else redis_url.parse_url
    for use in (outlive.open, outlive.open_async, lambda url: parse_url(url, {})):
        with pytest.raises(BadURL, match="%3F") as wrong:
            use(url)
        shown = "".join(traceback.format_exception(wrong.value, chain=True)[-1:])
        assert "hunter2" not in shown


def test_a_number_that_no_script_can_count_with_is_refused(valkey_url):
    key, most = ThreadKey.of("", "t"), 1 << 53
    with opened(valkey_url) as (run, store):
        backend = store._engine.backend
        for number, commit in enumerate(
            (
                Commit(key, (draft("a", seq=most, epoch=1),)),
                Commit(key, (draft("a", seq=1, epoch=most),)),
                Commit(key, (draft("a"),), epoch=most),
                Commit(key, metadata=b"x", metadata_version=most, merge=True),
                Commit(key, entries=(EntryRecord("run", "r", b"", fence=most),), merge=True),
            )
        ):
            with pytest.raises(BadArgument, match="2\\*\\*53"):
                run(commit_one(backend, commit))
            assert run(backend.threads(ThreadQuery(""))) == [], number
        run(commit_one(backend, Commit(key, (draft("a", seq=most - 1, epoch=most - 1, step=most - 1),))))
        assert run(backend.read(key, "")).record.order[:2] == (most - 1, most - 1)


def test_an_option_stands_in_the_url_or_beside_it_and_not_in_both():
    with pytest.raises(BadURL, match="give it once"):
        redis_url.parse_url("redis://host?ttl_s=5", {"ttl_s": 5})


def test_all_options_may_stand_in_the_url(valkey_url):
    query = "prefix=p:&ttl_s=60&refresh_ttl_on_read=true&pool_size=3&min_idle_conns=2&max_retries=5&dial_timeout_s=2"
    with opened(
        f"{valkey_url}?{query}&read_timeout_s=5&write_timeout_s=5&wait_replicas=0&allow_eviction=0"
    ) as (run, store):
        run(store.thread("t").save({"n": 1}))
        assert run(store.thread("t").load()) == {"n": 1}


def test_idle_connections_are_there_before_they_are_needed(proxy, valkey_url):
    with opened(proxy.through(valkey_url), min_idle_conns=3):
        assert proxy.open_connections == 3


@pytest.mark.parametrize("where", ["url", "option"])
def test_more_idle_connections_than_the_pool_may_hold_are_refused(where):
    url = "redis://host?pool_size=2" + ("&min_idle_conns=3" if where == "url" else "")
    with pytest.raises(BadURL, match="min_idle_conns=3 is more than pool_size=2"):
        redis_url.parse_url(url, {} if where == "url" else {"min_idle_conns": 3})
    redis_url.parse_url("redis://host?pool_size=2&min_idle_conns=2", {})


def test_without_the_driver_it_is_told_what_to_install():
    code = (
        "import sys; sys.modules['hiredis'] = None\n"
        "from outlive.backends.redis import urls\n"
        "try: urls.parse_url('redis://host', {})\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert "pip install 'outlive[redis]'" in done.stdout


def test_naming_a_server_does_not_load_the_driver():
    code = "import sys; from outlive.backends.redis import urls; urls.parse_url('redis://host', {}); print('hiredis' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "False\n"


# Listing ----------------------------------------------------------------------------------------------------------


@in_one_mode("valkey_url", "cluster")
def test_many_threads_are_listed_in_order_and_page_by_page(where, request, io_mode):
    fixture = request.getfixturevalue(where)
    url = fixture if isinstance(fixture, str) else fixture.url
    with opened(url, io_mode) as (run, store):
        backend = store._engine.backend
        ids = [f"thread {number}" for number in range(700)]
        results = run(
            backend.commit_all(
                [Commit(ThreadKey.of("", id), metadata=b"x", timeout_s=PATIENCE_S) for id in ids[:350]]
            )
        )
        results += run(
            backend.commit_all(
                [Commit(ThreadKey.of("", id), chunks=(), writes=(), metadata=b"x") for id in ids[350:]]
            )
        )
        assert not [result for result in results if isinstance(result, Exception)]
        seen, after = [], None
        while page := run(backend.threads(ThreadQuery("", after=after, limit=90))):
            seen += [row.id for row in page]
            after = seen[-1]
        assert seen == sorted(ids)
        found = run(backend.threads(ThreadQuery("", prefix="thread 1", limit=1000)))
        assert [row.id for row in found] == sorted(id for id in ids if id.startswith("thread 1"))


@in_one_mode("valkey_url", "cluster")
def test_lapsed_runs_are_found_among_many_that_ended(where, request, io_mode):
    fixture = request.getfixturevalue(where)
    url = fixture if isinstance(fixture, str) else fixture.url
    with opened(url, io_mode) as (run, store):
        backend = store._engine.backend
        for number in range(120):
            status = "running" if number % 20 == 0 else "completed"
            lease_s = 0.001 if number % 40 == 0 else 600
            entry = EntryRecord("run", f"run {number:03}", b"", status, fence=1, lease_s=lease_s)
            run(commit_one(backend, Commit(ThreadKey.of("", f"{number % 50}"), entries=(entry,))))
        run(nap(0.01))

        def keys(**options):
            return [
                entry.key for _, entry in run(backend.entries(EntryQuery("", "run", limit=1000, **options)))
            ]

        assert keys(statuses=["running"], lapsed=True) == ["run 000", "run 040", "run 080"]
        assert keys(statuses=["running"], lapsed=False) == ["run 020", "run 060", "run 100"]
        assert keys(statuses=["running"]) == [f"run {number:03}" for number in range(0, 120, 20)]
        assert (
            keys(statuses=["running", "completed", ""])
            == keys()
            == [f"run {number:03}" for number in range(120)]
        )
        assert keys(statuses=["completed", "running"], prefix="run 01") == [
            f"run 01{digit}" for digit in range(10)
        ]
        ended = EntryRecord("run", "run 000", None, "completed", fence=1, revision=1)
        run(commit_one(backend, Commit(ThreadKey.of("", "0"), entries=(ended,))))
        assert keys(statuses=["running"], lapsed=True) == ["run 040", "run 080"]
        page = run(backend.entries(EntryQuery("", "run", statuses=["running", "completed"], limit=7)))
        cursor = (page[-1][1].key, page[-1][0].digest)
        rest = run(
            backend.entries(
                EntryQuery("", "run", statuses=["completed", "running"], after=cursor, limit=1000)
            )
        )
        assert [entry.key for _, entry in page + rest] == keys()
