"""What a saver does beyond what the conformance suite asks, by its sync and its async methods."""

import collections
import datetime as dt
import math

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

import outlive
from adapters.langgraph.making import at, checkpoint, ids, meta, put
from outlive.adapters.langgraph import OutliveSaver

# Writes ------------------------------------------------------------------------------------------------


def test_writes_may_come_before_their_checkpoint(both):
    both.put_writes(at(id="1"), [("a", 1)], "task")
    assert both.get_tuple(at()) is None
    assert both.get_tuple(at(id="1")) is None
    assert list(both.list(at())) == []
    put(both, "1")
    assert both.get_tuple(at()).pending_writes == [("task", "a", 1)]


def test_writes_come_in_the_order_of_path_task_and_index(both):
    put(both, "1")
    both.put_writes(at(id="1"), [("x", 1), ("y", 2)], "b", "~2")
    both.put_writes(at(id="1"), [("x", 3)], "c", "~1")
    both.put_writes(at(id="1"), [("x", 4)], "a", "~2")
    both.put_writes(at(id="1"), [("x", 5), ("__error__", 6)], "d")
    assert both.get_tuple(at()).pending_writes == [
        ("d", "__error__", 6), ("d", "x", 5), ("c", "x", 3), ("a", "x", 4), ("b", "x", 1), ("b", "y", 2),
    ]  # fmt: skip
    assert [one.pending_writes for one in both.list(at())] == [both.get_tuple(at()).pending_writes]


def test_the_first_write_wins_and_the_last_of_a_control_channel_also_in_a_mixed_batch(both):
    put(both, "1")
    twin = InMemorySaver()
    put(twin, "1")
    for saver in (both, twin):
        saver.put_writes(at(id="1"), [("__error__", "e1"), ("a", "v1")], "task")
        saver.put_writes(at(id="1"), [("__error__", "e2"), ("a", "v2")], "task")
    assert both.get_tuple(at()).pending_writes == twin.get_tuple(at()).pending_writes
    assert both.get_tuple(at()).pending_writes == [("task", "__error__", "e2"), ("task", "a", "v1")]


def test_no_writes_are_no_writes(both):
    put(both, "1")
    both.put_writes(at(id="1"), [], "task")
    assert both.get_tuple(at()).pending_writes == []


def test_writes_need_the_checkpoint_they_belong_to(both):
    with pytest.raises(outlive.errors.BadArgument, match="checkpoint_id"):
        both.put_writes(at(), [("a", 1)], "task")


# Order -------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_the_puts_whatever_the_ids_are(both):
    for id, parent in [("z", None), ("a", "z"), ("m", "a"), ("B", "m"), ("ü", "B")]:
        put(both, id, parent)
    assert ids(both.list(at())) == ["ü", "B", "m", "a", "z"]
    assert both.get_tuple(at()).config == at(id="ü")
    assert both.get_tuple(at()).parent_config == at(id="B")


def test_before_means_stored_before(both):
    for id in ("z", "a", "m", "b"):
        put(both, id)
    assert ids(both.list(at(), before=at(id="m"))) == ["a", "z"]
    assert ids(both.list(at(), before=at(id="m"), limit=1)) == ["a"]
    assert ids(both.list(at(), before=at(id="z"))) == []
    assert ids(both.list(None, before=at(id="m"))) == ["a", "z"]


def test_before_an_absent_id_means_ids_that_sort_before_it(both):
    for id in ("z", "a", "m", "b"):
        put(both, id)
    assert ids(both.list(at(), before=at(id="n"))) == ["b", "m", "a"]
    assert ids(both.list(at(), before=at(id="n"), limit=2)) == ["b", "m"]


def test_before_the_id_of_another_namespace_means_stored_before_that(both):
    put(both, "1", ns="")
    put(both, "s1", ns="sub:x")
    put(both, "2", ns="")
    put(both, "s2", ns="sub:x")
    assert ids(both.list(at(ns="sub:x"), before=at(id="2"))) == ["s1"]
    assert ids(both.list(at(), before=at(id="s2", ns="sub:x"))) == ["2", "1"]
    assert ids(both.list(at(), before={"configurable": {"thread_id": "t", "checkpoint_id": "s1"}})) == ["1"]


def test_what_a_subgraph_stored_early_is_not_before_the_checkpoint_that_it_runs_in(both):
    """With durability="async" the subgraph may be faster than the checkpoint of its parent."""

    def put_sub(id, **parents):
        made = checkpoint(id)
        both.put(at(ns="sub"), made, {"source": "loop", "step": 0, "parents": {"": parents["root"]}}, {})

    put(both, "1")
    put_sub("s1", root="1")
    put_sub("s2", root="2")
    put_sub("s3", root="3")
    put(both, "2", "1")
    put_sub("s4", root="2")
    put(both, "3", "2")
    before = {"configurable": {"checkpoint_id": "2"}}
    assert ids(both.list(at(ns="sub"), before=before)) == ["s1"]
    assert ids(both.list(at(ns="sub"), before=before, limit=1)) == ["s1"]
    assert ids(both.list(at(ns="sub"), before={"configurable": {"checkpoint_id": "3"}})) == ["s4", "s2", "s1"]
    assert ids(both.list(at(ns="sub"), before={"configurable": {"checkpoint_id": "1"}})) == []


def test_before_without_an_id_is_nothing(both):
    put(both, "1")
    assert ids(both.list(at(), before=at())) == ["1"]


def test_a_namespace_that_is_not_named_means_all_and_an_empty_one_the_root(both):
    put(both, "1")
    put(both, "2", ns="sub:x")
    put(both, "3", ns="sub:x|deep:y")
    assert ids(both.list({"configurable": {"thread_id": "t"}})) == ["3", "2", "1"]
    assert ids(both.list(at())) == ["1"]
    assert ids(both.list(at(ns="sub:x"))) == ["2"]
    assert ids(both.list({"configurable": {"thread_id": "t", "checkpoint_id": "2"}})) == ["2"]


def test_no_config_means_all_threads_of_langgraph_and_no_others(url, loop):
    with outlive.open(url) as store, OutliveSaver(store) as saver:
        store.thread("not a graph's").save({"channel_values": 1})
        for thread in ("b", "a"):
            put(saver, "1", thread=thread)
            put(saver, "2", "1", thread=thread)
        found = [one.config["configurable"] for one in saver.list(None)]
        assert sorted((one["thread_id"], one["checkpoint_id"]) for one in found) == [
            ("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"),
        ]  # fmt: skip
        assert len(list(saver.list(None, limit=3))) == 3
        with pytest.raises(outlive.errors.BadArgument, match="not written by LangGraph"):
            saver.get_tuple(at("not a graph's"))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 130])
def test_a_list_has_every_checkpoint_once_whatever_the_size_of_a_page(saver, count):
    for number in range(count):
        put(saver, str(number), str(number - 1) if number else None, {"n": number}, step=number % 2)
    found = list(saver.list(at()))
    assert [one.checkpoint["channel_values"]["n"] for one in found] == list(reversed(range(count)))
    for limit in (0, 1, 64, 65):
        assert ids(saver.list(at(), limit=limit)) == ids(found[:limit])
        odd = [one for one in found if one.metadata["step"] == 1]
        assert ids(saver.list(at(), limit=limit, filter={"step": 1})) == ids(odd[:limit])


def test_limit_0_gives_nothing_and_a_negative_one_is_refused(both):
    put(both, "1")
    assert list(both.list(at(), limit=0)) == []
    with pytest.raises(outlive.errors.BadArgument, match="limit"):
        list(both.list(at(), limit=-1))


def test_put_again_replaces_and_keeps_the_place_and_the_writes(both):
    put(both, "1", values={"a": 1})
    put(both, "2", "1", values={"a": 2})
    both.put_writes(at(id="1"), [("a", 9)], "task")
    put(both, "1", values={"a": 10}, step=7)
    assert ids(both.list(at())) == ["2", "1"]
    again = both.get_tuple(at(id="1"))
    assert again.checkpoint["channel_values"] == {"a": 10}
    assert again.metadata["step"] == 7
    assert again.pending_writes == [("task", "a", 9)]
    assert both.get_tuple(at()).checkpoint["channel_values"] == {"a": 2}


# Filters ------------------------------------------------------------------------------------------------

FACTS = {"tags": {"x": 1, "y": 2}, "flag": True, "a key": "v", "none": None, "list": [1, 2], "n": 1.0}


@pytest.mark.parametrize(
    "filter",
    [
        {}, None, {"tags": {"x": 1}}, {"tags": {"x": 1, "y": 2}}, {"tags.x": 1}, {"absent": None},
        {"none": None}, {"flag": 1}, {"flag": True}, {"flag": False}, {"a key": "v"}, {"list": [1, 2]},
        {"list": (1, 2)}, {"list": [1]}, {"n": 1}, {"n": 2}, {"source": "loop"}, {"source": "input"}, {"step": 3},
        {"step": 3.0}, {"step": "3"}, {"run_id": "r"}, {"run_id": None}, {"run_id": "s"},
        {"step": 3, "a key": "v"}, {"step": 3, "a key": "w"}, {"thread_id": "t"}, {"parents": {}},
    ],
)  # fmt: skip
def test_a_filter_means_what_it_means_in_memory(both, filter):
    twin = InMemorySaver()
    for saver in (both, twin):
        put(saver, "1", step=3, run_id="r", **FACTS)
        put(saver, "2", "1", step=3)
    assert ids(both.list(at(), filter=filter)) == ids(twin.list(at(), filter=filter))


def test_metadata_are_those_that_langgraph_s_own_savers_keep(both):
    config = {
        "configurable": {
            "thread_id": "t",
            "checkpoint_ns": "",
            "user": "u",
            "__pregel_x": 1,
            "obj": object(),
        },
        "metadata": {"tenant": "acme", "n\0ul": "a\0b", "langgraph_step": 3},
    }
    twin = InMemorySaver()
    for saver in (both, twin):
        saver.put(config, checkpoint("1"), {"step": -2, "n\0": "x\0y"}, {})
    assert both.get_tuple(at()).metadata == twin.get_tuple(at()).metadata
    assert both.get_tuple(at()).metadata["user"] == "u"
    assert "source" not in both.get_tuple(at()).metadata


@pytest.mark.parametrize(
    "metadata",
    [
        {}, {"source": None}, {"source": "other"}, {"step": None}, {"step": True}, {"step": 1 << 70}, {"step": "x"},
        {"run_id": ""}, {"run_id": 7}, {"run_id": "r" * 2000}, {"source": "fork", "step": -1, "run_id": "r"},
        {"date": dt.date(2026, 1, 2), "when": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)}, {"__no_source__": 1},
        {"__whole__": 1}, {"__whole__": {"a": 1}, "__no_source__": True, "source": "fork"}, {"source": "loop", "a": None},
        {"counters_since_delta_snapshot": {"m": (1, 2)}}, {"nested": {"deep": [{"a": (1, {2})}]}},
    ],
)  # fmt: skip
def test_metadata_come_back_as_they_were(both, metadata):
    both.put(at(), checkpoint("1"), metadata, {})
    found = both.get_tuple(at())
    assert found.metadata == metadata
    assert [one.metadata for one in both.list(at())] == [metadata]


# Ids and values ------------------------------------------------------------------------------------------


def test_an_int_thread_id_is_its_digits(both):
    config = put(both, "1", thread=7)
    assert config == at("7", "1")
    assert both.get_tuple(at(7)).config == both.get_tuple(at("7")).config == at("7", "1")
    assert ids(both.list(at(7))) == ["1"]
    both.copy_thread(7, 8)
    assert both.get_tuple(at("8")) is not None
    both.prune([8], strategy="delete")
    assert both.get_tuple(at("8")) is None
    both.delete_thread(7)
    assert both.get_tuple(at("7")) is None


@pytest.mark.parametrize("bad", ["", None, 1.5, True, b"t", ("t",), "x" * 1001])
def test_other_thread_ids_are_refused(both, bad):
    for call in (
        lambda: put(both, "1", thread=bad),
        lambda: both.get_tuple(at(bad)),
        lambda: list(both.list(at(bad))),
        lambda: both.put_writes(at(bad, "1"), [("a", 1)], "task"),
        lambda: both.delete_thread(bad),
        lambda: both.copy_thread("t", bad),
        lambda: both.copy_thread(bad, "t"),
        lambda: both.prune([bad]),
    ):
        with pytest.raises(outlive.errors.BadArgument):
            call()


@pytest.mark.parametrize("bad", [None, "", 3, b"1"])
def test_other_checkpoint_ids_are_refused(both, bad):
    with pytest.raises(outlive.errors.BadArgument, match="checkpoint"):
        put(both, bad)


def test_a_config_without_a_thread_is_refused(both):
    for config in ({}, {"configurable": {}}, {"configurable": None}):
        with pytest.raises(outlive.errors.BadArgument):
            both.get_tuple(config)


@pytest.mark.parametrize(
    "id", ["a\0b", "ü" * 500, "../../x", "'; drop table", "\ud800", " ", "a/b|c:d", "%", "*"]
)
def test_any_text_may_be_an_id(both, id):
    put(both, id, values={"a": 1}, thread=id, ns=id)
    both.put_writes(at(id, id, id), [(id, id)], id, id)
    found = both.get_tuple(at(id, ns=id))
    assert found.config == at(id, id, id)
    assert found.pending_writes == [(id, id, id)]
    assert ids(both.list(at(id, ns=id))) == [id]


class Even(list):
    pass


VALUES = [
    "a\0b", "\ud800 lone", "", -1, 1 << 63, -(1 << 100), 10**400, math.inf, -0.0, True, None, b"\0\xff",
    (1, (2, [3])), {1, 2}, frozenset({"a"}), {1: "int key", ("t", 1): "tuple key"}, [], {}, (), [None],
    collections.Counter("abca"), collections.OrderedDict([("b", 1), ("a", 2)]), collections.deque([1, 2], maxlen=3),
    dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC), dt.timedelta(days=1, microseconds=5),
    dt.time(1, 2, 3), {"deep": [{"a": ({"b": {3}},)}]}, "x" * 100_000, list(range(2_000))
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_values_come_back_as_they_were_from_channels_and_writes(saver, value):
    put(saver, "1", values={"a": value})
    saver.put_writes(at(id="1"), [("a", value)], "task")
    found = saver.get_tuple(at())
    (write,) = found.pending_writes
    for back in (found.checkpoint["channel_values"]["a"], write[2]):
        assert back == value
        assert type(back) is type(value)
        assert repr(back) == repr(value)  # types inside, signs of zeros, the order of keys


@pytest.mark.parametrize("value", [range(3), object(), iter([])], ids=lambda value: type(value).__name__)
def test_what_would_not_come_back_as_it_was_is_refused(saver, value):
    with pytest.raises(outlive.errors.Unencodable) as refused:
        put(saver, "1", values={"a": [value]})
    assert refused.value.path == "a[0]"


@pytest.mark.parametrize("value", [Even([1]), AIMessage("hello").text])
def test_a_subclass_of_one_of_python_s_types_keeps_its_class(saver, value):
    """`message.text` is such a str."""
    put(saver, "1", values={"a": [value], "b": value})
    found = saver.get_tuple(at()).checkpoint["channel_values"]
    assert found == {"a": [value], "b": value}
    assert type(found["b"]) is type(found["a"][0]) is type(value)


def test_nan_is_nan(both):
    put(both, "1", values={"a": math.nan, "b": [math.nan]})
    found = both.get_tuple(at()).checkpoint["channel_values"]
    assert math.isnan(found["a"])
    assert math.isnan(found["b"][0])


def test_a_defaultdict_keeps_its_factory_and_a_factory_of_code_is_refused(saver):
    put(saver, "1", values={"a": collections.defaultdict(list, {"x": [1]})})
    back = saver.get_tuple(at()).checkpoint["channel_values"]["a"]
    assert back == {"x": [1]}
    assert back["new"] == []
    with pytest.raises(outlive.errors.Unencodable, match="default_factory") as refused:
        put(saver, "2", "1", values={"a": {"b": collections.defaultdict(lambda: 0)}})
    assert "b" in refused.value.path
    assert ids(saver.list(at())) == ["1"]


def test_the_same_version_with_another_value_is_not_mixed_up(both):
    put(both, "1", values={"a": "one"}, versions={"a": 1})
    put(both, "2", "1", values={"a": "two"}, versions={"a": 1})
    assert both.get_tuple(at(id="1")).checkpoint["channel_values"] == {"a": "one"}
    assert both.get_tuple(at(id="2")).checkpoint["channel_values"] == {"a": "two"}


def test_versions_may_be_int_float_or_str_and_grow(saver):
    for version, number in ((None, 1), (0, 1), (7, 8), (7.5, 8), (f"{7:032}.0123456789", 8), ("7", 8)):
        following = saver.get_next_version(version, None)
        assert following.startswith(f"{number:032}.")
        assert saver.get_next_version(following, None) > following
    official = InMemorySaver().get_next_version(None, None)
    assert saver.get_next_version(official, None) > official


def test_all_fields_of_a_checkpoint_come_back_also_those_of_other_versions(both):
    made = {
        **checkpoint("1", {"a": 1}),
        "pending_sends": [],
        "new_field": {"x": (1,)},
        "versions_seen": {"n": {"a": 1}},
    }
    both.put(at(), made, meta(), {"a": 1})
    assert both.get_tuple(at()).checkpoint == made


# Copies and deletions -------------------------------------------------------------------------------------


def test_a_copy_has_all_namespaces_and_writes_and_goes_its_own_way(both):
    put(both, "1", values={"a": [1]})
    put(both, "s", values={"b": 1}, ns="sub:x")
    put(both, "2", "1", values={"a": [1, 2]})
    both.put_writes(at(id="2"), [("__interrupt__", "?")], "task", "~p")
    both.copy_thread("t", "u")

    def seen(thread):
        return [
            (one.config["configurable"]["checkpoint_ns"], one.checkpoint, one.metadata, one.pending_writes)
            for one in both.list({"configurable": {"thread_id": thread}})
        ]

    assert seen("u") == seen("t")
    both.delete_thread("t")
    assert len(seen("u")) == 3
    put(both, "3", "2", values={"a": [1, 2, 3]}, thread="u")
    assert both.get_tuple(at("u")).checkpoint["channel_values"] == {"a": [1, 2, 3]}


def test_a_copy_of_nothing_is_nothing_and_one_onto_something_is_refused(both):
    both.copy_thread("nowhere", "u")
    assert both.get_tuple(at("u")) is None
    put(both, "1")
    put(both, "1", thread="u")
    with pytest.raises(outlive.errors.ThreadNotEmpty):
        both.copy_thread("t", "u")


def test_deleting_what_is_not_there_is_fine(both):
    both.delete_thread("nowhere")
    both.delete_for_runs([])
    both.delete_for_runs(["nobody's"])
    both.prune(["nowhere"])
    both.prune([])
    both.prune(["nowhere"], strategy="delete")


# The saver itself ------------------------------------------------------------------------------------------


def test_a_store_that_was_given_stays_open_and_one_of_a_url_is_closed(url):
    with outlive.open(url) as store:
        with OutliveSaver(store) as saver:
            put(saver, "1")
        put(OutliveSaver(store), "2", "1")
    saver = OutliveSaver(url)
    saver.close()
    with pytest.raises(outlive.errors.StoreClosed):
        saver.get_tuple(at())


def test_wrong_wiring_fails_at_the_constructor(url):
    with outlive.open(url) as store:
        for make in (
            lambda: OutliveSaver(store, tenant="x"),
            lambda: OutliveSaver(3),
            lambda: OutliveSaver(url, refuse_stale="head"),
            lambda: OutliveSaver(url, types=[Even], serde=OutliveSaver(store).serde),
            lambda: OutliveSaver(url, unknown=1),
            lambda: OutliveSaver("mongodb://x"),
        ):
            with pytest.raises(outlive.CallerError):
                make()


def test_a_saver_says_where_it_stores_and_hides_passwords(saver, valkey_server):
    assert "agent.db" in repr(saver)
    valkey_server.call("ACL", "SETUSER", "someone", "on", ">geheim", "~*", "&*", "+@all")
    with OutliveSaver(valkey_server.url.replace("://", "://someone:geheim@", 1)) as served:
        put(served, "1")
        assert "geheim" not in repr(served)
    valkey_server.call("ACL", "DELUSER", "someone")


def test_tenants_do_not_see_each_other(url):
    with OutliveSaver(url, tenant="a") as one, OutliveSaver(url, tenant="b") as two:
        put(one, "1")
        assert two.get_tuple(at()) is None
        assert list(two.list(None)) == []


def test_setup_changes_nothing_that_is_stored(saver, loop):
    put(saver, "1", values={"a": 1})
    before = saver.get_tuple(at())
    saver.setup()
    assert saver.get_tuple(at()) == before
    loop.run_until_complete(saver.asetup())
    assert saver.get_tuple(at()) == before


def test_get_gives_the_checkpoint(both):
    put(both, "1", values={"a": 1})
    assert both.get(at()) == both.get_tuple(at()).checkpoint
    assert isinstance(both.get_tuple(at()), CheckpointTuple)
