"""Sessions of Google ADK that two processes change at once: `OutliveSessionService` beside the `SqliteSessionService` that ships.

Each process reads the session, adds one to a counter in its state and appends the event, 500 times. A
process that is told that the session has changed reads it again. An update is lost when the service
accepted it and the counter does not have it.

Then a session grows by two events with 800 characters of text with each turn, up to 2,000 events. Both sides append in
turn on one event loop; ours keeps the state after each event.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

import growing
from measure import bytes_in
from outlive.adapters.adk import OutliveSessionService
from scale import Scale
from table import Row, Versus, duration, megabytes

_PROCESSES, _UPDATES = 2, 500
_PLACE = {"app_name": "bench", "user_id": "ann", "session_id": "count"}
_WRITER = """
import asyncio, sys
sys.path.insert(0, sys.argv[3])
from figures import adk
print("ready", flush=True)
sys.stdin.readline()
asyncio.run(adk.add_many(adk.opened(sys.argv[1], sys.argv[2])))
"""


def run(scale: Scale, room: Path) -> Iterator[Row]:
    count = _PROCESSES * _UPDATES
    mine, mine_s = _race("mine", room / "mine.db")
    theirs, theirs_s = _race("theirs", room / "theirs.db")
    what = f"Google ADK: lost of {count:,} accepted updates by two processes"
    measured = f"{mine} in {duration(mine_s)} (SqliteSessionService {theirs} in {duration(theirs_s)})"
    yield Row(what, measured, "<= 0", mine == 0, Versus(what, str(mine), str(theirs)))
    yield from _growing(scale, room)


def _growing(scale: Scale, room: Path) -> Iterator[Row]:
    folders = {side: room / side for side in ("mine", "theirs")}
    turns = growing.turns_of(scale)
    with asyncio.Runner() as runner:
        services = {}
        for side, folder in folders.items():
            folder.mkdir()
            services[side] = opened(side, str(folder / "agent.db"))
        adders = {side: runner.run(_adder(service)) for side, service in services.items()}
        race = growing.grow(runner, adders["mine"], adders["theirs"], turns)
        for service in services.values():
            session = runner.run(service.get_session(**_PLACE))
            if len(session.events) != 2 * len(turns):
                raise AssertionError("a session came back with other events")
    services["mine"].close()
    mine, theirs = (bytes_in(folder) for folder in folders.values())
    beside = f"SqliteSessionService {megabytes(theirs)} with the last"
    yield from growing.rows("Google ADK", "SqliteSessionService", race, mine, beside)


async def _adder(service: Any) -> growing.Add:
    session = await service.create_session(**_PLACE)

    async def add(turn: growing.Turn) -> None:
        for author, text in zip(("user", "guide"), turn, strict=True):
            content = types.Content(role="user", parts=[types.Part(text=text)])
            await service.append_event(session, Event(author=author, content=content))

    return add


def opened(side: str, path: str) -> Any:
    """Return the service of a side."""
    return OutliveSessionService(f"sqlite:///{path}") if side == "mine" else SqliteSessionService(path)


def _race(side: str, path: Path) -> tuple[int, float]:
    """Let the processes begin at once; return how many updates were lost, and how long they took."""
    service = opened(side, str(path))
    asyncio.run(service.create_session(**_PLACE, state={"count": 0}))
    command = [sys.executable, "-c", _WRITER, side, str(path), str(Path(__file__).resolve().parent.parent)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen(command, **pipes) for _ in range(_PROCESSES)]
    for writer in writers:
        if writer.stdout.readline() != "ready\n":
            raise AssertionError("a writer did not start")
    start = time.perf_counter()
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        if writer.wait() != 0:
            raise AssertionError("a writer failed")
        writer.stdin.close()
        writer.stdout.close()
    took_s = time.perf_counter() - start
    session = asyncio.run(service.get_session(**_PLACE))
    return _PROCESSES * _UPDATES - session.state["count"], took_s


async def add_many(service: Any) -> None:
    """Add one to the counter, again and again."""
    from google.adk.errors import StaleSessionError
    from google.adk.events import Event, EventActions
    from google.adk.sessions.base_session_service import GetSessionConfig

    done = 0
    while done < _UPDATES:
        session = await service.get_session(**_PLACE, config=GetSessionConfig(num_recent_events=0))
        actions = EventActions(state_delta={"count": session.state["count"] + 1})
        try:
            await service.append_event(session, Event(author="user", actions=actions))
        except StaleSessionError:
            continue
        done += 1
