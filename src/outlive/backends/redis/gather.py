"""What a commit that is decided here depends on, fetched by one script (`gather.lua`)."""

from __future__ import annotations

from typing import Any

from outlive.backend import CheckpointKey, CheckpointRecord, Commit
from outlive.backends.redis import rows
from outlive.backends.redis.rows import checkpoint_field, to_bytes
from outlive.backends.rules.snapshot import Snapshot, Wanted, unbrought
from outlive.errors import Corrupt, StaleBase


class Gathering:
    """The arguments of the script for one commit, and its reply as a snapshot."""

    def __init__(self, commit: Commit) -> None:
        self.is_done = False  # the thread knows the commit's token
        self._commit = commit
        self._thread = commit.thread
        self._wanted = wanted = Wanted.of(commit)
        # The generation tells of deletions, not of commits that a server has lost: see commit.lua.
        self._needed = unbrought(commit) if commit.generation is not None else set()
        self._chunks = [*{*wanted.chunks, *self._needed}]
        self._records = [checkpoint_field(*key) for key in wanted.checkpoints]
        self._writes = [rows.write_field(key) for key in wanted.writes]
        self._entries = [rows.entry_field(*key) for key in wanted.entries]

    @property
    def args(self) -> tuple[Any, ...]:
        namespaces = [to_bytes(namespace) for namespace in self._wanted.namespaces]
        keys = [checkpoint_field(*key) for key in self._wanted.pairs]
        return self._records, namespaces, self._writes, keys, self._entries

    @property
    def names(self) -> bytes:
        return rows.pack_names(self._chunks)

    def snapshot(self, reply: list[Any]) -> tuple[Snapshot, bytes, int]:
        """Return what `decide` may ask, the raw row at that moment, and the server's time."""
        if reply[0] == b"damaged":
            raise rows.damage_error(self._thread, reply[1])
        _, now, raw_row, info, records, heads, writes, exists, entries, sizes, stamps = reply
        stored = rows.parse_row(self._thread, raw_row)
        if stored is None:
            return Snapshot(None), b"", now
        snapshot = Snapshot(stored.row, stored.is_listed, stored.checkpoints)
        self.is_done = self._commit.token.hex().encode() in stored.tokens
        snapshot.metadata = rows.parse_info(self._thread, stored, *info)
        self._add_records(snapshot, records, heads)
        self._add_writes_and_entries(snapshot, writes, exists, entries)
        for name, size, stamp in zip(self._chunks, sizes, stamps, strict=True):
            if stamp is not None:
                snapshot.chunks[name] = (size, rows.parse_stamp(self._thread, name, stamp)[0])
        is_same_generation = self._commit.generation == stored.row.generation
        if not self.is_done and is_same_generation and not self._needed <= snapshot.chunks.keys():
            raise StaleBase(self._thread.id)
        return snapshot, raw_row, now

    def _add_records(self, snapshot: Snapshot, records: list[Any], heads: list[Any]) -> None:
        for key, field, value in zip(self._wanted.checkpoints, self._records, records, strict=True):
            if value is not None:
                snapshot.records[key] = self._record(key, field, value)
        for namespace, id, value in zip(self._wanted.namespaces, heads[::2], heads[1::2], strict=True):
            if id is not None:
                key = (namespace, rows.to_text(id))
                if value is None:
                    raise Corrupt("the newest checkpoint is gone", thread=self._thread.id, checkpoint=key[1])
                snapshot.heads[namespace] = self._record(key, checkpoint_field(*key), value)

    def _record(self, key: CheckpointKey, field: bytes, value: bytes) -> CheckpointRecord:
        """Return a record. A damaged one can still be removed: then only its presence counts."""
        try:
            return rows.parse_record(self._thread, field, value)
        except Corrupt:
            removal = self._commit.removal
            if removal is None or key not in removal.checkpoints:
                raise
            return CheckpointRecord(*key, None, None, None, "", 0, 0, (), b"")

    def _add_writes_and_entries(
        self, snapshot: Snapshot, writes: list[Any], exists: list[int], entries: list[Any]
    ) -> None:
        for write, field, value in zip(self._wanted.writes, self._writes, writes, strict=True):
            if value is not None:
                snapshot.written[write] = rows.parse_write(self._thread, field, value)
        snapshot.pairs.update(key for key, flag in zip(self._wanted.pairs, exists, strict=True) if flag)
        for entry, field, value in zip(self._wanted.entries, self._entries, entries, strict=True):
            if value is not None:
                snapshot.notes[entry] = rows.parse_entry(self._thread, field, value)
