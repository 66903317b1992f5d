"""Classes of one's own: what is named in `types` comes back as it was, or is refused when it is stored."""

import collections
import dataclasses
import enum
import operator
import sys
import types
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import numpy
import pydantic.dataclasses
import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.types import Send
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
)

import outlive
from adapters.langgraph.graphs import line, thread
from adapters.langgraph.making import at, put
from outlive.adapters.langgraph import OutliveSaver, StrictSerializer
from outlive.adapters.langgraph.values import user_types as naming

T = TypeVar("T")


class Base(BaseModel):
    a: int = 1


class Derived(Base):
    b: int = 2


class Holder(BaseModel):
    item: Base
    anything: Any = None


class Hidden(BaseModel):
    """Whose dump leaves things out, adds some, and changes others."""

    model_config = ConfigDict(extra="forbid")
    kept: int = Field(alias="keptAs")
    left_out: int = Field(default=0, exclude=True)
    shown: int = 1
    _private: int = PrivateAttr(default=0)

    @computed_field
    def doubled(self) -> int:
        return self.kept * 2

    @field_serializer("shown")
    def _show(self, value):
        return f"<{value}>"


class Numbers(RootModel[list[int]]):
    pass


class Box(BaseModel, Generic[T]):
    inside: T


class Outer:
    class Inner(BaseModel):
        x: int = 1

    class Kind(enum.Enum):
        ONE = 1


@dataclasses.dataclass
class Counted:
    """Whose making changes it, and which has a field that cannot be given."""

    x: int
    made: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        self.x += 1


@pydantic.dataclasses.dataclass
class Checked:
    x: int
    made: int = dataclasses.field(default=0, init=False)


class Pair(NamedTuple):
    left: Any
    right: Any


class Text(str):
    __slots__ = ()


class Said(BaseModel):
    messages: list[BaseMessage]
    any: list[AnyMessage] = []


hidden = Hidden(keptAs=3, left_out=4)
hidden._private = 5
VALUES = [
    Holder(item=Derived(a=3, b=4), anything=(Base(), {1})), hidden, Numbers([1, 2]), Box[int](inside=3), Outer.Inner(), Outer.Kind.ONE,
    Counted(1), Checked(2), Pair((1, Base()), [Counted(5)]), Text("a"), Base.model_construct(a="not a number"),
    Said(messages=[HumanMessage("a", additional_kwargs={"t": (1,)}), AIMessage("b")], any=[AIMessage("c")]),
]  # fmt: skip
TYPES = [
    Base,
    Derived,
    Holder,
    Hidden,
    Numbers,
    Box[int],
    Outer.Inner,
    Outer.Kind,
    Counted,
    Checked,
    Pair,
    Text,
    Said,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_of_a_class_that_is_named_comes_back_exactly(value):
    with OutliveSaver("memory:", types=TYPES) as saver:
        put(saver, "1", values={"a": value, "b": [value, {"deep": (value,)}]})
        saver.put_writes(at(id="1"), [("a", value), ("b", Send("node", {"x": value}))], "task")
        found = saver.get_tuple(at())
    values = found.checkpoint["channel_values"]
    writes = [write[2] for write in found.pending_writes]
    for back in (values["a"], values["b"][0], values["b"][1]["deep"][0], writes[0], writes[1].arg["x"]):
        assert type(back) is type(value)
        assert repr(back) == repr(value)
        assert back == value
        if isinstance(value, Hidden):
            assert (back.left_out, back._private) == (4, 5)


def test_what_the_annotations_of_a_class_name_is_known_with_it():
    class Deep(BaseModel):
        base: Base | None = None
        kinds: dict[str, list[Outer.Kind]] = {}
        odd: collections.defaultdict[str, int] | None = None

    value = Deep(base=Base(a=3), kinds={"a": [Outer.Kind.ONE]}, odd=collections.defaultdict(int, a=1))
    with OutliveSaver("memory:", types=[Deep], strict=True) as saver:
        put(saver, "1", values={"a": value})
        assert saver.get_tuple(at()).checkpoint["channel_values"]["a"] == value
        with pytest.raises(outlive.errors.Unencodable, match="Derived"):  # nobody said that there are such
            put(saver, "2", values={"a": Deep(base=Derived())})


class Trip(TypedDict):
    legs: Annotated[list["Leg"], operator.add]
    plan: NotRequired[Holder | None]


class Leg(BaseModel):
    city: str
    kind: Outer.Kind = Outer.Kind.ONE


def test_to_name_the_class_of_the_state_is_enough():
    leg, plan = Leg(city="Lisbon"), Holder(item=Base())
    builder = line(Trip, go=lambda state: {"legs": [leg], "plan": plan})
    with OutliveSaver("memory:", types=[Trip]) as saver:
        graph = builder.compile(checkpointer=saver)
        assert graph.invoke({"legs": [leg]}, thread()) == {"legs": [leg, leg], "plan": plan}
        assert graph.get_state(thread()).values == {"legs": [leg, leg], "plan": plan}
    with (
        OutliveSaver("memory:", strict=True) as saver,
        pytest.raises(outlive.errors.Unencodable, match=r"\.Leg is not known.*types="),
    ):
        builder.compile(checkpointer=saver).invoke({"legs": [leg]}, thread())


def test_two_named_classes_may_have_the_same_name():
    class First:
        @dataclasses.dataclass
        class State:
            a: int

    class Second:
        @dataclasses.dataclass
        class State:
            b: int

    value = [First.State(1), Second.State(2)]
    with OutliveSaver("memory:", types=[First.State, Second.State], strict=True) as saver:
        put(saver, "1", values={"a": value})
        assert saver.get_tuple(at()).checkpoint["channel_values"]["a"] == value


def test_a_class_that_is_defined_again_is_the_one_that_langgraph_names(monkeypatch):
    """LangGraph names classes by module and name, at every call of a subgraph."""
    module = types.ModuleType("notebook_of_tests")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    name = (module.__name__, "Plan")
    saver = OutliveSaver("memory:", strict=True)
    for number in range(2):
        module.Plan = dataclasses.make_dataclass("Plan", [("days", int), ("more", int, number)])
        module.Plan.__module__ = module.__name__
        named = saver.with_allowlist([name])
        assert named.with_allowlist([name]).serde is named.serde
        if not number:
            put(named, "1", values={"a": module.Plan(3)})
        assert named.get_tuple(at()).checkpoint["channel_values"]["a"] == module.Plan(3, 0)
    saver.close()


@pytest.mark.parametrize(
    "value",
    [numpy.ma.array([1, 2], mask=[0, 1]), numpy.zeros(2, "i4,f8").view(numpy.recarray)],
    ids=lambda value: type(value).__name__,
)
def test_an_array_that_is_more_than_an_array_is_refused(value):
    """LangGraph's serializer would store the array alone, and lose a mask without a word."""
    with (
        OutliveSaver("memory:") as saver,
        pytest.raises(outlive.errors.Unencodable, match=r"store numpy.asarray\(value\)"),
    ):
        put(saver, "1", values={"a": value})


def test_secrets_are_stored_only_when_their_class_is_named():
    class Login(BaseModel):
        password: SecretStr

    with OutliveSaver("memory:", types=[Login]) as saver:
        with pytest.raises(outlive.errors.Unencodable, match="SecretStr"):
            put(saver, "1", values={"a": Login(password="x")})
    with OutliveSaver("memory:", types=[Login, SecretStr]) as saver:
        put(saver, "1", values={"a": Login(password="x")})
        assert saver.get_tuple(at()).checkpoint["channel_values"]["a"].password.get_secret_value() == "x"


def test_an_upgrade_or_another_name_takes_over_what_was_stored_by_types(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    Old = _of_app(dataclasses.make_dataclass("Old", [("days", int), ("city", str)]))
    with OutliveSaver(url, types=[Old]) as saver:
        put(saver, "1", values={"a": Old(days=3, city="Lisbon")})
    Renamed = dataclasses.make_dataclass("Renamed", [("days", int), ("cities", list)])
    outlive.register(
        Renamed,
        tag="app:Old",
        version=2,
        upgrade={1: lambda fields: {"days": fields["days"], "cities": [fields["city"]]}},
    )
    with OutliveSaver(url) as saver:
        value = saver.get_tuple(at()).checkpoint["channel_values"]["a"]
        assert value == Renamed(3, ["Lisbon"])
        put(saver, "2", values={"a": value})
        assert saver.get_tuple(at()).checkpoint["channel_values"]["a"] == value


def _model(**fields):
    return type(
        "Plan", (BaseModel,), {"__module__": "app", "__annotations__": dict.fromkeys(fields, Any), **fields}
    )


def _dataclass(**fields):
    return _of_app(dataclasses.make_dataclass("Plan", [(name, Any, one) for name, one in fields.items()]))


def _of_app(kind):
    kind.__module__ = "app"
    return kind


@pytest.mark.parametrize("make", [_model, _dataclass])
def test_a_class_that_has_changed_takes_what_was_stored_or_says_what_to_do(tmp_path, make):
    url = f"sqlite:///{tmp_path}/a.db"
    with OutliveSaver(url, types=[Plan := make(days=1, city="")]) as saver:
        put(saver, "1", values={"a": Plan(days=3, city="Lisbon")})
    with OutliveSaver(url, types=[make(days=1, city="", more=7)]) as saver:
        assert saver.get_tuple(at()).checkpoint["channel_values"]["a"].more == 7
    with OutliveSaver(url, types=[Less := make(days=1)]) as saver:
        if issubclass(Less, BaseModel):  # it drops what it does not know
            assert saver.get_tuple(at()).checkpoint["channel_values"]["a"].days == 3
        else:
            with pytest.raises(outlive.errors.TypeChanged, match=r"no field 'city'.*upgrade"):
                saver.get_tuple(at())
    with (
        OutliveSaver(url) as saver,
        pytest.raises(outlive.errors.UnknownTag, match=r"app:Plan.*import app before"),
    ):
        saver.get_tuple(at())


@pytest.mark.parametrize("value", [hidden, Counted(1), Numbers([1])], ids=lambda value: type(value).__name__)
def test_a_serializer_on_the_strict_one_refuses_what_langgraph_s_form_would_change(value):
    """A serializer that encrypts gets that form: it is tried before it is stored."""
    with pytest.raises(TypeError, match=r"could not be loaded again|come back changed"):
        StrictSerializer([type(value)]).dumps_typed({"a": value})
    inner = StrictSerializer([Outer.Inner])
    assert inner.loads_typed(inner.dumps_typed([Outer.Inner(x=2)])) == [Outer.Inner(x=2)]


def test_what_are_no_classes_is_refused_at_the_constructor():
    for wrong in (Base, ["Base"], [Base()], [list[int]], 3, "app.Plan", Outer.Kind):
        with pytest.raises(outlive.errors.BadArgument, match="types must be"):
            OutliveSaver("memory:", types=wrong)


def test_an_annotation_that_cannot_be_read_hides_nothing_but_itself():
    @dataclasses.dataclass
    class LayoutChanged:
        x: "nowhere.at.all" = 1  # noqa: F821
        y: "collections.no_such_thing" = 2

    assert naming.UserTypes([LayoutChanged]).of(LayoutChanged) is not None


@pytest.mark.parametrize(
    "value",
    [[HumanMessage("a")], HumanMessage("a"), Send("a", 1)],
    ids=lambda value: type(value).__name__,
)
def test_who_reads_it_without_the_saver_is_sent_there(value):
    with outlive.open("memory:") as store:
        put(OutliveSaver(store), "1", values={"a": value})
        with pytest.raises(outlive.errors.UnknownTag, match="read it through that adapter"):
            store.thread("t").load()
