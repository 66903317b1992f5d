"""Bytes in PostgreSQL after a long conversation, with every checkpoint kept.

`pg_total_relation_size` of all tables of the schema: rows, indexes and what was moved out of line. Each side has a
database of its own on the same server. A sample of checkpoints is read back by id from a store opened again, and
the newest of the peer's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg

import ours
import peer
import servers
import yardstick
from scale import Scale
from table import Row, Versus, at_least, figure, megabytes
from workloads import State, conversation

_BYTES = """
select sum(pg_total_relation_size(c.oid)) from pg_class c
where c.relkind = 'r' and c.relnamespace = %s::regnamespace
"""


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    with servers.postgres() as server:
        mine = _ours(server.database("ours"), states, scale.samples)
        theirs = _peer(server.database("peer"), states)
    last = yardstick.packed_size(states[-1])
    what = f"PostgreSQL: {scale.steps:,} checkpoints of a conversation, last state {megabytes(last)}"
    versus = Versus(what, megabytes(mine), megabytes(theirs))
    note = f"{versus.ours} against {versus.peer}; {figure(mine / last)}x the last state"
    yield at_least("PostgreSQL: bytes of PostgresSaver / ours", theirs / mine, 70, note, versus)


def _ours(url: str, states: list[State], samples: int) -> int:
    ids = ours.save_all(url, states)
    ours.read_back(url, ids, states, samples)
    return _bytes(url, "outlive")


def _peer(url: str, states: list[State]) -> int:
    with peer.postgres(url) as saver:
        peer.extend(saver, peer.thread(), peer.prepare_all(states))
        if peer.state_of(saver, peer.thread()) != states[-1]:
            raise AssertionError("the peer's newest state came back as another state")
    return _bytes(url, "public")


def _bytes(url: str, schema: str) -> int:
    with psycopg.connect(url) as connection:
        return int(connection.execute(_BYTES, [schema]).fetchone()[0])
