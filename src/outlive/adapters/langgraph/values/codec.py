"""Values of channels as outlive stores them.

With LangGraph's default serializer, or one that is based on it (`JsonPlusSerializer`), values are
*open*: outlive's codec packs Python's own types exactly (tuples stay tuples; NUL, NaN and big ints
are fine) and shares them element by element. It does the same with messages (`messages.py`), other
objects of LangChain and LangGraph (`library_types.py`), the classes that were named
(`user_types.py`) and, unless the saver is strict, all data classes of the program. Any other object
goes through the serializer and becomes an extension of the stream: LangGraph's code k is 48 + k
here, and any other result of a serializer is TYPED.

Any other serializer decides alone what its bytes look like; `EncryptedSerializer` returns others
every time. Then values are *sealed*: the serializer gets each channel's value as a whole, its bytes
are stored with the version of the channel, and the next checkpoint reuses them while the version
stays the same. No part of a value is stored in any other way.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from outlive.adapters.langgraph.values import library_types, messages
from outlive.adapters.langgraph.values.messages import opened
from outlive.adapters.langgraph.values.serializer import StrictSerializer
from outlive.adapters.langgraph.values.user_types import name_of
from outlive.errors import BadArgument, Corrupt, OutliveError, Unencodable
from outlive.format.anatomy import PLAIN_BASES
from outlive.format.codec import Codec, Hook
from outlive.format.extensions import Composite, Raw, Scalar
from outlive.format.outline import Outline
from outlive.format.program_types import ProgramTypes
from outlive.format.registry import RegisteredType, Registry

SHAPE = 1  # of a checkpoint as a state (`state.py`)
FIRST = 48  # added to LangGraph's extension codes; 0 to 7 have another meaning in outlive's stream
TYPED = FIRST + 8  # [type, bytes] as a serializer returned them
SEALED = FIRST + 9  # [version of the channel, type, bytes]


class ValueCodec(Codec):
    """The codec of values that pass through a LangGraph serializer."""

    def __init__(self, registry: Registry, serde: SerializerProtocol) -> None:
        super().__init__(_AllTypes(registry, serde if isinstance(serde, StrictSerializer) else None))
        self._serde = serde
        self.is_open = _is_open(serde)
        # Of objects that are not stored by their fields.
        self._objects = serde.without_data_classes() if type(serde) is StrictSerializer else serde

    # Packing

    def reduce(self, value: Any) -> Scalar | Composite | None:
        """Take a value apart: Python's types and registered ones by outlive, any other by the serializer."""
        reduced = super().reduce(value)
        return self._through_serializer(value) if reduced is None else reduced

    def _through_serializer(self, value: Any) -> Scalar | None:
        is_lenient = isinstance(self._serde, StrictSerializer) and not self._serde.is_strict
        if is_lenient and isinstance(value, PLAIN_BASES):
            return None  # the serializer would make a plain one of it
        try:
            kind, data = self._objects.dumps_typed(value)
        except TypeError as error:
            if str(error).startswith("Type is not msgpack serializable"):
                return None  # the codec says what to do
            raise
        if kind == "msgpack" and type(alone := ormsgpack.unpackb(data, ext_hook=Raw, option=_KEYS)) is Raw:
            return FIRST + alone.code, alone.payload
        return TYPED, ormsgpack.packb([kind, data])

    def seal(self, value: Any, version: Any, path: str) -> Raw:
        """Return a whole value as the serializer's bytes."""
        try:
            kind, data = self._serde.dumps_typed(value)
        except OutliveError:
            raise
        except Exception as error:
            raise Unencodable(path, f"the serializer refused it ({error})") from error
        return Raw(SEALED, ormsgpack.packb([version, kind, data]))

    # Unpacking

    def outline(self, state: Any, id: str) -> Any:
        """Return a stored checkpoint with the versions of its channels, and any other state as it is."""
        if not is_snapshot(state):
            return state
        fields = {name: value for name, value in state.items() if name != "channel_values"}
        values, stored = state["channel_values"], fields.get("channel_versions")
        versions = stored if isinstance(stored, dict) else {}
        if not self.is_open:  # a value that is not sealed has no version, and is sealed now
            versions = {channel: _sealed_version(value) for channel, value in values.items()}
        return Outline(id, None, fields, "channel_values", values, versions, (), _as_stored, self.is_open)

    def _revive(self, code: int, payload: bytes, hook: Hook) -> Any:
        if not FIRST <= code <= SEALED:
            return super()._revive(code, payload, hook)
        if code < TYPED and isinstance(self._objects, StrictSerializer):
            return self._objects.revive(code - FIRST, payload)
        typed = (
            _typed(payload)
            if code >= TYPED
            else ("msgpack", ormsgpack.packb(ormsgpack.Ext(code - FIRST, payload)))
        )
        try:
            return self._objects.loads_typed(typed)
        except OutliveError:
            raise
        except Exception as error:
            name = type(self._serde).__name__
            raise BadArgument(
                f"{name} cannot read a stored value of type {typed[0]!r} ({type(error).__name__}: {error}); "
                "pass the saver the serde that wrote it"
            ) from error


_KEYS = ormsgpack.OPT_NON_STR_KEYS


def _typed(payload: bytes) -> tuple[str, bytes]:
    parts = ormsgpack.unpackb(payload)
    if type(parts) is not list or [type(part) for part in parts[-2:]] != [str, bytes]:
        raise Corrupt("a value of LangGraph is not [type, bytes]")
    return parts[-2], parts[-1]


def _as_stored(channel: str, value: Any) -> Any:
    return value


def _is_sealed(value: Any) -> bool:
    return type(value) is Raw and value.code == SEALED


def _sealed_version(value: Any) -> Any:
    """Return the version under which a channel's value was sealed; None when it is not sealed."""
    if not _is_sealed(value):
        return None
    try:
        return ormsgpack.unpackb(value.payload)[0]
    except (ValueError, TypeError, LookupError):
        return None


def is_snapshot(state: object) -> bool:
    """Tell whether a state is a LangGraph checkpoint."""
    return (
        isinstance(state, dict)
        and state.get("langgraph") == SHAPE
        and isinstance(state.get("channel_values"), dict)
    )


def _is_open(serde: SerializerProtocol) -> bool:
    kind = type(serde)
    if isinstance(serde, StrictSerializer):
        return kind.dumps_typed is StrictSerializer.dumps_typed
    return (
        isinstance(serde, JsonPlusSerializer)
        and kind.dumps_typed is JsonPlusSerializer.dumps_typed
        and kind.loads_typed is JsonPlusSerializer.loads_typed
    )


# Containers that a serializer would store as one piece, or as plain dicts -------------------------

_FACTORIES: dict[str, Callable[[], Any] | None] = {
    "": None, "list": list, "dict": dict, "set": set, "int": int, "float": float, "str": str, "tuple": tuple, "bool": bool,
}  # fmt: skip


def _encode_defaultdict(value: collections.defaultdict[Any, Any]) -> list[Any]:
    for name, factory in _FACTORIES.items():
        if value.default_factory is factory:
            return [name, dict(value)]
    raise TypeError("its default_factory is code; use list, dict, set, int, float, str, tuple or bool")


_containers = Registry()
_containers.add(collections.Counter, "collections.Counter", encode=dict, decode=collections.Counter)
_containers.add(
    collections.deque,
    "collections.deque",
    encode=lambda value: [value.maxlen, list(value)],
    decode=lambda stored: collections.deque(stored[1], stored[0]),
)
_containers.add(
    collections.OrderedDict,
    "collections.OrderedDict",
    encode=lambda value: [list(pair) for pair in value.items()],
    decode=collections.OrderedDict,
)
_containers.add(
    collections.defaultdict,
    "collections.defaultdict",
    encode=_encode_defaultdict,
    decode=lambda stored: collections.defaultdict(_FACTORIES[stored[0]], stored[1]),
)
_containers.add(
    _DeltaSnapshot,
    "langgraph.DeltaSnapshot",
    encode=lambda snapshot: [opened(snapshot.value)],
    decode=lambda stored: _DeltaSnapshot(stored[0]),
)
messages.register_in(_containers)
_library_types = library_types.LibraryTypes()

_TAGS = {
    "collections.Counter",
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.deque",
    "langgraph.DeltaSnapshot",
    *messages.TAGS,
}


class _AllTypes(Registry):
    """All that a saver can store: the types of the store, those above, the program's, in this order."""

    def __init__(self, registry: Registry, serde: StrictSerializer | None) -> None:
        super().__init__()
        self._user = registry
        self._own: list[Registry] = []  # of the saver
        if serde is not None:
            self._own.append(serde.user_types)
            if not serde.is_strict:
                self._own.append(_of_program)

    def of(self, cls: type) -> RegisteredType | None:
        if (entry := self._user.of(cls) or _containers.of(cls)) is not None:
            return entry
        for registry in (*self._own[:1], _library_types, *self._own[1:]):
            if (entry := registry.of(cls)) is not None:
                return entry
        return None

    def advice(self, cls: type) -> str:
        return (self._own or [self._user])[-1].advice(cls)

    def tagged(self, tag: str, version: int) -> RegisteredType:
        if tag in _TAGS:
            return _containers.tagged(tag, version)
        if tag in library_types.TAGS:
            return _library_types.tagged(tag, version)
        for registry in (self._user, *self._own[:-1]):
            if registry.has(tag):
                return registry.tagged(tag, version)
        return (self._own or [self._user])[-1].tagged(tag, version)


class _ProgramTypes(ProgramTypes):
    """The data classes of the program, except those that LangGraph stores in its own way."""

    def of(self, cls: type) -> RegisteredType | None:
        return None if name_of(cls) in SAFE_MSGPACK_TYPES else super().of(cls)


_of_program = _ProgramTypes(Registry(), drop=True)
