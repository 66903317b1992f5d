"""A commit that the server cannot decide by itself: looked at, judged here, and applied under the thread's lock.

The first statement takes the lock of the thread's row, making the row if need be; a rollback unmakes it. Whoever
saves to the same thread waits until the end of the transaction, so that what was looked at is what is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..backend import CheckpointRecord, Commit, Entry, Receipt, WriteRecord
from ..errors import StaleBase, ThreadNotEmpty
from ..runtime import Deadline
from .memory import new_token
from .postgres_link import Link, Parameter
from .postgres_rows import (
    CHECKPOINT,
    CLOCK,
    ENTRY,
    WRITE,
    blobs,
    checkpoint_checksum,
    digest,
    document,
    number,
    rows,
    space,
    text,
    to_checkpoint,
    to_entry,
    to_number,
    to_row,
    to_write,
)
from .rules import Clock, Effect, Pair, decide
from .snapshot import Snapshot, Wanted, what_was_done

_BATCH_BYTES = 64 << 20  # of chunks in one statement


class Transaction:
    """One commit in the making."""

    def __init__(self, link: Link, schema: str, commit: Commit, deadline: Deadline) -> None:
        self._link = link
        self._schema = schema
        self._commit = commit
        self._deadline = deadline
        self._key = b""
        self._now = 0

    async def run(self, *, again: bool) -> Receipt:
        """Do the commit or raise why not. `again`: an attempt before may have done it."""
        await self._link.begin(self._deadline)
        try:
            receipt = await self._decide(again)
        except BaseException:
            if self._link.is_in_transaction:
                await self._link.run("rollback", self._deadline)
            raise
        await self._link.run("commit", self._deadline)
        return receipt

    async def _decide(self, again: bool) -> Receipt:
        seen = await self._look(Wanted.of(self._commit))
        clock = Clock(self._now, self._now, CLOCK)
        try:
            effect, receipt = decide(self._commit, seen, clock, new_token())
        except (ThreadNotEmpty, StaleBase):
            if again and (done := what_was_done(self._commit, seen)) is not None:
                return done
            raise
        if effect is None:
            return receipt
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
        ((key, now, checkpoints, writes, info, *counters),) = await self._query(
            "select key, {schema}.now_us(), checkpoints, writes, info, generation, revision, epoch, seq, created_at, info_version "
            "from {schema}.thread where digest = $1 for update",
            thread.digest,
        )
        self._key, self._now = key or b"", to_number(now)
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
                f"select {CHECKPOINT} from {{schema}}.checkpoint c where c.thread = $1 and c.name = any($2::bytea[])",
                self._key, _digests(wanted.checkpoints),
            )  # fmt: skip
            for record in (to_checkpoint(cells, id) for cells in found):
                seen.records[record.namespace, record.id] = record
        if wanted.namespaces:
            found = await self._query(
                f"select {CHECKPOINT} from unnest($2::bytea[]) s(space) cross join lateral ("
                "select x.* from {schema}.checkpoint x where x.thread = $1 and x.space = s.space "
                "and (x.epoch, x.seq) = (select y.epoch, y.seq from {schema}.checkpoint y where y.thread = $1 "
                "and y.space = s.space order by y.epoch desc, y.seq desc limit 1) order by x.id desc limit 1) c",
                self._key, blobs([space(namespace) for namespace in wanted.namespaces]),
            )  # fmt: skip
            for record in (to_checkpoint(cells, id) for cells in found):
                seen.heads[record.namespace] = record

    async def _look_at_writes(self, wanted: Wanted, seen: Snapshot) -> None:
        pairs = {*wanted.pairs, *(key[:2] for key in wanted.writes)}
        if not pairs:
            return
        found = await self._query(
            f"select {WRITE} from {{schema}}.write w where w.thread = $1 and w.pair = any($2::bytea[])",
            self._key, _digests(pairs),
        )  # fmt: skip
        for write in map(to_write, found):
            seen.written[write.key] = write
            seen.pairs.add(write.key[:2])

    async def _look_beside(self, wanted: Wanted, seen: Snapshot) -> None:
        if wanted.entries:
            found = await self._query(
                f"select {ENTRY} from {{schema}}.entry e where e.thread = $1 and e.name = any($2::bytea[])",
                self._key, _digests(wanted.entries),
            )  # fmt: skip
            for entry in map(to_entry, found):
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
        for record in (*effect.checkpoints, *effect.rewrites):
            await self._put_checkpoint(record)
        for write in effect.writes:
            await self._put_write(write)
        for entry in effect.entries:
            await self._put_entry(entry)
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
        for batch in _batches(dict(effect.chunks).items()):
            await self._query(
                "select {schema}.chunks_1($1, $2, $3, $4)",
                self._key,
                b"".join(name for name, _ in batch),
                blobs([data for _, data in batch]),
                number(effect.row.revision),
            )

    async def _put_checkpoint(self, record: CheckpointRecord) -> None:
        places = ", ".join(f"${place}" for place in range(1, 21))
        await self._query(
            f"insert into {{schema}}.checkpoint values ({places}) on conflict (thread, name) do update set "
            "epoch = $4, seq = $5, created_at = $6, size = $7, added = $8, step = $9, version = $10, format = $11, "
            "parent = $14, run = $15, source = $16, metadata = $17, checksum = $18, chunks = $19, body = $20",
            self._key, digest(record.namespace, record.id), space(record.namespace),
            number(record.epoch), number(record.seq), number(record.created_at), number(record.size),
            number(record.added), number(record.step), number(record.version), record.format.to_bytes(4, "big"),
            text(record.namespace), text(record.id), text(record.parent), text(record.run), text(record.source),
            document(record.projection), checkpoint_checksum(record), b"".join(record.chunks), record.body,
        )  # fmt: skip

    async def _put_write(self, write: WriteRecord) -> None:
        places = ", ".join(f"${place}" for place in range(1, 15))
        await self._query(
            f"insert into {{schema}}.write values ({places}) on conflict (thread, pair, task_digest, idx) do update set "
            "epoch = $5, fence = $6, revision = $7, channel = $11, path = $12, chunks = $13, body = $14",
            self._key, digest(write.namespace, write.checkpoint), digest(write.task), number(write.index),
            *map(number, write.rank),
            text(write.namespace), text(write.checkpoint), text(write.task), text(write.channel), text(write.path),
            b"".join(write.chunks), write.body,
        )  # fmt: skip

    async def _put_entry(self, entry: Entry) -> None:
        name = digest(entry.kind, entry.key)
        if entry.gone:
            await self._query("delete from {schema}.entry where thread = $1 and name = $2", self._key, name)
            return
        places = ", ".join(f"${place}" for place in range(1, 13))
        await self._query(
            f"insert into {{schema}}.entry values ({places}) on conflict (thread, name) do update set "
            "status = $6, epoch = $7, fence = $8, revision = $9, until = $10, clock = $11, body = $12",
            self._key, name, digest(self._commit.thread.tenant), text(entry.kind), text(entry.key), text(entry.status),
            *map(number, (*entry.rank, entry.until)), text(entry.clock), entry.body or b"",
        )  # fmt: skip

    async def _put_row(self, effect: Effect) -> None:
        row = effect.row
        await self._query(
            "update {schema}.thread set generation = $2, revision = $3, epoch = $4, seq = $5, created_at = $6, "
            "updated_at = $7, info_version = $8 where key = $1",
            self._key, *map(number, (row.generation, row.revision, row.epoch, row.seq, row.created_at, effect.at)),
            number(row.info_version),
        )  # fmt: skip
        if effect.info is not None:
            await self._query(
                "update {schema}.thread set info = $2, metadata = $3 where key = $1",
                self._key, effect.info, document(effect.info_projection),
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


def _batches(chunks: Iterable[tuple[bytes, bytes]]) -> Iterable[Sequence[tuple[bytes, bytes]]]:
    """Split chunks so that one message stays far from the 1 GB that the server takes."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for name, data in chunks:
        if batch and size + len(data) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((name, data))
        size += len(data)
    if batch:
        yield batch
