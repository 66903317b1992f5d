"""The library's side, opened with its defaults unless a figure says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import outlive
from outlive.backend import EntryQuery
from outlive.runtime.runtime import run_now
from outlive.sync.run import Run
from workloads import State

Place: TypeAlias = Path | str  # a file is SQLite's, a server has a URL


def url(place: Place) -> str:
    return f"sqlite:///{place}" if isinstance(place, Path) else place


def open_store(place: Place, **options: Any) -> outlive.Store:
    return outlive.open(url(place), **options)


def open_async(place: Place, **options: Any) -> outlive.AsyncStore:
    return outlive.open_async(url(place), **options)


def save_all(place: Place, states: Iterable[State], thread_id: str = "talk") -> list[str]:
    """Save each state in turn, close the store, and return the checkpoint ids."""
    with open_store(place) as store:
        thread = store.thread(thread_id)
        return [thread.save(state).id for state in states]


def read_back(place: Place, ids: Sequence[str], states: Sequence[State], samples: int) -> None:
    """Compare some checkpoints of a store opened again, the last among them, with what was saved."""
    every = max(len(ids) // samples, 1)
    with open_store(place) as store:
        thread = store.thread("talk")
        for n in [*range(0, len(ids), every), len(ids) - 1]:
            if thread.load(ids[n]) != states[n]:
                raise AssertionError(f"checkpoint {n} of {len(ids)} came back as another state")


def expect(place: Place, state: State, thread_id: str = "talk") -> None:
    """Compare the newest state of a thread, in a store opened again, with what was saved."""
    with open_store(place) as store:
        if store.thread(thread_id).load() != state:
            raise AssertionError(f"the newest state of {thread_id} came back as another state")


def stored_steps(store: outlive.Store, run: Run) -> int:
    """Return how many steps of a run the store holds."""
    key = run._run._key
    return len(
        run_now(
            store._store._engine.backend.entries(EntryQuery(key.tenant, "step", thread=key, limit=1_000_000))
        )
    )
