"""Verifying everything that is stored: every checksum, name, count and span.

States are decoded; their types need not be known. Without keys, an encrypted store is checked as
far as possible.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Container, Mapping

from outlive.backend import (
    RESERVED,
    Backend,
    CheckpointRecord,
    EntryQuery,
    HistoryQuery,
    ThreadKey,
    ThreadQuery,
    WriteRecord,
    all_entries,
    all_records,
    each_entry,
)
from outlive.backend.entries import ENCRYPTED, KINDS
from outlive.errors import Corrupt, OutliveError, StoreError
from outlive.format import manifest
from outlive.format.layout import Span, expand, has_composite
from outlive.layers.encryption.keyring import key_of
from outlive.layers.encryption.layer import Encrypted
from outlive.threads.engine import Engine, Located, check_format
from outlive.threads.listing import Threads
from outlive.threads.metadata import unpack_metadata
from outlive.values import Problem, Verified

_BATCH = 64
_PAGE = 500
_TRIES = 5


async def verify_thread(engine: Engine, key: ThreadKey) -> Verified:
    """Check one thread; problems are listed, not raised. A deletion meanwhile is not a problem."""
    report = Verified(1, 0, 0)
    backend = engine.backend
    check = _verify_without_key if isinstance(backend, Encrypted) and not backend.has_key else _verify_once
    for _ in range(_TRIES):
        try:
            generation = (await backend.inventory(key)).generation
            report = await check(engine, key)
            if report.ok or (await backend.inventory(key)).generation == generation:
                break
        except StoreError as error:
            return Verified(1, 0, 0, (Problem.of(error, key.id),))
    return report


async def verify_store(
    engine: Engine, tenant: str, progress: Callable[[int, int | None], None] | None
) -> Verified:
    """Check every thread of a tenant, and what is in no list; `progress` is called after each thread."""
    try:
        problems = [Problem.of(error) for error in await engine.backend.audit(None)]
    except StoreError as error:
        return Verified(0, 0, 0, (Problem.of(error),))
    checkpoints = chunks = 0
    listed: set[str] = set()
    async for key in _listed_keys(engine, tenant, problems):
        listed.add(key.id)
        report = await verify_thread(engine, key)
        checkpoints += report.checkpoints
        chunks += report.chunks
        problems += report.problems
        if progress is not None:
            progress(len(listed), None)
    problems += await _verify_unlisted(engine, tenant, listed)
    return Verified(len(listed), checkpoints, chunks, tuple(dict.fromkeys(problems)))


async def _listed_keys(engine: Engine, tenant: str, problems: list[Problem]) -> AsyncIterator[ThreadKey]:
    """List threads as far as the listing itself is whole."""
    damaged: list[Corrupt] = []
    pages = Threads(engine, tenant, heads=False, damaged=damaged)
    try:
        while (row := await pages.next_row()) is not None:
            yield ThreadKey.of(tenant, row.id)
    except StoreError as error:
        problems.append(Problem.of(error))
    problems += map(Problem.of, damaged)


async def _verify_unlisted(engine: Engine, tenant: str, listed: Container[str]) -> list[Problem]:
    """Check what is in no list: what deleted threads have left, and the records of the store itself."""
    problems: list[Problem] = []
    for owner in (tenant, RESERVED):
        keys = {key for kind in KINDS async for key in _keys_with(engine.backend, owner, kind, problems)}
        for key in sorted(keys, key=lambda key: key.id):
            if owner == RESERVED or key.id not in listed:
                problems += (await verify_thread(engine, key)).problems
    return problems


async def _keys_with(
    backend: Backend, tenant: str, kind: str, problems: list[Problem]
) -> AsyncIterator[ThreadKey]:
    """Iterate over threads that have entries of a kind.

    Damaged entries are skipped: the check of their thread reports them.
    """
    inner = backend.inner if isinstance(backend, Encrypted) else backend
    try:
        async for key, _ in each_entry(inner, EntryQuery(tenant, kind, limit=_PAGE)):
            yield key
    except StoreError as error:
        problems.append(Problem.of(error))


async def _verify_once(engine: Engine, key: ThreadKey) -> Verified:
    problems = [Problem.of(error, key.id) for error in await engine.backend.audit(key)]
    try:
        records = await engine.records(key)
        writes = await engine.backend.writes(key, None)
        # The inventory comes last: a save in between adds chunks, and removes none.
        inventory = await engine.backend.inventory(key)
        composites = await engine.composites(key, [record for record in records if _has_layout(record)])
    except StoreError as error:
        return Verified(1, 0, 0, tuple(dict.fromkeys((*problems, Problem.of(error, key.id)))))
    raws, damaged = await _check_chunks(engine, key, list(inventory.chunks))
    problems += damaged
    for record in records:
        problems += _guarded(
            key, record.id, functools.partial(_check_record, engine, record, raws, composites)
        )
    for write in writes:
        problems += _guarded(key, write.checkpoint, functools.partial(_check_write, write, raws))
    if isinstance(engine.backend, Encrypted):  # only the key shows whether a record is in its own place
        problems += await _check_beside(engine, engine.backend, key)
    return Verified(1, len(records), len(inventory.chunks), tuple(dict.fromkeys(problems)))


def _check_write(write: WriteRecord, chunks: Container[bytes]) -> None:
    manifest.layout_of(write.body)
    for name in write.chunks:
        if name not in chunks:
            raise Corrupt(f"chunk {name.hex()} of a write is missing")


async def _check_beside(engine: Engine, backend: Backend, key: ThreadKey) -> list[Problem]:
    """Open the metadata and the entries of a thread."""
    problems: list[Problem] = []
    for row in await backend.threads(ThreadQuery(key.tenant, only=key.id, heads=False)):
        problems += _guarded(key, None, functools.partial(unpack_metadata, engine, row))
    for kind in ENCRYPTED:
        try:
            await all_entries(backend, EntryQuery(key.tenant, kind, thread=key, limit=_PAGE))
        except OutliveError as error:
            problems.append(Problem.of(error, key.id))
    return problems


async def _verify_without_key(engine: Engine, key: ThreadKey) -> Verified:
    """Check without a key: every checksum, that all is encrypted, that no chunk is missing."""
    assert isinstance(engine.backend, Encrypted)
    inner = engine.backend.inner
    problems = [Problem.of(error, key.id) for error in await inner.audit(key)]
    records = await all_records(inner, HistoryQuery(key, None, limit=_PAGE))
    writes = await inner.writes(key, None)
    inventory = await inner.inventory(key)
    for record in records:
        problems += _guarded(key, record.id, functools.partial(_check_without_key, record, inventory.chunks))
    for write in writes:
        problems += _guarded(
            key, write.checkpoint, functools.partial(_check_without_key, write, inventory.chunks)
        )
    names = list(inventory.chunks)
    for at in range(0, len(names), _BATCH):
        for data in (await inner.fetch(key, names[at : at + _BATCH])).values():
            problems += _guarded(key, None, functools.partial(key_of, data))
    for row in await inner.threads(ThreadQuery(key.tenant, only=key.id, heads=False)):
        problems += (
            _guarded(key, None, functools.partial(key_of, row.metadata)) if row.metadata is not None else []
        )
    for kind in ENCRYPTED:
        for _, entry in await all_entries(inner, EntryQuery(key.tenant, kind, thread=key, limit=_PAGE)):
            problems += _guarded(key, None, functools.partial(key_of, entry.body or b""))
    return Verified(1, len(records), len(names), tuple(dict.fromkeys(problems)))


def _check_without_key(row: CheckpointRecord | WriteRecord, chunks: Container[bytes]) -> None:
    key_of(row.body)
    for name in row.chunks:
        if name not in chunks:
            raise Corrupt(f"chunk {name.hex()} is missing")


async def _check_chunks(
    engine: Engine, key: ThreadKey, names: list[bytes]
) -> tuple[dict[bytes, int], list[Problem]]:
    """Read every chunk; return raw sizes and what is wrong."""
    sizes: dict[bytes, int] = {}
    problems: list[Problem] = []
    for at in range(0, len(names), _BATCH):
        data = await _fetch(engine, key, names[at : at + _BATCH], problems)
        for name in names[at : at + _BATCH]:
            problems += _guarded(key, None, functools.partial(_measure, engine, name, data.get(name), sizes))
    return sizes, problems


async def _fetch(
    engine: Engine, key: ThreadKey, names: list[bytes], problems: list[Problem]
) -> dict[bytes, bytes]:
    """Read chunks; if the call fails, read them one by one."""
    try:
        return await engine.backend.fetch(key, names)
    except StoreError as error:
        if len(names) == 1:
            problems.append(Problem.of(error, key.id))
            return {}
    chunks = {}
    for name in names:
        chunks.update(await _fetch(engine, key, [name], problems))
    return chunks


def _measure(engine: Engine, name: bytes, data: bytes | None, sizes: dict[bytes, int]) -> None:
    sizes[name] = len(engine.raw(name, data))


def _has_layout(record: CheckpointRecord) -> bool:
    try:
        return bool(manifest.layout_of(record.body))
    except OutliveError:  # `_check_record` reports it
        return False


def _check_record(
    engine: Engine, record: CheckpointRecord, sizes: dict[bytes, int], composites: Mapping[bytes, bytes]
) -> None:
    check_format(record)
    total, layout = 0, manifest.decode(engine.codec, record.body, opaque=True).layout
    if has_composite(layout):
        if not record.chunks or record.chunks[0] not in composites:
            raise Corrupt("the composite of the state is missing or damaged")
        layout = expand(layout, composites[record.chunks[0]])
    for item in layout:
        total += _check_span(record, item, sizes)
    if total != record.size:
        raise Corrupt(f"the state has {total} bytes instead of {record.size}")


def _check_span(record: CheckpointRecord, item: bytes | Span, sizes: dict[bytes, int]) -> int:
    if isinstance(item, bytes):
        return len(item)
    number, offset, length = item
    if not 0 <= number < len(record.chunks):
        raise Corrupt("a span names a chunk that is not listed")
    name = record.chunks[number]
    if name not in sizes:
        raise Corrupt(f"chunk {name.hex()} is missing or damaged")
    if offset < 0 or length < 0 or offset + length > sizes[name]:
        raise Corrupt("a span reaches beyond its chunk")
    return length


def _guarded(key: ThreadKey, checkpoint: str | None, look: Callable[[], object]) -> list[Problem]:
    try:
        with Located(key, checkpoint):
            look()
    except OutliveError as error:
        return [Problem.of(error, key.id, checkpoint)]
    return []
