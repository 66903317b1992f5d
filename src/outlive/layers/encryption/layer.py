"""Encrypted: a backend around a backend that encrypts what it stores and decrypts what it reads.

Encrypted is what people and models wrote: chunks, the bodies of checkpoints (with their metadata),
of writes and of entries (runs with prompt and result, steps, responses), and the metadata of
threads; the columns with metadata in JSON stay empty. Clear is what a backend orders and finds
records by: ids, namespaces, names of channels and tasks, places, times, sizes, statuses.

Each record is bound to where it belongs, as associated data (AAD), so that none can be put
elsewhere:

- A checkpoint to its thread, namespace and id, to its clear fields (run, step, source, size,
  format), and to the list of the chunks that its body refers to by position. The backend assigns
  parent, place and time at the commit, so they are not bound.
- A write to its thread, checkpoint, task, index, channel, path and chunks; an entry to its thread,
  kind and key; metadata to its thread.
- A chunk to its tenant and its name, not to its thread: forks share chunks inside the store, which
  copies them without the key. That is enough, because a name is a keyed hash of the bytes, which
  the core checks, and every list of names is bound to its record.

Not noticed is a whole record, or a whole thread, put back to what it once was: the clear fields
that order records are the backend's. The naming key, by which chunks get their names, is encrypted
too, so that nobody can probe for content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import ormsgpack

from outlive.backend import (
    NAMING_THREAD,
    Backend,
    CachedHead,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Inventory,
    Page,
    ReadResult,
    Receipt,
    Reservation,
    ThreadKey,
    ThreadQuery,
    ThreadRecord,
    Totals,
    Watch,
    WriteRecord,
    escape,
)
from outlive.backend.entries import ENCRYPTED, NAMING
from outlive.backend.undecrypted import refuse_undecrypted, undecrypted
from outlive.errors import (
    BadArgument,
    Corrupt,
    EntryHeld,
    KeyMissing,
    NotEncrypted,
    OutliveError,
    Undecryptable,
    WrongKey,
)
from outlive.layers.encryption.keyring import KeyRing, is_encrypted, key_of

Row = CheckpointRecord | WriteRecord | EntryRecord
Sent = dict[bytes | None, bytes | None]  # encrypted → plain
NAMING_AAD = ormsgpack.packb((NAMING,))


def aad_of_checkpoint(thread: ThreadKey, record: CheckpointRecord) -> bytes:
    run = None if record.run is None else escape(record.run)
    return ormsgpack.packb(
        (
            "checkpoint", thread.digest, escape(record.namespace), escape(record.id), run, record.step, record.source,
            record.size, record.format, record.chunks,
        )
    )  # fmt: skip


def aad_of_write(thread: ThreadKey, write: WriteRecord) -> bytes:
    texts = [escape(text) for text in (*write.key[:3], write.channel, write.path)]
    return ormsgpack.packb(("write", thread.digest, *texts, write.index, write.chunks))


def aad_of_entry(thread: ThreadKey, entry: EntryRecord) -> bytes:
    return ormsgpack.packb(("entry", thread.digest, escape(entry.kind), escape(entry.key)))


def aad_of_metadata(thread: ThreadKey) -> bytes:
    return ormsgpack.packb(("metadata", thread.digest))


def aad_of_chunk(thread: ThreadKey, name: bytes) -> bytes:
    return ormsgpack.packb(("chunk", escape(thread.tenant), name))


async def current_naming_key(backend: Backend) -> EntryRecord | None:
    """Return the naming key as the last rotation encrypted it; None when there was none."""
    entries = await backend.entries(EntryQuery(NAMING_THREAD.tenant, NAMING, thread=NAMING_THREAD))
    return entries[0][1] if entries else None


class Encrypted:
    """A backend whose records are encrypted under the keys of a ring."""

    def __init__(self, inner: Backend, ring: KeyRing) -> None:
        self.inner = inner
        self.ring = ring
        self.name = inner.name

    @property
    def has_key(self) -> bool:
        """Tell whether anything can be read at all."""
        return self.ring.newest is not None

    async def identity(self, offered: bytes) -> bytes:
        """Return the store's naming key, which is kept encrypted."""
        encrypted = self.ring.encrypt(NAMING_AAD, offered) if offered and self.has_key else b""
        stored = await self.inner.identity(encrypted)
        if not stored and self.has_key:
            return stored
        if not stored:  # it is new
            raise KeyMissing(None)
        if not is_encrypted(stored):
            raise NotEncrypted
        if not self.has_key:
            return offered  # nothing will be named or compared with a name
        # After a rotation a ring without the newest key is refused, whatever else it has.
        rotated = await current_naming_key(self.inner)
        encrypted = stored if rotated is None or rotated.body is None else rotated.body
        try:
            return self.ring.decrypt(NAMING_AAD, encrypted)
        except Undecryptable:
            raise WrongKey(key_of(encrypted)) from None

    # Down: encrypting

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        return await self._commit_to(self.inner, commits)

    async def _commit_to(
        self, inner: Backend | Reservation, commits: Sequence[Commit]
    ) -> list[Receipt | OutliveError]:
        encrypted = [self._encrypt(commit) for commit in commits]
        results = await inner.commit_all(encrypted)
        return [self._decrypt_result(*three) for three in zip(commits, encrypted, results, strict=True)]

    def _encrypt(self, commit: Commit) -> Commit:
        thread = commit.thread
        if commit.reencrypted is not None:
            raise BadArgument("only store.rotate() encrypts stored records again")
        return replace(
            commit,
            checkpoints=tuple([self._encrypt_checkpoint(thread, record) for record in commit.checkpoints]),
            rewrites=tuple([self._encrypt_checkpoint(thread, record) for record in commit.rewrites]),
            chunks=tuple(
                [
                    (name, self.ring.encrypt(aad_of_chunk(thread, name), data, is_named=True))
                    for name, data in commit.chunks
                ]
            ),
            writes=tuple(
                [
                    replace(write, body=self._encrypt_bytes(aad_of_write(thread, write), write.body))
                    for write in commit.writes
                ]
            ),
            entries=tuple([self._encrypt_entry(thread, entry) for entry in commit.entries]),
            metadata=None
            if commit.metadata is None
            else self._encrypt_bytes(aad_of_metadata(thread), commit.metadata),
            metadata_projection=None,
        )

    def _encrypt_bytes(self, aad: bytes, data: bytes) -> bytes:
        """Encrypt a record.

        Refuse the placeholder of an unreadable one: it would pass for a record.
        """
        refuse_undecrypted(data)
        return self.ring.encrypt(aad, data)

    def _encrypt_checkpoint(self, thread: ThreadKey, record: CheckpointRecord) -> CheckpointRecord:
        body = self._encrypt_bytes(aad_of_checkpoint(thread, record), record.body)
        return replace(record, body=body, projection=None)

    def _encrypt_entry(self, thread: ThreadKey, entry: EntryRecord) -> EntryRecord:
        if entry.body is None or entry.gone or entry.kind not in ENCRYPTED:
            return entry
        return replace(entry, body=self._encrypt_bytes(aad_of_entry(thread, entry), entry.body))

    # Up: decrypting

    def _decrypt_result(
        self, commit: Commit, encrypted: Commit, result: Receipt | OutliveError
    ) -> Receipt | OutliveError:
        """Decrypt what came of a commit."""
        try:
            return self._decrypt_receipt(commit, encrypted, result)
        except OutliveError as error:  # of what was there before
            return error

    def _decrypt_receipt(
        self, commit: Commit, encrypted: Commit, result: Receipt | OutliveError
    ) -> Receipt | OutliveError:
        """Decrypt a receipt. What comes back as it was sent need not be decrypted."""
        thread = commit.thread
        if isinstance(result, EntryHeld) and isinstance(result.stored, EntryRecord):
            return EntryHeld(thread.id, result.kind, result.key, self._decrypt_entry(thread, result.stored))
        if not isinstance(result, Receipt) or not self.has_key:
            return result
        rows: tuple[Row, ...] = (*encrypted.checkpoints, *encrypted.writes, *encrypted.entries)
        plain: tuple[Row, ...] = (*commit.checkpoints, *commit.writes, *commit.entries)
        sent: Sent = {row.body: clear.body for row, clear in zip(rows, plain, strict=True)}
        existing = result.existing
        return replace(
            result,
            checkpoints=tuple([self._decrypt_checkpoint(thread, row, sent) for row in result.checkpoints]),
            existing=None if existing is None else self._decrypt_checkpoint(thread, existing, sent),
            entries=tuple([self._decrypt_entry(thread, row, sent) for row in result.entries]),
            writes=tuple([self._decrypt_write(thread, row, sent) for row in result.writes]),
        )

    def _decrypt(self, aad: bytes, encrypted: bytes) -> bytes:
        """Decrypt a record, or return a placeholder of the error: reading that raises it."""
        try:
            return self.ring.decrypt(aad, encrypted)
        except OutliveError as error:
            return undecrypted(error)

    def _decrypt_checkpoint(
        self, thread: ThreadKey, record: CheckpointRecord, sent: Sent | None = None
    ) -> CheckpointRecord:
        body = sent.get(record.body) if sent else None
        if body is None:
            body = self._decrypt(aad_of_checkpoint(thread, record), record.body)
        return replace(record, body=body)

    def _decrypt_write(self, thread: ThreadKey, write: WriteRecord, sent: Sent | None = None) -> WriteRecord:
        body = sent.get(write.body) if sent else None
        if body is None:
            body = self._decrypt(aad_of_write(thread, write), write.body)
        return replace(write, body=body)

    def _decrypt_entry(self, thread: ThreadKey, entry: EntryRecord, sent: Sent | None = None) -> EntryRecord:
        body = sent.get(entry.body) if sent else None
        if body is None:
            if entry.body is None or entry.gone or entry.kind not in ENCRYPTED:
                return entry
            body = self._decrypt(aad_of_entry(thread, entry), entry.body)
            try:
                refuse_undecrypted(body)
            except Corrupt as error:
                raise type(error)(f"{entry.kind} {entry.key!r}: {error.what}", thread=thread.id) from None
            except OutliveError as error:
                error.add_note(f"in {entry.kind} {entry.key!r} of thread {thread.id!r}")
                raise
        return replace(entry, body=body)

    def _decrypt_chunks(self, thread: ThreadKey, chunks: dict[bytes, bytes]) -> dict[bytes, bytes]:
        return {name: self._decrypt(aad_of_chunk(thread, name), data) for name, data in chunks.items()}

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
        result = await self.inner.read(
            thread, namespace, id, at=at, known=known, chunks=chunks, timeout_s=timeout_s
        )
        if result.record is None:
            return result
        return ReadResult(
            result.generation,
            self._decrypt_checkpoint(thread, result.record),
            self._decrypt_chunks(thread, result.chunks),
            tuple([self._decrypt_write(thread, write) for write in result.writes]),
        )

    async def history(
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]:
        generation, page = await self.inner.history(query, timeout_s=timeout_s)
        return generation, [self._decrypt_checkpoint(query.thread, record) for record in page]

    async def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page:
        page = await self.inner.states(query, max_bytes=max_bytes, timeout_s=timeout_s)
        records = [self._decrypt_checkpoint(query.thread, record) for record in page.records]
        return replace(page, records=records, chunks=self._decrypt_chunks(query.thread, page.chunks))

    async def writes(
        self,
        thread: ThreadKey,
        checkpoints: Sequence[tuple[str, str]] | None,
        *,
        timeout_s: float | None = None,
    ) -> list[WriteRecord]:
        writes = await self.inner.writes(thread, checkpoints, timeout_s=timeout_s)
        return [self._decrypt_write(thread, write) for write in writes]

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        return await self._list_from(self.inner, query, timeout_s)

    async def _list_from(
        self, inner: Backend | Reservation, query: EntryQuery, timeout_s: float | None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        entries = await inner.entries(query, timeout_s=timeout_s)
        return [(key, self._decrypt_entry(key, entry)) for key, entry in entries]

    async def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRecord]:
        rows = await self.inner.threads(query, timeout_s=timeout_s)
        return [self._decrypt_row(ThreadKey.of(query.tenant, row.id), row) for row in rows]

    async def totals(self, tenant: str, *, timeout_s: float | None = None) -> Totals:
        return await self.inner.totals(tenant, timeout_s=timeout_s)

    def _decrypt_row(self, thread: ThreadKey, row: ThreadRecord) -> ThreadRecord:
        if not self.has_key:  # what needs no key is listed all the same
            return replace(row, metadata=None, head=None)
        metadata = None if row.metadata is None else self._decrypt(aad_of_metadata(thread), row.metadata)
        head = None if row.head is None else self._decrypt_checkpoint(thread, row.head)
        return replace(row, metadata=metadata, head=head)

    async def inventory(self, thread: ThreadKey, *, timeout_s: float | None = None) -> Inventory:
        return await self.inner.inventory(thread, timeout_s=timeout_s)

    async def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], *, timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        return self._decrypt_chunks(thread, await self.inner.fetch(thread, names, timeout_s=timeout_s))

    async def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        return await self.inner.share(source, target, names)

    async def facts(self) -> dict[str, object]:
        return await self.inner.facts()

    async def watch(self, tenant: str) -> Watch:
        return await self.inner.watch(tenant)

    async def reserve(self) -> Reservation:
        inner = await self.inner.reserve()
        return _EncryptedReservation(inner, self)

    async def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        return await self.inner.audit(thread)

    async def close(self) -> None:
        await self.inner.close()


class _EncryptedReservation:
    """A reservation of the inner backend, with the same encryption."""

    def __init__(self, inner: Reservation, layer: Encrypted) -> None:
        self._inner = inner
        self._layer = layer

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        return await self._layer._list_from(self._inner, query, timeout_s)

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        return await self._layer._commit_to(self._inner, commits)

    async def release(self) -> None:
        await self._inner.release()
