"""Sessions of the Claude Agent SDK: `OutliveSessionStore` beside the `InMemorySessionStore`, the only one that ships.

A transcript grows by two entries with 800 characters of text with each append, up to 2,000 entries. Both sides
append in turn on one event loop; ours on a file with `synchronous=FULL`, theirs in memory. On disk are all states;
beside them stand the lines of JSON that the SDK's program writes itself.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claude_agent_sdk import InMemorySessionStore

import growing
from measure import bytes_in
from outlive.adapters.claude import OutliveSessionStore
from scale import Scale
from table import Row, megabytes
from workloads import SEED

_KEY: Any = {"project_key": "bench", "session_id": "talk"}


def run(scale: Scale, room: Path) -> Iterator[Row]:
    turns, mine, theirs = (
        growing.turns_of(scale),
        OutliveSessionStore(f"sqlite:///{room}/agent.db"),
        InMemorySessionStore(),
    )
    with asyncio.Runner() as runner:
        race = growing.grow(runner, _adder(mine), _adder(theirs), turns)
        stored = runner.run(mine.load(_KEY))
        if stored is None or stored != runner.run(theirs.load(_KEY)):
            raise AssertionError("a transcript came back with other entries")
    mine.close()
    lines = sum(len(json.dumps(entry)) + 1 for entry in stored)
    beside = f"lines of JSON {megabytes(lines)} with the last"
    yield from growing.rows("Claude Agent SDK", "InMemorySessionStore", race, bytes_in(room), beside)


def _adder(store: Any) -> growing.Add:
    rng = random.Random(SEED)

    async def add(turn: growing.Turn) -> None:
        await store.append(_KEY, [_entry(rng, role, text) for role, text in zip(_ROLES, turn, strict=True)])

    return add


_ROLES = ("user", "assistant")


def _entry(rng: random.Random, role: str, text: str) -> dict[str, Any]:
    message = {"role": role, "content": [{"type": "text", "text": text}]}
    id = str(uuid.UUID(int=rng.getrandbits(128)))
    return {"type": role, "uuid": id, "sessionId": "talk", "cwd": "/work", "message": message}
