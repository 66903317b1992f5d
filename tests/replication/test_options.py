"""Opening a pair: wrong options are refused with the sentence that says how to fix them, and so are stores that do not belong together."""

import subprocess
import sys

import pytest

import outlive
from outlive.backend import RESERVED, Commit, EntryQuery, Removal, ThreadKey
from outlive.testing.interposed import Interposed
from outlive.testing.patience import eventually
from rig.proxy import FaultProxy
from rig.replicas import hasty, open_pair

WRONG = [
    ({"mode": "both"}, "mode must be 'sync' or 'async'"),
    ({"mode": None}, "mode must be 'sync' or 'async'"),
    ({"on_secondary_down": "ignore"}, "on_secondary_down must be 'fail' or 'queue'"),
    ({"mode": "async", "on_secondary_down": "fail"}, '"async" always queues'),
    ({"enabled": "perhaps"}, "enabled must be True or False"),
    ({"health_check_interval_s": 0}, "health_check_interval_s must be a number of seconds"),
    ({"health_check_interval_s": "soon"}, "health_check_interval_s must be a number of seconds"),
    ({"auto_failover": 1}, "auto_failover must be True or False"),
    ({"max_failover_attempts": -1}, "max_failover_attempts must be a whole number, 0 or more"),
    ({"max_failover_attempts": 1.5}, "max_failover_attempts must be a whole number"),
    ({"failback_delay_s": -1}, "failback_delay_s must be a number of seconds, 0 or more"),
    ({"failback_delay_s": float("nan")}, "failback_delay_s must be a number of seconds"),
]


@pytest.mark.parametrize("options, sentence", WRONG)
def test_a_wrong_option_fails_at_open(options, sentence):
    with pytest.raises(outlive.errors.BadArgument, match=sentence):
        open_pair("memory:", "memory:", **options)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"replication": "sync"}, r"replication must be an outlive.Replication\(secondary\)"),
        ({"replication": outlive.Replication("memory:"), "single": True}, "single=True uses one store alone"),
    ],
)
def test_a_second_store_is_named_by_a_replication(options, sentence):
    with pytest.raises(outlive.errors.BadArgument, match=sentence):
        outlive.open("memory:", **options)


@pytest.mark.parametrize("first, second", [("null:", "memory:"), ("memory:", "null:")])
def test_a_store_that_keeps_nothing_is_none_of_two(first, second):
    with pytest.raises(outlive.errors.BadURL, match="null: keeps nothing"):
        open_pair(first, second)


def test_a_store_is_not_its_own_secondary(tmp_path):
    with pytest.raises(outlive.errors.BadURL, match="the secondary is the primary"):
        open_pair(f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/a.db")


def test_what_expires_is_not_replicated():
    with pytest.raises(outlive.errors.BadURL, match="ttl_s and replication= exclude each other"):
        open_pair("redis://localhost?ttl_s=60", "memory:")


def test_options_of_both_stand_beside_the_first_url():
    with pytest.raises(outlive.errors.BadURL, match="option 'tenant' holds for both stores"):
        open_pair("memory:", "memory:?tenant=a")


def test_secrets_of_the_secondary_are_in_no_error():
    with pytest.raises(outlive.OutliveError) as error:
        open_pair("memory:", "postgresql://me:SECRET@127.0.0.1:1/x", timeout_s=0.1)
    found = error.value
    while found is not None:
        assert "SECRET" not in f"{found!r} {found}"
        found = found.__cause__ or found.__context__


def wait_until_whole(store):
    eventually(lambda: store.replication_status().is_caught_up)


def urls(folder, *names):
    return [f"sqlite:///{folder}/{name}.db" for name in names]


def test_stores_of_different_pairs_are_refused(tmp_path):
    a, b, c, d = urls(tmp_path, "a", "b", "c", "d")
    open_pair(a, b).close()
    open_pair(c, d).close()
    with pytest.raises(outlive.errors.BadURL, match="another naming key"):
        open_pair(a, d)


def test_a_secondary_that_was_a_store_of_its_own_can_be_copied_into_the_primary_as_the_error_says(tmp_path):
    a, b, c = urls(tmp_path, "a", "b", "c")
    for url in (a, b):
        with outlive.open(url) as store:
            store.thread(f"of {url[-4]}").save({"text": "x" * 3000, "url": url})
    with pytest.raises(
        outlive.errors.BadURL,
        match="copy them into the primary first: outlive copy PRIMARY --store SECONDARY",
    ):
        open_pair(a, b)
    done = subprocess.run(
        [sys.executable, "-m", "outlive", "copy", a, "--store", b], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with open_pair(a, c, health_check_interval_s=0.05) as store:
        wait_until_whole(store)
        store.promote()
        assert {info.id for info in store.threads()} == {"of a", "of b"}
        assert store.thread("of b").load()["url"] == b
        assert store.verify().problems == ()


def test_exchanged_roles_are_refused(tmp_path):
    a, b = urls(tmp_path, "a", "b")
    open_pair(a, b).close()
    with pytest.raises(outlive.errors.BadURL, match="exchange the two URLs"):
        open_pair(b, a)


def test_two_pairs_of_one_naming_key_are_told_apart(tmp_path):
    a, b, c = urls(tmp_path, "a", "b", "c")
    open_pair(a, b).close()
    with outlive.open(a) as store:
        store.backup(c)
    (tmp_path / "a.db").rename(tmp_path / "kept.db")
    with pytest.raises(outlive.errors.BadURL):
        open_pair(c, b)


def test_a_store_without_a_secondary_says_how_to_get_one():
    with outlive.open("memory:") as store:
        for call in (store.promote, store.failback, store.replication_status):
            with pytest.raises(outlive.errors.NoSecondary, match=r"open it with outlive\.open"):
                call()


def test_a_secondary_that_is_added_later_gets_everything(tmp_path):
    a, b = urls(tmp_path, "a", "b")
    with outlive.open(a) as store:
        for n in range(70):
            store.thread(f"{n}").save({"n": n, "text": "x" * 3000})
        with store.run("r", run_id="run") as run:
            run.step("one", lambda: 1)
    with open_pair(a, b, health_check_interval_s=0.05) as store:
        store.thread("0").save("while it is copied")
        wait_until_whole(store)
    with outlive.open(b) as alone:
        assert len(list(alone.threads())) == 71
        assert alone.thread("69").load()["n"] == 69
        assert alone.thread("0").load() == "while it is copied"
        assert [run.status for run in alone.runs()] == ["completed"]
        assert alone.verify().problems == ()


def test_a_secondary_that_does_not_have_everything_is_not_promoted(tmp_path, tuned):
    a, b = urls(tmp_path, "a", "b")
    with outlive.open(a) as store:
        store.thread("t").save(1)
    tuned(replication_beat_s=60)
    with open_pair(a, b, health_check_interval_s=60) as store:
        assert not store.replication_status().is_caught_up

        with pytest.raises(outlive.errors.StoreUnavailable, match="does not have everything yet"):
            store.promote()
        with pytest.warns(UserWarning, match="it does not have everything yet"):
            store.close()


def test_while_replication_is_switched_off_nothing_is_and_afterwards_everything(tmp_path):
    a, b = urls(tmp_path, "a", "b")
    with open_pair(a, b) as store:
        store.thread("kept").save(1)
        store.thread("gone").save(1)
    with open_pair(a, b, enabled=False) as store:
        store.thread("kept").save(2)
        store.thread("new").save(3)
        store.thread("gone").delete()
        assert not store.replication_status().is_enabled
    with outlive.open(b) as alone:
        assert (alone.thread("kept").load(), alone.thread("new").load()) == (1, None)
    with open_pair(a, b, health_check_interval_s=0.05) as store:
        store.thread("kept").save(4)
        wait_until_whole(store)
    with outlive.open(b) as alone:
        assert {info.id: alone.thread(info.id).load() for info in alone.threads()} == {"kept": 4, "new": 3}


def test_a_secondary_that_is_added_after_a_rotation_can_be_opened_with_the_new_key_alone(tmp_path):
    a, b = urls(tmp_path, "a", "b")
    keys = {name: outlive.KeyRing.new_key() for name in ("old", "new")}
    ring = outlive.KeyRing({"new": keys["new"]})
    with outlive.open(a, key=outlive.KeyRing({"old": keys["old"]})) as store:
        store.thread("t").save("secret")
    with outlive.open(a, key=outlive.KeyRing(keys)) as store:
        store.rotate()
    with open_pair(a, b, key=ring, health_check_interval_s=0.05) as store:
        wait_until_whole(store)
    with outlive.open(b, key=ring) as alone:
        assert alone.thread("t").load() == "secret"


def test_records_of_the_store_itself_are_carried_over_too(tmp_path):
    a, b = urls(tmp_path, "a", "b")
    with open_pair(a, b, mode="async", retain=outlive.Retain(keep_last=1)) as store:
        store.thread("t").save(1)
        store.thread("t").save(2)
        store.sweep()
    for url in (a, b):
        with outlive.open(url) as alone:
            backend = alone._store._engine.backend
            assert [one.seq for one in alone.thread("t").history()] == [2]
            assert [backend.local.entries(EntryQuery(tenant, "outbox")) for tenant in ("", RESERVED)] == [
                [],
                [],
            ]


# Switched off, and what was lost ----------------------------------------------------------------------------------


def test_a_pair_that_began_with_replication_switched_off_is_filled_when_it_is_switched_on(tmp_path):
    a, b = urls(tmp_path, "a", "b")
    with open_pair(a, b, enabled=False) as store:
        store.thread("t").save(1)
    with open_pair(a, b, health_check_interval_s=0.05) as store:
        wait_until_whole(store)
        store.promote()
        assert store.thread("t").load() == 1


def test_what_was_saved_in_the_secondary_while_replication_was_off_is_in_the_primary_after_failback(tmp_path):
    a, b = urls(tmp_path, "a", "b")
    with open_pair(a, b) as store:
        store.thread("t").save(1)
        store.promote()
    with open_pair(a, b, enabled=False) as store:
        store.thread("t").save(2)
        for change in (store.promote, store.failback):
            with pytest.raises(outlive.errors.BadArgument, match="enabled=True"):
                change()
    with open_pair(a, b) as store:
        store.failback()
        assert store.thread("t").load() == 2


@pytest.mark.parametrize("is_failed_over", [False, True])
def test_replication_can_be_switched_off_while_the_other_store_is_down(
    postgres_server, postgres_store, tmp_path, is_failed_over
):
    """That is when one would: the other store cannot be told, and gets everything all the same."""
    local, quick = f"sqlite:///{tmp_path}/a.db", {"timeout_s": 30, "health_check_interval_s": 0.05}
    with FaultProxy(postgres_server.host, postgres_server.port) as network:
        far = hasty(network.through(postgres_store))
        first, second = (far, local) if is_failed_over else (local, far)
        with open_pair(first, second, **quick) as store:
            store.thread("t").save(1)
            if is_failed_over:
                store.promote()
        network.mode = "refuse"
        network.drop_connections()
        with open_pair(first, second, enabled=False, **quick) as store:
            store.thread("t").save(2)
        network.mode = "pass"
        with open_pair(first, second, **quick) as store:
            wait_until_whole(store)
            store.failback() if is_failed_over else store.promote()
            assert store.thread("t").load() == 2


def test_an_active_secondary_that_lost_all_it_had_is_not_passed_over_in_silence(valkey_server, tmp_path):
    """The primary has what there was before the failover: whether to continue with that is for a person to decide."""
    pair = {
        "primary": f"sqlite:///{tmp_path}/a.db",
        "secondary": valkey_server.url,
        "health_check_interval_s": 0.05,
    }
    lost = "the secondary was active and has lost its data"
    with open_pair(**pair) as store:
        store.thread("t").save("before")
        store.promote()
        store.thread("t").save("later")
        eventually(lambda: not store.replication_status().queued)
        valkey_server.call("FLUSHALL")
        with pytest.raises(outlive.errors.StoreUnavailable, match=lost):
            store.thread("t").load()
        with pytest.raises(outlive.errors.StoreUnavailable, match=lost):
            store.thread("u").save(1)
        assert lost in store.replication_status().last_error
    with pytest.raises(outlive.errors.StoreUnavailable, match=lost):
        open_pair(**pair)
    with open_pair(**pair, enabled=False) as store:
        assert store.thread("t").load() == "later"
    with open_pair(**pair) as store:
        wait_until_whole(store)
        assert store.replication_status().active == "primary"
        store.promote()
        assert store.thread("t").load() == "later"


def test_a_primary_that_lost_all_it_had_before_the_secondary_had_everything_is_an_error(
    valkey_server, tmp_path, tuned
):
    pair = {"primary": valkey_server.url, "secondary": f"sqlite:///{tmp_path}/b.db"}
    with outlive.open(valkey_server.url) as store:
        store.thread("t").save("before")
    tuned(replication_beat_s=60)
    store = open_pair(**pair, health_check_interval_s=60)
    valkey_server.call("FLUSHALL")
    with pytest.raises(outlive.errors.StoreUnavailable, match="the primary was active and has lost its data"):
        store.thread("t").load()
    with pytest.warns(UserWarning, match="stays in the primary"):
        store.close()
    with pytest.raises(outlive.errors.StoreUnavailable, match="the primary was active and has lost its data"):
        open_pair(**pair)


def test_a_secondary_that_loses_all_it_had_while_it_is_filled_is_filled_from_the_beginning(tmp_path):
    a, b = urls(tmp_path, "a", "b")
    with outlive.open(a) as store:
        for n in range(9):
            store.thread(f"{n}").save({"n": n, "text": "x" * 3000})

    found = []

    async def lose():
        with outlive.open(b) as alone:
            found.extend(info.id for info in alone.threads())
            lost = [ThreadKey.of("", id) for id in (*found, "")]  # the record of the pair too
            await alone._store._engine.backend.inner.commit_all(
                [Commit(key, removal=Removal(everything=True)) for key in lost]
            )

    with open_pair(a, b, health_check_interval_s=0.05) as store:
        stores = store._store._pair.stores
        watched = Interposed(stores.both[0])
        watched.before_call(40, lose)
        stores.both = (watched, stores.both[1])
        eventually(lambda: watched._at_call is None and store.replication_status().is_caught_up)
    with outlive.open(b) as alone:
        assert {alone.thread(info.id).load()["n"] for info in alone.threads()} == set(range(9))
    assert 0 < len(found) < 9
