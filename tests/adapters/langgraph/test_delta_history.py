"""DeltaChannels: the nearest stored value above a checkpoint, and the writes since, along the chain of parents."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from adapters.langgraph.making import at, put
from outlive.adapters.langgraph import OutliveSaver


def history(saver, id=None, channels=("d",), ns=""):
    return dict(saver.get_delta_channel_history(config=at(id=id, ns=ns), channels=list(channels)))


def chain(saver, *steps, ns=""):
    """Put checkpoints 1, 2, 3, ...; a step is the stored value of channel d, or None, and what is written on it."""
    for number, (value, *writes) in enumerate(steps, 1):
        values = {} if value is None else {"d": value}
        put(
            saver, str(number), str(number - 1) if number > 1 else None, values, ns=ns, versions={"d": number}
        )
        for position, write in enumerate(writes):
            saver.put_writes(at(id=str(number), ns=ns), [("d", write)], f"task{position}", f"~{position}")


def written(found, channel="d"):
    return [value for _, _, value in found[channel]["writes"]]


def test_without_a_stored_value_there_is_no_seed_and_all_writes_above_count(both):
    chain(both, (None, "a"), (None, "b"), (None, "c"))
    assert history(both, "3") == {"d": {"writes": [("task0", "d", "a"), ("task0", "d", "b")]}}


def test_the_nearest_stored_value_is_the_seed_and_its_own_writes_count(both):
    chain(both, (_DeltaSnapshot(["0"]), "a"), (_DeltaSnapshot(["1"]), "b"), (None, "c"), (None, "d"))
    found = history(both, "4")
    assert found["d"]["seed"] == _DeltaSnapshot(["1"])
    assert written(found) == ["b", "c"]


def test_what_the_target_has_itself_does_not_count(both):
    chain(both, (None, "a"), (_DeltaSnapshot(["x"]), "b"))
    assert history(both, "2") == {"d": {"writes": [("task0", "d", "a")]}}


def test_writes_of_one_checkpoint_come_in_the_order_of_their_path(both):
    put(both, "1")
    both.put_writes(at(id="1"), [("d", 1), ("other", 0), ("d", 2)], "zz", "~1")
    both.put_writes(at(id="1"), [("d", 3)], "aa", "~2")
    both.put_writes(at(id="1"), [("d", 0)], "mm", "~0")
    put(both, "2", "1")
    assert written(history(both, "2")) == [0, 1, 2, 3]


def test_the_chain_counts_and_not_the_order_of_ids_or_of_time(both):
    put(both, "z", None, versions={"d": 1})
    both.put_writes(at(id="z"), [("d", "z")], "t")
    put(both, "other", "z")
    both.put_writes(at(id="other"), [("d", "not on the way")], "t")
    put(both, "a", "z")
    both.put_writes(at(id="a"), [("d", "a")], "t")
    put(both, "m", "a")
    assert written(history(both, "m")) == ["z", "a"]
    assert written(history(both, "other")) == ["z"]
    assert history(both) == history(both, "m")


def test_a_plain_value_from_before_the_channel_became_a_delta_is_a_seed_too(both):
    chain(both, (["old", "list"], "a"), (None, "b"), (None,))
    found = history(both, "3")
    assert found["d"]["seed"] == ["old", "list"]
    assert written(found) == ["a", "b"]


def test_channels_end_where_each_has_its_own_value(both):
    put(both, "1", None, {"e": "E1", "f": None})
    both.put_writes(at(id="1"), [("d", "d1"), ("e", "e1")], "t")
    put(both, "2", "1", {"d": "D2"})
    both.put_writes(at(id="2"), [("d", "d2"), ("e", "e2")], "t")
    put(both, "3", "2")
    assert history(both, "3", ["d", "e", "f", "g"]) == {
        "d": {"writes": [("t", "d", "d2")], "seed": "D2"},
        "e": {"writes": [("t", "e", "e1"), ("t", "e", "e2")], "seed": "E1"},
        "f": {"writes": [], "seed": None},
        "g": {"writes": []},
    }
    assert history(both, "3", []) == {}


def test_a_parent_that_is_missing_ends_the_walk(both):
    put(both, "3", "never stored")
    both.put_writes(at(id="never stored"), [("d", "x")], "t")
    put(both, "4", "3")
    assert history(both, "4") == {"d": {"writes": []}}
    assert history(both, "nowhere") == {"d": {"writes": []}}


def test_namespaces_have_chains_of_their_own(both):
    chain(both, (None, "root"), (None,))
    chain(both, (None, "sub"), (None,), ns="s:1")
    assert written(history(both, "2")) == ["root"]
    assert written(history(both, "2", ns="s:1")) == ["sub"]


@pytest.mark.parametrize("length", [64, 65, 200])
def test_a_long_chain_is_walked_to_its_end(saver, length):
    chain(saver, *[(None, number) for number in range(length)])
    assert written(history(saver, str(length))) == list(range(length - 1))


def test_a_ring_of_parents_ends(saver):
    chain(saver, (None, "a"), (None, "b"), (None, "c"))
    put(saver, "1", "3", versions={"d": 1})  # put again, with a parent that is newer than itself
    assert sorted(written(history(saver, "3")))[:2] == ["a", "b"]


steps = st.lists(
    st.tuples(
        st.integers(0, 4),  # the parent, counted backwards; 0: none
        st.booleans(),  # has it a value?
        st.lists(st.tuples(st.sampled_from("de"), st.integers(0, 3), st.sampled_from("xyz")), max_size=3),
        st.sampled_from("abcdefgh"),  # how its id begins: ids do not sort as they were made
        st.booleans(),  # is it put again at the end?
    ),
    min_size=1,
    max_size=12,
)


@given(steps)
@settings(max_examples=60)
def test_any_tree_gives_what_langgraph_s_own_walk_gives(tree):
    twin = InMemorySaver()
    with OutliveSaver("memory:") as saver:
        known, again = [None], []
        for number, (back, has_value, writes, letter, twice) in enumerate(tree):
            parent, id = known[max(-back, -len(known))] if back else None, f"{letter}{number}"
            values = {"d": _DeltaSnapshot([number])} if has_value else {"other": number}
            known.append(id)
            for one in (saver, twin):
                put(
                    one,
                    id,
                    parent,
                    values,
                    versions={"d": number, "other": number} if has_value else {"other": number},
                )
                for channel, path, task in writes:
                    one.put_writes(at(id=id), [(channel, (number, path))], f"{task}{path}", f"~{path}")
            again += [(id, parent, values)] if twice else []
        for id, parent, values in again:
            put(saver, id, parent, values)
        for id in known[1:]:
            ours = history(saver, id, ("d", "e"))
            assert ours == BaseCheckpointSaver.get_delta_channel_history(
                saver, config=at(id=id), channels=["d", "e"]
            )
            theirs = history(twin, id, ("d", "e"))
            assert [[tuple(value) for value in written(ours, c)] for c in "de"] == [
                [tuple(value) for value in written(theirs, c)] for c in "de"
            ]
            assert ours["d"].get("seed") == theirs["d"].get("seed")
