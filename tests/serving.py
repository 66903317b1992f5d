"""Fixtures with real servers: started when the first test asks, shared by all, ended with the run.

A test that stops, kills or slows a server takes one of its own instead: `with PostgresServer(ram=True) as server`.
"""

from __future__ import annotations

import itertools

import psycopg
import pytest

from outlive.testing.servers import PostgresServer, ValkeyServer

_number = itertools.count(1)
_shared = []


def shared_pids():
    """Return the process ids, as text, of the servers that no single test answers for."""
    return {str(server.pid) for server in _shared if server.is_running}


def _share(server):
    with server:
        _shared.append(server)
        yield server
        _shared.remove(server)


@pytest.fixture(scope="session")
def postgres_server():
    yield from _share(PostgresServer(ram=True))


@pytest.fixture
def postgres_url(postgres_server):
    """An empty database."""
    name = f"test_{next(_number)}"
    yield postgres_server.start().database(name)
    postgres_server.start().drop(name)


@pytest.fixture(scope="session")
def postgres_store(postgres_server):
    """A database whose store is emptied for every test: making one takes ten times as long."""
    return postgres_server.start().database("shared")


@pytest.fixture
def empty_postgres(postgres_store):
    """The URL of a store without anything in it, not even a naming key."""
    with psycopg.connect(postgres_store, autocommit=True) as connection:
        there = connection.execute("select to_regclass('outlive.store') is not null").fetchone()[0]
        if there:
            for table in ("thread", "checkpoint", "chunk", "write", "entry", "store"):
                connection.execute(f"delete from outlive.{table}")
    return postgres_store


@pytest.fixture(scope="session")
def valkey_server():
    yield from _share(ValkeyServer(ram=True))


@pytest.fixture
def valkey_url(valkey_server):
    """An empty server."""
    valkey_server.start().call("FLUSHALL")
    yield valkey_server.url
    valkey_server.start().call("FLUSHALL")
