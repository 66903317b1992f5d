"""The contract of the backend protocol: its rules, tested record by record, without a store."""

from outlive.testing.records.commits import CommitContract
from outlive.testing.records.deletion import DeletionContract
from outlive.testing.records.entries import EntryContract
from outlive.testing.records.expectations import ExpectationContract
from outlive.testing.records.first_calls import FirstCallContract
from outlive.testing.records.forking import ForkContract
from outlive.testing.records.merging import MergeContract
from outlive.testing.records.odd_ids import IdContract
from outlive.testing.records.order import OrderContract
from outlive.testing.records.reading import ReadingContract
from outlive.testing.records.resending import ResendingContract
from outlive.testing.records.threads import ThreadContract
from outlive.testing.records.watching import WatchContract
from outlive.testing.records.writes import WriteContract


class RecordsContract(
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
    WatchContract,
    ResendingContract,
    ForkContract,
):
    """The rules of `outlive.backend.protocol`, each a test."""


__all__ = ["RecordsContract"]
