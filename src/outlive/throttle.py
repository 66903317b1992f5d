"""At most one write in an interval, and never without the last one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class Throttle:
    """What a run holds back. The clock moves only when something was written."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.kept: tuple[bytes, Mapping[str, Any]] | None = None  # a packed state: the caller may change his
        self._last = float("-inf")

    def holds(self) -> bool:
        """Tell whether a write would come too soon."""
        return self.interval_s > 0 and time.monotonic() - self._last < self.interval_s

    def keep(self, packed: bytes, options: Mapping[str, Any]) -> None:
        self.kept = packed, options

    def wrote(self) -> None:
        self.kept = None
        self._last = time.monotonic()
