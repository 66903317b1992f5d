"""The classes that the rows of a LangGraph database name, counted. No object is built, and nothing is imported."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS

from outlive.adapters.langgraph.importer.decoder import RowSerializer
from outlive.adapters.langgraph.importer.source import PAGE, CheckpointRow, ThreadView, Typed
from outlive.adapters.langgraph.importer.thread import MALFORMED
from outlive.adapters.langgraph.values.serializer import ARRAY, METHOD, SNAPSHOT
from outlive.errors import CallerError, Corrupt

_CACHE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ClassUse:
    """A class that rows name: how many objects in all checkpoints and writes, in how many threads."""

    name: str  # module and name, as LangGraph stores them
    values: int
    threads: int
    is_known: bool  # otherwise name it: types=[...], or --type on the command line


Key = tuple[str, bool]  # (name, is known)


class ClassCount:
    """Counts the classes of threads."""

    def __init__(self, serde: RowSerializer) -> None:
        self._serde = serde
        self._values: Counter[Key] = Counter()
        self._threads: Counter[Key] = Counter()
        # Rows contain the same messages again and again: equal bytes are read once.
        self._read: dict[tuple[int, bytes], Counter[Key]] = {}
        self._read_bytes = 0

    def add(self, view: ThreadView) -> None:
        """Count the classes of a thread, as far as it can be read. (The import reports what cannot.)"""
        counted: Counter[Key] = Counter()
        with contextlib.suppress(CallerError, Corrupt, *MALFORMED):
            for typed in _values(view):
                counted += self._classes(typed)
        self._values += counted
        self._threads.update(counted.keys())

    def uses(self) -> tuple[ClassUse, ...]:
        """Return all classes, unknown ones first."""
        uses = [
            ClassUse(name, count, self._threads[name, is_known], is_known)
            for (name, is_known), count in self._values.items()
        ]
        return tuple(sorted(uses, key=lambda use: (use.is_known, use.name)))

    def _classes(self, typed: Typed) -> Counter[Key]:
        kind, data = typed
        counted: Counter[Key] = Counter()
        if not isinstance(data, bytes):
            return counted
        with contextlib.suppress(*MALFORMED):
            if kind == "msgpack":
                self._unpack(data, counted)
            elif kind == "json":
                json.loads(data, object_hook=lambda value: self._count_json(value, counted))
        return counted

    # What LangGraph's serializer writes

    def _unpack(self, data: bytes, counted: Counter[Key]) -> Any:
        def count(code: int, payload: bytes) -> None:
            counted.update(self._of_extension(code, payload))

        return ormsgpack.unpackb(data, ext_hook=count, option=ormsgpack.OPT_NON_STR_KEYS)

    def _of_extension(self, code: int, payload: bytes) -> Counter[Key]:
        if (read := self._read.get((code, payload))) is not None:
            return read
        counted: Counter[Key] = Counter()
        with contextlib.suppress(*MALFORMED):
            parts = self._unpack(payload, counted)
            if code == ARRAY:
                counted["numpy.ndarray", True] += 1
            elif code != SNAPSHOT:
                module, name, _, *rest = parts
                is_method = code == METHOD
                is_safe = (
                    (module, name, *rest) in SAFE_MSGPACK_METHODS
                    if is_method
                    else self._serde.knows((module, name))
                )
                counted[f"{module}.{name}", is_safe] += 1
        self._read_bytes += len(payload)
        if self._read_bytes > _CACHE_BYTES:
            self._read, self._read_bytes = {}, 0
        self._read[code, payload] = counted
        return counted

    def _count_json(self, value: dict[str, Any], counted: Counter[Key]) -> None:
        version, path = value.get("lc"), value.get("id")
        if (
            version in (1, 2)
            and isinstance(path, list)
            and path
            and all(isinstance(part, str) for part in path)
        ):
            counted[".".join(path), self._serde.knows_json(version, path)] += 1


def _values(view: ThreadView) -> Iterator[Typed]:
    """Iterate over all that a serializer wrote into the rows of a thread."""
    keys = view.checkpoint_keys()
    for at in range(0, len(keys), PAGE):
        for row in view.rows(keys[at : at + PAGE]):
            yield from _values_of(row)
    yield from (write.value for write in view.lone_writes())


def _values_of(row: CheckpointRow) -> Iterator[Typed]:
    if row.whole is not None:
        yield row.whole
    yield from (typed for _, _, typed in row.channels)
    yield from row.sends
    yield from (write.value for write in row.writes)
