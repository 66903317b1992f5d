"""Fixtures with real servers: started when the first test asks, shared by all, ended with the run.

What a test finds is empty and whole, even if the one before it has killed a server. A test that wants a server with other
settings takes one of its own: `with PostgresServer(ram=True, fsync=True) as server`.
"""

from __future__ import annotations

import itertools

import psycopg
import pytest

from rig.crash import ForkServer, url_of
from rig.servers import ClusterServers, PostgresServer, Sentinels, ValkeyServer

_number = itertools.count(1)
_shared = []


def shared_pids():
    """Return the process ids, as text, of the servers that no single test answers for."""
    return {str(server.pid) for server in _shared if server.is_running}


def _share(opened, servers):
    _shared.extend(servers)
    with opened:
        yield opened
    for server in servers:
        _shared.remove(server)


@pytest.fixture(scope="session")
def _postgres():
    server = PostgresServer(ram=True)
    yield from _share(server, [server])


@pytest.fixture
def postgres_server(_postgres):
    return _postgres.start()


@pytest.fixture
def postgres_url(postgres_server):
    """An empty database."""
    name = f"test_{next(_number)}"
    yield postgres_server.database(name)
    postgres_server.start().drop(name)


@pytest.fixture(scope="session")
def _postgres_store(_postgres):
    return _postgres.start().database("shared")


@pytest.fixture
def postgres_store(_postgres_store, postgres_server):
    """The URL of a store that was emptied, also of its naming key: making a database takes ten times as long."""
    with psycopg.connect(_postgres_store, autocommit=True) as connection:
        there = connection.execute("select to_regclass('outlive.store') is not null").fetchone()[0]
        if there:
            for table in ("roster", "thread", "checkpoint", "space", "chunk", "write", "entry", "store"):
                connection.execute(f"delete from outlive.{table}")
    return _postgres_store


@pytest.fixture(scope="session")
def _valkey():
    server = ValkeyServer(ram=True)
    yield from _share(server, [server])


@pytest.fixture
def valkey_server(_valkey):
    """An empty server."""
    _valkey.start().call("FLUSHALL")
    return _valkey


@pytest.fixture
def valkey_url(valkey_server):
    return valkey_server.url


@pytest.fixture(scope="session")
def _sentinels():
    sentinels = Sentinels(ram=True)
    yield from _share(sentinels, [*sentinels.servers, *sentinels.sentinels])


@pytest.fixture
def sentinels(_sentinels):
    """An empty master with its replicas and sentinels."""
    _sentinels.start().master.call("FLUSHALL")
    return _sentinels


@pytest.fixture(scope="session")
def _cluster():
    cluster = ClusterServers(ram=True)
    yield from _share(cluster, cluster.servers)


@pytest.fixture
def cluster(_cluster):
    """An empty cluster; which slot is where may differ from test to test."""
    _cluster.start().abandon_moves()
    for master in _cluster.masters():
        master.call("FLUSHALL")
    return _cluster


@pytest.fixture(scope="session")
def workers():
    """A warm process that forks workers, which a test may kill."""
    server = ForkServer()
    yield from _share(server, [server])


@pytest.fixture
def url_for(request):
    """A function that returns the URL of a store of its own, in a folder or on a server."""

    def find(backend, folder):
        if backend == "postgresql":
            return f"{request.getfixturevalue('postgres_url')}?schema=s{next(_number)}"
        if backend == "redis":
            return f"{request.getfixturevalue('valkey_url')}?prefix=p{next(_number)}:"
        return url_of(backend, folder)

    return find
