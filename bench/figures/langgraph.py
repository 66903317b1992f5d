"""An unmodified graph of LangGraph on `OutliveSaver` beside its own `SqliteSaver` and `PostgresSaver`.

200 turns of 200 + 1,000 characters on one thread, messages joined by `add_messages`, LangGraph's default durability. The two
savers take turns, and every turn counts: the first ones are what most conversations have, the last ones cost the most. Bytes are those
of the file, or of all tables with their indexes, after a checkpoint of the write-ahead log. `get_state` and
`get_state_history(limit=50)` are measured at the end of the conversation; every snapshot of the history has objects of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg

import graphs
import peer
import servers
from compare import Curve, Duel, curve
from measure import Race, Rounds
from outlive.adapters.langgraph import OutliveSaver
from scale import Scale
from table import Row, Versus, at_least, megabytes

_FIRST = 20  # turns; the width of a window too
_BYTES = """
select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema')
"""


def run(scale: Scale, room: Path) -> Iterator[Row | Curve]:
    races = [_sqlite(room / str(n), scale, n) for n in range(scale.server_rounds)]
    mine, theirs = ((room / "0" / f"{side}.db").stat().st_size for side in ("ours", "theirs"))
    yield _bytes_row("", "SqliteSaver", scale.turns, mine, theirs, 40)
    yield from _rows("", "SqliteSaver", Rounds(races), (0.9, 0.55))
    with servers.postgres() as server:
        urls = [
            [server.database(f"{side}_{n}") for side in ("ours", "theirs")]
            for n in range(scale.server_rounds)
        ]
        races = [_postgres(*pair, scale, n) for n, pair in enumerate(urls)]
        mine, theirs = map(_bytes, urls[0])
    yield _bytes_row("PostgreSQL: ", "PostgresSaver", scale.turns, mine, theirs, 12)
    yield from _rows("PostgreSQL: ", "PostgresSaver", Rounds(races), (0.9, 0.7))


def _sqlite(folder: Path, scale: Scale, seed: int) -> Race:
    folder.mkdir()
    with OutliveSaver(f"sqlite:///{folder}/ours.db") as ours, peer.sqlite(folder / "theirs.db") as saver:
        return graphs.talk(ours, saver, scale.turns, scale.laps, seed)


def _postgres(mine: str, theirs: str, scale: Scale, seed: int) -> Race:
    with OutliveSaver(mine) as ours, peer.postgres(theirs) as saver:
        return graphs.talk(ours, saver, scale.turns, scale.laps, seed)


def _bytes(url: str) -> int:
    with psycopg.connect(url) as connection:
        size = connection.execute(_BYTES).fetchone()
    assert size is not None
    return int(size[0])


def _bytes_row(where: str, saver: str, turns: int, mine: int, theirs: int, bar: float) -> Row:
    versus = Versus(
        f"{where}a LangGraph thread of {turns} turns, unmodified graph", megabytes(mine), megabytes(theirs)
    )
    what = f"{where}LangGraph thread of {turns} turns: bytes of {saver} / ours"
    return at_least(what, theirs / mine, bar, f"{versus.peer} / {versus.ours}", versus)


def _rows(where: str, saver: str, rounds: Rounds, bars: tuple[float, float]) -> Iterator[Row | Curve]:
    duel, first, turns = Duel(rounds, "ours", "theirs"), slice(_FIRST), rounds.laps
    what = f"{where}LangGraph turn"
    few, every = f"{what}, turns 0-{_FIRST}", f"{what}, all {turns}"
    yield duel.row(f"{few} / {saver}", bars[0], first, f"{few}, mean")
    yield duel.row(f"{every} / {saver}", bars[1], headline=f"{every} turns, mean")
    yield duel.row(f"{where}CPU of a LangGraph turn, turns 0-{_FIRST} / {saver}", None, first, by="cpu")
    yield duel.row(f"{where}CPU of a LangGraph turn, all {turns} / {saver}", None, by="cpu")
    for call, name, bar in (
        ("get_state", "state", 1.0),
        (f"get_state_history(limit={graphs.HISTORY})", "history", 0.7),
    ):
        yield Duel(rounds, f"ours {name}", f"theirs {name}").row(f"{where}{call} / {saver}", bar)
    name, title = (
        ("langgraph-postgres", "One turn of a graph, PostgreSQL")
        if where
        else ("langgraph", "One turn of a graph")
    )
    yield curve(name, title, "turn", rounds, _FIRST, {"outlive": "ours", saver: "theirs"})
