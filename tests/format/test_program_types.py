"""Data classes of the program are stored by name; a hostile name reaches nothing else and runs nothing."""

import collections
import dataclasses
import enum
import functools
import importlib.util
import subprocess
import sys
import threading
import types
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import attrs
import msgspec
import ormsgpack
import pydantic
import pydantic.v1
import pytest

import outlive
from outlive.errors import BadArgument, TypeChanged, Unencodable, UnknownTag
from outlive.format.codec import Codec
from outlive.format.extensions import TAGGED
from outlive.format.program_types import ProgramTypes
from outlive.format.registry import Registry

HERE = __name__
calls: list[str] = []  # what ran that must not run


def codec() -> Codec:
    """Return the codec of a process that has seen nothing yet."""
    return Codec(ProgramTypes(Registry()))


@dataclasses.dataclass
class Plan:
    city: str
    days: int = 3

    def __post_init__(self):
        calls.append("Plan.__post_init__")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    at: tuple[int, ...]


class Model(pydantic.BaseModel):
    x: int
    inner: "Model | None" = None

    @pydantic.field_validator("x")
    @classmethod
    def check(cls, value):
        calls.append("a validator")
        return value

    def __new__(cls, *args, **kwargs):
        calls.append("Model.__new__")
        return super().__new__(cls)


T = TypeVar("T")


class Box(pydantic.BaseModel, Generic[T]):
    item: T


class Struct(msgspec.Struct):
    a: int
    b: list[int] = []

    def __post_init__(self):
        calls.append("Struct.__post_init__")


class FrozenStruct(msgspec.Struct, frozen=True):
    a: int

    def __post_init__(self):
        calls.append("FrozenStruct.__post_init__")


@attrs.define
class Attrs:
    a: int
    b: list[int] = attrs.Factory(list)

    def __attrs_post_init__(self):
        calls.append("Attrs.__attrs_post_init__")


@attrs.frozen
class AttrsFrozen:
    a: int


class Point(NamedTuple):
    x: int
    y: int = 0


class Row(collections.namedtuple("Row", "a b")):  # noqa: PYI024, SLOT002
    def __new__(cls, a, b):
        calls.append("Row.__new__")
        return super().__new__(cls, a, b)


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)

    @classmethod
    def _missing_(cls, value):
        calls.append("Colour._missing_")


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Text(str):  # noqa: SLOT000
    def __new__(cls, value):
        calls.append("Text.__new__")
        return super().__new__(cls, value)


class Numbers(list):
    def __init__(self, *args):
        calls.append("Numbers.__init__")
        super().__init__(*args)

    def extend(self, items):
        calls.append("Numbers.extend")

    def __iter__(self):
        calls.append("Numbers.__iter__")
        return super().__iter__()


class Ordered(collections.OrderedDict):
    def __setitem__(self, key, value):
        calls.append("Ordered.__setitem__")
        super().__setitem__(key, value)


class Slotted(int):
    pass


class Pairs(tuple):  # noqa: SLOT001  # its objects have attributes
    pass


def local():
    @dataclasses.dataclass
    class Local:
        a: int

    return Local


Local = local()
noted = Text("hello")
noted.note = {"by": Plan("Lisbon")}
five = Slotted(5)
five.unit = "m"
pairs = Pairs([1, 2])
pairs.note = "two"


@attrs.frozen(cache_hash=True)
class Hashed:
    a: int


@dataclasses.dataclass
class Computing:
    a: int

    def __post_init__(self):
        self.index = {self.a: "at"}

    @functools.cached_property
    def slow(self):
        return threading.Lock()


class Derived(Plan):
    def __init__(self, city, note):
        super().__init__(city)
        self.note = note


class BaseStruct(msgspec.Struct):
    a: int

    def __post_init__(self):
        calls.append("BaseStruct.__post_init__")


class DerivedStruct(BaseStruct, kw_only=True):
    b: int


class Limits(enum.Enum):
    NONE = float("nan")


class Mangled(list):
    __slots__ = ("__note",)

    def with_note(self, note):
        self.__note = note
        return self

    def __repr__(self):
        return f"{list.__repr__(self)} {self.__note}"


class Guarded(str):  # noqa: SLOT000
    @property
    def path(self):
        return self.__dict__.get("_path")

    @path.setter
    def path(self, value):
        calls.append("Guarded.path")


computing = Computing(1)
computing.slow  # noqa: B018  # a value that cannot be stored, and need not be

VALUES = [
    Hashed(1), {Hashed(2): {Hashed(3)}}, computing, Derived("Rome", "n"), DerivedStruct(a=1, b=2), Limits.NONE,
    Mangled([1]).with_note("n"), [Box[Plan](item=Plan("a")), Box[Frozen](item=Frozen((1,)))],
    Plan("Rome", 4), Frozen((1, 2)), Model(x=1, inner=Model(x=2)), Box[int](item=1), Box(item="a"), Struct(1, [2]),
    FrozenStruct(3), Attrs(1, [2]), AttrsFrozen(1), Point(1, 2), Row(1, 2), Colour.RED, Colour.PAIR, Rights.READ,
    Rights.READ | Rights.WRITE, Text("a"), noted, Numbers([1, 2]), Ordered(b=1, a=2), five, Pairs([1, 2]), pairs,
    Local(1), {"deep": [Plan("Oslo"), (Point(1),)]}, Pairs([1, {}]),
]  # fmt: skip


@pytest.mark.parametrize(
    "value", VALUES, ids=[f"{n}-{type(value).__name__}" for n, value in enumerate(VALUES)]
)
def test_a_data_class_comes_back_in_another_process_and_its_code_does_not_run(value):
    packed = codec().pack(value)
    calls.clear()
    back = codec().unpack(packed)
    assert calls == []
    assert repr(back) == repr(value)
    assert type(back) is type(value)
    held = {name: part for name, part in getattr(value, "__dict__", {}).items() if name != "slow"}
    assert getattr(back, "__dict__", {}) == held


def test_two_classes_of_one_name_stay_apart():
    first, second = types.ModuleType("billing_of_tests"), types.ModuleType("travel_of_tests")
    for module in (first, second):
        module.State = dataclasses.make_dataclass("State", ["a"])
        module.State.__module__ = module.__name__
        sys.modules[module.__name__] = module
    try:
        packed = codec().pack([first.State(1), second.State(2)])
        assert [type(item) for item in codec().unpack(packed)] == [first.State, second.State]
        registry = Registry()
        for module in (first, second):
            registry.add(module.State, outlive.format.registry.tag_of(module.State))
        assert Codec(registry).unpack(packed)[1].a == 2
    finally:
        for module in (first, second):
            del sys.modules[module.__name__]
    with pytest.raises(UnknownTag, match="import billing_of_tests before loading"):
        codec().unpack(packed)


# Hostile names ------------------------------------------------------------------------------------


def stored(tag: str, value: Any = None, version: int = 1) -> bytes:
    inside = ormsgpack.packb([tag, version, {} if value is None else value])
    return ormsgpack.packb(ormsgpack.Ext(TAGGED, inside))


def effect():
    calls.append("a function")


class Plain:
    def __init__(self, **fields):
        calls.append("Plain.__init__")


@dataclasses.dataclass
class Failure(Exception):
    a: int = 1


class Answering(types.ModuleType):
    """A module that answers for any name, as lazy modules do."""

    def __getattribute__(self, name):
        calls.append(f"module.{name}")
        return super().__getattribute__(name)


class Meta(type):
    def __getattribute__(cls, name):
        calls.append(f"metaclass.{name}")
        return super().__getattribute__(name)


class WithMeta(metaclass=Meta):
    pass


@dataclasses.dataclass
class Closing:
    path: str = "a"

    def __del__(self):
        calls.append("Closing.__del__")


class Plugin(msgspec.Struct):
    def __init_subclass__(cls, **options):
        calls.append("Plugin.__init_subclass__")
        super().__init_subclass__(**options)


class Noting(Plugin):
    a: int = 1

    def __post_init__(self):
        calls.append("Noting.__post_init__")


class FlagMeta(enum.EnumMeta):
    def __call__(cls, *args, **options):
        calls.append("FlagMeta.__call__")
        return super().__call__(*args, **options)


class Marks(enum.Flag, metaclass=FlagMeta):
    FIRST = 1
    SECOND = 2


@pytest.mark.parametrize(
    "tag",
    [
        "os:system", "subprocess:Popen", "builtins:eval", "builtins:dict", "os:path", "os.path:join", "sys:modules",
        f"{HERE}:effect", f"{HERE}:Plain", f"{HERE}:Failure", f"{HERE}:calls", f"{HERE}:noted", f"{HERE}:subprocess.Popen",
        f"{HERE}:pydantic", f"{HERE}:collections.OrderedDict", f"{HERE}:Plan.__init__", f"{HERE}:Plan.__class__",
        f"{HERE}:Model.model_fields", f"{HERE}:local.<locals>.Missing", f"{HERE}:", ":", ":Plan", f"{HERE}:Plan.", "a:b:c",
        f"{HERE}:WithMeta", f"{HERE}:Closing", f"{HERE}:Noting", f"{HERE}:T", f"{HERE}: Plan", "no.such.module:Plan", "__main__:__builtins__",
    ],
)  # fmt: skip
def test_a_hostile_name_is_refused_and_runs_nothing(tag):
    calls.clear()
    with pytest.raises(UnknownTag):
        codec().unpack(stored(tag))
    assert calls == []


def test_several_flags_are_restored_past_a_metaclass():
    both = Marks.FIRST | Marks.SECOND
    calls.clear()
    assert codec().unpack(stored(f"{HERE}:Marks", 3)) is both
    assert calls == []


def test_a_class_with_a_finalizer_is_stored_when_the_program_registers_it():
    with pytest.raises(Unencodable, match=r"Closing has a __del__.*outlive.register\(Closing\)"):
        codec().pack(Closing())
    registry = Registry()
    registry.add(Closing, f"{HERE}:Closing")
    registered = Codec(ProgramTypes(registry))
    assert registered.unpack(registered.pack(Closing("b"))) == Closing("b")


def test_a_class_is_not_reached_through_a_module_that_only_imports_it():
    module = types.ModuleType("importing_of_tests")
    module.Plan = Plan
    sys.modules[module.__name__] = module
    try:
        with pytest.raises(UnknownTag, match="did it move"):
            codec().unpack(stored("importing_of_tests:Plan", {"city": "a", "days": 1}))
    finally:
        del sys.modules[module.__name__]


def test_a_module_that_answers_with_code_is_not_asked():
    module = Answering("answering_of_tests")
    sys.modules[module.__name__] = module
    calls.clear()
    try:
        with pytest.raises(UnknownTag):
            codec().unpack(stored("answering_of_tests:Plan"))
    finally:
        del sys.modules["answering_of_tests"]
    assert calls == []


def test_a_lazy_module_stays_unloaded():
    spec = importlib.util.find_spec("this")  # it prints when it is imported
    module = importlib.util.module_from_spec(spec)
    importlib.util.LazyLoader(spec.loader).exec_module(module)
    sys.modules["this"] = module
    try:
        with pytest.raises(UnknownTag):
            codec().unpack(stored("this:Zen"))
        assert "s" not in types.ModuleType.__getattribute__(module, "__dict__")
    finally:
        del sys.modules["this"]


def test_nothing_is_imported():
    before = set(sys.modules)
    with pytest.raises(UnknownTag, match="import antigravity before loading"):
        codec().unpack(stored("antigravity:fly"))
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "tag, value",
    [
        (f"{HERE}:Plan", {"city": "a", "days": 1, "more": 1}), (f"{HERE}:Plan", {}), (f"{HERE}:Plan", [1]), (f"{HERE}:Plan", 5),
        (f"{HERE}:Colour", "blue"), (f"{HERE}:Colour", 1), (f"{HERE}:Rights", "x"), (f"{HERE}:Text", 5), (f"{HERE}:Pairs", "ab"),
        (f"{HERE}:Numbers", {}), (f"{HERE}:Model", {"fields": {"y": 1}, "set": []}), (f"{HERE}:Model", {"x": 1}), (f"{HERE}:Struct", {}),
        (f"{HERE}:Point", {"z": 1}), (f"{HERE}:Slotted", "5"), (f"{HERE}:Text", ["a"]),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_are_an_error_that_says_so(tag, value):
    calls.clear()
    with pytest.raises(TypeChanged):
        codec().unpack(stored(tag, value))
    assert calls == []


def test_an_attribute_is_set_past_a_property_of_its_name():
    calls.clear()
    inside = Codec(Registry()).pack(("a", {"path": "/etc", "strip": 1}))
    tagged = ormsgpack.packb([f"{HERE}:Guarded", 1]).replace(b"\x92", b"\x93", 1) + inside
    back = codec().unpack(ormsgpack.packb(ormsgpack.Ext(TAGGED, tagged)))
    assert (back, back.path, calls) == ("a", None, [])


@dataclasses.dataclass
class WithProperty:
    b: list[int]
    a: int

    @property
    def a(self):
        return self._a * 2

    @a.setter
    def a(self, value):
        calls.append("WithProperty.a")
        self._a = value


class InOwnName:
    """A descriptor that keeps values in the object, under its own name."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner=None):
        return 7 if obj is None else obj.__dict__[self.name]

    def __set__(self, obj, value):
        calls.append("InOwnName.__set__")
        obj.__dict__[self.name] = value


class Elsewhere(InOwnName):
    """A descriptor that keeps values outside of the object."""

    kept: ClassVar[dict[int, Any]] = {}

    def __get__(self, obj, owner=None):
        return 7 if obj is None else self.kept.get(id(obj))

    def __set__(self, obj, value):
        self.kept[id(obj)] = value


@dataclasses.dataclass
class Described:
    a: InOwnName = InOwnName()
    b: int = 2


@dataclasses.dataclass
class Lossy:
    a: Elsewhere = Elsewhere()


@pytest.mark.parametrize("value", [WithProperty([1], 3), Described(4), Described()])
def test_a_field_that_is_a_property_comes_back_and_its_code_does_not_run(value):
    packed = codec().pack(value)
    calls.clear()
    back = codec().unpack(packed)
    assert calls == []
    assert (type(back), back) == (type(value), value)


def test_a_field_whose_value_is_not_in_the_object_is_refused():
    with pytest.raises(Unencodable, match="'a' is a property whose value is not kept in the object"):
        codec().pack(Lossy(5))


class Old(pydantic.v1.BaseModel):
    x: int
    names: list[str] = []
    _note: str = pydantic.v1.PrivateAttr("none")

    @pydantic.v1.validator("x")
    def check(cls, value):
        calls.append("a validator of pydantic.v1")
        return value


class OldExtra(pydantic.v1.BaseModel):
    inner: Old | None = None

    class Config:
        extra = "allow"


def test_models_of_pydantic_v1_come_back_and_their_code_does_not_run():
    old = Old(x=1, names=["a"])
    old._note = "mine"
    value = OldExtra(inner=old, more={"deep": (1, 2)})
    packed = codec().pack(value)
    calls.clear()
    back = codec().unpack(packed)
    assert calls == []
    assert (type(back), back, back.inner._note) == (OldExtra, value, "mine")
    assert (back.__fields_set__, back.inner.__fields_set__) == ({"inner", "more"}, {"x", "names"})
    with pytest.raises(TypeChanged, match="no field 'y'"):
        codec().unpack(stored(f"{HERE}:Old", {"fields": {"x": 1, "y": 2}, "set": []}))


def test_a_version_that_nobody_wrote_is_refused():
    with pytest.raises(outlive.errors.NeedsUpgrade):
        codec().unpack(stored(f"{HERE}:Plan", {"city": "a", "days": 1}, version=2))


def another():
    @dataclasses.dataclass
    class Local:
        a: int

    return Local


def test_of_classes_inside_functions_the_one_that_was_saved_last_is_meant():
    mine, first = codec(), another()
    packed = mine.pack(first(1))
    assert type(mine.unpack(packed)) is first
    second = another()
    mine.pack(second(2))
    assert type(mine.unpack(packed)) is second
    mine.pack(first(1))
    assert type(mine.unpack(packed)) is first
    with pytest.raises(UnknownTag, match="classes have this name"):
        codec().unpack(packed)


def test_a_class_that_is_defined_again_is_the_one_that_is_loaded():
    """As when a cell of a notebook runs again."""
    module = types.ModuleType("notebook_of_tests")
    sys.modules[module.__name__] = module
    cell = "import dataclasses\n@dataclasses.dataclass\nclass State:\n    a: int\n"
    try:
        exec(cell, module.__dict__)
        mine, first = codec(), module.State
        packed = mine.pack(first(1))
        assert type(mine.unpack(packed)) is first
        exec(cell + "    b: int = 2\n", module.__dict__)
        assert mine.unpack(packed) == module.State(1, 2)
        assert mine.unpack(mine.pack(first(3))) == module.State(3, 2)  # an object that is left of the first
        assert type(mine.unpack(mine.pack(module.State(4)))) is module.State
        del module.State
        assert mine.unpack(packed).a == 1
    finally:
        del sys.modules[module.__name__]


Hue = enum.Enum("Shade", ["LIGHT", "DARK"])
Spot = collections.namedtuple("Place", "x y")  # noqa: PYI024
Sketch = pydantic.create_model("SketchModel", __module__=HERE, size=(int, 1))


@pytest.mark.parametrize("value", [Hue.DARK, Spot(1, 2), Sketch(size=3)], ids=["enum", "namedtuple", "model"])
def test_a_class_comes_back_that_its_module_binds_to_another_name(value):
    back = codec().unpack(codec().pack(value))
    assert (type(back), back) == (type(value), value)


def test_a_generic_model_that_this_process_has_not_made_comes_back_as_its_class():
    tag = f"{HERE}:Box[no.such.module:Thing]"
    fields = {"fields": {"item": 3}, "set": ["item"]}
    mine = codec()
    calls.clear()
    for _ in range(2):
        back = mine.unpack(stored(tag, fields))
        assert (type(back), back) == (Box, Box[int](item=3))
    assert calls == []
    for wrong in (
        f"{HERE}:Plan[int]",
        f"{HERE}:Plain[int]",
        f"{HERE}:nothing[int]",
        f"{HERE}:[int]",
        f"{HERE}:Box[int].x",
    ):
        with pytest.raises((UnknownTag, TypeChanged)):
            mine.unpack(stored(wrong, {"city": "a", "days": 1}))


@pytest.mark.parametrize(
    "value", [effect, Plain(), Failure(), object(), range(3), sys, Plan], ids=lambda value: str(value)[:20]
)
def test_what_is_no_data_is_refused_at_save(value):
    with pytest.raises(Unencodable):
        codec().pack({"a": value})


# Through a store ----------------------------------------------------------------------------------

PROGRAM = """
import dataclasses, sys
import outlive

@dataclasses.dataclass
class Plan:
    city: str

with outlive.open(sys.argv[1], types="program") as store:
    if sys.argv[2] == "save":
        store.thread("t").save({"plan": Plan("Lisbon")})
    else:
        assert store.thread("t").load() == {"plan": Plan("Lisbon")}
"""


def test_another_process_of_the_program_loads_what_one_has_saved(tmp_path):
    program = tmp_path / "agent.py"
    program.write_text(PROGRAM)
    for act in ("save", "load"):
        subprocess.run([sys.executable, program, tmp_path / "a.db", act], check=True)
    with outlive.open(tmp_path / "a.db") as store:
        with pytest.raises(UnknownTag, match="__main__:Plan"):
            store.thread("t").load()
        with pytest.raises(Unencodable, match=r"Plan is not registered.*register"):
            store.thread("u").save(Plan("Rome"))


def test_types_must_be_one_of_two_words():
    with pytest.raises(BadArgument, match="types must be"):
        outlive.open("memory:", types="all")


def test_a_registered_type_comes_first_and_keeps_its_tag():
    registry = Registry()
    registry.add(Plan, "plan", version=2, upgrade={1: lambda fields: {"city": fields["town"], "days": 1}})
    back = Codec(ProgramTypes(registry)).unpack(stored("plan", {"town": "Rome"}))
    assert (back.city, back.days) == ("Rome", 1)
    assert b"plan" in Codec(ProgramTypes(registry)).pack(back)


def test_a_program_that_makes_classes_does_not_grow(monkeypatch):
    monkeypatch.setattr(outlive.format.program_types, "_MOST", 10)
    registry = ProgramTypes(Registry())
    for number in range(100):
        assert registry.of(dataclasses.make_dataclass(f"C{number}", ["a"])) is not None
    assert len(registry._by_type) <= 10
    assert len(registry._by_tag) <= 10
