"""The user's own classes that were named to a saver, by `types=` or by LangGraph.

They are stored and restored as with `outlive.register`: field by field and exactly, without
validation and without calling `__init__`, including fields that their own serializers leave out.
Classes in the annotations of a named class are known too. A stored field that the class no longer
has is left out, as LangGraph does.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Mapping

from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES

from outlive.errors import BadArgument, UnknownTag
from outlive.format.anatomy import Decode, Encode, anatomy_of
from outlive.format.registry import RegisteredType, Registry, Upgrade

Name = tuple[str, ...]  # (module, name)


def name_of(kind: type) -> Name:
    """Return the name by which LangGraph knows a class."""
    return (kind.__module__, kind.__name__)


class UserTypes(Registry):
    """The classes that were named."""

    def __init__(self, kinds: Iterable[type]) -> None:
        super().__init__()
        self._kinds = dict.fromkeys(kinds)  # in order: of two with one name, the later is loaded
        for kind in self._kinds:
            # Evaluating an annotation that is text may fail.
            with contextlib.suppress(AttributeError, ImportError, SyntaxError):
                self.add_annotated(kind)

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
        """Add a class, unless it belongs to LangChain or LangGraph (`library_types.py`)."""
        if name_of(cls) in SAFE_MSGPACK_TYPES:
            return
        if encode is None and (anatomy := anatomy_of(cls, drop=True)) is not None:
            encode, decode = anatomy
        try:
            super().add(cls, tag, version=version, upgrade=upgrade, encode=encode, decode=decode)
        except BadArgument:
            if cls in self._kinds:
                raise
            return  # only an annotation names it; it may never be stored

    def advice(self, cls: type) -> str:
        """Say what to do so that objects of a class can be stored."""
        name = cls.__name__
        return (
            f"{cls.__module__}.{cls.__qualname__} is not known to this saver: add {name}, or the class of your state, "
            f"to OutliveSaver(..., types=[...]), or call outlive.register({name})"
        )

    def tagged(self, tag: str, version: int) -> RegisteredType:
        """Return the class of a tag, or raise UnknownTag."""
        if not self.has(tag):
            name = tag.rpartition(":")[2].rpartition(".")[2]
            raise UnknownTag(tag, version, f"pass OutliveSaver(..., types=[{name}]), or strict=False")
        return super().tagged(tag, version)


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
