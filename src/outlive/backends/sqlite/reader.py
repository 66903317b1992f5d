"""What reads of a thread in SQLite return: pages, heads, writes and the thread itself, all of it checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from outlive.backend import (
    CheckpointRecord,
    Cursor,
    HistoryQuery,
    SoundChunks,
    ThreadRecord,
    WriteRecord,
    escape,
    unescape,
)
from outlive.backends.rules.view import write_order
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.tables import RECORD, WRITES, chunk_crc, metadata_checksum, xor
from outlive.backends.sqlite.view import SQLiteView, guess

_CHUNK = "select revision, crc, data from chunk where thread = ? and name = ?"


class Reader(SQLiteView):
    """One thread, for those who read it."""

    def newest(self, namespace: str, at: int | None) -> CheckpointRecord | None:
        if at is not None:
            return self._newest_at(namespace, at)
        head = self.head_row(namespace)
        place = (self.key, escape(namespace))
        newest = f"{RECORD} where c.thread = ? and c.namespace = ? order by c.epoch desc, c.seq desc limit 1"
        row = fetch_one(self._db, newest, place)
        if head is None and row is None:
            return None
        if head is None:
            raise self._corrupt(f"the head of namespace {namespace!r} is gone")
        place_of_head = (head.epoch, head.seq, head.id)
        if row is not None and row[1] != head.id:  # two of one place, or the head is not the newest
            row = fetch_one(self._db, newest.replace("seq desc", "seq desc, c.id desc"), place)
        if row is None or (row[4], row[5], row[1]) < place_of_head:
            raise self._corrupt("the newest checkpoint is gone", unescape(head.id or ""))
        if (row[4], row[5], row[1]) != place_of_head:
            raise self._corrupt(
                f"the head of namespace {namespace!r} is an older copy of itself", guess(row[1])
            )
        record = self.record(row)
        if row[17] != head.record:
            raise self._corrupt("its record is an older copy of itself", record.id)
        return record

    def _newest_at(self, namespace: str, at: int) -> CheckpointRecord | None:
        """Look at all rows: SQL would pass over one whose time or place is damaged."""
        self.check_count(namespace)
        records = list(self._records(namespace, None))
        return next((record for record in records if record.created_at <= at), None)

    def page(self, query: HistoryQuery) -> list[CheckpointRecord]:
        if query.before is None:
            self.check_count(query.namespace)
            if query.namespace is not None:
                # Its place may have been changed to that of another page.
                self.check_head(query.namespace)
        records = self._records(query.namespace, query.before)
        matches = (record for record in records if query.run is None or record.run == query.run)
        return list(itertools.islice(matches, query.limit))

    def _records(self, namespace: str | None, before: Cursor | None) -> Iterator[CheckpointRecord]:
        """Yield records, newest first, each one checked."""
        where, values = "thread = ?", [self.key]
        if namespace is not None:
            where, values = where + " and namespace = ?", [*values, escape(namespace)]  # type: ignore[list-item]
        if before is not None:
            where, values = where + " and (epoch, seq, id) < (?, ?, ?)", [*values, *before]  # type: ignore[list-item]
        sql = f"{RECORD} where {where} order by epoch desc, seq desc, id desc"
        for row in self._db.execute(sql, values):
            yield self.record(row)

    def check_absent(self, namespace: str) -> None:
        """Make sure that what was not found was never there: look at every row, and count them."""
        self.check_count(namespace)
        for _ in self._records(namespace, None):
            pass
        self.check_index()

    def check_count(self, namespace: str | None) -> None:
        """Compare how many checkpoints there are with how many there should be."""
        head = None if namespace is None else self.head_row(namespace)
        expected = self.checkpoints if namespace is None else head.checkpoints if head else 0
        count = self._count_rows(namespace)
        if count != expected:
            where = "it" if namespace is None else f"namespace {namespace!r}"
            raise self._corrupt(f"{where} has {count} checkpoints instead of {expected}")

    def _count_rows(self, namespace: str | None) -> int:
        if namespace is None:
            row = fetch_one(self._db, "select count(*) from checkpoint where thread = ?", (self.key,))
        else:
            sql = "select count(*) from checkpoint where thread = ? and namespace = ?"
            row = fetch_one(self._db, sql, (self.key, escape(namespace)))
        return int(row[0])

    def data(self, names: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return chunks by name: sound ones, if each agrees with the checksum of its row."""
        chunks, is_sound = SoundChunks(), True
        for name in names:
            row = fetch_one(self._db, _CHUNK, (self.key, name))
            if row is not None:
                revision, crc, data = row
                if not isinstance(data, bytes):  # a column of any type can hold any other
                    raise self._corrupt(f"the row of chunk {name.hex()} is damaged")
                is_sound = (
                    is_sound and type(revision) is int and crc == chunk_crc(self.key, name, revision, data)
                )
                chunks[name] = data
        return chunks if is_sound else dict(chunks)

    def writes_of(self, namespace: str, checkpoint: str) -> list[WriteRecord]:
        where = (self.key, escape(namespace), escape(checkpoint))
        rows: list[Any] = self._db.execute(WRITES, where).fetchall()
        if not rows:
            return []
        tally = rows.pop()[1:4] if rows[-1][0] else None
        count, total = self._checked_tally(where, tally, checkpoint)
        if len(rows) != count:
            raise self._corrupt(f"it has {len(rows)} writes instead of {count}", checkpoint)
        if xor(row[13] for row in rows) != total:
            raise self._corrupt("one of its writes is damaged or is an older copy of itself", checkpoint)
        return sorted((self._write(row[1:]) for row in rows), key=write_order)

    def written(self) -> list[tuple[str, str]]:
        sql = "select namespace, checkpoint from tally where thread = ? union select namespace, checkpoint from write where thread = ?"
        return [(unescape(ns), unescape(id)) for ns, id in self._db.execute(sql, (self.key, self.key))]

    def summary(
        self, metadata: bytes | None, projection: str | None, check: bytes | None, heads: bool = True
    ) -> ThreadRecord:
        assert self.counters is not None
        row = self.counters
        if check != (
            None
            if metadata is None
            else metadata_checksum(self.key, row.metadata_version, metadata, projection)
        ):
            raise self._corrupt("its metadata is damaged")
        head = self.newest("", None) if heads else None
        return ThreadRecord(
            self.thread.id, row.generation, row.revision, row.epoch, row.seq, self.checkpoints, self.stored,
            row.created_at, self.updated_at, metadata, projection, row.metadata_version, head,
        )  # fmt: skip
