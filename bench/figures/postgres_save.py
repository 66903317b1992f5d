"""Every durable save of a long conversation in PostgreSQL, `fsync` and `synchronous_commit` on, beside `PostgresSaver.put`.

At each step the lanes take turns in random order, on one server and in one database, each with its whole history: the save; the peer's
`put`; and a bare insert of the new message alone (psycopg, autocommit, prepared, binary). Two `packb` of the state, timed with a
warm buffer, are added to the insert. CPU is process time, all threads: the client's, not the server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ours
import peer
import servers
import yardstick
from compare import Curve, Duel, curve
from measure import Race, Rounds
from races import against_least, bare_lane, race_steps, save_lane
from scale import Scale
from table import Row
from workloads import State, conversation


def run(scale: Scale, room: Path) -> Iterator[Row | Curve]:
    states = conversation(scale.steps)
    with servers.postgres() as server:
        races = [_round(states, server.database(f"round_{n}"), n) for n in range(scale.server_rounds)]
    rounds = Rounds(races)
    duel, first, last = Duel(rounds, "save", "put"), slice(scale.window), slice(-scale.window, None)
    step = f"at step {scale.steps:,}"
    yield against_least(f"PostgreSQL: save {step} / (bare insert + 2 packb)", rounds, scale.window, 1.5)
    yield duel.row(f"PostgreSQL: total of {scale.steps:,} saves / PostgresSaver", 0.5, by="total")
    yield duel.row(f"PostgreSQL: mean save, steps 0-{scale.window} / put", None, first)
    headline = f"PostgreSQL: durable save {step}, mean"
    yield duel.row(f"PostgreSQL: mean save {step} / put", 0.2, last, headline)
    yield duel.row(f"PostgreSQL: client's CPU of a save {step} / put", None, last, by="cpu")
    lanes = {"outlive": "save", "PostgresSaver": "put", "bare insert": "bare"}
    yield curve("postgres-save", "One save in PostgreSQL", "step", rounds, scale.window, lanes)


def _round(states: list[State], url: str, number: int) -> Race:
    with (
        peer.postgres(url) as saver,
        yardstick.BarePostgres(url) as bare,
        ours.open_store(url) as store,
    ):
        store.thread("warm-up").save({"step": 0})
        bare.insert(b"warm")
        put = peer.PutLane(saver)
        lanes = {"save": save_lane(store.thread("talk")), "put": put, "bare": bare_lane(bare.insert)}
        race = race_steps(lanes, states, number)
        put.expect(states[-1])
    ours.expect(url, states[-1])
    return race
