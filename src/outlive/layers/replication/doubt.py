"""Doubt: which commits may be stored although nobody was told so.

A commit may be sent more than once: again to a store that did not answer, and to the other one when the stores change places. Every attempt
bears the same ids, so a store that has it says so. But a refusal speaks of the store that gave it: what an earlier attempt left in
the other store may still come back. So once an attempt may have been stored, the answer is success, if it is found, or OutcomeUnknown;
and a refusal only where it is certain that the attempt is undone.

A save whose base is stale (always so after a change of places: generations belong to one store) is made again by the core, as another
commit with the same ids. Therefore doubt is kept by id, beyond one call. In strict mode a refusal ends it: the thread moved to the epoch of
the pair before it refused (`sealing.py`), and what was not acknowledged is withdrawn (`withdrawal.py`). In the queueing modes doubt stays
until that store is asked again or the checkpoint is found: a branch that was left behind comes back. A caller that was told so, asks again, and finds it gets what idempotency
says: it is stored.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from outlive.backend import Commit, Receipt, outcome_unknown
from outlive.errors import EpochPassed, OutcomeUnknown, OutliveError, StaleBase, StoreUnavailable
from outlive.layers.replication.commit import Result, StoredElsewhere
from outlive.layers.replication.thread_epoch import REFUSALS

_MOST = 10_000
CHANGING = "the two stores are just changing places"

_Id = tuple[bytes, str, str]  # thread's digest, namespace, id


@dataclass(slots=True)
class Doubt:
    """What is not known of one commit."""

    epochs: set[int] = field(default_factory=set)  # in which it may have been stored
    is_told: bool = False  # its caller knows that, or repeats what an earlier call has stored

    def note(self, result: Result, epoch: int) -> None:
        """Take note of an answer that leaves open whether the commit was stored in an epoch."""
        if isinstance(result, OutcomeUnknown | StoredElsewhere):
            self.epochs.add(epoch)
            self.is_told |= isinstance(result, StoredElsewhere) and result.was_there

    def has_others(self, epoch: int) -> bool:
        """Tell whether it may have been stored in another epoch, of which nobody was told."""
        return not self.is_told and bool(self.epochs - {epoch})


class Doubts:
    """What is not known of commits, by the ids of their checkpoints."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._by_id: OrderedDict[_Id, Doubt] = OrderedDict()
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def of(self, commit: Commit) -> Doubt:
        """Return what is not known of a commit from earlier attempts."""
        doubt = Doubt()
        if self._by_id:  # in the ordinary case there are none
            with self._lock:
                for id in _ids(commit):
                    if (known := self._by_id.get(id)) is not None:
                        doubt.epochs |= known.epochs
                        doubt.is_told |= known.is_told
        return doubt

    def settle(self, commit: Commit, result: Result, doubt: Doubt, epoch: int) -> Result:
        """Return the answer to a commit whose last attempt was made in an epoch."""
        if isinstance(result, Receipt):
            self._drop(commit)
            return result
        if isinstance(result, StaleBase):  # the core makes it again, with the same ids
            result.may_be_stored = bool(doubt.epochs)
            self._keep(commit, doubt)
            return result
        answer = _answer(commit, result, doubt, epoch, self._is_strict)
        if isinstance(answer, OutcomeUnknown) and not self._is_strict:
            doubt.is_told = True
            self._keep(commit, doubt)
        else:
            self._drop(commit)
        return answer

    def _keep(self, commit: Commit, doubt: Doubt) -> None:
        if not doubt.epochs:
            return
        with self._lock:
            for id in _ids(commit):
                self._by_id[id] = doubt
                self._by_id.move_to_end(id)
            while len(self._by_id) > _MOST:
                self._by_id.popitem(last=False)

    def _drop(self, commit: Commit) -> None:
        if self._by_id:
            with self._lock:
                for id in _ids(commit):
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

    The store that may have it would have found it under its id. In strict mode a thread that refuses has moved on to this epoch: what
    was stored in an earlier one is withdrawn.
    """
    if not isinstance(result, REFUSALS):
        return False
    has_ids = bool(commit.checkpoints) and not commit.replace
    return (epoch not in doubt.epochs or has_ids) and (is_strict or doubt.epochs == {epoch})


def _ids(commit: Commit) -> list[_Id]:
    return [(commit.thread.digest, draft.namespace, draft.id) for draft in commit.checkpoints]
