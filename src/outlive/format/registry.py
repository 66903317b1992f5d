"""Which of the user's types may be stored, under which tag, and how they are taken apart and put together.

A tag is the user's word for a type. It is independent of module and class name, so both may be
renamed. Nothing is ever imported or called because stored data names it: an unknown tag stays
unknown.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import inspect
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlive.errors import BadArgument, NeedsUpgrade, OutliveError, TypeChanged, UnknownTag

Upgrade = Callable[[Any], Any]
Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]

_PLAIN_BASES: tuple[type, ...] = (str, bytes, int, float, dict, list, tuple, set, frozenset)
_DATED: tuple[type, ...] = (dt.datetime, dt.date, dt.time, dt.timedelta)
_NATIVE: frozenset[type] = frozenset(
    (*_PLAIN_BASES, *_DATED, bool, type(None), bytearray, complex, uuid.UUID, decimal.Decimal)
)

_OF_ADAPTERS = ("langchain.", "langgraph.", "langgraph:")  # tags of what they alone can build
_FROM_ADAPTER = "an adapter wrote this state (outlive.adapters): read it through that adapter"


@dataclass(frozen=True, slots=True)
class RegisteredType:
    """One registered type."""

    cls: type
    tag: str
    version: int
    encode: Encode
    decode: Decode
    upgrade: Mapping[int, Upgrade]

    def revive(self, version: int, value: Any) -> Any:
        """Build the object from a stored value of `version`."""
        while version < self.version:
            step = self.upgrade.get(version)
            if step is None:
                raise NeedsUpgrade(self.tag, version, self.version)
            value = step(value)
            version += 1
        if version > self.version:
            raise NeedsUpgrade(self.tag, version, self.version)
        try:
            return self.decode(value)
        except OutliveError:
            raise
        except Exception as error:
            raise TypeChanged(self.tag, version, str(error)) from error


class Registry:
    """The closed set of types that a codec knows besides Python's own."""

    def __init__(self) -> None:
        self._by_type: dict[type, RegisteredType] = {}
        self._by_tag: dict[str, RegisteredType] = {}

    def add(
        self,
        cls: type,
        tag: str,
        *,
        version: int = 1,
        upgrade: Mapping[int, Upgrade] | None = None,
        encode: Encode | None = None,
        decode: Decode | None = None,
    ) -> None:
        """Register `cls` under `tag`; the same registration may be repeated."""
        _check(cls, tag, version, encode, decode)
        taken = self._by_tag.get(tag)
        if taken is not None and taken.cls is not cls and not _same_class(taken.cls, cls):
            raise BadArgument(
                f"the tag {tag!r} belongs to {taken.cls.__qualname__}; choose another for {cls.__qualname__}"
            )
        if encode is None or decode is None:
            encode, decode = _anatomy(cls)
        entry = RegisteredType(cls, tag, version, encode, decode, dict(upgrade or {}))
        self._by_type[cls] = self._by_tag[tag] = entry

    def of(self, cls: type) -> RegisteredType | None:
        """Return the registration of exactly this class."""
        return self._by_type.get(cls)

    def tagged(self, tag: str, version: int) -> RegisteredType:
        """Return the registration under `tag`, or raise UnknownTag."""
        entry = self._by_tag.get(tag)
        if entry is None:
            raise UnknownTag(tag, version, _FROM_ADAPTER if tag.startswith(_OF_ADAPTERS) else None)
        return entry

    def has(self, tag: str) -> bool:
        """Tell whether something is registered under `tag`."""
        return tag in self._by_tag

    def add_annotated(self, root: Any) -> None:
        """Register every class that the annotations of `root` name, under its own qualified name."""
        seen: set[Any] = set()
        todo = [root]
        while todo:
            item = todo.pop()
            if isinstance(item, list):  # the arguments of a Callable
                todo.extend(item)
                continue
            if item in seen:
                continue
            seen.add(item)
            todo.extend((*typing.get_args(item), typing.get_origin(item)))
            if isinstance(item, type) and item not in _NATIVE and _find_anatomy(item) is not None:
                if self.of(item) is None:
                    self.add(item, item.__qualname__)
                todo.extend(_hints(item))


def accepts(annotation: Any, value: object) -> bool:
    """Tell whether a value fits an annotation, by its outermost class.

    Without a class, such as Any, everything fits.
    """
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(accepts(part, value) for part in typing.get_args(annotation))
    if origin is typing.Annotated:
        return accepts(typing.get_args(annotation)[0], value)
    cls = origin or annotation
    if cls is None or typing.is_typeddict(cls):
        return isinstance(value, dict if cls is not None else types.NoneType)
    try:
        return not isinstance(cls, type) or isinstance(value, cls)
    except TypeError:  # a protocol that is not for use at run time
        return True


def _check(cls: object, tag: object, version: object, encode: object, decode: object) -> None:
    if not isinstance(cls, type):
        raise BadArgument(f"register() takes a class, not {cls!r}")
    if cls in _NATIVE or cls.__module__ == "numpy":
        raise BadArgument(f"{cls.__name__} is stored as it is and cannot be registered")
    if not isinstance(tag, str) or not tag:
        raise BadArgument(f"tag must be a non-empty str, not {tag!r}")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BadArgument(f"version must be an int from 1 on, not {version!r}")
    if (encode is None) != (decode is None):
        raise BadArgument("give both encode= and decode=, or neither")


def _same_class(old: type, new: type) -> bool:
    """Tell a reloaded module, which makes its classes again, from a conflict."""
    return (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)


def _hints(cls: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(cls).values())
    except (NameError, TypeError):  # a forward reference to something local: those are registered by hand
        return []


def _anatomy(cls: type) -> tuple[Encode, Decode]:
    anatomy = _find_anatomy(cls)
    if anatomy is None:
        raise BadArgument(
            f"{cls.__qualname__} is no dataclass, pydantic model, msgspec.Struct, namedtuple, Enum or subclass of a "
            "built-in: give register() an encode= and a decode= function"
        )
    return anatomy(cls)


def _find_anatomy(cls: type) -> Callable[[type], tuple[Encode, Decode]] | None:
    if issubclass(cls, enum.Enum):
        return _enum
    if dataclasses.is_dataclass(cls):
        return None if issubclass(cls, (*_PLAIN_BASES, BaseException)) else _dataclass
    if hasattr(cls, "__pydantic_fields__"):
        return _pydantic
    if hasattr(cls, "__struct_fields__"):
        return _struct
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _namedtuple
    if issubclass(cls, _PLAIN_BASES):
        return _subclass
    return None


def _enum(cls: Any) -> tuple[Encode, Decode]:
    return (lambda member: member.value), cls


def _fill(
    cls: type, names: list[str], defaults: Mapping[str, Callable[[], Any]], value: Any
) -> dict[str, Any]:
    """Match stored fields with today's: a new field takes its default, one that is gone is an error."""
    if not isinstance(value, dict):
        raise TypeError(f"a stored {cls.__qualname__} must be a dict of fields")
    fields = {}
    for name in names:
        if name in value:
            fields[name] = value[name]
        elif name in defaults:
            fields[name] = defaults[name]()
        else:
            raise TypeError(
                f"field {name!r} of {cls.__qualname__} was not stored; register a new version with an upgrade"
            )
    if gone := set(value) - set(fields):
        raise TypeError(
            f"{cls.__qualname__} has no field {min(gone)!r} any more; register a new version with an upgrade"
        )
    return fields


def _same(value: Any) -> Any:
    return value


def _defaults(fields: Iterable[Any], missing: object) -> dict[str, Callable[[], Any]]:
    defaults: dict[str, Callable[[], Any]] = {}
    for field in fields:
        if field.default is not missing:
            defaults[field.name] = functools.partial(_same, field.default)
        elif field.default_factory is not missing:
            defaults[field.name] = field.default_factory
    return defaults


def _dataclass(cls: Any) -> tuple[Encode, Decode]:
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    defaults = _defaults(fields, dataclasses.MISSING)

    def encode(obj: Any) -> dict[str, Any]:
        return {name: getattr(obj, name) for name in names}

    def decode(value: Any) -> Any:
        obj = object.__new__(cls)  # neither __init__ nor __post_init__: the object is restored, not made
        for name, item in _fill(cls, names, defaults, value).items():
            object.__setattr__(obj, name, item)
        return obj

    return encode, decode


def _namedtuple(cls: Any) -> tuple[Encode, Decode]:
    defaults: dict[str, Callable[[], Any]] = {
        name: functools.partial(_same, value) for name, value in cls._field_defaults.items()
    }
    names = list(cls._fields)
    return (lambda obj: dict(zip(names, obj, strict=True))), (
        lambda value: cls(**_fill(cls, names, defaults, value))
    )


def _struct(cls: Any) -> tuple[Encode, Decode]:
    structs = sys.modules["msgspec"].structs
    names = list(cls.__struct_fields__)
    defaults = _defaults(structs.fields(cls), sys.modules["msgspec"].NODEFAULT)

    def encode(obj: Any) -> dict[str, Any]:
        return {name: getattr(obj, name) for name in names}

    def decode(value: Any) -> Any:
        fields = _fill(cls, names, defaults, value)
        obj = cls(**fields)
        for name, item in fields.items():  # whatever a __post_init__ made of them
            structs.force_setattr(obj, name, item)
        return obj

    return encode, decode


def _pydantic(cls: Any) -> tuple[Encode, Decode]:
    names = list(cls.__pydantic_fields__)
    defaults = {
        name: functools.partial(info.get_default, call_default_factory=True, validated_data={})
        for name, info in cls.__pydantic_fields__.items()
        if not info.is_required()
    }

    def encode(obj: Any) -> dict[str, Any]:
        parts = {"fields": dict(obj.__dict__), "set": sorted(obj.__pydantic_fields_set__)}
        if obj.__pydantic_extra__:
            parts["extra"] = dict(obj.__pydantic_extra__)
        if obj.__pydantic_private__ is not None:
            parts["private"] = dict(obj.__pydantic_private__)
        return parts

    def decode(value: Any) -> Any:
        obj = cls.__new__(cls)
        stored = {name: item for name, item in value["fields"].items() if name in names}
        cached = {name: item for name, item in value["fields"].items() if name not in names}
        if gone := [
            name for name in cached if not isinstance(inspect.getattr_static(cls, name, None), _CACHED)
        ]:
            raise TypeError(
                f"{cls.__qualname__} has no field {gone[0]!r} any more; register a new version with an upgrade"
            )
        object.__setattr__(obj, "__dict__", {**_fill(cls, names, defaults, stored), **cached})
        object.__setattr__(obj, "__pydantic_fields_set__", set(value["set"]))
        extra = value.get("extra", {}) if cls.model_config.get("extra") == "allow" else None
        for name, item in (("__pydantic_extra__", extra), ("__pydantic_private__", value.get("private"))):
            if getattr(obj, name, obj) is not item:  # a RootModel has them on the class
                object.__setattr__(obj, name, item)
        return obj

    return encode, decode


_CACHED = (property, functools.cached_property)


def _subclass(cls: Any) -> tuple[Encode, Decode]:
    plain = next(base for base in _PLAIN_BASES if issubclass(cls, base))
    try:
        cls(plain())
    except Exception as error:
        raise BadArgument(
            f"{cls.__qualname__} cannot be made from a plain {plain.__name__} ({error}): "
            "give register() an encode= and a decode= function"
        ) from error
    return plain, cls


default_registry = Registry()


def register(
    cls: type | None = None,
    *,
    tag: str | None = None,
    version: int = 1,
    upgrade: Mapping[int, Upgrade] | None = None,
    encode: Encode | None = None,
    decode: Decode | None = None,
) -> Any:
    """Allow a type to be stored, under a tag of your own; also usable as a class decorator.

    `upgrade={1: fn}`: `fn` takes the stored fields of version 1 and returns those of version 2.
    Raises BadArgument when the tag belongs to another type or the type needs encode= and decode=.
    """

    def add(cls: type) -> type:
        default_registry.add(
            cls, cls.__qualname__ if tag is None and isinstance(cls, type) else tag or "",
            version=version, upgrade=upgrade, encode=encode, decode=decode,
        )  # fmt: skip
        return cls

    return add if cls is None else add(cls)
