"""Kill a process that stores a session of the Claude Agent SDK, and continue from what it stored.

    python examples/claude_sessions.py

It does what the SDK does with a session store while Claude Code works, without starting that. So no key is
needed. The exit code is 0 only if no entry is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from typing import Any

from claude_agent_sdk import SessionKey, get_session_messages_from_store, project_key_for_directory

from outlive.adapters.claude import OutliveSessionStore

SESSION = "0b8f7b1e-7a3b-4c55-9a39-5d3f6a2f4c11"


def entry(role: str, text: str, parent: str | None) -> Any:
    id = str(uuid.uuid5(uuid.NAMESPACE_OID, text))
    after = None if parent is None else str(uuid.uuid5(uuid.NAMESPACE_OID, parent))
    return {
        "type": role, "uuid": id, "parentUuid": after, "sessionId": SESSION,
        "message": {"role": role, "content": text},
    }  # fmt: skip


async def begin(folder: str) -> None:
    sessions = OutliveSessionStore(f"sqlite:///{folder}/agent.db")
    await sessions.append(key_of(folder), [entry("user", "a hotel in Lisbon", None)])
    await sessions.append(key_of(folder), [entry("assistant", "in Alfama?", "a hotel in Lisbon")])
    os.kill(os.getpid(), signal.SIGKILL)


async def finish(folder: str) -> None:
    async with OutliveSessionStore(f"sqlite:///{folder}/agent.db") as sessions:
        key = key_of(folder)
        await sessions.append(key, [entry("user", "in Graça", "in Alfama?")])
        messages = await get_session_messages_from_store(sessions, SESSION, directory=folder)
        newest, before, _ = await sessions.history(key)
        forked = await sessions.fork(key, at=before.id)
        assert len(await sessions.load(key, at=newest.id) or ()) == 3
        assert len(await sessions.list_sessions(key["project_key"])) == 2
        print(f"{len(messages)} messages, and a fork of 2: {forked['session_id'] != SESSION}")


def key_of(folder: str) -> SessionKey:
    return {"project_key": project_key_for_directory(folder), "session_id": SESSION}


def main() -> None:
    if len(sys.argv) == 2:
        asyncio.run(begin(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run([sys.executable, __file__, folder], check=False)
        assert ended.returncode == -signal.SIGKILL
        print("killed in the conversation", flush=True)
        asyncio.run(finish(folder))


if __name__ == "__main__":
    main()
