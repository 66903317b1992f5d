"""One store of a pair that is opened by itself: it is read, and nothing that is written to it is lost."""

import asyncio

import pytest

import outlive
from outlive.runtime.runtime import run_now
from outlive.testing.patience import eventually
from rig.replicas import Disk, open_pair

QUICK = {"timeout_s": 30, "health_check_interval_s": 0.05, "auto_failover": False}
ROLES = ("primary", "secondary")
DEEDS = {
    "save": lambda store: store.thread("t").save({"n": "alone"}, id="alone"),
    "save into a new thread": lambda store: store.thread("new").save(1, id="alone"),
    "remove": lambda store: store.thread("t").delete_checkpoints(["1"]),
    "prune": lambda store: store.thread("t").prune(keep_last=1),
    "delete": lambda store: store.delete("u"),
    "fork": lambda store: store.thread("t").fork("fork"),
    "metadata": lambda store: store.thread("t").set_metadata({"title": "alone"}),
    "run": lambda store: store.run("t").start(),
    "lock": lambda store: store.lock("t").__enter__(),
}


@pytest.fixture
def urls(tmp_path):
    return [f"sqlite:///{tmp_path}/{name}.db" for name in ("a", "b")]


def build(urls, *, is_failed_over=False, **options):
    with open_pair(urls[0], urls[1], **QUICK, **options) as store:
        for id in ("t", "u"):
            for n in range(3):
                store.thread(id).save({"n": n, "text": "x" * 1000 * n}, id=f"{n}")
        if is_failed_over:
            store.promote()
            store.thread("t").save(3, id="3")


def view(store):
    return {info.id: [one.id for one in store.thread(info.id).history()] for info in store.threads()}


def wait_until_whole(store):
    def is_caught_up():
        status = store.replication_status()
        return status.is_caught_up and not status.queued

    eventually(is_caught_up)


@pytest.mark.parametrize("is_failed_over", [False, True])
@pytest.mark.parametrize("role", [0, 1])
def test_one_store_of_a_pair_is_read_alone_and_not_written(urls, role, is_failed_over):
    build(urls, is_failed_over=is_failed_over)
    with outlive.open(urls[role]) as store:
        before = view(store)
        assert store.thread("u").load() == {"n": 2, "text": "x" * 2000}
        assert store.verify().problems == ()
        for deed in DEEDS.values():
            with pytest.raises(
                outlive.errors.ReplicaOpenedAlone, match=r"outlive\.open\(primary, replication="
            ) as refused:
                deed(store)
            assert (refused.value.role, refused.value.active) == (ROLES[role], ROLES[is_failed_over])
        assert view(store) == before
        assert store.thread("t").prune(keep_last=1, dry_run=True).checkpoints > 0


def test_one_store_of_a_pair_is_copied_alone(urls, tmp_path):
    build(urls)
    with outlive.open(urls[1]) as store:
        store.backup(f"sqlite:///{tmp_path}/copy.db")
    with outlive.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert view(copy) == {id: ["2", "1", "0"] for id in ("t", "u")}
        copy.thread("t").save("a store of its own")
        with pytest.raises(outlive.errors.ReplicaOpenedAlone):
            copy.backup(urls[0])


def test_an_encrypted_store_of_a_pair_is_neither_written_nor_rotated_alone(urls):
    keys = {name: outlive.KeyRing.new_key() for name in ("old", "new")}
    build(urls, key=outlive.KeyRing({"old": keys["old"]}))
    with outlive.open(urls[0], key=outlive.KeyRing(keys)) as store:
        assert store.thread("t").load()["n"] == 2
        for deed in (lambda: store.thread("t").save(4), store.rotate):
            with pytest.raises(outlive.errors.ReplicaOpenedAlone):
                deed()
    with outlive.open(urls[0], key=outlive.KeyRing({"old": keys["old"]})) as store:
        assert store.thread("t").load()["n"] == 2


def test_a_store_of_a_pair_that_is_opened_async_is_not_written_alone(urls):
    build(urls)

    async def scenario():
        async with outlive.open_async(urls[0]) as store:
            assert (await store.thread("t").load())["n"] == 2
            with pytest.raises(outlive.errors.ReplicaOpenedAlone):
                await store.thread("t").save(4)

    asyncio.run(scenario())


def test_other_tenants_of_a_store_are_no_pair(urls):
    build(urls)
    with outlive.open(urls[0], tenant="other") as store:
        store.thread("t").save(1)
        assert store.thread("t").load() == 1
        with pytest.raises(outlive.errors.NoSecondary):
            store.replication_status()
    with open_pair(urls[0], urls[1], **QUICK) as store:
        assert store.thread("t").load()["n"] == 2


@pytest.mark.parametrize("is_failed_over", [False, True])
@pytest.mark.parametrize("deed", list(DEEDS)[:-2])
def test_what_the_active_store_did_alone_on_purpose_is_in_both_when_the_pair_is_opened_again(
    urls, deed, is_failed_over
):
    build(urls, is_failed_over=is_failed_over)
    with outlive.open(urls[is_failed_over], single=True) as store:
        DEEDS[deed](store)
        after, title = view(store), store.thread("t").metadata()
    with open_pair(urls[0], urls[1], **QUICK) as store:
        assert store.replication_status().is_failed_over == is_failed_over
        wait_until_whole(store)
    for url in urls:
        with outlive.open(url) as store:
            assert (view(store), store.thread("t").metadata()) == (after, title)
            assert store.verify().problems == ()


@pytest.mark.parametrize("is_failed_over", [False, True])
def test_the_store_that_is_not_active_is_not_written_alone_whatever_one_says(urls, is_failed_over):
    build(urls, is_failed_over=is_failed_over)
    with outlive.open(urls[not is_failed_over], single=True) as store:
        with pytest.raises(outlive.errors.ReplicaOpenedAlone, match="is active"):
            store.thread("t").save(1)
        assert store.thread("t").load() is not None


def test_what_a_primary_did_alone_that_did_not_know_it_was_left_comes_over_at_failback(urls, tmp_path):
    build(urls)
    with open_pair(urls[0], urls[1], **QUICK) as store:
        with Disk(tmp_path / "a.db") as disk:
            disk.mode = "refuse"
            store.promote()
            store.thread("t").save("later", id="later")
            # Nothing is transferred before the failback: the primary would be in the later epoch.
            upkeep = store._store._pair._upkeep
            upkeep.is_closed = True
            run_now(upkeep.beat())  # does nothing, but after a beat that has begun already
        with outlive.open(urls[0], single=True) as alone:
            alone.thread("t").save("alone", id="alone")
            alone.thread("new").save(1, id="new")
            alone.delete("u")
        store.failback()
        assert store.thread("t").load() == "later"
        assert view(store) == {"t": ["later", "alone", "2", "1", "0"], "new": ["new"]}
    with outlive.open(urls[1]) as other:
        assert view(other) == {"t": ["later", "alone", "2", "1", "0"], "new": ["new"]}


def test_a_store_that_is_no_pair_may_be_opened_with_single_and_without(urls):
    for number, options in enumerate(({"single": True}, {}, {"single": True})):
        with outlive.open(urls[0], **options) as store:
            assert store.thread("t").load() == (number - 1 if number else None)
            store.thread("t").save(number)
    with outlive.open(urls[0]) as store:
        assert len(view(store)["t"]) == 3
