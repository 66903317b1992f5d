"""What no checkpointer can do without: pack the state, and hand some bytes to the engine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Self

import apsw
import ormsgpack
import psycopg
import redis

from workloads import State

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def pack(state: object) -> bytes:
    return ormsgpack.packb(state)


def packed_size(state: State) -> int:
    return len(pack(state))


def zstd_ratio(state: State) -> float:
    packed = pack(state)
    return len(packed) / len(zstd.compress(packed, 1))


class BareSQLite:
    """One table, one durable transaction per insert: WAL, synchronous=FULL."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("pragma journal_mode=wal").fetchall()
        self._connection.execute("pragma synchronous=full")
        self._connection.execute("create table piece(key integer primary key, data blob not null)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._connection.close()

    def insert(self, data: bytes) -> None:
        self._connection.execute("begin immediate")
        self._connection.execute("insert into piece(data) values (?)", (data,))
        self._connection.execute("commit")


class JsonFile:
    """The whole state as JSON in one file, replaced atomically and durably: no history, nothing to query."""

    def __init__(self, path: Path) -> None:
        self._path, self._next = path, path.with_suffix(".next")

    def write(self, state: State) -> None:
        with open(self._next, "w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._next, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def read(self) -> State:
        state: State = json.loads(self._path.read_bytes())
        return state


class BarePostgres:
    """One table, one durable transaction per insert, which is prepared; bytes go as they are."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(
            "create table piece(key bigint generated always as identity primary key, data bytea not null)"
        )
        self._cursor = self._connection.cursor(binary=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._connection.close()

    def insert(self, data: bytes) -> None:
        self._cursor.execute("insert into piece(data) values (%b)", (data,), prepare=True)


class BareRedis:
    """One SET under a new key each; in a cluster all in one slot, as a thread is."""

    def __init__(self, client: redis.Redis | redis.RedisCluster) -> None:
        self._client = client
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._client.close()

    def insert(self, data: bytes) -> None:
        self._count += 1
        self._client.set(b"{piece}:%d" % self._count, data)
