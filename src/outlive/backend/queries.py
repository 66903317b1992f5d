"""Questions to a backend: which entries, threads or checkpoints a page contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlive.backend.keys import ThreadKey
from outlive.backend.records import Cursor

ThreadCursor = tuple[int, str]  # (updated_at, id)
EntryCursor = tuple[str, bytes]  # (key, digest of the thread)


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A page of the checkpoints of a thread, newest first; `namespace=None`: of all namespaces."""

    thread: ThreadKey
    namespace: str | None
    before: Cursor | None = None
    limit: int = 100
    run: str | None = None


@dataclass(frozen=True, slots=True)
class EntryQuery:
    """A page of entries of one kind, of one thread or a whole tenant, by (escaped key, thread).

    `lapsed` selects entries whose lease has expired, or has not, by the clock of the store.
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
    """A page of the threads of a tenant by escaped id; `after` is the last id of the page before.

    `only` selects one thread by its id. Without `heads` a damaged checkpoint does not hide its
    thread. With `newest` the page is by time of the last change, newest first, then by escaped id;
    then `before` is (updated_at, id) of the last thread of the page before, and `prefix` and
    `after` are not used. An index finds that page, so a row that is lost does not show there.
    """

    tenant: str
    only: str | None = None
    prefix: str = ""
    after: str | None = None
    limit: int = 100
    heads: bool = True
    newest: bool = False
    before: ThreadCursor | None = None
