"""What msgpack does not have: the codes of types, and how each is taken apart and put together.

Pure, no I/O.

The codes are part of the storage format and are never reused. A scalar is a code and its payload; a
composite contains other values: a code, leading bytes, and the list or dict inside.
"""

from __future__ import annotations

import datetime as dt
import sys
import uuid
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import ormsgpack

from outlive.dataclass import dataclass
from outlive.errors import Corrupt, ExtraMissing

TAGGED, TUPLE, SET, FROZENSET, MAP = 1, 2, 3, 4, 5
DATETIME, DATE, TIME, TIMEDELTA, UUID, DECIMAL = 16, 17, 18, 19, 20, 21
BIG_INT, SURROGATES, BYTEARRAY, COMPLEX, NDARRAY, NUMPY_SCALAR = 32, 33, 34, 35, 36, 37

ADAPTERS = range(48, 64)  # kept for values that only an adapter can build

_NDARRAY_KINDS = "?biufcmMSU"

Pack = Callable[[Any], bytes]
Composite = tuple[int, bytes, Any]
Scalar = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A stored value whose tag is not registered here; it encodes to the bytes it came from."""

    tag: str
    version: int
    value: Any

    def __hash__(self) -> int:
        return hash((self.tag, self.version))


@dataclass(frozen=True, slots=True)
class Raw:
    """An extension that this process cannot build (numpy is not installed), kept as it is."""

    code: int
    payload: bytes


def array_header(count: int) -> bytes:
    """Return the msgpack header of a list."""
    if count < 16:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


# Taking apart -------------------------------------------------------------------------------------


def tagged(tag: str, version: int, value: Any) -> Composite:
    """Take a value with a tag apart."""
    return TAGGED, b"\x93" + ormsgpack.packb(tag) + ormsgpack.packb(version), value


def _reduce_set(code: int) -> Callable[[Pack, Any], Composite | Scalar]:
    def reduce(pack: Pack, value: Any) -> Scalar:
        packed = sorted(pack(item) for item in value)  # no order of its own: give it one
        return code, array_header(len(packed)) + b"".join(packed)

    return reduce


def _reduce_datetime(pack: Pack, value: dt.datetime) -> Scalar:
    parts = [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
    return DATETIME, ormsgpack.packb([*parts, value.fold, _zone(value.tzinfo)])


def _reduce_time(pack: Pack, value: dt.time) -> Scalar:
    parts = [value.hour, value.minute, value.second, value.microsecond, value.fold, _zone(value.tzinfo)]
    return TIME, ormsgpack.packb(parts)


def _zone(zone: dt.tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset, name = zone.utcoffset(None), zone.tzname(None)
        micros = offset // dt.timedelta(microseconds=1)
        return micros if dt.timezone(offset).tzname(None) == name else [micros, name]
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key is not None:
        return zone.key
    raise TypeError(f"time zone {zone!r} is neither datetime.timezone nor zoneinfo.ZoneInfo")


def _unzone(zone: Any) -> dt.tzinfo | None:
    if zone is None:
        return None
    if type(zone) is str:
        return zoneinfo.ZoneInfo(zone)
    if type(zone) is int:
        return dt.timezone(dt.timedelta(microseconds=zone)) if zone else dt.UTC
    micros, name = zone
    return dt.timezone(dt.timedelta(microseconds=micros), name)


def _reduce_int(pack: Pack, value: int) -> Scalar:
    return BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _reduce_opaque(pack: Pack, value: Opaque) -> Composite | Scalar:
    return tagged(value.tag, value.version, value.value)


def reduce_numpy(value: Any) -> Scalar | None:
    """Take an array or scalar of numpy apart; None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.str_):  # numpy itself would cut off NULs at the end
        return NUMPY_SCALAR, ormsgpack.packb(["str", [], str.encode(value, "utf-8", "surrogatepass")])
    if isinstance(value, numpy.bytes_):
        return NUMPY_SCALAR, ormsgpack.packb(["bytes", [], bytes(value)])
    if isinstance(value, numpy.ndarray) and type(value) is not numpy.ndarray:
        raise TypeError("it has more than an array: store numpy.asarray(value), or register the class")
    if type(value) is numpy.ndarray:
        code, shape = NDARRAY, list(value.shape)
    elif isinstance(value, numpy.generic):
        code, shape = NUMPY_SCALAR, []
    else:
        return None
    if value.dtype.kind not in _NDARRAY_KINDS:
        raise TypeError(f"dtype {value.dtype} holds Python objects or records: store a list of its values")
    return code, ormsgpack.packb([value.dtype.str, shape, value.tobytes()])


REDUCERS: dict[type, Callable[[Pack, Any], Scalar | Composite]] = {
    tuple: lambda pack, value: (TUPLE, b"", list(value)),
    set: _reduce_set(SET),
    frozenset: _reduce_set(FROZENSET),
    bytearray: lambda pack, value: (BYTEARRAY, bytes(value)),
    int: _reduce_int,
    complex: lambda pack, value: (COMPLEX, ormsgpack.packb([value.real, value.imag])),
    dt.datetime: _reduce_datetime,
    dt.date: lambda pack, value: (DATE, ormsgpack.packb([value.year, value.month, value.day])),
    dt.time: _reduce_time,
    dt.timedelta: lambda pack, value: (
        TIMEDELTA,
        ormsgpack.packb([value.days, value.seconds, value.microseconds]),
    ),
    uuid.UUID: lambda pack, value: (UUID, value.bytes),
    Decimal: lambda pack, value: (DECIMAL, str(value).encode()),
    Opaque: _reduce_opaque,
    Raw: lambda pack, value: (value.code, value.payload),
}


# Putting together ---------------------------------------------------------------------------------


def _items(payload: bytes, *kinds: type) -> list[Any]:
    items = ormsgpack.unpackb(payload)
    if type(items) is not list or len(items) != len(kinds):
        raise Corrupt("an extension has the wrong number of parts")
    if not all(isinstance(item, kind) for item, kind in zip(items, kinds, strict=True)):
        raise Corrupt("an extension has a part of the wrong type")
    return items


def _revive_datetime(payload: bytes) -> dt.datetime:
    year, month, day, hour, minute, second, micro, fold, zone = _items(payload, *[int] * 8, object)
    return dt.datetime(year, month, day, hour, minute, second, micro, _unzone(zone), fold=fold)


def _revive_time(payload: bytes) -> dt.time:
    hour, minute, second, micro, fold, zone = _items(payload, *[int] * 5, object)
    return dt.time(hour, minute, second, micro, _unzone(zone), fold=fold)


def _revive_map(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise Corrupt("a map has a key without a value")
    return dict(zip(items[::2], items[1::2], strict=True))


def _revive_ndarray(payload: bytes) -> Any:
    name, shape, data = _items(payload, str, list, bytes)
    numpy = _numpy()
    dtype = numpy.dtype(name)
    if dtype.kind not in _NDARRAY_KINDS or not all(type(n) is int and n >= 0 for n in shape):
        raise Corrupt(f"an array of dtype {name!r} and shape {shape} is not valid")
    count = 1
    for n in shape:
        count *= n
    if count * dtype.itemsize != len(data):
        raise Corrupt(f"an array of dtype {name!r} and shape {shape} does not fit its {len(data)} bytes")
    return numpy.frombuffer(data, dtype=dtype).reshape(shape).copy()


def _revive_numpy_scalar(payload: bytes) -> Any:
    name, _, data = _items(payload, str, list, bytes)
    if name == "str":
        return _numpy().str_(data.decode("utf-8", "surrogatepass"))
    if name == "bytes":
        return _numpy().bytes_(data)
    value = _revive_ndarray(payload)
    if value.shape != ():
        raise Corrupt(f"a scalar of numpy has the shape {value.shape}")
    return value[()]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ExtraMissing("a numpy array or scalar in this state", "", package="numpy") from error
    return numpy


SCALAR_REVIVERS: dict[int, Callable[[bytes], Any]] = {
    DATETIME: _revive_datetime,
    DATE: lambda payload: dt.date(*_items(payload, int, int, int)),
    TIME: _revive_time,
    TIMEDELTA: lambda payload: dt.timedelta(*_items(payload, int, int, int)),
    UUID: lambda payload: uuid.UUID(bytes=payload),
    DECIMAL: lambda payload: Decimal(payload.decode("ascii")),
    BIG_INT: lambda payload: int.from_bytes(payload, "big", signed=True),
    SURROGATES: lambda payload: payload.decode("utf-8", "surrogatepass"),
    BYTEARRAY: bytearray,
    COMPLEX: lambda payload: complex(*_items(payload, float, float)),
    NDARRAY: _revive_ndarray,
    NUMPY_SCALAR: _revive_numpy_scalar,
}

COMPOSITE_REVIVERS: dict[int, Callable[[list[Any]], Any]] = {
    TUPLE: tuple,
    SET: set,
    FROZENSET: frozenset,
    MAP: _revive_map,
}

KNOWN = frozenset((TAGGED, *SCALAR_REVIVERS, *COMPOSITE_REVIVERS))
