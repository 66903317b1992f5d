"""The pair: which two stores belong together, in which epoch they are, and so which of them is active.

Each store of a pair keeps one record of that, an entry in a thread that no user can name. In an even epoch the primary is active,
in an odd one the secondary: an epoch belongs to one store, and so does every (epoch, seq) and (epoch, fence) that was
ever given out. What the pair is in is the greatest epoch that either record says, as soon as the store that is active
in it says so too: a failback is announced to the secondary, which from then on acknowledges nothing, before the primary
takes over.

A pair ends when somebody says so (`ending.py`): the store that was active goes on alone, the other one is an old copy
from then on. Both keep the record, which says so to every process that still takes them for a pair.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import ormsgpack

from outlive.backend import ABSENT, Backend, Commit, EntryQuery, EntryRecord, Rank, ThreadKey, commit
from outlive.backend.entries import PAIR
from outlive.errors import BadURL, Corrupt, StoreUnavailable

PRIMARY, SECONDARY = 0, 1
ROLES = ("primary", "secondary")
JOINED, ALONE, OLD_COPY = 0, 1, 2  # what a store is: one of two, or what it became when the pair ended


class ActiveStoreLost(StoreUnavailable):
    """The store that was active has lost what it had. Going on without it would lose what was acknowledged, in silence."""

    def __init__(self, role: int) -> None:
        super().__init__(
            f"the {ROLES[role]} was active and has lost what it had, or another store stands in its place: what was saved there since "
            f"is nowhere else. Bring it back; or, to go on with what the {ROLES[1 - role]} has, open the pair once with "
            "Replication(..., enabled=False)"
        )


class PairEnded(ActiveStoreLost):
    """Somebody has ended the pair. One of its stores goes on alone, and a process that still uses both must not change their roles."""

    def __init__(self, side: PairRecord) -> None:
        alone = ROLES[side.role if side.ended == ALONE else 1 - side.role]
        StoreUnavailable.__init__(
            self,
            f"these two stores are no pair any more: outlive replication --leave has ended it, and what was its {alone} goes on "
            "alone. Open that store without a secondary, or with a new and empty one; if it refuses to be written alone, "
            "repeat outlive replication --leave, which was interrupted",
        )


@dataclass(frozen=True, slots=True)
class PairRecord:
    """What one store of a pair says."""

    pair: bytes  # a random name
    role: int
    epoch: int = 0
    is_whole: bool = True  # it has all that the other had when they were joined
    is_paused: bool = False  # of the active one: replication is switched off
    is_manual: bool = False  # of the secondary: it was promoted by somebody, who will also end that
    failed_over_at: int = 0  # of the secondary, while it is active: since when, in microseconds
    ended: int = JOINED
    revision: int = 0
    is_stored: bool = False

    @property
    def rank(self) -> Rank:
        return (self.epoch, 0, self.revision) if self.is_stored else ABSENT


def new_pair() -> bytes:
    return os.urandom(8)


def place(tenant: str) -> ThreadKey:
    """Return where the record is: no user's thread has an empty id."""
    return ThreadKey.of(tenant, "")


async def read_pair_record(backend: Backend, tenant: str, timeout_s: float | None) -> PairRecord | None:
    """Return what a store says of its pair, or None."""
    found = await backend.entries(
        EntryQuery(tenant, PAIR, thread=place(tenant), limit=1), timeout_s=timeout_s
    )
    if not found:
        return None
    entry = found[0][1]
    try:
        name, role, *said = ormsgpack.unpackb(entry.body or b"")
        is_whole, is_paused, is_manual, failed_over_at, ended = said
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the record of the pair cannot be read: {error}") from error
    flags = is_whole, is_paused, is_manual, failed_over_at, ended
    return PairRecord(name, role, entry.epoch, *flags, revision=entry.revision, is_stored=True)


async def write_pair_record(
    backend: Backend, tenant: str, old: PairRecord | None, new: PairRecord, timeout_s: float | None
) -> PairRecord:
    """Replace what a store says; raise EntryHeld when it says something else by now.

    The first revision is a random one: what a store says after it has lost everything is not taken for what it said before.
    """
    revision = 1 + (old.revision if old is not None else int.from_bytes(os.urandom(4)))
    flags = new.is_whole, new.is_paused, new.is_manual, new.failed_over_at, new.ended
    body = ormsgpack.packb([new.pair, new.role, *flags])
    expect = old.rank if old is not None else ABSENT
    entry = EntryRecord(PAIR, "", body, epoch=new.epoch, revision=revision, expect=expect)
    await commit(backend, Commit(place(tenant), entries=(entry,), timeout_s=timeout_s))
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
