"""The backend protocol: the methods that a backend has, and the rules that it keeps.

A backend stores records and knows nothing about states, codecs or diffs. The content of a
checkpoint is in its opaque `body`. What a backend needs to order, find and sweep checkpoints is in
plain fields.

The central method is `commit_all`: it does everything of one save atomically, or nothing. A commit
has new records and the conditions that must still hold. The contract suite (`outlive.testing`)
tests each of these rules:

1. Idempotency first. (thread, namespace, id) identifies a checkpoint. If the checkpoint of a commit
   is stored already, the backend does nothing, checks no condition, and answers with the stored
   record (`Receipt.existing`). The core then compares the contents. A replacing commit counts as
   such a repetition if the stored record has exactly its content; otherwise all its conditions must
   hold.
2. The order is (epoch, seq). `seq` is a counter of the thread, raised under the lock of the thread:
   the order of commits is the order of seqs, whatever the clocks say. A seq is never used again,
   even after the thread was deleted and created again. A record that has its own seq (from a copy
   or a replica) keeps it. The head of a namespace has the greatest (epoch, seq, escaped id in
   bytes).
3. The generation is a random token. Every deletion replaces it. So does every commit that could
   bring back a chunk without a running sweep noticing: one that overwrites a record, has records
   with their own seq, or names chunks that it does not contain without naming the generation in
   which it saw them (those chunks must exist). A save names the generation in which it saw the
   chunks that it refers to; if the thread has another one, the backend refuses the save
   (`StaleBase`).
4. The revision counts the commits of a thread in this store. Storing a chunk, even one that is
   stored already, stamps it with the revision of the commit. A sweep reads the live chunks at
   (generation, revision) and removes others with this stamp or an earlier one, so a chunk that is
   used again stays. A chunk that is stored already keeps its bytes. In one commit, removals come
   before additions.
5. One refusal refuses all of a commit, and no other commit of the same group.
6. A draft that `follows` gets the head of its namespace at commit as its parent.
7. With `merge` a commit brings the records of another store. A stored record stays unless the other
   has the greater version or rank (ties by order, then by bytes), so merging is commutative,
   associative and idempotent. A merge has no conditions, with two exceptions: `strict` refuses it
   if the thread is in a later epoch, and `requires_next_seq` if the new record does not have the
   next seq or an entry has a lower rank than the stored one (`OutOfTurn`). A removal that
   `leaves_tombstones` adds entries of that kind: a removed record is not merged in again, and a
   copy with its own seqs is placed after them. A merge raises the revision to the greatest fence
   that it brings: a process that takes over a copied run outranks the records that were copied with
   it. A merge that `overrules` replaces the stored records whatever the versions, ranks and
   tombstones: it withdraws what only this store has. An entry that is removed (`gone`) leaves no
   tombstone, and a copy of it that comes late is stored again. So only entries are removed that are
   checked against others by their readers, as a ticket is against its run.
8. A thread is listed while it has checkpoints, writes, its own metadata, or an entry of a kind that
   `lists` (`entries.py`): a run that has not saved yet is in a thread that everybody finds.
9. Over a network a commit may arrive twice, or late. The backend of a server keeps the tokens of
   the last 8 commits of a thread, and of those that their callers gave up. A commit whose token is
   known does nothing and is answered as done. A backend of this process does each commit once, and
   keeps no tokens.
10. A chunk that one commit both removes and adds stays in its place with the new bytes, which
    records that name it then read. `ReencryptedBodies` does the same for writes, entries and
    metadata, each only if the old bytes are unchanged. So a whole thread can be encrypted again, in
    parts, while others use it; no rank, lease, version or position changes.
11. An entry has one of the kinds in `entries.py`. A commit with any other kind is refused
    (`BadArgument`).

Everything that one commit checks or changes belongs to one thread, so a sharded store can do it on
one shard.

Conditions are checked in this order, after rule 1, and the first that fails is the answer:

condition                what must be true                                          else
fence                    the entry (kind, key) has this epoch and fence and the     LeaseLost
                         status "running"; whether its lease has expired does not
                         matter
epoch                    the thread is in no later epoch (a merge: only if strict)  EpochPassed
requires_next_seq        of a merge: new records have the next seq, no entry has a  OutOfTurn
                         lower rank than the stored one
generation, revision     the thread has exactly these                               StaleBase
expect_empty             no checkpoints; no writes on the new checkpoints           ThreadNotEmpty;
                                                                                    StaleBase
expect_head              the head of the namespace has this id (None: no head)      HeadMoved
metadata_version         the metadata has this version (0: never set)               MetadataMoved
EntryRecord.expect,      the stored entry has this rank; its lease has expired;     EntryHeld
expect_lapsed, rank      its rank is not greater than that of the new one
chunks                   chunks that are named without their bytes are stored       StaleBase

Times are microseconds since 1970 (UTC), by the clock of the store, except `until` of an entry: that
is a moment of the clock for leases, which `EntryRecord.clock` names. A server uses one clock for
both and any constant name. Leases of another clock have expired.

Sizes: a chunk has up to 128 MiB before compression (`format.chunk.MAX_RAW`), and copies send up to
4 MiB of chunks in one commit, or one larger chunk. A save sends all that is new in one commit.
Chunks may be written before the rest of their commit, if `inventory` does not show them yet.

Listings are pages. A cursor is exclusive and need not exist any more. Keys and ids are compared in
their escaped form, byte by byte: a text column needs a binary collation. Cursors of a history have
escaped ids, those of entries and threads have plain ones.

A store may be open when its process forks. Parent and child then both use the backend, so neither
may use a connection, file offset or lock of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outlive.backend.records import (
    CachedHead,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    Cursor,
    EntryRecord,
    Inventory,
    Page,
    ReadResult,
    Receipt,
    ThreadKey,
    ThreadRecord,
    Totals,
    WriteRecord,
)
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, OutliveError

ThreadCursor = tuple[int, str]  # (updated_at, id)
EntryCursor = tuple[str, bytes]  # (key, digest of the thread)


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A page of the checkpoints of a thread, newest first; `namespace=None`: of all namespaces."""

    thread: ThreadKey
    namespace: str | None
    before: Cursor | None = None
    limit: int = 100
    run: str | None = None


@dataclass(frozen=True, slots=True)
class EntryQuery:
    """A page of entries of one kind, of one thread or a whole tenant, by (escaped key, thread).

    `lapsed` selects entries whose lease has expired, or has not, by the clock of the store.
    """

    tenant: str
    kind: str
    thread: ThreadKey | None = None
    statuses: Sequence[str] | None = None
    lapsed: bool | None = None
    prefix: str = ""
    after: EntryCursor | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ThreadQuery:
    """A page of the threads of a tenant by escaped id; `after` is the last id of the page before.

    `only` selects one thread by its id. Without `heads` a damaged checkpoint does not hide its
    thread. With `newest` the page is by time of the last change, newest first, then by escaped id;
    then `before` is (updated_at, id) of the last thread of the page before, and `prefix` and
    `after` are not used. An index finds that page, so a row that is lost does not show there.
    """

    tenant: str
    only: str | None = None
    prefix: str = ""
    after: str | None = None
    limit: int = 100
    heads: bool = True
    newest: bool = False
    before: ThreadCursor | None = None


class Watch(Protocol):
    """Waits for work in a tenant: an entry of a kind that `wakes` (`entries.py`) is stored.

    It is used by one task or thread at a time. It may report work when there is none, and miss some
    that is stored by a client of another version or through a pooler. So its user looks again after
    every call, and at some interval whatever it says.
    """

    async def wait(self, timeout_s: float) -> bool:
        """Return True as soon as work was stored after `watch` or the last call; False when the time is over.

        A lost connection is opened again, which counts as work. Raises nothing because of a store
        that cannot be reached.
        """
        ...

    async def close(self) -> None:
        """Stop watching."""
        ...


class Reservation(Protocol):
    """A listing of work together with the commits that claim it. `release` ends it.

    Its `entries` leaves out what other reservations have listed at this moment, if the backend can
    tell. That only saves attempts in vain: the conditions of a commit decide who gets an entry.
    """

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return a page as `Backend.entries` does, and reserve it until the end of this reservation."""
        ...

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do commits as `Backend.commit_all` does, and end the reservation."""
        ...

    async def release(self) -> None:
        """End the reservation; nothing happens when it has ended."""
        ...


class Backend(Protocol):
    """A store of records. `commit_all` and `read` should be one round trip.

    `timeout_s` limits the time of a call; None means the timeout that the store was opened with. A
    call raises StoreBusy when others kept the store busy for so long, StoreUnavailable when it
    cannot be reached, StoreClosed after `close`, and Corrupt for bytes that are not what was
    stored.
    """

    name: str  # of the backend, without "+": a pair is called "sqlite+redis"

    async def identity(self, offered: bytes) -> bytes:
        """Return the naming key of the store.

        A new store adopts `offered`, unless that is empty: then it stays without one, and b"" is
        returned.
        """
        ...

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do all of each commit or none of it, durably; return a receipt or an error for each.

        Commits of one thread are done in the order given. Every failure is returned, not raised:
        the refusals above; StoreBusy and StoreUnavailable when nothing was stored; OutcomeUnknown
        when the commit may or may not be done, because a connection was lost or the time was up
        after it was sent; StoreClosed. Each commit has its own `timeout_s`. A backend that can
        promise to do later calls after this one calls `Commit.on_queued` at that point; a backend
        that cannot never calls it.
        """
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
        """Return a checkpoint with its pending writes: by `id`, or the head.

        With `at`, the newest by order whose `created_at` is not later. An absent thread has the
        generation 0. The answer has the chunks of the record and of its writes. If `known` matches
        the record, its chunks are left out, those of the writes are not. With `chunks=False` there
        are none.
        """
        ...

    async def history(
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]:
        """Return the generation and a page of records, newest first."""
        ...

    async def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page:
        """Return a page as `history` does, with the chunks of its records, each once.

        It ends before the record whose chunks would exceed `max_bytes`, but has at least one
        record.
        """
        ...

    async def writes(
        self,
        thread: ThreadKey,
        checkpoints: Sequence[CheckpointKey] | None,
        *,
        timeout_s: float | None = None,
    ) -> list[WriteRecord]:
        """Return the writes of the given (namespace, checkpoint) pairs, or of the whole thread."""
        ...

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return a page of entries, ordered by (escaped key, digest of the thread).

        Raises DamagedEntry for an entry that is not what was stored: the caller notes it, and
        continues after its key.
        """
        ...

    async def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRecord]:
        """Return a page of threads by escaped id, or those that changed last."""
        ...

    async def totals(self, tenant: str, *, timeout_s: float | None = None) -> Totals:
        """Add up the listed threads of a tenant, without reading what is in them."""
        ...

    async def inventory(self, thread: ThreadKey, *, timeout_s: float | None = None) -> Inventory:
        """Return the names, sizes and revisions of all chunks of a thread."""
        ...

    async def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], *, timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        """Return chunks by name, without those that are missing."""
        ...

    async def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        """Copy chunks between threads inside the store; return the generation of the target.

        Names that the source does not have are left out. The copies are stamped as by a commit. It
        has the timeout of the store.
        """
        ...

    async def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        """Check the checksums and counts of a thread, or of all that is in no thread.

        Return what is damaged. A backend without checks beyond those of every read returns [].
        """
        ...

    async def facts(self) -> dict[str, object]:
        """Return what operators ask about the store, for `outlive doctor`; what is not known is left out.

        backend         the name of the backend engine          the server with its version, or the
        library: "PostgreSQL 17.2" location        where the records are: a path, "schema agents",
        "prefix 'outlive:'" format          the version of the stored format; `format_written` is
        the one of this outlive settings        those that decide how durable a save is, by the
        names of the engine file_bytes      the size of the file; `unused_bytes` of it are free
        pages lease_clock_us  the moment by the clock that times leases; required, like `backend`
        lease_clock     the id of that clock, if it is one of this machine and not of a server
        """
        ...

    async def watch(self, tenant: str) -> Watch:
        """Begin to watch a tenant. Watches are closed before the backend."""
        ...

    async def reserve(self) -> Reservation:
        """Begin a reservation; a backend that reserves nothing returns `Unreserved(self)`."""
        ...

    async def close(self) -> None:
        """Release everything; the store can be opened again."""
        ...


class Unreserved:
    """A reservation that reserves nothing: of two processes that list the same entries, one is refused."""

    def __init__(self, backend: Backend) -> None:
        self.entries = backend.entries
        self.commit_all = backend.commit_all

    async def release(self) -> None:
        """Do nothing."""


async def commit(backend: Backend, commit: Commit) -> Receipt:
    """Do one commit; raise the error if it is refused."""
    (result,) = await backend.commit_all([commit])
    if isinstance(result, Receipt):
        return result
    raise result
