"""The record of a pair: which two stores belong together, in which epoch, which is active.

Each store of a pair keeps one record of that, an entry in a thread that no user can name. In an
even epoch the primary is active, in an odd one the secondary. So an epoch belongs to one store, and
so does every (epoch, seq) and (epoch, fence) that was ever given out. The pair is in the greatest
epoch of the two records, as soon as the store that is active in it has it too. A failback is
announced to the secondary, which acknowledges nothing from then on, before the primary takes over.

A pair ends when somebody ends it (`end_pair`): the active store continues alone, and the other one
is an old copy from then on. Both keep the record, which tells so to every process that still uses
them as a pair.
"""

from __future__ import annotations

import os
from dataclasses import replace

import ormsgpack

from outlive.backend import ABSENT, Backend, Commit, EntryQuery, EntryRecord, Rank, ThreadKey, commit
from outlive.backend.entries import PAIR
from outlive.dataclass import dataclass
from outlive.errors import BadURL, Corrupt, StoreUnavailable

PRIMARY, SECONDARY = 0, 1
ROLES = ("primary", "secondary")
# What a store is: one of two, or what it became when the pair ended.
JOINED, ALONE, OLD_COPY = 0, 1, 2


def active_role(epoch: int) -> int:
    """Return which store is active in an epoch."""
    return epoch % 2


def standby_role(epoch: int) -> int:
    """Return which store is not active in an epoch."""
    return 1 - epoch % 2


def first_epoch(role: int, least: int) -> int:
    """Return the first epoch in which a store is active that is not below another one."""
    return least + (least - role) % 2


class ActiveStoreLost(StoreUnavailable):
    """The active store lost its data: to continue without it would silently lose saves."""

    def __init__(self, role: int) -> None:
        problem = (
            f"the {ROLES[role]} was active and has lost its data, or another store is in its place: what was saved "
            "there since is nowhere else"
        )
        super().__init__(
            f"{problem}. Bring it back; or, to continue with what the {ROLES[1 - role]} has, open the pair once with "
            "Replication(..., enabled=False)"
        )
        self.with_advice("bring it back, or continue without it: outlive replication --pause", problem)


class PairEnded(ActiveStoreLost):
    """The pair was ended. One of its stores continues alone, and a process that still uses both
    must not change their roles.
    """

    def __init__(self, record: PairRecord) -> None:
        alone = ROLES[record.role if record.ended == ALONE else 1 - record.role]
        StoreUnavailable.__init__(
            self,
            f"these two stores are no pair any more: outlive replication --leave has ended it, and the former {alone} continues "
            "alone. Open that store without a secondary, or with a new and empty one; if it refuses to be written alone, "
            "repeat outlive replication --leave, which was interrupted",
        )


@dataclass(frozen=True, slots=True)
class PairRecord:
    """What one store of a pair has stored about the pair."""

    pair: bytes  # a random name
    role: int
    epoch: int = 0
    is_caught_up: bool = True  # it has all that the other had when they were joined
    is_paused: bool = False  # of the active one: replication is switched off
    # Of the secondary: it was promoted by a person, who will also fail back.
    is_manual: bool = False
    failed_over_at: int = 0  # of the secondary, while it is active: since when, in microseconds
    ended: int = JOINED
    revision: int = 0
    is_stored: bool = False

    @property
    def rank(self) -> Rank:
        return (self.epoch, 0, self.revision) if self.is_stored else ABSENT

    @property
    def is_active(self) -> bool:
        """Tell whether this store is the active one, as far as it knows."""
        return active_role(self.epoch) == self.role


# By name: a later version may add some, which this one ignores.
_FIELDS = ("pair", "role", "is_caught_up", "is_paused", "is_manual", "failed_over_at", "ended")


def new_pair() -> bytes:
    return os.urandom(8)


def pair_thread(tenant: str) -> ThreadKey:
    """Return where the record is: no user's thread has an empty id."""
    return ThreadKey.of(tenant, "")


async def read_pair_record(backend: Backend, tenant: str, timeout_s: float | None) -> PairRecord | None:
    """Return what a store has stored about its pair, or None."""
    query = EntryQuery(tenant, PAIR, thread=pair_thread(tenant), limit=1)
    entries = await backend.entries(query, timeout_s=timeout_s)
    if not entries:
        return None
    entry = entries[0][1]
    try:
        stored = ormsgpack.unpackb(entry.body or b"")
        fields = {name: stored[name] for name in _FIELDS}
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"the record of the pair cannot be read: {error}") from error
    return PairRecord(**fields, epoch=entry.epoch, revision=entry.revision, is_stored=True)


async def write_pair_record(
    backend: Backend, tenant: str, old: PairRecord | None, new: PairRecord, timeout_s: float | None
) -> PairRecord:
    """Replace the record of a store; raise EntryHeld when it is not the old one any more.

    The first revision is random: the record of a store that has lost everything is not taken for
    the one that it had before.
    """
    revision = 1 + (old.revision if old is not None else int.from_bytes(os.urandom(4)))
    body = ormsgpack.packb({name: getattr(new, name) for name in _FIELDS})
    expect = old.rank if old is not None else ABSENT
    entry = EntryRecord(PAIR, "", body, epoch=new.epoch, revision=revision, expect=expect)
    await commit(backend, Commit(pair_thread(tenant), entries=(entry,), timeout_s=timeout_s))
    return replace(new, revision=revision, is_stored=True)


def check_match(primary: PairRecord, secondary: PairRecord) -> None:
    """Refuse two stores that do not belong together."""
    if primary.role != PRIMARY or secondary.role != SECONDARY:
        wrong = ROLES[PRIMARY] if primary.role != PRIMARY else ROLES[SECONDARY]
        raise BadURL(
            f"the store given as {wrong} has the other role in its pair; exchange the two URLs, "
            "or move the roles with store.promote()"
        )
    if primary.pair != secondary.pair:
        raise BadURL(
            "these two stores belong to different pairs; give each primary its own secondary, or a new and empty one"
        )


async def end_pair(
    active: tuple[Backend, PairRecord],
    other: tuple[Backend, PairRecord] | None,
    tenant: str,
    timeout_s: float | None,
) -> None:
    """End a pair; `other` is None when that store cannot be reached, and is not told.

    Both go to a later epoch of the same store, so that a process which has the pair open notices at
    its next look. Raises EntryHeld when a record is not the given one any more.
    """
    ends = [(*active, ALONE)] if other is None else [(*other, OLD_COPY), (*active, ALONE)]
    epoch = max(record.epoch for _, record, _ in ends) + 2
    # The other store first: from then on nobody can promote it, and nobody who opens both takes
    # them for a pair. A crash between the two leaves an active store that still refuses to be
    # written alone: ending the pair again finishes it.
    for backend, record, ended in ends:
        if record.ended != ended:
            new = replace(record, epoch=epoch, ended=ended, is_paused=False, is_manual=False)
            await write_pair_record(backend, tenant, record, new, timeout_s)
