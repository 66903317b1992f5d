"""The records that pass through the backend protocol, and the commit that carries them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import ormsgpack

from outlive.backend.keys import CheckpointKey, ThreadKey, escape
from outlive.errors import OutcomeUnknown

FORMAT = 1  # of records; a newer one is refused

Rank = tuple[int, int, int]  # (epoch, fence, revision)
Cursor = tuple[int, int, str]  # (epoch, seq, escaped id): the row itself may be gone
ABSENT: Rank = (0, 0, 0)
NEXT = -1  # in place of a fence: the next one


@dataclass(slots=True)  # not frozen: that would triple the time to make one
class CheckpointRecord:
    """A checkpoint as a backend keeps it. In a commit, a seq of 0 means: give it the next one."""

    namespace: str
    id: str
    parent: str | None
    run: str | None
    step: int | None
    source: str
    size: int  # bytes of the state
    added: int  # bytes of the chunks that this checkpoint brought
    chunks: tuple[bytes, ...]  # names; spans in the body refer to them by position
    body: bytes  # opaque: layout, metadata, interrupts; sealed when the store is encrypted
    projection: str | None = None  # the metadata as JSON, for people with a SQL prompt
    format: int = FORMAT
    epoch: int = 0
    seq: int = 0
    created_at: int = 0  # microseconds; 0 in a commit means now, by the store's clock
    version: int = 0  # raised by every replacement of the content; the greater wins a merge
    follows: bool = False  # in a commit: the parent is the head at that moment

    @property
    def order(self) -> Cursor:
        return (self.epoch, self.seq, escape(self.id))


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """A pending write of a task. The first one of an index wins; a control write (index < 0) is overwritten."""

    namespace: str
    checkpoint: str
    task: str
    index: int
    channel: str
    path: str
    body: bytes
    chunks: tuple[bytes, ...] = ()
    rank: Rank = (0, 0, 0)  # of a control write: stamped at commit, the greater wins a merge

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.namespace, self.checkpoint, self.task, self.index)


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """A small record beside the checkpoints: a run, a step, a response, a lock, a layer's own note.

    An entry is replaced only by one of an equal or greater rank (epoch, fence, revision); a lower one is
    refused. `fence=NEXT` takes a fence that this thread never gave before. `lease_s` sets `until` by the
    store's clock, and `clock` says which clock that was: a lease by another (a former boot of the
    machine) has lapsed. `expect` and `expect_lapsed` are conditions on what is stored: its rank (ABSENT:
    it is not there), and that its lease has run out. A commit that offers just what is stored is
    done already, whatever it expects. `body=None` keeps the stored body, and the status unless one is given.
    """

    kind: str
    key: str
    body: bytes | None = b""
    status: str = ""
    epoch: int = 0
    fence: int = 0
    revision: int = 0
    until: int = 0
    clock: str = ""
    lease_s: float | None = None
    expect: Rank | None = None
    expect_lapsed: bool = False
    gone: bool = False  # in a commit: remove it

    @property
    def rank(self) -> Rank:
        return (self.epoch, self.fence, self.revision)


def tombstone_key(namespace: str, id: str) -> str:
    """Return the key of a checkpoint's tombstone; that of a whole thread is empty."""
    return f"{len(namespace)}:{namespace}{id}"


@dataclass(frozen=True, slots=True)
class Removal:
    """What a commit takes away. Whatever goes, the generation is replaced."""

    checkpoints: tuple[CheckpointKey, ...] = ()  # their writes go with them
    chunks: tuple[bytes, ...] = ()
    chunks_until: int = 0  # only chunks stamped with this revision or an earlier one
    everything: bool = False  # the whole thread; its seq stays
    erase: bool = False  # leave no byte of it behind, whatever that costs
    leaves_tombstones: bool = (
        False  # leave tombstones: their `until` is the seq, their fence the revision, until which it holds
    )


@dataclass(frozen=True, slots=True)
class ReencryptedBodies:
    """Other bytes for what is there, which say the same. One that was changed since it was read stays as it is."""

    writes: tuple[tuple[WriteRecord, bytes], ...] = ()  # (as it was read, its new body)
    entries: tuple[tuple[EntryRecord, bytes], ...] = ()
    info: tuple[bytes, bytes] | None = None


@dataclass(slots=True)
class Commit:
    """Everything of one save, or of one deletion, of one thread."""

    thread: ThreadKey
    checkpoints: tuple[CheckpointRecord, ...] = ()
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    entries: tuple[EntryRecord, ...] = ()
    rewrites: tuple[
        CheckpointRecord, ...
    ] = ()  # new chunks and body for records that are there: content unchanged
    removal: Removal | None = None
    reencrypted: ReencryptedBodies | None = None
    info: bytes | None = None  # the thread's own metadata, opaque
    info_projection: str | None = None
    info_version: int | None = None  # the version that the new metadata replaces; in a merge: the one it has
    # What must still hold
    generation: int | None = None
    revision: int | None = None  # nothing at all was committed to the thread since
    expect_head: tuple[str, str | None] | None = None  # (namespace, id)
    expect_empty: bool = (
        False  # no checkpoints (else ThreadNotEmpty), nor writes on what this one brings (else StaleBase)
    )
    fence: tuple[str, str, int, int] | None = None  # (kind, key, epoch, fence) of an entry that is running
    epoch: int | None = None  # the epoch that the writer believes in; None: whichever it is
    replace: bool = False  # a checkpoint whose id is there is overwritten and keeps its seq
    merge: bool = False  # these are records of another store
    strict: bool = False  # of a merge: refuse it too when the thread is in a later epoch
    requires_next_seq: bool = False  # of a merge: refuse it when its records are not the next ones
    overrules: bool = False  # of a merge: what it brings replaces what is here, whatever its version or rank
    timeout_s: float | None = None
    token: bytes = field(
        default_factory=lambda: os.urandom(8)
    )  # of this very commit, however often it is sent
    group_wait_s: float = 0.0  # how long it may wait for another one to share a transaction with
    on_queued: Callable[[], None] | None = (
        None  # called by a backend that will do later commits after this one
    )


@dataclass(slots=True)
class Receipt:
    """What a commit did. `existing` means that its checkpoint was there before and nothing was done."""

    generation: int
    revision: int
    checkpoints: tuple[CheckpointRecord, ...] = ()
    existing: CheckpointRecord | None = None
    entries: tuple[EntryRecord, ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    removed: int = 0
    freed: int = 0  # bytes of chunks


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread as a backend lists it."""

    id: str
    generation: int
    revision: int
    epoch: int
    seq: int
    checkpoints: int
    stored: int  # bytes of chunks and bodies
    created_at: int
    updated_at: int
    info: bytes | None
    info_projection: str | None = None
    info_version: int = 0
    head: CheckpointRecord | None = None  # newest of the root namespace


@dataclass(slots=True)
class ReadResult:
    """One checkpoint with all that is needed to build its state, read in one moment."""

    generation: int
    record: CheckpointRecord | None = None
    chunks: dict[bytes, bytes] = field(default_factory=dict)
    writes: tuple[WriteRecord, ...] = ()  # with `chunks` go those of the writes


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, newest first, with all chunks that they name, read in one moment."""

    generation: int
    records: list[CheckpointRecord] = field(default_factory=list)
    chunks: dict[bytes, bytes] = field(default_factory=dict)
    is_cut: bool = False  # more records were asked for, and are there, than the chunks left room for


@dataclass(frozen=True, slots=True)
class CachedHead:
    """What the reader has at hand: when the head is still this, its chunks need not be sent again."""

    id: str
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The chunks of a thread: name → (stored bytes, revision), at one generation and revision."""

    generation: int
    revision: int
    chunks: dict[bytes, tuple[int, int]]


def outcome_unknown(commit: Commit, reason: str = "") -> OutcomeUnknown:
    """Say that nobody knows whether a commit was done."""
    ids = [draft.id for draft in commit.checkpoints]
    return OutcomeUnknown(commit.thread.id, ids[0] if ids else "", commit.timeout_s, reason)


def checksum(*fields: str | int | bytes | None) -> bytes:
    """Return 8 bytes over the fields of a stored row: any flipped bit or exchanged field changes them."""
    hasher = _ROW_HASHER.copy()  # half the time of making one
    hasher.update(ormsgpack.packb(fields))
    return hasher.digest()


_ROW_HASHER = hashlib.blake2b(digest_size=8, person=b"outlive.row")


def stamped(
    draft: CheckpointRecord, *, epoch: int, seq: int, created_at: int, parent: str | None, version: int
) -> CheckpointRecord:
    """Return the draft as it will be stored. (dataclasses.replace takes three times as long.)"""
    return CheckpointRecord(
        draft.namespace, draft.id, parent, draft.run, draft.step, draft.source, draft.size, draft.added, draft.chunks,
        draft.body, draft.projection, draft.format, epoch, seq, created_at, version,
    )  # fmt: skip
