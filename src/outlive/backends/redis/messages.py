"""The arguments of the scripts that commit, and their replies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outlive.backend import (
    NEXT,
    TOMBSTONE,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Receipt,
    ThreadKey,
    WriteRecord,
    escape,
    stamped,
)
from outlive.backend.clock import Clock
from outlive.backend.entries import wakes
from outlive.backends.redis import rows
from outlive.backends.redis.keys import checkpoint_field, entry_field, to_bytes, to_text, write_field
from outlive.backends.redis.rows import pack_args
from outlive.backends.rules.decide import new_generation
from outlive.backends.rules.snapshot import is_apart
from outlive.backends.rules.view import Counters, Effect
from outlive.backends.server.attempts import StoreReplaced
from outlive.errors import (
    BadArgument,
    Corrupt,
    DamagedEntry,
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    OutliveError,
    StaleBase,
)

_NUMBER_LIMIT = 1 << 53  # a script has floating-point numbers only


class TrailingValues:
    """Values after the chunks in the arguments of a script, each named by its position."""

    def __init__(self, chunks: int) -> None:
        self.values: list[bytes] = []
        self._first = 3 + 3 * chunks

    def add(self, value: bytes) -> int:
        self.values.append(value)
        return self._first + len(self.values) - 1


def check_numbers(commit: Commit) -> None:
    """Refuse numbers that a script cannot count with."""
    # Step, size and version are not among them: only the client packs these, with 64 bits.
    numbers = [commit.epoch, commit.metadata_version]
    for draft in commit.checkpoints:
        numbers += [draft.epoch, draft.seq, draft.created_at]
    if commit.merge:  # it raises the revision to these
        numbers += [entry.fence for entry in commit.entries if entry.kind != TOMBSTONE]
        numbers += [write.rank[2] for write in commit.writes]
    for number in numbers:
        if number is not None and abs(number) >= _NUMBER_LIMIT:
            raise BadArgument(f"Redis counts to 2**53, and a record of this commit has {number}")


def commit_args(
    commit: Commit, tokens: bytes, ttl_ms: int, *, touch: bool, naming_key: bytes = b""
) -> list[bytes]:
    """Return the arguments of `commit.lua`, with a naming key if it may begin a thread."""
    thread = commit.thread
    draft = commit.checkpoints[0] if commit.checkpoints else None
    payload = (
        b""
        if draft is None
        else rows.pack_record_payload(thread, checkpoint_field(draft.namespace, draft.id), draft)
    )
    trailing = TrailingValues(len(commit.chunks))
    header = (
        str(new_generation()),
        tokens.hex(),
        None if commit.generation is None else str(commit.generation),
        commit.epoch,
        _fence(commit),
        _expected_head(commit),
        None if draft is None else _draft(draft),
        [_offered(thread, entry, trailing) for entry in commit.entries],
        [_written(thread, write, trailing) for write in commit.writes],
        ttl_ms,
        escape(thread.tenant),
        escape(thread.id),
        touch,
        len(commit.chunks),
        bool(naming_key),
        wakes(commit.entries),
    )
    args = [False if value is None else value for value in header]
    return [
        pack_args(args),
        payload,
        *_chunks(commit),
        *trailing.values,
        *([naming_key] if naming_key else []),
    ]


def effect_args(
    effect: Effect, tokens: bytes, raw: bytes, base: tuple[Any, ...] | None, ttl_ms: int, naming_key: bytes
) -> list[bytes]:
    """Return the arguments of `apply.lua`, with a naming key if this process knows it."""
    thread, row, trailing = effect.thread, effect.counters, TrailingValues(len(effect.chunks))
    times = str(row.created_at), str(effect.at)
    metadata = (
        None
        if effect.metadata is None
        else rows.pack_metadata(thread, effect.metadata, effect.metadata_projection, row.metadata_version)
    )
    header = (
        tokens.hex(),
        raw if base is None else False,
        False if base is None else base,
        (str(row.generation), row.revision, row.epoch, row.seq, *times, row.metadata_version),
        effect.everything,
        [checkpoint_field(*key) for key in effect.removed],
        [_placed(thread, record, trailing) for record in (*effect.checkpoints, *effect.rewrites)],
        [_stored_write(thread, write, trailing) for write in effect.writes],
        [_stored_entry(thread, entry, trailing) for entry in effect.entries],
        False if metadata is None else trailing.add(metadata),
        False if effect.metadata_projection is None else effect.metadata_projection,
        ttl_ms,
        to_bytes(thread.tenant),
        to_bytes(thread.id),
        len(effect.chunks),
        bool(naming_key),
        wakes(effect.entries),
    )
    names = rows.pack_names(effect.removed_chunks)
    return [
        pack_args(header),
        names,
        *_chunks(effect),
        *trailing.values,
        *([naming_key] if naming_key else []),
    ]


def _fence(commit: Commit) -> tuple[bytes, bytes] | None:
    if commit.fence is None:
        return None
    kind, key, epoch, number = commit.fence
    return entry_field(kind, key), b"%016x%016x" % (epoch, number)


def _expected_head(commit: Commit) -> tuple[bytes, bytes | bool] | None:
    if commit.expect_head is None:
        return None
    namespace, head = commit.expect_head
    return to_bytes(namespace), False if head is None else to_bytes(head)


def _draft(draft: CheckpointRecord) -> tuple[Any, ...]:
    parent = False if draft.follows or draft.parent is None else escape(draft.parent)
    return (
        escape(draft.namespace),
        escape(draft.id),
        draft.follows,
        parent,
        draft.created_at,
        len(draft.body),
    )


def _offered(thread: ThreadKey, entry: EntryRecord, trailing: TrailingValues) -> tuple[Any, ...]:
    field = entry_field(entry.kind, entry.key)
    return (
        field,
        trailing.add(rows.pack_entry_payload(thread, field, entry.body or b"")),
        entry.body is None,
        to_bytes(entry.status),
        rows.pack_entry_rank(entry),
        entry.fence == NEXT,
        entry.gone,
        rows.pack_lease_end(entry.until),
        to_bytes(entry.clock),
        False if entry.lease_s is None else int(entry.lease_s * 1e6),
        False if entry.expect is None else rows.pack_rank(entry.expect),
        entry.expect_lapsed,
    )


def _written(thread: ThreadKey, write: WriteRecord, trailing: TrailingValues) -> tuple[Any, ...]:
    field = write_field(write.key)
    return (
        field,
        write.index < 0,
        rows.pack_rank(write.rank),
        trailing.add(rows.pack_write_payload(thread, field, write)),
    )


def _chunks(commit: Commit | Effect) -> list[bytes]:
    return [part for name, data in commit.chunks for part in (name, rows.chunk_checksum(name, data), data)]


def _placed(
    thread: ThreadKey, record: CheckpointRecord, trailing: TrailingValues
) -> tuple[bytes, bytes, int]:
    namespace, id = to_bytes(record.namespace), to_bytes(record.id)
    return namespace, id, trailing.add(rows.pack_record(thread, namespace + b"\0" + id, record))


def _stored_write(thread: ThreadKey, write: WriteRecord, trailing: TrailingValues) -> tuple[bytes, int]:
    field = write_field(write.key)
    return field, trailing.add(rows.pack_write(thread, field, write))


def _stored_entry(thread: ThreadKey, entry: EntryRecord, trailing: TrailingValues) -> tuple[bytes, int]:
    field = entry_field(entry.kind, entry.key)
    return field, False if entry.gone else trailing.add(rows.pack_entry(thread, field, entry))


def expected_base(commit: Commit, row: Counters | None) -> tuple[Any, ...] | None:
    """Return what must still hold when the effect is applied; None: all that was gathered."""
    if row is None or not is_apart(commit):
        return None
    version = None if commit.metadata is None and commit.metadata_version is None else row.metadata_version
    until = 0 if commit.removal is None else min(commit.removal.chunks_until, _NUMBER_LIMIT)
    return str(row.generation), row.revision, False if version is None else version, until


def deletion_args(commit: Commit, tokens: bytes, ttl_ms: int, naming_key: bytes) -> list[bytes]:
    """Return the arguments of `apply.lua` that delete a thread, however damaged it is."""
    assert commit.removal is not None
    effect = Effect(
        commit.thread, Counters(new_generation(), 0, 0, 0, 0), 0, everything=True, erase=commit.removal.erase
    )
    return effect_args(effect, tokens, b"", (False, 0, False, 0), ttl_ms, naming_key)


def deletion_receipt(thread: ThreadKey, reply: list[Any]) -> Receipt:
    """Return the receipt of a deletion; of a repeated one, that there was something."""
    check_reply(thread, reply)
    row = _row(thread, reply)
    return Receipt(row.generation, row.revision, removed=1 if reply[0] == b"repeated" else reply[2])


def applied_receipt(thread: ThreadKey, decided: Receipt, reply: list[Any]) -> Receipt:
    """Complete the receipt of a decided commit with what only the script knows."""
    return replace(decided, revision=_row(thread, reply).revision, freed=reply[3])


def _row(thread: ThreadKey, reply: list[Any]) -> Counters:
    stored = rows.parse_row(thread, reply[1])
    if stored is None:
        raise Corrupt("its row is gone", thread=thread.id)
    return stored.row


def check_reply(thread: ThreadKey, reply: list[Any]) -> None:
    if reply[0] == b"damaged":
        raise rows.damage_error(thread, reply[1])
    if reply[0] == b"replaced":
        raise StoreReplaced


def parse_receipt(commit: Commit, reply: list[Any]) -> Receipt:
    """Return the receipt of an ordinary save, or raise why the script refused it."""
    thread, kind = commit.thread, reply[0]
    draft = commit.checkpoints[0] if commit.checkpoints else None
    if kind == b"ok":
        return _done(commit, draft, reply)
    check_reply(thread, reply)
    if kind == b"existing":
        assert draft is not None
        row = _row(thread, reply)
        existing = rows.parse_record(thread, checkpoint_field(draft.namespace, draft.id), reply[2])
        return Receipt(row.generation, row.revision, existing=existing)
    if kind == b"repeated" and draft is None:
        return _repeated(commit, reply)
    raise _refusal(commit, kind, reply)


def _repeated(commit: Commit, reply: list[Any]) -> Receipt:
    """Return the receipt of a commit that an earlier attempt did."""
    row = _row(commit.thread, reply)
    entries = [
        entry if value is None else rows.parse_entry(commit.thread, entry_field(entry.kind, entry.key), value)
        for entry, value in zip(commit.entries, reply[2], strict=True)
    ]
    return Receipt(row.generation, row.revision, entries=tuple(entries), writes=commit.writes)


def _refusal(commit: Commit, kind: bytes, reply: list[Any]) -> OutliveError:
    thread = commit.thread
    if kind == b"lease" and commit.fence is not None:
        name, key, _, fence = commit.fence
        field = entry_field(name, key)
        stored = None if reply[1] is None else rows.parse_entry(thread, field, reply[1])
        return LeaseLost(thread.id, name, key, fence, stored.fence if stored else None)
    if kind == b"epoch" and commit.epoch is not None:
        return EpochPassed(thread.id, commit.epoch, reply[1])
    if kind == b"head" and commit.expect_head is not None:
        head = None if reply[1] is None else to_text(reply[1])
        return HeadMoved(thread.id, *commit.expect_head, head)
    if kind == b"entry":
        entry = commit.entries[reply[1] - 1]
        return DamagedEntry(thread.id, entry.kind, entry.key, "")
    if kind == b"held":
        entry = commit.entries[reply[1] - 1]
        field = entry_field(entry.kind, entry.key)
        stored = None if reply[2] is None else rows.parse_entry(thread, field, reply[2])
        return EntryHeld(thread.id, entry.kind, entry.key, stored)
    if kind == b"repeated":  # what it saved has been deleted since
        return StaleBase(thread.id)
    return StaleBase(thread.id, None if reply[1] is None else int(reply[1]), _head_chunks(commit, *reply[2:]))


def _head_chunks(commit: Commit, head: bytes, value: bytes) -> tuple[bytes, ...]:
    """Return the chunks of the current head: a save that needs only these can be sent again."""
    if not value:
        return ()
    field = to_bytes(commit.checkpoints[0].namespace) + b"\0" + head
    try:
        return rows.parse_record(commit.thread, field, value).chunks
    except Corrupt:
        return ()


def _done(commit: Commit, draft: CheckpointRecord | None, reply: list[Any]) -> Receipt:
    _, generation, revision, seq, epoch, now, parent, accepted, stored_entries, _ = reply
    placed: tuple[CheckpointRecord, ...] = ()
    if draft is not None:
        record = stamped(
            draft,
            epoch=epoch,
            seq=seq,
            created_at=draft.created_at or now,
            parent=None if parent is None else to_text(parent),
            version=draft.version,
        )
        placed = (record,)
    entries = tuple(
        _settled(commit.thread, entry, stored, revision, now)
        for entry, stored in zip(commit.entries, stored_entries, strict=True)
    )
    writes: dict[tuple[str, str, str, int], WriteRecord] = {}
    for write, flag in zip(commit.writes, accepted, strict=True):
        if flag == ord("1"):
            writes[write.key] = replace(write, rank=(epoch, 0, revision)) if write.index < 0 else write
    return Receipt(int(generation), revision, placed, None, entries, tuple(writes.values()))


def _settled(
    thread: ThreadKey, entry: EntryRecord, stored: bytes | None, revision: int, now: int
) -> EntryRecord:
    """Return an entry as the script stored it."""
    body, status, until, clock = entry.body, entry.status, entry.until, entry.clock
    if body is None:
        kept = (
            None if stored is None else rows.parse_entry(thread, entry_field(entry.kind, entry.key), stored)
        )
        body = b"" if kept is None else kept.body
        status = status or ("" if kept is None else kept.status)
    if entry.lease_s is not None:
        until, clock = Clock(now, now, rows.CLOCK).end_of(entry.lease_s, clock)
    fence = revision if entry.fence == NEXT else entry.fence
    return EntryRecord(
        entry.kind, entry.key, body, status, entry.epoch, fence, entry.revision, until, clock, gone=entry.gone
    )
