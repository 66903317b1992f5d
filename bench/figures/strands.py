"""Sessions of Strands: `OutliveSessionManager` beside the managers that ship.

A conversation of 250 turns grows by two messages of 800 characters with each, some 0.5 MB at the end. Both sides store
each message when it is made. `SnapshotSessionManager` that keeps a state per turn is the peer with a history;
`FileSessionManager` keeps the last state only. What is on disk at the end is measured, and the CPU time of one
conversation on each side.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model
from strands.session import FileSessionManager, SnapshotSessionManager
from strands.storage import LocalFileStorage

from measure import bytes_in
from outlive.adapters.strands import OutliveSessionManager
from scale import Scale
from table import Row, Versus, megabytes, shown
from text import prose
from workloads import SEED

_TURNS = 250
_BYTES = 2_000_000


class _Talker(Model):
    """A model that answers with prose."""

    stateful = False

    def __init__(self) -> None:
        self._rng = random.Random(SEED)

    async def stream(self, messages: Any, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": prose(self._rng, 800)}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def run(scale: Scale, room: Path) -> Iterator[Row]:
    mine, own_s = _talk(room / "mine", _outlive)
    snapshots, snapshots_s = _talk(room / "snapshots", _snapshots)
    files, files_s = _talk(room / "files", lambda folder: FileSessionManager("talk", storage_dir=str(folder)))
    what = f"Strands: bytes of {_TURNS} turns, 0.4 MB of text, with every state"
    note = f"{megabytes(mine)} (SnapshotSessionManager {megabytes(snapshots)}; FileSessionManager {megabytes(files)} with the last)"
    versus = Versus(what, megabytes(mine), megabytes(snapshots))
    yield Row(what, note, f"<= {megabytes(_BYTES)}", mine <= _BYTES, versus)
    times = f"{own_s:.1f} s (SnapshotSessionManager {snapshots_s:.1f} s, FileSessionManager {files_s:.1f} s)"
    yield shown(f"Strands: CPU of {_TURNS} turns, every message stored", times, better="lower")


def _outlive(folder: Path) -> Any:
    return OutliveSessionManager("talk", f"sqlite:///{folder}/agent.db")


def _snapshots(folder: Path) -> Any:
    return SnapshotSessionManager(
        "talk",
        storage=LocalFileStorage(str(folder)),
        save_latest_on="message",
        snapshot_trigger=lambda **_: True,
    )


def _talk(folder: Path, manager_in: Callable[[Path], Any]) -> tuple[int, float]:
    """Return the bytes on disk after a conversation, and its CPU time."""
    folder.mkdir()
    rng, manager = random.Random(SEED + 1), manager_in(folder)
    options: Any = {"conversation_manager": NullConversationManager(), "callback_handler": None}
    agent = Agent(model=_Talker(), session_manager=manager, **options)
    begun = time.process_time()
    for _ in range(_TURNS):
        agent(prose(rng, 800))
    spent = time.process_time() - begun
    again = Agent(model=_Talker(), session_manager=manager_in(folder), **options)
    if len(again.messages) != 2 * _TURNS:
        raise AssertionError("a session came back with other messages")
    for each in (manager, again._session_manager):
        if isinstance(each, OutliveSessionManager):
            each.close()
    return bytes_in(folder), spent
