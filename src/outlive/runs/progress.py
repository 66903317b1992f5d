"""How far a run has come: the moment of its last write, and the step that it is in.

A step stores itself, not the record of its run, which may be large. The heartbeats of a run write
its record anyway, so the next one takes the progress along, if there is any since the last. It
costs no write of its own, and another process sees where a quiet run hangs.

A heartbeat has the revision of the last write, and the store refuses it after a newer one. So it
may only take along the record that this last write left. While a write is under way, or its outcome
is not known, it takes nothing along. (In a pair, the standby may keep the record of that write as
it was: both have one rank.)
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator

from outlive.format.codec import Codec
from outlive.runs.lease import RunInfo, pack_progress


class Progress:
    """The progress of one run in this process. The timer of its store reads it in another thread."""

    __slots__ = ("_is_news", "_pauses", "_stored", "moved_at")

    def __init__(self) -> None:
        self._stored: tuple[int, bytes | None] = (0, None)  # the last write, and the record as it is since
        self._is_news = False
        self._pauses: set[object] = set()
        self.moved_at = time.monotonic()

    def stored(self, revision: int, body: bytes | None) -> None:
        """Note a write of the record itself, which tells everything."""
        self._stored = (revision, body)
        self._is_news = False
        self.moved_at = time.monotonic()

    def wrote(self, revision: int) -> None:
        """Note a write of something else."""
        self._stored = (revision, self._stored[1])
        self.moved()

    def moved(self) -> None:
        """Note that something happened that is not stored with the record."""
        self._is_news = True
        self.moved_at = time.monotonic()

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Let the run rest on purpose, as before a retry: it does not hang."""
        pause = object()
        self._pauses.add(pause)
        try:
            yield
        finally:
            self.moved()
            self._pauses.discard(pause)

    def quiet_s(self) -> float:
        """Return the seconds since the last progress."""
        if self._pauses:
            return 0.0
        return time.monotonic() - self.moved_at

    def take_news(self, codec: Codec, info: RunInfo, revision: int) -> bytes | None:
        """Return the record with the progress, for a heartbeat of this revision; None if there is none to take."""
        is_news, self._is_news = self._is_news, False  # first: what comes after this is news again
        stored, body = self._stored
        if not is_news or body is None:
            return None
        if stored != revision:
            self._is_news = True
            return None
        info.updated_at = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=self.quiet_s())
        return pack_progress(codec, body, info)

    def tell_again(self) -> None:
        """Note that the heartbeat with the news was not stored."""
        self._is_news = True
