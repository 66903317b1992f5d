"""A piece of the stream of a run as it is stored: several chunks in one entry.

The key of an entry is the run, the epoch and fence under which it was written, and the number of
its first chunk. Every process that takes over a run has a greater fence, and a failover raises the
epoch. So the order of the keys is the order of the stream, over all attempts and both stores of a
pair, and no key is used twice: a cursor that a client got from a store that is lost never points at
other chunks of the store that took over.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from outlive.backend import EntryRecord
from outlive.backend.entries import STREAM
from outlive.dataclass import dataclass
from outlive.errors import BadArgument, Corrupt
from outlive.format.codec import Codec

_KEY = re.compile(r"([0-9]{10})\.([0-9]{20})\.([0-9]{20})")
_CURSOR = re.compile(r"([0-9]{1,10})\.([0-9]{1,20})\.([0-9]{1,20})\.([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One chunk that a run emitted. Made by `store.follow(run_id)`.

    `cursor` is where to continue: `store.follow(run_id, after=chunk.cursor)`. `attempt` is the
    attempt of the run that emitted the chunk: a later one may repeat what an earlier one emitted.
    `number` counts the chunks of the run from 1; a gap means that the chunks between were dropped.
    """

    value: Any
    cursor: str
    attempt: int
    number: int


class EntryKey(NamedTuple):
    """Where an entry is in the stream of its run."""

    epoch: int
    fence: int
    first: int  # the number of its first chunk

    def key(self, run_id: str) -> str:
        """Return the key of the entry."""
        return f"{run_id}\n{self.epoch:010d}.{self.fence:020d}.{self.first:020d}"

    @classmethod
    def of(cls, run_id: str, key: str) -> EntryKey | None:
        """Return what the key of an entry says; None for an entry of another run, whose id begins with this one."""
        match = _KEY.fullmatch(key, len(run_id) + 1)
        return None if match is None else cls(*map(int, match.groups()))


@dataclass(frozen=True, slots=True)
class Position:
    """A chunk in the stream: what a cursor stands for."""

    entry_key: EntryKey
    index: int  # in its entry

    def __str__(self) -> str:
        return f"{self.entry_key.epoch}.{self.entry_key.fence}.{self.entry_key.first}.{self.index}"

    @classmethod
    def of(cls, cursor: object) -> Position:
        """Return what a cursor stands for. Raises BadArgument."""
        match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        if match is None:
            raise BadArgument(
                f"after must be the cursor of a chunk of store.follow, such as '0.7.1.0', not {cursor!r:.100}"
            )
        epoch, fence, first, index = map(int, match.groups())
        return cls(EntryKey(epoch, fence, first), index)


def pack_entry(
    codec: Codec, run_id: str, entry_key: EntryKey, attempt: int, chunks: list[bytes]
) -> EntryRecord:
    """Return the entry with these chunks, each of which is packed."""
    body = codec.pack([attempt, chunks])
    return EntryRecord(STREAM, entry_key.key(run_id), body, epoch=entry_key.epoch, fence=entry_key.fence)


def unpack_entry(codec: Codec, entry: EntryRecord) -> tuple[int, list[bytes]]:
    """Return the attempt and the packed chunks of an entry. Raises Corrupt."""
    attempt, chunks, *_ = codec.unpack(entry.body or b"")
    if (
        type(attempt) is not int
        or not isinstance(chunks, list)
        or {type(chunk) for chunk in chunks} != {bytes}
    ):
        raise Corrupt("a piece of a stream is damaged")
    return attempt, chunks


def run_of(key: str) -> str:
    """Return the run of an entry. Raises Corrupt."""
    run_id, _, entry_key = key.rpartition("\n")
    if _KEY.fullmatch(entry_key) is None:
        raise Corrupt("a piece of a stream has a damaged key")
    return run_id
