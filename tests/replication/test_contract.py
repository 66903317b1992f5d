"""A pair of stores keeps the contract of a backend, whichever of the two is active."""

import os
from typing import cast

import pytest

from outlive.backend import Backend
from outlive.backends.local.async_local import AsyncLocal
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.sync_local import SyncLocal
from outlive.layers.replication.layer import Replicate
from outlive.layers.replication.options import Replication
from outlive.runtime.loop import AsyncRuntime
from outlive.runtime.runtime import SyncRuntime
from outlive.testing import BackendContract, Opener, RecordsContract, StoreContract
from outlive.testing.store.pending import PendingContract
from outlive.testing.store.pruning import PruningContract
from outlive.testing.store.races import RaceContract
from outlive.testing.store.runs import RunContract
from outlive.testing.store.saving import SavingContract
from outlive.testing.store.timers import TimerContract
from outlive.testing.store.waiting import WaitingContract


def pair(primary, secondary, runtime, **options):
    """Return a pair of backends; names of chunks are not looked at: the contract's are made up."""
    return cast(
        Backend,
        Replicate(
            primary,
            secondary,
            Replication("", **options),
            runtime=runtime,
            naming=lambda key: lambda *chunk: True,
        ),
    )


class _Promoted(Replicate):
    """A pair whose secondary is active from the start."""

    async def identity(self, offered):
        key = await super().identity(offered)
        await self.promote()
        return key


LONG = bool(os.environ.get("OUTLIVE_LONG"))

# What a pair does otherwise: it is in an epoch of its own, and adds commits of its own.
DIFFERS = {
    "test_every_commit_raises_the_revision_by_one",
    "test_a_retry_is_answered_after_a_failover",
    "test_a_merge_expects_nothing_and_keeps_what_is_here",
    "test_a_control_write_is_ranked_by_the_commit",
    "test_a_checkpoint_tells_all_that_was_said_about_it",
}
pytestmark = pytest.mark.filterwarnings(
    "ignore:what is queued"
)  # some damage their store, which then cannot be carried


@pytest.fixture(autouse=True)
def _as_a_pair_does_it(request):
    name = request.node.originalname
    if name in DIFFERS and (
        name != "test_a_checkpoint_tells_all_that_was_said_about_it" or request.cls is TestFailedOver
    ):
        pytest.skip("a pair has an epoch, and commits, of its own: tests/replication/test_replication.py")


def opener(**options):
    stores = MemoryBackend(), MemoryBackend()

    async def threaded():
        return pair(*map(AsyncLocal, stores), AsyncRuntime(), **options)

    return Opener(
        lambda: pair(*map(SyncLocal, stores), SyncRuntime(), **options),
        threaded,
        survives=False,
        is_remote=False,
    )


class _InShort(SavingContract, PendingContract, PruningContract, RaceContract, RunContract):
    """What is most likely to differ when the other store is behind, or when the secondary is active."""


class _Behind(SavingContract, PruningContract, RunContract, WaitingContract, TimerContract):
    """The same, where the other store is behind."""


class _SyncInShort(RecordsContract, _InShort):
    """The rules themselves, and what a user sees of them."""


# A pair is written once, above the runtime of either mode.
@pytest.mark.long_io_mode("async", apart_from=RaceContract)
class TestSync(BackendContract if LONG else _SyncInShort):
    @pytest.fixture
    def backend(self, tuned):
        # The contract counts commits: no others may come between.
        tuned(replication_beat_s=60)
        return opener()


@pytest.mark.long_io_mode("sync")
class TestAsync(StoreContract if LONG else _Behind):
    @pytest.fixture
    def backend(self):
        return opener(mode="async")


@pytest.mark.long_io_mode("async")
class TestFailedOver(StoreContract if LONG else _Behind):
    @pytest.fixture
    def backend(self, monkeypatch):
        monkeypatch.setattr(f"{__name__}.Replicate", _Promoted)
        return opener()
