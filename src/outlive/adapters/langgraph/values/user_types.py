"""Classes of the user's own that a saver was told of, by `types=` or by LangGraph.

They are taken apart and put together as `outlive.register` does it: field by field, exactly, without validating or calling
`__init__` again, whatever their serializers leave out. The tag is the name of the class. What the annotations of a class
name is known too. When the stored fields are not those of the class today, the class itself is asked to take them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES

from outlive.errors import BadArgument, UnknownTag
from outlive.format.registry import Decode, Encode, RegisteredType, Registry, Upgrade

Name = tuple[str, ...]  # (module, name)
PREFIX = "langgraph:"  # of their tags


def name_of(kind: type) -> Name:
    """Return the name by which LangGraph knows a class."""
    return (kind.__module__, kind.__name__)


class Named(Registry):
    """The classes that were named."""

    def __init__(self, kinds: Iterable[type]) -> None:
        super().__init__()
        self._kinds = frozenset(kinds)
        for kind in self._kinds:
            with contextlib.suppress(
                AttributeError, ImportError, SyntaxError
            ):  # in an annotation that is text
                self.add_annotated(kind)

    def add(
        self,
        cls: type,
        tag: str = "",
        *,
        version: int = 1,
        upgrade: Mapping[int, Upgrade] | None = None,
        encode: Encode | None = None,
        decode: Decode | None = None,
    ) -> None:
        """Take note of a class; those of LangChain and LangGraph have ways of their own."""
        if name_of(cls) in SAFE_MSGPACK_TYPES:
            return
        tag = f"{PREFIX}{cls.__module__}.{cls.__qualname__}"
        try:
            super().add(cls, tag, version=version, upgrade=upgrade, encode=encode, decode=decode)
        except BadArgument:
            if cls in self._kinds:
                raise
            return  # an annotation names it; perhaps nobody stores it
        made = self._by_type[cls]
        entry = RegisteredType(
            cls, tag, made.version, made.encode, _lenient(cls, _quick(cls, made.decode)), made.upgrade
        )
        self._by_type[cls] = self._by_tag[tag] = entry

    def tagged(self, tag: str, version: int) -> RegisteredType:
        """Return the class of a tag, or raise UnknownTag."""
        entry = self._by_tag.get(tag)
        if entry is None:
            name = tag.removeprefix(PREFIX)
            raise UnknownTag(name, version, f"give OutliveSaver(..., types=[{name.rpartition('.')[2]}])")
        return entry


def _quick(cls: Any, exact: Decode) -> Decode:
    """Return how a model of pydantic's is restored when its fields are those of the class: in four steps."""
    if not _is_model(cls) or cls.__pydantic_root_model__ or cls.model_config.get("extra") == "allow":
        return exact
    names = cls.__pydantic_fields__.keys()

    def decode(value: Any) -> Any:
        fields = value["fields"]
        if fields.keys() != names:
            return exact(value)
        model = cls.__new__(cls)
        _set(model, "__dict__", fields)
        _set(model, "__pydantic_fields_set__", set(value["set"]))
        _set(model, "__pydantic_extra__", None)
        _set(model, "__pydantic_private__", value.get("private"))
        return model

    return decode


_set = object.__setattr__  # as pydantic does: a class may forbid it


def _is_model(cls: type) -> bool:
    """Tell whether a class is a model of pydantic's; its dataclasses have fields too, and are dataclasses."""
    return hasattr(cls, "__pydantic_fields__") and not dataclasses.is_dataclass(cls)


def _lenient(cls: type, exact: Decode) -> Decode:
    def decode(value: Any) -> Any:
        try:
            return exact(value)
        except TypeError as error:
            try:  # it may have a default, or let go of what it does not have any more
                return cls(**value["fields"] if _is_model(cls) else value)
            except Exception:  # noqa: BLE001  (whatever a class has against it)
                raise error from None

    return decode


def listed(types: Iterable[type | Name]) -> tuple[type | Name, ...]:
    """Return types as often as they are asked for; refuse what is no list of them."""
    if isinstance(types, type) or not isinstance(types, Iterable):
        raise BadArgument(f"types must be a list of classes, such as [{getattr(types, '__name__', 'Plan')}]")
    return tuple(types)


def find(names: Iterable[type | Name]) -> dict[Name, type | None]:
    """Return the classes that a program names, by their names; None for one that is not there."""
    found: dict[Name, type | None] = {}
    for one in listed(names):
        if isinstance(one, type):
            found[name_of(one)] = one
        elif isinstance(one, tuple) and len(one) >= 2 and all(isinstance(part, str) for part in one):
            found[one] = _found(one)
        else:
            raise BadArgument(f"types must be classes, or (module, name) of classes, not {one!r:.100}")
    return found


def _found(name: Name) -> type | None:
    """Return a class that the program named. (No name that stands in stored data comes here.)"""
    try:
        kind = getattr(importlib.import_module(name[0]), name[1], None)
    except (ImportError, ValueError):
        return None
    return kind if isinstance(kind, type) else None
