"""The table in docs/langgraph.md of what a graph may hold: each row is tried in a graph."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import functools
import operator
import re
import subprocess
import sys
import threading
import uuid
import zoneinfo
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import msgspec
import numpy
import pydantic
import pydantic.v1
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, Send, interrupt

from outlive.adapters.langgraph import OutliveSaver
from outlive.errors import Unencodable
from outlive.testing.patience import PATIENCE_S
from rig.program import environment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "langgraph.md"
T = TypeVar("T")


@dataclass
class Leg:
    to: str
    ready: list[str] = field(default_factory=list)

    def __post_init__(self):
        if self.to == "no":
            raise ValueError("validated")


@dataclass
class Counted:
    items: list[int]

    def __post_init__(self):
        self.count = len(self.items)

    @functools.cached_property
    def total(self):
        return sum(self.items)


@attrs.define
class Hotel:
    name: str


class Fare(msgspec.Struct):
    eur: int


class Spot(NamedTuple):
    x: int
    y: int


class Kind(enum.Enum):
    TRAIN = "train"


class Level(enum.IntEnum):
    HIGH = 3


class Seat(pydantic.BaseModel):
    row: int
    leg: Leg | None = None
    _note: str = pydantic.PrivateAttr("window")


class Fixed(pydantic.BaseModel, frozen=True):
    n: int


class Box(pydantic.BaseModel, Generic[T]):
    content: T


class Old(pydantic.v1.BaseModel):
    n: int


@dataclass
class Closing:
    n: int

    def __del__(self):
        pass


class Outer:
    @dataclass
    class Inner:
        n: int


def local():
    @dataclass
    class Local:
        n: int

    return Local(4)


class Shout(str):  # noqa: SLOT000  # it has attributes
    volume = 11


class Bag(dict):
    pass


def with_attribute(value, **attributes):
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


ROWS: dict[str, list[Any]] = {
    "`None`, bool, int of any size, float, str, bytes, complex": [
        None, True, 1 << 300, -0.5, float("inf"), "a\0\ud800", b"\0\xff", 2 + 3j,
    ],
    "list, tuple, set, frozenset, dict with any keys": [
        [1, (2, [3])], {1, 2}, frozenset({3}), {1: "a", (2, 3): "b", None: "c"},
    ],
    "datetime, date, time, timedelta, UUID, Decimal, `ZoneInfo`, `Path`, `re.Pattern`": [
        dt.datetime(2026, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Lisbon")), dt.date(2026, 7, 1), dt.time(9, 5),
        dt.timedelta(days=2, microseconds=1), uuid.UUID(int=5), decimal.Decimal("1.50"), zoneinfo.ZoneInfo("UTC"),
        Path("a/b"), re.compile("a+", re.IGNORECASE),
    ],
    "`deque`, `Counter`, `OrderedDict`, `defaultdict` of a built-in type": [
        collections.deque([1, 2], maxlen=5), collections.Counter("aab"), collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, {"a": [1]}),
    ],
    "numpy arrays and scalars": [numpy.arange(6.0).reshape(2, 3), numpy.float32(0.5), numpy.int64(7)],
    "messages, documents, `Send`, `Command`, `Interrupt`": [
        HumanMessage("a", id="1"), [AIMessage("b"), ToolMessage("c", tool_call_id="1", artifact=Leg("x"))],
        Document("d", metadata={"n": 1}), Send("node", {"leg": Leg("x")}), Command(goto="a", update={"n": 1}),
        Interrupt("v", id="i"),
    ],
    "dataclasses, attrs classes, msgspec structs, named tuples, enums": [
        Leg("Lisbon", ["a"]), Hotel("Sol"), Fare(40), Spot(1, 2), Kind.TRAIN, Level.HIGH,
    ],
    "pydantic models: nested, generic, frozen, with private attributes, of `pydantic.v1`": [
        Seat(row=3, leg=Leg("x")), with_attribute(Seat(row=4), _note="aisle"), Fixed(n=1), Box[int](content=4), Old(n=5),
    ],
    "`Box[int]`, in a process that has not made `Box[int]` yet": [],  # see below
    "classes inside a function or another class": [local(), Outer.Inner(3)],
    "subclasses of str, bytes, int, float, list, tuple, dict, set": [
        Shout("a"), with_attribute(Shout("b"), volume=3), with_attribute(Bag(a=1), owner="ada"),
        *(type(f"My{base.__name__}", (base,), {"__module__": __name__})() for base in (bytes, int, float, list, tuple, set)),
    ],
    "attributes that `__post_init__` or a method sets, beside the fields": [
        Counted([1, 2]), with_attribute(Counted([3]), label="a"),
    ],
    "exceptions": [ValueError("no seats")],
    "`SecretStr`, `HttpUrl` and other classes that are no data": [
        pydantic.SecretStr("x"), pydantic.HttpUrl("https://example.com"),
    ],
    "subclasses of `numpy.ndarray`, arrays of objects or records": [
        numpy.ma.masked_array([1, 2], [True, False]), numpy.array([object()]), numpy.zeros(2, dtype=[("a", "i4")]),
    ],
    "data classes with a `__del__`, which a row could make run": [Closing(1)],
    "functions, classes, connections, open files": [len, lambda: 1, Leg, threading.Lock(), (n for n in ())],
}  # fmt: skip


def table():
    """Return the rows of the table: a value → comes back."""
    lines = (
        PAGE.read_text(encoding="utf-8").split("| a value | comes back |\n|---|---|\n")[1].split("\n\n")[0]
    )
    return dict(line.strip("| ").split(" | ", 1) for line in lines.splitlines())


def parts(value):
    """Return a value with its type and attributes, all the way down, for comparing."""
    if isinstance(value, enum.Enum):
        return value
    attributes = {
        name: parts(item) for name, item in getattr(value, "__dict__", {}).items() if name != "total"
    }
    if isinstance(value, dict):
        return type(value), [(parts(key), parts(item)) for key, item in value.items()], attributes
    if isinstance(value, list | tuple | collections.deque):
        return type(value), [parts(item) for item in value], attributes
    if isinstance(value, numpy.ndarray | numpy.generic):
        return type(value), value.dtype, value.shape, value.tolist()
    private = getattr(value, "__pydantic_private__", None)
    return type(value), private, attributes or value


class State(TypedDict, total=False):
    value: Any
    results: Annotated[list, operator.add]


def in_state(value, saver, thread="t"):
    """Return a value from the state of a graph, which another process of the program would load."""
    builder = StateGraph(State).add_node("make", lambda state: {"value": value}).add_edge(START, "make")
    graph, config = builder.compile(checkpointer=saver), {"configurable": {"thread_id": thread}}
    graph.invoke({}, config)
    return graph.get_state(config).values["value"]


def in_interrupt(value, saver, thread="t"):
    builder = StateGraph(State).add_node("ask", lambda state: {"results": [interrupt(value)]})
    graph = builder.add_edge(START, "ask").compile(checkpointer=saver)
    config = {"configurable": {"thread_id": thread}}
    graph.invoke({}, config)
    return graph.get_state(config).tasks[0].interrupts[0].value


def in_task(value, saver, thread="t"):
    make = task(lambda: value, name="make")

    @entrypoint(checkpointer=saver)
    def agent(given):
        made = make().result()
        interrupt("wait")
        return [made]

    config = {"configurable": {"thread_id": thread}}
    agent.invoke(1, config)
    (result,) = agent.invoke(Command(resume=1), config)
    return result


def in_artifact(value, saver, thread="t"):
    message = ToolMessage("x", tool_call_id="1", artifact=value)
    return in_state([message], saver, thread)[0].artifact


PLACES = {"state": in_state, "interrupt": in_interrupt, "task": in_task, "artifact": in_artifact}
# What LangGraph itself treats in its own way in these places.
OWN_WAY = {"task": (Command,), "artifact": (Interrupt, Send, Command, HumanMessage, Document)}


def test_every_row_is_tried():
    assert list(table()) == list(ROWS)


def comes_back(row):
    return table()[row].startswith("as it was")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("row", [row for row in ROWS if comes_back(row)])
def test_what_comes_back_as_it_was(row, place, tmp_path):
    with OutliveSaver(f"sqlite:///{tmp_path}/agent.db") as saver:
        for number, value in enumerate(ROWS[row]):
            if not isinstance(value, OWN_WAY.get(place, ())):
                assert parts(PLACES[place](value, saver, f"t{number}")) == parts(value), (number, value)


def test_a_cached_property_is_computed_again(tmp_path):
    counted = Counted([1, 2])
    assert counted.total == 3
    with OutliveSaver(f"sqlite:///{tmp_path}/agent.db") as saver:
        loaded = in_state(counted, saver)
    assert "total" not in vars(loaded)
    assert (loaded.count, loaded.total) == (2, 3)


def test_objects_are_neither_validated_nor_built_again(tmp_path):
    leg = Leg("x")
    leg.to = "no"  # __post_init__ would refuse it
    seat = Seat(row=1)
    seat.__dict__["row"] = "odd"
    with OutliveSaver(f"sqlite:///{tmp_path}/agent.db") as saver:
        loaded = in_state([leg, seat], saver)
    assert (loaded[0].to, loaded[1].row) == ("no", "odd")


def test_exceptions_come_back_as_text(tmp_path):
    (error,) = ROWS["exceptions"]
    with OutliveSaver(f"sqlite:///{tmp_path}/agent.db") as saver:
        assert in_state(error, saver) == repr(error)


@pytest.mark.parametrize("row", [row for row in ROWS if table()[row].startswith("refused")])
def test_what_is_refused_says_which_node_and_channel(row, tmp_path):
    with OutliveSaver(f"sqlite:///{tmp_path}/agent.db") as saver:
        for value in ROWS[row]:
            with pytest.raises(Unencodable, match=r"node 'make'.*channel 'value'"):
                in_state(value, saver)
            assert in_state(1, saver) == 1  # the thread continues


def test_an_array_comes_back_in_c_order(tmp_path):
    array = numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3))
    with OutliveSaver(f"sqlite:///{tmp_path}/agent.db") as saver:
        loaded = in_state(array, saver)
    assert loaded.flags.c_contiguous
    assert loaded.tolist() == array.tolist()


BOXES = """
import sys
from typing import Any, Generic, TypedDict, TypeVar
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from outlive.adapters.langgraph import OutliveSaver

T = TypeVar("T")

class Box(BaseModel, Generic[T]):
    content: T

class State(TypedDict):
    value: Any

config = {"configurable": {"thread_id": "t"}}
with OutliveSaver("sqlite:///boxes.db") as saver:
    builder = StateGraph(State).add_node("make", lambda state: {"value": Box[int](content=4)})
    graph = builder.add_edge(START, "make").compile(checkpointer=saver)
    if sys.argv[1] == "save":
        graph.invoke({}, config)
    else:
        value = graph.get_state(config).values["value"]
        print(type(value) is Box, value == Box[int](content=4))
"""


def test_a_generic_model_of_another_process_is_equal(tmp_path):
    (tmp_path / "boxes.py").write_text(BOXES)
    for command in ("save", "load"):
        ended = subprocess.run(
            [sys.executable, "boxes.py", command],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
    assert ended.stdout == "True True\n"
