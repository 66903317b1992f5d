"""The kinds of entries, and what each part of the library does with them.

Whatever walks over all entries (a rotation, a copy, a replica, a check) takes its kinds from this registry, so none of
them can leave a kind out. A backend refuses a commit with any other kind.

To add a kind, add a line here and raise the format of every backend. An older outlive would leave the new kind out of a rotation or
a copy without noticing; with the higher format it refuses the store (`NewerFormat`). An unknown kind in a store of a known format
is therefore damage, and a check reports it as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from outlive.errors import BadArgument, Corrupt


@dataclass(frozen=True, slots=True)
class EntryKind:
    """What is done with the entries of one kind. Every kind is verified."""

    name: str
    is_sealed: bool = True  # encryption seals the body, `rotate` seals it again, `verify` opens it
    is_replicated: bool = True  # the other store of a pair gets it with everything else
    is_copied: bool = True  # `copy_to` and `backup` bring it along


RUN, LOCK, STEP, RESPONSE, SWEEP = "run", "lock", "step", "response", "sweep"
TOMBSTONE = "tombstone"  # says what was removed
OUTBOX = "queue"  # says what another store has yet to get; no key of it is used twice
PAIR, NAMING = "pair", "naming key"

KINDS = {
    kind.name: kind
    for kind in (
        EntryKind(RUN),
        EntryKind(STEP),
        EntryKind(RESPONSE),
        EntryKind(LOCK, is_copied=False),  # held in the store that it is in
        # When this store was swept, by its own clock. After a failover a sweep comes early, which does no harm.
        EntryKind(SWEEP, is_replicated=False, is_copied=False),
        # What layers keep for themselves, below encryption. Tombstones and the naming key reach the other store in ways of their own.
        EntryKind(TOMBSTONE, is_sealed=False, is_replicated=False, is_copied=False),
        EntryKind(OUTBOX, is_sealed=False, is_replicated=False, is_copied=False),
        EntryKind(PAIR, is_sealed=False, is_replicated=False, is_copied=False),
        EntryKind(NAMING, is_sealed=False, is_replicated=False, is_copied=False),
    )
}
SEALED = tuple(kind.name for kind in KINDS.values() if kind.is_sealed)
REPLICATED = tuple(kind.name for kind in KINDS.values() if kind.is_replicated)
COPIED = tuple(kind.name for kind in KINDS.values() if kind.is_copied)


class _Entry(Protocol):
    @property
    def kind(self) -> str: ...


def check_kinds(entries: Iterable[_Entry]) -> None:
    """Refuse entries of a kind that is not in the registry: nobody would copy, replicate, seal or verify them."""
    for entry in entries:
        if entry.kind not in KINDS:
            raise BadArgument(
                f"{entry.kind!r:.100} is not a kind of entry; the kinds are {', '.join(KINDS)} (outlive.backend.entries)"
            )


def check_stored_kind(kind: str, thread: str) -> None:
    """Refuse a stored entry of a kind that is not in the registry."""
    if kind not in KINDS:
        what = f"it has an entry of the unknown kind {kind!r:.100}"
        raise Corrupt(f"{what}; if a newer outlive wrote it, upgrade this one", thread=thread)
