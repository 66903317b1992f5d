"""Doubt: which commits may be stored although no caller was told so.

A commit may be sent more than once: again to a store that did not answer, and to the other one when
the stores change roles. Every attempt has the same ids, so a store that has it says so. But a
refusal speaks of the store that gave it: what an earlier attempt left in the other store may still
come back. So once an attempt may have been stored, the answer is success, if it is there, or
OutcomeUnknown; and a refusal only where it is certain that the attempt is undone.

A save whose base is stale is made again by the core, as another commit with the same ids. It always
is after a change of roles, since generations belong to one store. Therefore doubt is kept by id,
beyond one call. In strict mode a refusal ends it: the thread moved to the epoch of the pair before
it refused (`thread_epoch.py`), and what was not acknowledged is withdrawn (`withdrawal.py`). In the
queueing modes doubt stays until that store is asked again or the checkpoint is found: a branch in
the store that was left comes back. A caller that was told so, asks again, and finds it gets what
idempotency says: it is stored. What this process has queued in the store that was left is such a
branch too, although its caller was told that it is stored.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import field

from outlive.backend import Commit, Receipt, outcome_unknown
from outlive.dataclass import dataclass
from outlive.errors import EpochPassed, OutcomeUnknown, OutliveError, StaleBase, StoreUnavailable
from outlive.layers.replication.backlog import Outbox, SavedId
from outlive.layers.replication.commit import Result, StoredElsewhere, saved_ids
from outlive.layers.replication.pair import active_role, standby_role
from outlive.layers.replication.thread_epoch import REFUSALS

_MOST = 10_000
CHANGING = "the two stores are changing roles"


@dataclass(slots=True)
class Doubt:
    """What is not known of one commit."""

    epochs: set[int] = field(default_factory=set)  # in which it may have been stored
    is_told: bool = False  # its caller knows that, or repeats what an earlier call stored

    def add(self, result: Result, epoch: int) -> None:
        """Add an answer that leaves open whether the commit was stored in an epoch."""
        if isinstance(result, OutcomeUnknown | StoredElsewhere):
            self.epochs.add(epoch)
            self.is_told |= isinstance(result, StoredElsewhere) and result.was_there

    def exclude(self, epoch: int) -> None:
        """Record that the active store of an epoch does not have it, and so never had it."""
        self.epochs = {other for other in self.epochs if active_role(other) != active_role(epoch)}

    def has_others(self, epoch: int) -> bool:
        """Tell whether another epoch may have stored it, without an answer to its caller."""
        return not self.is_told and bool(self.epochs - {epoch})


class Doubts:
    """What is not known of commits, by the ids of their checkpoints."""

    def __init__(self, outbox: Outbox, *, is_strict: bool) -> None:
        self._outbox = outbox
        self._is_strict = is_strict
        self._by_id: OrderedDict[SavedId, Doubt] = OrderedDict()
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def of(self, commit: Commit) -> Doubt:
        """Return what is not known of a commit from earlier attempts."""
        doubt = Doubt()
        if self._by_id:  # in the ordinary case there are none
            with self._lock:
                for id in saved_ids(commit):
                    if (known := self._by_id.get(id)) is not None:
                        doubt.epochs |= known.epochs
                        doubt.is_told |= known.is_told
        return doubt

    def answer(self, commit: Commit, result: Result, doubt: Doubt, epoch: int) -> Result:
        """Return the answer to a commit whose last attempt was made in an epoch."""
        if isinstance(result, Receipt):
            self._drop(commit)
            return result
        if isinstance(result, StaleBase):  # the core makes it again, with the same ids
            result.may_be_stored = bool(doubt.epochs)
            self._keep(commit, doubt)
            return result
        if isinstance(result, REFUSALS) and not self._is_strict:
            self._look_up(commit, doubt, epoch)
        answer = _answer(commit, result, doubt, epoch, self._is_strict)
        if isinstance(answer, OutcomeUnknown) and not self._is_strict:
            doubt.is_told = True
            self._keep(commit, doubt)
        else:
            self._drop(commit)
        return answer

    def _look_up(self, commit: Commit, doubt: Doubt, epoch: int) -> None:
        """Find out in which of the two stores a commit that was refused in an epoch may be."""
        if _is_found_by_id(commit):
            doubt.exclude(epoch)
        if self._outbox.is_queued_in(standby_role(epoch), saved_ids(commit)):
            doubt.epochs.add(epoch - 1)

    def _keep(self, commit: Commit, doubt: Doubt) -> None:
        if not doubt.epochs:
            return
        with self._lock:
            for id in saved_ids(commit):
                self._by_id[id] = doubt
                self._by_id.move_to_end(id)
            while len(self._by_id) > _MOST:
                self._by_id.popitem(last=False)

    def _drop(self, commit: Commit) -> None:
        if self._by_id:
            with self._lock:
                for id in saved_ids(commit):
                    self._by_id.pop(id, None)


def _answer(commit: Commit, result: OutliveError, doubt: Doubt, epoch: int, is_strict: bool) -> OutliveError:
    if isinstance(result, OutcomeUnknown):
        return result
    if isinstance(result, EpochPassed) and commit.epoch is None and not doubt.epochs:
        return StoreUnavailable(CHANGING)
    if not doubt.epochs or _is_definite(commit, result, doubt, epoch, is_strict):
        return result
    reason = CHANGING if isinstance(result, EpochPassed) else f"{result}, after an attempt without an answer"
    answer = outcome_unknown(commit, reason)
    answer.__cause__ = result
    return answer


def _is_definite(commit: Commit, result: OutliveError, doubt: Doubt, epoch: int, is_strict: bool) -> bool:
    """Tell whether a refusal holds although an earlier attempt may have been stored.

    A store that had it would have found it under its id. In strict mode a thread that refuses has
    moved to this epoch: what was stored in an earlier one is withdrawn.
    """
    if not isinstance(result, REFUSALS):
        return False
    return is_strict and (epoch not in doubt.epochs or _is_found_by_id(commit))


def _is_found_by_id(commit: Commit) -> bool:
    return bool(commit.checkpoints) and not commit.replace
