"""The library's own `dataclass` does what the standard one does."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from dataclasses import field
from typing import Any

import pytest

from outlive import dataclass as ours

KINDS: list[dict[str, Any]] = [
    {},
    {"frozen": True},
    {"frozen": True, "kw_only": True},
    {"eq": False},
    {"repr": False},
    {"frozen": True, "eq": False, "repr": False},
]


def define(dataclass: Any, options: dict[str, Any]) -> tuple[type[Any], type[Any]]:
    @dataclass(slots=True, **options)
    class Base:
        """Documented."""

        a: int
        b: str = field(kw_only=False)
        c: list[int] = field(default_factory=list)
        d: int = field(default=7, repr=False, compare=False)

        def total(self) -> int:
            return self.a + self.d

    @dataclass(slots=True, **options)
    class Derived(Base):
        e: str = "é"

        def __post_init__(self) -> None:
            assert self.c is not None

    return Base, Derived


def pair(options: dict[str, Any]) -> list[tuple[type[Any], type[Any]]]:
    return list(zip(define(ours.dataclass, options), define(dataclasses.dataclass, options), strict=True))


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_classes_look_like_standard_ones(options):
    for own, standard in pair(options):
        assert str(inspect.signature(own)) == str(inspect.signature(standard))
        assert own.__doc__ == standard.__doc__ or own.__doc__ is None
        assert own.__match_args__ == standard.__match_args__
        assert own.__slots__ == standard.__slots__
        assert dataclasses.is_dataclass(own)
        assert [(f.name, f.type, f.kw_only) for f in dataclasses.fields(own)] == [
            (f.name, f.type, f.kw_only) for f in dataclasses.fields(standard)
        ]
        assert repr(own.__dataclass_params__) == repr(standard.__dataclass_params__)
        assert not hasattr(own(a=1, b="b"), "__dict__")


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_objects_act_like_standard_ones(options):
    for own, standard in pair(options):
        one, other = own(b="b", a=1), standard(b="b", a=1)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        assert dataclasses.asdict(dataclasses.replace(one, a=5)) == dataclasses.asdict(
            dataclasses.replace(other, a=5)
        )
        assert one.total() == other.total() == 8
        assert one.c is not own(a=1, b="b").c
        if options.get("repr", True):
            assert repr(one) == repr(other)
        for changes in ({}, {"a": 2}, {"d": 8}):
            equal = standard(b="b", a=1) == dataclasses.replace(other, **changes)
            assert (own(b="b", a=1) == dataclasses.replace(one, **changes)) is equal
        assert one != other
        assert copy.copy(one).a == copy.deepcopy(one).a == 1
        assert (own.__hash__ is None) == (standard.__hash__ is None)
        with pytest.raises(TypeError, match="missing"):
            own(a=1)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace is new in Python 3.13")
def test_copy_replace_works():
    own, _ = define(ours.dataclass, {"frozen": True})
    assert copy.replace(own(1, "b"), a=2).a == 2  # type: ignore[attr-defined]


def test_frozen_objects_refuse_changes_as_standard_ones_do():
    for own, standard in pair({"frozen": True}):
        messages = []
        for made in (own(1, "b"), standard(1, "b")):
            with pytest.raises(dataclasses.FrozenInstanceError) as set_:
                made.a = 2
            with pytest.raises(dataclasses.FrozenInstanceError) as deleted:
                del made.a
            messages.append((str(set_.value), str(deleted.value)))
        assert messages[0] == messages[1]


@ours.dataclass(frozen=True, slots=True)
class Node:
    name: str
    children: list[Node]


def test_objects_are_pickled_hashed_and_shown_although_they_contain_themselves():
    node = Node("root", [])
    assert pickle.loads(pickle.dumps(node)) == node
    node.children.append(node)
    assert repr(node) == "Node(name='root', children=[...])"
    tuple_of = ours.dataclass(frozen=True, slots=True)(
        type("Point", (), {"__annotations__": {"x": int, "y": int}})
    )
    assert len({tuple_of(1, 2), tuple_of(1, 2), tuple_of(2, 1)}) == 2
