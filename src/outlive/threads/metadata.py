"""The record of a thread: its metadata, and where it was forked from."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from outlive.backend import Commit, Removal, ThreadKey, ThreadRecord, thread_record
from outlive.backend.undecrypted import refuse_undecrypted
from outlive.errors import Corrupt, NewerFormat, ThreadNotEmpty, well_formed
from outlive.format import manifest
from outlive.threads.engine import Engine, Located
from outlive.values import ThreadInfo, moment

FORMAT = 1


def pack_metadata(
    engine: Engine, metadata: Mapping[str, Any], forked_from: tuple[str, str] | None
) -> tuple[bytes, str | None]:
    """Return the record of a thread as bytes, and its metadata as JSON for people."""
    origin = list(forked_from) if forked_from else None
    body = engine.codec.pack([FORMAT, dict(metadata), origin], "metadata")
    return body, manifest.projection(metadata)


def unpack_metadata(
    engine: Engine, row: ThreadRecord | None
) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """Return the metadata of a thread and the (thread, checkpoint) it was forked from."""
    if row is None or row.metadata is None:
        return {}, None
    try:
        refuse_undecrypted(row.metadata)
    except Corrupt as error:
        raise type(error)(error.what, thread=row.id) from None
    with well_formed("its metadata", row.id):
        version, metadata, origin, *_ = engine.codec.unpack(row.metadata)
        if type(version) is not int or version < 1:
            raise Corrupt("it has no format")
        if version > FORMAT:
            raise NewerFormat("the metadata of a thread", version, FORMAT)
        return metadata, tuple(origin) if origin else None


def describe_thread(engine: Engine, key: ThreadKey, row: ThreadRecord) -> ThreadInfo:
    """Return a listed thread as the user sees it."""
    with Located(key, None):
        metadata, forked_from = unpack_metadata(engine, row)
    return ThreadInfo(
        id=row.id,
        checkpoints=row.checkpoints,
        stored_bytes=row.stored,
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
        metadata=metadata,
        forked_from=forked_from,
        head=None if row.head is None else engine.checkpoint(key, row.head),
    )


async def check_vacant(engine: Engine, key: ThreadKey) -> int:
    """Return the version of the metadata of an empty thread.

    Raises ThreadNotEmpty for any other.
    """
    row = await thread_record(engine.backend, key)
    if row is None:
        return 0
    if row.checkpoints:
        raise ThreadNotEmpty(key.id)
    if unpack_metadata(engine, row)[0]:
        raise ThreadNotEmpty(key.id, "metadata")
    return row.metadata_version


async def drop_stray_writes(engine: Engine, key: ThreadKey, brought: Container[tuple[str, str]]) -> None:
    """Remove stray pending writes under the (namespace, id) of the copied checkpoints."""
    stored = {write.checkpoint_key for write in await engine.backend.writes(key, None)}
    strays = tuple(sorted(pair for pair in stored if pair in brought))
    if strays:
        await engine.commit(Commit(key, removal=Removal(checkpoints=strays), expect_empty=True))
