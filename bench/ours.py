"""The library's side, opened with its defaults unless a figure says otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import outlive
from workloads import State


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def open_store(path: Path, **options: Any) -> outlive.Store:
    return outlive.open(url(path), **options)


def open_async(path: Path, **options: Any) -> outlive.AsyncStore:
    return outlive.open_async(url(path), **options)


def save_all(path: Path, states: Iterable[State], thread_id: str = "talk") -> list[str]:
    """Save each state in turn, close the store, and return the checkpoint ids."""
    with open_store(path) as store:
        thread = store.thread(thread_id)
        return [thread.save(state).id for state in states]
