"""A state as a stream of pieces, cut where its containers are.

Theory of operation. The packed state is one stream of msgpack bytes. Cut between the elements of
its containers, the stream is a row of *pieces*; put together again, it is decoded by one native
call. So a checkpoint needs no skeleton: the order of dict keys, nesting and types are all in the
stream.

Splitting yields *parts*, stretches of the stream:
- a run: neighbouring elements of one container, with the offsets at which it may be cut;
- a large leaf: a str or bytes of 64 KiB and more, alone in its part; the same goes for a value that
  an adapter has packed (`Raw`), from 1 KiB on;
- glue: what is between them (headers, keys).

A container becomes a branch of runs and children when that pays: it is 2 KiB or more and has many
elements, several big ones, or something inside that is itself split. Elements of long containers
stay whole up to 32 KiB, so an ordinary message is one piece.

The cost of a save. Splitting fully packs every element. Splitting against the tree of an earlier
state (`old`) packs each run in a few native calls and compares bytes: an appended list costs one
pack, one memcmp and its new elements. A large leaf that is the very same object as before is not
even packed. That is sound for str and bytes alone: everything else is mutable. But a caller who
owns a list may promise that it only grows (`Growing`): then its new elements alone are packed. Cut
points only steer what can be shared; they are not stored, and no two processes need to agree on
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any

from outlive.dataclass import dataclass
from outlive.errors import Unencodable
from outlive.format.codec import MAX_NESTED, Codec, is_utf8, may_hold_bytes
from outlive.format.edit import resembles
from outlive.format.extensions import MAP, Raw
from outlive.format.part import Alignment, LayoutChanged, PackedRun, Part

LARGE = 64 * 1024  # a str or bytes from here on has a part of its own
SPLIT = 2 * 1024  # a container below this stays whole
HEAVY = 32 * 1024  # an element of a long container below this stays whole
LONG = 8  # elements from which a container is long
BIG = 1024  # two elements from here on make even a short container worth splitting
TINY = 64  # elements smaller than this on average are cut in groups
GROUP = 32
SEGMENT = 64 * 1024  # a long run is packed and compared in steps of about this
SHORT = 128  # a run up to this is stored again when it changes

_LEAVES = (str, bytes, Raw)
_WHOLE = frozenset((int, float, bool, type(None), str, bytes, set, frozenset))  # never opened

Wraps = tuple[tuple[int, bytes], ...]  # extension codes around a container, outermost first


@dataclass(frozen=True, slots=True, eq=False)
class Growing:
    """A list in a state to which its owner only appends; what is in it never changes.

    A list that changed otherwise is another one, with a `Growing` of its own.
    """

    elements: list[Any]


@dataclass(slots=True)
class ElementRun:
    """Neighbouring elements of a container, in one part. (No run of an agent.)"""

    part: Part
    count: int


@dataclass(slots=True)
class Leaf:
    """A large str or bytes, or a value that an adapter has packed, alone in its part."""

    part: Part


@dataclass(slots=True)
class Child:
    """An element of a container that is itself split."""

    key: Any  # of a dict; None in a list
    lead: bytes  # the packed key
    node: Leaf | Branch


@dataclass(slots=True)
class Branch:
    """A container that is split: runs of its elements, and children between them."""

    wraps: Wraps
    is_dict: bool
    count: int
    items: list[ElementRun | Child]
    growing: Growing | None = None  # the list that it was made of


Node = Leaf | Branch


@dataclass(slots=True)
class SplitState:
    """A split state: its parts in the order of the stream, and the tree to split the next one against."""

    root: Node | None
    parts: list[Part]
    size: int
    leaves: dict[int, Part] = field(default_factory=dict)


def split(
    codec: Codec, value: Any, old: SplitState | None = None, growing: Growing | None = None
) -> SplitState:
    """Split `value`, which may have a list inside that only grows, and share equal parts with `old`.

    Raises Unencodable with the path of what is not data.
    """
    root = None if old is None else old.root
    data = codec.pack(value) if root is None and type(value) not in _LEAVES else b""
    if 0 < len(data) < SPLIT:  # by far the most states: one call packs them, and they stay whole
        return SplitState(None, [Part(data, [len(data)])], len(data))
    splitter = Splitter(codec, old, growing)
    try:
        node = splitter.visit_packed(value, data, SPLIT) if data else splitter.visit(value, root, SPLIT)
    except Unencodable:
        codec.pack(value)  # inside the tree a path is relative; this one starts at the state
        raise
    if isinstance(node, bytes):
        part = Part(node, [len(node)])
        if old is not None and old.root is None and len(node) >= SPLIT:
            part.share_edits(old.parts[0])
        return SplitState(None, [part], len(node))
    parts = flatten(emit(node))
    return SplitState(node, parts, sum([part.size for part in parts]), splitter.leaves)


@dataclass(slots=True)
class Splitter:
    """Splits values against the nodes of an earlier state."""

    _codec: Codec
    _old: SplitState | None
    _growing: Growing | None = None
    leaves: dict[int, Part] = field(default_factory=dict)

    def visit(self, value: Any, old: Node | None, limit: int) -> bytes | Node:
        """Return the packed bytes of a value that stays whole, or the node of one that is split."""
        growing = self._growing
        if growing is None or value is not growing.elements:
            return self._visit(value, old, limit)
        if isinstance(old, Branch) and old.growing is growing:
            with suppress(LayoutChanged):
                return Branch((), False, len(value), self._follow_growing(value, old), growing)
        node = self._visit(value, old, limit)
        if isinstance(node, Branch):
            node.growing = growing
        return node

    def _visit(self, value: Any, old: Node | None, limit: int) -> bytes | Node:
        kind = type(value)
        # 1. Leaves: large ones are shared or stored as a whole.
        if kind is str or kind is bytes:
            return self._leaf(value, old) if len(value) >= LARGE else self._codec.pack(value)
        if kind is Raw and len(value.payload) >= BIG:
            return self._packed_leaf(value, old)
        # 2. A container of the same shape as before is split where the old one was: the fast way.
        if isinstance(old, Branch):
            wraps, inner = self._open(value)
            if wraps == old.wraps and type(inner) is (dict if old.is_dict else list):
                try:
                    return Branch(old.wraps, old.is_dict, len(inner), self._follow(inner, old))
                except LayoutChanged:
                    return self._split_fully(old.wraps, inner, old)
        # 3. Anything else is packed whole, and split when that pays.
        return self.visit_packed(value, self._codec.pack(value), limit)

    def visit_packed(self, value: Any, data: bytes, limit: int) -> bytes | Node:
        """Split a container without a predecessor when that pays; else return its bytes."""
        if len(data) < limit:
            return data
        wraps, inner = self._open(value)
        if inner is None:
            return data
        branch = self._split_fully(wraps, inner, None)
        return branch if _worth(branch) else data

    def _open(self, value: Any) -> tuple[Wraps, Any]:
        """Find the list or dict inside a value, and the extensions around it."""
        wraps: Wraps = ()
        while True:
            kind = type(value)
            if kind is list:
                return wraps, value
            if kind is dict:
                if has_plain_keys(value):
                    return wraps, value
                return (*wraps, (MAP, b"")), [part for pair in value.items() for part in pair]
            reduced = None if kind in _WHOLE else self._codec.reduce(value)
            if reduced is None or len(reduced) == 2:
                return wraps, None
            wraps = (*wraps, reduced[:2])
            value = reduced[2]

    def _leaf(self, value: str | bytes, old: Node | None) -> bytes | Leaf:
        # 1. The very same object as before, at this place or at another one: nothing is packed.
        if isinstance(old, Leaf) and old.part.leaf is value:  # the usual case: the very same object
            self.leaves[id(value)] = old.part
            return old
        known = self._old.leaves.get(id(value)) if self._old else None
        if known is None and isinstance(old, Leaf):
            known = old.part
        # 2. An equal one, which a program may have read again. (`is` first: comparing 20 MB takes
        #    milliseconds.)
        if known is not None and (
            known.leaf is value or (type(known.leaf) is type(value) and known.leaf == value)
        ):
            part = known
        else:
            # 3. Another one: it shares what an edit has left of the text that was here.
            data = self._codec.pack(value)
            part = Part(data, [len(data)])
            if data[0] in _STR_OR_BIN:
                part.leaf = value
                if known is not None and type(known.leaf) is type(value) and resembles(value, known.leaf):
                    before = self._codec.pack_native(known.leaf)
                    part.share_edit(known, data, before, _LEAF_HEADER)
        if part.leaf is not None:
            self.leaves[id(part.leaf)] = part
        return Leaf(part)

    def _packed_leaf(self, value: Raw, old: Node | None) -> Leaf:
        """Return the leaf of a value that an adapter packed: it is shared as a whole or not at all."""
        data = self._codec.pack(value)
        if isinstance(old, Leaf) and old.part.size == len(data) and old.part.starts(data, 0):
            return old
        part = Part(data, [len(data)])
        if isinstance(old, Leaf) and old.part.leaf is None:
            part.share_edits(old.part)
        return Leaf(part)

    # Against the base: position by position along the old branch. LayoutChanged ends it anywhere,
    # and nothing was changed.

    def _follow(self, inner: Any, old: Branch) -> list[ElementRun | Child]:
        is_dict, entries = old.is_dict, list(inner.items()) if old.is_dict else inner
        limit = HEAVY if len(entries) >= LONG else SPLIT
        items: list[ElementRun | Child] = []
        at = 0
        for index, item in enumerate(old.items):
            if isinstance(item, ElementRun):
                # A run has as many elements as before; the last one takes what was appended.
                stop = len(entries) if index == len(old.items) - 1 else at + item.count
                if stop > len(entries):
                    raise LayoutChanged
                items.append(self._follow_run(entries[at:stop], item, is_dict, limit))
                at = stop
                continue
            # A child is at the same position, under the same key, and still large enough to be
            # split.
            if at >= len(entries) or (is_dict and entries[at][0] != item.key):
                raise LayoutChanged
            node = self.visit(entries[at][1] if is_dict else entries[at], item.node, limit)
            if isinstance(node, bytes):
                raise LayoutChanged
            items.append(item if node is item.node else Child(item.key, item.lead, node))
            at += 1
        if at < len(entries):
            items.extend(self._split_elements(entries[at:], is_dict, limit, {}))
        return items

    def _follow_growing(self, elements: list[Any], old: Branch) -> list[ElementRun | Child]:
        """Split what was appended to a list since it was the old branch."""
        limit = HEAVY if len(elements) >= LONG else SPLIT
        new = elements[old.count :]
        if not new:
            return old.items
        if not old.items:
            raise LayoutChanged
        last = old.items[-1]
        if isinstance(last, Child):
            return [*old.items, *self._split_elements(new, False, limit, {})]
        data, start, _ = self._pack_whole(new, False)
        if last.part.holds_bytes and self._byte_types(new, False) is bytearray:
            raise LayoutChanged
        run, start = elements[old.count - last.count :], start - last.part.size
        alignment = Alignment(self, run, False, limit, data, start, len(data) - start)
        return [*old.items[:-1], ElementRun(alignment.align(last.part, follows_old=True), len(run))]

    def _follow_run(self, elements: list[Any], run: ElementRun, is_dict: bool, limit: int) -> ElementRun:
        """Pack a run and find what it shares with the old one."""
        old = run.part
        # 1. Pack all of it: native code packs faster than Python can ask what has changed.
        if old.size <= SEGMENT:
            data, start, follows_old = self._pack_whole(elements, is_dict)
        else:
            data, start, follows_old = self._pack_along(elements, is_dict, old)
        # msgpack has one type for bytes and bytearray; only a full split tells them apart.
        if old.holds_bytes and self._byte_types(elements, is_dict) is bytearray:
            raise LayoutChanged
        # 2. The same bytes as before: the old run is the new one.
        size = len(data) - start
        if size == old.size and (follows_old or old.starts(data, start)):
            return run
        # 3. So short that storing it again costs less than a span.
        if 0 < size <= SHORT and not may_hold_bytes(data):
            return ElementRun(Part(data[start:], [size], [len(elements)]), len(elements))
        # 4. Find what it has in common with the old one.
        alignment = Alignment(self, elements, is_dict, limit, data, start, size)
        return ElementRun(alignment.align(old, follows_old=follows_old), len(elements))

    def _byte_types(self, elements: list[Any], is_dict: bool) -> type | None:
        return self._codec.byte_types([list(pair) for pair in elements] if is_dict else elements)

    def _pack_along(self, elements: list[Any], is_dict: bool, old: Part) -> PackedRun:
        """Pack a long run in segments that are compared at once.

        They stay in the processor's cache, and one buffer for all would be new memory for every
        save, which takes longer than packing. When all of the old run is there, only what follows
        it is returned.
        """
        # `at`: bytes of the old run that are there; `cuts`, `done`: pieces and elements of these.
        at = cuts = done = 0
        while cuts < len(old.ends):
            cuts = max(cuts + 1, bisect_right(old.ends, at + SEGMENT))
            data, start, _ = self._pack_whole(elements[done : old.marks[cuts - 1]], is_dict)
            # The first segment that differs ends the comparison: what follows is packed at once.
            if not old.has(memoryview(data)[start:], at, old.ends[cuts - 1]):
                break
            at, done = old.ends[cuts - 1], old.marks[cuts - 1]
        data, start, _ = self._pack_whole(elements[done:], is_dict)
        if at == old.size:
            return PackedRun(data, start - at, follows_old=True)
        return PackedRun(b"".join((old.cut(0, at), memoryview(data)[start:])), 0)

    def _pack_whole(self, elements: list[Any], is_dict: bool) -> PackedRun:
        """Pack elements as one container; they start after its header."""
        data = self._codec.pack_native(dict(elements) if is_dict else elements)
        header = header_of(len(elements), is_dict)
        if not data.startswith(header):  # a key that no msgpack map can have: it went another way
            raise LayoutChanged
        return PackedRun(data, len(header))

    def pack_run(self, elements: list[Any], is_dict: bool) -> bytes:
        """Return the bytes of neighbouring elements."""
        data, start, _ = self._pack_whole(elements, is_dict)
        return data[start:]

    def cut(
        self, elements: list[Any], is_dict: bool, limit: int, average: float, packed: bytes
    ) -> tuple[list[bytes], list[int], bool]:
        """Cut the bytes of elements one by one, tiny ones in groups.

        Returns pieces, elements in each, and whether there are bytes inside.
        """
        step = GROUP if average < TINY and len(elements) > GROUP else 1
        pieces, counts, holds_bytes = [], [], False
        for at in range(0, len(elements), step):
            group = elements[at : at + step]
            piece = packed if len(group) == len(elements) else self.pack_run(group, is_dict)
            if len(piece) >= limit:
                first = group[0][1] if is_dict else group[0]
                if not isinstance(self.visit(first, None, limit), bytes):  # it would be split
                    raise LayoutChanged
            if may_hold_bytes(piece):
                byte_type = self._byte_types(group, is_dict)
                if byte_type is bytearray:
                    raise LayoutChanged
                holds_bytes = holds_bytes or byte_type is bytes
            pieces.append(piece)
            counts.append(len(group))
        return pieces, counts, holds_bytes

    # Fully: element by element

    def _split_fully(self, wraps: Wraps, inner: Any, old: Branch | None) -> Branch:
        is_dict = type(inner) is dict
        entries = list(inner.items()) if is_dict else inner
        items = self._split_elements(entries, is_dict, HEAVY if len(entries) >= LONG else SPLIT, _hints(old))
        if old is not None:
            _match(items, old)
        return Branch(wraps, is_dict, len(entries), items)

    def _split_elements(
        self, entries: list[Any], is_dict: bool, limit: int, hints: dict[Any, Node]
    ) -> list[ElementRun | Child]:
        """Pack elements one by one: those that stay whole gather in runs, each other one is a child."""
        items: list[ElementRun | Child] = []
        pieces: list[bytes] = []
        holds_bytes = False
        for index, entry in enumerate(entries):
            key, value = entry if is_dict else (index, entry)
            node = self.visit(value, hints.get(key), limit)
            if isinstance(node, bytes):
                holds_bytes = holds_bytes or (
                    may_hold_bytes(node) and self._codec.byte_types(value) is not None
                )
                pieces.append(self._codec.pack(key) + node if is_dict else node)
                continue
            if pieces:
                items.append(_element_run(pieces, holds_bytes))
                pieces, holds_bytes = [], False
            items.append(Child(key, self._codec.pack(key), node) if is_dict else Child(None, b"", node))
        if pieces:
            items.append(_element_run(pieces, holds_bytes))
        return items


def has_plain_keys(value: Mapping[Any, Any]) -> bool:
    """Tell whether a dict can be a map of msgpack."""
    return set(map(type, value)) <= {str} and ((keys := "".join(value)).isascii() or is_utf8(keys))


def _worth(branch: Branch) -> bool:
    """Tell whether splitting lets anything be shared that would not be otherwise."""
    if branch.count >= LONG:
        return True
    if any(isinstance(item, Child) for item in branch.items):
        return True
    cuts = [run.part.ends for run in branch.items if isinstance(run, ElementRun)]
    return sum(end - start >= BIG for ends in cuts for start, end in zip([0, *ends], ends, strict=False)) > 1


def _element_run(pieces: list[bytes], holds_bytes: bool) -> ElementRun:
    ends, marks, at = [], [], 0
    tiny = len(pieces) > GROUP and sum(map(len, pieces)) < TINY * len(pieces)
    for index, piece in enumerate(pieces, 1):
        at += len(piece)
        if not tiny or index % GROUP == 0 or index == len(pieces):
            ends.append(at)
            marks.append(index)
    part = Part(b"".join(pieces), ends, marks)
    part.holds_bytes = holds_bytes
    return ElementRun(part, len(pieces))


def _hints(old: Branch | None) -> dict[Any, Node]:
    """Return the children of an old branch, by key or by position."""
    hints: dict[Any, Node] = {}
    at = 0
    for item in old.items if old else ():
        if isinstance(item, Child):
            hints[item.key if old and old.is_dict else at] = item.node
            at += 1
        else:
            at += item.count
    return hints


def _match(items: list[ElementRun | Child], old: Branch) -> None:
    """Find the pieces of new runs among all old runs, by content."""
    places = _places([run.part for run in old.items if isinstance(run, ElementRun)])
    for run in items:
        if isinstance(run, ElementRun):
            _match_part(run.part, places)


def _places(parts: list[Part]) -> dict[bytes, tuple[Part, int]]:
    """Return where each piece of some parts is."""
    places: dict[bytes, tuple[Part, int]] = {}
    for part in parts:
        start = 0
        for end in part.ends:
            places[part.cut(start, end)] = (part, start)
            start = end
    return places


def _match_part(part: Part, places: dict[bytes, tuple[Part, int]]) -> None:
    start = 0
    for end in part.ends:
        place = places.get(part.cut(start, end))
        if place is not None:
            part.kept.append((start, end - start, *place))
        start = end


def gather(pieces: list[bytes], old: list[Part]) -> Part:
    """Return a part of these pieces, which keeps those that old parts have."""
    part = _element_run(pieces, holds_bytes=False).part
    _match_part(part, _places(old))
    return part


# The stream ---------------------------------------------------------------------------------------


_STR_OR_BIN = frozenset((0xDA, 0xDB, 0xC5, 0xC6))
_LEAF_HEADER = 5  # bytes before the text of a large leaf: a length changes with every edit


def flatten(stream: Iterable[bytes | Part]) -> list[Part]:
    """Return the parts of a stream: bytes between them become glue."""
    parts: list[Part] = []
    glue = b""
    for item in (*stream, None):
        if isinstance(item, bytes):
            glue += item
            continue
        if glue:
            parts.append(Part(glue, [len(glue)]))
            glue = b""
        if item is not None:
            parts.append(item)
    return parts


def emit(node: Node, nested: int = 0) -> list[bytes | Part]:
    """Return what a node adds to the stream."""
    if isinstance(node, Leaf):
        return [node.part]
    nested += len(node.wraps)
    if nested > MAX_NESTED:
        raise Unencodable("state", f"more than {MAX_NESTED} tuples, sets or objects in each other")
    out: list[bytes | Part] = [header_of(node.count, node.is_dict)]
    for item in node.items:
        if isinstance(item, ElementRun):
            out.append(item.part)
        else:
            out.append(item.lead)
            out.extend(emit(item.node, nested))
    # The headers of the extensions around it say its length, so they come last, from the inside
    # out.
    size = sum([part.size if isinstance(part, Part) else len(part) for part in out]) if node.wraps else 0
    for code, lead in reversed(node.wraps):
        size += len(lead)
        header = _ext_header(size, code)
        out[:0] = [header, lead]
        size += len(header)
    return out


def header_of(count: int, is_dict: bool) -> bytes:
    """Return the msgpack header of a list or dict."""
    if count < 16:
        return bytes([(0x80 if is_dict else 0x90) | count])
    if count < 1 << 16:
        return (b"\xde" if is_dict else b"\xdc") + count.to_bytes(2, "big")
    return (b"\xdf" if is_dict else b"\xdd") + count.to_bytes(4, "big")


def _ext_header(size: int, code: int) -> bytes:
    fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}.get(size)
    if fixed is not None:
        return bytes([fixed, code])
    for first, width in ((0xC7, 1), (0xC8, 2), (0xC9, 4)):
        if size < 1 << 8 * width:
            return bytes([first]) + size.to_bytes(width, "big") + bytes([code])
    raise Unencodable("state", "a tagged value of 4 GiB or more cannot be stored")
