"""The backend protocol: the few methods that a backend has, and the rules that it keeps.

A backend stores records and knows nothing of states, codecs or diffs. What a checkpoint contains is in its opaque
`body`; what a backend needs to order, find and sweep is in clear fields beside it.

The central method is `commit_all`: everything of one save, atomically, or nothing. A commit carries what is new and
what must still hold. The rules, each of which the contract suite (`outlive.testing`) tests:

1. Idempotency first. A checkpoint is identified by (thread, namespace, id). If a commit's checkpoint is there
   already, nothing of the commit is done, no expectation is checked, and the stored record is the answer
   (`Receipt.existing`). The core then compares contents. A replacing commit is such a repetition when the stored
   record has its very content; otherwise all that it expects must hold.
2. Order is (epoch, seq). `seq` is a counter of the thread, raised under the thread's lock: commit order is seq
   order, whatever the clocks say. It is never used again, also not after the thread is deleted and created again. A
   record that brings its own seq (a copy, a replica) keeps it. The head of a namespace is the greatest
   (epoch, seq, escaped id in bytes).
3. Generation is a random token. Every deletion replaces it. So does every commit that could bring a chunk back to
   life without a running sweep noticing: one that overwrites a record, brings records with a seq of their own, or
   names chunks that it does not carry without saying in which generation it saw them (those must be there). A save
   names the generation in which it saw the chunks it refers to; when that is gone, it is refused (`StaleBase`).
4. Revision counts the commits of a thread in this store. Storing a chunk, also one that is there already, stamps it
   with the revision of the commit. A sweep removes the chunks outside the live set that it read at
   (generation, revision) and that were stamped no later: a chunk that came back to life stays. A chunk that is there
   already keeps its bytes. In one commit removals come before what is put.
5. One refusal refuses all of a commit, and no other commit of the same group.
6. A draft that `follows` gets as parent the head of its namespace at commit.
7. With `merge` a commit brings what another store has. What is here stays unless the other has the greater version
   or rank (ties by order, then by bytes), so merging is commutative, associative and idempotent. A merge expects
   nothing, with two exceptions: `strict` refuses it when the thread is in a later epoch, and `requires_next_seq`
   when the new record does not have the next seq or an entry has a lower rank than here (`OutOfTurn`). A removal
   that `leaves_tombstones` leaves entries of that kind: what was removed is not merged in again, and a copy that
   comes back with seqs of its own is placed after them. A merge raises the revision to the greatest fence that it
   brings: the process that takes over a run copied from another store outranks what was copied with it. A merge
   that `overrules` replaces what is here whatever the versions, ranks and tombstones: it withdraws what this store
   alone has.
8. A thread is listed while it has checkpoints, writes or metadata of its own.
9. Over a network a commit may arrive twice, or late. The backend of a server keeps the tokens of a thread's last
   commits and of those that their callers gave up: a commit whose token is known does nothing and is answered as
   done.
10. A chunk that one commit both removes and puts stays in its place with the new bytes: records that name it read
   these. `ReencryptedBodies` does the same for writes, entries and metadata, each only where the old bytes are
   unchanged. So all of a thread can be encrypted again, in parts, while others use it; no rank, lease, version or
   place changes.
11. An entry has one of the kinds in `entries.py`. A commit with any other kind is refused (`BadArgument`).

Everything that one commit checks or changes belongs to one thread, so that a sharded store can do it in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outlive.backend.keys import CheckpointKey, ThreadKey
from outlive.backend.queries import EntryQuery, HistoryQuery, ThreadQuery
from outlive.backend.records import (
    CachedHead,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Inventory,
    Page,
    ReadResult,
    Receipt,
    ThreadRow,
    WriteRecord,
)
from outlive.errors import Corrupt, OutliveError


class Backend(Protocol):
    """What keeps records. Every method is one round trip.

    `timeout_s` is the time that a call has; None means the time that the store was opened with.
    """

    name: str

    async def identity(self, offered: bytes) -> bytes:
        """Return the naming key of the store. A new store adopts `offered`, unless that is empty."""
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
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]:
        """Return the generation and a page of records, newest first."""
        ...

    async def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page:
        """Return a page as `history` does, with the chunks of its records, each once.

        It ends before the record whose chunks would make it more than `max_bytes`, but has at least one record.
        """
        ...

    async def writes(
        self, thread: ThreadKey, checkpoints: Sequence[CheckpointKey] | None, timeout_s: float | None = None
    ) -> list[WriteRecord]:
        """Return the writes of the given (namespace, checkpoint) pairs, or of the whole thread."""
        ...

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return a page of entries by (escaped key, thread)."""
        ...

    async def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRow]:
        """Return a page of threads by escaped id."""
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

    async def facts(self) -> dict[str, object]:
        """Return what operators ask about the store, for `outlive doctor`; what is not known is left out.

        backend         the name of the backend
        engine          the server with its version, or the library: "PostgreSQL 17.2"
        location        where the records are: a path, "schema agents", "prefix 'outlive:'"
        format          the version of the stored format; `format_written` is the one of this outlive
        settings        those that decide how durable a save is, by the names of the engine
        file_bytes      the size of the file; `unused_bytes` of it are free pages
        lease_clock_us  the moment by the clock that times leases
        lease_clock     the id of that clock, if it is one of this machine and not of a server
        """
        ...

    async def close(self) -> None:
        """Release everything; the store can be opened again."""
        ...


async def commit(backend: Backend, commit: Commit) -> Receipt:
    """Do one commit; raise when it is refused."""
    (result,) = await backend.commit_all([commit])
    if isinstance(result, Receipt):
        return result
    raise result
