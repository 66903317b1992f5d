"""The contract of a store: what a user sees, on every backend and in both colours."""

from .arguments import ArgumentContract
from .copies import CopyContract
from .damage import DamageContract
from .delayed import DelayedContract
from .diffs import DiffContract
from .heads import HeadContract
from .history import HistoryContract
from .interleavings import InterleavingContract
from .listing import ListingContract
from .pending import PendingContract
from .pruning import PruningContract
from .races import RaceContract
from .runs import RunContract
from .saving import SavingContract
from .sharing import SharingContract
from .typed import TypedContract


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
):
    """What a thread and a store do, each a test."""


__all__ = ["StoreContract"]
