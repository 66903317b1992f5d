"""A strict version of LangGraph's serializer: it refuses to store what it could not restore exactly.

The bytes are those of `JsonPlusSerializer`, so each reads what the other wrote. The differences:

- Only known types are stored and loaded: those on LangGraph's list of safe types (Python's own,
  messages and documents of langchain-core, its own types) and those that the program names.
  Anything else raises. Names in stored data are looked up in that list and never imported.
- An object that cannot be restored raises, instead of coming back as a dict or as None.
- An object of a named class that would come back as another is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from outlive.adapters.langgraph.values.digest import digest
from outlive.adapters.langgraph.values.user_types import Name, UserTypes, find, listed
from outlive.errors import Corrupt, OutliveError, TypeChanged, UnknownTag

# The extension codes of JsonPlusSerializer.
SINGLE, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_1, PYDANTIC_2, ARRAY, SNAPSHOT = range(8)


class StrictSerializer(JsonPlusSerializer):
    """The default serializer of `OutliveSaver`. `types` are your own classes that may be stored.

    `strict=False` (of a saver) stores all data classes of the program too.
    """

    def __init__(self, types: Iterable[type | Name] = (), *, strict: bool = True) -> None:
        self.is_strict = strict
        self._named = listed(types)
        self._types = find(self._named)
        self._wider: dict[frozenset[tuple[Name, type | None]], StrictSerializer] = {}
        named = (kind for kind in self._named if isinstance(kind, type))  # two may have one name
        self.user_types = UserTypes([*named, *filter(None, self._types.values())])
        super().__init__(allowed_msgpack_modules=tuple(self._types) or None)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[Name | type]) -> StrictSerializer:
        """Return a serializer that knows these types too."""
        extra = {name: kind or self._types.get(name) for name, kind in find(extra_allowlist).items()}
        if extra.items() <= self._types.items():
            return self
        key = frozenset(extra.items())  # by class: one that is defined again is another
        if key not in self._wider:  # LangGraph asks at every call of a subgraph
            types = (*self._named, *(kind or name for name, kind in extra.items()))
            self._wider[key] = StrictSerializer(types, strict=self.is_strict)
        return self._wider[key]

    def knows(self, name: Name) -> bool:
        """Tell whether objects of this class may be stored."""
        return name in SAFE_MSGPACK_TYPES or name in self._types

    def without_data_classes(self) -> StrictSerializer:
        """Return a serializer that knows no data class, and so calls none.

        A saver stores their objects by their fields. Bytes that name one in LangGraph's way are not
        its own, and to load them would run `__init__` and validators.
        """
        others = (kind or name for name, kind in self._types.items() if not self._is_data(kind))
        return StrictSerializer(others, strict=self.is_strict)

    def _is_data(self, kind: type | None) -> bool:
        return kind is not None and self.user_types.of(kind) is not None

    # Packing

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return a value as (type, bytes); raise TypeError for what could not be loaded again."""
        kind, data = super().dumps_typed(obj)
        if kind == "msgpack":
            self._check(data)
        return kind, data

    def _check(self, data: bytes) -> None:
        """Check every class that packed data names; make sure that those of the program can be restored."""
        unknown: list[Name] = []
        is_own = False

        def look(code: int, payload: bytes) -> None:
            nonlocal is_own
            if code in (ARRAY, SNAPSHOT):
                ormsgpack.unpackb(payload, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
                return
            module, name, _, *rest = ormsgpack.unpackb(
                payload, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS
            )
            is_safe = (
                (module, name, *rest) in SAFE_MSGPACK_METHODS
                if code == METHOD
                else self.knows((module, name))
            )
            if not is_safe:
                unknown.append((module, name))
            is_own = is_own or (module, name) in self._types

        ormsgpack.unpackb(data, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
        if unknown:
            module, name = unknown[-1]  # the outermost: the classes in its annotations are known with it
            raise TypeError(
                f"{module}.{name} is not known to this saver, and could not be loaded again: add {name}, or the class "
                f"of your state, to OutliveSaver(..., types=[...]), or call outlive.register({name})"
            )
        if is_own:
            self._check_return(data)

    def _check_return(self, data: bytes) -> None:
        """Restore what was packed, pack that and restore it again: a class that changes its arguments changes them each time."""
        try:
            once = self._unpack(data, [])
            twice = self._unpack(super().dumps_typed(once)[1], [])
        except Exception as error:
            raise TypeError(f"it could not be loaded again: {error}") from error
        if digest(once) != digest(twice):
            raise TypeError("it would come back changed: its class changes its arguments")

    # Unpacking

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value; raise UnknownTag for a class that was not named, TypeChanged when it does not fit."""
        if data[0] == "json":  # as LangGraph wrote long ago; outlive never did
            raise UnknownTag("json", 1, "import it with outlive import-langgraph")
        if data[0] != "msgpack":
            return super().loads_typed(data)
        return self._unpack(data[1], [])

    def revive(self, code: int, payload: bytes) -> Any:
        """Build the object of one extension."""
        return self._revive(code, payload, [])

    def _unpack(self, data: bytes, failures: list[Exception]) -> Any:
        def hook(code: int, payload: bytes) -> Any:
            try:
                return self._revive(code, payload, failures)
            except Exception as error:
                failures.append(error)  # ormsgpack reports only that the hook failed
                raise

        try:
            return ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        except (ValueError, TypeError, RecursionError, OutliveError) as error:
            cause = failures[0] if failures else error
            if isinstance(cause, OutliveError):
                raise cause from None
            raise Corrupt(f"the stored bytes are not a LangGraph value ({cause})") from cause

    def _revive(self, code: int, payload: bytes, failures: list[Exception]) -> Any:
        inside = self._unpack(payload, failures)
        if code == SNAPSHOT:
            return _DeltaSnapshot(inside)
        if code == ARRAY:
            return _array(*inside)
        module, name, value, *rest = inside
        if code == METHOD:
            if (module, name, *rest) not in SAFE_MSGPACK_METHODS:
                raise UnknownTag(
                    f"{module}.{name}.{'.'.join(map(str, rest))}",
                    1,
                    "methods are never called by a stored name",
                )
        elif not self.knows((module, name)):
            raise UnknownTag(f"{module}.{name}", 1, "pass the saver the serde that wrote it, if it is yours")
        try:
            return _build(code, self._types.get((module, name)) or _find(module, name), value, rest)
        except Exception as error:
            raise TypeChanged(f"{module}.{name}", 1, str(error)) from error


def _array(dtype: str, shape: list[int], order: str, data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(data, dtype=numpy.dtype(dtype)).reshape(shape, order=order).copy()  # type: ignore[call-overload]


@cache
def _find(module: str, name: str) -> Any:
    """Return a class on the list of known types. (The name comes from the list, not from data.)"""
    return getattr(importlib.import_module(module), name)


def _build(code: int, kind: Callable[..., Any], value: Any, rest: list[Any]) -> Any:
    if code == METHOD:
        return getattr(kind, rest[0])(value)
    if code == SINGLE:
        return kind(value)
    if code == POSITIONAL:
        return _send(kind, *value) if kind.__name__ == "Send" else kind(*value)
    try:
        return kind(**value)
    except Exception:
        construct = getattr(kind, "model_construct" if code == PYDANTIC_2 else "construct", None)
        if code == KEYWORDS or construct is None:
            raise
        return construct(**value)  # its validators refuse an object that the program itself made


def _send(kind: Callable[..., Any], node: str, arg: Any, timeout: Any = None) -> Any:
    return kind(node, arg) if timeout is None else kind(node, arg, timeout=timeout)
