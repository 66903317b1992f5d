"""Decoding the rows of a LangGraph database safely: only named classes are built, and no pickle is read.

Rows contain the same messages again and again, hundreds of times in a long thread. Equal bytes are
decoded once: only the codec sees these objects, and it changes none of them.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import LC_REVIVER, JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS

from outlive.adapters.langgraph.importer.source import CheckpointRow, Typed, WriteRow
from outlive.adapters.langgraph.values.serializer import StrictSerializer
from outlive.adapters.langgraph.values.user_types import Name, listed
from outlive.arguments import check_id, check_namespace, check_text
from outlive.errors import BadArgument, Corrupt, OutliveError, TypeChanged, UnknownTag
from outlive.values import micros

_CACHE_BYTES = 16 << 20
_FIRST_VERSION = f"{1:032}.{0:016}"


class RowSerializer(StrictSerializer):
    """The strict serializer for rows of any age: it caches what it built, and is strict with JSON too.

    It also builds the classes in the annotations of those that are named, which a saver stores too.
    """

    def __init__(self, types: Iterable[type | Name] = ()) -> None:
        types = listed(types)
        super().__init__((*types, *StrictSerializer(types).user_types.classes()))
        paths = [(*module.split("."), name) for module, name in self._types]
        self._json = JsonPlusSerializer(allowed_json_modules=paths or None, allowed_msgpack_modules=None)
        self._built: dict[tuple[int, bytes], Any] = {}
        self._built_bytes = 0

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value of a row; raise UnknownTag for a class that was not named."""
        kind, stored = data
        if kind != "json":
            return super().loads_typed(data)
        return json.loads(stored, object_hook=self._from_json)

    def _from_json(self, value: dict[str, Any]) -> Any:
        """Build what LangGraph builds from JSON; raise where LangGraph would return a dict or None."""
        if value.get("lc") not in (1, 2) or value.get("type") not in ("constructor", "not_implemented"):
            return self._json._reviver(value)
        path = value.get("id")
        if not (isinstance(path, list) and path and all(isinstance(part, str) for part in path)):
            raise Corrupt("an object in JSON does not name its class")
        module, name = ".".join(path[:-1]), path[-1]
        if not self.knows_json(value["lc"], path):
            raise UnknownTag(f"{module}.{name}", 1)
        try:
            built = self._json._reviver(value)
        except Exception as error:
            raise TypeChanged(f"{module}.{name}", 1, str(error)) from error
        if built is None or built is value:
            raise TypeChanged(f"{module}.{name}", 1, "its class does not accept what was stored")
        return built

    def knows_json(self, version: int, path: list[str]) -> bool:
        """Tell whether an object that JSON describes in this version may be built."""
        if version == 2:
            return self.knows((".".join(path[:-1]), path[-1]))
        return tuple(path) in (LC_REVIVER.allowed_class_paths or ())

    def _revive(self, code: int, payload: bytes, failures: list[Exception]) -> Any:
        key = (code, payload)
        if key in self._built:
            return self._built[key]
        built = super()._revive(code, payload, failures)
        self._built_bytes += len(payload)
        if self._built_bytes > _CACHE_BYTES:
            self.forget()
        self._built[key] = built
        return built

    def forget(self) -> None:
        """Empty the cache."""
        self._built, self._built_bytes = {}, 0


@dataclass(slots=True)
class DecodedCheckpoint:
    """A checkpoint that was read from a row."""

    namespace: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def created_at(self) -> int:
        """The timestamp of the checkpoint in microseconds; 0 when it has none."""
        try:
            when = dt.datetime.fromisoformat(self.checkpoint["ts"])
            return max(0, micros(when if when.tzinfo else when.replace(tzinfo=dt.UTC)))
        except (KeyError, TypeError, ValueError, OverflowError):
            return 0


class Decoder:
    """Decodes rows with one serializer."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self._channels: dict[tuple[str, str, str], Any] = {}  # of the checkpoint before: most do not change

    def value(self, typed: Typed) -> Any:
        """Decode a value; whatever the serializer raises becomes an error that says what to do."""
        kind, data = typed
        if not isinstance(kind, str) or not isinstance(data, bytes | None):
            raise Corrupt(
                f"a value is stored as type {kind!r:.50} with {type(data).__name__} instead of bytes"
            )
        if "pickle" in kind.split("+") and isinstance(self._serde, StrictSerializer):
            raise BadArgument(
                "a value is stored as a pickle, which runs code when it is read; if you trust it, "
                "pass serde=JsonPlusSerializer(pickle_fallback=True), or --serde with the name of one"
            )
        if "+" in kind and isinstance(self._serde, StrictSerializer):
            raise BadArgument(
                f"a value is encrypted ({kind}); pass serde= the EncryptedSerializer that wrote it, or --serde with its name"
            )
        try:
            return self._serde.loads_typed((kind, data or b""))
        except OutliveError:
            raise
        except Exception as error:  # the user's serializer may raise anything
            name = type(self._serde).__name__
            raise BadArgument(
                f"{name} cannot read a value of type {kind!r} ({type(error).__name__}: {error})"
            ) from error

    def checkpoint(self, row: CheckpointRow) -> DecodedCheckpoint:
        """Decode a row of checkpoints."""
        whole = self.value(row.whole) if row.whole is not None else self._joined(row)
        if not isinstance(whole, dict) or not all(
            isinstance(whole.get(name), dict) for name in ("channel_values", "channel_versions")
        ):
            raise Corrupt(
                "the row is not a LangGraph checkpoint: it has no channel_values and channel_versions"
            )
        if whole.get("id", row.id) != row.id:
            raise Corrupt(f"the row contains checkpoint {whole['id']!r:.100} instead of the one in its key")
        return DecodedCheckpoint(
            check_namespace(row.namespace),
            check_id("checkpoint id", row.id),
            None if row.parent is None else check_id("parent checkpoint id", row.parent),
            whole,
            _metadata(row.metadata),
        )

    def _joined(self, row: CheckpointRow) -> Any:
        """Join a checkpoint with its channels, which are stored in rows of their own."""
        fields = _json(row.fields, "checkpoint")
        if not isinstance(fields, dict):
            return None
        known, self._channels = self._channels, {}
        values = dict(fields.get("channel_values") or {})
        for channel, version, typed in row.channels:
            if typed[0] == "empty":
                continue
            key = (row.namespace, channel, version)
            values[channel] = self._channels[key] = (
                known[key] if version and key in known else self.value(typed)
            )
        versions = fields.get("channel_versions")
        if row.sends and isinstance(versions, dict):
            values[TASKS] = [self.value(typed) for typed in row.sends]
            versions = {**versions, TASKS: max(versions.values()) if versions else _FIRST_VERSION}
        return {**fields, "channel_values": values, "channel_versions": versions}

    def write(self, row: WriteRow) -> Any:
        """Decode a write; make sure that the row can be stored."""
        check_namespace(row.namespace)
        check_id("checkpoint_id", row.checkpoint)
        check_id("task_id", row.task)
        check_text("task_path", row.path)
        check_text("channel", row.channel)
        if not isinstance(row.index, int) or abs(row.index) >= 1 << 31:
            raise Corrupt(f"the idx of a write is {row.index!r:.50}")
        return self.value(row.value)


def _metadata(stored: Any) -> dict[str, Any]:
    if stored is None:
        return {}
    metadata = _json(stored, "metadata")
    if not isinstance(metadata, dict):
        raise Corrupt(f"its metadata are {type(metadata).__name__} instead of an object")
    return metadata


def _json(stored: Any, what: str) -> Any:
    try:
        return json.loads(stored)
    except (TypeError, ValueError, RecursionError) as error:
        raise Corrupt(f"its {what} cannot be read as JSON ({error})") from error
