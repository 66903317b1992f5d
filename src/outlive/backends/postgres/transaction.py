"""A commit that is decided here, not by the server: read, decide, apply, under the thread's lock.

The first statement locks the thread's row, and creates it if need be; a rollback undoes that. Other
saves to the same thread wait until the end of the transaction: what was read is what changes. A
crash before the commit leaves the thread as it was: the server rolls back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import TypeVar

from outlive.backend import CheckpointKey, CheckpointRecord, Commit, EntryRecord, Receipt, WriteRecord
from outlive.backend.clock import Clock
from outlive.backend.entries import wakes
from outlive.backends.postgres.connection import Connection, Parameter
from outlive.backends.postgres.rows import (
    CHECKPOINT,
    CLOCK,
    ENTRY,
    WRITE,
    blobs,
    checkpoint_document,
    checksummed_entries,
    checksummed_writes,
    digest,
    document,
    documents,
    entry_name,
    flag,
    metadata_checksum,
    number,
    numbers,
    rows,
    space,
    to_checkpoint,
    to_entry,
    to_number,
    to_row,
    to_text,
    to_writes,
)
from outlive.backends.postgres.save import thread_parameters
from outlive.backends.postgres.statements import BAD_ROW, GONE, LISTED, NO_HEAD, PROBLEMS
from outlive.backends.rules.decide import decide
from outlive.backends.rules.snapshot import Snapshot, Wanted, done_before
from outlive.backends.rules.view import Effect
from outlive.dataclass import dataclass
from outlive.errors import Corrupt
from outlive.runtime.runtime import Deadline

T = TypeVar("T")
TOKENS = 64  # bytes of tokens that a thread keeps
_DAMAGED = {b"gone": GONE, b"row_checksum": BAD_ROW}  # what enter_1 says
_BATCH_BYTES = 64 << 20  # of chunks in one statement


class Transaction:
    """The transaction of one commit."""

    def __init__(
        self, connection: Connection, schema: str, commit: Commit, void: bytes, deadline: Deadline
    ) -> None:
        self._connection = connection
        self._void = void
        self._schema = schema
        self._commit = commit
        self._deadline = deadline
        self._key = b""
        self._now = 0
        self._tokens = b""
        self._deletes = False

    async def run(self) -> Receipt:
        """Do the commit or raise why not."""
        async with self._connection.transaction(self._deadline):
            return await self._commit_by_rules()

    async def _commit_by_rules(self) -> Receipt:
        """Read what `decide` asks for, let it judge the commit, and apply what it decided."""
        seen = await self._look(Wanted.of(self._commit))
        if self._commit.token in self._tokens:
            return done_before(self._commit, seen)
        effect, receipt = decide(self._commit, seen, Clock(self._now, self._now, CLOCK))
        if effect is not None:
            await self._apply(effect)
        return receipt

    async def _query(self, statement: str, *parameters: Parameter) -> list[list[bytes | None]]:
        result = await self._connection.query(
            statement.replace("{schema}", self._schema), parameters, self._deadline
        )
        return list(rows(result))

    # Looking

    async def _look(self, wanted: Wanted) -> Snapshot:
        """Lock the row of the thread, and read what a commit looks at."""
        thread, removal = self._commit.thread, self._commit.removal
        self._deletes = removal is not None and removal.everything
        ((entered,),) = await self._query(
            "select {schema}.enter_1($1, $2, $3, $4, $5)",
            *thread_parameters(thread), flag(self._deletes),
        )  # fmt: skip
        if entered in _DAMAGED:
            raise Corrupt(PROBLEMS[_DAMAGED[entered]], thread=thread.id)
        ((key, now, tokens, checkpoints, listed, metadata, checksum, *counters),) = await self._query(
            f"select key, {{schema}}.now_us_1(), tokens, checkpoints, {LISTED}::int::bigint, metadata, metadata_checksum, "
            "generation, revision, epoch, seq, created_at, metadata_version from {schema}.thread t where digest = $1",
            thread.digest,
        )
        self._key, self._now, self._tokens = key or b"", to_number(now), tokens or b""
        if entered == b"made":
            return Snapshot(None)
        if not self._deletes and (None if metadata is None else metadata_checksum(metadata)) != checksum:
            raise Corrupt("its metadata does not match its checksum", thread=thread.id)
        seen = Snapshot(to_row(counters), to_number(listed) > 0, to_number(checkpoints), metadata=metadata)
        await self._look_at_checkpoints(wanted, seen)
        await self._look_at_writes(wanted, seen)
        await self._look_beside(wanted, seen)
        return seen

    async def _look_at_checkpoints(self, wanted: Wanted, seen: Snapshot) -> None:
        thread = self._commit.thread
        if wanted.checkpoints:
            answer = await self._query(
                f"select c.name, {CHECKPOINT} from {{schema}}.checkpoint c where c.thread = $1 and c.name = any($2::bytea[])",
                self._key, _digests(wanted.checkpoints),
            )  # fmt: skip
            # Damaged checkpoints can be removed too.
            doomed = {digest(*pair) for pair in wanted.pairs}
            for name, *cells in answer:
                record = to_checkpoint(cells, thread, check=name not in doomed)
                seen.records[record.namespace, record.id] = record
        if wanted.namespaces:
            answer = await self._query(
                f"select s.space, s.head is distinct from c.row_checksum, {CHECKPOINT} from ("
                "select u.space, case when u.space = '' then t.root_head else (select x.head from {schema}.space x "
                "where x.thread = $1 and x.space = u.space) end as head "
                "from unnest($2::bytea[]) u(space) cross join {schema}.thread t where t.key = $1) s "
                "left join lateral (select x.* from {schema}.checkpoint x where x.thread = $1 and x.space = s.space "
                "and (x.epoch, x.seq) = (select y.epoch, y.seq from {schema}.checkpoint y where y.thread = $1 "
                "and y.space = s.space order by y.epoch desc, y.seq desc limit 1) order by x.id desc limit 1) c on true",
                self._key, blobs([space(namespace) for namespace in wanted.namespaces]),
            )  # fmt: skip
            ids = {pair[1] for pair in wanted.pairs}
            for _, is_other, *cells in answer:
                if is_other == b"\1" and not self._deletes:
                    raise Corrupt(PROBLEMS[NO_HEAD], thread=thread.id)
                if cells[1] is not None:
                    record = to_checkpoint(cells, thread, check=to_text(cells[1]) not in ids)
                    seen.heads[record.namespace] = record

    async def _look_at_writes(self, wanted: Wanted, seen: Snapshot) -> None:
        pairs = {*wanted.pairs, *(key[:2] for key in wanted.writes)}
        if not pairs:
            return
        answer = await self._query(
            f"select {WRITE} from {{schema}}.write w where w.thread = $1 and w.pair = any($2::bytea[])",
            self._key, _digests(pairs),
        )  # fmt: skip
        for write in to_writes(answer, self._commit.thread):
            seen.written[write.key] = write
            seen.pairs.add(write.checkpoint_key)

    async def _look_beside(self, wanted: Wanted, seen: Snapshot) -> None:
        if lapsed := [(entry.kind, entry.key) for entry in self._commit.entries if entry.expect_lapsed]:
            await self._query(  # a renewal locks no thread: wait for it
                "select revision from {schema}.entry where thread = $1 and name = any($2::bytea[]) for update",
                self._key, _names(lapsed),
            )  # fmt: skip
        if wanted.entries:
            answer = await self._query(
                f"select {ENTRY} from {{schema}}.entry e where e.thread = $1 and e.name = any($2::bytea[])",
                self._key, _names(wanted.entries),
            )  # fmt: skip
            for entry in (to_entry(cells, self._commit.thread) for cells in answer):
                seen.entries[entry.kind, entry.key] = entry
        if wanted.chunks:
            answer = await self._query(
                "select name, octet_length(data)::bigint, revision from {schema}.chunk "
                "where thread = $1 and name = any($2::bytea[])",
                self._key, blobs(wanted.chunks),
            )  # fmt: skip
            for name, size, revision in answer:
                seen.chunks[name or b""] = to_number(size), to_number(revision)

    # Changing

    async def _apply(self, effect: Effect) -> None:
        """Apply the effect, removals first; count the rows that it touches before and after."""
        portion = _portion(effect)
        before = Sums() if effect.everything else await self._measure(portion)
        await self._remove(effect)
        await self._put_chunks(effect)
        await self._put_checkpoints((*effect.checkpoints, *effect.rewrites))
        await self._put_writes(effect.writes)
        await self._put_entries(effect.entries)
        if any(portion[3:]):
            await self._query("select {schema}.tally_1($1, $2)", self._key, portion[3])
        change = (await self._measure(portion)).since(before)
        await self._put_row(effect, change)

    async def _measure(self, portion: Sequence[Parameter]) -> Sums:
        sums = Sums()
        if any(portion):
            statement = "select * from {schema}.portion_1($1, $2, $3, $4, $5)"
            for cells in await self._query(statement, self._key, *portion):
                sums.add(*cells)
        return sums

    async def _remove(self, effect: Effect) -> None:
        if effect.everything:
            for table in ("checkpoint", "space", "chunk", "write", "entry"):
                await self._query(f"delete from {{schema}}.{table} where thread = $1", self._key)
            await self._query(
                "update {schema}.thread set metadata = null, metadata_json = null, metadata_checksum = null, checkpoints = 0, writes = 0, "
                "stored = 0, root_checkpoints = 0, root_head = null, checkpoint_sum = 0, run_sum = 0, step_sum = 0 where key = $1",
                self._key,
            )
            await self._query("update {schema}.roster set metadata_checksum = null where key = $1", self._key)
        if effect.removed:
            names = _digests(effect.removed)
            for table, column in (("checkpoint", "name"), ("write", "pair")):
                await self._query(
                    f"delete from {{schema}}.{table} where thread = $1 and {column} = any($2::bytea[])",
                    self._key,
                    names,
                )
        if effect.removed_chunks:
            await self._query(
                "delete from {schema}.chunk where thread = $1 and name = any($2::bytea[])",
                self._key, blobs(effect.removed_chunks),
            )  # fmt: skip

    async def _put_chunks(self, effect: Effect) -> None:
        for batch in _batches(dict(effect.chunks).items(), lambda chunk: len(chunk[1])):
            await self._query(
                "select {schema}.chunks_1($1, $2, $3, $4)",
                self._key,
                b"".join(name for name, _ in batch),
                blobs([data for _, data in batch]),
                number(effect.counters.revision),
            )

    async def _put_checkpoints(self, records: Sequence[CheckpointRecord]) -> None:
        for batch in _batches(records, lambda record: len(record.body) + 1000):
            await self._query(
                "insert into {schema}.checkpoint select $1, decode(v->>'name', 'hex'), decode(v->>'space', 'hex'), "
                "(v->>'epoch')::bigint, (v->>'seq')::bigint, (v->>'created_at')::bigint, (v->>'size')::bigint, "
                "(v->>'added')::bigint, (v->>'step')::bigint, (v->>'version')::bigint, (v->>'format')::int, "
                "v->>'namespace', v->>'id', v->>'parent', v->>'run', v->>'source', (v->>'metadata')::jsonb, "
                "decode(v->>'checksum', 'hex'), (v->>'row_checksum')::bigint, c, b "
                "from unnest($2::jsonb[], $3::bytea[], $4::bytea[]) u(v, c, b) "
                "on conflict (thread, name) do update set epoch = excluded.epoch, seq = excluded.seq, "
                "created_at = excluded.created_at, size = excluded.size, added = excluded.added, step = excluded.step, "
                "version = excluded.version, format = excluded.format, parent = excluded.parent, run = excluded.run, "
                "source = excluded.source, metadata = excluded.metadata, checksum = excluded.checksum, "
                "row_checksum = excluded.row_checksum, chunks = excluded.chunks, body = excluded.body",
                self._key,
                documents([checkpoint_document(self._commit.thread, record) for record in batch]),
                blobs([b"".join(record.chunks) for record in batch]),
                blobs([record.body for record in batch]),
            )

    async def _put_writes(self, writes: Sequence[WriteRecord]) -> None:
        for batch in _batches(writes, lambda write: len(write.body) + 1000):
            await self._query(
                "insert into {schema}.write select $1, decode(v->>'pair', 'hex'), decode(v->>'task_digest', 'hex'), "
                "(v->>'index')::bigint, (v->>'epoch')::bigint, (v->>'fence')::bigint, (v->>'revision')::bigint, "
                "v->>'namespace', v->>'checkpoint', v->>'task', v->>'channel', v->>'path', decode(v->>'checksum', 'hex'), (v->>'row_checksum')::bigint, c, b "
                "from unnest($2::jsonb[], $3::bytea[], $4::bytea[]) u(v, c, b) "
                "on conflict (thread, pair, task_digest, idx) do update set epoch = excluded.epoch, fence = excluded.fence, "
                "revision = excluded.revision, channel = excluded.channel, path = excluded.path, "
                "checksum = excluded.checksum, row_checksum = excluded.row_checksum, chunks = excluded.chunks, body = excluded.body",
                self._key,
                documents(checksummed_writes(self._commit.thread, batch)),
                blobs([b"".join(write.chunks) for write in batch]),
                blobs([write.body for write in batch]),
            )

    async def _put_entries(self, entries: Sequence[EntryRecord]) -> None:
        if gone := [entry for entry in entries if entry.gone]:
            names = _names((entry.kind, entry.key) for entry in gone)
            await self._query(
                "delete from {schema}.entry where thread = $1 and name = any($2::bytea[])", self._key, names
            )
        last = {(entry.kind, entry.key): entry for entry in entries if not entry.gone}
        for batch in _batches(list(last.values()), lambda entry: len(entry.body or b"") + 1000):
            await self._query(
                "insert into {schema}.entry select $1, decode(v->>'name', 'hex'), $2, v->>'kind', v->>'key', v->>'status', "
                "(v->>'epoch')::bigint, (v->>'fence')::bigint, (v->>'revision')::bigint, (v->>'until')::bigint, "
                "v->>'clock', decode(v->>'checksum', 'hex'), (v->>'row_checksum')::bigint, b from unnest($3::jsonb[], $4::bytea[]) u(v, b) "
                "on conflict (thread, name) do update set tenant_digest = excluded.tenant_digest, kind = excluded.kind, "
                "key = excluded.key, row_checksum = excluded.row_checksum, status = excluded.status, epoch = excluded.epoch, "
                "fence = excluded.fence, revision = excluded.revision, until = excluded.until, clock = excluded.clock, "
                "checksum = excluded.checksum, body = excluded.body",
                self._key,
                digest(self._commit.thread.tenant),
                documents(checksummed_entries(self._commit.thread, batch)),
                blobs([entry.body or b"" for entry in batch]),
            )
        if wakes(last.values()):
            tenant = digest(self._commit.thread.tenant)
            await self._query("select pg_notify({schema}.channel_1($1), '')::text", tenant)

    async def _put_row(self, effect: Effect, change: Sums) -> None:
        row = effect.counters
        await self._query(
            "update {schema}.thread set generation = $2, revision = $3, epoch = $4, seq = $5, created_at = $6, "
            "updated_at = $7, metadata_version = $8, tokens = $9, checkpoints = checkpoints + $10, "
            "checkpoint_sum = checkpoint_sum # $11, stored = stored + $12, writes = writes + $13, run_sum = run_sum # $14, "
            "step_sum = step_sum # $15 where key = $1",
            self._key, *map(number, (row.generation, row.revision, row.epoch, row.seq, row.created_at, effect.at)),
            number(row.metadata_version), (self._commit.token + self._void + self._tokens)[:TOKENS],
            *map(number, change.totals()),
        )  # fmt: skip
        if effect.metadata is not None:
            checksum = metadata_checksum(effect.metadata)
            await self._query(
                "update {schema}.thread set metadata = $2, metadata_json = $3, metadata_checksum = $4 where key = $1",
                self._key, effect.metadata, document(effect.metadata_projection), checksum,
            )  # fmt: skip
            await self._query(
                "update {schema}.roster set metadata_checksum = $2 where key = $1", self._key, checksum
            )
        pairs = [record.key for record in (*effect.checkpoints, *effect.rewrites)]
        namespaces = {namespace for namespace, _ in (*pairs, *effect.removed)}
        spaces = dict.fromkeys((*change.spaces, *map(space, namespaces)))
        await self._query(
            "select {schema}.close_1($1, $2, $3, $4)",
            self._key, blobs(list(spaces)), numbers([change.spaces.get(namespace, 0) for namespace in spaces]),
            flag(bool(effect.removed or effect.removed_chunks)),
        )  # fmt: skip


def _portion(effect: Effect) -> list[Parameter]:
    """Return the rows that an effect touches: names of checkpoints, chunks, entries, and writes."""
    records = (*effect.checkpoints, *effect.rewrites)
    pairs = {*effect.removed, *(write.checkpoint_key for write in effect.writes)}
    names = {*effect.removed, *(record.key for record in records)}
    chunks = {*effect.removed_chunks, *(name for name, _ in effect.chunks)}
    entries = {(entry.kind, entry.key) for entry in effect.entries}
    return [
        _digests(names) if names else None,
        blobs(list(chunks)) if chunks else None,
        _names(entries) if entries else None,
        _digests(pairs) if pairs else None,
    ]


@dataclass(slots=True)
class Sums:
    """What the rows of a commit add up to: bytes, writes, checksums, checkpoints by namespace."""

    stored: int = 0
    writes: int = 0
    row_checksums: list[int] = field(default_factory=lambda: [0, 0, 0])  # of checkpoints, entries, steps
    spaces: dict[bytes, int] = field(default_factory=dict)

    def add(self, *cells: bytes | None) -> None:
        """Add a row of portion_1."""
        kind, count, total, size = (to_number(cells[place]) for place in (0, 2, 3, 4))
        self.stored += size
        if kind == 4:
            self.writes += count
        elif kind == 0:
            self.spaces[cells[1] or b""] = count
            self.row_checksums[0] ^= total
        elif kind > 1:
            self.row_checksums[kind - 1] ^= total

    def since(self, before: Sums) -> Sums:
        """Return what has changed."""
        spaces = {
            space: self.spaces.get(space, 0) - before.spaces.get(space, 0)
            for space in (*before.spaces, *self.spaces)
        }
        row_checksums = [
            after ^ earlier for after, earlier in zip(self.row_checksums, before.row_checksums, strict=True)
        ]
        return Sums(self.stored - before.stored, self.writes - before.writes, row_checksums, spaces)

    def totals(self) -> tuple[int, ...]:
        """Return what _put_row adds, in its order."""
        checkpoints, entries, steps = self.row_checksums
        return sum(self.spaces.values()), checkpoints, self.stored, self.writes, entries, steps


def _names(entries: Iterable[tuple[str, str]]) -> bytes:
    return blobs([entry_name(*entry) for entry in entries])


def _digests(pairs: Iterable[CheckpointKey]) -> bytes:
    return blobs([digest(*pair) for pair in pairs])


def _batches(rows: Iterable[T], weigh: Callable[[T], int]) -> Iterable[Sequence[T]]:
    """Split rows so that one message stays far below the server's limit of 1 GB."""
    batch: list[T] = []
    size = 0
    for row in rows:
        if batch and size + weigh(row) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += weigh(row)
    if batch:
        yield batch
