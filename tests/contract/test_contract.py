"""The backends of this package keep the contract, sync and async."""

import asyncio
import contextlib
import os
import random
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from outlive.backend import ThreadKey
from outlive.backends.file.backend import FileBackend
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.postgres import urls as postgres_url
from outlive.backends.redis import urls as redis_url
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.errors import HeadMoved, OutcomeUnknown, OutliveError, StoreBusy
from outlive.testing import BackendContract, MachineContract, Opener, RecordsContract, Trial
from outlive.testing.records.commits import CommitContract
from outlive.testing.records.deletion import DeletionContract
from outlive.testing.records.entries import EntryContract
from outlive.testing.records.first_calls import FirstCallContract
from outlive.testing.records.forking import ForkContract
from outlive.testing.records.merging import MergeContract
from outlive.testing.records.reading import ReadingContract
from outlive.testing.records.resending import ResendingContract
from outlive.testing.records.threads import ThreadContract
from outlive.testing.records.watching import WatchContract
from outlive.testing.store.damage import DamageContract
from outlive.testing.store.interleavings import InterleavingContract
from outlive.testing.store.listing import ListingContract
from outlive.testing.store.pending import PendingContract
from outlive.testing.store.races import RaceContract
from outlive.testing.store.runs import RunContract
from outlive.testing.store.sharing import SharingContract
from outlive.testing.store.streams import StreamContract
from outlive.testing.store.timers import TimerContract
from outlive.testing.store.waiting import WaitingContract
from outlive.testing.store.working import WorkerContract
from outlive.testing.trial import AsyncDriver, SyncDriver
from rig.general_road import GeneralRoad

LONG = bool(os.environ.get("OUTLIVE_LONG"))

pytestmark = pytest.mark.heavy

# `long_io_mode`: the other mode is the same code above the same engine. What its driver does, or the group commit of a
# local one, runs in both.
#
# What a disk and its fsync are good for is told by killing processes and cutting power. Here they only take
# time, so that the short mode does without them.
FSYNC = "full" if LONG else "normal"
IN_MEMORY = None if LONG or not os.access("/dev/shm", os.W_OK) else "/dev/shm"


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="outlive-", dir=IN_MEMORY) as name:
        yield Path(name)


class _Driver(
    CommitContract, ReadingContract, FirstCallContract, WatchContract, ResendingContract, ForkContract
):
    """What is sent and received: in both modes, where each has a driver of its own."""


class _InShort(
    RecordsContract,
    MachineContract,
    ListingContract,
    PendingContract,
    RaceContract,
    InterleavingContract,
    SharingContract,
    DamageContract,
    RunContract,
    WaitingContract,
    TimerContract,
    WorkerContract,
    StreamContract,
):
    """The rules themselves, any sequence of calls, and what depends on the locks, clocks, indexes and signals of an engine.

    The other things that a user sees are written once, above the rules: they are looked at in memory and on SQLite.
    """


@pytest.mark.long_io_mode("async")
class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self):
        return MemoryBackend()


@pytest.mark.long_io_mode("sync")
class TestFile(BackendContract if LONG else _InShort):
    @pytest.fixture
    def backend(self, folder):
        return Opener.local(lambda: FileBackend(str(folder / "store"), fsync=FSYNC))


@pytest.mark.long_io_mode("async", apart_from=_Driver)
class TestSQLite(BackendContract):
    @pytest.fixture
    def backend(self, folder):
        return Opener.local(lambda: SQLiteBackend(str(folder / "store.db"), fsync=FSYNC))


@pytest.mark.long_io_mode("sync", apart_from=_Driver)
class TestPostgres(BackendContract if LONG else _InShort):
    @pytest.fixture
    def backend(self, postgres_store):
        return Opener.served(postgres_url.parse_url(postgres_store, {"pool_size": 4}))


class _OfAFile(
    CommitContract, DeletionContract, ReadingContract, ThreadContract, ForkContract, MachineContract
):
    """What a file and memory may do otherwise, and any sequence of calls. The statements are those of the file."""


@pytest.mark.long_io_mode("async")
class TestSQLiteInMemory(BackendContract if LONG else _OfAFile):
    """Ordinary saves take the general path too: `TestSQLite` sends them on the fast one."""

    @pytest.fixture
    def backend(self):
        return GeneralRoad(":memory:")


@pytest.mark.long_io_mode("async", apart_from=_Driver)
class TestRedis(BackendContract if LONG else _InShort):
    @pytest.fixture
    def backend(self, valkey_url):
        return Opener.served(redis_url.parse_url(valkey_url, {}))


class _Routed(_Driver, DeletionContract, MergeContract, ThreadContract, EntryContract):
    """What is sent to several servers. The scripts are those of one server."""


@pytest.mark.long_io_mode("sync")
class TestRedisCluster(BackendContract if LONG else _Routed):
    @pytest.fixture
    def backend(self, cluster):
        return Opener.served(redis_url.parse_url(cluster.url, {}))


# Joining -------------------------------------------------------------------------------------------------


def test_a_contract_test_cannot_be_overridden():
    class Weaker:
        test_reading_creates_nothing = None

    for name, base, body in (
        ("TestShort", (), {"test_reading_creates_nothing": lambda self: None}),
        ("TestSkipped", (), {"test_a_record_comes_back_as_it_was_sent": None}),
        ("TestOneColour", (), {"io_mode": "sync"}),
        ("TestMixed", (Weaker,), {}),
        ("TestNothing", (), {"__test__": False}),
        ("TestLenient", (), {"__init_subclass__": lambda cls: None}),
    ):
        with pytest.raises(TypeError, match="may not"):
            type(name, (*base, BackendContract), body)


def test_a_class_that_joins_may_have_tests_of_its_own():
    class TestMine(RecordsContract):
        async def test_that_nobody_else_has(self, probe):
            await probe.save("a")
            seen.append(await probe.ids())

    seen = []
    for io_mode in ("sync", "async"):
        TestMine().test_that_nobody_else_has(MemoryBackend(), io_mode)
    assert seen == [["a"], ["a"]]


def test_a_fixture_that_gives_something_else_is_told_what_it_should_give():
    with pytest.raises(TypeError, match="fixture `backend`"):
        RecordsContract().test_reading_creates_nothing("sqlite:///x.db", "sync")


# The contract is worth something: a backend that breaks a rule is found ------------------------------------------


class ChecksFirst(MemoryBackend):
    def _commit(self, commit):
        head = self._table(commit.thread).head("")
        if commit.expect_head is not None and commit.expect_head[1] != head:
            raise HeadMoved(commit.thread.id, "", commit.expect_head[1], head)
        return super()._commit(commit)


class StoresBeforeItRefuses(MemoryBackend):
    def _commit(self, commit):
        for name, data in commit.chunks:
            self._data[commit.thread.digest, name] = data
            self._table(commit.thread).chunks.setdefault(name, (len(data), 0))
        return super()._commit(commit)


class RefusesTheGroup(MemoryBackend):
    def commit_all(self, commits):
        results = super().commit_all(commits)
        errors = [result for result in results if isinstance(result, Exception)]
        return [errors[0]] * len(results) if errors else results


class CountsAnew(MemoryBackend):
    def _apply(self, table, effect):
        super()._apply(table, effect)
        if effect.everything:
            del self._tables[table.key.digest]


class KeepsItsGeneration(MemoryBackend):
    def _apply(self, table, effect):
        generation = table.counters.generation if table.counters else effect.counters.generation
        super()._apply(table, replace(effect, counters=replace(effect.counters, generation=generation)))


class CountsItsGenerations(MemoryBackend):
    def _apply(self, table, effect):
        generation = table.counters.generation + 1 if table.counters else 1
        super()._apply(table, replace(effect, counters=replace(effect.counters, generation=generation)))


class KeepsOldStamps(MemoryBackend):
    def _apply(self, table, effect):
        held = dict(table.chunks)
        super()._apply(table, effect)
        table.chunks.update({name: held[name] for name, _ in effect.chunks if name in held})


class SweepsWhateverIsNamed(MemoryBackend):
    def _commit(self, commit):
        if commit.removal is not None:
            commit = replace(commit, removal=replace(commit.removal, chunks_until=1 << 60))
        return super()._commit(commit)


class GivesReplacementsANewPlace(MemoryBackend):
    def _commit(self, commit):
        if commit.replace:
            for draft in commit.checkpoints:
                if (draft.namespace, draft.id) in self._table(commit.thread).records:
                    self._table(commit.thread)._remove((draft.namespace, draft.id))
        return super()._commit(commit)


class LetsTheLastWriteWin(MemoryBackend):
    def _commit(self, commit):
        for write in commit.writes:
            self._table(commit.thread).pending.get(write.key[:2], {}).pop(write.key, None)
        return super()._commit(commit)


class ForgetsToRemoveWrites(MemoryBackend):
    def _apply(self, table, effect):
        pending = {pair: dict(writes) for pair, writes in table.pending.items()}
        super()._apply(table, effect)
        table.pending.update({pair: pending[pair] for pair in effect.removed if pair in pending})


class SendsByIdAlone(MemoryBackend):
    def read(self, thread, namespace, id=None, *, known=None, **options):
        reading = super().read(thread, namespace, id, **options)
        if known is not None and reading.record is not None and reading.record.id == known.id:
            return replace(reading, chunks={})
        return reading


class ListsEverybody(MemoryBackend):
    def threads(self, query, **options):
        tenants = {table.key.tenant for table in self._all_tables()} | {query.tenant}
        return [row for tenant in tenants
                for row in super(ListsEverybody, self).threads(replace(query, tenant=tenant))]  # fmt: skip


class FoldsCase(MemoryBackend):
    def _table(self, thread):
        return super()._table(ThreadKey.of(thread.tenant, thread.id.lower()))


class LosesItsPlace(MemoryBackend):
    def history(self, query, **options):
        _, whole = super().history(replace(query, before=None, limit=1000))
        if query.before not in [record.order for record in whole]:
            query = replace(query, before=None)
        return super().history(query)


class OrdersByClock(MemoryBackend):
    def history(self, query, **options):
        generation, page = super().history(query)
        return generation, sorted(page, key=lambda record: record.created_at, reverse=True)


BROKEN = {
    ChecksFirst: "test_a_retry_is_answered_whatever_else_no_longer_holds",
    StoresBeforeItRefuses: "test_one_failed_expectation_leaves_every_table_untouched",
    RefusesTheGroup: "test_one_refusal_in_a_group_refuses_one",
    CountsAnew: "test_a_place_is_not_used_again_after_a_deletion",
    KeepsItsGeneration: "test_every_removal_replaces_the_generation_and_nothing_else_does",
    CountsItsGenerations: "test_generations_are_random",
    KeepsOldStamps: "test_no_save_between_the_steps_of_a_deletion_loses_a_chunk",
    SweepsWhateverIsNamed: "test_no_save_between_the_steps_of_a_deletion_loses_a_chunk",
    GivesReplacementsANewPlace: "test_a_replaced_checkpoint_keeps_its_place",
    LetsTheLastWriteWin: "test_the_first_write_of_an_index_wins",
    ForgetsToRemoveWrites: "test_a_removed_checkpoint_is_gone_with_its_writes",
    SendsByIdAlone: "test_what_the_reader_knows_of_another_time_does_not_count",
    ListsEverybody: "test_tenants_never_see_each_other",
    FoldsCase: "test_any_text_names_a_thread_of_its_own",
    LosesItsPlace: "test_a_page_continues_at_its_cursor_even_when_that_is_gone",
    OrdersByClock: "test_commits_of_a_moment_long_ago_are_still_newest",
}
ARGUMENTS = {
    "test_a_place_is_not_used_again_after_a_deletion": {"everything": True},
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_the_contract_finds_a_backend_that_breaks_a_rule(broken):
    name = BROKEN[broken]
    test = getattr(RecordsContract(), name)
    for backend, passes in ((MemoryBackend(), True), (broken(), False)):
        try:
            test(backend, "sync", **ARGUMENTS.get(name, {}))
        except (AssertionError, OutliveError, pytest.fail.Exception):
            assert not passes
        else:
            assert passes


# Deadlines of the backends in this process ----------------------------------------------------------------


@contextlib.contextmanager
def held(local):
    """Hold a backend's lock in another thread, as a long commit would."""
    taken, free = threading.Event(), threading.Event()

    def hold():
        with local.lock:
            taken.set()
            free.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        free.set()
        thread.join()


@pytest.fixture(params=[MemoryBackend, SQLiteBackend, FileBackend], ids=["memory", "sqlite", "file"])
def local(request, folder):
    made = request.param() if request.param is MemoryBackend else request.param(str(folder / "store"))
    yield made
    made.close()


def test_a_sync_call_ends_with_its_deadline(local):
    with SyncDriver() as driver:
        store = driver.run(Trial(Opener.of(local), driver).store())._inner
        thread = store.thread("t")
        thread.save({"n": 1})
        with held(local):
            with pytest.raises(StoreBusy):
                thread.save({"n": 2}, timeout_s=0.02)
            with pytest.raises(StoreBusy):
                thread.load(timeout_s=0.02)
        assert thread.load() == {"n": 1}
        assert thread.save({"n": 3}).seq == 2  # what was refused was never stored


def test_an_async_call_ends_with_its_deadline(local):
    async def scenario():
        store = await Trial(Opener.of(local), driver).store()
        thread = store.thread("t")
        await thread.save({"n": 1})
        with held(local):
            with pytest.raises(OutcomeUnknown) as unknown:
                await thread.save({"n": 2}, timeout_s=1.5)
            with pytest.raises(StoreBusy):
                await thread.load(timeout_s=0.02)
        saved = await thread.save({"n": 2}, id=unknown.value.checkpoint)  # stored once, by either attempt
        assert (saved.seq, await thread.load()) == (2, {"n": 2})
        await store.close()

    with AsyncDriver() as driver:
        driver.run(scenario())


def test_a_cancelled_save_is_stored_whole_or_not_at_all(local):
    async def scenario():
        store = await Trial(Opener.of(local), driver).store()
        thread = store.thread("t")
        await thread.save({"n": 0})
        for n in range(1, 6):
            task = asyncio.ensure_future(thread.save({"n": n}, id=f"{n}"))
            await asyncio.sleep(0.0005 * (n % 3))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        last = await thread.save({"n": 9})
        line = [item async for item in thread.history()]
        assert line[0].id == last.id
        for item in line:
            assert (await thread.load(item.id))["n"] == (
                9 if item is line[0] else int(item.id) if item.seq > 1 else 0
            )
        assert (await store.verify()).problems == ()
        await store.close()

    with AsyncDriver() as driver:
        driver.run(scenario())


# What is left on the disk -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SQLiteBackend, FileBackend], ids=["sqlite", "file"])
@pytest.mark.parametrize("how", ["pruned", "removed", "replaced", "deleted"])
def test_no_byte_of_what_was_erased_is_left_in_any_file(make, how, tmp_path):
    secret = random.Random(5).randbytes(600)  # it does not compress, so it stands in the file as it is

    def found():
        return [
            path.name for path in tmp_path.rglob("*") if path.is_file() and secret[9:99] in path.read_bytes()
        ]

    with SyncDriver() as driver:
        store = driver.run(Trial(Opener.of(make(str(tmp_path / "store"))), driver).store())._inner
        thread = store.thread("t")
        thread.save({"secret": secret}, id="one", metadata={"about": secret})
        thread.write("task", [("c", secret)], checkpoint="one")
        thread.set_metadata({"about": secret})
        thread.save({"plain": random.Random(6).randbytes(600)}, id="two")
        assert found()
        thread.set_metadata({"about": None})
        if how == "pruned":
            thread.prune(keep_last=1, erase=True)
        elif how == "removed":
            thread.delete_checkpoints(["one"], erase=True)
        elif how == "replaced":
            thread.save({}, id="one", replace=True)
            thread.delete_checkpoints(["one"], erase=True)
        else:
            thread.delete()
            store.close()  # without erase SQLite empties its log when the last handle goes
        assert found() == []
        store.close()
