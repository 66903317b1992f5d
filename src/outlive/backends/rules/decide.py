"""What a commit does, decided once for all local backends.

`decide` looks at a thread through a `View`, refuses the commit or returns its `Effect`: the exact rows to
put and to remove. A backend then applies the effect in its own way, removals first. Nothing is changed
while deciding, so a refusal leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from outlive.backend import (
    ABSENT,
    NEXT,
    TOMBSTONE,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Rank,
    Receipt,
    ReencryptedBodies,
    Removal,
    WriteRecord,
    stamped,
    tombstone_key,
)
from outlive.backend.entries import check_kinds
from outlive.backends.rules.expectations import check, finds_chunks
from outlive.backends.rules.view import Clock, Effect, Row, View
from outlive.errors import BadArgument


def decide(commit: Commit, view: View, clock: Clock, token: int) -> tuple[Effect | None, Receipt]:
    """Return what a commit does and its receipt; no effect when its checkpoint is there already.

    `token` is a new generation.
    """
    check_kinds(commit.entries)
    row = view.row
    existing = _repeated(commit, view) if commit.replace else _existing(commit, view)
    if existing is not None and row is not None:
        return None, Receipt(row.generation, row.revision, existing=existing)
    check(commit, view, row, clock)
    row = row or Row(token, 0, 0, 0, clock.now)
    removal = commit.removal or _NOTHING
    removed = tuple([pair for pair in removal.checkpoints if view.has(pair)])
    doomed, freed = _doomed_chunks(removal, view)
    placed = _Placing(commit, view, row, clock.now)
    rewrites = _rewritten(commit, view)
    info = _info(commit, view, row)
    resealed = _Resealed(commit.reencrypted, view) if commit.reencrypted is not None else _UNSEALED
    disturbs = finds_chunks(commit, view) or placed.disturbs
    forgets = removal.everything or removed or doomed or rewrites or disturbs
    new = Row(
        generation=token if forgets else row.generation,
        revision=max(row.revision + 1, _given(commit)),
        epoch=placed.epoch,
        seq=placed.seq,
        created_at=row.created_at,
        info_version=_info_version(commit, row, info is not None),
    )
    writes = _writes(commit, view, new)
    effect = Effect(
        thread=commit.thread,
        row=new,
        at=clock.now,
        checkpoints=tuple(placed.stored),
        rewrites=tuple([record for _, record in rewrites]),
        replaced=(*placed.replaced, *[old for old, _ in rewrites]),
        chunks=_kept_chunks(commit, (*placed.stored, *writes)),
        writes=(*writes, *resealed.writes),
        entries=(
            *_entries(commit, view, new, clock),
            *resealed.entries,
            *_tombstones(removal, removed, new, clock),
        ),
        removed=removed,
        removed_chunks=doomed,
        everything=removal.everything,
        erase=removal.erase,
        info=resealed.info if info is None else info,
        info_projection=commit.info_projection,
    )
    gone = (view.count() or int(view.is_listed)) if removal.everything else _count_checkpoints(removed, view)
    receipt = Receipt(
        new.generation, new.revision, effect.checkpoints, None, effect.entries, effect.writes, gone, freed
    )
    return effect, receipt


_NOTHING = Removal()


def _given(commit: Commit) -> int:
    """Return the greatest fence that a merge brings: the next one that is given here must outrank it.

    Fences are revisions, and so is what orders control writes. A run that was copied in is claimed here by a greater fence, and what
    its new owner writes is greater than all that came along.
    """
    if not commit.merge:
        return 0
    fences = [entry.fence for entry in commit.entries if entry.kind != TOMBSTONE]
    return max([0, *fences, *[write.rank[2] for write in commit.writes]])


def _existing(commit: Commit, view: View) -> CheckpointRecord | None:
    for draft in commit.checkpoints:
        if not draft.seq and (found := view.find(draft.namespace, draft.id)) is not None:
            return found
    return None


def _repeated(commit: Commit, view: View) -> CheckpointRecord | None:
    """Return what a replacing commit puts when just that is there already: a retry has nothing to do and expects nothing."""
    found = [(draft, view.find(draft.namespace, draft.id)) for draft in commit.checkpoints]
    if found and all(old is not None and _is_repeat(draft, old) for draft, old in found):
        return found[0][1]
    return None


def _is_repeat(draft: CheckpointRecord, old: CheckpointRecord) -> bool:
    said, stored = (
        (one.body, one.chunks, one.size, one.run, one.step, one.source, None if draft.follows else one.parent)
        for one in (draft, old)
    )
    return not draft.seq and said == stored


# What is put and removed ----------------------------------------------------------------------------------


class _Placing:
    """Gives drafts their places: the next seq, or the one they were born with."""

    def __init__(self, commit: Commit, view: View, row: Row, now: int) -> None:
        self._commit = commit
        self._view = view
        self._now = now
        self._heads: dict[str, CheckpointRecord] = {}
        self.seq = row.seq
        self.epoch = max(row.epoch, commit.epoch or 0)
        self._after_tombstones = _after_tombstones(commit, view, row)
        self.stored: list[CheckpointRecord] = []
        self.replaced: list[CheckpointRecord] = []
        for draft in commit.checkpoints:
            self._place(draft)
        self.disturbs = bool(self.replaced) or any(draft.seq for draft in commit.checkpoints)

    def _place(self, draft: CheckpointRecord) -> None:
        may_be_here = self._commit.replace or draft.seq
        old = self._view.find(draft.namespace, draft.id) if may_be_here else None
        if old is not None and draft.seq and not self._wins(draft, old):
            return
        is_judged = self._commit.merge and not self._commit.overrules
        if is_judged and draft.seq and _is_buried(draft, self._view):
            return
        epoch, seq = self._order(draft, old)
        self.seq, self.epoch = max(self.seq, seq), max(self.epoch, epoch)
        record = stamped(
            draft,
            epoch=epoch,
            seq=seq,
            created_at=draft.created_at or (old.created_at if old else self._now),
            parent=self._parent(draft, old),
            version=old.version + 1 if old is not None and not draft.seq else draft.version,
        )
        if old is not None:
            self.replaced.append(old)
        if len(self._commit.checkpoints) > 1:
            self._note_head(record)
        self.stored.append(record)

    def _note_head(self, record: CheckpointRecord) -> None:
        """Remember what later drafts of this commit follow: the greatest, which need not be the last."""
        held = self._heads.get(record.namespace)
        if held is None and (id := self._view.head(record.namespace)) is not None:
            held = self._view.find(record.namespace, id)
        if held is None or record.order >= held.order:
            held = record
        self._heads[record.namespace] = held

    def _wins(self, draft: CheckpointRecord, old: CheckpointRecord) -> bool:
        """A copy of what is here is nothing new, unless it was replaced there.

        Ties are decided by the order: a save that was repeated after a failover counts in the later epoch.
        """
        if self._commit.overrules:
            return True
        if draft.version == old.version:
            mine, theirs = ((one.order, one.body, one.size, one.chunks) for one in (draft, old))
            return self._commit.merge and mine > theirs
        return draft.version > old.version

    def _order(self, draft: CheckpointRecord, old: CheckpointRecord | None) -> tuple[int, int]:
        if draft.seq:
            epoch, seq = self._after_tombstones
            return max(draft.epoch, epoch), draft.seq + seq
        return (old.epoch, old.seq) if old is not None else (self.epoch, self.seq + 1)

    def _parent(self, draft: CheckpointRecord, old: CheckpointRecord | None) -> str | None:
        if not draft.follows:
            return draft.parent
        if old is not None:
            return old.parent
        if draft.namespace in self._heads:
            return self._heads[draft.namespace].id
        return self._view.head(draft.namespace)


def _rewritten(commit: Commit, view: View) -> list[tuple[CheckpointRecord, CheckpointRecord]]:
    """Let a rewrite change only where the content is kept, never what the record says."""
    found = []
    for new in commit.rewrites:
        old = view.find(new.namespace, new.id)
        if old is None:
            raise BadArgument(f"checkpoint {new.id!r} cannot be rewritten: it is not there")
        found.append((old, replace(old, chunks=new.chunks, body=new.body)))
    return found


def _writes(commit: Commit, view: View, row: Row) -> tuple[WriteRecord, ...]:
    """The first write of an index wins, unless its checkpoint is replaced. A control write gets a rank, and the last one wins."""
    accepted: dict[tuple[str, str, str, int], WriteRecord] = {}
    for write in commit.writes:
        stored = accepted.get(write.key) or (None if commit.replace else view.write(write.key))
        if write.index < 0 and write.rank == ABSENT:
            accepted[write.key] = replace(write, rank=(row.epoch, 0, row.revision))
        elif stored is None or _outranks(commit, write, stored):
            accepted[write.key] = write
    return tuple(accepted.values())


def _outranks(commit: Commit, write: WriteRecord, stored: WriteRecord) -> bool:
    if write.index < 0:
        return (write.rank, write.body) > (stored.rank, stored.body)
    return commit.merge and write.body > stored.body  # two stores each had a first one


class _Resealed:
    """What gets other bytes, because it still has those that were read."""

    def __init__(self, wanted: ReencryptedBodies, view: View) -> None:
        held = [(view.write(old.key), old.body, new) for old, new in wanted.writes]
        notes = [(view.entry(old.kind, old.key), old.body, new) for old, new in wanted.entries]
        self.writes = tuple([replace(row, body=new) for row, old, new in held if row and row.body == old])
        self.entries = tuple([replace(row, body=new) for row, old, new in notes if row and row.body == old])
        self.info = wanted.info[1] if wanted.info is not None and wanted.info[0] == view.info() else None


_UNSEALED = _Resealed(ReencryptedBodies(), cast(View, None))


def _entries(commit: Commit, view: View, row: Row, clock: Clock) -> tuple[EntryRecord, ...]:
    accepted = []
    is_judged = commit.merge and not commit.overrules
    grave = view.entry(TOMBSTONE, "") if is_judged else None
    for entry in commit.entries:
        if (
            grave is not None
            and entry.fence > 0
            and entry.rank[:2] <= grave.rank[:2]
            and entry.kind != TOMBSTONE
        ):
            continue  # it was taken before the thread was deleted
        stored = view.entry(entry.kind, entry.key)
        if is_judged and stored is not None and _merge_rank(entry) <= _merge_rank(stored):
            continue
        accepted.append(_settled_entry(entry, stored, row, clock))
    return tuple(accepted)


def _merge_rank(entry: EntryRecord) -> tuple[Rank, str, bytes]:
    return entry.rank, entry.status, entry.body or b""


def _settled_entry(entry: EntryRecord, stored: EntryRecord | None, row: Row, clock: Clock) -> EntryRecord:
    body, status = entry.body, entry.status
    if body is None:
        body = stored.body if stored is not None else b""
        status = status or (stored.status if stored is not None else "")
    until, since = entry.until, entry.clock
    if entry.lease_s is not None:
        until, since = clock.lease + int(entry.lease_s * 1e6), clock.id
    fence = row.revision if entry.fence == NEXT else entry.fence
    return replace(
        entry,
        body=body,
        status=status,
        fence=fence,
        until=until,
        clock=since,
        lease_s=None,
        expect=None,
        expect_lapsed=False,
    )


def _kept_chunks(
    commit: Commit, rows: Iterable[CheckpointRecord | WriteRecord]
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the chunks of a commit; of a merge, none that only what was refused refers to: it may have been erased here."""
    if not commit.merge or not (commit.checkpoints or commit.writes):
        return commit.chunks
    wanted = {name for row in rows for name in row.chunks}
    return tuple([one for one in commit.chunks if one[0] in wanted])


# What was removed and does not come back ----------------------------------------------------------------------


def _tombstones(
    removal: Removal, removed: Iterable[CheckpointKey], row: Row, clock: Clock
) -> list[EntryRecord]:
    """Return what says of the removed that it was: until which seq and revision, and when."""
    if not removal.leaves_tombstones:
        return []
    keys = [""] if removal.everything else [tombstone_key(*pair) for pair in removed]
    at = clock.now.to_bytes(8)
    return [
        EntryRecord(TOMBSTONE, key, at, epoch=row.epoch, fence=row.revision, until=row.seq) for key in keys
    ]


def _tombstones_for(draft: CheckpointRecord, view: View) -> list[EntryRecord]:
    """Return the tombstones that say of a checkpoint that it was removed here after it was made."""
    found = (view.entry(TOMBSTONE, ""), view.entry(TOMBSTONE, tombstone_key(draft.namespace, draft.id)))
    place = (draft.epoch, draft.seq)
    return [grave for grave in found if grave is not None and place <= (grave.epoch, grave.until)]


def _is_buried(draft: CheckpointRecord, view: View) -> bool:
    """Tell whether a checkpoint that a merge brings was removed here after it was made."""
    return bool(_tombstones_for(draft, view))


def _after_tombstones(commit: Commit, view: View, row: Row) -> tuple[int, int]:
    """Return the (epoch, seq) behind which the records of a fork or an import go, with places of their own, into a deleted thread.

    No seq is used again. And where a tombstone holds, the other store of a pair would take them for what was deleted.
    """
    drafts = [draft for draft in commit.checkpoints if draft.seq]
    if commit.merge or not drafts:
        return 0, 0
    graves = [grave for draft in drafts for grave in _tombstones_for(draft, view)]
    places = [(grave.epoch, grave.until) for grave in graves]
    if commit.expect_empty and any(draft.seq <= row.seq for draft in drafts):
        places.append((row.epoch, row.seq))
    return max(places, default=(0, 0))


def _count_checkpoints(pairs: Iterable[CheckpointKey], view: View) -> int:
    """Return how many of the removed are checkpoints; the others are pending writes on ids that were never saved."""
    return sum(view.find(*pair) is not None for pair in pairs)


def _doomed_chunks(removal: Removal, view: View) -> tuple[tuple[bytes, ...], int]:
    doomed, freed = [], 0
    for name in dict.fromkeys(removal.chunks):
        held = view.chunk(name)
        if held is not None and held[1] <= removal.chunks_until:
            doomed.append(name)
            freed += held[0]
    return tuple(doomed), freed


def _info(commit: Commit, view: View, row: Row) -> bytes | None:
    """Return the thread's metadata when it changes."""
    if commit.info is None or not commit.merge or commit.overrules:
        return commit.info
    here, there = (row.info_version, view.info() or b""), (commit.info_version or 0, commit.info)
    return commit.info if there > here else None


def _info_version(commit: Commit, row: Row, changes: bool) -> int:
    if commit.removal is not None and commit.removal.everything:
        return 0
    if commit.merge and changes:
        return max(0 if commit.overrules else row.info_version, commit.info_version or 0)
    return row.info_version + changes
