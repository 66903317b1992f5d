"""Deleting checkpoints: what is asked for goes, what is needed stays."""

import operator
import random
import time
from typing import Annotated, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import outlive
from adapters.langgraph.graphs import Driver, Log, asks, delta_graph, fan, line, says, thread
from adapters.langgraph.making import at, ids, put
from outlive.adapters.langgraph import OutliveSaver
from outlive.backend import ThreadQuery
from outlive.runtime.runtime import run_now
from rig.replicas import Disk, open_pair


def fill(saver, count=10, thread="t", ns="", size=0):
    for number in range(count):
        parent = f"{number - 1:03}" if number else None
        big = random.Random(number).randbytes(size)  # hard to compress
        put(saver, f"{number:03}", parent, {"n": number, "big": big}, thread, ns, step=number)


def sizes(saver, name="t"):
    """Return (checkpoints, bytes) that a thread has in its store."""
    session = saver._operations(saver._shared.sync).session
    key = session.key(name)
    rows = run_now(session.engine.backend.threads(ThreadQuery(key.tenant, only=name, heads=False)))
    return (rows[0].checkpoints, rows[0].stored) if rows else (0, 0)


def chunks(saver, names=None):
    """Return the names of the chunks that a thread has, or of those that are left of some."""
    session = saver._operations(saver._shared.sync).session
    key, backend = session.key("t"), session.engine.backend
    if names is not None:
        return set(run_now(backend.fetch(key, list(names))))
    owners = [*run_now(session.engine.records(key)), *run_now(backend.writes(key, None))]
    return {name for owner in owners for name in owner.chunks}


# Rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked, kept",
    [
        ({}, ["009"]), ({"strategy": "keep_latest"}, ["009"]), ({"keep_last": 3}, ["009", "008", "007"]),
        ({"keep_last": 1}, ["009"]), ({"keep_last": 99}, [f"{n:03}" for n in range(9, -1, -1)]),
        ({"older_than_s": 3600}, [f"{n:03}" for n in range(9, -1, -1)]), ({"older_than_s": 0}, ["009"]),
        ({"keep_last": 2, "older_than_s": 3600}, ["009", "008"]), ({"strategy": "delete"}, []),
    ],
)  # fmt: skip
def test_what_a_rule_keeps(both, asked, kept):
    fill(both)
    fill(both, 3, thread="untouched")
    expected = both.prune(["t"], dry_run=True, **asked)
    assert len(ids(both.list(at()))) == 10, "a dry run deletes nothing"
    done = both.prune(["t"], **asked)
    assert ids(both.list(at())) == kept
    assert done.checkpoints == expected.checkpoints == 10 - len(kept)
    assert len(ids(both.list(at("untouched")))) == 3
    assert [one.checkpoint["channel_values"]["n"] for one in both.list(at())] == [int(id) for id in kept]


def test_age_counts_from_when_a_checkpoint_was_stored(saver):
    fill(saver, 5)
    filled_at = time.time()
    time.sleep(2.5)
    for number in range(5, 8):
        put(saver, f"{number:03}", f"{number - 1:03}")
    assert saver.prune(["t"], older_than_s=time.time() - filled_at - 0.1).checkpoints == 5
    assert ids(saver.list(at())) == ["007", "006", "005"]


def test_the_newest_is_what_was_stored_last_whatever_its_id(saver):
    for id, parent in [("z", None), ("m", "z"), ("a", "m")]:
        put(saver, id, parent)
    saver.prune(["t"])
    assert ids(saver.list(at())) == ["a"]


def test_each_namespace_keeps_its_newest(both):
    fill(both, 4)
    fill(both, 3, ns="sub:1")
    fill(both, 2, ns="sub:1|deep:2")
    both.prune(["t"])
    found = [
        (one.config["configurable"]["checkpoint_ns"], ids([one])[0])
        for one in both.list({"configurable": {"thread_id": "t"}})
    ]
    assert sorted(found) == [("", "003"), ("sub:1", "002"), ("sub:1|deep:2", "001")]


def test_several_threads_are_pruned_and_counted_together(both):
    for name in ("a", "b", "c"):
        fill(both, 4, thread=name)
    assert both.prune(["a", "b", "nowhere"], keep_last=2).checkpoints == 4
    assert [len(ids(both.list(at(name)))) for name in "abc"] == [2, 2, 4]
    assert both.prune([]).checkpoints == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"strategy": "keep_nothing"}, {"strategy": None}, {"keep_last": 0}, {"keep_last": -1}, {"keep_last": 1.5},
        {"keep_last": True}, {"keep_last": "3"}, {"older_than_s": -1}, {"older_than_s": "1 day"}, {"older_than_s": True},
        {"strategy": "delete", "keep_last": 3}, {"strategy": "delete", "older_than_s": 3}, {"older_than_s": float("nan")},
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(both, asked):
    fill(both, 2)
    with pytest.raises(outlive.errors.BadArgument):
        both.prune(["t"], **asked)
    assert len(ids(both.list(at()))) == 2


def test_a_str_in_place_of_a_list_of_threads_is_refused(both):
    """Its letters would be taken for threads."""
    for name in "abc":
        fill(both, 2, thread=name)
    with pytest.raises(outlive.errors.BadArgument):
        both.prune("abc", strategy="delete")
    with pytest.raises(outlive.errors.BadArgument):
        both.delete_for_runs("abc")
    assert [len(ids(both.list(at(name)))) for name in "abc"] == [2, 2, 2]


# What is freed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "file", "sqlite", "postgresql", "redis"])
def test_what_is_pruned_is_freed(backend, url_for, folder):
    url = "memory:" if backend == "memory" else url_for(backend, folder)
    with OutliveSaver(url) as saver:
        fill(saver, 12, size=5_000)
        saver.put_writes(at(id="003"), [("w", ["y" * 500])], "task")
        before, names = sizes(saver), chunks(saver)
        expected = saver.prune(["t"], dry_run=True)
        assert sizes(saver) == before
        done = saver.prune(["t"])
        after, left = sizes(saver), chunks(saver)
        assert (done.checkpoints, after[0]) == (11, 1)
        assert chunks(saver, names) == left & names
        assert len(left) < len(names) / 4
        assert 11 * 5_000 < done.freed_bytes <= before[1] - after[1] < done.freed_bytes * 1.1
        assert expected.checkpoints == done.checkpoints
        assert expected.chunks <= done.chunks <= expected.chunks + done.rewritten
        assert saver.get_tuple(at()).checkpoint["channel_values"]["n"] == 11
        saver.prune(["t"], strategy="delete")
        assert sizes(saver) == (0, 0)
        assert chunks(saver, names) == set()


def test_writes_of_deleted_checkpoints_go_with_them(both):
    fill(both, 3)
    both.put_writes(at(id="001"), [("w", "old")], "task")
    both.put_writes(at(id="002"), [("w", "new")], "task")
    both.prune(["t"])
    assert both.get_tuple(at()).pending_writes == [("task", "w", "new")]
    put(both, "001")  # put again, it does not find the old ones
    assert both.get_tuple(at(id="001")).pending_writes == []


class Answer(TypedDict, total=False):
    answer: str


def answers(state):
    return {"answer": "yes"}


def test_pruning_after_each_turn_keeps_a_thread_small_also_with_subgraphs(saver):
    driver = Driver(saver)
    deep = line(Answer, c=answers).compile()
    calls = line(Answer, deep=deep, d=answers).compile()

    def twice(state):
        return [deep.invoke({}) for _ in range(2)][-1]

    graph = driver.compile(line(Log, a=says("a" * 500), calls=calls, twice=twice, b=says("b" * 500)))
    seen = []
    for turn in range(12):
        driver.invoke(graph, {"log": [str(turn)]}, thread())
        saver.prune(["t"])
        seen.append(sizes(saver))
    assert {checkpoints for checkpoints, _ in seen} == {1}
    assert len(driver.state(graph, thread()).values["log"]) == 36
    assert seen[-1][1] < 12 * 3_000


def test_what_a_subgraph_left_stays_with_the_checkpoint_that_called_it(saver):
    driver = Driver(saver)
    calls = line(Answer, c=answers).compile()
    remembers = line(Answer, d=answers).compile(checkpointer=True)
    graph = driver.compile(line(Log, calls=calls, remembers=remembers))
    for _ in range(3):
        driver.invoke(graph, {"log": []}, thread())
    saver.prune(["t"], keep_last=4)  # the whole last turn
    left = [
        one.config["configurable"]["checkpoint_ns"]
        for one in saver.list({"configurable": {"thread_id": "t"}})
    ]
    spaces = sorted({name.partition(":")[0] for name in left})
    assert (spaces, len({name for name in left if ":" in name})) == (["", "calls", "remembers"], 1)
    (caller,) = [one for one in driver.history(graph, thread()) if one.next == ("calls",)]
    assert driver.invoke(graph, None, caller.config)["answer"] == "yes"
    saver.prune(["t"])
    left = [
        one.config["configurable"]["checkpoint_ns"]
        for one in saver.list({"configurable": {"thread_id": "t"}})
    ]
    assert sorted(left) == ["", "remembers"]


def test_a_checkpoint_that_is_put_again_keeps_what_pruning_wrote_into_it(both):
    counters = {"counters_since_delta_snapshot": {"d": (1, 1)}}
    for number in range(4):
        put(
            both,
            str(number),
            str(number - 1) if number else None,
            {"n": number},
            versions={"d": number, "n": 1},
            **counters,
        )
        both.put_writes(at(id=str(number)), [("d", [number])], "task")
    before = both.get_delta_channel_history(config=at(), channels=["d"])
    assert len(before["d"]["writes"]) == 3
    both.prune(["t"])
    put(both, "3", "2", {"n": "again"}, versions={"d": 3, "n": 2}, **counters)
    assert both.get_tuple(at()).checkpoint["channel_values"] == {"n": "again"}
    assert both.get_delta_channel_history(config=at(), channels=["d"]) == before
    put(both, "4", "3", versions={"d": 4}, **counters)
    (*writes, last) = both.get_delta_channel_history(config=at(), channels=["d"])["d"]["writes"]
    assert writes == before["d"]["writes"]
    assert last == ("task", "d", [3])


# Interrupts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_what_waits_for_an_answer_stays_and_can_be_answered(saver, loop, is_async):
    results = []
    for driver in (
        Driver(saver, loop if is_async else None),
        Driver(InMemorySaver(), loop if is_async else None),
    ):
        inner = line(Log, i=says("i"), inner=asks("inner")).compile()
        remembering = line(Log, j=says("j"), memory=asks("memory")).compile(checkpointer=True)
        graph = driver.compile(
            fan(Log, says("first"), says("last"), x=asks("x"), y=asks("y"), sub=inner, other=remembering)
        )
        driver.invoke(graph, {"log": ["in"]}, thread())
        for turn in range(4):
            if driver.saver is saver:
                assert saver.prune(["t"]).checkpoints > 0 or turn
            waiting = sorted(driver.state(graph, thread()).interrupts, key=lambda one: one.value)
            driver.invoke(graph, Command(resume={waiting[0].id: f"answer {turn}"}), thread())
        state = driver.state(graph, thread())
        results.append((sorted(state.values["log"]), state.next))
    assert results[0] == results[1]
    assert results[0][1] == ()


def test_an_open_interrupt_of_a_fork_stays_too(saver):
    driver = Driver(saver)
    graph = driver.compile(line(Log, a=says("a"), ask=asks("ask"), b=says("b")))
    driver.invoke(graph, {"log": ["in"]}, thread())
    waiting = driver.state(graph, thread()).config
    old = driver.history(graph, thread())[-1]
    for turn in range(3):  # the thread goes another way
        driver.invoke(
            graph, None, driver.update(graph, old.config, {"log": [f"other way {turn}"]}, as_node="b")
        )
    saver.prune(["t"])
    assert [one.value for one in driver.state(graph, waiting).interrupts] == ["ask?"]
    answered = driver.invoke(graph, Command(resume="yes"), waiting)
    assert answered["log"] == ["in", "a", "ask=yes", "b"]


def test_an_answered_interrupt_is_no_reason_to_stay(saver):
    driver = Driver(saver)
    graph = driver.compile(line(Log, ask=asks("ask"), b=says("b")))
    for _ in range(3):
        driver.invoke(graph, {"log": ["in"]}, thread())
        driver.invoke(graph, Command(resume="yes"), thread())
    saver.prune(["t"])
    assert len(list(saver.list(at()))) == 1


# Runs --------------------------------------------------------------------------------------------------------------


def test_the_checkpoints_of_runs_are_deleted_in_all_threads(both):
    for name in ("a", "b"):
        for number, run in enumerate(["one", "two", None, "one"]):
            more = {} if run is None else {"run_id": run}
            put(both, str(number), str(number - 1) if number else None, {"n": number}, name, **more)
    both.delete_for_runs(["one", "nobody's"])
    assert [ids(both.list(at(name))) for name in "ab"] == [["2", "1"], ["2", "1"]]
    assert both.get_tuple(at("a")).checkpoint["channel_values"] == {"n": 2}


def test_a_graph_goes_on_after_its_last_run_was_deleted(saver):
    class Count(TypedDict, total=False):
        n: Annotated[int, operator.add]

    driver = Driver(saver)
    graph = driver.compile(line(Count, a=lambda state: {"n": 1}))
    for run in ("one", "two"):
        driver.invoke(graph, {"n": 10}, {**thread(), "metadata": {"run_id": run}})
    saver.delete_for_runs(["two"])
    assert driver.state(graph, thread()).values == {"n": 11}
    assert driver.invoke(graph, {"n": 100}, thread()) == {"n": 112}


# Sealed ------------------------------------------------------------------------------------------------------------


def test_deltas_of_a_sealed_thread_stay_whole(url):
    from adapters.langgraph.test_serializer import encrypted

    with OutliveSaver(url, serde=encrypted()) as saver:
        ours, twin = Driver(saver), Driver(InMemorySaver())
        graphs = delta_graph(ours, 100), delta_graph(twin, 100)
        for turn in range(4):
            found, expected = (
                driver.invoke(graph, {"log": [f"in {turn}"]}, thread())
                for driver, graph in zip((ours, twin), graphs, strict=True)
            )
            assert found == expected
            saver.prune(["t"], keep_last=2)
            assert ours.state(graphs[0], thread()).values == twin.state(graphs[1], thread()).values


@pytest.mark.parametrize("how", ["prune", "sweep"])
@pytest.mark.parametrize("is_sealed", [False, True], ids=["open", "sealed"])
def test_what_the_store_itself_deletes_leaves_deltas_whole_too(how, is_sealed):
    from adapters.langgraph.test_serializer import encrypted

    with outlive.open("memory:", retain=outlive.Retain(keep_last=2)) as store:
        saver = OutliveSaver(store, serde=encrypted() if is_sealed else None)
        driver, twin = Driver(saver), Driver(InMemorySaver())
        graphs = delta_graph(driver, 3), delta_graph(twin, 3)
        for turn in range(5):
            for one, graph in ((driver, graphs[0]), (twin, graphs[1])):
                one.invoke(graph, {"log": [f"in {turn}"]}, thread())
            store.thread("t").prune(keep_last=2) if how == "prune" else store.sweep()
            assert driver.state(graphs[0], thread()).values == twin.state(graphs[1], thread()).values
        saver.prune(["t"])
        assert sizes(saver)[0] == 1
        assert driver.state(graphs[0], thread()).values == twin.state(graphs[1], thread()).values


@pytest.mark.parametrize(
    "delete",
    [
        lambda saver: saver.prune(["t"], keep_last=1),
        lambda saver: saver.prune(["t"], strategy="delete"),
        lambda saver: saver.delete_for_runs(["r"]),
        lambda saver: saver.delete_thread("t"),
    ],
    ids=["prune", "prune all", "delete_for_runs", "delete_thread"],
)
def test_a_deletion_on_a_strict_pair_is_refused_until_both_stores_have_it(delete, tmp_path):
    disk = Disk(tmp_path / "two.db")
    one, two = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{disk.path}"
    with open_pair(one, two, auto_failover=False, timeout_s=5) as store, disk:
        saver = OutliveSaver(store)
        for number in range(3):
            put(saver, f"{number}", f"{number - 1}" if number else None, {"n": number}, run_id="r")
        disk.mode = "refuse"
        for _ in range(2):  # the second one finds nothing left to delete in the first store
            with pytest.raises(outlive.NotReplicated):
                delete(saver)
        disk.mode = "pass"
        delete(saver)
        with outlive.open(two) as alone:
            assert ids(OutliveSaver(alone).list(at())) == ids(saver.list(at()))
            assert len(ids(saver.list(at()))) <= 1
