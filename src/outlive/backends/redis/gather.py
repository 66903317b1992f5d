"""What a commit that is decided here looks at, fetched by one script (`gather.lua`)."""

from __future__ import annotations

from typing import Any

from outlive.backend import CheckpointKey, CheckpointRecord, Commit
from outlive.backends.redis import rows as rows
from outlive.backends.redis.rows import pair_field, text
from outlive.backends.rules.snapshot import Snapshot, Wanted, unbrought
from outlive.errors import Corrupt, StaleBase


class Gathering:
    """What is asked for one commit, and the answer as a snapshot."""

    def __init__(self, commit: Commit) -> None:
        self.is_done = False
        self._commit = commit
        self._thread = commit.thread
        self._wanted = wanted = Wanted.of(commit)
        # The generation tells of deletions, not of commits that a server has lost: see commit.lua.
        self._needed = unbrought(commit) if commit.generation is not None else set()
        self._chunks = [*{*wanted.chunks, *self._needed}]
        self._records = [pair_field(*pair) for pair in wanted.checkpoints]
        self._writes = [rows.write_field(key) for key in wanted.writes]
        self._entries = [rows.entry_field(*entry) for entry in wanted.entries]

    @property
    def said(self) -> tuple[Any, ...]:
        namespaces = [text(namespace) for namespace in self._wanted.namespaces]
        pairs = [pair_field(*pair) for pair in self._wanted.pairs]
        return self._records, namespaces, self._writes, pairs, self._entries

    @property
    def names(self) -> bytes:
        return rows.pack_names(self._chunks)

    def snapshot(self, reply: list[Any]) -> tuple[Snapshot, bytes, int]:
        """Return what `decide` may ask, the raw row that stands for its moment, and the server's time.

        When the thread knows the commit's token, `is_done` is set.
        """
        if reply[0] == b"damaged":
            raise rows.damage_of(self._thread, reply[1])
        _, now, raw, info, records, heads, writes, has, entries, sizes, stamps = reply
        stored = rows.stored_of(self._thread, raw)
        if stored is None:
            return Snapshot(None), b"", now
        found = Snapshot(stored.row, stored.is_listed, stored.checkpoints)
        self.is_done = self._commit.token.hex().encode() in stored.tokens
        found.metadata = rows.info_of(self._thread, stored, *info)
        self._add_records(found, records, heads)
        self._add_rest(found, writes, has, entries)
        for name, size, stamp in zip(self._chunks, sizes, stamps, strict=True):
            if stamp is not None:
                found.chunks[name] = (size, rows.stamp_of(self._thread, name, stamp)[0])
        if (
            not self.is_done
            and self._commit.generation == stored.row.generation
            and not self._needed <= found.chunks.keys()
        ):
            raise StaleBase(self._thread.id)
        return found, raw, now

    def _add_records(self, found: Snapshot, records: list[Any], heads: list[Any]) -> None:
        for pair, field, value in zip(self._wanted.checkpoints, self._records, records, strict=True):
            if value is not None:
                found.records[pair] = self._record(pair, field, value)
        for namespace, id, value in zip(self._wanted.namespaces, heads[::2], heads[1::2], strict=True):
            if id is not None:
                pair = (namespace, rows.plain(id))
                if value is None:
                    raise Corrupt("the newest checkpoint is gone", thread=self._thread.id, checkpoint=pair[1])
                found.heads[namespace] = self._record(pair, pair_field(*pair), value)

    def _record(self, pair: CheckpointKey, field: bytes, value: bytes) -> CheckpointRecord:
        """Return a record. A damaged one can still be removed: then only that it is there counts."""
        try:
            return rows.record_of(self._thread, field, value)
        except Corrupt:
            removal = self._commit.removal
            if removal is None or pair not in removal.checkpoints:
                raise
            return CheckpointRecord(*pair, None, None, None, "", 0, 0, (), b"")

    def _add_rest(self, found: Snapshot, writes: list[Any], has: list[int], entries: list[Any]) -> None:
        for key, field, value in zip(self._wanted.writes, self._writes, writes, strict=True):
            if value is not None:
                found.written[key] = rows.write_of(self._thread, field, value)
        found.pairs.update(pair for pair, there in zip(self._wanted.pairs, has, strict=True) if there)
        for note, field, value in zip(self._wanted.entries, self._entries, entries, strict=True):
            if value is not None:
                found.notes[note] = rows.entry_of(self._thread, field, value)
