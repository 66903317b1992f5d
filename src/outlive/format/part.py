"""A stretch of the stream of a state: its bytes, its cuts, and where it is stored. Pure, no I/O."""

from __future__ import annotations

from outlive.format.codec import Codec


class Part:
    """A stretch of the stream. `spans` says where its bytes are stored, once they are.

    The bytes of a run that grows are held as a long beginning, shared with the part before it, and
    a short rest: a new buffer for every state would cost more than comparing does.
    """

    __slots__ = ("_bytes", "ends", "holds_bytes", "kept", "leaf", "marks", "size", "spans")

    def __init__(self, data: bytes | None, ends: list[int], marks: list[int] | None = None) -> None:
        # (beginning, where in it the part starts, rest); None: see `forget_packed`
        self._bytes = None if data is None else (data, 0, b"")
        self.ends = ends
        self.marks = marks if marks is not None else list(range(1, len(ends) + 1))
        self.size = ends[-1] if ends else 0
        self.holds_bytes = False
        self.leaf: str | bytes | None = None
        self.kept: list[tuple[int, int, Part, int]] = []  # (offset, length, earlier part, its offset)
        self.spans: list[tuple[bytes, int, int]] | None = None  # (chunk, offset, length)

    def hold(self, data: bytes, start: int) -> None:
        """Take the bytes of `data` from `start` on; cutting off what is before would copy them."""
        self._bytes = (data, start, b"")

    def hold_more(self, old: Part, rest: bytes) -> None:
        """Take the bytes of an earlier part and `rest`."""
        assert old._bytes is not None
        data, start, more = old._bytes
        more += rest
        if len(more) * _SHORT > len(data):
            data, start, more = b"".join((memoryview(data)[start:], more)), 0, b""
        self._bytes = (data, start, more)

    def forget_packed(self) -> None:
        """Forget the packed form of a leaf: the leaf itself is kept, and both would take the room twice."""
        self._bytes = None

    def starts(self, data: bytes, at: int) -> bool:
        """Tell whether `data` has the bytes of this part at `at`."""
        assert self._bytes is not None
        long, start, more = self._bytes
        length = len(long) - start
        return data.startswith(memoryview(long)[start:], at) and data.startswith(more, at + length)

    def has(self, data: memoryview, low: int, high: int) -> bool:
        """Tell whether `data` is what this part has from `low` to `high`."""
        assert self._bytes is not None
        long, start, more = self._bytes
        border = len(long) - start - low  # what comes after it in `data` is in the rest
        return (
            len(data) == high - low
            and (border <= 0 or long.startswith(data[:border], start + low))
            and (border >= len(data) or more.startswith(data[max(0, border) :], max(0, -border)))
        )

    def whole(self) -> memoryview:
        """Return all bytes of a run or of glue."""
        assert self._bytes is not None
        data, start, more = self._bytes
        if more:
            data, start = b"".join((memoryview(data)[start:], more)), 0
            self._bytes = (data, start, b"")
        return memoryview(data)[start:]

    def bytes_of(self, codec: Codec) -> bytes | memoryview:
        """Return the bytes; those of a leaf are packed when asked for."""
        return codec.pack_native(self.leaf) if self._bytes is None else self.whole()

    def cut(self, low: int, high: int) -> bytes:
        """Return the bytes from `low` to `high`."""
        assert self._bytes is not None
        data, start, more = self._bytes
        length = len(data) - start
        if high <= length:
            return data[start + low : start + high]
        if low >= length:
            return more[low - length : high - length]
        return data[start + low :] + more[: high - length]


_SHORT = 8  # the rest is joined with the beginning when it is longer than an eighth of it
