"""Questions to a backend: which entries, threads or checkpoints a page contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlive.backend.keys import ThreadKey
from outlive.backend.records import Cursor

EntryCursor = tuple[str, bytes]  # (key, digest of the thread)


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A page of a thread's checkpoints, newest first; of all namespaces when `namespace` is None."""

    thread: ThreadKey
    namespace: str | None
    before: Cursor | None = None
    limit: int = 100
    run: str | None = None


@dataclass(frozen=True, slots=True)
class EntryQuery:
    """A page of entries of one kind, of one thread or of all threads of a tenant, by (escaped key, thread).

    `lapsed` asks for those whose lease has run out, or has not, by the store's clock.
    """

    tenant: str
    kind: str
    thread: ThreadKey | None = None
    statuses: Sequence[str] | None = None
    lapsed: bool | None = None
    prefix: str = ""
    after: EntryCursor | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ThreadQuery:
    """A page of a tenant's threads by escaped id; `after` is the last id of the page before.

    `only` asks for one thread by its id. Without `heads` a damaged checkpoint does not hide its thread.
    """

    tenant: str
    only: str | None = None
    prefix: str = ""
    after: str | None = None
    limit: int = 100
    heads: bool = True
