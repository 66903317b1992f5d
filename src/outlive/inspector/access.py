"""What the inspector may show and do: the store, whether it may write, what is hidden, and the limits."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from outlive.view.opened_store import OpenedStore
from outlive.view.redaction import Redaction

MAX_STATE_BYTES = 16 << 20  # a larger state is loaded only on request
PAGE = 100
MAX_CHANGES = 500
MAX_FORM_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Access:
    """A store as the pages use it."""

    store: OpenedStore
    is_writable: bool = False
    redaction: Redaction = field(default_factory=Redaction)
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    heavy: threading.Lock = field(default_factory=threading.Lock)  # one large state at a time

    @classmethod
    def of(cls, store: OpenedStore, *, write: bool, redact: Iterable[str]) -> Access:
        return cls(store, write, Redaction(tuple(redact)))
