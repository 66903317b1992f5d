"""The parameters of the function `save_1` (functions.sql), and the receipt from its answer.

The function does a whole save in one transaction: a crash of the server or of this process leaves
all of it or nothing. If the answer is lost, the same call is sent again: `save_1` knows its token.
"""

from __future__ import annotations

import json
from dataclasses import replace

from outlive.backend import CheckpointRecord, Commit, EntryRecord, Receipt, ThreadKey, WriteRecord, stamped
from outlive.backend.entries import check_kinds
from outlive.backends.postgres.connection import Parameter
from outlive.backends.postgres.rows import (
    Cells,
    blobs,
    checkpoint_checksum,
    digest,
    document,
    entry_documents,
    entry_name,
    flag,
    number,
    space,
    text,
    to_blobs,
    to_maybe_text,
    to_number,
    to_numbers,
    to_text,
    write_documents,
)
from outlive.backends.rules.decide import new_generation
from outlive.backends.rules.snapshot import is_plain
from outlive.backends.server.attempts import lock_ms
from outlive.errors import BadArgument
from outlive.runtime.runtime import Deadline

_MOST_BYTES = 1_000_000_000  # of one message to the server


def may_be_grouped(commit: Commit) -> bool:
    """Tell whether a commit can share a transaction: it must not fail before the server decides."""
    if not is_plain(commit):
        return False
    try:
        check_acceptable(commit)
    except BadArgument:
        return False
    return True


def check_acceptable(commit: Commit) -> None:
    """Refuse a commit that no server would take."""
    check_kinds(commit.entries)
    size = sum(len(data) for _, data in commit.chunks) + sum(
        len(record.body) for record in commit.checkpoints
    )
    if size > _MOST_BYTES and is_plain(commit):
        raise BadArgument(
            f"this save brings {size:,} bytes at once; PostgreSQL takes {_MOST_BYTES:,}: save large parts one after another"
        )


def thread_parameters(thread: ThreadKey) -> tuple[Parameter, ...]:
    return thread.digest, digest(thread.tenant), text(thread.tenant), text(thread.id)


def parameters(commit: Commit, void: bytes, deadline: Deadline) -> list[Parameter]:
    """Return the parameters of save_1, in its order."""
    return [
        b"%d" % lock_ms(deadline),
        *thread_parameters(commit.thread),
        number(new_generation()),
        commit.token,
        void,
        number(commit.generation),
        number(commit.epoch),
        *_expectations(commit),
        *(_checkpoint_parameters(commit.checkpoints[0]) if commit.checkpoints else _NO_CHECKPOINT),
        *_chunk_parameters(commit),
        *_write_parameters(commit),
        *_entry_parameters(commit),
    ]


_NO_CHECKPOINT: list[Parameter] = [None] * 18
_NO_CHECKPOINT[5] = b"\0"  # follows


def _expectations(commit: Commit) -> list[Parameter]:
    expected: list[Parameter] = [b"\0", None, None]
    if commit.expect_head is not None:
        namespace, head = commit.expect_head
        expected = [b"\1", space(namespace), text(head)]
    if commit.fence is None:
        return [*expected, None, None, None]
    kind, key, epoch, fence = commit.fence
    return [*expected, entry_name(kind, key), number(epoch), number(fence)]


def _checkpoint_parameters(draft: CheckpointRecord) -> list[Parameter]:
    return [
        digest(draft.namespace, draft.id),
        space(draft.namespace),
        text(draft.namespace),
        text(draft.id),
        text(draft.parent),
        flag(draft.follows),
        text(draft.run),
        number(draft.step),
        text(draft.source),
        number(draft.size),
        number(draft.added),
        number(draft.created_at),
        number(draft.version),
        draft.format.to_bytes(4, "big"),
        document(draft.projection),
        checkpoint_checksum(draft),
        b"".join(draft.chunks),
        draft.body,
    ]


def _chunk_parameters(commit: Commit) -> list[Parameter]:
    chunks = dict(commit.chunks)
    shared = [name for record in commit.checkpoints for name in record.chunks if name not in chunks]
    brought = [b"".join(chunks), blobs(list(chunks.values()))] if chunks else [None, None]
    return [*brought, b"".join(shared) or None]


def _write_parameters(commit: Commit) -> list[Parameter]:
    if not commit.writes:
        return [None, None, None]
    return [
        document(json.dumps(write_documents(commit.writes))),
        blobs([write.body for write in commit.writes]),
        blobs([b"".join(write.chunks) for write in commit.writes]),
    ]


def _entry_parameters(commit: Commit) -> list[Parameter]:
    if not commit.entries:
        return [None, None]
    return [
        document(json.dumps(entry_documents(commit.entries))),
        blobs([entry.body for entry in commit.entries]),
    ]


def receipt(commit: Commit, cells: Cells) -> Receipt:
    """Return the receipt of a save that is done; the server assigns places, times and fences."""
    generation, revision, epoch = (to_number(cell) for cell in cells[1:4])
    checkpoints: tuple[CheckpointRecord, ...] = ()
    if commit.checkpoints:
        draft = commit.checkpoints[0]
        record = stamped(
            draft,
            epoch=epoch,
            seq=to_number(cells[4]),
            created_at=to_number(cells[5]),
            parent=to_maybe_text(cells[6]),
            version=draft.version,
        )
        checkpoints = (record,)
    return Receipt(
        generation,
        revision,
        checkpoints,
        entries=_settled(commit, cells) if commit.entries else (),
        writes=_accepted(commit, cells, (epoch, 0, revision)) if commit.writes else (),
    )


def _accepted(commit: Commit, cells: Cells, rank: tuple[int, int, int]) -> tuple[WriteRecord, ...]:
    """Return the writes that were stored: the first of an index stays, so some may be refused."""
    accepted: dict[tuple[str, str, str, int], WriteRecord] = {}
    for place in to_numbers(cells[9]):
        write = commit.writes[place]
        is_stamped = write.index < 0 and write.rank == (0, 0, 0)
        accepted[write.key] = replace(write, rank=rank) if is_stamped else write
    return tuple(accepted.values())


def _settled(commit: Commit, cells: Cells) -> tuple[EntryRecord, ...]:
    documents = json.loads((cells[10] or b"\1[]")[1:])
    return tuple(
        replace(
            entry,
            body=body,
            status=to_text(fields["status"].encode()),
            fence=fields["fence"],
            until=fields["until"],
            clock=to_text(fields["clock"].encode()),
            lease_s=None,
            expect=None,
            expect_lapsed=False,
        )
        for entry, fields, body in zip(commit.entries, documents, to_blobs(cells[11]), strict=True)
    )
