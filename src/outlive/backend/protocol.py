"""The waist: the few methods that a backend has, and the records that pass through it.

A backend keeps records and knows nothing of state, codecs or diffs. What a checkpoint contains stands in
its opaque `body`; what a backend needs to order, find and sweep stands in clear fields beside it.

The heart is `commit`: everything of one save, atomically, or nothing. It carries what is new and what
must still hold. The rules, each of which the contract suite (`outlive.testing`) tests:

1. Idempotency first. A checkpoint is identified by (thread, namespace, id). If a commit's checkpoint is
   there already, nothing of the commit is done, no expectation is checked, and the stored record is the
   answer (`Receipt.existing`). The core then compares contents. A replacing commit is such a repeat when the stored record has
   its very content; otherwise all that it expects must hold.
2. Order is (epoch, seq). `seq` is a counter of the thread, raised under the thread's lock: commit order is
   seq order, whatever the clocks say. It is never used again, also not after delete and re-create. A
   record that brings its own seq (a copy, a replica) keeps it. The head of a namespace is the greatest
   (epoch, seq, escaped id in bytes).
3. Generation is a random token. Every deletion replaces it, and so does every commit that could give back
   life to a chunk behind a sweep's back: one that overwrites a record, brings records with a seq of their
   own, or names chunks that it does not carry without saying in which generation it saw them (those
   must be there). A save names the generation in which it saw the chunks it refers to; when that is
   gone, the commit is refused (`StaleBase`).
4. Revision counts the commits of a thread in this store. Storing a chunk, also one that is there already,
   stamps it with the revision of the commit. A sweep removes the chunks outside the live set that it read
   at (generation, revision) and that were stamped no later: a chunk that came back to life stays. A
   chunk that is there already keeps its bytes. In one commit removals come before what is put.
5. One refusal refuses all of a commit, and other commits of the same group not at all.
6. A draft that `follows` gets as parent the head of its namespace at commit.
7. With `merge` a commit brings what another store has: what is here stays unless the other has the greater
   version or rank (ties by order, then by bytes), so merging is commutative, associative and idempotent. It expects
   nothing, but with `strict` the epoch: a thread that is in a later one refuses it; and with `requires_next_seq` that the
   new record has the next seq and that no entry has a lower rank than here (`OutOfTurn`). A removal that `leaves_tombstones` leaves tombstones (entries of that kind): what was
   removed is not merged in again, and what comes back by a commit that is no merge, with places of its own, is placed behind them. A merge
   raises the revision to the greatest fence that it brings: whoever takes a run that came from elsewhere outranks what came with it.
   A merge that `overrules` replaces what is here by what it brings, whatever the versions, ranks and tombstones: it withdraws what
   this store alone has.
8. A thread is listed while it has checkpoints, writes or metadata of its own.
9. Over a network a commit may arrive twice, or late. A server's backend keeps the tokens of a thread's last commits
   and of those that their callers gave up: a commit whose token is known does nothing and is answered as done.
10. A chunk that one commit both removes and puts stays in its place with the new bytes: whoever names it reads
   these. `ReencryptedBodies` does the same for writes, entries and metadata, each only where the old bytes still stand. So all of a
   thread can be sealed anew, in parts, while others go on; no rank, lease, version or place changes.
11. An entry has one of the kinds in `entry_kind.py`. A commit with any other kind is refused (`BadArgument`).

Everything that one commit checks or changes belongs to one thread, so that a sharded store can do it in
one place.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import ormsgpack

from outlive.backend.entries import OUTBOX as OUTBOX  # of entries: see there for all kinds
from outlive.backend.entries import TOMBSTONE as TOMBSTONE
from outlive.errors import Corrupt, OutcomeUnknown, OutliveError

FORMAT = 1  # of records; a newer one is refused

Rank = tuple[int, int, int]  # (epoch, fence, revision)
Cursor = tuple[int, int, str]  # (epoch, seq, escaped id): the row itself may be gone
EntryCursor = tuple[str, bytes]  # (key, thread's digest)
ABSENT: Rank = (0, 0, 0)
NEXT = -1  # in place of a fence: the next one


def escape(text: str) -> str:
    """Write any str as text that every engine can hold: no NUL, no lone surrogate; reversible."""
    if text.isascii() and "\\" not in text and "\0" not in text:
        return text
    return "".join(
        _ESCAPES.get(char) or (f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char)
        for char in text
    )


_ESCAPES = {"\\": "\\\\", "\0": "\\0"}
_SURROGATE = re.compile(r"\\u[0-9a-f]{4}")


def unescape(text: str) -> str:
    """Undo `escape`; raise Corrupt when the text was not made by it."""
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
            raise Corrupt("a stored id is not escaped as it should be")
    return "".join(out)


@dataclass(frozen=True, slots=True)
class ThreadKey:
    """A thread's identity: (tenant, id), and the 16 bytes by which every backend finds it."""

    tenant: str
    id: str
    digest: bytes

    @classmethod
    def of(cls, tenant: str, id: str) -> ThreadKey:
        text = f"{escape(tenant)}\0{escape(id)}".encode()
        return cls(tenant, id, hashlib.blake2b(text, digest_size=16, person=b"outlive.thread").digest())


RESERVED = "\0outlive"  # a tenant that nobody can open: what belongs to the store itself


def reserved(name: str) -> ThreadKey:
    """Return a thread that holds records of the store's own; it is in no list."""
    return ThreadKey.of(RESERVED, name)


NAMING_THREAD = reserved("keys")  # has the naming key of an encrypted store after its keys were rotated


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

    checkpoints: tuple[tuple[str, str], ...] = ()  # (namespace, id); their writes go with them
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


class Backend(Protocol):
    """What keeps records. Every method is one round trip.

    `timeout_s` is the time that a call has; None means the time that the store was opened with.
    """

    name: str

    async def identity(self, offered: bytes) -> bytes:
        """Return the store's naming key, adopting `offered` when the store is new; nothing is adopted when that is empty, and returned then."""
        ...

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do all of each commit or none of it, durably; say for each what it did or why it was refused."""
        ...

    async def read(
        self,
        thread: ThreadKey,
        namespace: str,
        id: str | None = None,
        *,
        at: int | None = None,
        known: CachedHead | None = None,
        chunks: bool = True,
        timeout_s: float | None = None,
    ) -> ReadResult:
        """Return a checkpoint (the head when `id` is None, the head as of a moment when `at` is given)."""
        ...

    async def history(
        self,
        thread: ThreadKey,
        namespace: str | None,
        *,
        before: Cursor | None = None,
        limit: int = 100,
        run: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, list[CheckpointRecord]]:
        """Return the generation and a page of records, newest first; all namespaces when `namespace` is None."""
        ...

    async def states(
        self,
        thread: ThreadKey,
        namespace: str | None,
        *,
        before: Cursor | None = None,
        limit: int = 100,
        run: str | None = None,
        max_bytes: int,
        timeout_s: float | None = None,
    ) -> Page:
        """Return a page as `history` does, with the chunks of its records, each once.

        It ends before the record whose chunks would make it more than `max_bytes`, but has at least one record.
        """
        ...

    async def writes(
        self, thread: ThreadKey, checkpoints: Sequence[tuple[str, str]] | None, timeout_s: float | None = None
    ) -> list[WriteRecord]:
        """Return the writes of the given (namespace, checkpoint) pairs, or of the whole thread."""
        ...

    async def entries(
        self,
        tenant: str,
        kind: str,
        *,
        thread: ThreadKey | None = None,
        statuses: Sequence[str] | None = None,
        lapsed: bool | None = None,
        prefix: str = "",
        after: EntryCursor | None = None,
        limit: int = 100,
        timeout_s: float | None = None,
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return a page of entries of one kind, of one thread or of all of a tenant, by (escaped key, thread).

        `lapsed` asks for those whose lease has run out, or has not, by the store's clock.
        """
        ...

    async def threads(
        self,
        tenant: str,
        *,
        only: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        heads: bool = True,
        timeout_s: float | None = None,
    ) -> list[ThreadRow]:
        """Return a page of the tenant's threads by escaped id; `after` is the last id of the page before.

        `only` asks for one thread by its id. Without `heads` a damaged checkpoint does not hide its thread.
        """
        ...

    async def inventory(self, thread: ThreadKey, timeout_s: float | None = None) -> Inventory:
        """Return the names, sizes and revisions of all chunks of a thread."""
        ...

    async def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        """Return chunks by name; those that are missing are left out."""
        ...

    async def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        """Copy chunks from thread to thread inside the store; return the target's generation."""
        ...

    async def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        """Check every checksum and count of a thread, or of what belongs to no thread; needs no key."""
        ...

    async def close(self) -> None:
        """Release everything; the store can be opened again."""
        ...


async def commit(backend: Backend, one: Commit) -> Receipt:
    """Do one commit; raise when it is refused."""
    (result,) = await backend.commit_all([one])
    if isinstance(result, Receipt):
        return result
    raise result


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
