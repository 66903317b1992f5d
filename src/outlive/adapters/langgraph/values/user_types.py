"""The user's own classes that were named to a saver, by `types=` or by LangGraph.

They are stored and restored as with `outlive.register`: field by field and exactly, without
validation and without calling `__init__`, including fields that their own serializers leave out.
The tag is the name of the class. Classes in the annotations of a named class are known too. When
the stored fields are not those of the class today, the class itself is called with them.
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


class UserTypes(Registry):
    """The classes that were named."""

    def __init__(self, kinds: Iterable[type]) -> None:
        super().__init__()
        self._kinds = frozenset(kinds)
        for kind in self._kinds:
            # Evaluating an annotation that is text may fail.
            with contextlib.suppress(AttributeError, ImportError, SyntaxError):
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
        """Add a class, unless it belongs to LangChain or LangGraph (`library_types.py`)."""
        if name_of(cls) in SAFE_MSGPACK_TYPES:
            return
        tag = f"{PREFIX}{cls.__module__}.{cls.__qualname__}"
        try:
            super().add(cls, tag, version=version, upgrade=upgrade, encode=encode, decode=decode)
        except BadArgument:
            if cls in self._kinds:
                raise
            return  # only an annotation names it; it may never be stored
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
            raise UnknownTag(name, version, f"pass OutliveSaver(..., types=[{name.rpartition('.')[2]}])")
        return entry


def _quick(cls: Any, exact: Decode) -> Decode:
    """Return a faster way to restore a pydantic model, for when its fields are those of the class."""
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


_set = object.__setattr__  # works on frozen classes too, as in pydantic


def _is_model(cls: type) -> bool:
    """Tell whether a class is a pydantic model.

    (Dataclasses of pydantic have __pydantic_fields__ too.)
    """
    return hasattr(cls, "__pydantic_fields__") and not dataclasses.is_dataclass(cls)


def _lenient(cls: type, exact: Decode) -> Decode:
    def decode(value: Any) -> Any:
        try:
            return exact(value)
        except TypeError as error:
            try:  # it may have defaults for new fields, and ignore old ones
                return cls(**value["fields"] if _is_model(cls) else value)
            except Exception:  # noqa: BLE001  (a class may raise anything)
                raise error from None

    return decode


def listed(types: Iterable[type | Name]) -> tuple[type | Name, ...]:
    """Return types as a tuple, which can be iterated twice; refuse anything but a list of them."""
    if isinstance(types, type) or not isinstance(types, Iterable):
        raise BadArgument(f"types must be a list of classes, such as [{getattr(types, '__name__', 'Plan')}]")
    return tuple(types)


def find(names: Iterable[type | Name]) -> dict[Name, type | None]:
    """Return the classes that a program names, by name; None when it cannot be imported."""
    types: dict[Name, type | None] = {}
    for kind in listed(names):
        if isinstance(kind, type):
            types[name_of(kind)] = kind
        elif isinstance(kind, tuple) and len(kind) >= 2 and all(isinstance(part, str) for part in kind):
            types[kind] = _import(kind)
        else:
            raise BadArgument(f"types must be classes, or (module, name) of classes, not {kind!r:.100}")
    return types


def _import(name: Name) -> type | None:
    """Import a class that the program named. (Names in stored data never come here.)"""
    try:
        kind = getattr(importlib.import_module(name[0]), name[1], None)
    except (ImportError, ValueError):
        return None
    return kind if isinstance(kind, type) else None
