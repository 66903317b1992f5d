"""PostgreSQL: one statement per save and per load.

A save is one call of a function (`functions.sql`) that locks the thread's row, checks what the save
expects, and stores all of it: one round trip, one transaction, no lock held between calls. Saves of
different threads run in parallel. A load is one statement, so it sees one moment. Rarer commits
(replacing, merging, removing, metadata) are decided by the same rules as for local backends, in a
transaction that holds the same lock.

Times and leases follow the server's clock. After dropped connections, restarts and failovers a call
tries again until its deadline (`server.Attempts`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from psycopg import pq

from outlive.backend import (
    CachedHead,
    CheckpointRecord,
    Commit,
    Cursor,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Inventory,
    Page,
    ReadResult,
    Receipt,
    Reservation,
    ThreadKey,
    ThreadQuery,
    ThreadRecord,
    Totals,
    Unreserved,
    WriteRecord,
    outcome_unknown,
    shortest_timeout,
)
from outlive.backends.postgres.audit import audit_store, audit_thread
from outlive.backends.postgres.connection import Connection, Parameter
from outlive.backends.postgres.groups import MOST, Groups, Member, sent_together
from outlive.backends.postgres.leases import is_renewal, renewal_parameters, renewal_receipts
from outlive.backends.postgres.pool import Pool
from outlive.backends.postgres.reservation import PostgresReservation
from outlive.backends.postgres.rows import (
    Cells,
    blobs,
    digest,
    flag,
    number,
    rows,
    space,
    span,
    text,
    texts,
    to_checkpoint,
    to_entry,
    to_maybe_text,
    to_names,
    to_number,
    to_text,
    to_thread_row,
    to_writes,
)
from outlive.backends.postgres.save import (
    are_put_together,
    check_acceptable,
    is_light,
    may_be_grouped,
    parameters,
    put_one_parameters,
    put_parameters,
    put_receipt,
    receipt,
    thread_parameters,
)
from outlive.backends.postgres.statements import (
    PROBLEMS,
    VERSION,
    functions_script,
    quoted,
    schema_script,
    statements,
)
from outlive.backends.postgres.transaction import Transaction
from outlive.backends.postgres.watch import PostgresWatch, channel
from outlive.backends.rules.decide import new_generation
from outlive.backends.rules.snapshot import is_plain
from outlive.backends.server.attempts import AbandonedCommits, AttemptFailed, Attempts, lock_ms
from outlive.errors import (
    Corrupt,
    DamagedEntry,
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    NewerFormat,
    OutliveError,
    SchemaMissing,
    StaleBase,
    StoreError,
)
from outlive.runtime.runtime import Deadline

T = TypeVar("T")
_PUT_S = 5.0  # the longest wait for the answer to a group; then each commit continues alone
_RENEWED = 1000  # commits whose leases one statement renews
_FIRST: Cursor = ((1 << 63) - 1, (1 << 63) - 1, "")  # before every record


class PostgresBackend:
    """The backend protocol over a pool of connections; the pool is sync or async."""

    name = "postgresql"

    def __init__(
        self,
        pool: Pool,
        groups: Groups,
        *,
        schema: str,
        where: str,
        max_retries: int | None,
        timeout_s: float | None,
    ) -> None:
        self._pool = pool
        self._groups = groups
        self._timeout_s = timeout_s
        self._schema = quoted(schema)
        self._sql = statements(self._schema)
        self._where = where
        self._max_retries = max_retries
        self._abandoned = AbandonedCommits()

    # Calling

    async def _call(
        self,
        work: Callable[[Connection, Deadline], Awaitable[T]],
        timeout_s: float | None = None,
        commit: Commit | None = None,
        *,
        may_be_done: bool = False,
    ) -> T:
        """Do work on a connection, and again on another one when the server was lost."""
        deadline = Deadline(self._timeout_s if timeout_s is None else timeout_s)
        attempts = Attempts(self._where, deadline, self._max_retries, self._pool.pause)
        if may_be_done and commit is not None:  # an attempt with others got no answer
            attempts.sent, attempts.count = True, 1
            if self._max_retries == 0:
                raise outcome_unknown(commit, "no answer")

        async def attempt(deadline: Deadline) -> T:
            connection = await self._pool.take(deadline)
            try:
                return await work(connection, deadline)
            finally:
                self._pool.give_back(connection)

        return await attempts.run(attempt, commit)

    async def _ask(
        self, statement: str, *parameters: Parameter, timeout_s: float | None = None
    ) -> list[list[bytes | None]]:
        async def work(connection: Connection, deadline: Deadline) -> list[list[bytes | None]]:
            return list(rows(await connection.query(statement, parameters, deadline)))

        return await self._call(work, timeout_s)

    async def close(self) -> None:
        await self._pool.close()

    # The store itself

    async def identity(self, offered: bytes) -> bytes:
        try:
            answer = await self._ask(self._sql.identity)
        except SchemaMissing:
            answer = []
        if not (answer or offered):
            return offered
        if not answer:
            await self._call(self._migrate(offered))
            answer = await self._ask(self._sql.identity)
        if not answer:
            raise Corrupt("the row that holds the store's naming key is gone; put it back from a backup")
        ((version, key, has_functions),) = answer
        if to_number(version) > VERSION:
            raise NewerFormat("the schema in PostgreSQL", to_number(version), VERSION)
        if has_functions != b"\1":  # another version of outlive made the store
            await self._call(self._migrate(b""))
        return key or b""

    def _migrate(self, offered: bytes) -> Callable[[Connection, Deadline], Awaitable[None]]:
        """Create what is missing of the tables and functions; of many processes that try at once, one does."""

        async def work(connection: Connection, deadline: Deadline) -> None:
            turn = zlib.crc32(b"outlive " + self._schema.encode())
            async with connection.transaction(deadline):
                await connection.query(f"select pg_advisory_xact_lock({turn})", (), deadline)
                if not await _is_there(connection, self._schema, "to_regnamespace", deadline):
                    await connection.run(f"create schema {self._schema}", deadline)
                if not await _is_there(connection, f"{self._schema}.store", "to_regclass", deadline):
                    await connection.run(schema_script(self._schema), deadline)
                if not await _is_there(connection, f"{self._schema}.save_1", "to_regproc", deadline):
                    await connection.run(functions_script(self._schema), deadline)
                if offered:
                    await connection.query(self._sql.adopt, (offered,), deadline)

        return work

    # Committing

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        if len(commits) < 2 or not all(map(is_renewal, commits)):
            return await self._commit_groups(commits)
        receipts = await self._renew(commits)
        left = [commit for commit, receipt in zip(commits, receipts, strict=True) if receipt is None]
        results = iter(await self._commit_groups(left))
        return [next(results) if receipt is None else receipt for receipt in receipts]

    async def _renew(self, commits: Sequence[Commit]) -> list[Receipt | None]:
        """Renew the leases of commits; None: an ordinary commit tells why it was not done."""
        receipts: list[Receipt | None] = []
        for start in range(0, len(commits), _RENEWED):
            group = commits[start : start + _RENEWED]
            try:
                # Half of the time is left for those that were not renewed.
                answer = await self._ask(
                    self._sql.renew,
                    *renewal_parameters(group),
                    timeout_s=(shortest_timeout(group) or _PUT_S) / 2,
                )
            except StoreError:  # if they are renewed all the same, they are once more
                answer = []
            receipts += renewal_receipts(group, answer)
        return receipts

    async def _commit_groups(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        results: list[Receipt | OutliveError] = []
        for start in range(0, len(commits), MOST):
            group = commits[start : start + MOST]
            if len(group) > 1 and are_put_together(group):
                results += await self._put_together(group)
            elif len(group) > 1 and all(map(may_be_grouped, group)):
                results += await self._commit_together(group)
            else:
                results += [await _result(self._commit(commit)) for commit in group]
        return results

    async def _put_together(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do commits that only have entries, such as the renewals of many leases, by one statement."""
        deadline = Deadline(shortest_timeout(commits) or self._timeout_s)
        members = sent_together(commits, time.monotonic() + deadline.remaining_s())
        await self._put(sorted(members, key=lambda member: member.commit.thread.digest))
        return [
            put_receipt(member.commit, member.cells)
            if member.cells is not None
            else await self.commit_alone(member.commit, may_be_done=member.may_be_done)
            for member in members
        ]

    async def _commit_together(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do many commits in one transaction.

        A refused one changes nothing; the others are stored.
        """
        timeout_s = shortest_timeout(commits)
        # Sorted by thread, so that two processes that do this at once do not deadlock.
        order = sorted(range(len(commits)), key=lambda index: commits[index].thread.digest)

        async def work(connection: Connection, attempt: Deadline) -> dict[int, Cells]:
            answers: dict[int, Cells] = {}
            async with connection.transaction(attempt):
                for index in order:
                    values = parameters(commits[index], b"", attempt)
                    answers[index] = next(rows(await connection.query(self._sql.save, values, attempt)))
            return answers

        deadline = Deadline(self._timeout_s if timeout_s is None else timeout_s)
        try:
            answers = await self._call(work, timeout_s)
        except StoreError as error:
            return [outcome_unknown(commit, str(error)) for commit in commits]
        return [
            await _result(self._receipt(commit, answers[index], deadline))
            for index, commit in enumerate(commits)
        ]

    async def _commit(self, commit: Commit, *, is_alone: bool = False, may_be_done: bool = False) -> Receipt:
        """Do a commit.

        The thread's next commit tells the server about one that its caller gave up: it then comes
        too late.
        """
        try:
            return await self._abandoned.watch(
                commit, lambda void: self._send(commit, void, is_alone, may_be_done)
            )
        except Corrupt as error:
            if error.thread is not None:
                raise
            raise Corrupt(error.what, thread=commit.thread.id) from None

    async def _send(self, commit: Commit, void: bytes, is_alone: bool, may_be_done: bool) -> Receipt:
        check_acceptable(commit)
        if not is_plain(commit):

            async def transact(connection: Connection, deadline: Deadline) -> Receipt:
                return await Transaction(connection, self._schema, commit, void, deadline).run()

            return await self._call(transact, commit.timeout_s, commit)
        deadline = Deadline(self._timeout_s if commit.timeout_s is None else commit.timeout_s)
        if is_light(commit) and not is_alone:
            member = Member(commit, void, time.monotonic() + deadline.remaining_s())
            await self._groups.join(member, self._put)
            if member.cells is not None:
                return put_receipt(commit, member.cells)
            may_be_done = member.may_be_done

        async def save(connection: Connection, attempt: Deadline) -> list[bytes | None]:
            result = await connection.query(self._sql.save, parameters(commit, void, attempt), attempt)
            return next(rows(result))

        cells = await self._call(save, deadline.as_timeout_s(), commit, may_be_done=may_be_done)
        try:
            return await self._receipt(commit, cells, deadline)
        except (StaleBase, Corrupt):
            raise
        except StoreError as error:  # the commit was done; what it stored could not be read back
            raise outcome_unknown(commit, str(error)) from error

    async def commit_alone(self, commit: Commit, *, may_be_done: bool) -> Receipt | OutliveError:
        """Do a commit that was sent with others before."""
        return await _result(self._commit(commit, is_alone=True, may_be_done=may_be_done))

    async def _put(self, group: Sequence[Member]) -> None:
        """Do what can be done of a group in one transaction. Each other commit continues alone."""
        # Half of the time is left for those that continue alone.
        left_s = min(member.until for member in group) - time.monotonic()
        deadline = Deadline(max(0.0, min(_PUT_S, left_s / 2)))
        try:
            connection = await self._pool.take(deadline)
        except (AttemptFailed, StoreError):  # a commit that continues alone says what is wrong
            for member in group:
                member.settle(None)
            return
        try:
            if len(group) == 1:
                statement, values = (
                    self._sql.put_one,
                    put_one_parameters(group[0].commit, group[0].void, deadline),
                )
            else:
                commits, voids = [member.commit for member in group], [member.void for member in group]
                statement, values = self._sql.put, put_parameters(commits, voids, deadline)
            answer = await connection.query(statement, values, deadline)
        except AttemptFailed as failed:
            if not failed.sent:
                for member in group:
                    member.settle(None)
        except StoreError:  # the server refused all of it
            for member in group:
                member.settle(None)
        else:
            for member, cells in zip(group, rows(answer), strict=True):
                member.settle(None if cells[1] is None else cells)
        finally:
            self._pool.give_back(connection)

    async def _receipt(self, commit: Commit, cells: Cells, deadline: Deadline) -> Receipt:
        """Read the answer of the function: its verdict, and the fields that the server assigns."""
        verdict = to_text(cells[0])
        if verdict in ("existing", "repeated"):
            return await self._stored_receipt(commit, cells, deadline)
        if verdict == "damaged":
            raise Corrupt(to_text(cells[7]), thread=commit.thread.id)
        if verdict != "done":
            raise await self._refusal(commit, verdict, cells, deadline)
        return receipt(commit, cells)

    async def _stored_receipt(self, commit: Commit, cells: Cells, deadline: Deadline) -> Receipt:
        """Return the stored checkpoint: it was saved before, or this commit was done before."""
        key, receipt = commit.thread, Receipt(to_number(cells[1]), to_number(cells[2]))
        for draft in commit.checkpoints:
            reading = await self.read(
                key, draft.namespace, draft.id, chunks=False, timeout_s=deadline.as_timeout_s()
            )
            if reading.record is None:  # deleted since
                raise StaleBase(key.id)
            receipt.existing = reading.record
        if receipt.existing is None:
            stored = [await self._entry(key, entry, deadline) or entry for entry in commit.entries]
            receipt.entries, receipt.writes = tuple(stored), commit.writes
        return receipt

    async def _refusal(self, commit: Commit, verdict: str, cells: Cells, deadline: Deadline) -> OutliveError:
        thread, number = commit.thread.id, to_number(cells[8])
        if verdict == "fence":
            assert commit.fence is not None
            kind, key, _, fence = commit.fence
            return LeaseLost(thread, kind, key, fence, None if cells[8] is None else number)
        if verdict == "epoch":
            return EpochPassed(thread, commit.epoch or 0, number)
        if verdict == "head":
            assert commit.expect_head is not None
            return HeadMoved(thread, *commit.expect_head, to_maybe_text(cells[7]))
        if verdict == "entry":
            entry = commit.entries[number]
            stored = await self._entry(commit.thread, entry, deadline)
            return EntryHeld(thread, entry.kind, entry.key, stored)
        return StaleBase(thread, None if cells[1] is None else to_number(cells[1]), to_names(cells[12]))

    async def _entry(self, thread: ThreadKey, wanted: EntryRecord, deadline: Deadline) -> EntryRecord | None:
        """Return the stored entry."""
        entries = await self.entries(
            EntryQuery(thread.tenant, wanted.kind, thread=thread, prefix=wanted.key, limit=1),
            timeout_s=deadline.as_timeout_s(),
        )
        return next((entry for _, entry in entries if entry.key == wanted.key), None)

    async def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        async def work(connection: Connection, deadline: Deadline) -> int:
            result = await connection.query(
                self._sql.share,
                (
                    b"%d" % lock_ms(deadline),
                    source.digest,
                    *thread_parameters(target),
                    number(new_generation()),
                    b"".join(dict.fromkeys(names)),
                ),
                deadline,
            )
            return to_number(result.get_value(0, 0))

        try:
            return await self._call(work)
        except Corrupt as error:
            raise Corrupt(error.what, thread=target.id) from None

    # Reading

    async def read(
        self,
        thread: ThreadKey,
        namespace: str,
        id: str | None = None,
        *,
        at: int | None = None,
        known: CachedHead | None = None,
        chunks: bool = True,
        timeout_s: float | None = None,
    ) -> ReadResult:
        at_hand = (text(known.id), b"".join(known.chunks)) if known is not None else (None, None)
        name = space(namespace) if id is None else digest(namespace, id)
        parameters: list[Parameter] = [thread.digest, name, *at_hand, flag(chunks)]
        statement = self._sql.read_head_of if namespace else self._sql.read_head
        if id is not None:
            statement = self._sql.read_id
            parameters += [text(id), text(namespace)]
        elif at is not None:
            statement = self._sql.read_at
            parameters.append(number(at))
        reading = _reading(await self._ask(statement, *parameters, timeout_s=timeout_s), thread)
        record = reading.record
        if record is not None and (record.namespace != namespace or record.id != (id or record.id)):
            raise Corrupt("its row stands where another belongs", thread=thread.id, checkpoint=record.id)
        return reading

    async def history(
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]:
        parameters = _page_parameters(query)
        statement = self._sql.history_of_all
        if query.namespace is not None:
            statement = self._sql.history
            parameters.append(space(query.namespace))
        rows = await self._ask(statement, *parameters, timeout_s=timeout_s)
        records = _records(query, [cells[2:] for cells in rows if cells[2] is not None])
        # Last: an error about one row is the better answer.
        _check(rows, query.thread.id)
        return to_number(rows[0][1]), records[: query.limit]

    async def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page:
        parameters = [*_page_parameters(query), number(max_bytes)]
        statement = self._sql.states_of_all
        if query.namespace is not None:
            statement = self._sql.states
            parameters.append(space(query.namespace))
        rows = await self._ask(statement, *parameters, timeout_s=timeout_s)
        heads = [cells for cells in rows if cells[3] is None]
        bodies = [cells for cells in rows if cells[3] is not None]
        records = _records(query, [cells[5:] for cells in heads if cells[5] is not None])
        _check(heads, query.thread.id)
        chunks = {name or b"": data or b"" for _, _, _, name, data, *_ in bodies}
        _, generation, count, *_ = heads[0]
        return Page(to_number(generation), records, chunks, len(records) < to_number(count))

    async def writes(
        self, thread: ThreadKey, checkpoints: Sequence[tuple[str, str]] | None, timeout_s: float | None = None
    ) -> list[WriteRecord]:
        if checkpoints is None:
            answer = await self._ask(self._sql.writes_of_all, thread.digest, timeout_s=timeout_s)
        else:
            pairs = blobs([digest(*pair) for pair in checkpoints])
            answer = await self._ask(self._sql.writes, thread.digest, pairs, timeout_s=timeout_s)
        writes = to_writes([cells[1:] for cells in answer if cells[1] is not None], thread)
        _check(answer, thread.id)
        return writes

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        tenant, thread = query.tenant, query.thread
        last, last_thread = query.after if query.after is not None else (None, None)
        parameters: list[Parameter] = [
            digest(tenant),
            text(tenant),
            text(query.kind),
            *span(query.prefix, last),
            text(query.prefix),
            text(last),
            last_thread,
            None if query.statuses is None else texts(query.statuses),
            None if query.lapsed is None else flag(query.lapsed),
            number(query.limit),
        ]
        statement = self._sql.entries
        if query.statuses is not None and len(query.statuses) == 1 and thread is None:
            # The index has the entries of one status in the order of their keys.
            statement, parameters[8] = self._sql.entries_of_status, text(query.statuses[0])
        if thread is not None:
            statement = self._sql.entries_of_thread
            parameters.append(thread.digest)
        rows = await self._ask(statement, *parameters, timeout_s=timeout_s)
        entries = []
        for problem, id, thread_digest, *cells in rows:
            if cells[0] is None:
                continue
            key = ThreadKey(tenant, to_text(id), thread_digest or b"")
            entry = to_entry(cells, key)
            what = PROBLEMS.get(to_number(problem))
            if key.digest != ThreadKey.of(tenant, key.id).digest:
                what = "its thread's row says that it is another thread"
            if thread is None and what:
                raise DamagedEntry(key.id, query.kind, entry.key, entry.status, what)
            entries.append((key, entry))
        if thread is not None:
            _check(rows, thread.id)
        return entries

    async def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRecord]:
        tenant, prefix, after = query.tenant, query.prefix, query.after
        if query.only is not None:
            statement = self._sql.thread
            parameters: list[Parameter] = [ThreadKey.of(tenant, query.only).digest]
        elif query.newest:
            at, id = query.before or (_FIRST[0], "")
            statement = self._sql.newest_threads
            parameters = [digest(tenant), text(tenant), number(at), text(id), number(query.limit)]
        else:
            statement, tenant_key = self._sql.threads, (digest(tenant), text(tenant))
            parameters = [*tenant_key, *span(prefix, after), text(prefix), text(after), number(query.limit)]
        rows = await self._ask(statement, flag(query.heads), *parameters, timeout_s=timeout_s)
        return [_thread_row(cells, tenant, query.only) for cells in rows]

    async def totals(self, tenant: str, *, timeout_s: float | None = None) -> Totals:
        (row,) = await self._ask(self._sql.tenant_totals, digest(tenant), text(tenant), timeout_s=timeout_s)
        return Totals(*map(to_number, row))

    async def inventory(self, thread: ThreadKey, timeout_s: float | None = None) -> Inventory:
        answer = await self._ask(self._sql.inventory, thread.digest, timeout_s=timeout_s)
        _check(answer, thread.id)
        chunks = {
            name: (to_number(size), to_number(stamp))
            for _, _, _, name, size, stamp in answer
            if name is not None
        }
        return Inventory(to_number(answer[0][1]), to_number(answer[0][2]), chunks)

    async def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        answer = await self._ask(self._sql.fetch, thread.digest, blobs(list(names)), timeout_s=timeout_s)
        return {name or b"": data or b"" for name, data in answer}

    async def facts(self) -> dict[str, object]:
        names = ("fsync", "synchronous_commit", "full_page_writes", "server_version")
        shown = ", ".join(f"current_setting('{name}')" for name in names)
        ((version, *_),) = await self._ask(self._sql.identity)
        ((now, *cells),) = await self._ask(
            f"select (extract(epoch from clock_timestamp()) * 1000000)::bigint, {shown}"
        )
        settings = dict(zip(names, map(to_text, cells), strict=True))
        return {
            "backend": self.name,
            "engine": f"PostgreSQL {settings.pop('server_version')}",
            "location": f"schema {self._schema}",
            "format": to_number(version),
            "format_written": VERSION,
            "settings": settings,
            "lease_clock_us": to_number(now),
        }

    async def reserve(self) -> Reservation:
        if not self._pool.begin_reservation():
            return Unreserved(self)
        return PostgresReservation(self, self._pool, self._sql)

    async def watch(self, tenant: str) -> PostgresWatch:
        """Listen on a connection of its own, beside those of the pool."""
        watch = PostgresWatch(self._pool, channel(self._schema, tenant))
        await watch.listen(0.0)
        return watch

    async def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        if thread is None:
            return await audit_store(self._sql, self._ask)
        return await audit_thread(self, self._sql, self._ask, thread)


def _page_parameters(query: HistoryQuery) -> list[Parameter]:
    epoch, seq, id = query.before or _FIRST
    order: list[Parameter] = [number(epoch), number(seq), id.encode()]
    return [query.thread.digest, *order, text(query.run), number(query.limit)]


def _records(query: HistoryQuery, rows: list[list[bytes | None]]) -> list[CheckpointRecord]:
    """Return the records of a page, newest first."""
    thread, namespace = query.thread, query.namespace
    records = [to_checkpoint(cells, thread) for cells in rows]
    for record in records:
        if namespace is not None and record.namespace != namespace:
            raise Corrupt("its row is in another namespace", thread=thread.id, checkpoint=record.id)
    records.sort(key=lambda record: record.order, reverse=True)  # those of one position by their ids
    return records


async def _result(work: Awaitable[Receipt]) -> Receipt | OutliveError:
    try:
        return await work
    except OutliveError as error:
        return error


def first_statements(schema: str) -> tuple[str, ...]:
    """Return what every connection prepares at once: a first save or load takes one round trip."""
    sql = statements(quoted(schema))
    return sql.save, sql.put_one, sql.put, sql.read_head


def _check(answer: list[list[bytes | None]], thread: str) -> None:
    """Raise if a statement reports a problem of a thread."""
    if problem := to_number(answer[0][0]):
        raise Corrupt(PROBLEMS[problem], thread=thread)


def _reading(answer: list[list[bytes | None]], thread: ThreadKey) -> ReadResult:
    reading = ReadResult(0)
    writes = []
    for kind, generation, *cells in answer:
        match to_number(kind):
            case 0:
                reading.generation = to_number(generation)
                reading.record = to_checkpoint(cells, thread) if cells[0] is not None else None
            case 1:
                reading.chunks[cells[14] or b""] = cells[15] or b""
            case 2:
                writes.append([*cells[:5], *cells[6:10], *cells[14:]])
            case problem:
                raise Corrupt(PROBLEMS[problem], thread=thread.id)
    reading.writes = tuple(to_writes(writes, thread)) if writes else ()
    return reading


def _thread_row(cells: Cells, tenant: str, only: str | None) -> ThreadRecord:
    id = only if only is not None else to_text(cells[1])
    if problem := to_number(cells[0]):
        raise Corrupt(PROBLEMS[problem], thread=id)
    key = ThreadKey.of(tenant, id)
    head = to_checkpoint(cells[15:], key) if cells[15] is not None else None
    return to_thread_row(cells[1:15], key, head)


async def _is_there(connection: Connection, name: str, function: str, deadline: Deadline) -> bool:
    result: pq.abc.PGresult = await connection.query(
        f"select {function}($1) is not null", (name.encode(),), deadline
    )
    return result.get_value(0, 0) == b"\1"
