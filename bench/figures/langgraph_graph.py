"""An unmodified graph of LangGraph on `OutliveSaver` beside its own `SqliteSaver` and `PostgresSaver`.

200 turns of 200 + 1,000 characters on one thread, messages joined by `add_messages`, LangGraph's default durability. The two
savers take turns; of each ten turns the median counts, because a turn costs more the longer the talk is. Bytes are those of the file, or
of all tables with their indexes, after a checkpoint of the write-ahead log. `get_state` and `get_state_history(limit=50)` are
medians at the end of the talk; every snapshot of the history has objects of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver

import graphs
import peer
import servers
from outlive.adapters.langgraph import OutliveSaver
from scale import Scale
from table import Row, Versus, at_least, at_most, megabytes, milliseconds

_BYTES = """
select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema')
"""


def run(scale: Scale, room: Path) -> Iterator[Row]:
    turns = scale.steps // 5
    yield from _sqlite(room, turns, scale.laps)
    with servers.postgres() as server:
        yield from _postgres(server.database("ours"), server.database("theirs"), turns, scale.laps)


def _sqlite(room: Path, turns: int, laps: int) -> Iterator[Row]:
    mine, theirs = room / "ours.db", room / "theirs.db"
    with OutliveSaver(f"sqlite:///{mine}") as ours, peer.sqlite(theirs) as saver:
        result = graphs.talk(ours, saver, turns, laps)
    yield from _rows("", "SqliteSaver", turns, mine.stat().st_size, theirs.stat().st_size, 40, result)


def _postgres(mine: str, theirs: str, turns: int, laps: int) -> Iterator[Row]:
    with OutliveSaver(mine) as ours, PostgresSaver.from_conn_string(theirs) as saver:
        saver.setup()
        result = graphs.talk(ours, saver, turns, laps)
    yield from _rows("PostgreSQL: ", "PostgresSaver", turns, _bytes(mine), _bytes(theirs), 12, result)


def _bytes(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute(_BYTES).fetchone()
    assert found is not None
    return int(found[0])


def _rows(
    where: str, saver: str, turns: int, mine: int, theirs: int, bar: float, result: graphs.Result
) -> Iterator[Row]:
    wall = result.race.wall
    what = f"{where}a LangGraph thread of {turns} turns, unmodified graph"
    yield at_least(
        f"{where}LangGraph thread of {turns} turns: bytes of {saver} / ours",
        theirs / mine,
        bar,
        f"{megabytes(mine)} against {megabytes(theirs)}",
        Versus(what, megabytes(mine), megabytes(theirs)),
    )
    invoke = {lane: graphs.whole(result.race.wall_s[lane]) / turns for lane in ("ours", "theirs")}
    yield at_most(
        f"{where}graph.invoke / with {saver}",
        result.invoke,
        0.7,
        f"{milliseconds(invoke['ours'])} / {milliseconds(invoke['theirs'])} a turn",
    )
    for name, ratio, most in (("state", result.get_state, 1.0), ("history", result.history, 0.7)):
        call = "get_state" if name == "state" else f"get_state_history(limit={graphs.HISTORY})"
        took = f"{milliseconds(wall(f'ours {name}'))} / {milliseconds(wall(f'theirs {name}'))}"
        yield at_most(f"{where}{call} / with {saver}", ratio, most, took)
