"""Loading the newest state of a long conversation, cold and warm, against `get_tuple` of the same state.

Cold: each side is opened anew for every lap and first asked for a thread that is not there, so that
connecting and setting up are outside the clock and the state itself has never been seen. Warm: the same
handle asked again. The peer's file holds only the last few checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver

import ours
import outlive
import peer
from measure import Race, settled
from scale import Scale
from table import Row, Versus, at_most, milliseconds, shown
from workloads import State, conversation

_PEER_HISTORY = 20


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    ours.save_all(room / "store.db", states)
    peer.put_all(room / "peer.db", states[-_PEER_HISTORY:])
    cold, warm = Race(), Race()
    with settled():
        for _ in range(scale.laps):
            _lap(cold, warm, room, states[-1])
    yield _cold(cold, scale.steps)
    note = f"{milliseconds(warm.wall('load'))} against {milliseconds(warm.wall('get_tuple'))}"
    yield shown(f"load at step {scale.steps:,}, warm", note)


def _lap(cold: Race, warm: Race, room: Path, expected: State) -> None:
    with (
        ours.open_store(room / "store.db") as store,
        SqliteSaver.from_conn_string(str(room / "peer.db")) as saver,
    ):
        _connect(store, saver)
        thread, config = store.thread("talk"), peer.thread()
        for race in (cold, warm):
            race.lap(load=thread.load, get_tuple=partial(saver.get_tuple, config))
        if thread.load() != expected:
            raise AssertionError("the newest state came back as another state")


def _connect(store: outlive.Store, saver: SqliteSaver) -> None:
    if store.thread("absent").load() is not None or saver.get_tuple(peer.thread("absent")) is not None:
        raise AssertionError("a thread that nobody saved has a state")


def _cold(race: Race, steps: int) -> Row:
    load, get_tuple = milliseconds(race.wall("load")), milliseconds(race.wall("get_tuple"))
    versus = Versus(f"load at step {steps:,}, cold cache", load, get_tuple)
    ratio = race.ratio("load", "get_tuple")
    return at_most(f"load at step {steps:,}, cold / get_tuple", ratio, 1.2, f"{load} / {get_tuple}", versus)
