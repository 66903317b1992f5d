"""Every type comes back equal and of the same type, or is refused at save with its path."""

import array
import collections
import contextvars
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import importlib.util
import itertools
import os
import pathlib
import random
import re
import struct
import sys
import threading
import typing
import uuid
import zoneinfo
from decimal import Decimal

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import outlive
from outlive.errors import BadArgument, Corrupt, NeedsUpgrade, OutliveError, Unencodable, UnknownTag
from outlive.format.codec import Codec, Opaque
from outlive.format.registry import Registry, default_registry

LONG = bool(os.environ.get("OUTLIVE_LONG"))
examples = functools.partial(
    settings, deadline=None, database=None, derandomize=not LONG, suppress_health_check=list(HealthCheck)
)

# Hypothesis writes down a strategy that it had to try again; ours are long.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

BAD = object()

# The user's types ---------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, "two")
    NOTHING = None


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2**70


class Mood(enum.StrEnum):
    GOOD = "good"
    ODD = "\ud800"


class Old(str, enum.Enum):  # noqa: UP042
    A = "a"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Step:
    name: str
    args: dict = dataclasses.field(default_factory=dict)
    result: object = None


@dataclasses.dataclass(frozen=True)
class Point:
    x: object
    y: object = 0


@dataclasses.dataclass(frozen=True)
class Point3(Point):
    z: object = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Slotted:
    a: int
    b: list = dataclasses.field(default_factory=list, compare=False, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    a: object


@dataclasses.dataclass
class Counting:
    """What __post_init__ makes may not be made again by a load."""

    given: int
    made: int = dataclasses.field(init=False)
    runs: typing.ClassVar[int] = 0

    def __post_init__(self):
        type(self).runs += 1
        self.made = self.given + random.randrange(1 << 30)


class CheckpointKey(typing.NamedTuple):
    left: object
    right: object = None


Old_pair = collections.namedtuple("Old_pair", "a b", defaults=[5])  # noqa: PYI024


class Model(pydantic.BaseModel):
    name: str = "m"
    inner: typing.Any = None
    made: list = pydantic.Field(default_factory=list)
    _secret: object = pydantic.PrivateAttr(default=None)

    @functools.cached_property
    def shout(self):
        return self.name.upper()


class StoredPieces(pydantic.BaseModel, extra="allow"):
    name: str = "l"


class Ice(pydantic.BaseModel, frozen=True):
    a: int
    b: tuple = ()


class Alias(pydantic.BaseModel):
    a: int = pydantic.Field(alias="A")


class Root(pydantic.RootModel[list[int]]):
    pass


class Unset(pydantic.BaseModel):
    _later: int = pydantic.PrivateAttr()


class Shape(msgspec.Struct):
    sides: int
    tags: list = []


class Line(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="l", rename="camel"):
    start_at: object
    end_at: object = None


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Fields(dict):
    pass


class Row(list):
    pass


class Coordinates(tuple):
    __slots__ = ()


class Real(float):
    pass


class Blob(bytes):
    pass


class Bag(set):
    pass


class Fixed(frozenset):
    pass


class Moment(dt.datetime):
    pass


class Zone(dt.tzinfo):
    def utcoffset(self, when):
        return dt.timedelta(0)


TYPES = (
    Color, Level, Mood, Old, Access, Bits, Step, Point, Point3, Slotted, FrozenSlotted, Counting, CheckpointKey, Old_pair,
    Model, StoredPieces, Ice, Alias, Root, Unset, Shape, Line, Text, Whole, Fields, Row, Coordinates, Real, Blob, Bag, Fixed,
    collections.OrderedDict, collections.Counter,
)  # fmt: skip


def codec_of(*types):
    registry = Registry()
    for cls in types:
        registry.add(cls, f"t.{cls.__name__}")
    return Codec(registry)


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch):
    """What a test registers for everyone is gone after it."""
    for table in ("_by_type", "_by_tag"):
        monkeypatch.setattr(default_registry, table, dict(getattr(default_registry, table)))


CODEC = codec_of(*TYPES)
BARE = Codec(Registry())


# Equality that forgives nothing -----------------------------------------------------------------------


def same(a, b):
    """Tell whether two values are equal and of the same types all the way down; NaN is like NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, enum.Enum):
        return a is b or (isinstance(a, enum.Flag) and a == b)
    if isinstance(a, float) and not isinstance(a, np.generic):
        return struct.pack("d", a) == struct.pack("d", b) or (a != a and b != b)
    if type(a) is complex:
        return same(a.real, b.real) and same(a.imag, b.imag)
    if type(a) is Decimal:
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, dt.datetime | dt.time):
        return (
            a.replace(tzinfo=None) == b.replace(tzinfo=None)
            and a.fold == b.fold
            and same_zone(a.tzinfo, b.tzinfo)
        )
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(p, q) for x, y in zip(a.items(), b.items(), strict=True) for p, q in zip(x, y, strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set | frozenset):
        twin = {y: y for y in b}
        return len(a) == len(b) and all(
            same(x, twin.get(x, BAD)) or any(same(x, y) for y in b) for x in a
        )  # a NaN is not found by equality
    if isinstance(a, pydantic.BaseModel):
        slots = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
        return all(same(getattr(a, slot), getattr(b, slot)) for slot in slots)
    if isinstance(a, msgspec.Struct):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    return a == b


def same_zone(a, b):
    if isinstance(a, zoneinfo.ZoneInfo):
        return a is b
    return type(a) is type(b) and repr(a) == repr(b) and a == b


# The table: what comes back ---------------------------------------------------------------------------

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
PLUS_2 = dt.timezone(dt.timedelta(hours=2))
NAMED = dt.timezone(dt.timedelta(hours=-5, minutes=-30, microseconds=1), "somewhere")
WHEN = dt.datetime(2026, 10, 25, 2, 30, 59, 999_999)


def pydantic_model():
    model = Model(inner=[Model(name="in"), (1, 2)])
    model._secret = {"k": {1, 2}}
    assert model.shout == "M"
    return model


EXACT = {
    "None": None,
    "bool": [True, False],
    "int": [0, -1, 127, 128, 2**31, 2**63 - 1, -(2**63), 2**64 - 1],
    "big int": [2**64, 2**70, -(2**63) - 1, -(2**64), 10**400, -(10**400)],
    "int of 10,000 digits": 10**10_000,
    "float": [0.0, 1.5, 5e-324, 1.7976931348623157e308, 1 / 3],
    "float that is not finite": [float("nan"), float("inf"), float("-inf")],
    "minus zero": [-0.0, 0.0],
    "1, 1.0 and True": [1, 1.0, True, [0, 0.0, False]],
    "complex": [1 + 2j, complex(-0.0, -0.0), complex("nan"), complex("-inf+nanj")],
    "str": ["", "a", "é", "日本", "😀", "\0", "a\0b", "\r\n", "\u2028"],
    "str of 70,000": "x" * 70_000,
    "lone surrogate": ["\ud800", "a\udfffb", "\ud83d", "\udc80\ud800"],
    "lone surrogate of 70,000": "\ud800" * 70_000,
    "lone surrogate as key": {"\ud800": 1, "b": 2, "\udc80a": {"\ud801": 3}},
    "bytes": [b"", b"\0\xff", b"x" * 300, b"y" * 70_000],
    "bytearray": [bytearray(), bytearray(b"abc"), b"abc", {"deep": [bytearray(b"abc")]}],
    "bytearray of 70,000": bytearray(70_000),
    "tuple": [(), (1,), (1, (2, (3, [4, (5,)]))), [(1, 2)]],
    "list": [[], [[]], [1, [2, [3]]], list(range(20))],
    "set": [set(), {1, "a", b"b", None, 2.5, (1, 2)}, {frozenset({1}), frozenset({frozenset()})}],
    "frozenset": [frozenset(), frozenset({1, frozenset({2, frozenset({"\ud800", 2**80})})})],
    "set of 20": [set(range(20)), set()],
    "dict": [{}, {"a": 1}, {"z": 1, "a": {"z": 2, "a": 3}}, {str(n): n for n in range(20)}],
    "int keys": {1: "a", 0: "b", -5: "c", 2**70: "d"},
    "mixed keys": {1: "int", "1": "str", None: 0, 2.5: 1, b"k": 2, (1, "t"): 3, frozenset({1}): 4},
    "keys of all kinds": {
        True: 1, uuid.UUID(int=5): 2, dt.date(2026, 1, 2): 3, WHEN: 4, Decimal("1.10"): 5, Color.RED: 6,
        Point(1, (2,)): 7, Text("sub"): 8, Level.LOW: 9, np.int64(77): 10, 1j: 11, float("nan"): 12,
    },
    "str subclass as key": {Text("a"): 1, Mood.GOOD: 2, "b": 3},
    "an int of 5,000 digits as key": {10**5_000: 1},
    "datetime naive": WHEN,
    "datetime utc": WHEN.replace(tzinfo=dt.UTC),
    "datetime with an offset": WHEN.replace(tzinfo=PLUS_2),
    "datetime with a named offset": WHEN.replace(tzinfo=NAMED),
    "datetime of utc by another name": WHEN.replace(tzinfo=dt.timezone(dt.timedelta(0), "GMT")),
    "datetime with zoneinfo": WHEN.replace(tzinfo=BERLIN),
    "datetime in the fold": [WHEN.replace(tzinfo=BERLIN, fold=1), WHEN.replace(fold=1)],
    "datetime extremes": [dt.datetime.min, dt.datetime.max],
    "date": [dt.date.min, dt.date(2026, 2, 28), dt.date.max],
    "time": [dt.time(), dt.time(1, 2, 3, 4, tzinfo=PLUS_2, fold=1), dt.time(5, tzinfo=BERLIN), dt.time.max],
    "timedelta": [dt.timedelta(), dt.timedelta(-1, 2, 3), dt.timedelta.min, dt.timedelta.max],
    "uuid": [uuid.UUID(int=0), uuid.uuid5(uuid.NAMESPACE_DNS, "x")],
    "Decimal": [Decimal(0), Decimal("-0"), Decimal("1.10"), Decimal("1E+10"), Decimal("1E-999999999")],
    "Decimal that is no number": [Decimal("NaN"), Decimal("-NaN12"), Decimal("sNaN"), Decimal("-Infinity")],
    "Decimal of 5,000 digits": Decimal("1" * 5000),
    "Enum": [Color.RED, Color.PAIR, Color.NOTHING, Old.A],
    "IntEnum": [Level.LOW, Level.HIGH, 1, 2**70],
    "StrEnum": [Mood.GOOD, Mood.ODD, "good"],
    "Flag": [Access.READ, Access.READ | Access.WRITE, Access(0), Bits.ONE | Bits.TWO, Bits(0), Bits(64)],
    "dataclass": [Step("a"), Step("b", {"x": (1,)}, Step("c"))],
    "dataclass, frozen": [Point(1), {Point(1), Point((2, 3))}],
    "dataclass, inherited": [Point3(1, 2, 3), Point(1, 2)],
    "dataclass with slots": [Slotted(a=1, b=[Slotted(a=2)]), FrozenSlotted({"k": b"v"})],
    "dataclass with a field that __init__ does not take": Counting(1),
    "namedtuple": [CheckpointKey(1), CheckpointKey((1,), CheckpointKey([2])), Old_pair(1), (1, None)],
    "pydantic": pydantic_model(),
    "pydantic with extras": [StoredPieces(name="a", more=[1, (2,)]), StoredPieces()],
    "pydantic fields_set": [Model(), Model(name="m")],
    "pydantic, frozen": {Ice(a=1, b=(1, 2)), Ice(a=2)},
    "pydantic with an alias": Alias(A=1),
    "pydantic RootModel": Root([1, 2]),
    "pydantic, constructed without validation": Model.model_construct(name=5, inner={1: 2}),
    "pydantic, private attribute not set yet": Unset(),
    "msgspec.Struct": [Shape(3), Shape(4, [Shape(5)])],
    "msgspec.Struct with options": [Line(start_at=(1,)), Line(start_at=1, end_at=b"x")],
    "str subclass, registered": [Text("abc"), "abc", Text("\ud800")],
    "int subclass, registered": [Whole(5), Whole(2**80), 5],
    "float subclass, registered": Real(2.5),
    "bytes subclass, registered": [Blob(b"abc"), b"abc"],
    "dict subclass, registered": [Fields(a=1), Fields({1: (2,)}), {"a": 1}],
    "list subclass, registered": [Row([1, Row()]), []],
    "tuple subclass, registered": [Coordinates((1, [2])), (1, [2])],
    "set subclass, registered": [Bag({1, 2}), Fixed({(1,)}), {1, 2}],
    "OrderedDict, registered": collections.OrderedDict([("z", 1), ("a", (2,))]),
    "Counter, registered": collections.Counter("hello"),
    "numpy int, float, bool, complex": [
        np.arange(6).reshape(2, 3).astype(kind) for kind in ["b", "i1", "i2", "i4", "i8", "u1", "u8", "f2", "f4", "f8", "?", "c8", "c16"]
    ],
    "numpy long double": np.array([1, 3], np.longdouble) / 3,
    "numpy str and bytes": [np.array(["a", "日本", ""]), np.array([b"a", b"abc\0d"])],
    "numpy datetime64 and timedelta64": [
        np.array(["2026-01-02", "NaT"], "M8[D]"), np.array([5], "m8[ns]"), np.array([7], "m8[25s]"),
    ],
    "numpy with 0 dimensions": np.array(5.5),
    "numpy without elements": [np.zeros((0,)), np.zeros((0, 5), "i4"), np.zeros((3, 0, 2), "U4")],
    "numpy big endian": np.arange(4, dtype=">i4"),
    "numpy NaN": np.array([float("nan"), -0.0, float("inf")]),
    "numpy scalars": [
        np.int8(-5), np.uint64(2**64 - 1), np.float16(1.5), np.float32(0.1), np.float64(0.1), np.bool_(True),
        np.complex64(1 + 2j), np.longdouble(1) / 3, np.datetime64("2026-01-02T03"), np.timedelta64("NaT", "s"),
    ],
    "numpy str and bytes scalars": [np.str_("日本"), np.bytes_(b"abc")],
    "numpy str and bytes scalars without content": [np.str_(""), np.bytes_(b"")],
    "numpy str and bytes scalars that end in NUL": [np.str_("a\0"), np.bytes_(b"a\0\0")],
    "all in one": {"m": [{"role": "user", "at": WHEN, "tags": {"a"}, "tool": Step("t", {1: Point(2j)})}] * 3},
}  # fmt: skip


@pytest.mark.parametrize("row", EXACT)
def test_a_value_comes_back_equal_and_of_the_same_type(row):
    value = EXACT[row]
    back = CODEC.unpack(CODEC.pack(value))
    assert same(back, value), (back, value)
    come_back_through_a_store(value)


def come_back_through_a_store(value):
    """Through pieces, chunks and spans, deep in a state that is big enough to be split."""
    for cls in TYPES:
        outlive.register(cls, tag=f"codec.{cls.__name__}")
    padding = [{"role": "user", "content": "x" * 400} for _ in range(12)]
    state = {"padding": padding, "value": value, "deep": {"more": padding, "value": (value, [value])}}
    with outlive.open("memory:") as store:
        store.thread("a").save(state)
        store.thread("a").save({**state, "again": value})
        assert same(store.thread("a").load(), {**state, "again": value})
        assert store.verify().ok


def test_containers_of_more_than_65535_come_back():
    many = range(70_000)
    value = [list(many), set(many), {str(n): n for n in many}, dict.fromkeys(many), tuple(many)]
    assert BARE.unpack(BARE.pack(value)) == value


def test_a_fortran_ordered_or_strided_array_comes_back_with_the_same_elements():
    whole = np.arange(24, dtype="i2").reshape(4, 6)
    for array_ in (np.asfortranarray(whole), whole[::2, ::-3], whole.T, np.broadcast_to(np.int8(1), (3, 3))):
        back = BARE.unpack(BARE.pack(array_))
        assert back.dtype == array_.dtype
        assert np.array_equal(back, array_)
        back[...] = 0  # it is the reader's own: writable, and no view of anything


def test_what_was_loaded_shares_nothing_with_what_was_saved():
    state = {"list": [1], "bytearray": bytearray(b"a"), "array": np.arange(3)}
    back = BARE.unpack(BARE.pack(state))
    state["list"].append(2)
    state["bytearray"].append(1)
    state["array"][0] = 9
    assert back["list"] == [1]
    assert back["bytearray"] == b"a"
    assert back["array"][0] == 0


def test_sets_of_equal_content_have_equal_bytes_whatever_their_order():
    names = [f"name{n}" for n in range(50)]
    packed = set()
    for seed in range(5):
        random.Random(seed).shuffle(names)
        packed.add(BARE.pack([set(names), {"k": frozenset(names)}]))
    assert len(packed) == 1


# The table: what is refused, and where ----------------------------------------------------------------


def a_generator():
    yield 1


class Unregistered(enum.Enum):
    A = 1


@dataclasses.dataclass
class UnregisteredData:
    a: int


class UnregisteredModel(pydantic.BaseModel):
    a: int = 1


class UnregisteredStruct(msgspec.Struct):
    a: int


class UnregisteredTuple(typing.NamedTuple):
    a: int


class UnregisteredText(enum.StrEnum):
    A = "a"


REFUSED = {
    "memoryview": lambda: memoryview(b"abc"),
    "lambda": lambda: lambda: 1,
    "function": lambda: a_generator,
    "builtin": lambda: print,
    "generator": a_generator,
    "iterator": lambda: iter([1]),
    "class": lambda: Step,
    "module": lambda: sys,
    "lock": threading.Lock,
    "thread": threading.Thread,
    "object": object,
    "exception": lambda: ValueError("x"),
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "range": lambda: range(3),
    "slice": lambda: slice(1),
    "pattern": lambda: re.compile("a+"),
    "path": lambda: pathlib.PurePosixPath("a"),
    "Fraction": lambda: fractions.Fraction(1, 3),
    "array": lambda: array.array("b", b"abc"),
    "deque": lambda: collections.deque([1]),
    "mappingproxy": lambda: Step.__dict__,
    "dict view": {"a": 1}.keys,
    "context variable": lambda: contextvars.ContextVar("x"),
    "partial": lambda: functools.partial(print, 1),
    "itertools": itertools.count,
    "defaultdict": lambda: collections.defaultdict(list, a=[1]),
    "Counter": lambda: collections.Counter("aab"),
    "OrderedDict": lambda: collections.OrderedDict(a=1),
    "ChainMap": lambda: collections.ChainMap({}),
    "str subclass": lambda: Text("a"),
    "int subclass": lambda: Whole(1),
    "float subclass": lambda: Real(1.0),
    "bytes subclass": lambda: Blob(b"a"),
    "dict subclass": lambda: Fields(a=1),
    "list subclass": lambda: Row([1]),
    "tuple subclass": lambda: Coordinates((1,)),
    "set subclass": lambda: Bag({1}),
    "datetime subclass": lambda: Moment(2026, 1, 1),
    "time zone of one's own": lambda: WHEN.replace(tzinfo=Zone()),
    "zoneinfo without a key": lambda: WHEN.replace(tzinfo=keyless_zone()),
    "Enum": lambda: Unregistered.A,
    "StrEnum": lambda: UnregisteredText.A,
    "dataclass": lambda: UnregisteredData(1),
    "namedtuple": lambda: UnregisteredTuple(1),
    "pydantic": UnregisteredModel,
    "msgspec.Struct": lambda: UnregisteredStruct(1),
    "numpy objects": lambda: np.array([{}], dtype=object),
    "numpy records": lambda: np.zeros(2, "i4,f8"),
    "numpy void": lambda: np.void(b"abc"),
    "numpy StringDType": lambda: np.array(["a"], np.dtypes.StringDType()),
    "numpy matrix": lambda: np.arange(4).view(Matrix),
    "numpy masked array": lambda: np.ma.masked_array([1], [True]),
}


class Matrix(np.ndarray):
    pass


def keyless_zone():
    import io

    return zoneinfo.ZoneInfo.from_file(io.BytesIO(tzif()))


def tzif():
    """The smallest valid time zone file: UTC."""
    header = b"TZif\0" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    return header + struct.pack(">lbb", 0, 0, 0) + b"UTC\0"


def state_with(value):
    return {"messages": [{"role": "user"}, "x", 2, {"tool": value}], "plan": "p"}


@pytest.mark.parametrize("row", REFUSED)
def test_what_cannot_come_back_exactly_is_refused_with_its_path(row):
    value = REFUSED[row]()
    with pytest.raises(Unencodable) as caught:
        BARE.pack(state_with(value))
    assert caught.value.path == "state.messages[3].tool"
    assert "state.messages[3].tool: " in str(caught.value)
    a_refused_save_leaves_the_thread_as_it_was(value)


def a_refused_save_leaves_the_thread_as_it_was(value):
    big = [{"role": "user", "content": "x" * 400} for _ in range(20)]
    with outlive.open("memory:") as store:
        thread = store.thread("a")
        saved = thread.save({"big": big, **state_with(1)})
        with pytest.raises(Unencodable) as caught:
            thread.save({"big": big, **state_with(value)})
        assert caught.value.path == "state.messages[3].tool"
        assert [checkpoint.id for checkpoint in thread.history()] == [saved.id]
        assert thread.load() == {"big": big, **state_with(1)}
        thread.save({"big": big, **state_with(2)})
        assert thread.load() == {"big": big, **state_with(2)}


@pytest.mark.parametrize(
    "state, path",
    [
        (BAD, "state"),
        ([BAD], "state[0]"),
        ((1, BAD), "state[1]"),
        ({"a": {"b": [0, (BAD,)]}}, "state.a.b[1][0]"),
        ({"a b": BAD}, "state['a b']"),
        ({1: BAD}, "state[1]"),
        ({(1, 2): [BAD]}, "state[(1, 2)][0]"),
        ({"\ud800": [BAD]}, "state['\\ud800'][0]"),
        ({"plan": Step("a", {"x": [BAD]})}, "state.plan.args.x[0]"),
        ({"plan": Step("a", {}, Point(1, Slotted(a=BAD)))}, "state.plan.result.y.a"),
        ({"pair": CheckpointKey(1, BAD)}, "state.pair.right"),
        ({"shape": Shape(3, [1, BAD])}, "state.shape.tags[1]"),
        ({"text": ["\ud800", BAD]}, "state.text[1]"),
        ({"buffer": [bytearray(b"x"), BAD]}, "state.buffer[1]"),
        ({"fields": Fields(a=[BAD])}, "state.fields.a[0]"),
        ({"row": Row([1, BAD])}, "state.row[1]"),
    ],
)
def test_the_path_leads_through_every_container(state, path):
    with pytest.raises(Unencodable) as caught:
        CODEC.pack(state)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "state",
    [
        {"box": {BAD}},
        {"box": frozenset({1, (2, BAD)})},
        {"box": {BAD: 1}},
        {"box": {(1, BAD): 1}},
        {"box": Model(inner=[BAD])},
        {"box": StoredPieces(more=BAD)},
        {"box": Coordinates((1, BAD))},
        {"box": Bag({BAD})},
        {"box": [CheckpointKey(Coordinates((BAD,)))]},
    ],
    ids=[
        "set",
        "frozenset",
        "key",
        "key-in-tuple",
        "model",
        "extra",
        "tuple-subclass",
        "set-subclass",
        "nested",
    ],
)
def test_a_path_starts_at_the_state_also_where_python_has_no_word_for_the_rest(state):
    with pytest.raises(Unencodable) as caught:
        CODEC.pack(state)
    assert caught.value.path.startswith("state.box")


def test_the_path_is_the_same_when_the_state_is_split_against_an_earlier_one():
    messages = [Step(f"s{n}", {"text": "x" * 500}) for n in range(30)]
    with outlive.open("memory:") as store:
        thread = store.thread("a", type=dict[str, dict[str, list[Step]]])
        thread.save({"deep": {"messages": messages}})
        messages.append(Step("bad", {"text": "y", "socket": threading.Lock()}))
        with pytest.raises(Unencodable) as caught:
            thread.save({"deep": {"messages": messages}})
        assert caught.value.path == "state.deep.messages[30].args.socket"


def test_the_reason_says_what_to_do():
    def reason(value):
        with pytest.raises(Unencodable) as caught:
            BARE.pack(value)
        return str(caught.value)

    assert "outlive.register(Step, tag=" in reason(Step("a"))
    assert "bytes(view)" in reason(memoryview(b""))
    assert "code, not data" in reason(print)


def test_a_very_long_path_is_shortened():
    value = BAD
    for n in range(100):
        value = {f"level{n}": value}
    with pytest.raises(Unencodable) as caught:
        BARE.pack(value)
    assert len(caught.value.path) < 400
    assert caught.value.path.startswith("state.level99.level98")
    assert caught.value.path.endswith("level1.level0")


# Depth and cycles ---------------------------------------------------------------------------------------

NESTINGS = {
    "list": lambda inner: [inner],
    "dict": lambda inner: {"k": inner},
    "int-keyed dict": lambda inner: {1: inner},
    "tuple": lambda inner: (inner,),
    "dataclass": Point,
    "namedtuple": CheckpointKey,
    "struct": lambda inner: Line(start_at=inner),
    "mixed": lambda inner: {"k": [(Point(inner),)]},
}


def fate(value):
    """Tell what becomes of a value: refused, given back, or worse."""
    try:
        data = CODEC.pack(value)
    except Unencodable:
        return "refused"
    except RecursionError as error:
        return f"an untyped error at save: {error!r}"
    try:
        return "given back" if CODEC.pack(CODEC.unpack(data)) == data else "changed"
    except (OutliveError, RecursionError) as error:
        return f"saved, and then {error!r}"


@pytest.mark.parametrize("kind", NESTINGS)
def test_what_is_nested_too_deep_to_be_loaded_is_refused_at_save(kind):
    """What is taken is given back, also at the depth where the one becomes the other."""
    fates = {}
    for depth in (40, 100, 190, 210, 230, 250, 260, 300, 350, 400, 500, 700, 1000, 20_000):
        value = 1
        for _ in range(depth):
            value = NESTINGS[kind](value)
        fates[depth] = fate(value)
    assert {depth: what for depth, what in fates.items() if what not in ("refused", "given back")} == {}
    assert fates[40] == "given back"
    assert fates[20_000] == "refused"


@pytest.mark.parametrize(
    "wrap", [lambda v: frozenset({v}), lambda v: Coordinates((v,))], ids=["set", "tuple"]
)
@pytest.mark.parametrize("inmost", ["\u0100\u0140" * 20, BAD], ids=["text", "what is refused"])
def test_packing_looks_at_no_level_twice_as_often_as_at_the_level_around_it(wrap, inmost):
    """The text holds the bytes by which msgpack marks binary values, so that a bytearray is looked for."""
    calls, depth = 0, 14

    class Counted(Codec):
        def pack(self, value, path="state"):
            nonlocal calls
            calls += 1
            return super().pack(value, path)

        def pack_native(self, value, path="state"):
            nonlocal calls
            calls += 1
            return super().pack_native(value, path)

    value = inmost
    for _ in range(depth):
        value = wrap(value)
    codec = Counted(CODEC.registry)
    if inmost is BAD:
        with pytest.raises(Unencodable):
            codec.pack(value)
    else:
        assert same(CODEC.unpack(codec.pack(value)), value)
    assert 0 < calls <= 2 * depth**2


@pytest.mark.parametrize("via", ["list", "dict", "dict value list", "dataclass", "tuple", "two ways"])
def test_a_value_inside_itself_is_refused(via):
    if via == "list":
        value = []
        value.append(value)
    elif via == "dict":
        value = {}
        value["self"] = value
    elif via == "dict value list":
        value = {"a": []}
        value["a"].append(value)
    elif via == "dataclass":
        value = Step("a")
        value.result = value
    elif via == "tuple":
        value = []
        value.append((value,))
    else:
        value = []
        value += [value, value, {"x": value, 1: value}]
    with pytest.raises(Unencodable, match="inside itself"):
        CODEC.pack({"top": value})
    with outlive.open("memory:") as store:
        outlive.register(Step, tag="codec.Step")
        with pytest.raises(Unencodable, match=r"state\.top.*inside itself"):
            store.thread("a").save({"top": value})


def test_a_value_inside_itself_is_named_where_it_closes_the_circle():
    one, two, many = {}, {}, []
    one["self"] = one
    two["forth"] = {"back": two}
    many.append((many,))
    for state, said in (
        (one, "state.self: inside itself: it is the same object as state"),
        (
            {"deep": [1, two]},
            "state.deep[1].forth.back: inside itself: it is the same object as state.deep[1]",
        ),
        ({"many": many}, "state.many[0][0]: inside itself: it is the same object as state.many"),
    ):
        with outlive.open("memory:") as store, pytest.raises(Unencodable) as caught:
            store.thread("a").save(state)
        assert str(caught.value) == said
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(Unencodable, match="nested deeper than 200 levels"):
        BARE.pack(deep)


def test_the_same_object_in_two_places_comes_back_as_two_equal_ones():
    shared = [1]
    back = BARE.unpack(BARE.pack({"a": shared, "b": shared}))
    assert back == {"a": [1], "b": [1]}
    assert back["a"] is not back["b"]


# Dataclasses, models and structs ----------------------------------------------------------------------


def moved(value, old, new):
    """Save with one version of the program, load with the next."""
    return Codec(new).unpack(Codec(old).pack(value))


def registry(*entries, **options):
    made = Registry()
    for cls, tag in entries:
        made.add(cls, tag, **options)
    return made


def test_post_init_is_not_called_by_a_load():
    saved = Counting(1)
    runs = Counting.runs
    back = CODEC.unpack(CODEC.pack(saved))
    assert Counting.runs == runs
    assert back == saved


def test_post_init_of_a_struct_does_not_change_what_was_saved():
    class Grown(msgspec.Struct):
        n: int

        def __post_init__(self):
            self.n += 1

    codec = codec_of(Grown)
    saved = Grown(1)
    assert codec.unpack(codec.pack(saved)) == saved


def test_a_pydantic_model_is_not_validated_again():
    class Picky(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def count(cls, value):
            return value + 1

    codec = codec_of(Picky)
    saved = Picky(n=1)
    assert codec.unpack(codec.pack(saved)).n == saved.n == 2


def test_a_private_attribute_can_be_set_after_a_load():
    back = CODEC.unpack(CODEC.pack(Unset()))
    back._later = 5
    assert back._later == 5


def test_a_pydantic_dataclass_comes_back():
    @pydantic.dataclasses.dataclass
    class Checked:
        n: int
        tags: list[str] = pydantic.Field(default_factory=list)

    codec = codec_of(Checked)
    saved = Checked(n="5", tags=["a"])
    assert codec.unpack(codec.pack(saved)) == saved


def test_a_generic_pydantic_model_comes_back():
    T = typing.TypeVar("T")

    class Box(pydantic.BaseModel, typing.Generic[T]):
        inside: T

    made = registry((Box[int], "box of int"), (Box[str], "box of str"))
    for box in (Box[int](inside=1), Box[str](inside="1")):
        assert same(Codec(made).unpack(Codec(made).pack(box)), box)


@pytest.mark.parametrize("base", [dict, list, str, Exception, set])
def test_a_dataclass_that_is_also_something_else_comes_back_whole_or_is_refused(base):
    @dataclasses.dataclass(eq=False)
    class Both(base):
        x: int = 5

    try:
        codec = codec_of(Both)
        data = codec.pack(Both())
    except OutliveError:
        return
    assert codec.unpack(data).x == 5


def test_a_dataclass_that_is_also_a_dict_does_not_lose_its_items():
    @dataclasses.dataclass(eq=False)
    class Both(dict):
        x: int = 5

    saved = Both(7)
    saved["item"] = 1
    try:
        codec = codec_of(Both)
        data = codec.pack(saved)
    except OutliveError:
        return
    assert dict(codec.unpack(data)) == {"item": 1}


def test_a_registered_type_that_cannot_be_rebuilt_is_refused_before_it_is_stored():
    """A defaultdict takes its factory first, so the plain way back does not exist."""
    try:
        codec = codec_of(collections.defaultdict)
        data = codec.pack(collections.defaultdict(list, a=[1]))
    except OutliveError:
        return
    back = codec.unpack(data)
    assert type(back) is collections.defaultdict
    assert back == {"a": [1]}


def test_a_type_without_an_anatomy_is_stored_by_functions_of_ones_own():
    made = Registry()
    made.add(
        collections.defaultdict, "ints", encode=dict, decode=lambda items: collections.defaultdict(int, items)
    )
    made.add(fractions.Fraction, "fraction", encode=lambda f: (f.numerator, f.denominator), decode=lambda p: fractions.Fraction(*p))  # fmt: skip
    made.add(pathlib.PurePosixPath, "path", encode=str, decode=pathlib.PurePosixPath)
    codec = Codec(made)
    value = {
        "d": collections.defaultdict(int, a=1),
        "f": {fractions.Fraction(1, 3): 1},
        "p": [pathlib.PurePosixPath("a/b")],
    }
    back = codec.unpack(codec.pack(value))
    assert same(back, value)
    assert back["d"]["missing"] == 0


def later_classes():
    @dataclasses.dataclass
    class New:
        a: int
        b: list = dataclasses.field(default_factory=list)
        c: int = 7

    class NewModel(pydantic.BaseModel):
        a: int
        b: list = pydantic.Field(default_factory=list)
        c: int = 7

    class NewStruct(msgspec.Struct):
        a: int
        b: list = []
        c: int = 7

    class NewTuple(typing.NamedTuple):
        a: int
        b: list = []  # noqa: RUF012
        c: int = 7

    return New, NewModel, NewStruct, NewTuple


def earlier_classes():
    @dataclasses.dataclass
    class Old:
        a: int

    class OldModel(pydantic.BaseModel):
        a: int

    class OldStruct(msgspec.Struct):
        a: int

    class OldTuple(typing.NamedTuple):
        a: int

    return Old, OldModel, OldStruct, OldTuple


@pytest.mark.parametrize("kind", range(4), ids=["dataclass", "pydantic", "struct", "namedtuple"])
def test_a_field_that_was_added_later_takes_its_default(kind):
    old, new = earlier_classes()[kind], later_classes()[kind]
    back = moved(old(a=1), registry((old, "x")), registry((new, "x")))
    assert type(back) is new
    assert (back.a, back.b, back.c) == (1, [], 7)
    if kind != 3:  # a namedtuple's defaults are shared by Python itself
        assert back.b is not moved(old(a=1), registry((old, "x")), registry((new, "x"))).b


@pytest.mark.parametrize("kind", range(4), ids=["dataclass", "pydantic", "struct", "namedtuple"])
def test_a_field_that_is_gone_is_an_error_that_says_how_to_go_on(kind):
    old, new = later_classes()[kind], earlier_classes()[kind]
    with pytest.raises(OutliveError) as caught:
        moved(old(a=1), registry((old, "x")), registry((new, "x")))
    assert "upgrade" in str(caught.value)


@pytest.mark.parametrize("kind", range(4), ids=["dataclass", "pydantic", "struct", "namedtuple"])
def test_a_required_field_that_was_never_stored_is_an_error_that_says_how_to_go_on(kind):
    @dataclasses.dataclass
    class New:
        a: int
        b: int

    class NewModel(pydantic.BaseModel):
        a: int
        b: int

    class NewStruct(msgspec.Struct):
        a: int
        b: int

    class NewTuple(typing.NamedTuple):
        a: int
        b: int

    old, new = earlier_classes()[kind], (New, NewModel, NewStruct, NewTuple)[kind]
    with pytest.raises(OutliveError) as caught:
        moved(old(a=1), registry((old, "x")), registry((new, "x")))
    assert "upgrade" in str(caught.value)


# The registry -----------------------------------------------------------------------------------------


def test_a_tag_is_independent_of_module_and_name():
    @dataclasses.dataclass
    class Plan:
        steps: list

    @dataclasses.dataclass
    class RenamedAndMoved:
        steps: list

    RenamedAndMoved.__module__ = "somewhere.else"
    data = Codec(registry((Plan, "plan"))).pack(Plan([1]))
    assert b"Plan" not in data
    assert __name__.encode() not in data
    assert Codec(registry((RenamedAndMoved, "plan"))).unpack(data) == RenamedAndMoved([1])


def test_upgrades_run_one_after_the_other_wherever_the_value_is():
    @dataclasses.dataclass(frozen=True)
    class One:
        n: int

    @dataclasses.dataclass(frozen=True)
    class Three:
        number: int
        unit: str

    order = []

    def to_2(fields):
        order.append(1)
        return {"number": fields["n"]}

    def to_3(fields):
        order.append(2)
        return {**fields, "unit": "m"}

    new = Registry()
    new.add(Three, "length", version=3, upgrade={1: to_2, 2: to_3})
    back = moved({"a": [One(5)], "b": {One(6)}, "c": {One(7): (One(8),)}}, registry((One, "length")), new)
    assert back == {"a": [Three(5, "m")], "b": {Three(6, "m")}, "c": {Three(7, "m"): (Three(8, "m"),)}}
    assert order == [1, 2] * 4
    assert Codec(new).unpack(Codec(new).pack(Three(1, "km"))) == Three(1, "km")
    assert order == [1, 2] * 4  # what is of today's version is not upgraded


def test_a_missing_upgrade_names_both_versions():
    new = Registry()
    new.add(Point, "p", version=3, upgrade={2: dict})
    with pytest.raises(NeedsUpgrade) as caught:
        moved([Point(1)], registry((Point, "p")), new)
    assert (caught.value.tag, caught.value.stored, caught.value.registered) == ("p", 1, 3)


def test_a_newer_version_than_the_registered_one_is_refused():
    old, new = registry((Point, "p")), registry((Point, "p"), version=4)
    with pytest.raises(NeedsUpgrade) as caught:
        moved([Point(1)], new, old)
    assert (caught.value.stored, caught.value.registered) == (4, 1)


def test_an_unknown_tag_is_an_error_that_says_what_to_register():
    for value in (Point(1), [{"a": (Point(1),)}], {Point(1)}, {Point(1): 1}, Step("a", {}, Point(1))):
        with pytest.raises(UnknownTag) as caught:
            moved(
                value,
                registry((Point, "the point"), (Step, "s"), version=2),
                registry((Step, "s"), version=2),
            )
        assert (caught.value.tag, caught.value.version) == ("the point", 2)
        assert "register" in str(caught.value)


def test_an_upgrade_that_fails_is_a_typed_error_that_keeps_the_cause():
    new = Registry()
    new.add(Point, "p", version=2, upgrade={1: lambda fields: fields["gone"]})
    with pytest.raises(OutliveError) as caught:
        moved(Point(1), registry((Point, "p")), new)
    causes, error = [], caught.value
    while error is not None:
        causes.append(type(error))
        error = error.__cause__ or error.__context__
    assert KeyError in causes


def test_an_opaque_value_shows_its_tag_and_fields():
    data = Codec(registry((Step, "step"), (Point, "point"), version=3)).pack(
        {"s": Step("a", {}, Point(1, (2,)))}
    )
    back = BARE.unpack(data, opaque=True)
    assert back == {
        "s": Opaque("step", 3, {"name": "a", "args": {}, "result": Opaque("point", 3, {"x": 1, "y": (2,)})})
    }
    assert BARE.pack(back) == data


def test_two_types_may_not_share_a_tag():
    made = registry((Point, "p"))
    with pytest.raises(BadArgument, match="Point"):
        made.add(Step, "p")
    assert made.tagged("p", 1).cls is Point


def test_the_same_registration_may_be_repeated_and_a_reloaded_class_takes_its_own_place():
    def define():
        @dataclasses.dataclass
        class Reloaded:
            a: int

        return Reloaded

    first, second = define(), define()
    made = registry((first, "r"), (first, "r"), (second, "r"))
    assert type(Codec(made).unpack(Codec(made).pack(first(1)))) is second


def test_a_type_may_change_its_tag_and_still_read_the_old_one():
    made = registry((Point, "old"))
    data = Codec(made).pack(Point(1))
    made.add(Point, "new")
    assert Codec(made).unpack(data) == Point(1)
    assert b"new" in Codec(made).pack(Point(1))


@pytest.mark.parametrize("cls", [str, int, dict, list, tuple, set, bytes, float, bool, type(None), bytearray])
def test_a_built_in_type_cannot_be_registered(cls):
    with pytest.raises(BadArgument):
        Registry().add(cls, "x", encode=str, decode=cls)


@pytest.mark.parametrize("cls", [dt.datetime, uuid.UUID, Decimal, np.ndarray, dt.timedelta])
def test_a_type_with_a_form_of_its_own_is_refused_or_stored_as_registered(cls):
    """It must not be possible to register something that then has no effect."""
    made = Registry()
    try:
        made.add(cls, "mine", encode=lambda value: "encoded", decode=lambda value: value)
    except BadArgument:
        return
    value = {dt.datetime: WHEN, uuid.UUID: uuid.UUID(int=1), np.ndarray: np.arange(2)}.get(cls) or cls(1)
    assert Codec(made).unpack(Codec(made).pack(value)) == "encoded"


@pytest.mark.parametrize(
    "arguments",
    [
        {"cls": "Point", "tag": "p"},
        {"cls": Point, "tag": ""},
        {"cls": Point, "tag": 5},
        {"cls": Point, "tag": "p", "version": 0},
        {"cls": Point, "tag": "p", "version": True},
        {"cls": Point, "tag": "p", "version": "1"},
        {"cls": Point, "tag": "p", "encode": dict},
        {"cls": Point, "tag": "p", "decode": dict},
        {"cls": fractions.Fraction, "tag": "f"},
        {"cls": object, "tag": "o"},
        {"cls": threading.Thread, "tag": "t"},
    ],
    ids=str,
)
def test_a_wrong_registration_fails_at_once(arguments):
    with pytest.raises(BadArgument):
        Registry().add(**arguments)


def test_register_is_a_function_and_a_decorator():
    @outlive.register(tag="codec.decorated", version=2, upgrade={1: lambda fields: {"a": fields["b"]}})
    @dataclasses.dataclass
    class Decorated:
        a: int

    @outlive.register
    @dataclasses.dataclass
    class Bare:
        a: int

    class Plain(enum.Enum):
        A = 1

    assert outlive.register(Plain, tag="codec.plain") is Plain
    value = [Decorated(1), Bare(2), Plain.A]
    assert Codec().unpack(Codec().pack(value)) == value
    stored = Codec().unpack(Codec().pack(value), opaque=True)
    assert [(item.tag, item.version) for item in stored][0::2] == [("codec.decorated", 2), ("codec.plain", 1)]
    assert stored[1].tag.endswith("Bare")
    old = Codec().pack(Opaque("codec.decorated", 1, {"b": 9}))
    assert Codec().unpack(old) == Decorated(9)


# Annotations --------------------------------------------------------------------------------------------


class AColor(enum.Enum):
    RED = 1


class ALeaf(msgspec.Struct):
    color: AColor


class AModel(pydantic.BaseModel, arbitrary_types_allowed=True):
    leaf: typing.Any = None
    pair: "APair | None" = None


class APair(typing.NamedTuple):
    left: "ANode | None"
    right: int = 0


T = typing.TypeVar("T")


@dataclasses.dataclass
class ABox(typing.Generic[T]):
    inside: T


@dataclasses.dataclass
class AItem:
    n: int


@dataclasses.dataclass
class ANode:
    children: "list[ANode]" = dataclasses.field(default_factory=list)
    leaves: dict[str, tuple[ALeaf, ...]] = dataclasses.field(default_factory=dict)
    model: typing.Optional["AModel"] = None


@dataclasses.dataclass
class AState:
    nodes: list[ANode]
    hook: typing.Callable[[int], str] | None = None
    kind: typing.Literal["a", "b"] = "a"
    noted: typing.Annotated[int, {"unhashable": []}] = 0


class ATyped(typing.TypedDict, total=False):
    nodes: list[ANode]


def test_a_threads_type_registers_what_its_annotations_name():
    node = ANode([ANode()], {"a": (ALeaf(AColor.RED),)}, AModel(pair=APair(ANode(), 1)))
    with outlive.open("memory:") as store:
        thread = store.thread("a", type=ANode)
        thread.save(node)
        assert same(thread.load(), node)


def test_a_threads_type_may_be_a_typed_dict_or_a_container():
    node = ANode([], {"b": ()})
    with outlive.open("memory:") as store:
        for kind, state in ((ATyped, {"nodes": [node]}), (list[ANode], [node]), (ANode | None, node)):
            thread = store.thread(str(kind), type=kind)
            thread.save(state)
            assert same(thread.load(), state)


def test_a_thread_of_a_type_saves_nothing_else():
    node = ANode([], {"b": ()})
    with outlive.open("memory:") as store:
        for kind, wrong in (
            (ANode, {"children": []}),
            (ANode, None),
            (ATyped, [node]),
            (list[ANode], (node,)),
            (ANode | None, [node]),
            (ABox[AItem], AItem(1)),
        ):
            thread = store.thread("a", type=kind)
            for durability in ("sync", "async"):
                with pytest.raises(outlive.errors.BadArgument, match="opened with type="):
                    thread.save(wrong, durability=durability)
            assert not thread.exists()
        store.thread("a", type=ANode).save(node)
        with pytest.raises(outlive.errors.BadArgument):
            store.thread("a", type=ANode).fork("b").save({})
        store.thread("a").save({})


def test_annotations_that_are_no_data_are_passed_over():
    with outlive.open("memory:") as store:
        thread = store.thread("a", type=AState)
        thread.save(AState([ANode()]))
        assert same(thread.load(), AState([ANode()]))


def test_a_generic_annotation_registers_the_generic_class_and_its_argument():
    with outlive.open("memory:") as store:
        thread = store.thread("a", type=ABox[AItem])
        thread.save(ABox(AItem(1)))
        assert same(thread.load(), ABox(AItem(1)))


def test_a_type_that_was_registered_by_hand_keeps_its_tag():
    made = registry((AItem, "my item"))
    made.add_annotated(list[AItem])
    assert made.of(AItem).tag == "my item"


# Properties ---------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates too
ZONES = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))),
    st.builds(
        dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)), st.text(max_size=5)
    ),
    st.sampled_from([BERLIN, zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo("America/New_York")]),
)
DECIMALS = st.one_of(
    st.decimals(allow_nan=False), st.sampled_from([Decimal("NaN"), Decimal("-NaN3"), Decimal("-0E+5")])
)
ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**200), 2**200), st.floats(), TEXT,
    st.binary(max_size=12), st.complex_numbers(), DECIMALS, st.uuids(), st.dates(), st.timedeltas(),
    st.datetimes(timezones=ZONES), st.times(timezones=ZONES),
    st.sampled_from([*Color, *Level, *Mood, *Old, Access(3), Bits(5)]),
    st.builds(Text, TEXT), st.builds(Whole, st.integers()), st.builds(Real, st.floats()), st.builds(Blob, st.binary(max_size=9)),
    st.sampled_from([np.int8(3), np.float32(2.5), np.str_("n"), np.datetime64("2026-01-02"), np.bool_(False)]),
)  # fmt: skip
HASHABLE = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.lists(inner, max_size=3).map(Coordinates),
        st.frozensets(inner, max_size=3).map(Fixed),
        st.builds(Point, inner, inner),
        st.builds(FrozenSlotted, inner),
        st.builds(CheckpointKey, inner, inner),
    ),
    max_leaves=6,
)
ARRAYS = st.builds(
    lambda kind, shape, data: np.resize(np.frombuffer(data, "u1"), np.prod(shape, dtype=int) * np.dtype(kind).itemsize)
    .view(kind)
    .reshape(shape),
    st.sampled_from([">i4", "<f8", "i1", "c16", "S3", "M8[s]", "u2"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.binary(min_size=1, max_size=40),
)  # fmt: skip


def containers(inner):
    keys = st.one_of(TEXT, HASHABLE)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(Row),
        st.dictionaries(TEXT, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(Fields),
        st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        st.builds(Step, TEXT, st.dictionaries(TEXT, inner, max_size=2), inner),
        st.builds(Slotted, a=inner, b=st.lists(inner, max_size=2)),
        st.builds(Point3, inner, inner, inner),
        st.builds(CheckpointKey, inner, inner),
        st.builds(lambda value, secret: private(Model(inner=value), secret), inner, inner),
        st.builds(lambda value: StoredPieces(more=value), inner),
        st.builds(Shape, inner, st.lists(inner, max_size=2)),
        st.builds(lambda value: Line(start_at=value), inner),
    )


def private(model, secret):
    model._secret = secret
    return model


VALUES = st.recursive(
    st.one_of(
        ATOMS,
        st.just(Decimal("sNaN7")),  # has no hash
        st.binary(max_size=12).map(bytearray),
        ARRAYS,
        st.sets(HASHABLE, max_size=4),
        st.sets(HASHABLE, max_size=3).map(Bag),
    ),
    containers,
    max_leaves=12,
)


@given(VALUES)
@examples(max_examples=6000 if LONG else 100)
@example({Text("k"): bytearray(b"\xc4"), (): {frozenset({np.int8(3)})}})
def test_any_value_comes_back_equal_and_of_the_same_type_all_the_way_down(value):
    assert same(CODEC.unpack(CODEC.pack(value)), value)


@given(VALUES)
@examples(max_examples=6000 if LONG else 100)
def test_a_process_that_knows_none_of_the_types_writes_back_the_same_bytes(value):
    data = CODEC.pack(value)
    for reader in (BARE, CODEC):
        assert reader.pack(reader.unpack(data, opaque=True)) == data


@dataclasses.dataclass(frozen=True, eq=False)
class Identity:
    x: object


def test_opaque_values_that_their_own_type_keeps_apart_stay_apart():
    """Two objects that are equal only by their fields are two members of a set and two keys of a dict."""
    codec = codec_of(Identity)
    for value in ({Identity(1), Identity(1)}, {Identity(1): "a", Identity(True): "b"}):
        data = codec.pack(value)
        assert len(codec.unpack(data)) == 2
        assert BARE.pack(BARE.unpack(data, opaque=True)) == data


@given(VALUES, st.data())
@examples(max_examples=3000 if LONG else 40)
def test_bytes_that_end_early_are_damage(value, data):
    """(Bytes that follow are the business of the record, which says how long the state is.)"""
    packed = CODEC.pack(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(Corrupt):
        CODEC.unpack(packed[:cut])


def test_the_decimal_context_of_the_program_does_not_matter():
    value = Decimal("1.23456789012345678901234567890E+50")
    with decimal.localcontext(prec=3, traps=[decimal.Inexact]):
        assert BARE.unpack(BARE.pack(value)).as_tuple() == value.as_tuple()


def test_nothing_needs_numpy_until_an_array_is_stored():
    code = (
        "import sys, outlive\n"
        "with outlive.open('memory:') as store:\n"
        "    store.thread('a').save({'x': [1, {2}, (3,)]})\n"
        "    store.thread('a').load()\n"
        "assert not {'numpy', 'pydantic', 'msgspec'} & set(sys.modules)\n"
    )
    import subprocess

    source = importlib.util.find_spec("outlive").submodule_search_locations[0]
    env = {**os.environ, "PYTHONPATH": os.path.dirname(source)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
