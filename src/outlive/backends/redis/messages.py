"""What a commit says to its script, and what the script answers."""

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
    stamped,
)
from outlive.backends.local.memory import new_token
from outlive.backends.redis import rows as rows
from outlive.backends.redis.rows import pack, pair_field, text
from outlive.backends.rules.snapshot import is_apart
from outlive.backends.rules.view import Effect, Row
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

_MOST = 1 << 53  # a script has floating-point numbers only


class Extras:
    """Values that stand behind the chunks in the arguments of a script, each named by its place."""

    def __init__(self, chunks: int) -> None:
        self.values: list[bytes] = []
        self._first = 3 + 3 * chunks

    def add(self, value: bytes) -> int:
        self.values.append(value)
        return self._first + len(self.values) - 1


def check_numbers(commit: Commit) -> None:
    """Refuse numbers that a script cannot count with. What only the client packs (step, size, version) has 64 bits."""
    given = [commit.epoch, commit.info_version]
    for draft in commit.checkpoints:
        given += [draft.epoch, draft.seq, draft.created_at]
    if commit.merge:  # which raises the revision to these
        given += [entry.fence for entry in commit.entries if entry.kind != TOMBSTONE]
        given += [write.rank[2] for write in commit.writes]
    for number in given:
        if number is not None and abs(number) >= _MOST:
            raise BadArgument(f"Redis counts to 2**53, and a record of this commit has {number}")


def plain_commit(commit: Commit, tokens: bytes, ttl_ms: int, *, touch: bool, own: bytes = b"") -> list[bytes]:
    """Return the arguments of `commit.lua`. `own` is the naming key, where the commit may begin a thread."""
    thread = commit.thread
    draft = commit.checkpoints[0] if commit.checkpoints else None
    blob = b"" if draft is None else rows.record_blob(thread, pair_field(draft.namespace, draft.id), draft)
    extras = Extras(len(commit.chunks))
    header = (
        str(new_token()),
        tokens.hex(),
        None if commit.generation is None else str(commit.generation),
        commit.epoch,
        None if commit.fence is None else _fence(commit.fence),
        None if commit.expect_head is None else _expected(commit.expect_head),
        None if draft is None else _draft(draft),
        [_offered(thread, entry, extras) for entry in commit.entries],
        [_written(thread, write, extras) for write in commit.writes],
        ttl_ms,
        text(thread.tenant),
        text(thread.id),
        touch,
        len(commit.chunks),
        bool(own),
    )
    said = [False if value is None else value for value in header]
    return [pack(said), blob, *_chunks(commit), *extras.values, *([own] if own else [])]


def effect(
    done: Effect, tokens: bytes, raw: bytes, base: tuple[Any, ...] | None, ttl_ms: int, own: bytes
) -> list[bytes]:
    """Return the arguments of `apply.lua`. `own` is the naming key, as far as this process knows it."""
    thread, row, extras = done.thread, done.row, Extras(len(done.chunks))
    times = str(row.created_at), str(done.at)
    info = (
        None
        if done.info is None
        else rows.info_value(thread, done.info, done.info_projection, row.info_version)
    )
    header = (
        tokens.hex(),
        raw if base is None else False,
        False if base is None else base,
        (str(row.generation), row.revision, row.epoch, row.seq, *times, row.info_version),
        done.everything,
        [pair_field(*pair) for pair in done.removed],
        [_placed(thread, record, extras) for record in (*done.checkpoints, *done.rewrites)],
        [_stored_write(thread, write, extras) for write in done.writes],
        [_stored_entry(thread, entry, extras) for entry in done.entries],
        False if info is None else extras.add(info),
        False if done.info_projection is None else done.info_projection,
        ttl_ms,
        text(thread.tenant),
        text(thread.id),
        len(done.chunks),
        bool(own),
    )
    names = rows.pack_names(done.removed_chunks)
    return [pack(header), names, *_chunks(done), *extras.values, *([own] if own else [])]


def _fence(fence: tuple[str, str, int, int]) -> tuple[bytes, bytes]:
    kind, key, epoch, number = fence
    return rows.entry_field(kind, key), b"%016x%016x" % (epoch, number)


def _expected(expect: tuple[str, str | None]) -> tuple[bytes, bytes | bool]:
    return text(expect[0]), False if expect[1] is None else text(expect[1])


def _draft(draft: CheckpointRecord) -> tuple[Any, ...]:
    parent = False if draft.follows or draft.parent is None else text(draft.parent)
    return text(draft.namespace), text(draft.id), draft.follows, parent, draft.created_at, len(draft.body)


def _offered(thread: ThreadKey, entry: EntryRecord, extras: Extras) -> tuple[Any, ...]:
    field = rows.entry_field(entry.kind, entry.key)
    return (
        field,
        extras.add(rows.entry_payload(thread, field, entry.body or b"")),
        entry.body is None,
        text(entry.status),
        rows.entry_rank(entry),
        entry.fence == NEXT,
        entry.gone,
        rows.until_hex(entry.until),
        text(entry.clock),
        False if entry.lease_s is None else int(entry.lease_s * 1e6),
        False if entry.expect is None else rows.rank_hex(entry.expect),
        entry.expect_lapsed,
    )


def _written(thread: ThreadKey, write: WriteRecord, extras: Extras) -> tuple[Any, ...]:
    field = rows.write_field(write.key)
    return (
        field,
        write.index < 0,
        rows.rank_hex(write.rank),
        extras.add(rows.write_blob(thread, field, write)),
    )


def _chunks(commit: Commit | Effect) -> list[bytes]:
    return [part for name, data in commit.chunks for part in (name, rows.chunk_crc(name, data), data)]


def _placed(thread: ThreadKey, record: CheckpointRecord, extras: Extras) -> tuple[bytes, bytes, int]:
    namespace, id = text(record.namespace), text(record.id)
    return namespace, id, extras.add(rows.record_value(thread, namespace + b"\0" + id, record))


def _stored_write(thread: ThreadKey, write: WriteRecord, extras: Extras) -> tuple[bytes, int]:
    field = rows.write_field(write.key)
    return field, extras.add(rows.write_value(thread, field, write))


def _stored_entry(thread: ThreadKey, entry: EntryRecord, extras: Extras) -> tuple[bytes, int]:
    field = rows.entry_field(entry.kind, entry.key)
    return field, False if entry.gone else extras.add(rows.entry_value(thread, field, entry))


def base(commit: Commit, row: Row | None) -> tuple[Any, ...] | None:
    """Return what must still be so when the effect is applied; None: all that was gathered."""
    if row is None or not is_apart(commit):
        return None
    version = None if commit.info is None and commit.info_version is None else row.info_version
    until = 0 if commit.removal is None else min(commit.removal.chunks_until, _MOST)
    return str(row.generation), row.revision, False if version is None else version, until


def deletion(commit: Commit, tokens: bytes, ttl_ms: int, own: bytes) -> list[bytes]:
    """Return the arguments of `apply.lua` that delete a thread, whatever is there and however damaged."""
    assert commit.removal is not None
    done = Effect(commit.thread, Row(new_token(), 0, 0, 0, 0), 0, everything=True, erase=commit.removal.erase)
    return effect(done, tokens, b"", (False, 0, False, 0), ttl_ms, own)


def deleted(thread: ThreadKey, reply: list[Any]) -> Receipt:
    """Say what a deletion did; when it was done before, that there was something."""
    check(thread, reply)
    row = _row(thread, reply)
    return Receipt(row.generation, row.revision, removed=1 if reply[0] == b"repeated" else reply[2])


def applied(thread: ThreadKey, decided: Receipt, reply: list[Any]) -> Receipt:
    """Return a receipt with what only the script knows."""
    return replace(decided, revision=_row(thread, reply).revision, freed=reply[3])


def _row(thread: ThreadKey, reply: list[Any]) -> Row:
    stored = rows.stored_of(thread, reply[1])
    if stored is None:
        raise Corrupt("its row is gone", thread=thread.id)
    return stored.row


def check(thread: ThreadKey, reply: list[Any]) -> None:
    if reply[0] == b"damaged":
        raise rows.damage_of(thread, reply[1])
    if reply[0] == b"elsewhere":
        raise StoreReplaced("this store was emptied and begun anew by another process; open it again")


def receipt(commit: Commit, reply: list[Any]) -> Receipt:
    """Say what the script did, or raise why it refused."""
    thread, kind = commit.thread, reply[0]
    draft = commit.checkpoints[0] if commit.checkpoints else None
    if kind == b"ok":
        return _done(commit, draft, reply)
    check(thread, reply)
    if kind == b"existing":
        assert draft is not None
        row = _row(thread, reply)
        existing = rows.record_of(thread, pair_field(draft.namespace, draft.id), reply[2])
        return Receipt(row.generation, row.revision, existing=existing)
    if kind == b"repeated" and draft is None:
        return _repeated(commit, reply)
    raise _refusal(commit, kind, reply)


def _repeated(commit: Commit, reply: list[Any]) -> Receipt:
    """Say what is there: this very commit was done when it came the first time."""
    row = _row(commit.thread, reply)
    entries = [
        entry
        if value is None
        else rows.entry_of(commit.thread, rows.entry_field(entry.kind, entry.key), value)
        for entry, value in zip(commit.entries, reply[2], strict=True)
    ]
    return Receipt(row.generation, row.revision, entries=tuple(entries), writes=commit.writes)


def _refusal(commit: Commit, kind: bytes, reply: list[Any]) -> OutliveError:
    thread = commit.thread
    if kind == b"lease" and commit.fence is not None:
        name, key, _, fence = commit.fence
        held = None if reply[1] is None else rows.entry_of(thread, rows.entry_field(name, key), reply[1])
        return LeaseLost(thread.id, name, key, fence, held.fence if held else None)
    if kind == b"epoch" and commit.epoch is not None:
        return EpochPassed(thread.id, commit.epoch, reply[1])
    if kind == b"head" and commit.expect_head is not None:
        head = None if reply[1] is None else rows.plain(reply[1])
        return HeadMoved(thread.id, *commit.expect_head, head)
    if kind == b"entry":
        entry = commit.entries[reply[1] - 1]
        return DamagedEntry(thread.id, entry.kind, entry.key, "")
    if kind == b"held":
        entry = commit.entries[reply[1] - 1]
        field = rows.entry_field(entry.kind, entry.key)
        stored = None if reply[2] is None else rows.entry_of(thread, field, reply[2])
        return EntryHeld(thread.id, entry.kind, entry.key, stored)
    if kind == b"repeated":  # what it saved was deleted since
        return StaleBase(thread.id)
    return StaleBase(thread.id, None if reply[1] is None else int(reply[1]), _head_chunks(commit, *reply[2:]))


def _head_chunks(commit: Commit, head: bytes, value: bytes) -> tuple[bytes, ...]:
    """Return the chunks that the head has now: what shares only these may be sent again at once."""
    if not value:
        return ()
    field = text(commit.checkpoints[0].namespace) + b"\0" + head
    try:
        return rows.record_of(commit.thread, field, value).chunks
    except Corrupt:
        return ()


def _done(commit: Commit, draft: CheckpointRecord | None, reply: list[Any]) -> Receipt:
    _, generation, revision, seq, epoch, now, parent, accepted, kept, _ = reply
    placed: tuple[CheckpointRecord, ...] = ()
    if draft is not None:
        record = stamped(
            draft,
            epoch=epoch,
            seq=seq,
            created_at=draft.created_at or now,
            parent=None if parent is None else rows.plain(parent),
            version=draft.version,
        )
        placed = (record,)
    entries = tuple(
        _settled(commit.thread, entry, stored, revision, now)
        for entry, stored in zip(commit.entries, kept, strict=True)
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
            None if stored is None else rows.entry_of(thread, rows.entry_field(entry.kind, entry.key), stored)
        )
        body = b"" if kept is None else kept.body
        status = status or ("" if kept is None else kept.status)
    if entry.lease_s is not None:
        until, clock = now + int(entry.lease_s * 1e6), rows.CLOCK
    fence = revision if entry.fence == NEXT else entry.fence
    return replace(
        entry, body=body, status=status, fence=fence, until=until, clock=clock, lease_s=None, expect=None, expect_lapsed=False
    )  # fmt: skip
