"""Two stores of which either may fail: what the table of guarantees says, with real servers, sync and async."""

from dataclasses import replace

import pytest

import outlive
from outlive.backend import OUTBOX, WALL, Commit, EntryQuery, EntryRecord, Removal, ThreadKey, commit
from outlive.layers.replication.outbox_entry import ChangeSet
from rig.replicas import IO_MODES, Rig, drained, ids, run, until

pytestmark = pytest.mark.heavy

TICKET = EntryRecord("ticket", "7:planner\n5000000001\nr", b"", fence=3)
TIMER, NEXT = [
    EntryRecord("timer", f"{due:020d}\nr\nsleep", b"", fence=3, until=due, clock=WALL)
    for due in (1 << 52, (1 << 52) + 1)
]


@pytest.fixture(params=["sync", "async"])
def rig(request, valkey_server, postgres_store, postgres_server):
    with (
        IO_MODES[request.param]() as driver,
        Rig(valkey_server, postgres_store, postgres_server, driver) as rig,
    ):
        yield rig


# What is acknowledged is where the mode says ------------------------------------------------------------------


def test_in_sync_mode_an_acknowledged_save_is_in_both_stores(rig):
    async def scenario(rig):
        store = await rig.open()
        saved = [await store.thread("t").save({"n": n, "text": "x" * n * 200}) for n in range(5)]
        for which in (0, 1):
            alone = await rig.alone(which)
            assert await ids(alone, "t") == [one.id for one in reversed(saved)]
            assert (await alone.thread("t").load())["n"] == 4
            assert (await alone.verify()).problems == ()

    run(rig, scenario)


def test_a_fork_and_an_import_into_a_thread_that_was_deleted_are_in_both_stores(rig):
    async def scenario(rig):
        store = await rig.open()
        for id in ("t", "fork"):
            for n in range(3):
                await store.thread(id).save({"n": n})
        text = await store.thread("t").export()
        for id in ("t", "fork"):
            await store.delete(id)
        await store.import_thread(text)
        at = (await ids(store, "t"))[-1]  # its place is before the tombstone of the other
        await store.thread("t").fork("fork", checkpoint=at)
        alone = await rig.alone(1)
        for id in ("t", "fork"):
            assert await ids(alone, id) == await ids(store, id) != []

    run(rig, scenario)


def test_when_the_secondary_is_down_a_strict_save_is_refused_and_its_retry_is_in_both(rig):
    async def scenario(rig):
        store = await rig.open()
        await store.thread("t").save(1)
        rig.cut(rig.secondary)
        with pytest.raises(outlive.NotReplicated) as refused:
            await store.thread("t").save(2)
        rig.heal()
        await store.thread("t").save(2, id=refused.value.checkpoint)
        alone = await rig.alone(1)
        assert await alone.thread("t").load() == 2
        assert len(await ids(alone, "t")) == 2

    run(rig, scenario)


DELETIONS = {
    "prune": lambda thread: thread.prune(keep_last=1),
    "prune and erase": lambda thread: thread.prune(keep_last=1, erase=True),
    "remove and erase": lambda thread: thread.delete_checkpoints(["0", "1"], erase=True),
    "remove a run": lambda thread: thread.delete_checkpoints(run="r"),
    "delete": lambda thread: thread.delete(),
}


@pytest.mark.parametrize("how", DELETIONS)
def test_a_strict_deletion_is_refused_however_often_it_is_repeated_until_it_is_in_both(rig, how):
    async def scenario(rig):
        store = await rig.open(health_check_interval_s=100)
        thread, delete = store.thread("t"), DELETIONS[how]
        work = store.run("t", run_id="r")
        await work.start()
        state = {"list": [f"kept {k}" for k in range(900)]}
        await work.save({**state, "more": ["secret" * 50] * 9}, id="0")
        await work.save(state, id="1")
        await work.complete()
        await thread.save(state, id="2")
        rig.cut(rig.secondary)
        for _ in range(3):
            with pytest.raises(outlive.NotReplicated, match="repeat the call"):
                await delete(thread)
        other = await rig.open(health_check_interval_s=100)  # another process finds nothing to delete either
        with pytest.raises(outlive.NotReplicated):
            await delete(other.thread("t"))
        rig.heal()
        await delete(other.thread("t"))
        alone = await rig.alone(1)
        assert await ids(alone, "t") == await ids(store, "t")
        if "erase" in how:
            assert b"secret" not in await raw_chunks(alone, thread._key)
        assert (await alone.verify()).problems == ()

    run(rig, scenario)


def test_a_status_never_says_less_than_is_queued_and_says_when_it_does_not_know(rig):
    async def scenario(rig):
        store = await rig.open(mode="async", health_check_interval_s=100)
        await store.thread("t").save(0)
        await drained(rig, store)
        assert (await store.replication_status()).is_exact
        rig.cut(rig.secondary)
        for n in range(1, 4):
            await store.thread("t").save(n)
        store._pair.stores.patience_s = 0.3
        for trouble in ("blackhole", "lose_replies", "reset", "refuse"):
            rig.primary.mode = trouble
            rig.primary.drop_connections()
            status = await store.replication_status()
            assert (status.queued, status.unreachable, status.is_exact) == (3, 3, False)
            assert status.lag_s > 0
        other = await rig.alone(0)  # who has queued nothing itself
        assert len(await other._engine.backend.entries(EntryQuery("", OUTBOX))) == 3
        rig.heal()
        store._pair.stores.patience_s = 10
        await drained(rig, store)

    run(rig, scenario)


def test_a_status_of_a_process_that_has_queued_nothing_itself_says_that_it_does_not_know(rig):
    async def scenario(rig):
        first = await rig.open(mode="async", health_check_interval_s=100)
        rig.cut(rig.secondary)
        await first.thread("t").save(1)
        rig.heal()
        rig.cut(rig.primary)
        second = await rig.open(mode="async", health_check_interval_s=100, auto_failover=True)
        status = await second.replication_status()
        assert (status.active, status.queued, status.is_exact) == ("secondary", 0, False)

    run(rig, scenario)


@pytest.mark.parametrize("mode", [{"on_secondary_down": "queue"}, {"mode": "async"}], ids=["queue", "async"])
def test_when_the_secondary_is_down_a_save_is_queued_and_comes_over_later(rig, mode):
    async def scenario(rig):
        store = await rig.open(**mode)
        await store.thread("t").save(0)
        await drained(rig, store)
        rig.cut(rig.secondary)
        for n in range(1, 6):
            await store.thread("t").save({"n": n})

        status = await store.replication_status()
        assert (status.queued, status.secondary_healthy, status.is_exact) == (5, False, False)
        assert status.queued_bytes > 0 or not status.primary_healthy
        assert status.lag_s > 0
        rig.heal()
        await drained(rig, store)
        assert await (await rig.alone(1)).thread("t").load() == {"n": 5}

    run(rig, scenario)


def test_everything_that_a_store_keeps_is_replicated(rig):
    async def scenario(rig):
        store = await rig.open()
        thread = store.thread("t")
        await thread.save({"n": 1}, id="a", interrupts=[outlive.Interrupt("i", "node")], metadata={"m": 1})
        await thread.write("task", [("channel", "v" * 3000)])
        await thread.resume("i", "yes")
        await thread.set_metadata({"title": "trip"})
        await thread.save({"n": 2}, id="b")
        await thread.save({"n": 3}, id="b", replace=True)
        await thread.fork("fork", checkpoint="a")
        run = store.run("r", run_id="run", agent="planner")
        await run.start()
        await run.step("one", lambda: "done")
        await run.save({"k": 1})
        views = [await view(await rig.alone(which)) for which in (0, 1)]
        assert views[0] == views[1]
        await run.complete("result")
        assert [run.status async for run in (await rig.alone(1)).runs()] == ["completed"]

    async def view(alone):
        found = {}
        for id in ("t", "fork", "r"):
            thread = alone.thread(id)
            found[id] = [
                (one.id, one.seq, one.epoch, one.parent, one.created_at, await thread.load(one.id))
                async for one in thread.history()
            ]
            found[f"{id} metadata"] = await thread.metadata()
        found["writes"] = await alone.thread("t").writes("a")
        found["runs"] = [(run.id, run.status, run.agent) async for run in alone.runs()]
        entries = alone._engine.backend.entries
        found["steps"] = [(one.key, one.body, one.rank) for _, one in await entries(EntryQuery("", "step"))]
        return found

    run(rig, scenario)


@pytest.mark.parametrize(
    "mode", [{}, {"on_secondary_down": "queue"}, {"mode": "async"}], ids=["strict", "queue", "async"]
)
def test_an_entry_that_is_removed_is_removed_in_both_stores_and_after_a_failback(rig, mode):
    async def scenario(rig):
        store = await rig.open(**mode)
        await put(store, TICKET, TIMER)
        await drained(rig, store)
        assert await tickets(await rig.alone(1)) == [TICKET.key, TIMER.key]
        await put(store, replace(TICKET, gone=True))
        await drained(rig, store)
        assert await tickets(await rig.alone(1)) == [TIMER.key]
        # While the secondary is active, and the primary is away.
        rig.cut(rig.primary)
        await store.promote()
        await put(store, replace(TIMER, gone=True), NEXT)
        rig.heal()
        await until(rig, lambda: failed_back(store))
        await drained(rig, store)
        for which in (0, 1):
            alone = await rig.alone(which)
            assert await tickets(alone) == [NEXT.key]
            assert (await alone.verify()).problems == ()
            (_, timer), *_ = await alone._engine.backend.entries(EntryQuery("", "timer", lapsed=False))
            assert (timer.until, timer.clock) == (NEXT.until, WALL)

    async def put(store, *entries):
        await commit(store._engine.backend, Commit(ThreadKey.of("", "t"), entries=entries))

    async def tickets(alone):
        pages = [await alone._engine.backend.entries(EntryQuery("", kind)) for kind in ("ticket", "timer")]
        return [entry.key for page in pages for _, entry in page]

    async def failed_back(store):
        try:
            await store.failback()
        except outlive.OutliveError:
            return False
        return True

    run(rig, scenario)


# Deletions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [{}, {"mode": "async"}], ids=["sync", "async"])
def test_what_was_deleted_while_the_secondary_was_active_stays_deleted_after_failback(rig, mode):
    async def scenario(rig):
        store = await rig.open(**mode)
        for n in range(4):
            await store.thread("t").save({"n": n, "text": "x" * 2000}, id=f"{n}")
            await store.thread("gone").save(n)
        await store.promote()
        await store.thread("t").prune(keep_last=2)
        await store.thread("gone").delete()
        await store.failback()
        for which in (0, 1):
            alone = await rig.alone(which)
            assert await ids(alone, "t") == ["3", "2"]
            assert not await alone.thread("gone").exists()
            assert [one.id async for one in alone.threads()] == ["t"]
        assert await store.thread("gone").load() is None
        again = await store.thread("gone").save("new")
        await drained(rig, store)
        assert await ids(await rig.alone(1), "gone") == [again.id]

    run(rig, scenario)


async def save_a_secret(store):
    thread = store.thread("t")
    await thread.save({"list": ["secret " * 50, *["kept " * 50 for _ in range(20)]]}, id="one")
    await thread.save({"list": ["kept " * 50 for _ in range(20)]}, id="two")
    return thread


def disturb(store, times):
    """Let something come in between, so often, whenever the secondary is to drop chunks."""
    stores = store._pair.stores
    secondary, left = stores.both[1], [times]
    real = secondary.commit_all

    async def commit_all(commits):
        if left[0] and any(one.removal is not None and one.removal.chunks for one in commits):
            left[0] -= 1
            await real([Commit(commits[0].thread, removal=Removal(checkpoints=(("", "two"),)))])
            await stores.replicator(0, 10).transfer(commits[0].thread, ChangeSet(checkpoints={("", "two")}))
        return await real(commits)

    secondary.commit_all = commit_all
    return left


async def raw_chunks(store, key):
    names = list((await store._engine.backend.inventory(key)).chunks)
    data = await store._engine.backend.fetch(key, names)
    return b"".join(store._engine.raw(name, data[name]) for name in names)


@pytest.mark.parametrize("times", [0, 2])
def test_what_is_erased_is_erased_in_both_stores(rig, times):
    async def scenario(rig):
        store = await rig.open(health_check_interval_s=100)
        thread = await save_a_secret(store)
        left = disturb(store, times)
        await thread.prune(keep_last=1, erase=True)
        assert left == [0]
        for which in (0, 1):
            alone = await rig.alone(which)
            raws = await raw_chunks(alone, thread._key)
            assert b"secret" not in raws
            assert b"kept" in raws
            assert (await alone.verify()).problems == ()

    run(rig, scenario)


def test_what_cannot_be_erased_in_both_stores_is_an_error_and_is_tried_again(rig):
    async def scenario(rig):
        store = await rig.open(health_check_interval_s=100)
        thread = await save_a_secret(store)
        store._pair.stores.patience_s = 0.5
        left = disturb(store, 1000)
        with pytest.raises(outlive.NotReplicated):
            await thread.prune(keep_last=1, erase=True)
        assert (await store.replication_status()).queued > 0
        left[0] = 0
        await drained(rig, store)
        assert b"secret" not in await raw_chunks(await rig.alone(1), thread._key)

    run(rig, scenario)


# Changing places ----------------------------------------------------------------------------------------------------


def test_promotion_and_failback_lose_nothing_and_both_stores_agree(rig):
    async def scenario(rig):
        store = await rig.open()
        await store.thread("t").save(1, id="one")
        assert (await store.promote()).epoch == 1
        await store.thread("t").save(2, id="two")
        await store.thread("new").save("made while the primary was away")
        status = await store.replication_status()
        assert (status.active, status.is_failed_over, status.failovers) == ("secondary", True, 1)
        assert (await store.failback()).epoch == 2
        await store.thread("t").save(3, id="three")
        for which in (0, 1):
            alone = await rig.alone(which)
            assert await ids(alone, "t") == ["three", "two", "one"]
            assert await alone.thread("new").load() == "made while the primary was away"
        assert [(one.epoch, one.seq) async for one in store.thread("t").history()] == [(2, 3), (1, 2), (0, 1)]

    run(rig, scenario)


def test_an_unreachable_primary_is_left_by_itself_and_gone_back_to_when_it_has_everything(rig):
    async def scenario(rig):
        store = await rig.open(auto_failover=True)
        await store.thread("t").save(1)
        rig.cut(rig.primary)
        await store.thread("t").save(2)
        assert (await store.replication_status()).active == "secondary"
        assert await store.thread("t").load() == 2
        rig.heal()

        async def is_back():
            return (await store.replication_status()).active == "primary"

        await until(rig, is_back)
        assert await (await rig.alone(0)).thread("t").load() == 2
        assert (await store.replication_status()).queued == 0

    run(rig, scenario)


@pytest.mark.parametrize("mode", [{"auto_failover": True}, {"mode": "async"}], ids=["sync", "async"])
def test_while_both_stores_are_down_every_call_is_an_error_and_then_it_goes_on(rig, mode):
    async def scenario(rig):
        store = await rig.open(**mode)
        await store.thread("t").save(1)
        rig.cut(rig.primary, rig.secondary)
        for call in (store.thread("t").load, lambda: store.thread("t").save(2, id="two"), store.promote):
            with pytest.raises(outlive.StoreError):
                await call()
        status = await store.replication_status()
        assert (status.primary_healthy, status.secondary_healthy, status.is_exact) == (False, False, False)
        rig.heal()
        await store.thread("t").save(2, id="two")
        await store.thread("t").save(3)
        await drained(rig, store)
        await store.failback()
        for which in (0, 1):
            assert await (await rig.alone(which)).thread("t").load() == 3
            assert len(await ids(await rig.alone(which), "t")) == 3

    run(rig, scenario)


def test_without_automatic_failover_an_unreachable_primary_is_an_error(rig):
    async def scenario(rig):
        store = await rig.open(mode="async")
        await store.thread("t").save(1)
        await drained(rig, store)
        rig.cut(rig.primary)
        with pytest.raises(outlive.StoreError):
            await store.thread("t").load()
        await store.promote()
        assert await store.thread("t").load() == 1

    run(rig, scenario)


def test_what_an_async_primary_had_queued_when_it_was_left_comes_back_as_a_branch(rig):
    async def scenario(rig):
        store = await rig.open(mode="async")
        await store.thread("t").save("base", id="base")
        await drained(rig, store)
        rig.cut(rig.secondary)
        await store.thread("t").save("only the primary has it", id="left")
        rig.cut(rig.primary)
        rig.secondary.mode = "pass"
        await store.promote()
        status = await store.replication_status()
        assert (status.unreachable, status.primary_healthy) == (1, False)
        await store.thread("t").save("continued from the base", id="continued")
        rig.heal()
        switched = await store.failback()
        assert switched.branched == ("t",)
        for which in (0, 1):
            alone = await rig.alone(which)
            assert await alone.thread("t").load() == "continued from the base"
            assert {one.id for one in await alone.thread("t").tips()} == {"continued", "left"}
            assert await alone.thread("t").load("left") == "only the primary has it"

    run(rig, scenario)


def test_a_process_that_still_believes_in_the_old_primary_is_refused_or_follows(rig):
    async def scenario(rig):
        stale = await rig.open(health_check_interval_s=100)
        fresh = await rig.open(health_check_interval_s=100)
        first = await stale.thread("t").save(1)
        await fresh.promote()
        second = await fresh.thread("t").save(2)
        with pytest.raises(outlive.HeadMoved):
            await stale.thread("t").save("late", expect=first.id)
        assert (await stale.replication_status()).active == "secondary"
        await stale.thread("t").save(3, expect=second.id)
        assert await fresh.thread("t").load() == 3

    run(rig, scenario)


def test_a_process_that_missed_the_failback_goes_back_too(rig):
    async def scenario(rig):
        stale = await rig.open(health_check_interval_s=100)
        fresh = await rig.open(health_check_interval_s=100)
        await fresh.promote()
        assert (await stale.replication_status()).active == "secondary"
        await stale.thread("t").save(1)
        await fresh.failback()
        second = await stale.thread("t").save(2)
        assert second.epoch == 2
        assert await (await rig.alone(0)).thread("t").load() == 2

    run(rig, scenario)


def test_a_failback_that_died_half_way_is_finished_by_whoever_comes_next(rig):
    async def scenario(rig):
        store = await rig.open(health_check_interval_s=100)
        await store.promote()
        await store.thread("t").save(1, id="one")
        pair = store._pair._switch

        async def die(*args):
            raise outlive.errors.StoreUnavailable("killed here")

        whole, pair._finish_failback = pair._finish_failback, die
        with pytest.raises(outlive.errors.StoreUnavailable, match="killed here"):
            await store.failback()
        other = await rig.open(health_check_interval_s=100)  # finds it announced
        assert (await other.replication_status()).active == "primary"
        assert await other.thread("t").load() == 1
        pair._finish_failback = whole
        assert (await store.thread("t").save(2, id="two")).epoch == 2
        assert await ids(other, "t") == ["two", "one"]

    run(rig, scenario)


def test_a_process_that_died_while_it_raised_the_epoch_keeps_nobody_from_starting_runs(rig):
    async def scenario(rig):
        store = await rig.open(health_check_interval_s=100)
        await store.thread("t").save(1)
        stores, write = store._pair.stores, store._pair.stores.write

        async def die(role, old, new):
            if role == 1:
                raise outlive.errors.StoreUnavailable("killed here")
            return await write(role, old, new)

        stores.write = die
        with pytest.raises(outlive.errors.StoreUnavailable, match="killed here"):
            await store._pair._switch.raise_epoch(3)
        other = await rig.open(health_check_interval_s=100)
        live = await other.run("t").start()
        assert (await live.save(2)).epoch == 4
        await live.complete()
        assert (await other.promote()).epoch == 5

    run(rig, scenario)


# Runs --------------------------------------------------------------------------------------------------------------


def test_a_live_run_goes_on_over_a_failover_and_back(rig):
    async def scenario(rig):
        store = await rig.open(auto_failover=True, failback_delay_s=100)
        run = store.run("r", run_id="run", lease_s=60)
        await run.start()
        assert await run.step("one", lambda: 1) == 1
        rig.cut(rig.primary)
        assert await run.step("two", lambda: 2) == 2
        await run.save({"k": 2})
        rig.heal()
        await store.failback()
        assert await run.step("three", lambda: 3) == 3
        await run.complete("end")
        for which in (0, 1):
            (found,) = [one async for one in (await rig.alone(which)).runs()]
            assert (found.status, found.result) == ("completed", "end")

    run(rig, scenario)


def test_after_a_failover_dead_runs_are_left_alone_unless_that_is_allowed(rig):
    async def scenario(rig):
        store = await rig.open()
        run = store.run("r", run_id="run", agent="planner")
        await run.start()
        await run.release()
        await store.promote()
        report = await store.recover({"planner": lambda run: "never"})
        assert [(one.run_id, one.code) for one in report.skipped] == [("run", "primary_unreachable")]
        report = await store.recover({"planner": lambda run: "done"}, after_failover=True)
        assert [one.id for one in report.resumed] == ["run"]
        await store.failback()
        assert [(one.id, one.status) async for one in store.runs()] == [("run", "completed")]

    run(rig, scenario)


@pytest.mark.parametrize("mode", [{}, {"mode": "async"}], ids=["sync", "async"])
def test_a_live_run_is_not_taken_over_by_a_process_that_missed_a_change_of_places(rig, mode):
    """Its lease is renewed where the run is now, and seems to have run out in the store that was left."""

    async def scenario(rig):
        stale = await rig.open(health_check_interval_s=100, **mode)
        fresh = await rig.open(health_check_interval_s=100, **mode)
        run = fresh.run("r", run_id="run", lease_s=2.4)
        await run.start()
        for change in (fresh.promote, fresh.failback):
            await change()
            await rig.driver.sleep(2.6)
            with pytest.raises(outlive.RunBusy):
                await stale.run("r", run_id="run").start()
            await run.save({"after": change.__name__})
        await run.complete("end")
        await drained(rig, fresh)
        for which in (0, 1):
            (found,) = [one async for one in (await rig.alone(which)).runs()]
            assert (found.status, found.result) == ("completed", "end")

    run(rig, scenario)


def test_when_the_secondary_is_down_nothing_is_claimed_in_strict_mode(rig):
    async def scenario(rig):
        store = await rig.open(health_check_interval_s=100)
        await store.thread("r").save(1)
        rig.cut(rig.secondary)
        with pytest.raises(outlive.NotReplicated):
            await store.run("r", run_id="run").start()
        assert [one async for one in (await rig.alone(0)).runs()] == []

    run(rig, scenario)


def test_a_run_that_was_claimed_after_the_failover_is_lost_to_its_old_owner(rig):
    async def scenario(rig):
        stale = await rig.open(health_check_interval_s=100)
        fresh = await rig.open(health_check_interval_s=100)
        old = stale.run("r", run_id="run", lease_s=0.3)
        await old.start()
        for n in range(5):
            await old.save({"n": n})  # its fence and revision are far ahead of those that the secondary gives
        stale._heart._stop()
        await fresh.promote()
        await rig.driver.sleep(0.4)
        new = fresh.run("r", run_id="run")
        await new.start()
        with pytest.raises(outlive.LeaseLost):
            await old.save({"n": "zombie"})
        await new.save({"n": "new"})
        await fresh.failback()
        await new.save({"n": "newer"})
        await new.complete()
        assert await (await rig.alone(0)).thread("r").load() == {"n": "newer"}

    run(rig, scenario)
