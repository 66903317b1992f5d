"""A Python value as bytes and back: exact, closed, without I/O.

Values are packed by ormsgpack in one native pass. What msgpack does not have travels as an
extension: a code (`outlive.format.extensions`) and a payload. Whatever comes back is equal to what
was saved and of the same type; what cannot be is refused at save, with its path. Loading never
imports, never calls by name and never tries another format.

The native pass refuses three things that Python allows (keys that are not str, lone surrogates,
types that are not registered) and flattens one (bytearray). Only then a value is walked in Python,
which either finds the exact form or names the path of the culprit.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import ormsgpack

from outlive.errors import BadArgument, Corrupt, NewerFormat, OutliveError, Unencodable
from outlive.format.extensions import (
    ADAPTERS,
    COMPOSITE_REVIVERS,
    FROZENSET,
    KNOWN,
    MAP,
    NDARRAY,
    NUMPY_SCALAR,
    REDUCERS,
    SCALAR_REVIVERS,
    SET,
    SURROGATES,
    TAGGED,
    Composite,
    Opaque,
    Raw,
    Scalar,
    array_header,
    reduce_numpy,
    tagged,
)
from outlive.format.registry import Registry, default_registry

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)

MAX_NESTED = 100  # tuples, sets and tagged values in each other: each level takes a copy when it is read
MAX_DEPTH = 200  # containers in containers; ormsgpack itself gives up a little later
_SCALARS = frozenset((int, float, bool, str, type(None)))
Hook = Callable[[int, bytes], Any]
_LIVE: tuple[type, ...] = (
    io.IOBase, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.ModuleType, types.FrameType,
)  # fmt: skip
# Whose classes are locks, threads, sockets, connections and the like.
_LIVE_MODULES = frozenset(
    ("_thread", "threading", "socket", "_socket", "ssl", "select", "subprocess", "sqlite3", "asyncio", "_asyncio",
     "concurrent", "multiprocessing", "selectors", "contextvars", "_contextvars", "weakref")
)  # fmt: skip
_nesting = threading.local()


class Codec:
    """Packs and unpacks values with the types of one registry."""

    def __init__(self, registry: Registry = default_registry) -> None:
        self.registry = registry

    # Packing

    def pack(self, value: Any, path: str = "state") -> bytes:
        """Return the bytes of `value`; raise Unencodable naming the path of what cannot be stored."""
        try:
            data = ormsgpack.packb(value, self._default, _OPTIONS)
        except (TypeError, RecursionError, ValueError):
            pass  # the walk tells what is wrong, and is not chained to this error
        else:
            # As in `may_hold_bytes`, without a call: every small save is one `pack`.
            may_hold_bytes = 0xC4 in data or 0xC5 in data or 0xC6 in data
            if not (may_hold_bytes and self.byte_types(value) is bytearray):
                return data
        return self._pack_walked(value, path)

    def pack_native(self, value: Any, path: str = "state") -> bytes:
        """Pack like `pack`, but do not look for a bytearray (the native pass stores it as bytes)."""
        try:
            return ormsgpack.packb(value, self._default, _OPTIONS)
        except (TypeError, RecursionError, ValueError):
            pass  # the walk tells what is wrong, and is not chained to this error
        return self._pack_walked(value, path)

    def byte_types(self, value: Any) -> type | None:
        """Return bytearray if any is inside, else bytes if any is, else None."""
        kind = type(value)
        if kind in _SCALARS:
            return None
        if kind is bytes:
            return bytes
        if kind is bytearray or kind is memoryview:
            return bytearray
        inside: Any
        if kind is dict:
            inside = value.values()
        elif kind in (list, tuple, set, frozenset):
            inside = value
        else:
            entry = self.registry.of(kind)
            if entry is None:
                return self.byte_types(value.value) if kind is Opaque else None
            return self.byte_types(entry.encode(value))
        result: type | None = None
        for item in inside:
            if type(item) not in _SCALARS:
                byte_type = self.byte_types(item)
                if byte_type is bytearray:
                    return bytearray
                result = result or byte_type
        return result

    def reduce(self, value: Any) -> Scalar | Composite | None:
        """Take a value that msgpack does not have apart, or return None when its type is unknown."""
        kind = type(value)
        reducer = REDUCERS.get(kind)
        if reducer is not None:
            return reducer(self._pack_inner, value)
        entry = self.registry.of(kind)
        if entry is not None:
            return tagged(entry.tag, entry.version, entry.encode(value))
        return reduce_numpy(value)

    def advice(self, value: Any) -> str:
        """Say why a value cannot be stored, and what to do."""
        if type(value) is memoryview:
            return "a memoryview cannot be stored; use bytes(view)"
        if callable(value):
            return f"{class_name(value)} is code, not data: keep it out of the state"
        if _is_live(value):
            return (
                f"{class_name(value)} is not data: keep it out of the state, and make it where it is needed"
            )
        return self.registry.advice(type(value))

    def _pack_inner(self, value: Any) -> bytes:
        """Pack a part of a value; whatever is in the way is for the outermost call to explain."""
        return ormsgpack.packb(value, self._default, _OPTIONS)

    def _default(self, value: Any) -> ormsgpack.Ext:
        reduced = self.reduce(value)
        if reduced is None:
            raise TypeError(f"{type(value)} is not registered")
        if len(reduced) == 2:
            return ormsgpack.Ext(*reduced)
        code, lead, inner = reduced
        _nesting.depth = depth = getattr(_nesting, "depth", 0) + 1
        try:
            if depth > MAX_NESTED:
                raise RecursionError
            return ormsgpack.Ext(code, lead + ormsgpack.packb(inner, self._default, _OPTIONS))
        finally:
            _nesting.depth = depth - 1

    def _pack_walked(self, value: Any, path: str) -> bytes:
        return ormsgpack.packb(_Walk(self).plain(value, path, 0))

    # Unpacking

    def unpack(self, data: bytes, *, opaque: bool = False) -> Any:
        """Return the value of `data`; raise Corrupt when it is none, UnknownTag when a type is not registered.

        With `opaque=True` unregistered values, and registered ones too, come as `Opaque`.
        """
        revive = self._revive_opaque if opaque else self._revive
        failures: list[Exception] = []
        depth = 0

        def hook(code: int, payload: bytes) -> Any:
            nonlocal depth
            depth += 1
            try:
                if depth > MAX_NESTED:
                    raise Corrupt(f"values are nested deeper than {MAX_NESTED} levels")
                return revive(code, payload, hook)
            except Exception as error:
                failures.append(error)  # ormsgpack tells only that the hook failed
                raise
            finally:
                depth -= 1

        try:
            return ormsgpack.unpackb(data, ext_hook=hook)
        except (ValueError, TypeError, RecursionError, OutliveError) as error:
            cause = failures[0] if failures else error
            if isinstance(cause, OutliveError):
                raise cause from None
            raise Corrupt(f"the stored bytes are no valid state ({cause})") from cause

    def outline(self, state: Any, id: str) -> Any:
        """Return the state of a checkpoint, read in opaque form, as it is to be split again."""
        return state

    def _revive_opaque(self, code: int, payload: bytes, hook: Hook) -> Any:
        if code == TAGGED:
            return Opaque(*self._open_tagged(payload, hook))
        if not 0 <= code < 128:  # reserved by msgpack; outlive never writes them
            raise Corrupt(f"extension code {code} is not one of ours")
        if code not in KNOWN or (code in (NDARRAY, NUMPY_SCALAR) and "numpy" not in sys.modules):
            return Raw(code, payload)
        value = self._revive(code, payload, hook)
        if code in (SET, FROZENSET, MAP):
            count = len(ormsgpack.unpackb(payload, ext_hook=Raw))
            if len(value) != (
                count // 2 if code == MAP else count
            ):  # equal only because their types are unknown
                return Raw(code, payload)
        return value

    def _open_tagged(self, payload: bytes, hook: Hook) -> tuple[str, int, Any]:
        parts = ormsgpack.unpackb(payload, ext_hook=hook)
        if (
            type(parts) is not list
            or len(parts) != 3
            or type(parts[0]) is not str
            or type(parts[1]) is not int
        ):
            raise Corrupt("a tagged value is not [tag, version, value]")
        return parts[0], parts[1], parts[2]

    def _revive(self, code: int, payload: bytes, hook: Hook) -> Any:
        if code == TAGGED:
            tag, version, value = self._open_tagged(payload, hook)
            return self.registry.tagged(tag, version).revive(version, value)
        scalar = SCALAR_REVIVERS.get(code)
        if scalar is not None:
            return scalar(payload)
        composite = COMPOSITE_REVIVERS.get(code)
        if composite is None:
            if code < 0:
                raise Corrupt(f"extension code {code} is not one of ours")
            if code in ADAPTERS:
                raise BadArgument(
                    "an adapter wrote this state (outlive.adapters): read it through that adapter"
                )
            raise NewerFormat("a value of the state", code, max(KNOWN))
        items = ormsgpack.unpackb(payload, ext_hook=hook)
        if type(items) is not list:
            raise Corrupt(f"extension code {code} does not hold a list")
        return composite(items)


def may_hold_bytes(data: bytes) -> bool:
    """Tell whether packed `data` might hold a bin value; False is certain, True is not."""
    # As numbers: a search for bytes raises and catches an exception inside each time.
    return 0xC4 in data or 0xC5 in data or 0xC6 in data


class _Walk:
    """The slow, exact way: rebuilds a value from what msgpack has, and knows where it is."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._nested = 0
        self._trail: list[tuple[int, str]] = []  # the containers and objects that this one is in: id, path

    def plain(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if depth > MAX_DEPTH:
            raise self._too_deep(path, f"nested deeper than {MAX_DEPTH} levels")
        if kind is str:
            return _plain_str(value)
        if kind in _SCALARS and not (kind is int and not -(1 << 63) <= value < 1 << 64):
            return value
        if kind is bytes:
            return value
        self._trail.append((id(value), path))
        if kind is list:
            plain: Any = [self.plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        elif kind is dict:
            plain = self._plain_dict(value, path, depth)
        else:
            plain = self._extension(value, path, depth)
        self._trail.pop()
        return plain

    def _too_deep(self, path: str, reason: str) -> Unencodable:
        """Tell a value that contains itself from one that is only deep, and name the place of the cycle."""
        first: dict[int, str] = {}
        for key, place in self._trail:
            if key in first:
                return Unencodable(
                    _shorten(place), f"inside itself: it is the same object as {_shorten(first[key])}"
                )
            first[key] = place
        return Unencodable(_shorten(path), reason)

    def _plain_dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        if all(type(key) is str and is_utf8(key) for key in value):
            return {key: self.plain(item, _join(path, key), depth + 1) for key, item in value.items()}
        with self._one_more(path):
            pairs = []
            for key, item in value.items():
                pairs.append(self.plain(key, f"{path}.<key {_shown(key)}>", depth + 1))
                pairs.append(self.plain(item, _join(path, key), depth + 1))
            return ormsgpack.Ext(MAP, ormsgpack.packb(pairs))

    @contextlib.contextmanager
    def _one_more(self, path: str) -> Iterator[None]:
        """Go one extension deeper."""
        self._nested += 1
        if self._nested > MAX_NESTED:
            raise self._too_deep(path, f"more than {MAX_NESTED} tuples, sets, maps or objects in each other")
        yield
        self._nested -= 1

    def _extension(self, value: Any, path: str, depth: int) -> ormsgpack.Ext:
        with self._one_more(path):
            return self._reduced(value, path, depth)

    def _reduced(self, value: Any, path: str, depth: int) -> ormsgpack.Ext:
        reduced = self._reduce(value, path)
        if len(reduced) == 2:
            return ormsgpack.Ext(*reduced)
        code, lead, inner = reduced
        if code in (SET, FROZENSET):  # sets have no paths inside
            packed = sorted(ormsgpack.packb(self.plain(item, f"{path}.<item>", depth + 1)) for item in value)
            return ormsgpack.Ext(code, array_header(len(packed)) + b"".join(packed))
        return ormsgpack.Ext(code, lead + ormsgpack.packb(self.plain(inner, path, depth + 1)))

    def _reduce(self, value: Any, path: str) -> Scalar | Composite:
        if type(value) in (set, frozenset):
            return (SET if type(value) is set else FROZENSET), b"", []
        try:
            reduced = self._codec.reduce(value)
        except OutliveError:
            raise
        except Exception as error:
            raise Unencodable(
                _shorten(path), f"{class_name(value)} cannot be taken apart ({error})"
            ) from error
        if reduced is None:
            raise Unencodable(_shorten(path), self._codec.advice(value))
        return reduced


def _is_live(value: Any) -> bool:
    """Tell whether a value is something of the running process: a file, a lock, a generator, a connection."""
    return isinstance(value, _LIVE) or type(value).__module__.partition(".")[0] in _LIVE_MODULES


def class_name(value: Any) -> str:
    """Return module and name of a value's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{_shown(key)}]"


def _shown(key: Any) -> str:
    try:
        return repr(key)
    except Exception:  # noqa: BLE001  (an int of thousands of digits, or a __repr__ of the program)
        return f"<{type(key).__name__}>"


def _shorten(path: str) -> str:
    return path if len(path) <= 300 else f"{path[:140]} … {path[-140:]}"


def is_utf8(text: str) -> bool:
    """Tell whether a str has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain_str(text: str) -> Any:
    return text if is_utf8(text) else ormsgpack.Ext(SURROGATES, text.encode("utf-8", "surrogatepass"))
