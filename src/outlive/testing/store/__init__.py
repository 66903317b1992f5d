"""The contract of a store: what a user sees, on every backend, sync and async."""

from outlive.testing.store.arguments import ArgumentContract
from outlive.testing.store.attempts import AttemptContract
from outlive.testing.store.budgets import BudgetContract
from outlive.testing.store.continuing import ContinuingContract
from outlive.testing.store.copies import CopyContract
from outlive.testing.store.damage import DamageContract
from outlive.testing.store.delayed import DelayedContract
from outlive.testing.store.diffs import DiffContract
from outlive.testing.store.effects import EffectContract
from outlive.testing.store.heads import HeadContract
from outlive.testing.store.history import HistoryContract
from outlive.testing.store.interleavings import InterleavingContract
from outlive.testing.store.listing import ListingContract
from outlive.testing.store.pending import PendingContract
from outlive.testing.store.pruning import PruningContract
from outlive.testing.store.races import RaceContract
from outlive.testing.store.runs import RunContract
from outlive.testing.store.saving import SavingContract
from outlive.testing.store.sharing import SharingContract
from outlive.testing.store.streams import StreamContract
from outlive.testing.store.timers import TimerContract
from outlive.testing.store.typed import TypedContract
from outlive.testing.store.waiting import WaitingContract
from outlive.testing.store.working import WorkerContract


class StoreContract(
    SavingContract,
    HeadContract,
    HistoryContract,
    ListingContract,
    PendingContract,
    CopyContract,
    PruningContract,
    RaceContract,
    InterleavingContract,
    SharingContract,
    TypedContract,
    DiffContract,
    DamageContract,
    DelayedContract,
    ArgumentContract,
    RunContract,
    WaitingContract,
    TimerContract,
    AttemptContract,
    EffectContract,
    WorkerContract,
    ContinuingContract,
    BudgetContract,
    StreamContract,
):
    """What a thread and a store do, each a test."""


__all__ = ["StoreContract"]
