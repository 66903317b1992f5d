"""One durable save at the end of a long conversation in PostgreSQL, `fsync` and `synchronous_commit` on.

At each of the last steps three lanes take turns in random order, on one server and in one database: the save;
`PostgresSaver.put` of the same state; and a bare insert of the new message alone (psycopg, autocommit, prepared, binary).
Two `packb` of the state, timed with a warm buffer, are added to the insert. The median of the rounds
counts. The peer's tables hold only a few dozen earlier checkpoints, which favours the peer. CPU is process time, all
threads: the client's, not the server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import ours
import peer
import servers
import yardstick
from measure import Race, settled
from races import SaveRace
from scale import Scale
from table import Row, Versus, at_least, at_most, milliseconds
from workloads import State, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    with servers.postgres() as server:
        races = [
            _round(states, scale.tail, server.database(f"round_{n}"), n) for n in range(scale.server_rounds)
        ]
    step = f"at step {scale.steps:,}"
    yield _against_bare(races, step)
    yield _against_put(races, step)
    yield _cpu(races, step)


def _round(states: list[State], tail: int, url: str, number: int) -> Race:
    with (
        settled(),
        peer.postgres(url) as saver,
        yardstick.BarePostgres(url) as bare,
        ours.open_store(url) as store,
    ):
        race = SaveRace(store.thread("talk"), lambda _, new: bare.insert(new), saver, number).run(
            states, tail
        )
    ours.expect(url, states[-1])
    return race


def _against_bare(races: list[Race], step: str) -> Row:
    save, least = median(race.wall("save") for race in races), median(map(yardstick.least, races))
    ratio = median(race.wall("save") / yardstick.least(race) for race in races)
    note = f"{milliseconds(save)} / {milliseconds(least)}"
    return at_most(f"PostgreSQL: save {step} / (bare insert + 2 packb)", ratio, 2, note)


def _against_put(races: list[Race], step: str) -> Row:
    save, put = (median(race.wall(lane) for race in races) for lane in ("save", "put"))
    ratio = median(race.ratio("put", "save") for race in races)
    versus = Versus(f"PostgreSQL: durable save {step}", milliseconds(save), milliseconds(put))
    note = f"{versus.ours} against {versus.peer}"
    return at_least(f"PostgreSQL: save {step}, faster than put", ratio, 5, note, versus)


def _cpu(races: list[Race], step: str) -> Row:
    save, put = (median(race.cpu(lane) for race in races) for lane in ("save", "put"))
    versus = Versus(f"PostgreSQL: client's CPU of a save {step}", milliseconds(save), milliseconds(put))
    return Row(versus.what, f"{versus.ours} against {versus.peer}", versus=versus)
