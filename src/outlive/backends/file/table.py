"""One thread of the file backend: a table in memory that follows its log."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from outlive.backend import ThreadKey
from outlive.backends.file.disk import THREADS, Disk
from outlive.backends.file.effects import Chunk, pack_effect, unpack_effect
from outlive.backends.file.log import START, Frame, Log
from outlive.backends.local.memory import Table
from outlive.backends.rules.view import Effect
from outlive.errors import Corrupt

_WASTE_BYTES = 64 << 10  # less dead bytes are not worth a rewrite
_SNAPSHOT_BYTES = 4 << 20  # data in one frame of a log that is written again
_CHUNK_BYTES = 40  # of a chunk in the meta of a frame, at most


class LoggedTable(Table):
    """A table filled from a log. It knows where the chunks are and leaves them there."""

    def __init__(self, key: ThreadKey, log: Log) -> None:
        super().__init__(key)
        self.log = log
        self.weight = 0  # bytes of meta that were replayed: about what it takes in memory
        self.synced_at = float("-inf")
        self._places: dict[bytes, tuple[int, int, int]] = {}  # name → (place, size, crc)
        self._must_go = False  # the file has bytes that must be erased
        self._has_removed = False  # something was removed since the waste was last counted
        self._look_at = _WASTE_BYTES  # how long the log may grow before its waste is counted again
        self._dead: list[tuple[int, int]] = []  # (place, size) of chunks that were removed

    # From the log

    def catch_up(self, fd: int) -> None:
        for frame in self.log.frames(fd):
            try:
                self._replay(frame)
            except (KeyError, ValueError, TypeError, IndexError) as error:
                raise self.log.corrupt(f"a frame of {self.log.name} makes no sense ({error!r})") from error

    def _replay(self, frame: Frame) -> None:
        effect, chunks = unpack_effect(frame.meta, self.key)
        if sum(chunk.size for chunk in chunks if chunk.is_new) != frame.data_bytes:
            raise ValueError("its chunks do not fill its data")
        self._change(effect, chunks, frame.data_at)
        self.weight += len(frame.meta)

    def _change(self, effect: Effect, chunks: Sequence[Chunk], at: int) -> None:
        self.apply(effect)
        self._must_go |= effect.erase or effect.everything
        self._has_removed |= removes(effect)
        removed = list(self._places) if effect.everything else effect.removed_chunks
        for name in removed:
            self._dead.append(self._places.pop(name)[:2])
        for chunk in chunks:
            if chunk.is_new:
                self._places[chunk.name] = (at, chunk.size, chunk.crc)
                at += chunk.size
            self.chunks[chunk.name] = (chunk.size, chunk.revision)

    # Into the log

    def prepare(self, effect: Effect) -> tuple[bytes, list[Chunk]]:
        """Encode what a commit does; nothing is changed yet."""
        chunks = [self._chunk(effect, name, data) for name, data in dict(effect.chunks).items()]
        return pack_effect(effect, chunks), chunks

    def _chunk(self, effect: Effect, name: bytes, data: bytes) -> Chunk:
        """A stored chunk stays as it is, unless the same commit removes it."""
        if name in self._places and not effect.everything and name not in effect.removed_chunks:
            _, size, crc = self._places[name]
            return Chunk(name, size, crc, effect.counters.revision, False)
        return Chunk(name, len(data), zlib.crc32(data, zlib.crc32(name)), effect.counters.revision, True)

    def commit(self, effect: Effect, meta: bytes, chunks: list[Chunk]) -> None:
        """Apply the effect, then add its frame to the log: a failed effect is never written."""
        self._change(effect, chunks, self.log.data_at(meta))
        data = dict(effect.chunks)
        self.log.add(meta, [data[chunk.name] for chunk in chunks if chunk.is_new])
        self.weight += len(meta)

    def wants_rewrite(self) -> bool:
        """Tell whether too much of the log is dead.

        Counting is costly, and waits until it matters.
        """
        if not (self._must_go or self._has_removed or self.log.end >= self._look_at):
            return False
        chunks = sum(size + _CHUNK_BYTES for size, _ in self.chunks.values())
        live = START + len(self._snapshot_meta()) + chunks
        part = live // 3 if self._has_removed else live  # a quarter of the whole, or half of it
        self._look_at = live + max(live, _WASTE_BYTES)
        self._has_removed = False
        return self._must_go or self.log.end - live > max(part, _WASTE_BYTES)

    def free_dead(self, fd: int) -> None:
        """Free the blocks of removed chunks, when there is no space to rewrite the log.

        All frames are on disk, before a mark that is on disk too. So no replay reads their data: a
        chunk is compared with its checksum only when it is read. A reader with an older table finds
        zeros, and looks again under the lock.
        """
        self.log.settle(fd)
        for at, size in self._dead:
            if not self.log.disk.punch(fd, at, size):
                return

    def snapshot(self, fd: int) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield frames that rebuild this table.

        Chunks keep stamp and checksum, damaged ones too.
        """
        yield self._snapshot_meta(), []
        chunks: list[Chunk] = []
        total = 0
        for name, (size, revision) in self.chunks.items():
            if total + size > _SNAPSHOT_BYTES and chunks:
                yield self._snapshot_chunks(fd, chunks)
                chunks, total = [], 0
            chunks.append(Chunk(name, size, self._places[name][2], revision, True))
            total += size
        if chunks:
            yield self._snapshot_chunks(fd, chunks)

    def _snapshot_meta(self) -> bytes:
        effect = replace(
            self._bare_effect(),
            checkpoints=tuple(self.records.values()),
            writes=tuple(write for writes in self.pending.values() for write in writes.values()),
            entries=tuple(self.entries.values()),
            metadata=self.metadata,
        )
        return pack_effect(effect, [])

    def _snapshot_chunks(self, fd: int, chunks: list[Chunk]) -> tuple[bytes, list[bytes]]:
        data = [self._bytes(fd, chunk.name) for chunk in chunks]
        if any(len(stored) != chunk.size for stored, chunk in zip(data, chunks, strict=True)):
            raise self.log.corrupt(f"{self.log.name} ends before its chunks do")
        return pack_effect(self._bare_effect(), chunks), data

    def _bare_effect(self) -> Effect:
        assert self.counters is not None
        return Effect(self.key, self.counters, self.updated_at)

    # Chunks

    def data(self, fd: int, names: Sequence[bytes], checkpoint: str | None = None) -> dict[bytes, bytes]:
        return {name: self._sound(fd, name, checkpoint) for name in names if name in self._places}

    def _sound(self, fd: int, name: bytes, checkpoint: str | None) -> bytes:
        data = self._bytes(fd, name)
        _, size, crc = self._places[name]
        if len(data) != size or zlib.crc32(data, zlib.crc32(name)) != crc:
            user = checkpoint or next((r.id for r in self.records.values() if name in r.chunks), None)
            raise Corrupt(f"chunk {name.hex()} is damaged", thread=self.key.id, checkpoint=user)
        return data

    def _bytes(self, fd: int, name: bytes) -> bytes:
        at, size, _ = self._places[name]
        return self.log.disk.read(fd, size, at)

    def audit(self, fd: int) -> list[Corrupt]:
        """Read every frame, and every chunk that counts."""

        def replay() -> None:
            self.log.resume(fd)
            self.catch_up(fd)

        damage = problems(replay)
        if damage:
            return damage
        for name in self._places:
            damage += problems(lambda name=name: self._sound(fd, name, None))  # type: ignore[misc]
        if self.log.has_bad_mark(fd):
            damage.append(self.log.corrupt(f"one of the two marks of {self.log.name} is damaged"))
        return damage


def log_of(disk: Disk, thread: ThreadKey) -> Log:
    """Return the log of a thread."""
    return Log(disk, f"{THREADS}/{thread.digest.hex()}.log", thread.digest, thread.id)


def removes(effect: Effect) -> bool:
    """Tell whether an effect removes anything."""
    return effect.everything or bool(effect.removed or effect.removed_chunks)


def plain(effect: Effect) -> Effect:
    """Drop repetitions and what `everything` covers: a replay must not fail on them."""
    if effect.everything:
        return replace(effect, removed=(), removed_chunks=())
    if not removes(effect):
        return effect
    once = tuple(dict.fromkeys(effect.removed)), tuple(dict.fromkeys(effect.removed_chunks))
    return replace(effect, removed=once[0], removed_chunks=once[1])


def problems(look: Callable[[], object]) -> list[Corrupt]:
    try:
        look()
    except Corrupt as error:
        return [error]
    return []
