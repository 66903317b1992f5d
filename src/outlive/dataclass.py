"""A `dataclass` that takes a fraction of the standard one's time to define: a process that starts defines dozens.

The standard decorator compiles every method of every class. Here only `__init__` is compiled. The
other methods are the same functions for all classes. What the module `dataclasses` reads of a class
(for `fields`, `replace`, `asdict`) comes from a standard twin of the class, which is made when it
is first asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_SHOWN, _COMPARED, _ALL = "_shown_fields", "_compared_fields", "_all_fields"


def _dataclass(
    *, slots: bool, frozen: bool = False, eq: bool = True, repr: bool = True, kw_only: bool = False
) -> Callable[[type], type]:
    """Return a decorator with the options of the standard one. All classes have slots."""
    assert slots
    return lambda cls: _define(cls, frozen, eq, repr, kw_only)


def _define(cls: type, frozen: bool, eq: bool, repr: bool, kw_only: bool) -> type:
    own = {
        name: _field(vars(cls).get(name, MISSING), name, type, kw_only)
        for name, type in cls.__annotations__.items()
    }
    fields: dict[str, Field[Any]] = {**getattr(cls, _ALL, {}), **own}
    members = {
        name: value for name, value in vars(cls).items() if name not in own and name not in _OF_OTHER_CLASS
    }
    methods: dict[str, Any] = {"__replace__": _replace}
    if repr:
        methods |= {"__repr__": _repr, _SHOWN: [name for name, field in fields.items() if field.repr]}
    if eq:
        compared = [name for name, field in fields.items() if field.compare]
        methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None, _COMPARED: attrgetter(*compared)}
    if frozen:
        methods |= _FROZEN

    @cache
    def twin() -> type:
        twin = type(
            cls.__name__,
            cls.__bases__,
            {**own, "__annotations__": cls.__annotations__, "__doc__": cls.__name__},
        )
        return dataclasses.dataclass(frozen=frozen, eq=eq, repr=repr, kw_only=kw_only)(twin)

    made = type(cls)(cls.__name__, cls.__bases__, {
        **methods,
        **members,
        "__slots__": tuple(own),
        "__match_args__": tuple(name for name, field in fields.items() if not field.kw_only),
        _ALL: fields,
        "__dataclass_fields__": _FromTwin(twin, "__dataclass_fields__"),
        "__dataclass_params__": _FromTwin(twin, "__dataclass_params__"),
    })  # fmt: skip
    made.__qualname__ = cls.__qualname__
    made.__init__ = _compile(made, fields, frozen)  # type: ignore[misc]
    return made


_OF_OTHER_CLASS = ("__dict__", "__weakref__")


def _field(value: Any, name: str, type: Any, kw_only: bool) -> Field[Any]:
    field: Field[Any] = value if isinstance(value, Field) else dataclasses.field(default=value)
    field.name, field.type = name, type
    if field.kw_only is MISSING:
        field.kw_only = kw_only
    return field


def _compile(cls: type, fields: dict[str, Field[Any]], frozen: bool) -> Any:
    """Return `__init__`, as one would write it by hand."""
    names: dict[str, Any] = {"FACTORY": _FACTORY}
    positional, keywords, body = ["self"], ["*"], []
    for name, field in fields.items():
        parameter = value = name
        if field.default is not MISSING:
            names[f"default_{name}"] = field.default
            parameter = f"{name}=default_{name}"
        elif field.default_factory is not MISSING:
            names[f"make_{name}"] = field.default_factory
            parameter, value = f"{name}=FACTORY", f"make_{name}() if {name} is FACTORY else {name}"
        (keywords if field.kw_only else positional).append(parameter)
        if frozen:
            names[f"set_{name}"] = getattr(
                cls, name
            ).__set__  # of the slot: passes by the refusing __setattr__
            body.append(f"set_{name}(self, {value})")
        else:
            body.append(f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (keywords if len(keywords) > 1 else []))
    exec(f"def __init__({parameters}):\n " + "\n ".join(body), names)  # noqa: S102  # of names in our classes only
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {**{name: field.type for name, field in fields.items()}, "return": None}
    return made


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()  # the default of a field with a factory, as signatures show it


class _FromTwin:
    """What the module `dataclasses` keeps in a class, made when it is first read."""

    def __init__(self, make: Callable[[], type], name: str) -> None:
        self.make, self.name = make, name

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(self.make(), self.name)


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join([f"{name}={getattr(self, name)!r}" for name in getattr(self, _SHOWN)])
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    compared = getattr(self, _COMPARED)
    return bool(compared(self) == compared(other))


def _hash(self: Any) -> int:
    return hash(getattr(self, _COMPARED)(self))


def _replace(self: Any, /, **changes: Any) -> Any:
    return dataclasses.replace(self, **changes)


def _refuse_set(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _values(self: Any) -> list[Any]:
    return [getattr(self, name) for name in getattr(self, _ALL)]


def _restore(self: Any, values: list[Any]) -> None:
    for name, value in zip(getattr(self, _ALL), values, strict=True):
        object.__setattr__(self, name, value)


_FROZEN = {
    "__setattr__": _refuse_set, "__delattr__": _refuse_delete, "__getstate__": _values, "__setstate__": _restore,
}  # fmt: skip

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
