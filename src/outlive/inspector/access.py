"""What the inspector may show and do: the store, whether it may write, what is hidden, and the limits."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from outlive.errors import BadArgument
from outlive.view.opened_store import OpenedStore
from outlive.view.redaction import Redaction

MAX_STATE_BYTES = 16 << 20  # a larger state is loaded only on request
PAGE = 100
MAX_CHANGES = 500
MAX_FORM_BYTES = 4 << 20
_TURN_S = 20.0


@dataclass(frozen=True, slots=True)
class Access:
    """A store as the pages use it."""

    store: OpenedStore
    is_writable: bool = False
    redaction: Redaction = field(default_factory=Redaction)
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    heavy: threading.Lock = field(default_factory=threading.Lock)  # one large state at a time

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Do one large thing at a time. Raises BadArgument for those that would wait long: they would block all others."""
        if not self.heavy.acquire(timeout=_TURN_S):
            raise BadArgument("another large request is under way; try again in a moment")
        try:
            yield
        finally:
            self.heavy.release()

    @classmethod
    def of(cls, store: OpenedStore, *, write: bool, redact: Iterable[str]) -> Access:
        return cls(store, write, Redaction(tuple(redact)))
