"""A commit that the server cannot decide by itself: looked at, judged here, and applied under the thread's lock.

The first statement takes the lock of the thread's row, making the row if need be; a rollback unmakes it. Whoever
saves to the same thread waits until the end of the transaction, so that what was looked at is what is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..backend import CheckpointRecord, Commit, Entry, Receipt, WriteRecord
from ..runtime import Deadline
from .memory import new_token
from .postgres_link import Link, Parameter
from .postgres_rows import (
    CHECKPOINT,
    CLOCK,
    ENTRY,
    WRITE,
    blobs,
    checkpoint_document,
    digest,
    document,
    documents,
    entry_documents,
    info_checksum,
    number,
    rows,
    space,
    text,
    to_checkpoint,
    to_entry,
    to_number,
    to_row,
    to_text,
    to_write,
    write_documents,
)
from .rules import decide
from .snapshot import Snapshot, Wanted, done_before
from .view import Clock, Effect, Pair

T = TypeVar("T")
TOKENS = 64  # bytes of tokens that a thread keeps
_BATCH_BYTES = 64 << 20  # of chunks in one statement


class Transaction:
    """One commit in the making."""

    def __init__(self, link: Link, schema: str, commit: Commit, void: bytes, deadline: Deadline) -> None:
        self._link = link
        self._void = void
        self._schema = schema
        self._commit = commit
        self._deadline = deadline
        self._key = b""
        self._now = 0
        self._tokens = b""

    async def run(self) -> Receipt:
        """Do the commit or raise why not."""
        await self._link.begin(self._deadline)
        try:
            receipt = await self._decide()
        except BaseException:
            if self._link.is_in_transaction:
                await self._link.run("rollback", self._deadline)
            raise
        await self._link.run("commit", self._deadline)
        return receipt

    async def _decide(self) -> Receipt:
        seen = await self._look(Wanted.of(self._commit))
        if self._commit.token in self._tokens:
            return done_before(self._commit, seen)
        effect, receipt = decide(self._commit, seen, Clock(self._now, self._now, CLOCK), new_token())
        if effect is not None:
            await self._apply(effect)
        return receipt

    async def _query(self, statement: str, *parameters: Parameter) -> list[list[bytes | None]]:
        result = await self._link.query(
            statement.replace("{schema}", self._schema), parameters, self._deadline
        )
        return list(rows(result))

    # Looking

    async def _look(self, wanted: Wanted) -> Snapshot:
        thread = self._commit.thread
        made = await self._query(
            "insert into {schema}.thread (digest, tenant_digest, tenant, id, generation, created_at, updated_at) "
            "values ($1, $2, $3, $4, $5, 0, 0) on conflict (digest) do nothing returning key",
            thread.digest, digest(thread.tenant), text(thread.tenant), text(thread.id), number(0),
        )  # fmt: skip
        ((key, now, tokens, checkpoints, writes, info, *counters),) = await self._query(
            "select key, {schema}.now_us(), tokens, checkpoints, writes, info, generation, revision, epoch, seq, created_at, info_version "
            "from {schema}.thread where digest = $1 for update",
            thread.digest,
        )
        self._key, self._now, self._tokens = key or b"", to_number(now), tokens or b""
        if made:
            return Snapshot(None)
        count = to_number(checkpoints)
        seen = Snapshot(
            to_row(counters), count > 0 or to_number(writes) > 0 or info is not None, count, metadata=info
        )
        await self._look_at_checkpoints(wanted, seen)
        await self._look_at_writes(wanted, seen)
        await self._look_beside(wanted, seen)
        return seen

    async def _look_at_checkpoints(self, wanted: Wanted, seen: Snapshot) -> None:
        id = self._commit.thread.id
        if wanted.checkpoints:
            found = await self._query(
                f"select c.name, {CHECKPOINT} from {{schema}}.checkpoint c where c.thread = $1 and c.name = any($2::bytea[])",
                self._key, _digests(wanted.checkpoints),
            )  # fmt: skip
            doomed = {digest(*pair) for pair in wanted.pairs}  # which may be damaged, and can go all the same
            for name, *cells in found:
                record = to_checkpoint(cells, id, check=name not in doomed)
                seen.records[record.namespace, record.id] = record
        if wanted.namespaces:
            found = await self._query(
                f"select {CHECKPOINT} from unnest($2::bytea[]) s(space) cross join lateral ("
                "select x.* from {schema}.checkpoint x where x.thread = $1 and x.space = s.space "
                "and (x.epoch, x.seq) = (select y.epoch, y.seq from {schema}.checkpoint y where y.thread = $1 "
                "and y.space = s.space order by y.epoch desc, y.seq desc limit 1) order by x.id desc limit 1) c",
                self._key, blobs([space(namespace) for namespace in wanted.namespaces]),
            )  # fmt: skip
            ids = {pair[1] for pair in wanted.pairs}
            for cells in found:
                record = to_checkpoint(cells, id, check=to_text(cells[1]) not in ids)
                seen.heads[record.namespace] = record

    async def _look_at_writes(self, wanted: Wanted, seen: Snapshot) -> None:
        pairs = {*wanted.pairs, *(key[:2] for key in wanted.writes)}
        if not pairs:
            return
        found = await self._query(
            f"select {WRITE} from {{schema}}.write w where w.thread = $1 and w.pair = any($2::bytea[])",
            self._key, _digests(pairs),
        )  # fmt: skip
        for write in (to_write(cells, self._commit.thread.id) for cells in found):
            seen.written[write.key] = write
            seen.pairs.add(write.key[:2])

    async def _look_beside(self, wanted: Wanted, seen: Snapshot) -> None:
        if wanted.entries:
            found = await self._query(
                f"select {ENTRY} from {{schema}}.entry e where e.thread = $1 and e.name = any($2::bytea[])",
                self._key, _digests(wanted.entries),
            )  # fmt: skip
            for entry in (to_entry(cells, self._commit.thread.id) for cells in found):
                seen.notes[entry.kind, entry.key] = entry
        if wanted.chunks:
            found = await self._query(
                "select name, octet_length(data)::bigint, revision from {schema}.chunk "
                "where thread = $1 and name = any($2::bytea[])",
                self._key, blobs(wanted.chunks),
            )  # fmt: skip
            for name, size, revision in found:
                seen.chunks[name or b""] = to_number(size), to_number(revision)

    # Changing

    async def _apply(self, effect: Effect) -> None:
        """Do what was decided, removals first."""
        await self._remove(effect)
        await self._put_chunks(effect)
        await self._put_checkpoints((*effect.checkpoints, *effect.rewrites))
        await self._put_writes(effect.writes)
        await self._put_entries(effect.entries)
        await self._put_row(effect)

    async def _remove(self, effect: Effect) -> None:
        if effect.everything:
            for table in ("checkpoint", "chunk", "write", "entry"):
                await self._query(f"delete from {{schema}}.{table} where thread = $1", self._key)
            await self._query(
                "update {schema}.thread set info = null, metadata = null where key = $1", self._key
            )
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
                number(effect.row.revision),
            )

    async def _put_checkpoints(self, records: Sequence[CheckpointRecord]) -> None:
        for batch in _batches(records, lambda record: len(record.body) + 1000):
            await self._query(
                "insert into {schema}.checkpoint select $1, decode(v->>'name', 'hex'), decode(v->>'space', 'hex'), "
                "(v->>'epoch')::bigint, (v->>'seq')::bigint, (v->>'created_at')::bigint, (v->>'size')::bigint, "
                "(v->>'added')::bigint, (v->>'step')::bigint, (v->>'version')::bigint, (v->>'format')::int, "
                "v->>'namespace', v->>'id', v->>'parent', v->>'run', v->>'source', (v->>'metadata')::jsonb, "
                "decode(v->>'checksum', 'hex'), decode(v->>'stamp', 'hex'), c, b "
                "from unnest($2::jsonb[], $3::bytea[], $4::bytea[]) u(v, c, b) "
                "on conflict (thread, name) do update set epoch = excluded.epoch, seq = excluded.seq, "
                "created_at = excluded.created_at, size = excluded.size, added = excluded.added, step = excluded.step, "
                "version = excluded.version, format = excluded.format, parent = excluded.parent, run = excluded.run, "
                "source = excluded.source, metadata = excluded.metadata, checksum = excluded.checksum, "
                "stamp = excluded.stamp, chunks = excluded.chunks, body = excluded.body",
                self._key,
                documents([checkpoint_document(record) for record in batch]),
                blobs([b"".join(record.chunks) for record in batch]),
                blobs([record.body for record in batch]),
            )

    async def _put_writes(self, writes: Sequence[WriteRecord]) -> None:
        for batch in _batches(writes, lambda write: len(write.body) + 1000):
            await self._query(
                "insert into {schema}.write select $1, decode(v->>'pair', 'hex'), decode(v->>'task_digest', 'hex'), "
                "(v->>'index')::bigint, (v->>'epoch')::bigint, (v->>'fence')::bigint, (v->>'revision')::bigint, "
                "v->>'namespace', v->>'checkpoint', v->>'task', v->>'channel', v->>'path', decode(v->>'checksum', 'hex'), c, b "
                "from unnest($2::jsonb[], $3::bytea[], $4::bytea[]) u(v, c, b) "
                "on conflict (thread, pair, task_digest, idx) do update set epoch = excluded.epoch, fence = excluded.fence, "
                "revision = excluded.revision, channel = excluded.channel, path = excluded.path, "
                "checksum = excluded.checksum, chunks = excluded.chunks, body = excluded.body",
                self._key,
                documents(write_documents(batch)),
                blobs([b"".join(write.chunks) for write in batch]),
                blobs([write.body for write in batch]),
            )

    async def _put_entries(self, entries: Sequence[Entry]) -> None:
        if gone := [entry for entry in entries if entry.gone]:
            names = blobs([digest(entry.kind, entry.key) for entry in gone])
            await self._query(
                "delete from {schema}.entry where thread = $1 and name = any($2::bytea[])", self._key, names
            )
        last = {(entry.kind, entry.key): entry for entry in entries if not entry.gone}
        for batch in _batches(list(last.values()), lambda entry: len(entry.body or b"") + 1000):
            await self._query(
                "insert into {schema}.entry select $1, decode(v->>'name', 'hex'), $2, v->>'kind', v->>'key', v->>'status', "
                "(v->>'epoch')::bigint, (v->>'fence')::bigint, (v->>'revision')::bigint, (v->>'until')::bigint, "
                "v->>'clock', decode(v->>'checksum', 'hex'), b from unnest($3::jsonb[], $4::bytea[]) u(v, b) "
                "on conflict (thread, name) do update set status = excluded.status, epoch = excluded.epoch, "
                "fence = excluded.fence, revision = excluded.revision, until = excluded.until, clock = excluded.clock, "
                "checksum = excluded.checksum, body = excluded.body",
                self._key,
                digest(self._commit.thread.tenant),
                documents(entry_documents(batch)),
                blobs([entry.body or b"" for entry in batch]),
            )

    async def _put_row(self, effect: Effect) -> None:
        row = effect.row
        await self._query(
            "update {schema}.thread set generation = $2, revision = $3, epoch = $4, seq = $5, created_at = $6, "
            "updated_at = $7, info_version = $8, tokens = $9 where key = $1",
            self._key, *map(number, (row.generation, row.revision, row.epoch, row.seq, row.created_at, effect.at)),
            number(row.info_version), (self._commit.token + self._void + self._tokens)[:TOKENS],
        )  # fmt: skip
        if effect.info is not None:
            await self._query(
                "update {schema}.thread set info = $2, metadata = $3, info_checksum = $4 where key = $1",
                self._key, effect.info, document(effect.info_projection), info_checksum(effect.info),
            )  # fmt: skip
        if any((effect.everything, effect.removed, effect.removed_chunks, effect.chunks, effect.checkpoints,
                effect.rewrites, effect.writes)):  # fmt: skip
            await self._query(
                "update {schema}.thread set checkpoints = c.count, writes = w.count, stored = c.bytes + k.bytes from "
                "(select count(*), coalesce(sum(octet_length(body)), 0) as bytes from {schema}.checkpoint where thread = $1) c, "
                "(select coalesce(sum(octet_length(data)), 0) as bytes from {schema}.chunk where thread = $1) k, "
                "(select count(*) from {schema}.write where thread = $1) w where key = $1",
                self._key,
            )


def _digests(pairs: Iterable[Pair]) -> bytes:
    return blobs([digest(*pair) for pair in pairs])


def _batches(rows: Iterable[T], weigh: Callable[[T], int]) -> Iterable[Sequence[T]]:
    """Split rows so that one message stays far from the 1 GB that the server takes."""
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
