"""The parameters of the function `save_1` (functions.sql), and the receipt from its answer.

The function does a whole save in one transaction: a crash of the server or of this process leaves
all of it or nothing. If the answer is lost, the same call is sent again: `save_1` knows its token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from outlive.backend import (
    ABSENT,
    NEXT,
    WALL,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Receipt,
    ThreadKey,
    WriteRecord,
    stamped,
)
from outlive.backend.entries import check_kinds, wakes
from outlive.backends.postgres.connection import Parameter
from outlive.backends.postgres.rows import (
    CLOCK,
    Cells,
    blobs,
    checkpoint_checksum,
    digest,
    document,
    entry_checksum,
    entry_documents,
    entry_name,
    flag,
    flags,
    lease_us,
    number,
    numbers,
    space,
    tenant_digest,
    text,
    texts,
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
_GROUP_LOCK_MS = 250  # a thread that others hold for longer must not hold up the rest of a group


def may_be_grouped(commit: Commit) -> bool:
    """Tell whether a commit can share a transaction: it must not fail before the server decides."""
    if not is_plain(commit):
        return False
    try:
        check_acceptable(commit)
    except BadArgument:
        return False
    return True


_LIGHT_BYTES = 64 << 10


def is_light(commit: Commit) -> bool:
    """Tell whether a commit has small entries alone, so that it can share a call with others, who wait for it."""
    if commit.checkpoints or commit.chunks or commit.writes or not commit.entries or not is_plain(commit):
        return False
    if sum(len(entry.body or b"") for entry in commit.entries) > _LIGHT_BYTES:
        return False
    names = {(entry.kind, entry.key) for entry in commit.entries}
    return commit.generation is None and commit.expect_head is None and len(names) == len(commit.entries)


def are_put_together(commits: Sequence[Commit]) -> bool:
    """Tell whether one call of put_1 can do commits: small entries alone, and of each thread one commit."""
    threads = {commit.thread.digest for commit in commits}
    return len(threads) == len(commits) and all(map(is_light, commits))


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
    return thread.digest, tenant_digest(thread.tenant), text(thread.tenant), text(thread.id)


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


def put_parameters(commits: Sequence[Commit], voids: Sequence[bytes], deadline: Deadline) -> list[Parameter]:
    """Return the parameters of put_1, in its order."""
    threads = [commit.thread for commit in commits]
    tenants = [tenant_digest(thread.tenant) for thread in threads]
    fences = [commit.fence for commit in commits]
    waking = {tenant for tenant, commit in zip(tenants, commits, strict=True) if wakes(commit.entries)}
    return [
        b"%d" % min(_GROUP_LOCK_MS, lock_ms(deadline)),
        blobs([thread.digest for thread in threads]),
        blobs(tenants),
        texts([thread.tenant for thread in threads]),
        texts([thread.id for thread in threads]),
        numbers([new_generation() for _ in commits]),
        blobs([commit.token for commit in commits]),
        blobs(voids),
        numbers([commit.epoch for commit in commits]),
        blobs([None if fence is None else entry_name(fence.kind, fence.key) for fence in fences]),
        numbers([None if fence is None else fence.epoch for fence in fences]),
        numbers([None if fence is None else fence.number for fence in fences]),
        flags([_may_begin(commit) for commit in commits]),
        blobs(sorted(waking)),
        *_put_entries(commits),
    ]


def put_one_parameters(commit: Commit, void: bytes, deadline: Deadline) -> list[Parameter]:
    """Return the parameters of put_one_1, in its order."""
    thread, fence = commit.thread, commit.fence
    return [
        b"%d" % min(_GROUP_LOCK_MS, lock_ms(deadline)),
        *thread_parameters(thread),
        number(new_generation()),
        commit.token,
        void,
        number(commit.epoch),
        None if fence is None else entry_name(fence.kind, fence.key),
        None if fence is None else number(fence.epoch),
        None if fence is None else number(fence.number),
        flag(_may_begin(commit)),
        flag(wakes(commit.entries)),
        *_put_one_entries(commit.entries),
    ]


def _put_one_entries(entries: Sequence[EntryRecord]) -> list[Parameter]:
    names: list[str] = []
    data: list[bytes | None] = []
    counts: list[int] = []
    for entry in entries:
        names += entry.kind, entry.key, entry.status, entry.clock
        data += entry_name(entry.kind, entry.key), entry_checksum(entry), entry.body
        counts += entry.epoch, entry.fence, entry.revision, entry.until
        counts.append(-1 if entry.lease_s is None else lease_us(entry.lease_s))
        counts += entry.expect or (-1, -1, -1)
        counts += entry.expect_lapsed, entry.gone
    return [texts(names), blobs(data), numbers(counts)]


def _may_begin(commit: Commit) -> bool:
    """Tell whether a commit can be done in a thread that does not exist."""
    return commit.fence is None and all(entry.expect in (None, ABSENT) for entry in commit.entries)


def _put_entries(commits: Sequence[Commit]) -> list[Parameter]:
    numbered = [(number, entry) for number, commit in enumerate(commits, 1) for entry in commit.entries]
    entries = [entry for _, entry in numbered]
    expected = [entry.expect or (None, None, None) for entry in entries]
    return [
        numbers([number for number, _ in numbered]),
        blobs([entry_name(entry.kind, entry.key) for entry in entries]),
        texts([entry.kind for entry in entries]),
        texts([entry.key for entry in entries]),
        texts([entry.status for entry in entries]),
        numbers([entry.epoch for entry in entries]),
        numbers([entry.fence for entry in entries]),
        numbers([entry.revision for entry in entries]),
        numbers([entry.until for entry in entries]),
        texts([entry.clock for entry in entries]),
        numbers([None if entry.lease_s is None else lease_us(entry.lease_s) for entry in entries]),
        *(numbers([rank[place] for rank in expected]) for place in range(3)),
        flags([entry.expect_lapsed for entry in entries]),
        flags([entry.gone for entry in entries]),
        blobs([entry_checksum(entry) for entry in entries]),
        blobs([entry.body for entry in entries]),
    ]


def put_receipt(commit: Commit, cells: Cells) -> Receipt:
    """Return the receipt of a commit that put_1 or put_one_1 has done."""
    generation, revision, _, now = (to_number(cell) for cell in cells[:4])
    kept = zip(to_blobs(cells[4]), to_blobs(cells[5]), strict=True)
    entries = []
    for entry in commit.entries:
        status, body = entry.status, entry.body
        if body is None:
            stored_status, body = next(kept)
            status = to_text(stored_status)
        is_leased = entry.lease_s is not None
        entries.append(
            EntryRecord(
                entry.kind,
                entry.key,
                body,
                status,
                entry.epoch,
                revision if entry.fence == NEXT else entry.fence,
                entry.revision,
                now + lease_us(entry.lease_s) if entry.lease_s is not None else entry.until,
                CLOCK if is_leased and entry.clock != WALL else entry.clock,
                gone=entry.gone,
            )
        )
    return Receipt(generation, revision, entries=tuple(entries))


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
