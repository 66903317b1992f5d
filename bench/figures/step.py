"""One step of a run around a function that does nothing, beside one durable save of a small state in the same store.

Two lanes take turns in random order: `run.step`, which stores the value and renews the run's lease by one commit; and
`thread.save` of another thread, whose state changes by a counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ours
import servers
from compare import Duel
from measure import Race, Rounds, settled
from scale import Scale
from table import Row

_WARM_UP = 20


def run(scale: Scale, room: Path) -> Iterator[Row]:
    yield _row("SQLite", [room / f"{n}.db" for n in range(scale.rounds)], scale.tail)
    yield _row("files", [f"file://{room}/{n}" for n in range(scale.rounds)], scale.tail)
    with servers.postgres() as server:
        places = [server.database(f"round_{n}") for n in range(scale.server_rounds)]
        yield _row("PostgreSQL", places, scale.tail)
    with servers.valkey() as server:
        yield _row("Valkey", [server.url] * scale.server_rounds, scale.tail)


def _row(name: str, places: list[ours.Place], laps: int) -> Row:
    rounds = Rounds([_round(place, laps, n) for n, place in enumerate(places)])
    what = f"{name}: step around nothing / durable save"
    return Duel(rounds, "step", "save").row(what, 1.05 if name == "SQLite" else 1.5)


def _round(place: ours.Place, laps: int, number: int) -> Race:
    race, warm_up = Race(number), Race(number)
    with (
        settled(),
        ours.open_store(place) as store,
        store.run(f"worker-{number}", run_id=f"run-{number}") as run,
    ):
        thread = store.thread(f"saver-{number}")
        for lap in range(_WARM_UP + laps):
            state = {"step": lap, "phase": "asking"}
            (race if lap >= _WARM_UP else warm_up).lap(
                step=lambda: run.step("nothing", _nothing),
                save=lambda state=state: thread.save(state),
            )
        if ours.stored_steps(store, run) != _WARM_UP + laps or thread.load() != state:
            raise AssertionError("a step or a state is not as it was stored")
    return race


def _nothing() -> None:
    pass
