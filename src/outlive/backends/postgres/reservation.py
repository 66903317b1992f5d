"""Tickets that one worker lists and claims while other workers pass over them.

One transaction lists entries `for update skip locked` and does the commits that claim them. So two
workers that look at the same moment see different tickets, each the first ones that are left. When
the server or the connection fails, listing and committing continue without a reservation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from psycopg import pq

from outlive.backend import Commit, EntryQuery, EntryRecord, Receipt, ThreadKey, shortest_timeout
from outlive.backends.postgres.connection import IDLE_MS, Connection, Parameter
from outlive.backends.postgres.pool import Pool
from outlive.backends.postgres.rows import digest, number, rows, span, text, to_entry, to_text
from outlive.backends.postgres.save import are_put_together, put_parameters, put_receipt
from outlive.backends.postgres.statements import Statements
from outlive.backends.server.attempts import AttemptFailed
from outlive.errors import DamagedEntry, OutliveError, StoreError
from outlive.runtime.runtime import Deadline

_BEGIN, _COMMIT = ("begin", ()), ("commit", ())
_LIMIT = ("select set_config('idle_in_transaction_session_timeout', $1, true)", (b"%d" % IDLE_MS,))
_LONGEST_S = 5.0  # for one statement; then it continues without a reservation


class Unreserving(Protocol):
    """What continues without a reservation."""

    def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> Awaitable[list[tuple[ThreadKey, EntryRecord]]]: ...
    def commit_all(self, commits: Sequence[Commit]) -> Awaitable[list[Receipt | OutliveError]]: ...
    def commit_alone(self, commit: Commit, *, may_be_done: bool) -> Awaitable[Receipt | OutliveError]: ...


class PostgresReservation:
    """One transaction, from the first listing until the commits."""

    def __init__(self, backend: Unreserving, pool: Pool, sql: Statements) -> None:
        self._backend = backend
        self._pool = pool
        self._sql = sql
        self._connection: Connection | None = None
        self._is_over = False

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        if (
            self._is_over
            or query.thread is not None
            or query.statuses is not None
            or query.lapsed is not None
        ):
            return await self._backend.entries(query, timeout_s=timeout_s)
        deadline = Deadline(_LONGEST_S if timeout_s is None else timeout_s)
        try:
            answer = await self._list(query, deadline)
        except (AttemptFailed, StoreError):
            await self.release()
            return await self._backend.entries(query, timeout_s=timeout_s)
        return [_entry(query, *cells) for cells in rows(answer)]

    async def _list(self, query: EntryQuery, deadline: Deadline) -> pq.abc.PGresult:
        listing = self._sql.reserve, _parameters(query)
        if self._connection is not None:
            return await self._connection.query(*listing, deadline)
        self._connection = await self._pool.take(deadline)
        answers = await self._connection.exchange(_BEGIN, _LIMIT, listing, deadline=deadline)
        return answers[-1]

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        order = sorted(range(len(commits)), key=lambda place: commits[place].thread.digest)
        if self._connection is None or not are_put_together(commits):
            await self.release()
            return await self._backend.commit_all(commits)
        results: list[Receipt | OutliveError | None] = [None] * len(commits)
        timeout_s = shortest_timeout(commits)
        # Half of the time is left for commits that continue without the reservation.
        deadline = Deadline(_LONGEST_S if timeout_s is None else min(_LONGEST_S, timeout_s / 2))
        values = put_parameters([commits[place] for place in order], [b""] * len(commits), deadline)
        try:
            puts, _ = await self._connection.exchange((self._sql.put, values), _COMMIT, deadline=deadline)
            answer = list(rows(puts))
        except (AttemptFailed, StoreError):  # nothing was stored, or the tokens tell what was
            answer = []
        finally:
            await self.release()
        for place, cells in zip(order, answer, strict=False):
            if cells[1] is not None:
                results[place] = put_receipt(commits[place], cells)
        return [
            result or await self._backend.commit_alone(commit, may_be_done=not answer)
            for commit, result in zip(commits, results, strict=True)
        ]

    async def release(self) -> None:
        """Give the connection back, without a transaction."""
        if self._is_over:
            return
        connection, self._connection, self._is_over = self._connection, None, True
        try:
            if connection is not None and connection.is_in_transaction:
                await connection.run("rollback", Deadline(_LONGEST_S))
        except (AttemptFailed, StoreError):
            pass  # the server rolls it back when the connection ends
        finally:
            if connection is not None:
                self._pool.give_back(connection)
            self._pool.end_reservation()


def _parameters(query: EntryQuery) -> list[Parameter]:
    last = None if query.after is None else query.after[0]
    return [
        digest(query.tenant),
        text(query.kind),
        *span(query.prefix, last),
        text(query.prefix),
        text(last),
        number(query.limit),
    ]


def _entry(
    query: EntryQuery, id: bytes | None, place: bytes | None, *cells: bytes | None
) -> tuple[ThreadKey, EntryRecord]:
    key = ThreadKey(query.tenant, to_text(id), place or b"")
    entry = to_entry(cells, key)
    if key.digest != ThreadKey.of(query.tenant, key.id).digest:
        what = "its thread's row says that it is another thread"
        raise DamagedEntry(key.id, query.kind, entry.key, entry.status, what)
    return key, entry
