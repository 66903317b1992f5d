"""The threads of an app: its sessions, its shared state and its files, by ids that are JSON lists."""

from __future__ import annotations

import json

_ADK = "adk"


def session_thread(app: str, user: str, session: str) -> str:
    """Return the id of the thread of a session."""
    return _text("session", app, user, session.strip())


def session_prefix(app: str, user: str | None) -> str:
    """Return how the ids of the threads of an app begin, or of one user of it."""
    return _before("session", app, *(() if user is None else (user,)))


def parts_of(thread_id: str) -> list[str]:
    """Return what a thread id was made of, without the first word."""
    parts: list[str] = json.loads(thread_id)[2:]
    return parts


def app_thread(app: str) -> str:
    """Return the id of the thread with the state that all users of an app share."""
    return _text("app", app)


def user_thread(app: str, user: str) -> str:
    """Return the id of the thread with the state that all sessions of a user share."""
    return _text("user", app, user)


def artifact_thread(app: str, user: str, session: str | None, name: str) -> str:
    """Return the id of the thread of a file, of a session or, without one, of a user."""
    return _text(*_owner(app, user, session), name)


def artifact_prefix(app: str, user: str, session: str | None) -> str:
    """Return how the ids of the threads of the files of a session begin, or of a user."""
    return _before(*_owner(app, user, session))


def _owner(app: str, user: str, session: str | None) -> tuple[str, ...]:
    return ("user file", app, user) if session is None else ("file", app, user, session.strip())


def _text(*parts: str) -> str:
    return json.dumps([_ADK, *parts], separators=(",", ":"), ensure_ascii=False)


def _before(*parts: str) -> str:
    return _text(*parts)[:-1] + ","
