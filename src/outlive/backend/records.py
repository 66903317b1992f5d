"""The names, records and commits that pass through the backend protocol."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import NamedTuple

import ormsgpack

from outlive.dataclass import dataclass
from outlive.errors import Corrupt, OutcomeUnknown

FORMAT = 1  # of records; newer formats are refused

CheckpointKey = tuple[str, str]  # (namespace, id) of a checkpoint in its thread
Rank = tuple[int, int, int]  # (epoch, fence, revision)
Cursor = tuple[int, int, str]  # (epoch, seq, escaped id): the row itself may be gone
ABSENT: Rank = (0, 0, 0)
WALL = "wall"  # as a clock: wall time by the clock of the store, microseconds since 1970
NEXT = -1  # as a fence: let the store choose the next one


# Names of threads and checkpoints, and the text form in which every engine stores them


def escape(text: str) -> str:
    """Return any str as text that every engine can store: no NUL, no lone surrogate; reversible."""
    if text.isascii() and "\\" not in text and "\0" not in text:
        return text
    return "".join(
        _ESCAPES.get(char) or (f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char)
        for char in text
    )


_ESCAPES = {"\\": "\\\\", "\0": "\\0"}
_SURROGATE = re.compile(r"\\u[0-9a-f]{4}")


def unescape(text: str) -> str:
    """Undo `escape`. Raises Corrupt if `escape` cannot have written the text."""
    if "\\" not in text:
        return text
    out, at = [], 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] in ("\\", "0"):
            out.append("\\" if text[at + 1] == "\\" else "\0")
            at += 2
        elif _SURROGATE.match(text, at):
            out.append(chr(int(text[at + 2 : at + 6], 16)))
            at += 6
        else:
            raise Corrupt("a stored id has an invalid escape")
    return "".join(out)


@dataclass(frozen=True, slots=True)
class ThreadKey:
    """The identity of a thread: (tenant, id), and the 16 bytes by which backends find it."""

    tenant: str
    id: str
    digest: bytes

    @classmethod
    def of(cls, tenant: str, id: str) -> ThreadKey:
        text = f"{escape(tenant)}\0{escape(id)}".encode()
        return cls(tenant, id, hashlib.blake2b(text, digest_size=16, person=b"outlive.thread").digest())


RESERVED = "\0outlive"  # a tenant that no caller can open: for records of the store itself


def reserved(name: str) -> ThreadKey:
    """Return a thread for records of the store itself; no listing shows it."""
    return ThreadKey.of(RESERVED, name)


NAMING_THREAD = reserved("keys")  # has the naming key of an encrypted store after its keys were rotated


# Records


@dataclass(slots=True)  # not frozen: that would triple the time to make one
class CheckpointRecord:
    """A checkpoint as a backend stores it. In a commit, seq 0 asks for the next seq."""

    namespace: str
    id: str
    parent: str | None
    run: str | None
    step: int | None
    source: str
    size: int  # bytes of the state
    added: int  # bytes of the chunks that this checkpoint added
    chunks: tuple[bytes, ...]  # names; spans in the body refer to them by position
    body: bytes  # opaque: layout, metadata, interrupts; encrypted in an encrypted store
    projection: str | None = None  # the metadata as JSON, for SQL queries by people
    format: int = FORMAT
    epoch: int = 0
    seq: int = 0
    created_at: int = 0  # microseconds; 0 in a commit means now, by the store's clock
    version: int = 0  # every replacement of the content raises it; the greater one wins a merge
    follows: bool = False  # in a commit: the parent is the head at that moment

    @property
    def key(self) -> CheckpointKey:
        return (self.namespace, self.id)

    @property
    def order(self) -> Cursor:
        return (self.epoch, self.seq, escape(self.id))


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """A pending write of a task.

    The first write of an index stays; a control write (index < 0) is overwritten.
    """

    namespace: str
    checkpoint: str
    task: str
    index: int
    channel: str
    path: str
    body: bytes
    chunks: tuple[bytes, ...] = ()
    rank: Rank = (0, 0, 0)  # of a control write: set at commit; the greater one wins a merge

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.namespace, self.checkpoint, self.task, self.index)

    @property
    def checkpoint_key(self) -> CheckpointKey:
        return (self.namespace, self.checkpoint)


class Fence(NamedTuple):
    """The claim of a run or a lock: a commit with it is refused unless its entry is running with it."""

    kind: str
    key: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """A small record next to the checkpoints: a run, step, response, lock, or a record of a layer.

    Only an entry with an equal or greater rank (epoch, fence, revision) replaces it; a lower one is
    refused. `fence=NEXT` gets a fence that the thread has never used. `lease_s` sets `until` by the
    clock of the store, and `clock` names that clock: a lease by another one (an earlier boot of the
    machine) has expired. With `clock=WALL` the entry ends at a wall time instead, and a restart of
    the machine does not end it: `lease_s` sets `until` to that many seconds from now, without
    `lease_s` the given `until` is stored. `expect` and `expect_lapsed` are conditions on the stored
    entry: its rank (ABSENT: there is none), and that its lease has expired. A commit that brings
    exactly the stored entry is done already, whatever its conditions. `body=None` keeps the stored
    body, and the status unless it has one.
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
    # In a commit: remove it. The other store of a pair removes it if its own has no greater rank.
    gone: bool = False

    @property
    def rank(self) -> Rank:
        return (self.epoch, self.fence, self.revision)

    def as_fence(self) -> Fence:
        """Return what a commit names to be refused once another holder has this entry."""
        return Fence(self.kind, self.key, self.epoch, self.fence)


def tombstone_key(namespace: str, id: str) -> str:
    """Return the key of the tombstone of a checkpoint; that of a whole thread is empty."""
    return f"{len(namespace)}:{namespace}{id}"


@dataclass(frozen=True, slots=True)
class Removal:
    """What a commit removes. Every removal replaces the generation."""

    checkpoints: tuple[CheckpointKey, ...] = ()  # their writes go with them
    chunks: tuple[bytes, ...] = ()
    chunks_until: int = 0  # only chunks stamped with this revision or an earlier one
    everything: bool = False  # the whole thread; its seq stays
    erase: bool = False  # leave no byte of it in the files, whatever the cost
    # A tombstone covers records up to the seq in its `until` and the revision in its fence.
    leaves_tombstones: bool = False


@dataclass(frozen=True, slots=True)
class ReencryptedBodies:
    """New encrypted bytes with the same content. One that was changed since it was read stays."""

    writes: tuple[tuple[WriteRecord, bytes], ...] = ()  # (as it was read, its new body)
    entries: tuple[tuple[EntryRecord, bytes], ...] = ()
    metadata: tuple[bytes, bytes] | None = None


@dataclass(slots=True)
class Commit:
    """Everything of one save, or of one deletion, of one thread."""

    thread: ThreadKey
    checkpoints: tuple[CheckpointRecord, ...] = ()
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    entries: tuple[EntryRecord, ...] = ()
    # New chunks and body for stored records; their content is unchanged.
    rewrites: tuple[CheckpointRecord, ...] = ()
    removal: Removal | None = None
    reencrypted: ReencryptedBodies | None = None
    metadata: bytes | None = None  # the metadata of the thread, opaque
    metadata_projection: str | None = None
    metadata_version: int | None = None  # the version that it replaces; in a merge: its own
    # Conditions
    generation: int | None = None
    revision: int | None = None  # nothing was committed to the thread since
    expect_head: tuple[str, str | None] | None = None  # (namespace, id)
    # No checkpoints (else ThreadNotEmpty), no writes on the new checkpoints (else StaleBase).
    expect_empty: bool = False
    fence: Fence | None = None  # of an entry that must be running
    epoch: int | None = None  # the epoch in which the writer is; None: any
    replace: bool = False  # overwrite a stored checkpoint with the same id, which keeps its seq
    merge: bool = False  # these records come from another store
    strict: bool = False  # of a merge: refuse it if the thread is in a later epoch
    requires_next_seq: bool = False  # of a merge: refuse it if its records are not the next ones
    overrules: bool = False  # of a merge: replace stored records of any version and rank
    timeout_s: float | None = None
    # Identifies this commit, however often it is sent.
    token: bytes = field(default_factory=partial(os.urandom, 8))
    # A backend calls it once it will do every later commit after this one.
    on_queued: Callable[[], None] | None = None
    # How long a backend may wait for others that share the transaction: the caller expects one
    # soon.
    linger_s: float = 0.0

    @property
    def first_id(self) -> str:
        """The id of the first checkpoint, for errors; empty without one."""
        return self.checkpoints[0].id if self.checkpoints else ""


@dataclass(slots=True)
class Receipt:
    """What a commit did. `existing`: its checkpoint was stored before, and nothing was done."""

    generation: int
    revision: int
    checkpoints: tuple[CheckpointRecord, ...] = ()
    existing: CheckpointRecord | None = None
    entries: tuple[EntryRecord, ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    removed: int = 0
    freed: int = 0  # bytes of chunks


@dataclass(frozen=True, slots=True)
class ThreadRecord:
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
    metadata: bytes | None
    metadata_projection: str | None = None
    metadata_version: int = 0
    head: CheckpointRecord | None = None  # newest of the root namespace


@dataclass(frozen=True, slots=True)
class Totals:
    """The listed threads of a tenant, added up."""

    threads: int = 0
    checkpoints: int = 0
    stored: int = 0  # bytes of chunks and bodies


class SoundChunks(dict[bytes, bytes]):
    """Chunks by name, each of which agreed with a checksum over its name and bytes, stored with it.

    Only for a backend that stores the naming key beside them: their names need not be computed. A
    layer that changes a chunk makes another dict, whose chunks are compared with their names.
    """

    __slots__ = ()


@dataclass(slots=True)
class ReadResult:
    """One checkpoint with all that its state needs, read at one moment."""

    generation: int
    record: CheckpointRecord | None = None
    chunks: dict[bytes, bytes] = field(default_factory=dict)
    writes: tuple[WriteRecord, ...] = ()  # `chunks` has those of the writes too


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, newest first, with all chunks that they name, read at one moment."""

    generation: int
    records: list[CheckpointRecord] = field(default_factory=list)
    chunks: dict[bytes, bytes] = field(default_factory=dict)
    is_cut: bool = False  # there are more records, but their chunks exceed `max_bytes`


@dataclass(frozen=True, slots=True)
class CachedHead:
    """The head that the reader has in memory: its chunks need not be sent again."""

    id: str
    chunks: tuple[bytes, ...]

    def matches(self, record: CheckpointRecord) -> bool:
        """Tell whether the reader has this checkpoint."""
        return self.id == record.id and self.chunks == record.chunks


@dataclass(frozen=True, slots=True)
class Inventory:
    """The chunks of a thread: name → (stored bytes, revision), at one generation and revision."""

    generation: int
    revision: int
    chunks: dict[bytes, tuple[int, int]]


def outcome_unknown(commit: Commit, reason: str = "") -> OutcomeUnknown:
    """Return the error for a commit that may or may not be done."""
    return OutcomeUnknown(commit.thread.id, commit.first_id, commit.timeout_s, reason)


def shortest_timeout(commits: Sequence[Commit]) -> float | None:
    """Return how long a group of commits may take: as long as its least patient member."""
    return min((commit.timeout_s for commit in commits if commit.timeout_s is not None), default=None)


def checksum(*fields: str | int | bytes | None) -> bytes:
    """Return a checksum of 8 bytes over the fields of a row, in their order."""
    hasher = _ROW_HASHER.copy()  # a copy takes half the time of a new one
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
