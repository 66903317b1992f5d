"""Fixtures with real servers: started when the first test asks, shared by all, ended with the run.

What a test finds is empty and whole, even if the one before it has killed a server. A test that wants a server with other
settings takes one of its own: `with PostgresServer(ram=True, fsync=True) as server`.
"""

from __future__ import annotations

import contextlib
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


_EMPTY = """
do $$ declare name text; begin
    perform pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid();
    for name in select nspname from pg_namespace
        where nspname !~ '^pg_' and nspname not in ('information_schema', 'public', 'outlive') loop
        execute format('drop schema %I cascade', name);
    end loop;
    if to_regclass('outlive.store') is not null then
        delete from outlive.roster; delete from outlive.thread; delete from outlive.checkpoint;
        delete from outlive.space; delete from outlive.chunk; delete from outlive.write;
        delete from outlive.entry; delete from outlive.store;
    end if;
end $$
"""


class SharedDatabase:
    """A database whose store every test finds empty, without its naming key: to make a database and its tables takes several times
    as long. What a killed process left connected is disconnected.
    """

    def __init__(self, server):
        self.url = server.start().database("shared")
        self._connection = None

    def empty(self):
        if self._connection is not None:
            try:
                self._connection.execute(_EMPTY)
            except psycopg.OperationalError:  # the server was restarted
                self.close()
            else:
                return
        self._connection = psycopg.connect(self.url, autocommit=True, application_name="rig")
        self._connection.execute(_EMPTY)

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture(scope="session")
def _postgres_database(_postgres):
    with contextlib.closing(SharedDatabase(_postgres)) as database:
        yield database


@pytest.fixture
def postgres_store(_postgres_database, postgres_server):
    """The URL of an empty store in PostgreSQL."""
    _postgres_database.empty()
    return _postgres_database.url


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
    is_taken = "postgres_store" in request.fixturenames

    def find(backend, folder):
        nonlocal is_taken
        if backend == "postgresql":
            schema = f"s{next(_number)}" if is_taken else "outlive"
            is_taken = True
            return f"{request.getfixturevalue('postgres_store')}?schema={schema}"
        if backend == "redis":
            return f"{request.getfixturevalue('valkey_url')}?prefix=p{next(_number)}:"
        return url_of(backend, folder)

    return find
