"""The threads of sessions, by ids that are JSON lists: of a project and a session."""

from __future__ import annotations

import json
from typing import Any

from claude_agent_sdk import SessionKey

from outlive.errors import BadArgument

_CLAUDE = "claude"


def thread_of(key: Any) -> str:
    """Return the id of the thread of a session: its transcript is the root, those of subagents are namespaces."""
    return _text(_part(key, "project_key"), _part(key, "session_id"))


def namespace_of(key: Any) -> str:
    """Return the namespace of a transcript."""
    return "" if key.get("subpath") is None else _part(key, "subpath")


def prefix_of(project_key: str) -> str:
    """Return how the ids of the threads of a project begin."""
    return _text(project_key)[:-1] + ","


def key_of(thread_id: str) -> SessionKey:
    """Return the key of a thread."""
    _, project_key, session_id = json.loads(thread_id)
    return {"project_key": project_key, "session_id": session_id}


def _part(key: Any, name: str) -> str:
    value = key.get(name) if isinstance(key, dict) else None
    if not isinstance(value, str) or not value:
        raise BadArgument(
            f'a session key has "project_key" and "session_id", and "subpath" for a subagent: '
            f"{name} is {value!r:.100}"
        )
    return value


def _text(*parts: str) -> str:
    return json.dumps([_CLAUDE, *parts], separators=(",", ":"), ensure_ascii=False)
