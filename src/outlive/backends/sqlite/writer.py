"""Writing what was decided into the tables of SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import ormsgpack

from outlive.backend import CheckpointKey, CheckpointRecord, EntryRecord, WriteRecord, checksum, escape
from outlive.backend.entries import LISTING
from outlive.backends.rules.view import Effect
from outlive.backends.sqlite.append import Remembered, ThreadRows, note_entry
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.entries import put_entry, remove_entry
from outlive.backends.sqlite.tables import (
    PUT_CHECKPOINT,
    PUT_HEAD,
    PUT_TALLY,
    PUT_WRITE,
    RECENT_US,
    TABLES,
    Head,
    HeadColumns,
    ThreadColumns,
    checkpoint_row,
    chunk_crc,
    metadata_checksum,
    roster_key,
    tally_row,
    write_row,
    xor,
)
from outlive.backends.sqlite.view import SQLiteView
from outlive.errors import StaleBase

_PUT_VERSION = "insert or replace into checkpoint_version(thread, namespace, id, checksum) values(?, ?, ?, ?)"
_LISTING_ENTRY = f"select 1 from entry where thread = ? and kind in {LISTING} limit 1"


class Writer:
    """Writes an effect into the tables."""

    def __init__(self, db: apsw.Connection, view: SQLiteView, effect: Effect, remembered: Remembered) -> None:
        self._db = db
        self._view = view
        self._effect = effect
        self._count = view.checkpoints
        self._entries = view.entries
        self._stored = view.stored
        self._touched: dict[str, int] = {}  # namespace → change of its count
        self._remembered = remembered
        self._root: HeadColumns | None = None  # the head of the root namespace, as it was put
        # Keys of chunks by name, and entries.
        self._keys, self._known = remembered.of(view.thread.digest, view.row, effect.counters.generation)
        # Namespace → (epoch, seq, id, checksum) of the checkpoint that was put last.
        self._last: dict[str, tuple[int, int, str, bytes]] = {}
        self._replaced = {(record.namespace, record.id): record for record in effect.replaced}

    def write(self) -> None:
        """Write the whole effect, in one transaction: a crash leaves all of it or nothing."""
        effect, view = self._effect, self._view
        # 1. The row of a new thread, so that the others have a key to refer to.
        if not view.has_row:
            self._create()
        # 2. Removals first: what is put may take the place of what is removed.
        records = (*effect.checkpoints, *effect.rewrites)
        if effect.everything:
            self._delete_all()
        else:
            # Compare the heads that change with the index, before both change.
            for namespace in {record.namespace for record in records} | {key[0] for key in effect.removed}:
                view.check_head(namespace)
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
        # 3. Chunks, before the checkpoints and writes that refer to them by key.
        for name, data in effect.chunks:
            self._put_chunk(name, data)
        for record in records:
            self._put_checkpoint(record)
        # The head of each namespace that changed, and always the root's: it repeats the thread's
        # revision, which reveals a lost or older row of either.
        for namespace in {**self._touched, "": 0}:
            self._put_head(namespace)
        if effect.writes:
            self._put_writes(effect.writes)
        for entry in effect.entries:
            self._put_entry(entry)
        if effect.metadata is not None:
            version, projection = effect.counters.metadata_version, effect.metadata_projection
            check = metadata_checksum(view.key, version, effect.metadata, projection)
            self._db.execute(
                "update thread set metadata = ?, metadata_checksum = ?, metadata_json = ? where key = ?",
                (effect.metadata, check, projection, view.key),
            )
        # 4. The row of the thread last: its counts and revision vouch for the other rows.
        listed = bool(self._count or effect.writes or effect.metadata is not None) or self._has_content()
        self._put_thread(is_listed=listed)

    def _put_writes(self, writes: Sequence[WriteRecord]) -> None:
        changes: dict[CheckpointKey, tuple[int, int]] = {}
        for write in writes:
            pair = write.checkpoint_key
            count, change = changes.get(pair, (0, 0))
            is_new, checksums = self._put_write(write)
            changes[pair] = (count + is_new, change ^ checksums)
        for pair, (count, change) in changes.items():
            self._count_writes(*pair, count, change)

    def _has_content(self) -> bool:
        """Tell whether a thread without checkpoints is listed: by pending writes, metadata or entries."""
        key = (self._view.key,)
        return (
            self._view.thread_metadata() is not None
            or fetch_one(self._db, "select 1 from tally where thread = ? limit 1", key) is not None
            or fetch_one(self._db, _LISTING_ENTRY, key) is not None
        )

    def _chunk_keys(self, names: Sequence[bytes]) -> bytes:
        """Return the keys of chunks; what was removed meanwhile cannot be referred to."""
        keys = []
        for name in names:
            key = self._keys.get(name)
            if key is None:
                sql = "select key from chunk where thread = ? and name = ?"
                row = fetch_one(self._db, sql, (self._view.key, name))
                if row is None:
                    raise StaleBase(self._view.thread.id)
                key = self._keys[name] = row[0]
            keys.append(key)
        return ormsgpack.packb(keys)

    def _create(self) -> None:
        thread, row = self._view.thread, self._effect.counters
        self._db.execute(
            "insert into thread(key, digest, tenant, listed, generation, revision, epoch, seq, checkpoints, entries, stored, created_at, "
            "updated_at, metadata_version, checksum) values(?, ?, ?, 0, ?, ?, ?, ?, 0, 0, 0, ?, ?, 0, x'')",
            (self._view.key or None, thread.digest, escape(thread.tenant), row.generation, row.revision, row.epoch, row.seq, row.created_at, self._effect.at),
        )  # fmt: skip
        self._view.key = self._db.last_insert_rowid()

    def _put_thread(self, *, is_listed: bool) -> None:
        """Write the row of the thread. One without anything keeps its counters, and not its id."""
        view, counters = self._view, self._effect.counters
        id = escape(view.thread.id) if is_listed or self._entries else None
        fields = (
            view.key, view.thread.digest, escape(view.thread.tenant), id, int(is_listed),
            counters.generation, counters.revision, counters.epoch, counters.seq, self._count, self._entries, self._stored,
            counters.created_at, self._effect.at, counters.metadata_version,
        )  # fmt: skip
        check = checksum(*fields)
        if self._root is not None:
            row = ThreadColumns(*fields, check)
            self._remembered.keep(view.thread.digest, ThreadRows(row, self._root, self._keys, self._known))
        columns = (
            "generation = ?, revision = ?, epoch = ?, seq = ?, checkpoints = ?, "
            "entries = ?, stored = ?, created_at = ?, updated_at = ?, metadata_version = ?, checksum = ? where key = ?"
        )
        recent = self._effect.at // RECENT_US
        if is_listed and view.is_listed:  # the id stays: what is not written leaves its index alone
            values: tuple[Any, ...] = (*fields[5:], check, view.key)
            if recent == view.updated_at // RECENT_US:
                self._db.execute(f"update thread set {columns}", values)
            else:
                self._db.execute(f"update thread set recent = ?, {columns}", (recent, *values))
            return
        self._db.execute(
            f"update thread set recent = ?, id = ?, listed = ?, {columns}",
            (recent, *fields[3:], check, view.key),
        )
        if is_listed != view.is_listed:
            statement = (
                "insert or replace into roster(tenant, id) values(?, ?)"
                if is_listed
                else "delete from roster where tenant = ? and id = ?"
            )
            self._db.execute(statement, roster_key(view.thread))

    def _delete_all(self) -> None:
        key = self._view.key
        for table in TABLES:
            self._db.execute(f"delete from {table} where thread = ?", (key,))
        self._db.execute("delete from head where digest = ?", (self._view.thread.digest,))
        self._view.forget()
        self._db.execute(
            "update thread set metadata = null, metadata_checksum = null, metadata_json = null where key = ?",
            (key,),
        )
        self._count = self._entries = self._stored = 0

    def _put_chunk(self, name: bytes, data: bytes) -> None:
        key, revision = self._view.key, self._effect.counters.revision
        self._db.execute(
            "insert into chunk(thread, name, revision, crc, data) values(?, ?, ?, ?, ?) on conflict(thread, name) do nothing",
            (key, name, revision, chunk_crc(key, name, revision, data), data),
        )
        if self._db.changes():
            self._stored += len(data)
            self._keys[name] = self._db.last_insert_rowid()
        else:  # it is stored already: a new revision protects it from a sweep that read it before
            (stored,) = fetch_one(
                self._db, "select data from chunk where thread = ? and name = ?", (key, name)
            )
            self._db.execute(
                "update chunk set revision = ?, crc = ? where thread = ? and name = ?",
                (revision, chunk_crc(key, name, revision, stored), key, name),
            )

    def _remove_chunk(self, name: bytes) -> None:
        stored = self._view.chunk(name)
        if stored is not None:
            self._stored -= stored[0]
            self._db.execute("delete from chunk where thread = ? and name = ?", (self._view.key, name))

    def _exchange_chunk(self, name: bytes, data: bytes) -> None:
        """Put other bytes in the place of a chunk: rows that refer to it do so by its key."""
        stored = self._view.chunk(name)
        if stored is not None:
            self._stored += len(data) - stored[0]
            self._db.execute(
                "update chunk set data = ? where thread = ? and name = ?", (data, self._view.key, name)
            )

    def _put_checkpoint(self, record: CheckpointRecord) -> None:
        old = self._replaced.get((record.namespace, record.id))
        if old is not None:
            self._remove_checkpoint(old.namespace, old.id)
        row = checkpoint_row(self._view.key, record, self._chunk_keys(record.chunks))
        self._db.execute(PUT_CHECKPOINT, row)
        if old is not None:
            self._db.execute(_PUT_VERSION, (*row[:3], row[-1]))
        self._last[record.namespace] = (*record.order, row[-1])
        self._count += 1
        self._stored += len(record.body)
        self._touched[record.namespace] = self._touched.get(record.namespace, 0) + 1

    def _remove_checkpoint(self, namespace: str, id: str) -> None:
        where = (self._view.key, escape(id), escape(namespace))
        removed = fetch_one(
            self._db,
            "delete from checkpoint where thread = ? and id = ? and namespace = ? returning length(body)",
            where,
        )
        if removed is not None:
            self._db.execute(
                "delete from checkpoint_version where thread = ? and id = ? and namespace = ?", where
            )
            self._count -= 1
            self._stored -= removed[0]
            self._touched[namespace] = self._touched.get(namespace, 0) - 1

    def _remove_writes(self, namespace: str, id: str) -> None:
        where = (self._view.key, escape(namespace), escape(id))
        self._db.execute("delete from write where thread = ? and namespace = ? and checkpoint = ?", where)
        self._db.execute("delete from tally where thread = ? and namespace = ? and checkpoint = ?", where)

    def _put_head(self, namespace: str) -> None:
        """Store the newest checkpoint of a namespace and their count; of the root, any change."""
        view, effect = self._view, self._effect
        digest, name = view.thread.digest, escape(namespace)
        revision = effect.counters.revision
        old = None if effect.everything else view.head_row(namespace)
        last = self._last.get(namespace)
        is_appended = (
            last is not None
            and len(effect.checkpoints) == 1
            and not (effect.removed or effect.replaced)
            and (old is None or last[:3] > (old.epoch, old.seq, old.id or ""))
        )
        if old is not None and namespace not in self._touched:
            head = old._replace(revision=revision)
        elif (newest := last if is_appended else self._read_newest(namespace)) is not None:
            count = (old.checkpoints if old else 0) + self._touched.get(namespace, 0)
            head = Head(view.key, revision, *newest[:3], count, newest[3])
        elif namespace == "":
            head = Head(view.key, revision, 0, 0, None, 0, None)
        else:
            self._db.execute("delete from head where digest = ? and namespace = ?", (digest, name))
            return
        row = HeadColumns(*head, checksum(digest, name, *head))
        self._db.execute(PUT_HEAD, (digest, name, *row))
        if namespace == "":
            self._root = row

    def _read_newest(self, namespace: str) -> tuple[int, int, str, bytes] | None:
        newest: tuple[int, int, str, bytes] | None = fetch_one(
            self._db,
            "select epoch, seq, id, checksum from checkpoint where thread = ? and namespace = ? "
            "order by epoch desc, seq desc, id desc limit 1",
            (self._view.key, escape(namespace)),
        )
        return newest

    def _put_write(self, write: WriteRecord) -> tuple[bool, int]:
        """Store a write. Return whether its place was free, and the xor of old and new checksum."""
        view = self._view
        if write.key not in view.write_checksums:
            view.write(write.key)
        old = view.write_checksums[write.key]
        row = write_row(view.key, write, self._chunk_keys(write.chunks))
        check = view.write_checksums[write.key] = row[-1]
        self._db.execute(PUT_WRITE.replace("insert", "insert or replace", 1), row)
        return old is None, xor((old, check))

    def _count_writes(self, namespace: str, checkpoint: str, more: int, change: int) -> None:
        count, total = (0, 0) if self._effect.everything else self._view.tally(namespace, checkpoint)
        where = (self._view.key, escape(namespace), escape(checkpoint))
        self._db.execute(PUT_TALLY, tally_row(where, count + more, total ^ change))

    def _put_entry(self, entry: EntryRecord) -> None:
        view = self._view
        stored = view.stored_entry(entry.kind, entry.key)
        self._entries += (not entry.gone) - (stored.entry is not None)
        if entry.gone:
            stored = remove_entry(self._db, view.key, entry)
        else:
            stored = put_entry(self._db, view.key, entry, stored)
        view.note_entry(entry, stored)
        note_entry(self._known, (entry.kind, entry.key), stored)
