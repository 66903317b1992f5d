"""Which of the user's types may be stored, and under which tag.

A tag is the user's word for a type. It is independent of module and class name, so both may be
renamed. A type that is registered without a word gets the tag `module:qualified.name`, so that two
classes of the same name in two modules stay apart. Nothing is ever imported or called because
stored data names it: an unknown tag stays unknown.
"""

from __future__ import annotations

import datetime as dt
import decimal
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from outlive.dataclass import dataclass
from outlive.errors import BadArgument, NeedsUpgrade, OutliveError, TypeChanged, UnknownTag
from outlive.format.anatomy import PLAIN_BASES, Decode, Encode, anatomy_of, is_data_class

Upgrade = Callable[[Any], Any]

_DATED: tuple[type, ...] = (dt.datetime, dt.date, dt.time, dt.timedelta)
NATIVE: frozenset[type] = frozenset(
    (*PLAIN_BASES, *_DATED, bool, type(None), bytearray, complex, uuid.UUID, decimal.Decimal)
)

_OF_ADAPTERS = ("langchain.", "langgraph.")  # tags of what they alone can build
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
            anatomy = anatomy_of(cls)
            if anatomy is None:
                raise BadArgument(
                    f"{cls.__qualname__} is no dataclass, pydantic model, msgspec.Struct, attrs class, namedtuple, Enum "
                    "or subclass of a built-in: give register() an encode= and a decode= function"
                )
            encode, decode = anatomy
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

    def classes(self) -> tuple[type, ...]:
        """Return the classes that are registered."""
        return tuple(self._by_type)

    def advice(self, cls: type) -> str:
        """Say what to do so that objects of a class can be stored."""
        name = f"{cls.__module__}.{cls.__qualname__}"
        return f"{name} is not registered; call outlive.register({cls.__name__}, tag=...) or convert it"

    def add_annotated(self, root: Any) -> None:
        """Register every class that the annotations of `root` name, under its own name."""
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
            if isinstance(item, type) and item not in NATIVE and is_data_class(item):
                if self.of(item) is None:
                    self.add(item, tag_of(item))
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
    if cls in NATIVE or cls.__module__ == "numpy":
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


def tag_of(cls: type) -> str:
    """Return the tag of a class that was given none. That of `Box[Item]` has the whole name of Item."""
    ask = type.__getattribute__  # past a metaclass, which may answer with code
    generic = ask(cls, "__dict__").get("__pydantic_generic_metadata__")
    if not generic or not generic["args"]:
        return f"{ask(cls, '__module__')}:{ask(cls, '__qualname__')}"
    args = (
        tag_of(arg) if isinstance(arg, type) and arg not in NATIVE else str(arg) for arg in generic["args"]
    )
    return f"{tag_of(generic['origin'])}[{', '.join(args)}]"


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

    Without `tag`, it is the module and the qualified name of the class: give one if either may
    change. `upgrade={1: fn}`: `fn` takes the stored fields of version 1 and returns those of
    version 2. Raises BadArgument when the tag belongs to another type or the type needs encode= and
    decode=.
    """

    def add(cls: type) -> type:
        default_registry.add(
            cls, tag_of(cls) if tag is None and isinstance(cls, type) else tag or "",
            version=version, upgrade=upgrade, encode=encode, decode=decode,
        )  # fmt: skip
        return cls

    return add if cls is None else add(cls)
