"""The command line on two stores: how they are, changing places, and a mistake in a URL that must move nothing."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import time

import pytest

import outlive
from outlive.layers.replication.pair import end_pair
from outlive.runtime.runtime import run_now
from outlive.testing.interposed import Interposed
from rig.proxy import FaultProxy
from rig.replicas import open_pair
from rig.world import build

pytestmark = pytest.mark.heavy

QUICK = "timeout_s=3"


class Two:
    """The program on a primary and a secondary, which the environment names."""

    def __init__(self, program, primary, secondary):
        self.program = program
        self.folder = program.folder
        self.env = {"OUTLIVE_STORE": primary, "OUTLIVE_SECONDARY": secondary}

    def __call__(self, *arguments, **options):
        return self.program(*arguments, **self.env, **options)


@pytest.fixture(params=["sqlite", "postgresql"])
def two(request, program):
    """A store with something in it, and a secondary of either kind that is not there yet."""
    primary, secondary = (f"sqlite:///{program.folder}/{name}.db" for name in ("near", "far"))
    if request.param == "postgresql":
        secondary = request.getfixturevalue("postgres_store")
    build(primary)
    return Two(program, primary, secondary)


@pytest.fixture
def joined(two):
    assert two("replication", "--join", "--yes", "-q").code == 0
    return two


def items(ended):
    return json.loads(ended.out)["items"]


def states(two, **options):
    return [item["state"] for item in items(two("replication", "--json", **options))]


def test_a_pair_is_made_by_being_told_and_then_shown(two):
    before = two("replication")
    assert before.code == 1
    assert states(two) in (["not joined", "missing"], ["not joined", "not joined"])
    assert before.out.splitlines()[-1].endswith(
        "outlive replication --join copies the primary to the secondary"
    )
    asked = two("replication", "--join")
    assert (asked.code, asked.out) == (2, "")
    assert "this would make" in asked.err
    assert "outlive replication --leave ends that; add --yes" in asked.err
    assert states(two) in (["not joined", "missing"], ["not joined", "not joined"]), "nothing was done"
    made = two("replication", "--join", "--yes")
    assert (made.code, made.err) == (0, "")
    heading, primary, secondary = made.out.splitlines()
    assert heading.split() == ["STORE", "STATE", "EPOCH", "QUEUED", "URL"]
    assert primary.split()[:4] == ["primary", "active", "0", "0"]
    assert secondary.split()[:4] == ["secondary", "standby", "0", "0"]
    assert two("ls", "-q").out == two.program("ls", "-q", "--store", two.env["OUTLIVE_SECONDARY"]).out
    assert two("replication", "-q").out == ""


def test_looking_joins_nothing(two):
    for arguments in (["ls"], ["verify"], ["promote", "--yes"], ["rm", "trip-42", "--yes"]):
        ended = two(*arguments)
        assert ended.code == 3
        assert "outlive replication --join" in ended.err
    assert not (two.folder / "far.db").exists()
    with outlive.open(two.env["OUTLIVE_STORE"]) as store:
        assert len(list(store.threads())) == 5


def test_what_is_done_is_done_in_both(joined):
    assert joined("fork", "trip-42", "forked").code == 0
    assert joined("rm", "trip-7", "--yes").code == 0
    for url in joined.env.values():
        assert joined.program("ls", "-q", "--store", url).out.count("\n") == 5
        assert "forked" in joined.program("ls", "-q", "--store", url).out


def test_the_stores_change_places_when_they_are_told(joined):
    asked = joined("promote")
    assert (asked.code, asked.out) == (2, "")
    assert "this would make the secondary" in asked.err
    assert states(joined) == ["active", "standby"]
    assert joined("failback", "--yes").out == "the primary is active already\n"
    assert joined("promote", "--yes", "--json").items == [{"active": "secondary", "epoch": 1, "transferred": 0, "branched": []}]  # fmt: skip
    assert joined("promote").out == "the secondary is active already\n"
    assert joined("replication").code == 1
    assert states(joined) == ["standby", "active"]
    assert joined("fork", "trip-42", "forked").code == 0
    assert joined("failback").code == 2
    assert joined("failback", "--yes").out.startswith("the primary is active now, in epoch 2;")
    assert joined("replication").code == 0
    assert "forked" in joined.program("ls", "-q", "--store", joined.env["OUTLIVE_STORE"]).out


def test_a_person_is_asked_before_the_stores_change_places(joined):
    with joined.program.on_terminal("promote", **joined.env) as terminal:
        terminal.wait_for("This will make the secondary").wait_for("Continue?").type("n\n")
        assert terminal.end() == 1
    assert states(joined) == ["active", "standby"]
    with joined.program.on_terminal("promote", **joined.env) as terminal:
        terminal.wait_for("Continue?").type("y\n")
        assert terminal.end() == 0
    assert states(joined) == ["standby", "active"]


@pytest.mark.parametrize("kind", ["", "async "])
def test_dead_runs_are_left_alone_after_a_failover_unless_asked(joined, kind):
    (joined.folder / "agents.py").write_text(f"{kind}def go_on(run):\n    return 'done'\n")
    primary, secondary = joined.env.values()
    with open_pair(primary, secondary) as store:
        store.run("t", run_id="r-1", agent="planner").start().release()
    joined("promote", "--yes")
    assert joined("runs", "--json").items[0]["standing"] == "released"
    call = ("recover", "--handlers", "agents:go_on", "--json")
    refused = joined(*call)
    assert refused.code == 1
    assert [(item["outcome"], item["code"]) for item in refused.items] == [("skipped", "primary_unreachable")]
    assert [item["outcome"] for item in joined(*call, "--after-failover").items] == ["resumed"]


def test_doctor_tells_how_a_pair_is(joined):
    def pair(*arguments, **options):
        found = items(joined("doctor", "--json", *arguments, **options))
        return next((item["level"], item["message"]) for item in found if item["check"] == "pair")

    assert pair() == ("ok", "primary active, secondary standby; epoch 0")
    alone = pair("--store", joined.env["OUTLIVE_STORE"])
    assert alone == ("note", "this store is the primary of a pair, in epoch 0, and was opened alone")
    joined("promote", "--yes")
    assert pair() == ("warning", "primary standby, secondary active; epoch 1")


@pytest.mark.parametrize("which", ["primary", "secondary", "exchanged", "same"])
def test_a_mistake_in_a_url_moves_nothing(joined, which):
    primary, secondary = joined.env.values()
    typo = f"sqlite:///{joined.folder}/typo.db"
    urls = {
        "primary": (typo, secondary),
        "secondary": (primary, typo),
        "exchanged": (secondary, primary),
        "same": (primary, primary),
    }[which]
    for command in (["ls"], ["rm", "trip-42", "--yes"]):
        assert joined.program(*command, "--store", urls[0], "--secondary", urls[1]).code in (2, 3)
    assert not (joined.folder / "typo.db").exists()
    assert states(joined) == ["active", "standby"]
    assert "trip-42" in joined("ls", "-q").out


def test_a_primary_that_has_lost_everything_is_left_and_filled_again(joined):
    for name in os.listdir(joined.folder):
        if name.startswith("near.db"):
            os.unlink(joined.folder / name)
    gone = joined("ls")
    assert (gone.code, "if its data is lost, outlive promote" in gone.err) == (3, True)
    assert joined("promote", "--yes").code == 0
    assert len(joined("ls", "-q").out.splitlines()) == 5
    assert joined("failback", "--yes").code == 0
    assert states(joined) == ["active", "standby"]
    assert joined.program("verify", "--store", joined.env["OUTLIVE_STORE"]).out.startswith("ok: 5 threads")


@pytest.fixture
def distant(program, postgres_store, postgres_server):
    """A pair whose primary is behind a network that fails on demand."""
    with FaultProxy(postgres_server.host, postgres_server.port) as network:
        through = network.through(postgres_store)
        primary = f"{through}{'&' if '?' in through else '?'}{QUICK}"
        build(primary)
        two = Two(program, primary, f"sqlite:///{program.folder}/far.db")
        two.network = network
        assert two("replication", "--join", "--yes", "-q").code == 0
        yield two


@pytest.mark.long
def test_looking_never_fails_over_but_promote_does(distant):
    with distant.network.refusing():
        looked = distant("ls")
        assert (looked.code, "outlive promote makes the secondary active" in looked.err) == (3, True)
        assert states(distant) == ["unreachable", "standby"]
        assert items(distant("doctor", "--json"))[3]["fix"] == "outlive promote makes the secondary active"
        asked = distant("promote")
        assert "the primary is unreachable" in asked.err
        assert distant("promote", "--yes").code == 0
        assert states(distant) == ["unreachable", "active"]
        forked = distant("fork", "trip-42", "forked")
        assert (
            forked.code,
            "outlive: what is queued for the primary stays in the secondary" in forked.err,
        ) == (0, True)
        assert len(distant("ls", "-q").out.splitlines()) == 6
        time.sleep(2.1)  # a younger note might be on its way
        secondary = items(distant("replication", "--json"))[1]
        assert (secondary["queued"] > 0, secondary["queued_bytes"] > 0, secondary["lag_s"] > 2) == (True,) * 3
        refused = distant("failback", "--yes")
        assert (refused.code, refused.out) == (3, "")
    assert distant("failback", "--yes").code == 0
    assert states(distant) == ["active", "standby"]
    assert "forked" in distant.program("ls", "-q", "--store", distant.env["OUTLIVE_STORE"]).out


def test_a_secondary_that_is_down_is_told(program):
    primary = f"sqlite:///{program.folder}/near.db"
    build(primary)
    two = Two(program, f"{primary}?timeout_s=0.3", "postgresql://localhost:1/none")
    assert states(two) == ["not joined", "unreachable"]
    assert two("replication", "--join", "--yes").code == 3


def test_a_pair_that_is_encrypted_is_looked_at_without_keys(program):
    key = random.Random(3).randbytes(32)
    two = Two(program, *(f"sqlite:///{program.folder}/{name}.db" for name in ("near", "far")))
    with open_pair(
        two.env["OUTLIVE_STORE"], two.env["OUTLIVE_SECONDARY"], key=outlive.KeyRing({"k": key})
    ) as store:
        store.thread("t").save({"n": 1})
    assert two("replication").code == 0
    assert "encrypted under key 'k', which was not given" in two("ls").err
    for url in two.env.values():
        assert program("verify", "--store", url).out.startswith("ok: 1 thread, ")
    assert two("verify").out.startswith("ok: 1 thread, ")
    keys = "k:" + base64.b64encode(key).decode()
    assert two("promote", "--yes", OUTLIVE_KEYS=keys).code == 0
    assert two("show", "t", "--path", "n", OUTLIVE_KEYS=keys).out == "1\n"


def test_a_pair_that_is_paused_stays_so(joined):
    primary, secondary = joined.env.values()
    with open_pair(primary, secondary, enabled=False) as store:
        store.thread("alone").save({"n": 1})
    assert "alone" in joined("ls", "-q").out
    assert states(joined) == ["active", "paused"]
    assert "this would resume replication" in joined("replication", "--join").err
    assert joined("replication", "--join", "--yes").code == 0
    assert joined("replication", "--join").code == 0, "there is nothing to ask when it is so already"
    assert states(joined) == ["active", "standby"]
    assert "alone" in joined.program("ls", "-q", "--store", secondary).out


def test_replication_without_a_second_store_says_how_to_name_one(program):
    build(f"sqlite:///{program.folder}/agent.db")
    ended = program("replication")
    assert (ended.code, "--secondary URL" in ended.err) == (2, True)


def test_a_pair_whose_secondary_is_down_is_written_when_one_says_so(program, postgres_store, postgres_server):
    near = f"sqlite:///{program.folder}/near.db"
    build(near)
    with FaultProxy(postgres_server.host, postgres_server.port) as network:
        two = Two(program, near, network.through(postgres_store))
        assert two("replication", "--join", "--yes", "-q").code == 0
        with network.refusing():
            assert two("fork", "trip-42", "new", "--timeout", "0.3s").code == 3
            assert two("fork", "trip-42", "waits", "--timeout", "2s", "--replication", "queue").code == 0
        assert two("ls", "-q", "--replication", "async").code == 0
    alone = program("ls", "--store", near, "--replication", "queue")
    assert (alone.code, "--secondary URL" in alone.err) == (2, True)


def test_a_store_is_copied_into_a_pair(joined):
    third, fourth = (f"sqlite:///{joined.folder}/{name}.db" for name in ("third", "fourth"))
    assert joined("copy", third, "--target-secondary", fourth, "--verify").out.endswith(
        "the target has no damage\n"
    )
    for url in (third, fourth):
        assert len(joined.program("ls", "-q", "--store", url).out.splitlines()) == 5
    seen = items(joined.program("replication", "--store", third, "--secondary", fourth, "--json"))
    assert [one["state"] for one in seen] == ["active", "standby"]


def test_one_of_two_stores_is_not_changed_behind_the_back_of_the_other(joined):
    for url, role in zip(joined.env.values(), ("primary", "secondary"), strict=True):
        alone = ("--store", url)
        for command in (
            ["rm", "trip-7", "--yes"],
            ["fork", "trip-7", "new"],
            ["prune", "--all", "--keep-last", "1", "--yes"],
        ):
            ended = joined.program(*command, *alone)
            assert (ended.code, f"this store is the {role} of a pair" in ended.err) == (2, True)
        assert joined.program("copy", url, "--store", f"sqlite:///{joined.folder}/near.db").code == 2
        assert joined.program("ls", "-q", *alone).out == joined("ls", "-q").out
        assert joined.program("prune", "--all", "--keep-last", "1", "--dry-run", *alone).code == 0
    assert joined("ls", "--single").code == 0
    assert states(joined) == ["active", "standby"], "who only looks changes nothing"
    assert joined("rm", "trip-7", "--yes", "--single").code == 0
    assert states(joined) == ["active", "paused"]
    assert joined("rm", "trip-42", "--yes").code == 0
    assert joined("replication", "--join", "--yes", "-q").code == 0
    for url in joined.env.values():
        left = joined.program("ls", "-q", "--store", url).out.split()
        assert not {"trip-7", "trip-42"} & {*left}
        assert len(left) == 3


def test_an_active_secondary_that_has_lost_everything_is_given_up_when_one_says_so(program):
    near, far = (f"sqlite:///{program.folder}/{name}.db" for name in ("near", "far"))
    build(near)
    two = Two(program, near, far)
    assert two("replication", "--join", "--yes", "-q").code == 0
    assert two("promote", "--yes").code == 0
    for path in program.folder.glob("far.db*"):
        path.unlink()
    for command in (["ls"], ["failback", "--yes"], ["promote", "--yes"]):
        ended = two(*command)
        assert (
            ended.code,
            "outlive replication --pause continues with the data of the primary" in ended.err,
        ) == (
            3,
            True,
        )
    assert "outlive replication --pause" in two("replication", "--join").err
    asked = two("replication", "--pause")
    assert (asked.code, "what only the secondary had is lost" in asked.err) == (2, True)
    two("replication", "--pause", "--yes")
    assert len(two("ls", "-q").out.splitlines()) == 5
    assert two("replication", "--join", "--yes").code == 0
    assert states(two) == ["active", "standby"]


@pytest.mark.parametrize("active", ["primary", "secondary"])
def test_replication_is_switched_off_and_on_again(joined, active):
    if active == "secondary":
        assert joined("promote", "--yes").code == 0
    assert joined("replication", "--pause").code == 2
    joined("replication", "--pause", "--yes")
    assert sorted(states(joined)) == ["active", "paused"]
    assert joined("fork", "trip-42", "new").code == 0
    assert sorted(states(joined)) == ["active", "paused"]
    joined("replication", "--join", "--yes")
    for url in joined.env.values():
        assert "new" in joined.program("ls", "-q", "--store", url).out.split()


# Ending a pair ---------------------------------------------------------------------------------------------------


def test_a_person_is_asked_before_two_stores_become_a_pair(two):
    with two.program.on_terminal("replication", "--join", columns=300, **two.env) as terminal:
        terminal.wait_for("This will make").wait_for("Continue?").type("n\n")
        assert terminal.end() == 1
    assert states(two)[0] == "not joined"


@pytest.mark.parametrize("active", [0, 1])
def test_a_pair_is_ended_and_its_active_store_goes_on_alone(joined, active):
    alone, old = ([*joined.env.values()] * 2)[active : active + 2]
    if active:
        assert joined("promote", "--yes").code == 0
    assert joined("fork", "trip-42", "last").code == 0
    asked = joined("replication", "--leave")
    assert (asked.code, "this would end the pair" in asked.err) == (2, True)
    with outlive.open(alone) as store, pytest.raises(outlive.errors.ReplicaOpenedAlone):
        store.thread("t").save(1)
    (item,) = items(joined("replication", "--leave", "--yes", "--json"))
    assert (item["alone"], item["old_copy"], item["is_marked"]) == (*map(shown_url, (alone, old)), True)
    with outlive.open(alone) as store:
        assert store.thread("last").exists()
        store.thread("t").save("alone")
        store.delete("trip-7")
        assert store.verify().ok
    assert joined.program("rm", "trip-42", "--yes", "--store", alone).code == 0
    with outlive.open(old) as store:
        assert store.thread("trip-7").load() == {"n": 1}, "an old copy is read"
        with pytest.raises(outlive.errors.ReplicaOpenedAlone, match="this store is an old copy"):
            store.thread("t").save(2)
    for options in ({}, {"enabled": False}):
        with pytest.raises(outlive.errors.StoreUnavailable, match="no pair any more"):
            open_pair(joined.env["OUTLIVE_STORE"], joined.env["OUTLIVE_SECONDARY"], **options)
    assert states(joined) == (["old copy", "alone"] if active else ["alone", "old copy"])
    for command in (["ls"], ["promote", "--yes"], ["failback", "--yes"], ["replication", "--pause", "--yes"]):
        assert joined(*command).code != 0
    assert "ended already" in joined("replication", "--leave").out
    assert "is an old copy" in joined.program("rm", "trip-42", "--yes", "--store", old, "--single").err
    third = f"sqlite:///{joined.folder}/third.db"
    assert joined.program("replication", "--store", alone, "--secondary", third, "--join", "--yes").code == 0
    with open_pair(alone, third) as store:
        store.thread("t").save("again in two")
    with outlive.open(third) as store:
        assert store.thread("t").load() == "again in two"
        assert not store.thread("trip-42").exists()
    assert joined.program("replication", "--store", old, "--secondary", third).code == 2


def shown_url(url):
    return outlive.open(url)._store._settings.url if "?" in url or "@" in url else url


@pytest.mark.parametrize("active", [0, 1])
@pytest.mark.parametrize("options", [{}, {"mode": "async"}], ids=["sync", "async"])
def test_a_program_that_has_the_pair_open_when_it_ends_changes_no_roles(program, active, options):
    urls = [f"sqlite:///{program.folder}/{name}.db" for name in ("near", "far")]
    two = Two(program, *urls)
    with open_pair(urls[0], urls[1], health_check_interval_s=60, **options) as store:
        store.thread("t").save(1)
        if active:
            store.promote()
        assert two("replication", "--leave", "--yes").code == 0
        for change in (store.promote, store.failback):
            with pytest.raises(outlive.errors.StoreUnavailable, match="no pair any more"):
                change()
        with pytest.raises(outlive.StoreError, match="no pair any more"):
            store.run("t").start()
        with pytest.raises(outlive.StoreError, match="no pair any more"):
            store.thread("new").save(1)
        with contextlib.suppress(outlive.StoreError):
            acknowledged = store.thread("t").save(2)
            with outlive.open(urls[active]) as alone:
                assert alone.thread("t").checkpoint().id == acknowledged.id, "what it still saves is not lost"
        assert "no pair any more" in store.replication_status().last_error
    with outlive.open(urls[active]) as alone:
        alone.thread("t").save(3)


def test_a_pair_is_ended_though_its_other_store_cannot_be_reached_and_that_one_is_told_later(
    program, postgres_store, postgres_server
):
    near = f"sqlite:///{program.folder}/near.db"
    build(near)
    with FaultProxy(postgres_server.host, postgres_server.port) as network:
        two = Two(program, f"{near}?timeout_s=3", network.through(postgres_store))
        assert two("replication", "--join", "--yes", "-q").code == 0
        with network.refusing():
            asked = two("replication", "--leave")
            assert (asked.code, "cannot be marked now" in asked.err) == (2, True)
            done = two("replication", "--leave", "--yes")
            assert (done.code, "was not marked: run this again" in done.out) == (0, True)
        with outlive.open(near) as store:
            store.thread("t").save("alone")
        with pytest.raises(outlive.errors.StoreUnavailable, match="no pair any more"):
            open_pair(near, postgres_store)
        assert states(two)[0] == "alone"
        assert "when the other is reachable" in two("replication").out
        assert two("replication", "--leave", "--yes").code == 0
        assert states(two) == ["alone", "old copy"]
    with (
        outlive.open(postgres_store) as store,
        pytest.raises(outlive.errors.ReplicaOpenedAlone, match="old copy"),
    ):
        store.thread("t").save(1)
    with outlive.open(near) as store:
        assert store.thread("t").load() == "alone"


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_an_end_that_was_interrupted_is_finished_by_repeating_it(program, valkey_url, tenant, monkeypatch):
    urls = [f"sqlite:///{program.folder}/near.db", valkey_url]
    two = Two(program, *urls)
    with open_pair(urls[0], urls[1], tenant=tenant) as store:
        store.thread("t").save(1)
        stores = store._store._pair.stores
        sides = [run_now(stores.record(role)) for role in (0, 1)]
        failing = Interposed(stores.both[0])

        async def fail(*args):
            raise outlive.errors.StoreUnavailable("killed")

        failing.before("commit_all", fail)
        with pytest.raises(outlive.errors.StoreUnavailable, match="killed"):
            run_now(end_pair((failing, sides[0]), (stores.both[1], sides[1]), tenant, 30))
    with pytest.raises(outlive.errors.StoreUnavailable, match="repeat outlive replication --leave"):
        open_pair(urls[0], urls[1], tenant=tenant)
    with outlive.open(urls[0], tenant=tenant) as store, pytest.raises(outlive.errors.ReplicaOpenedAlone):
        store.thread("t").save(2)
    said = ("--tenant", tenant) if tenant else ()
    assert "outlive replication --leave completes that" in two("replication", *said).out
    assert two("replication", "--leave", "--yes", *said).code == 0
    assert [item["state"] for item in items(two("replication", "--json", *said))] == ["alone", "old copy"]
    with outlive.open(urls[0], tenant=tenant) as store:
        store.thread("t").save(2)
    with (
        outlive.open(urls[1], tenant=tenant) as store,
        pytest.raises(outlive.errors.ReplicaOpenedAlone, match="old copy"),
    ):
        store.thread("t").save(2)
    third = f"sqlite:///{program.folder}/third.db"
    fresh = program("replication", "--store", urls[0], "--secondary", third, *said)
    assert "outlive replication --join copies the primary" in fresh.out


def test_what_would_be_left_behind_is_no_way_to_end_a_pair(program):
    urls = [f"sqlite:///{program.folder}/{name}.db" for name in ("near", "far")]
    two = Two(program, *urls)
    assert "are not a pair" in two("replication", "--leave", "--yes").err
    for url in urls:
        outlive.open(url).close()
    assert "are not a pair" in two("replication", "--leave", "--yes").err
    for name in program.folder.glob("far.db*"):
        name.unlink()
    assert two("replication", "--join", "--yes", "-q").code == 0
    assert two("promote", "--yes").code == 0
    for name in program.folder.glob("far.db*"):
        name.unlink()
    refused = two("replication", "--leave", "--yes")
    assert (refused.code, "is the active store, but it is not available" in refused.err) == (3, True)
    assert two("replication", "--join", "--leave").code == 2


def test_questions_are_answered_on_the_secondary_after_a_failover(joined):
    (joined.folder / "handlers.py").write_text(
        "def work(run):\n    return run.ask('approve?', schema=bool)\n"
    )
    assert joined("submit", "order-7", "--agent", "refunds", "--run-id", "r-1", "-q").out == "r-1\n"
    assert joined("recover", "--handlers", "handlers:work", "-q").out == "suspended r-1\n"
    assert joined("promote", "--yes").code == 0
    assert joined("questions", "-q").out == "r-1 'approve?'\n"
    assert joined("answer", "r-1", "approve?", "yes").code == 0
    assert joined("failback", "--yes").code == 0
    assert items(joined("questions", "--status", "answered", "--json"))[0]["value"] is True
    assert joined("recover", "--handlers", "handlers:work", "-q").out == "resumed r-1\n"
    alone = joined("answer", "r-1", "approve?", "no", "--store", joined.env["OUTLIVE_STORE"])
    assert (alone.code, "of a pair; name both stores" in alone.err) == (2, True)
