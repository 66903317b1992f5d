"""A state whose writer knows what has not changed. Pure, no I/O.

An outline is a dict of fields that changes every time and, under one key, a dict of values, each
with a version. A value whose version is that of the base keeps its bytes: it is not packed,
compared or even looked at. The rest is cut by size: what is small is packed into one stretch of the
stream, and what is large is split against its predecessor (`splitter.py`). Put together, the stream
is that of a plain dict, so it is read like any other state.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import field
from typing import Any

from outlive.dataclass import dataclass
from outlive.errors import Unencodable
from outlive.format.codec import Codec
from outlive.format.part import Part
from outlive.format.splitter import (
    SPLIT,
    Branch,
    Growing,
    Leaf,
    Node,
    SplitState,
    Splitter,
    emit,
    flatten,
    gather,
    has_plain_keys,
    header_of,
    split,
)

_SPLIT_ROOT = Branch((), True, 0, [])  # says that the state has more than one part


@dataclass(slots=True)
class Entry:
    """A packed key and its value: bytes when it is small, else a node."""

    key: bytes
    node: bytes | Node
    version: Any = None


@dataclass(slots=True)
class SplitOutline(SplitState):
    """The pieces of an outline, by name."""

    id: str = ""
    form: object = None
    fields: dict[str, Entry] = field(default_factory=dict)
    values: dict[str, Entry] = field(default_factory=dict)
    small: list[Part] = field(default_factory=list)  # of values that are small, and many


@dataclass(slots=True)
class Outline:
    """A state of fields and versioned values.

    `id` names it, and `base` the outline to which `versions` and `changed` refer: a value that is
    not in `changed`, and has the version that the base has, is the same as there. `prepare` turns a
    value into what is stored, and is called for those alone that are not kept. `form` says what it
    makes of them: a value that has another form in the base (it was not encrypted there) is not
    kept.
    """

    id: str
    base: str | None
    fields: Mapping[str, Any]
    key: str  # of the values
    values: Mapping[str, Any]
    versions: Mapping[str, Any]
    changed: Container[str]
    prepare: Callable[[str, Any], Any]
    form: object = None

    def plain(self) -> dict[str, Any]:
        """Return the state as one dict."""
        values = {name: self.prepare(name, value) for name, value in self.values.items()}
        return {self.key: values, **self.fields}

    def split(self, codec: Codec, old: SplitState | None) -> SplitState:
        """Split this state, and share with `old` what is kept or equal."""
        if not (has_plain_keys(self.fields) and has_plain_keys(self.values)):
            return split(codec, self.plain(), old)
        base = old if isinstance(old, SplitOutline) else SplitOutline(None, [], 0)
        splitter = Splitter(codec, old)
        try:
            values = self._split_values(codec, splitter, base)
            fields, tail = self._split_fields(codec, splitter, base)
        except Unencodable:
            codec.pack(self.plain())  # names the path from the state on
            raise
        start = header_of(len(self.fields) + 1, is_dict=True) + codec.pack(self.key)
        stream: list[bytes | Part] = [start + header_of(len(values), is_dict=True)]
        small = _append_all(stream, values, base.small)
        if tail:
            stream.append(tail)
        else:
            small += _append_all(stream, fields, base.small)
        parts = flatten(stream)
        root = _SPLIT_ROOT if len(parts) > 1 else None
        size = sum([part.size for part in parts])
        return SplitOutline(root, parts, size, splitter.leaves, self.id, self.form, fields, values, small)

    def _split_fields(
        self, codec: Codec, splitter: Splitter, base: SplitOutline
    ) -> tuple[dict[str, Entry], bytes]:
        """Pack all fields at once; split them one by one when they are large."""
        data = codec.pack(self.fields)
        if len(data) < SPLIT:
            return {}, data[len(header_of(len(self.fields), is_dict=True)) :]
        entries = {
            name: _entry(codec, splitter, name, value, base.fields.get(name))
            for name, value in self.fields.items()
        }
        return entries, b""

    def _split_values(self, codec: Codec, splitter: Splitter, base: SplitOutline) -> dict[str, Entry]:
        is_next = base.id == self.base and base.form == self.form
        entries: dict[str, Entry] = {}
        for name, value in self.values.items():
            version, entry = self.versions.get(name), base.values.get(name)
            is_kept = is_next and entry is not None and name not in self.changed
            if entry is None or not is_kept or version is None or entry.version != version:
                entry = _entry(codec, splitter, name, self.prepare(name, value), entry)
                entry.version = version
            entries[name] = entry
        return entries


def _entry(codec: Codec, splitter: Splitter, name: str, value: Any, old: Entry | None) -> Entry:
    before = None if old is None or isinstance(old.node, bytes) else old.node
    node = splitter.visit(value, before, SPLIT)
    if isinstance(node, bytes) and len(node) >= SPLIT:  # large, and of one piece
        is_same = isinstance(before, Leaf) and before.part.is_equal(node)
        node = before if before is not None and is_same else Leaf(Part(node, [len(node)]))
    return Entry(codec.pack(name) if old is None else old.key, node)


def _append_all(stream: list[bytes | Part], entries: dict[str, Entry], old: list[Part]) -> list[Part]:
    """Append entries to a stream; return the parts of neighbours that are small, and many."""
    gathered: list[Part] = []
    small: list[bytes] = []
    for entry in (*entries.values(), None):
        if entry is not None and isinstance(entry.node, bytes):
            small.append(entry.key + entry.node)
            continue
        if sum(map(len, small)) >= SPLIT:
            gathered.append(gather(small, old))
            stream.append(gathered[-1])
        else:
            stream.extend(small)
        small = []
        if entry is not None and not isinstance(entry.node, bytes):
            stream.append(entry.key)
            stream.extend(emit(entry.node))
    return gathered


def split_state(
    codec: Codec, state: Any, old: SplitState | None = None, growing: Growing | None = None
) -> SplitState:
    """Split a state or an outline, and share equal parts with `old`. A state may have a list inside that only grows."""
    return state.split(codec, old) if isinstance(state, Outline) else split(codec, state, old, growing)
