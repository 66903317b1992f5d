"""Durable steps that each return the next message of a conversation, beside DBOS: checkpoints by steps, not by states.

A run and one workflow of DBOS take turns in random order at every step; each stores what its step returned. DBOS is used as its
documentation shows, its system database on the same PostgreSQL server (`fsync` and `synchronous_commit` on), then in a SQLite file of
its own with its defaults. Each round has new databases.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dbos import DBOS, SetWorkflowID

import dbos_workflows
import ours
import servers
from compare import Curve, Duel, curve
from measure import Race, Rounds, settled
from scale import Scale
from table import Row
from workloads import Message, messages


def run(scale: Scale, room: Path) -> Iterator[Row | Curve]:
    talk = messages(scale.durable_steps)
    with servers.postgres() as server:
        places = [
            (server.database(f"ours_{n}"), server.database(f"theirs_{n}")) for n in range(scale.server_rounds)
        ]
        yield from _rows("PostgreSQL", talk, places)
    files = [
        (ours.url(room / f"ours-{n}.db"), f"sqlite:///{room}/theirs-{n}.db")
        for n in range(scale.server_rounds)
    ]
    yield from _rows("SQLite", talk, files)


def _rows(name: str, talk: list[Message], places: list[tuple[str, str]]) -> Iterator[Row | Curve]:
    rounds = Rounds([_round(*pair, talk, n) for n, pair in enumerate(places)])
    what = f"{name}: {len(talk):,} durable steps / {dbos_workflows.NAME}"
    yield Duel(rounds, "ours", "theirs").row(what, 0.5, by="total")
    lanes = {"outlive": "ours", dbos_workflows.NAME: "theirs"}
    yield curve(f"steps-{name.lower()}", f"One durable step, {name}", "step", rounds, 50, lanes)


def _round(url: str, peer_url: str, talk: list[Message], seed: int) -> Race:
    """Race inside one workflow; the first step of each side warms up."""
    race = Race(seed)
    with dbos_workflows.launched(peer_url), ours.open_store(url) as store, store.run("worker") as run:

        def body() -> None:
            _warm = run.step("message", lambda: talk[0]), dbos_workflows.keep(talk[0])
            with settled():
                for message in talk:
                    race.lap(
                        ours=partial(run.step, "message", lambda message=message: message),
                        theirs=partial(dbos_workflows.keep, message),
                    )

        with SetWorkflowID("talk"):
            dbos_workflows.inside_workflow(body)
        _expect(ours.stored_steps(store, run), len(talk) + 1)
        _expect(len(DBOS.list_workflow_steps("talk")), len(talk) + 1)
    return race


def _expect(stored: int, count: int) -> None:
    if stored != count:
        raise AssertionError(f"{stored} steps are stored instead of {count}")
