"""Writing what was decided into the tables of SQLite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import apsw
import ormsgpack

from ..backend import CheckpointRecord, Entry, WriteRecord, checksum, escape
from ..errors import StaleBase
from .sqlite_rows import CHECKPOINT, WRITE, KnownKeys, Rows, chunk_crc, one
from .view import Effect


class Writer:
    """Writes an effect into the tables."""

    def __init__(self, db: apsw.Connection, view: Rows, effect: Effect, known: KnownKeys) -> None:
        self._db = db
        self._view = view
        self._effect = effect
        self._count = view.checkpoints
        self._entries = view.entries
        self._stored = view.stored
        self._touched: dict[str, int] = {}  # namespace → change of its count
        self._keys = known.of(view.thread.digest, effect.row)  # of chunks, by name
        self._replaced = {(record.namespace, record.id): record for record in effect.replaced}

    def write(self) -> None:
        effect, view = self._effect, self._view
        if view.row is None:
            self._create()
        if effect.everything:
            self._forget_all()
        for pair in effect.removed:
            self._remove_checkpoint(*pair)
            if pair in view.have_writes:  # also without a checkpoint
                self._remove_writes(*pair)
        brought = dict(effect.chunks)
        for name in effect.removed_chunks:
            if name in brought and not effect.everything:
                self._exchange_chunk(name, brought[name])
            else:
                self._remove_chunk(name)
        for name, data in effect.chunks:
            self._put_chunk(name, data)
        for record in (*effect.checkpoints, *effect.rewrites):
            self._put_checkpoint(record)
        for namespace in self._touched:
            self._settle_head(namespace)
        fresh = [(write.namespace, write.checkpoint) for write in effect.writes if self._put_write(write)]
        for pair, count in Counter(fresh).items():
            self._count_writes(*pair, count)
        for entry in effect.entries:
            self._put_entry(entry)
        if effect.info is not None:
            self._db.execute(
                "update thread set info = ?, info_checksum = ?, info_json = ? where key = ?",
                (
                    effect.info,
                    checksum(view.key, effect.info, effect.info_projection),
                    effect.info_projection,
                    view.key,
                ),
            )
        view.save_row(effect.row, (self._count, self._entries, self._stored), effect.at, self._is_listed())

    def _is_listed(self) -> bool:
        """A thread without content is not listed: one that was deleted, or a target that is still being filled."""
        effect, view = self._effect, self._view
        if self._count or effect.writes or effect.info is not None:
            return True
        has_writes = one(self._db, "select 1 from tally where thread = ? limit 1", (view.key,)) is not None
        return has_writes or view.info() is not None

    def _chunk_keys(self, names: Sequence[bytes]) -> bytes:
        """Return the keys of chunks; what was removed meanwhile cannot be referred to."""
        keys = []
        for name in names:
            key = self._keys.get(name)
            if key is None:
                key = self._view.chunk_key(name)
                if key is None:
                    raise StaleBase(self._view.thread.id)
                self._keys[name] = key
            keys.append(key)
        return ormsgpack.packb(keys)

    def _create(self) -> None:
        thread, row = self._view.thread, self._effect.row
        self._db.execute(
            "insert into thread(digest, tenant, listed, generation, revision, epoch, seq, checkpoints, entries, stored, created_at, "
            "updated_at, info_version, checksum) values(?, ?, 0, ?, ?, ?, ?, 0, 0, 0, ?, ?, 0, x'')",
            (thread.digest, escape(thread.tenant), row.generation, row.revision, row.epoch, row.seq, row.created_at, self._effect.at),
        )  # fmt: skip
        self._view.key = self._db.last_insert_rowid()

    def _forget_all(self) -> None:
        key = self._view.key
        for table in ("checkpoint", "chunk", "write", "tally", "entry"):
            self._db.execute(f"delete from {table} where thread = ?", (key,))
        self._db.execute("delete from head where digest = ?", (self._view.thread.digest,))
        self._db.execute(
            "update thread set info = null, info_checksum = null, info_json = null where key = ?", (key,)
        )
        self._count = self._entries = self._stored = 0

    def _put_chunk(self, name: bytes, data: bytes) -> None:
        key, revision = self._view.key, self._effect.row.revision
        self._db.execute(
            "insert into chunk(thread, name, revision, crc, data) values(?, ?, ?, ?, ?) on conflict(thread, name) do nothing",
            (key, name, revision, chunk_crc(key, name, revision, data), data),
        )
        if self._db.changes():
            self._stored += len(data)
            self._keys[name] = self._db.last_insert_rowid()
        else:  # it is there, with its bytes: say that it is wanted again
            (held,) = one(self._db, "select data from chunk where thread = ? and name = ?", (key, name))
            self._db.execute(
                "update chunk set revision = ?, crc = ? where thread = ? and name = ?",
                (revision, chunk_crc(key, name, revision, held), key, name),
            )

    def _remove_chunk(self, name: bytes) -> None:
        held = self._view.chunk(name)
        if held is not None:
            self._stored -= held[0]
            self._db.execute("delete from chunk where thread = ? and name = ?", (self._view.key, name))

    def _exchange_chunk(self, name: bytes, data: bytes) -> None:
        """Put other bytes in the place of a chunk: rows that refer to it do so by its key."""
        held = self._view.chunk(name)
        if held is not None:
            self._stored += len(data) - held[0]
            self._db.execute(
                "update chunk set data = ? where thread = ? and name = ?", (data, self._view.key, name)
            )

    def _put_checkpoint(self, record: CheckpointRecord) -> None:
        if (old := self._replaced.get((record.namespace, record.id))) is not None:
            self._remove_checkpoint(old.namespace, old.id)
        fields = (
            escape(record.namespace), escape(record.id), None if record.parent is None else escape(record.parent),
            None if record.run is None else escape(record.run), record.epoch, record.seq, record.step, record.source,
            record.created_at, record.size, record.added, record.format, record.version, record.projection, self._chunk_keys(record.chunks), checksum(*record.chunks), record.body,
        )  # fmt: skip
        self._db.execute(
            f"insert into checkpoint(thread, {CHECKPOINT}) values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self._view.key, *fields, checksum(self._view.key, *fields)),
        )
        self._change(record.namespace, 1, len(record.body))

    def _remove_checkpoint(self, namespace: str, id: str) -> None:
        gone = one(
            self._db,
            "delete from checkpoint where thread = ? and id = ? and namespace = ? returning length(body)",
            (self._view.key, escape(id), escape(namespace)),
        )
        if gone is not None:
            self._change(namespace, -1, -gone[0])

    def _remove_writes(self, namespace: str, id: str) -> None:
        where = (self._view.key, escape(namespace), escape(id))
        self._db.execute("delete from write where thread = ? and namespace = ? and checkpoint = ?", where)
        self._db.execute("delete from tally where thread = ? and namespace = ? and checkpoint = ?", where)

    def _change(self, namespace: str, count: int, stored: int) -> None:
        self._count += count
        self._stored += stored
        self._touched[namespace] = self._touched.get(namespace, 0) + count

    def _settle_head(self, namespace: str) -> None:
        """Write down what is the newest of a namespace now, and how many there are."""
        digest, name = self._view.thread.digest, escape(namespace)
        old = None if self._effect.everything else self._view.head_row(namespace)
        newest = self._newest(namespace, old)
        if newest is None:
            self._db.execute("delete from head where digest = ? and namespace = ?", (digest, name))
            return
        count = (old[3] if old else 0) + self._touched[namespace]
        self._db.execute(
            "insert or replace into head values(?, ?, ?, ?, ?, ?, ?)",
            (digest, name, *newest, count, checksum(digest, name, *newest, count)),
        )

    def _newest(self, namespace: str, old: Sequence[Any] | None) -> Sequence[Any] | None:
        effect = self._effect
        if len(effect.checkpoints) == 1 and not (effect.removed or effect.replaced):
            record = effect.checkpoints[0]
            if old is None or record.order > tuple(old[:3]):
                return record.order
        newest: Sequence[Any] | None = one(
            self._db,
            "select epoch, seq, id from checkpoint where thread = ? and namespace = ? "
            "order by epoch desc, seq desc, id desc limit 1",
            (self._view.key, escape(namespace)),
        )
        return newest

    def _put_write(self, write: WriteRecord) -> bool:
        """Store a write; tell whether there was none in its place."""
        is_fresh = write.key in self._view.absent_writes or self._view.write(write.key) is None
        self._view.absent_writes.discard(write.key)
        fields = (
            escape(write.namespace), escape(write.checkpoint), escape(write.task), write.index, escape(write.channel),
            escape(write.path), *write.rank, self._chunk_keys(write.chunks), checksum(*write.chunks), write.body,
        )  # fmt: skip
        self._db.execute(
            f"insert or replace into write(thread, {WRITE}) values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self._view.key, *fields, checksum(self._view.key, *fields)),
        )
        return is_fresh

    def _count_writes(self, namespace: str, checkpoint: str, more: int) -> None:
        where = (self._view.key, escape(namespace), escape(checkpoint))
        held = one(
            self._db, "select writes from tally where thread = ? and namespace = ? and checkpoint = ?", where
        )
        count = more + (held[0] if held is not None else 0)
        self._db.execute(
            "insert or replace into tally values(?, ?, ?, ?, ?)", (*where, count, checksum(*where, count))
        )

    def _put_entry(self, entry: Entry) -> None:
        key = (self._view.key, escape(entry.kind), escape(entry.key))
        is_there = (
            one(self._db, "select 1 from entry where thread = ? and kind = ? and key = ?", key) is not None
        )
        self._entries += (not entry.gone) - is_there
        if entry.gone:
            self._db.execute("delete from entry where thread = ? and kind = ? and key = ?", key)
            return
        fields = (
            *key, escape(entry.status), entry.epoch, entry.fence, entry.revision, entry.until, entry.clock, entry.body,
        )  # fmt: skip
        self._db.execute(
            "insert or replace into entry values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*fields, checksum(*fields)),
        )
