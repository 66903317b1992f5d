"""Makes records, and reads everything that a backend has of a thread."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from outlive.backend import (
    OUTBOX,
    Backend,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Receipt,
    ThreadKey,
    ThreadQuery,
    ThreadRecord,
    WriteRecord,
)
from outlive.backend import commit as commit_one
from outlive.backend.entries import KINDS
from outlive.errors import OutliveError

_SHOWN_KINDS = tuple(kind for kind in KINDS if kind != OUTBOX)  # a pair empties that in the background


def chunk(text: str, size: int = 0) -> tuple[bytes, bytes]:
    """Return the name and the bytes of a chunk."""
    data = text.encode("utf-8", "surrogatepass").ljust(size, b".")
    return hashlib.blake2b(data, digest_size=16).digest(), data


def draft(id: str, *names: bytes, namespace: str = "", **fields: Any) -> CheckpointRecord:
    """Return a checkpoint to be committed: by default it follows the head."""
    plain: dict[str, Any] = {
        "parent": None,
        "run": None,
        "step": None,
        "source": "loop",
        "size": 1,
        "added": 0,
        "body": f"body of {id}".encode("utf-8", "surrogatepass"),
        "follows": "parent" not in fields,
    }
    return CheckpointRecord(namespace=namespace, id=id, chunks=names, **{**plain, **fields})


def write(checkpoint: str, task: str, index: int = 0, body: bytes = b"value", **fields: Any) -> WriteRecord:
    """Return a pending write."""
    plain = {"namespace": "", "channel": "channel", "path": ""}
    return WriteRecord(checkpoint=checkpoint, task=task, index=index, body=body, **{**plain, **fields})


def copied(record: CheckpointRecord, **fields: Any) -> CheckpointRecord:
    """Return a record with another place or name, as a copy or replica brings it."""
    return replace(record, **fields)


@contextlib.contextmanager
def expected(error: type[OutliveError], what: str) -> Iterator[None]:
    """Expect an error; otherwise fail with the name of the case."""
    try:
        yield
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{what}: {other!r} instead of {error.__name__}") from other
    raise AssertionError(f"{what}: not refused")


def live(records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]) -> set[bytes]:
    """Return the chunks that records and writes name."""
    return {name for record in records for name in record.chunks} | {
        name for write in writes for name in write.chunks
    }


class Probe:
    """One thread of a backend, seen without a store."""

    def __init__(self, backend: Backend, thread: ThreadKey) -> None:
        self.backend = backend
        self.thread = thread

    def of(self, id: str, tenant: str = "") -> Probe:
        """Look at another thread through the same handle."""
        return Probe(self.backend, ThreadKey.of(tenant, id))

    async def commit(self, *drafts: CheckpointRecord, **fields: Any) -> Receipt:
        return await commit_one(self.backend, Commit(self.thread, drafts, **fields))

    async def save(self, id: str, *chunks: tuple[bytes, bytes], **fields: Any) -> CheckpointRecord:
        """Commit one checkpoint that follows the head, with chunks of its own."""
        record = draft(id, *(name for name, _ in chunks), **fields)
        receipt = await self.commit(record, chunks=chunks)
        if receipt.existing is not None:
            raise AssertionError(f"{id!r} was taken for {receipt.existing.id!r}, which is there already")
        return receipt.checkpoints[0]

    async def records(self, namespace: str | None = None) -> list[CheckpointRecord]:
        return (await self.backend.history(HistoryQuery(self.thread, namespace, limit=1000)))[1]

    async def ids(self, namespace: str | None = None) -> list[str]:
        return [record.id for record in await self.records(namespace)]

    async def head(self, namespace: str = "") -> str | None:
        record = (await self.backend.read(self.thread, namespace)).record
        return None if record is None else record.id

    async def row(self) -> ThreadRecord | None:
        rows = await self.backend.threads(ThreadQuery(self.thread.tenant, only=self.thread.id))
        return rows[0] if rows else None

    async def entries(self, kind: str) -> list[EntryRecord]:
        answer = await self.backend.entries(
            EntryQuery(self.thread.tenant, kind, thread=self.thread, limit=1000)
        )
        return [entry for _, entry in answer]

    async def generation(self) -> int:
        return (await self.backend.inventory(self.thread)).generation

    async def data(self) -> dict[bytes, bytes]:
        """Return every chunk of the thread."""
        names = list((await self.backend.inventory(self.thread)).chunks)
        return await self.backend.fetch(self.thread, names)

    async def dump(self) -> dict[str, Any]:
        """Return everything that the backend shows of the thread."""
        inventory = await self.backend.inventory(self.thread)
        return {
            "generation": inventory.generation,
            "revision": inventory.revision,
            "inventory": inventory.chunks,
            "data": await self.backend.fetch(self.thread, list(inventory.chunks)),
            "records": await self.records(),
            "writes": await self.backend.writes(self.thread, None),
            "entries": {kind: await self.entries(kind) for kind in _SHOWN_KINDS},
            "row": await self.row(),
        }

    async def content(self) -> dict[str, Any]:
        """Return the dump without the revision, which a pair of stores raises in the background."""
        dump = await self.dump()
        del dump["revision"]
        if dump["row"] is not None:
            dump["row"] = replace(dump["row"], revision=0)
        return dump

    async def missing(self) -> set[bytes]:
        """Return the chunks that a record or a write names and that are not there."""
        records, writes = await self.records(), await self.backend.writes(self.thread, None)
        named = live(records, writes)
        return named - (await self.backend.fetch(self.thread, list(named))).keys()
