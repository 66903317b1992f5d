"""What a store has at one moment, for the gauges that ask it.

The gauges of one collection share one look at the store, for a second. It lists the unfinished runs
and the open questions by index, at most 10,000 of each status.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from dataclasses import dataclass, field

from outlive.backend import WALL, EntryQuery, each_entry
from outlive.errors import OutliveError
from outlive.runs.lease import PARKED, RELEASED, RUN, UNFINISHED, RunInfo
from outlive.runtime.runtime import run_now
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import moment

_FRESH_S = 1.0
_PAGE = 500
_MOST = 10_000


@dataclass(slots=True)
class Look:
    """What a store has at one moment."""

    runs: dict[str, int] = field(default_factory=dict)  # by status
    released_age_s: float = 0.0
    dead: int = 0
    dead_age_s: float = 0.0
    questions: int = 0
    questions_age_s: float = 0.0


class WatchedStore:
    """A store that gauges ask, and the attributes that tell it from others."""

    def __init__(self, store: Store | AsyncStore, name: str) -> None:
        self._store = store
        self._sync: AsyncStore | None = None  # the same store, for the thread that collects
        self._look: Look | None = None
        self._looked_at = float("-inf")
        self.after_fork_in_child()
        tenant = self.inner._settings.tenant
        self.attributes = {"outlive.store": name, **({"outlive.tenant": tenant} if tenant else {})}

    def after_fork_in_child(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()

    @property
    def inner(self) -> AsyncStore:
        """The store, without its sync form."""
        return inner_of(self._store)

    def is_closed(self) -> bool:
        """Tell whether the store was closed; then what was opened to ask it is closed too."""
        if not self.inner._is_closed:
            return False
        if self._sync is not None:
            run_now(self._sync.close())
            self._sync = None
        return True

    def look(self) -> Look | None:
        """Return what is there, from a look that is a second old at most; None if it cannot be known."""
        with self._lock:
            if time.monotonic() - self._looked_at > _FRESH_S:
                try:
                    self._look = run_now(_look(self._opened()))
                except OutliveError:
                    self._look = None
                self._looked_at = time.monotonic()
            return self._look

    def _opened(self) -> AsyncStore:
        """Return the store in the sync mode: collections come from threads without an event loop."""
        if isinstance(self._store, Store):
            return self._store._store
        if self._sync is None:
            assert self._store._sync_sibling is not None
            self._sync = self._store._sync_sibling()
        return self._sync


def inner_of(store: Store | AsyncStore) -> AsyncStore:
    """Return the store, without its sync form."""
    return store._store if isinstance(store, Store) else store


async def _look(store: AsyncStore) -> Look:
    look, now = Look(), dt.datetime.now(dt.UTC)
    for status in (*UNFINISHED, PARKED):
        look.runs[status] = await _count(store, status)
    count = 0
    async for run in store.recoverable():
        if run.status == RELEASED:
            look.released_age_s = max(look.released_age_s, _age_s(_released_at(run), now))
        else:
            look.dead += 1
            look.dead_age_s = max(look.dead_age_s, _age_s(_died_at(run, now), now))
        if (count := count + 1) == _MOST:
            break
    async for question in store.questions():
        look.questions += 1
        look.questions_age_s = max(look.questions_age_s, _age_s(question.asked_at, now))
        if look.questions == _MOST:
            break
    return look


async def _count(store: AsyncStore, status: str) -> int:
    count = 0
    query = EntryQuery(store._settings.tenant, RUN, statuses=[status], limit=_PAGE)
    async for _ in each_entry(store._engine.backend, query):
        if (count := count + 1) == _MOST:
            break
    return count


def _released_at(run: RunInfo) -> dt.datetime | None:
    """Return since when any worker may claim a run."""
    entry = run._entry
    return moment(entry.until) if entry is not None and entry.clock == WALL else run.updated_at


def _died_at(run: RunInfo, now: dt.datetime) -> dt.datetime | None:
    """Return since when nothing works on a run, as far as it is known."""
    moments = [at for at in (run.lease_expires_at, run.updated_at) if at is not None and at <= now]
    return max(moments, default=None)


def _age_s(since: dt.datetime | None, now: dt.datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
