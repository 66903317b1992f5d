"""The kinds of entries, and what each part of the library does with them.

Code that walks over all entries (a rotation, a copy, a replica, a check) takes the kinds from this
registry, so it cannot leave one out. A backend refuses a commit with any other kind.

To add a kind, add a line here and raise the format of every backend. An older outlive would leave
the new kind out of a rotation or a copy without noticing; with the higher format it refuses the
store (`NewerFormat`). So an unknown kind in a store of a known format is damage, and a check
reports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from outlive.dataclass import dataclass
from outlive.errors import BadArgument, Corrupt


@dataclass(frozen=True, slots=True)
class EntryKind:
    """What happens to the entries of one kind. Every kind is verified."""

    name: str
    is_encrypted: bool = True  # in an encrypted store, its body; `rotate` gives it a new key
    is_replicated: bool = True  # the other store of a pair gets it
    is_copied: bool = True  # `copy_to` and `backup` copy it
    wakes: bool = False  # storing it wakes those who watch the tenant
    lists: bool = False  # a thread that has one is listed


RUN, LOCK, STEP, RESPONSE, SWEEP = "run", "lock", "step", "response", "sweep"
WAIT = "wait"  # what a run waits for: a question, an event or a time, and the answer
TIMER = "timer"  # by the moment at which it is due: its key begins with it
READY = "ticket"  # a ticket of a run that any worker may claim: in the order of its key
WORKER = "worker"  # a process that claims runs
STREAM = "stream"  # what a run emits, in pieces
TOMBSTONE = "tombstone"  # names what was removed
OUTBOX = "outbox"  # names what the other store does not have yet; no key is used twice
PAIR, NAMING = "pair", "naming key"

KINDS = {
    kind.name: kind
    for kind in (
        EntryKind(RUN, lists=True),
        # Of a run, whose own entry lists the thread.
        EntryKind(STEP),
        EntryKind(RESPONSE),
        EntryKind(WAIT, wakes=True, lists=True),
        EntryKind(TIMER, wakes=True, lists=True),
        EntryKind(READY, wakes=True, lists=True),
        EntryKind(STREAM),
        EntryKind(LOCK, is_copied=False, lists=True),  # a lock counts only in its own store
        EntryKind(WORKER, is_copied=False),  # a worker works on its own store
        # When this store was swept, by its own clock. After a failover a sweep comes early: no
        # harm.
        EntryKind(SWEEP, is_replicated=False, is_copied=False),
        # Entries of layers, below encryption. Other code brings tombstones and the naming key to
        # the other store.
        EntryKind(TOMBSTONE, is_encrypted=False, is_replicated=False, is_copied=False),
        EntryKind(OUTBOX, is_encrypted=False, is_replicated=False, is_copied=False),
        EntryKind(PAIR, is_encrypted=False, is_replicated=False, is_copied=False),
        EntryKind(NAMING, is_encrypted=False, is_replicated=False, is_copied=False),
    )
}
ENCRYPTED = tuple(kind.name for kind in KINDS.values() if kind.is_encrypted)
REPLICATED = tuple(kind.name for kind in KINDS.values() if kind.is_replicated)
COPIED = tuple(kind.name for kind in KINDS.values() if kind.is_copied)
LISTING = tuple(kind.name for kind in KINDS.values() if kind.lists)
WAKING = frozenset(kind.name for kind in KINDS.values() if kind.wakes)


class _Entry(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def gone(self) -> bool: ...


def wakes(entries: Iterable[_Entry]) -> bool:
    """Tell whether a commit of these entries wakes those who watch its tenant."""
    return any(entry.kind in WAKING and not entry.gone for entry in entries)


def check_kinds(entries: Iterable[_Entry]) -> None:
    """Refuse entries of an unknown kind: nothing would copy, replicate, encrypt or verify them."""
    for entry in entries:
        if entry.kind not in KINDS:
            raise BadArgument(
                f"{entry.kind!r:.100} is not a kind of entry; use one of {', '.join(KINDS)} "
                "(outlive.backend.entries)"
            )


def check_stored_kind(kind: str, thread: str) -> None:
    """Raise Corrupt for a stored entry of an unknown kind."""
    if kind not in KINDS:
        what = f"it has an entry of the unknown kind {kind!r:.100}"
        raise Corrupt(f"{what}; if a newer outlive wrote it, upgrade this one", thread=thread)
