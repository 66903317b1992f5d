"""Looking at every value of a thread in Redis: checksums, counts, and whether its keys agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlive.backend import ThreadKey
from outlive.backends.redis import rows as rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.rows import Stored, text
from outlive.errors import Corrupt

if TYPE_CHECKING:
    from outlive.backends.redis.backend import RedisBackend

_BATCH = 64


class Audit:
    """What is wrong with one thread."""

    def __init__(self, backend: RedisBackend, thread: ThreadKey) -> None:
        self._backend = backend
        self._thread = thread
        self.found: list[Corrupt] = []

    async def run(self) -> list[Corrupt]:
        reply = await self._backend.ask(self._thread, "audit", ())
        try:
            stored = rows.stored_of(self._thread, reply[0])
        except Corrupt as error:
            return [error]
        if stored is None:
            return self.found
        _, records, order, writes, entries, chunks, meta, unseen, is_misplaced, is_unlisted = reply
        self._look(lambda: rows.info_of(self._thread, stored, *meta[2:]))
        name = [text(self._thread.tenant), text(self._thread.id)]
        if (stored.is_listed or stored.entries) and meta[:2] != name:
            self._wrong("its name is damaged")
        if set(order) - {rows.LAST} != self._values(records, writes, entries):
            self._wrong("its order and its records do not agree")
        if unseen or is_misplaced:
            self._wrong("an index does not show it as it is")
        if is_unlisted:
            self._wrong("the roster of its bucket does not show it as it is")
        self._counts(stored, len(records) // 2, len(writes) // 2, len(entries) // 2)
        names = sorted({field[1:] for field in chunks})
        for at in range(0, len(names), _BATCH):
            await self._chunks(names[at : at + _BATCH])
        return self.found

    def _wrong(self, what: str) -> None:
        self.found.append(Corrupt(what, thread=self._thread.id))

    def _look(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Corrupt as error:
            self.found.append(error)

    def _values(self, records: list[bytes], writes: list[bytes], entries: list[bytes]) -> set[bytes]:
        """Check every value; return the order that they should have."""
        thread, order = self._thread, set()
        for field, value in rows.pairs(records):
            self._look(lambda field=field, value=value: rows.record_of(thread, field, value))  # type: ignore[misc]
            namespace, _, id = field.partition(b"\0")
            check = b"\0" + value[28:36]
            order.add(b"n" + namespace + b"\0" + value[:16] + id + check)
            order.add(b"a" + value[:16] + id + b"\0" + namespace + check)
        for field, value in rows.pairs(writes):
            self._look(lambda field=field, value=value: rows.write_of(thread, field, value))  # type: ignore[misc]
            order.add(b"w" + field + b"\0" + value[48:56])
        for field, value in rows.pairs(entries):
            self._look(lambda field=field, value=value: rows.entry_of(thread, field, value))  # type: ignore[misc]
            order.add(b"e" + field + b"\0" + value[64:72])
        return order

    def _counts(self, stored: Stored, checkpoints: int, writes: int, entries: int) -> None:
        for what, count, said in (
            ("checkpoints", checkpoints, stored.checkpoints),
            ("writes", writes, stored.writes),
            ("entries", entries, stored.entries),
        ):
            if count != said:
                self._wrong(f"it has {count} {what} instead of {said}")

    async def _chunks(self, names: list[bytes]) -> None:
        keys = self._backend.keys(self._thread)
        fields = [letter + name for name in names for letter in (b"d", b"s")]
        call = Call(self._backend.slot(keys.bucket), ("HMGET", keys.all[3], *fields))
        (values,) = await self._backend.ask_all([call])
        for name, data, stamp in zip(names, values[::2], values[1::2], strict=True):
            if data is not None or stamp is not None:  # else it was swept meanwhile
                self._look(lambda name=name, data=data, stamp=stamp: self._chunk(name, data, stamp))  # type: ignore[misc]

    def _chunk(self, name: bytes, data: bytes | None, stamp: bytes | None) -> None:
        _, crc = rows.stamp_of(self._thread, name, stamp)
        if data is None or crc != rows.chunk_crc(name, data):
            self._wrong(f"chunk {name.hex()} is damaged")
