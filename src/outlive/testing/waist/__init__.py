"""The contract of a backend at the waist: its rules, looked at record by record, without a store."""

from .commits import CommitContract
from .deletion import DeletionContract
from .entries import EntryContract
from .expectations import ExpectationContract
from .first_calls import FirstCallContract
from .ids import IdContract
from .merging import MergeContract
from .order import OrderContract
from .reading import ReadingContract
from .threads import ThreadContract
from .writes import WriteContract


class WaistContract(
    CommitContract,
    ExpectationContract,
    OrderContract,
    DeletionContract,
    ReadingContract,
    WriteContract,
    EntryContract,
    MergeContract,
    ThreadContract,
    FirstCallContract,
    IdContract,
):
    """The rules of `outlive.backend`, each a test."""


__all__ = ["WaistContract"]
