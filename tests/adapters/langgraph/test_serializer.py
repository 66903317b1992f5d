"""What may be stored and loaded, through which serializer, and what becomes of secrets."""

import contextlib
import dataclasses
import datetime as dt
import enum
import importlib
import json
import random
import subprocess
import sys
import textwrap
import uuid
from typing import Annotated, Any, ClassVar, TypedDict

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core import messages as lc
from langchain_core.documents import Document
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import add_messages
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, field_validator

import outlive
from adapters.langgraph.graphs import Driver, line, thread
from adapters.langgraph.making import at, checkpoint, ids, meta, put
from conftest import SEED
from outlive.adapters.langgraph import OutliveSaver, StrictSerializer
from outlive.adapters.langgraph.values.codec import FIRST
from outlive.adapters.langgraph.values.messages import Messages
from outlive.backend import ThreadQuery
from outlive.format.extensions import Raw
from outlive.runtime.runtime import run_now


class Point(BaseModel):
    x: int


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Colour(enum.Enum):
    RED = "red"


class Mute:
    """Something that no serializer takes apart."""

    def __eq__(self, other):
        return isinstance(other, Mute)

    def __hash__(self):
        return 0

    def __reduce__(self):
        return (Mute, ())


def value_of(saver, channel="a", id=None):
    return saver.get_tuple(at(id=id)).checkpoint["channel_values"][channel]


def sent_through(saver, value):
    """Return what becomes of a value as channel, as element, and as write."""
    number = len(ids(saver.list(at())))
    put(
        saver,
        str(number),
        values={"a": value, "b": [value, {"deep": (value,)}]},
        versions={"a": number, "b": number},
    )
    saver.put_writes(at(id=str(number)), [("a", value)], "task")
    found = saver.get_tuple(at())
    values = found.checkpoint["channel_values"]
    return [values["a"], values["b"][0], values["b"][1]["deep"][0], found.pending_writes[0][2]]


# Strict -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [Point(x=1), Pair(1, 2), Colour.RED, Mute(), Pair(1, [Point(x=2)]), lambda: 0, Point]
)
def test_a_strict_saver_refuses_an_unknown_class_with_the_path_and_stores_nothing(url, value):
    saver = OutliveSaver(url, strict=True)
    with pytest.raises(outlive.errors.Unencodable) as refused:
        put(saver, "1", values={"good": 1, "a": [0, {"b": value}]})
    assert refused.value.path.startswith("a[1].b")
    with pytest.raises(outlive.errors.Unencodable) as refused:
        saver.put_writes(at(id="1"), [("good", 1), ("a", {"b": value})], "task")
    assert "task 'task', wrote it to channel 'a'" in str(refused.value)
    assert saver.get_tuple(at()) is None
    put(saver, "1")
    assert saver.get_tuple(at()).pending_writes == []
    saver.close()


def test_a_known_class_that_holds_an_unknown_one_is_refused_too(url):
    with OutliveSaver(url, types=[Pair], strict=True) as saver:
        assert sent_through(saver, Pair(1, [2])) == [Pair(1, [2])] * 4
        with pytest.raises(outlive.errors.Unencodable, match=r"Colour|Mute"):
            put(saver, "x", values={"a": Pair(1, [Colour.RED])})


@pytest.mark.parametrize("value", [Point(x=1), Pair("l", [1]), Colour.RED])
def test_a_class_may_be_named_in_types(url, value):
    with OutliveSaver(url, types=[type(value)]) as saver:
        assert sent_through(saver, value) == [value] * 4
    with OutliveSaver(url, strict=True) as stranger:
        with pytest.raises(outlive.errors.UnknownTag, match=type(value).__name__):
            stranger.get_tuple(at())
        with pytest.raises(outlive.errors.UnknownTag, match=type(value).__name__):
            list(stranger.list(at()))


class Moment(dt.datetime):
    pass


def test_a_subclass_of_a_type_that_langgraph_calls_by_name_is_refused_when_it_is_stored(saver):
    with pytest.raises(outlive.errors.Unencodable, match="Moment"):
        put(saver, "1", values={"a": Moment(2026, 1, 1)})


class Registered(BaseModel):
    x: int


outlive.register(Registered, tag="tests.langgraph.Registered")


def test_a_class_may_be_registered_with_outlive(saver):
    assert sent_through(saver, Registered(x=1)) == [Registered(x=1)] * 4


def test_a_class_may_be_added_by_with_allowlist_and_the_store_is_the_same(url):
    saver = OutliveSaver(url, strict=True)
    wider = saver.with_allowlist([(Point.__module__, "Point")])
    assert sent_through(wider, Point(x=1)) == [Point(x=1)] * 4
    assert type(wider) is OutliveSaver
    with pytest.raises(outlive.errors.UnknownTag):
        saver.get_tuple(at())
    assert saver.with_allowlist([]).serde is saver.serde
    saver.close()


# Each with something inside that LangGraph's serializer would change.
SAFE = [
    uuid.UUID(int=5), Document("text", metadata={"a": (1,)}), Send("node", {"a": [lc.HumanMessage("a"), (1,)]}),
    Interrupt({"a": (1, {2}), "b": None}, id="1"), Command(goto=("x",), update={"a": (1,)}), Overwrite([(1,)]),
    lc.RemoveMessage("1"), lc.HumanMessage("a", additional_kwargs={"a": (1, Document("b"))}),
    lc.ToolMessage("a", tool_call_id="1", artifact={"table": {(1, 2): {3}}}), lc.AIMessageChunk("a", more=(1,)),
]  # fmt: skip


@pytest.mark.parametrize("value", SAFE, ids=lambda value: type(value).__name__)
def test_types_of_langchain_and_langgraph_come_back_as_they_were(saver, value):
    found = sent_through(saver, value)
    assert [type(one) for one in found] == [type(value)] * 4
    assert found == [value] * 4
    assert [repr(one) for one in found] == [repr(value)] * 4


@pytest.mark.parametrize("value", SAFE, ids=lambda value: type(value).__name__)
def test_what_langgraph_s_serializer_wrote_of_them_is_still_read(saver, value):
    serde = JsonPlusSerializer()
    kind, data = serde.dumps_typed(value)
    code, payload = ormsgpack.unpackb(data, ext_hook=lambda code, payload: (code, payload))
    put(saver, "1", values={"a": Raw(FIRST + code, payload)})  # as the first version stored it
    assert value_of(saver) == serde.loads_typed((kind, data))


def test_in_langgraph_s_strict_mode_the_classes_of_the_state_are_known(folder):
    (folder / "program.py").write_text(
        textwrap.dedent(
            """
            import sys
            from typing import TypedDict
            from langgraph.graph import StateGraph, START, END
            from pydantic import BaseModel
            from outlive.adapters.langgraph import OutliveSaver

            class Point(BaseModel):
                x: int

            class State(TypedDict, total=False):
                point: Point

            builder = StateGraph(State)
            builder.add_node("go", lambda state: {"point": Point(x=state["point"].x + 1)})
            builder.add_edge(START, "go")
            builder.add_edge("go", END)
            with OutliveSaver(sys.argv[1]) as saver:
                graph = builder.compile(checkpointer=saver)
                config = {"configurable": {"thread_id": "t"}}
                graph.invoke({"point": Point(x=1)}, config)
                print(repr(graph.get_state(config).values))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), f"sqlite:///{folder}/agent.db"],
        env={"LANGGRAPH_STRICT_MSGPACK": "true", "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout.strip() == "{'point': Point(x=2)}", done.stderr


# Hostile bytes ------------------------------------------------------------------------------------------------


@pytest.fixture
def trap(folder, monkeypatch):
    """A module whose import leaves a trace."""
    name = f"trap_{uuid.uuid4().hex}"
    (folder / f"{name}.py").write_text(
        f"open({str(folder / 'sprung')!r}, 'w').close()\n"
        "class Boom:\n    def __init__(self, *a, **k): pass\n"
        "    model_construct = construct = model_validate_json = classmethod(lambda cls, *a, **k: cls())\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield name, folder / "sprung"
    sys.modules.pop(name, None)


def pack(value, **options):
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS, **options)


def hostile(name, sprung):
    """Yield typed values that ask for an import, as far as LangGraph's formats can say that."""
    for code, rest in [
        (0, ["x"]),
        (1, [["x"]]),
        (2, [{}]),
        (3, ["x", "fromisoformat"]),
        (4, [{}]),
        (5, [{}, "model_validate_json"]),
    ]:
        bomb = ormsgpack.Ext(code, pack([name, "Boom", *rest]))
        yield "msgpack", pack(bomb)
        yield "msgpack", pack({"a": [bomb]})
        yield "msgpack", pack(ormsgpack.Ext(0, pack(["builtins", "set", [bomb]])))
        yield "msgpack", pack(ormsgpack.Ext(7, pack(bomb)))
        yield "msgpack", pack(ormsgpack.Ext(6, pack([bomb, [1], "C", b""])))
    constructor = {"lc": 2, "type": "constructor", "id": [name, "Boom"], "args": [], "kwargs": {}}
    yield "json", json.dumps(constructor).encode()
    yield "json", json.dumps({"deep": [{**constructor, "method": "construct"}]}).encode()
    yield "json", json.dumps({"lc": 1, "type": "constructor", "id": [name, "Boom"], "kwargs": {}}).encode()
    yield "pickle", f"c{name}\nBoom\n(tR.".encode()
    for module, called, argument in [
        ("builtins", "eval", f"open({str(sprung)!r}, 'w')"),
        ("builtins", "open", str(sprung)),
        ("os", "system", f"touch {sprung}"),
        ("pathlib", "Path", str(sprung)),
    ]:
        yield "msgpack", pack(ormsgpack.Ext(0, pack([module, called, argument])))
        yield "msgpack", pack(ormsgpack.Ext(1, pack([module, called, [argument]])))
        yield "msgpack", pack(ormsgpack.Ext(3, pack([module, called, argument, "touch"])))


def test_no_bytes_make_the_strict_serializer_import_something(trap):
    name, sprung = trap
    serde = StrictSerializer([Point])
    for kind, data in hostile(name, sprung):
        with contextlib.suppress(Exception):  # it may raise, or give back something harmless
            serde.loads_typed((kind, data))
        assert name not in sys.modules, (kind, data)
        assert not sprung.exists()


def test_a_value_that_a_permissive_saver_stored_is_not_imported_by_a_strict_one(trap, url):
    name, sprung = trap
    boom = importlib.import_module(name).Boom()
    dataclasses.dataclass(type(boom))
    with OutliveSaver(url, serde=JsonPlusSerializer()) as permissive:
        put(permissive, "1", values={"a": [boom]})
        permissive.put_writes(at(id="1"), [("a", boom)], "task")
    del sys.modules[name]
    sprung.unlink()
    with OutliveSaver(url) as saver:
        with pytest.raises(outlive.errors.UnknownTag, match="Boom"):
            saver.get_tuple(at())
    assert name not in sys.modules
    assert not sprung.exists()


class Effective(BaseModel):
    """A model whose validator has an effect."""

    x: int = 1
    calls: ClassVar[list[str]] = []

    @field_validator("x")
    @classmethod
    def check(cls, x):
        cls.calls.append("validator")
        return x


@pytest.mark.parametrize("options", [{}, {"types": [Effective]}, {"types": [Effective], "strict": True}])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_row_in_the_form_of_langgraph_calls_no_data_class_of_the_program(url, options, is_nested):
    with OutliveSaver(url, serde=JsonPlusSerializer()) as hostile:
        put(hostile, "1", values={"a": Send("node", Effective()) if is_nested else Effective()})
    Effective.calls.clear()
    with OutliveSaver(url, **options) as saver:
        with pytest.raises(outlive.errors.UnknownTag, match=r"Effective.*the serde that wrote it"):
            saver.get_tuple(at())
        put(saver, "2", values={"a": Effective.model_construct(x=2)})
        assert value_of(saver, id="2") == Effective.model_construct(x=2)
    assert Effective.calls == []


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", pack([1])[:-1], pack(ormsgpack.Ext(0, b"\xc1")), pack(ormsgpack.Ext(5, pack([1, 2, 3])))],
)
def test_broken_bytes_raise_an_error_of_ours(data):
    with pytest.raises(outlive.OutliveError):
        StrictSerializer().loads_typed(("msgpack", data))


# Other serializers ----------------------------------------------------------------------------------------------


def test_langgraph_s_own_serializer_may_be_given(url):
    with OutliveSaver(
        url, serde=JsonPlusSerializer(allowed_msgpack_modules=[(Point.__module__, "Point")])
    ) as saver:
        assert sent_through(saver, Point(x=1)) == [Point(x=1)] * 4
        assert sent_through(saver, (1, {2})) == [(1, {2})] * 4  # what Python has itself is not its business


def test_pickle_is_used_where_it_is_asked_for(url):
    with OutliveSaver(url, serde=JsonPlusSerializer(pickle_fallback=True)) as saver:
        assert sent_through(saver, Mute())[0] == Mute()
    with OutliveSaver(url) as strict:
        with pytest.raises(outlive.OutliveError):
            strict.get_tuple(at())


class Shouting:
    """A serializer of the old kind."""

    def dumps(self, value):
        return json.dumps(value).upper().encode()

    def loads(self, data):
        return json.loads(data.lower())


class Typed:
    """A serializer of the new kind, which is nobody's heir."""

    def dumps_typed(self, value):
        return ("mine", repr(value).encode())

    def loads_typed(self, typed):
        assert typed[0] == "mine"
        return eval(typed[1])


@pytest.mark.parametrize("serde", [Shouting(), Typed()])
def test_a_serializer_of_one_s_own_gets_whole_channels(url, serde):
    with OutliveSaver(url, serde=serde) as saver:
        put(saver, "1", values={"a": ["x", {"b": 1}], "c": "text"}, tag="m")
        put(saver, "2", "1", values={"a": ["x", {"b": 1}], "c": "other"}, versions={"a": 1, "c": 2})
        saver.put_writes(at(id="2"), [("a", ["y"])], "task")
        found = saver.get_tuple(at())
        assert found.checkpoint["channel_values"] == {"a": ["x", {"b": 1}], "c": "other"}
        assert found.pending_writes == [("task", "a", ["y"])]
        assert found.metadata == meta()
        assert saver.get_tuple(at(id="1")).metadata == meta(tag="m")
        assert ids(saver.list(at(), filter={"tag": "m"})) == ["1"]
    with OutliveSaver(url) as other:
        with pytest.raises(outlive.errors.BadArgument, match="pass the saver the serde that wrote it"):
            other.get_tuple(at())


def test_a_serializer_may_be_assigned_at_any_time(saver):
    put(saver, "1", values={"a": ["plain", Document("d")]})
    saver.serde = encrypted()
    put(saver, "2", "1", values={"a": "secret"}, versions={"a": 2})
    assert value_of(saver, id="1") == ["plain", Document("d")]
    assert value_of(saver) == "secret"
    saver.serde = StrictSerializer()
    assert value_of(saver, id="1") == ["plain", Document("d")]
    with pytest.raises(outlive.errors.BadArgument, match="serde"):
        saver.get_tuple(at())
    put(saver, "3", "2", values={"a": "plain again"}, versions={"a": 3})
    assert value_of(saver) == "plain again"


# Encryption -----------------------------------------------------------------------------------------------------


def encrypted(key=b"0123456789abcdef"):
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


class Vault(TypedDict, total=False):
    secret: str
    number: float
    messages: Annotated[list, add_messages]
    nested: dict


def fill(saver):
    """Run a graph whose every value is a secret; return the secrets."""
    secrets = {
        name: f"{name}-{uuid.uuid4()}"
        for name in ("str", "message", "dict key", "dict value", "metadata", "write")
    }

    def node(state):
        return {
            "secret": secrets["str"],
            "messages": [lc.AIMessage(secrets["message"])],
            "nested": {secrets["dict key"]: [secrets["dict value"]]},
        }

    driver = Driver(saver)
    graph = driver.compile(line(Vault, node=node, again=lambda state: {"number": 0.5}))
    config = {**thread(), "metadata": {"customer": secrets["metadata"]}}
    driver.invoke(graph, {"secret": secrets["str"]}, config)
    state = driver.state(graph, thread())
    saver.put_writes(state.config, [("secret", secrets["write"])], "task")
    assert state.values["nested"] == {secrets["dict key"]: [secrets["dict value"]]}
    assert state.metadata["customer"] == secrets["metadata"]
    return secrets


def stored_bytes(url, folder):
    """Return all that is stored: the files, and the chunks without their compression."""
    with outlive.open(url) as store:
        engine, key = store._store._engine, store._store._key("t")
        records = run_now(engine.records(key))
        writes = run_now(engine.backend.writes(key, None))
        names = list({name for owner in (*records, *writes) for name in owner.chunks})
        data = run_now(engine.backend.fetch(key, names))
        chunks = [engine.raw(name, data[name]) for name in names]
        bodies = [*(record.body for record in records), *(write.body for write in writes)]
        bodies += [record.projection.encode() for record in records if record.projection]
    return b"".join([*chunks, *bodies, *(path.read_bytes() for path in folder.iterdir() if path.is_file())])


def test_encryption_leaves_nothing_in_plain_text(folder):
    found = {}
    for name in ("plain", "sealed"):
        place = folder / name
        place.mkdir()
        url = f"sqlite:///{place}/agent.db"
        with OutliveSaver(url, serde=encrypted() if name == "sealed" else None) as saver:
            secrets = fill(saver)
        everything = stored_bytes(url, place)
        found[name] = {kind for kind, secret in secrets.items() if secret.encode() in everything}
        assert (b"again" in everything) or name == "sealed"
    assert found["plain"] == set(secrets), "this test would not see a secret"
    assert found["sealed"] == set()


def test_encrypted_graphs_do_what_others_do_and_another_key_reads_nothing(url):
    with OutliveSaver(url, serde=encrypted()) as saver:
        fill(saver)
        saver.prune(["t"])
        saver.copy_thread("t", "u")
        assert saver.get_tuple(at("u")) is not None
    with OutliveSaver(url, serde=encrypted(b"another key.....")) as stranger:
        with pytest.raises(outlive.errors.BadArgument, match="EncryptedSerializer cannot read"):
            stranger.get_tuple(at())


@pytest.mark.parametrize(
    "serde, hides_edits", [(encrypted(), True), (Typed(), False)], ids=["encrypted", "own"]
)
def test_sealed_channels_are_shared_as_long_as_their_version_stays(url, serde, hides_edits, folder):
    chance = random.Random(SEED)
    big = [chance.randbytes(300) for _ in range(300)]  # hard to compress
    with OutliveSaver(url, serde=serde) as saver:
        versions = {"big": 1, "small": 0}
        saver.put(at(), checkpoint("0", {"big": big, "small": 0}, versions), meta(), versions)
        first = added(url, "t")
        for number in range(1, 30):
            made = checkpoint(str(number), {"big": big, "small": number}, {"big": 1, "small": number})
            saver.put(at(id=str(number - 1)), made, meta(number), {"small": number})
        rest = added(url, "t") - first
        assert rest < 29 * 1500 < first
        made = checkpoint("changed", {"big": big[1:], "small": 29}, {"big": 2, "small": 29})
        saver.put(at(id="29"), made, meta(), {"big": 2})
        # Encrypted bytes have nothing in common with those before; of others the edit is stored.
        assert (added(url, "t") - first - rest > first / 2) is hides_edits
        assert value_of(saver, "big") == big[1:]
        assert value_of(saver, "big", "0") == value_of(saver, "big", "29") == big


def added(url, name):
    with outlive.open(url) as store:
        engine, key = store._store._engine, store._store._key(name)
        (row,) = run_now(engine.backend.threads(ThreadQuery(key.tenant, only=key.id, heads=False)))
        return row.stored


def test_what_was_sealed_under_a_version_is_not_taken_for_another_thread_or_branch(url):
    with OutliveSaver(url, serde=encrypted()) as saver:
        put(saver, "1", values={"a": "one"}, versions={"a": 1})
        put(saver, "2", "1", values={"a": "two"}, versions={"a": 2})
        made = checkpoint("3", {"a": "one"}, {"a": 1})
        saver.put(at(id="1"), made, meta(), {})  # a fork: the newest is not its parent
        assert value_of(saver) == "one"
        made = checkpoint("4", {"a": "four"}, {"a": 1})
        saver.put(at(id="3"), made, meta(), {"a": 1})  # its version is new, whatever its number
        assert value_of(saver) == "four"


@pytest.mark.parametrize("is_sealed", [False, True])
def test_threads_whose_metadata_only_the_saver_can_read_are_listed_as_all_others(url, is_sealed):
    with outlive.open(url) as store:
        saver = OutliveSaver(store, serde=encrypted() if is_sealed else None)
        store.thread("a state of its own").save({"n": 1})
        for name in ("t", "u"):
            put(
                saver,
                "1",
                values={"a": "x"},
                thread=name,
                run_id="one",
                said=lc.HumanMessage("in the metadata"),
            )
            put(
                saver,
                "2",
                "1",
                values={"a": "y"},
                thread=name,
                run_id="two",
                said=lc.HumanMessage("in the metadata"),
            )
        assert [info.id for info in store.threads()] == ["a state of its own", "t", "u"]
        assert [found.id for found in store.thread("t").history()] == ["2", "1"]
        assert store.size().threads == 3
        assert len(list(saver.list(None))) == 4
        assert {found.metadata["said"].content for found in saver.list(None)} == {"in the metadata"}
        saver.delete_for_runs(["two"])
        assert ids(saver.list(at("u"))) == ids(saver.list(at("t"))) == ["1"]


# Messages -----------------------------------------------------------------------------------------------------------

text = st.text(max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
facts = st.dictionaries(text, plain, max_size=3)
content = text | st.lists(text | st.fixed_dictionaries({"type": st.just("text"), "text": text}), max_size=3)
common = {
    "content": content,
    "additional_kwargs": facts,
    "response_metadata": facts,
    "name": st.none() | text,
    "id": st.none() | text,
}
call = st.fixed_dictionaries(
    {"name": text, "args": facts, "id": st.none() | text, "type": st.just("tool_call")}
)
bad_call = st.fixed_dictionaries(
    {"name": text, "args": text, "id": text, "error": st.none() | text, "type": st.just("invalid_tool_call")}
)
usage = st.none() | st.builds(
    lambda a, b: {"input_tokens": a, "output_tokens": b, "total_tokens": a + b, "input_token_details": {"cache_read": a}},
    st.integers(0, 9), st.integers(0, 9),
)  # fmt: skip
ai = {
    **common,
    "tool_calls": st.lists(call, max_size=2),
    "invalid_tool_calls": st.lists(bad_call, max_size=1),
    "usage_metadata": usage,
}
tool = {**common, "tool_call_id": text, "artifact": plain, "status": st.sampled_from(["success", "error"])}

_NOTHING = st.just({})


def made_of(kind, fields, extras=_NOTHING):
    return st.tuples(st.fixed_dictionaries(fields), extras).map(lambda both: kind(**{**both[1], **both[0]}))


extra = st.dictionaries(st.sampled_from(["extra", "more"]), plain, max_size=1)
message = st.one_of(
    made_of(lc.HumanMessage, common, extra), made_of(lc.SystemMessage, common), made_of(lc.AIMessage, ai, extra),
    made_of(lc.ToolMessage, tool), made_of(lc.ChatMessage, {**common, "role": text}),
    made_of(lc.FunctionMessage, {**common, "name": text}), text.map(lc.RemoveMessage),
    made_of(lc.AIMessageChunk, common), made_of(lc.HumanMessageChunk, common),
)  # fmt: skip


@given(st.lists(message, min_size=1, max_size=4))
@settings(max_examples=60)
def test_messages_come_back_as_they_were_and_as_langgraph_gives_them_back(value):
    serde = JsonPlusSerializer()
    expected = serde.loads_typed(serde.dumps_typed(value))
    with OutliveSaver("memory:") as saver:
        put(saver, "1", values={"a": value, "alone": value[0]})
        saver.put_writes(at(id="1"), [("a", value), ("a", value[0])], "task")
        found = saver.get_tuple(at())
        lists = [found.checkpoint["channel_values"]["a"], found.pending_writes[0][2]]
        alone = [found.checkpoint["channel_values"]["alone"], found.pending_writes[1][2]]
    for back in lists:
        assert back == value
        assert [type(item) for item in back] == [type(item) for item in expected]
        assert [item.model_dump() for item in back] == [item.model_dump() for item in expected]
        assert [item.__pydantic_extra__ for item in back] == [item.__pydantic_extra__ for item in expected]
        assert [item.model_copy(update={"name": "n"}).name for item in back] == ["n"] * len(back)
    assert alone == [expected[0]] * 2


@pytest.mark.parametrize("wrap", [list, tuple, lambda pair: pair[1]], ids=["list", "tuple", "alone"])
def test_objects_inside_messages_come_back_or_are_refused(url, wrap):
    """One rule, wherever a message stands: in a list of messages, in anything else, alone."""
    with OutliveSaver(url, types=[Point]) as saver:
        said = lc.AIMessage("a", additional_kwargs={"parsed": Point(x=1)})
        answer = lc.ToolMessage("b", tool_call_id="1", artifact=[Document("d"), (1, {2}), Point(x=2)])
        value = wrap((said, answer))
        put(saver, "1", values={"a": value})
        saver.put_writes(at(id="1"), [("a", value)], "task")
        found = saver.get_tuple(at())
        assert repr(found.checkpoint["channel_values"]["a"]) == repr(value)
        assert repr(found.pending_writes[0][2]) == repr(value)
    with OutliveSaver("memory:", strict=True) as strict:
        with pytest.raises(outlive.errors.Unencodable, match="Point") as refused:
            put(strict, "1", values={"a": [said]})
        assert refused.value.path == "a[0].additional_kwargs.parsed"
        with pytest.raises(outlive.errors.Unencodable, match="Point") as refused:
            put(strict, "1", values={"a": said})
        assert refused.value.path == "a.additional_kwargs.parsed"


def test_a_message_of_a_class_of_one_s_own_is_not_taken_for_its_parent(url):
    with OutliveSaver(url, strict=True) as saver:
        with pytest.raises(outlive.errors.Unencodable, match="Whispered"):
            put(saver, "1", values={"a": [lc.HumanMessage("a"), Whispered("b", volume=1)]})
    with OutliveSaver(url, types=[Whispered]) as saver:
        put(saver, "1", values={"a": [lc.HumanMessage("a"), Whispered("b", volume=1)]})
        assert type(value_of(saver)[1]) is Whispered
        assert value_of(saver)[1].volume == 1


class Whispered(lc.HumanMessage):
    volume: int = 0


def test_a_message_with_other_fields_than_today_is_built_by_its_class(saver):
    older = {
        "type": "ai",
        "content": "a",
        "id": "1",
        "tool_calls": [{"name": "f", "args": {}, "id": "2", "type": "tool_call"}],
    }
    newer = {**lc.HumanMessage("b").__dict__, "field_of_tomorrow": 1}
    put(saver, "1", values={"a": Messages([older, newer])})
    first, second = value_of(saver)
    assert first == lc.AIMessage("a", id="1", tool_calls=older["tool_calls"])
    assert first.usage_metadata is None
    assert (second.content, second.field_of_tomorrow) == ("b", 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "ai", "content": 3},
        {"type": "nobody"},
        {},
        {"type": ["ai"]},
        {"type": "tool", "content": "x"},
    ],
)
def test_a_message_that_cannot_be_built_raises_an_error_of_ours(saver, fields):
    put(saver, "1", values={"a": Messages([fields])})
    with pytest.raises(outlive.OutliveError):
        saver.get_tuple(at())
