"""Watches over real servers: only work wakes, and a watch outlives a restart and a failover."""

from __future__ import annotations

import contextlib

import pytest

from outlive.backend import Commit, EntryRecord, Fence, ThreadKey, commit
from outlive.backends.postgres import urls as postgres_url
from outlive.backends.redis import urls as redis_url
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.testing.patience import PATIENCE_S
from outlive.testing.thread_records import draft
from outlive.testing.trial import IO_MODES, Opener
from rig.replicas import Rig

TICKET = EntryRecord("ticket", "7:planner\n1\nr")


@pytest.fixture(params=IO_MODES)
def driver(request):
    with IO_MODES[request.param]() as driver:
        yield driver


def opener(url):
    parse = postgres_url.parse_url if url.startswith("postgres") else redis_url.parse_url
    return Opener(lambda: parse(url, {}).sync(60), lambda: parse(url, {}).asynchronous(60))


@contextlib.asynccontextmanager
async def watched(driver, url, tenant=""):
    """Open a store and watch it; yield it with the watch."""
    backend = await driver.open(opener(url))
    try:
        await backend.identity(b"k" * 32)
        watch = await backend.watch(tenant)
        yield backend, watch
        await watch.close()
    finally:
        await backend.close()


async def put(backend, *entries, thread="t", tenant="", **fields):
    await commit(backend, Commit(ThreadKey.of(tenant, thread), entries=entries, **fields))


async def is_calm(watch):
    return not await watch.wait(0.3)


@pytest.fixture(params=["postgresql", "redis"])
def url(request):
    return request.getfixturevalue("postgres_store" if request.param == "postgresql" else "valkey_url")


def test_nothing_but_work_of_the_tenant_wakes(driver, url):
    async def scenario():
        async with watched(driver, url) as (backend, watch):
            run = EntryRecord("run", "r", b"", "running", fence=1)
            await put(backend, run, checkpoints=(draft("a"),))
            await put(backend, EntryRecord("step", "s"), fence=Fence("run", "r", 0, 1))
            await put(backend, TICKET, tenant="another")
            await put(backend, EntryRecord("ticket", "k", gone=True))
            await put(backend, EntryRecord("step", "s"), metadata=b"decided by the client")
            assert await is_calm(watch)
            for n in range(3):  # several are one
                await put(backend, TICKET, thread=f"t{n}")
            assert await watch.wait(PATIENCE_S)

    driver.run(scenario())


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_a_watch_outlives_a_restart_of_its_server(driver, kind, request):
    server = request.getfixturevalue("postgres_server" if kind == "postgresql" else "valkey_server")
    url = request.getfixturevalue("postgres_store" if kind == "postgresql" else "valkey_url")

    async def scenario():
        async with watched(driver, url) as (backend, watch):
            await put(backend, TICKET)
            assert await watch.wait(PATIENCE_S)
            server.stop()
            assert await is_calm(watch)  # and no error
            server.start()
            assert await watch.wait(PATIENCE_S)  # something may have been missed
            while not await is_calm(watch):
                pass
            if kind == "redis":  # its server kept nothing
                await backend.identity(b"k" * 32)
            await put(backend, TICKET, thread="after the restart")
            assert await watch.wait(PATIENCE_S)

    driver.run(scenario())


def test_one_subscription_hears_of_every_node_of_a_cluster(driver, cluster):
    async def scenario():
        async with watched(driver, cluster.url) as (backend, watch):
            for n in range(12):  # on all nodes: each has a third of the slots
                await put(backend, TICKET, thread=f"t{n}")
                assert await watch.wait(PATIENCE_S), n

    driver.run(scenario())


def test_a_watch_outlives_a_failover_of_sentinels(driver, sentinels):
    async def scenario():
        async with watched(driver, sentinels.url) as (backend, watch):
            await put(backend, TICKET)
            assert await watch.wait(PATIENCE_S)
            sentinels.kill_master()
            sentinels.start()
            assert await watch.wait(PATIENCE_S)
            while not await is_calm(watch):
                pass
            await put(backend, TICKET, thread="after the failover")
            assert await watch.wait(PATIENCE_S)

    driver.run(scenario())


def test_a_pair_watches_the_store_that_is_active(driver, valkey_server, postgres_store, postgres_server):
    async def scenario():
        with Rig(valkey_server, postgres_store, postgres_server, driver) as rig:
            store = await rig.open()
            backend = store._engine.backend
            watch = await backend.watch("")
            await put(backend, TICKET)
            assert await watch.wait(PATIENCE_S)
            rig.cut(rig.primary)
            await store.promote()
            assert await watch.wait(PATIENCE_S)
            while not await is_calm(watch):
                pass
            await put(backend, TICKET, thread="after the failover")
            assert await watch.wait(PATIENCE_S)
            await watch.close()
            rig.heal()
            await rig.close()

    driver.run(scenario())


def test_a_process_that_idles_reads_nothing_from_sqlite_but_a_number(tmp_path, driver):
    """Looking for what others did is cheap: no row is read."""

    async def scenario():
        statements = []
        local = SQLiteBackend(str(tmp_path / "store.db"), fsync="normal")
        backend = await driver.open(Opener.local(lambda: local))
        await backend.identity(b"k" * 32)
        watch = await backend.watch("")
        local._connection.db().exec_trace = lambda cursor, sql, bindings: bool(statements.append(sql) or True)
        assert not await watch.wait(0.9)
        assert set(statements) == {"pragma data_version"}
        assert len(statements) <= 6
        await watch.close()
        await backend.close()

    driver.run(scenario())
