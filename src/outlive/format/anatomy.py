"""How objects of a data class are taken apart, and put together again without running its code.

A data class is a dataclass, a pydantic model (of version 2 or `pydantic.v1`), a `msgspec.Struct`,
an attrs class, a namedtuple, an Enum, or a subclass of a built-in type. An object is stored as its
fields. It is restored, not made: neither `__new__` nor `__init__`, neither `__post_init__` nor a
validator of the class is called, and no property or `__setattr__` of it. What may run is a default:
a field that the class has got since takes its default or the result of its default factory.

Stored bytes are hostile. They choose the values of fields, as they do for every dict, and nothing
else.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]
Default = Callable[[Any], Any]  # of the fields that were stored

PLAIN_BASES: tuple[type, ...] = (str, bytes, int, float, dict, list, tuple, set, frozenset)
_BUILT_IN = (collections.OrderedDict, *PLAIN_BASES)
_HEAP_TYPE = 1 << 9  # the flag of a class that Python code has made
_set = object.__setattr__  # works on frozen classes too


class Anatomy(NamedTuple):
    """How objects of one class are taken apart and put together."""

    encode: Encode
    decode: Decode


def anatomy_of(cls: type, *, drop: bool = False) -> Anatomy | None:
    """Return the anatomy of a data class, None for any other class.

    `drop=True`: a stored field that a pydantic model no longer has is left out, as pydantic does
    with fields that it does not know. Otherwise it is a TypeError.
    """
    find = _find(cls)
    if find is _pydantic or find is _pydantic_1:
        return find(cls, drop)
    return None if find is None else find(cls)


def is_data_class(cls: type) -> bool:
    """Tell whether objects of a class can be taken apart."""
    return _find(cls) is not None


def has_finalizer(cls: type) -> bool:
    """Tell whether code of a class runs when an object of it is no longer used."""
    return "__del__" in _names(cls)


def _find(cls: type) -> Callable[..., Anatomy] | None:
    # By what stands in the class, never by getattr on it: a metaclass may answer with code.
    names = _names(cls)
    if issubclass(cls, BaseException):
        return None
    if issubclass(cls, enum.Enum):
        return _enum
    if "__struct_fields__" in names:
        return None if _notices_copies(cls, names) else _struct
    if issubclass(cls, tuple) and "_fields" in names:
        return _namedtuple
    if issubclass(cls, PLAIN_BASES):
        is_record = "__dataclass_fields__" in names or "__attrs_attrs__" in names
        return None if is_record or not _is_of_python(cls) else _subclass
    for mark, way in (("__dataclass_fields__", _dataclass), ("__attrs_attrs__", _attrs)):
        if mark in names:
            return way if _is_of_python(cls) else None
    if "__pydantic_fields__" in names:
        return _pydantic
    return _pydantic_1 if {"__fields_set__", "__validators__", "__post_root_validators__"} <= names else None


def _notices_copies(cls: type, names: set[str]) -> bool:
    """Tell whether code of a Struct would run when `_struct` makes a class like it."""
    bases = type.mro(cls)[:-1]  # the last is object, which has one that does nothing
    is_told = any("__init_subclass__" in type.__getattribute__(base, "__dict__") for base in bases)
    return is_told and "__post_init__" in names


def _is_computed(cls: Any, name: str) -> bool:
    """Tell whether a field is a property, or another descriptor: to set it would run code of the class."""
    part = inspect.getattr_static(cls, name, None)
    return hasattr(type(part), "__set__") and type(part) is not types.MemberDescriptorType


def _names(cls: type) -> set[str]:
    return {name for base in type.mro(cls) for name in type.__getattribute__(base, "__dict__")}


def _is_of_python(cls: type) -> bool:
    """Tell whether Python code made every class between a known built-in type and this one."""
    bases = type.mro(cls)[:-1]
    return all(base in _BUILT_IN or base.__flags__ & _HEAP_TYPE for base in bases)


# Matching fields ----------------------------------------------------------------------------------


class _Fields:
    """The fields of a class today, and what those get that were not stored."""

    def __init__(
        self, cls: type, names: Iterable[str], defaults: Mapping[str, Default], drop: bool = False
    ) -> None:
        self.cls = cls
        self.names = list(names)
        self._set = frozenset(self.names)
        self.defaults = defaults
        self._drop = drop

    def of(self, obj: Any) -> dict[str, Any]:
        """Take an object apart."""
        return {name: getattr(obj, name) for name in self.names}

    def match(self, stored: Any) -> dict[str, Any]:
        """Return a value for every field; raise TypeError when the stored ones do not fit."""
        if not isinstance(stored, dict):
            raise TypeError(f"a stored {self.cls.__qualname__} must be a dict of fields")
        if stored.keys() == self._set:
            return stored
        if not self._drop and (gone := stored.keys() - self._set):
            raise TypeError(
                f"{self.cls.__qualname__} has no field {min(gone)!r} any more; register a new version with an upgrade"
            )
        return {name: stored[name] if name in stored else self._default(name, stored) for name in self.names}

    def _default(self, name: str, stored: dict[str, Any]) -> Any:
        if name not in self.defaults:
            raise TypeError(
                f"field {name!r} of {self.cls.__qualname__} was not stored; register a new version with an upgrade"
            )
        return self.defaults[name](stored)


def _always(value: Any, _: Any = None) -> Any:
    return value


def _made_by(factory: Callable[[], Any]) -> Default:
    return lambda _: factory()


def _defaults(fields: Iterable[Any], missing: object) -> dict[str, Default]:
    defaults: dict[str, Default] = {}
    for field in fields:
        if field.default is not missing:
            defaults[field.name] = functools.partial(_always, field.default)
        elif field.default_factory is not missing:
            defaults[field.name] = _made_by(field.default_factory)
    return defaults


def _slots_of(cls: type) -> dict[str, Any]:
    """Return the slots of a class and its bases: name → descriptor, which sets without running code."""
    found: dict[str, Any] = {}
    for base in reversed(type.mro(cls)):
        inside = type.__getattribute__(base, "__dict__")
        found.update(
            (name, part) for name, part in inside.items() if type(part) is types.MemberDescriptorType
        )
    return found


def _set_all(obj: Any, slots: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Set attributes where they are kept, past any property and `__setattr__` of the class."""
    for name, value in values.items():
        if name in slots:
            slots[name].__set__(obj, value)
        else:
            object.__getattribute__(obj, "__dict__")[name] = value
    return obj


def _attributes(obj: Any, slots: Iterable[str], fields: Container[str] = ()) -> dict[str, Any]:
    """Return what an object has beside its fields, without what its class computes when asked."""
    held = dict(getattr(obj, "__dict__", ()))
    held.update((name, getattr(obj, name)) for name in slots if hasattr(obj, name))
    return {
        name: value for name, value in held.items() if name not in fields and not _is_cached(type(obj), name)
    }


def _with_attributes(value: Any, attributes: dict[str, Any]) -> Any:
    return (value, attributes) if attributes else value


def _apart(stored: Any) -> tuple[Any, dict[str, Any]]:
    """Return what `_with_attributes` put together."""
    if type(stored) is not tuple:
        return stored, {}
    if len(stored) != 2 or type(stored[1]) is not dict:
        raise TypeError("it must be a value and its attributes")
    return stored


def _record(cls: Any, fields: _Fields, more: Mapping[str, Any] | None = None) -> Anatomy:
    """Return the anatomy of a class that keeps its fields as attributes."""
    slots = _slots_of(cls)
    computed = [name for name in fields.names if _is_computed(cls, name)]
    if computed:
        return _computing(cls, fields, computed)

    def encode(obj: Any) -> Any:
        return _with_attributes(fields.of(obj), _attributes(obj, slots, _skipped))

    def decode(stored: Any) -> Any:
        value, attributes = _apart(stored)
        return _set_all(object.__new__(cls), slots, {**(more or {}), **fields.match(value), **attributes})

    _skipped = frozenset((*fields.names, *_NOT_STORED, *(more or ())))
    return Anatomy(encode, decode)


def _computing(cls: Any, fields: _Fields, computed: list[str]) -> Anatomy:
    """Return the anatomy of a class with a field that is a property.

    Such a field has no place of its own: what it returns comes from other attributes. These are
    stored instead, and the object is refused if they do not tell the value of the field.
    """
    slots = _slots_of(cls)
    plain = _Fields(cls, [name for name in fields.names if name not in computed], fields.defaults)

    def encode(obj: Any) -> Any:
        kept = dict(getattr(obj, "__dict__", ()))
        kept.update((name, getattr(obj, name)) for name in slots if hasattr(obj, name))
        skipped = {*plain.names, *_NOT_STORED}
        rest = {name: value for name, value in kept.items() if name not in skipped}
        stored = (plain.of(obj), rest)
        restored = decode(stored)
        for name in computed:
            if not _is_same(getattr(obj, name), getattr(restored, name, _LOST)):
                raise TypeError(f"the field {name!r} is a property whose value is not kept in the object")
        return stored

    def decode(stored: Any) -> Any:
        value, attributes = _apart(stored)
        return _set_all(object.__new__(cls), slots, {**plain.match(value), **attributes})

    return Anatomy(encode, decode)


_LOST = object()


def _is_same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)


_NOT_STORED = (
    "__weakref__",
    "__dict__",
    "__orig_class__",
)  # the last one is of a generic alias, `Box[int]()`


# Classes of fields --------------------------------------------------------------------------------


def _dataclass(cls: Any) -> Anatomy:
    stored = dataclasses.fields(cls)
    names = (field.name for field in stored)
    return _record(cls, _Fields(cls, names, _defaults(stored, dataclasses.MISSING)))


def _attrs(cls: Any) -> Anatomy:
    attributes = cls.__attrs_attrs__
    nothing = sys.modules["attr"].NOTHING
    defaults: dict[str, Default] = {}
    for attribute in attributes:
        default = attribute.default
        if isinstance(default, sys.modules["attr"].Factory):
            if not default.takes_self:
                defaults[attribute.name] = _made_by(default.factory)
        elif default is not nothing:
            defaults[attribute.name] = functools.partial(_always, default)
    fields = _Fields(cls, (attribute.name for attribute in attributes), defaults)
    hashes = getattr(getattr(cls.__hash__, "__code__", None), "co_names", ())
    return _record(cls, fields, {_HASH: None} if _HASH in hashes else None)


_HASH = "_attrs_cached_hash"  # where attrs keeps the hash of an object, None until it is computed


def _namedtuple(cls: Any) -> Anatomy:
    defaults: dict[str, Default] = {
        name: functools.partial(_always, value) for name, value in cls._field_defaults.items()
    }
    fields = _Fields(cls, cls._fields, defaults)

    slots = _slots_of(cls)

    def encode(obj: Any) -> Any:
        values = dict(zip(fields.names, tuple.__iter__(obj), strict=True))
        return _with_attributes(values, _attributes(obj, slots, _NOT_STORED))

    def decode(stored: Any) -> Any:
        value, attributes = _apart(stored)
        matched = fields.match(value)
        return _set_all(tuple.__new__(cls, [matched[name] for name in fields.names]), slots, attributes)

    return Anatomy(encode, decode)


def _struct(cls: Any) -> Anatomy:
    msgspec = sys.modules["msgspec"]
    defaults = _defaults(msgspec.structs.fields(cls), msgspec.NODEFAULT)
    fields = _Fields(cls, cls.__struct_fields__, defaults)
    make = cls
    if "__post_init__" in _names(cls):
        # Only msgspec can make a Struct, and it calls __post_init__. So an object of a class with
        # the same layout, in which that method does nothing, is made, and then becomes one of this
        # class.
        config = cls.__struct_config__
        inherited = {name for base in cls.__bases__ for name in getattr(base, "__struct_fields__", ())}
        make = msgspec.defstruct(
            cls.__name__, [name for name in fields.names if name not in inherited], bases=cls.__bases__,
            namespace={"__post_init__": _always}, kw_only=True, frozen=False,
            weakref=config.weakref, dict=config.dict, gc=config.gc,
        )  # fmt: skip

    def encode(obj: Any) -> Any:
        return _with_attributes(fields.of(obj), dict(getattr(obj, "__dict__", ())))

    def decode(stored: Any) -> Any:
        value, attributes = _apart(stored)
        obj = make(**fields.match(value))
        if make is not cls:
            obj.__class__ = cls
        return _set_all(obj, {}, attributes)

    return Anatomy(encode, decode)


def _pydantic(cls: Any, drop: bool) -> Anatomy:
    infos = cls.__pydantic_fields__
    defaults: dict[str, Default] = {
        name: functools.partial(_default_of, info) for name, info in infos.items() if not info.is_required()
    }
    extra = cls.model_config.get("extra")
    fields = _Fields(cls, infos, defaults, drop and extra != "forbid")
    takes_extra = extra == "allow"
    privates = cls.__private_attributes__
    slots = {name: part for name, part in _slots_of(cls).items() if name.startswith("__pydantic_")}
    hidden = {  # a RootModel has these on the class
        name for name in slots if inspect.getattr_static(cls, name) is not slots[name]
    }

    def encode(obj: Any) -> dict[str, Any]:
        parts = {"fields": dict(obj.__dict__), "set": sorted(obj.__pydantic_fields_set__)}
        if absent := infos.keys() - obj.__dict__.keys():  # made by model_construct
            parts["absent"] = sorted(absent)
        if obj.__pydantic_extra__:
            parts["extra"] = dict(obj.__pydantic_extra__)
        if obj.__pydantic_private__ is not None:
            parts["private"] = dict(obj.__pydantic_private__)
        return parts

    def decode(value: Any) -> Any:
        stored = value["fields"]
        if stored.keys() != infos.keys():
            cached = {name: item for name, item in stored.items() if _is_cached(cls, name)}
            absent = dict.fromkeys(value.get("absent", ()))
            given = {name: item for name, item in stored.items() if name not in cached}
            matched = fields.match({**absent, **given})
            stored = {name: item for name, item in matched.items() if name not in absent} | cached
        private = value.get("private")
        if privates and (private is None or private.keys() != privates.keys()):
            new = {name: part for name, part in privates.items() if name not in (private or {})}
            private = {**_private_defaults(new), **(private or {})}
        parts = {
            "__pydantic_fields_set__": set(value["set"]),
            "__pydantic_extra__": value.get("extra", {}) if takes_extra else None,
            "__pydantic_private__": private,
        }
        model = object.__new__(cls)
        _set(model, "__dict__", stored)
        return _set_all(model, slots, {name: part for name, part in parts.items() if name not in hidden})

    return Anatomy(encode, decode)


def _pydantic_1(cls: Any, drop: bool) -> Anatomy:
    """Return the anatomy of a model of `pydantic.v1`, which keeps extra fields with the others."""
    infos = cls.__fields__
    defaults: dict[str, Default] = {
        name: _made_by(info.get_default) for name, info in infos.items() if not info.required
    }
    extra = getattr(cls.__config__.extra, "value", cls.__config__.extra)
    fields = _Fields(cls, infos, defaults, drop and extra != "forbid")
    slots = _slots_of(cls)
    privates = cls.__private_attributes__

    def encode(obj: Any) -> dict[str, Any]:
        parts = {"fields": dict(obj.__dict__), "set": sorted(obj.__fields_set__)}
        private = {name: getattr(obj, name) for name in privates if hasattr(obj, name)}
        return {**parts, "private": private} if private else parts

    def decode(value: Any) -> Any:
        stored = value["fields"]
        more = {name: item for name, item in stored.items() if name not in infos} if extra == "allow" else {}
        matched = fields.match({name: item for name, item in stored.items() if name not in more}) | more
        private = {name: item for name, item in value.get("private", {}).items() if name in privates}
        model = object.__new__(cls)
        _set(model, "__dict__", matched)
        return _set_all(model, slots, {"__fields_set__": set(value["set"]), **private})

    return Anatomy(encode, decode)


def _default_of(info: Any, stored: dict[str, Any]) -> Any:
    return info.get_default(call_default_factory=True, validated_data=stored)


def _private_defaults(privates: Mapping[str, Any]) -> dict[str, Any]:
    undefined = sys.modules["pydantic_core"].PydanticUndefined
    defaults = {name: part.get_default() for name, part in privates.items()}
    return {name: value for name, value in defaults.items() if value is not undefined}


def _is_cached(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), property | functools.cached_property)


# Enums and subclasses of built-in types -----------------------------------------------------------


def _enum(cls: Any) -> Anatomy:
    def decode(value: Any) -> Any:
        for member in type.__getattribute__(cls, "_member_map_").values():
            held = member._value_
            if type(held) is type(value) and (held == value or (held != held and value != value)):
                return member  # (NaN is not equal to itself)
        # Only the code of `enum` itself may make the union of several flags.
        if issubclass(cls, enum.Flag) and _is_plain_flag(cls) and type(value) is int:
            return enum.EnumMeta.__call__(cls, value)  # past a metaclass of the program
        raise TypeError(f"{cls.__qualname__} has no member with this value")

    return Anatomy(lambda member: member._value_, decode)


def _is_plain_flag(cls: type[enum.Flag]) -> bool:
    missing = inspect.getattr_static(cls, "_missing_")
    return missing in (enum.Flag.__dict__["_missing_"], enum.IntFlag.__dict__.get("_missing_"))


def _subclass(cls: Any) -> Anatomy:
    base = next(base for base in _BUILT_IN if issubclass(cls, base))
    plain = dict if issubclass(base, dict) else base
    slots = _slots_of(cls)

    def encode(obj: Any) -> Any:
        return _with_attributes(_plain_value(plain, obj), _attributes(obj, slots, _NOT_STORED))

    def decode(stored: Any) -> Any:
        value, attributes = _apart(stored)
        if not isinstance(value, list if plain is tuple else plain):
            raise TypeError(f"a stored {cls.__qualname__} must hold a {plain.__name__}")
        return _set_all(_filled(base, cls, value), slots, attributes)

    return Anatomy(encode, decode)


def _plain_value(plain: Any, obj: Any) -> Any:
    """Return the built-in part of an object, whatever methods its class overrides."""
    if plain is dict:
        return dict(
            collections.OrderedDict.items(obj)
            if isinstance(obj, collections.OrderedDict)
            else dict.items(obj)
        )
    if plain in (list, set, frozenset):
        return plain(plain.__iter__(obj))
    if plain is tuple:  # as a list: a tuple holds the value and its attributes
        return list(tuple.__iter__(obj))
    return _SCALARS[plain](obj)


def _bytes(obj: bytes) -> bytes:
    return bytes.__getitem__(obj, slice(None))


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    str: str.__str__, int: int.__int__, float: float.__float__, bytes: _bytes,
}  # fmt: skip


def _filled(base: Any, cls: type, value: Any) -> Any:
    """Return an object of a class with a built-in part, whatever methods the class overrides."""
    if base not in (collections.OrderedDict, dict, list, set):
        return base.__new__(cls, value)
    obj = base.__new__(cls)
    if base is collections.OrderedDict:
        for key, item in value.items():  # its update() would call an overridden __setitem__
            base.__setitem__(obj, key, item)
    else:
        add: Callable[..., Any] = list.extend if base is list else base.update
        add(obj, value)
    return obj
