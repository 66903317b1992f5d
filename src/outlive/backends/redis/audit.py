"""Checking every value of a thread in Redis: checksums, counts, and whether its keys agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlive.backend import ThreadKey
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.repair import IndexRepair
from outlive.backends.redis.rows import StoredThread, to_bytes
from outlive.backends.redis.session import Session
from outlive.errors import Corrupt

_BATCH = 64  # chunks fetched together


class ThreadAudit:
    """Finds what is wrong with one thread."""

    def __init__(self, session: Session, repair: IndexRepair, thread: ThreadKey) -> None:
        self._session = session
        self._repair = repair
        self._thread = thread
        self._problems: list[Corrupt] = []

    async def run(self) -> list[Corrupt]:
        reply = await self._repair.ask(self._thread, "audit", ())
        try:
            stored = rows.parse_row(self._thread, reply[0])
        except Corrupt as error:
            return [error]
        if stored is None:
            return []
        _, records, order, writes, entries, chunks, meta, unlisted_entries, is_misplaced, is_unlisted = reply
        self._check(rows.parse_info, self._thread, stored, *meta[2:])
        name = [to_bytes(self._thread.tenant), to_bytes(self._thread.id)]
        if (stored.is_listed or stored.entries) and meta[:2] != name:
            self._add("its name is damaged")
        if set(order) - {rows.LAST} != self._check_values(records, writes, entries):
            self._add("its order and its records do not agree")
        if unlisted_entries or is_misplaced:
            self._add("an index does not show it as it is")
        if is_unlisted:
            self._add("the roster of its bucket does not show it as it is")
        self._check_counts(stored, len(records) // 2, len(writes) // 2, len(entries) // 2)
        names = sorted({field[1:] for field in chunks})
        for start in range(0, len(names), _BATCH):
            await self._check_chunks(names[start : start + _BATCH])
        return self._problems

    def _add(self, problem: str) -> None:
        self._problems.append(Corrupt(problem, thread=self._thread.id))

    def _check(self, parse: Callable[..., object], *args: Any) -> None:
        try:
            parse(*args)
        except Corrupt as error:
            self._problems.append(error)

    def _check_values(self, records: list[bytes], writes: list[bytes], entries: list[bytes]) -> set[bytes]:
        """Check every value; return the order that they should have."""
        thread, order = self._thread, set()
        for field, value in rows.to_pairs(records):
            self._check(rows.parse_record, thread, field, value)
            namespace, _, id = field.partition(b"\0")
            check = b"\0" + value[28:36]
            order.add(b"n" + namespace + b"\0" + value[:16] + id + check)
            order.add(b"a" + value[:16] + id + b"\0" + namespace + check)
        for field, value in rows.to_pairs(writes):
            self._check(rows.parse_write, thread, field, value)
            order.add(b"w" + field + b"\0" + value[48:56])
        for field, value in rows.to_pairs(entries):
            self._check(rows.parse_entry, thread, field, value)
            order.add(b"e" + field + b"\0" + value[64:72])
        return order

    def _check_counts(self, stored: StoredThread, checkpoints: int, writes: int, entries: int) -> None:
        for kind, count, expected in (
            ("checkpoints", checkpoints, stored.checkpoints),
            ("writes", writes, stored.writes),
            ("entries", entries, stored.entries),
        ):
            if count != expected:
                self._add(f"it has {count} {kind} instead of {expected}")

    async def _check_chunks(self, names: list[bytes]) -> None:
        keys = self._session.keys(self._thread)
        fields = [letter + name for name in names for letter in (b"d", b"s")]
        call = Call(self._session.slot(keys.bucket), ("HMGET", keys.chunks, *fields))
        values = await self._session.ask(call)
        for name, data, stamp in zip(names, values[::2], values[1::2], strict=True):
            if data is not None or stamp is not None:  # else it was deleted meanwhile
                self._check(self._check_chunk, name, data, stamp)

    def _check_chunk(self, name: bytes, data: bytes | None, stamp: bytes | None) -> None:
        _, check = rows.parse_stamp(self._thread, name, stamp)
        if data is None or check != rows.chunk_checksum(name, data):
            self._add(f"chunk {name.hex()} is damaged")
