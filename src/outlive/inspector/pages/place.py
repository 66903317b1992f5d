"""What an address names: a thread, a namespace, and a checkpoint of it, read within limits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from outlive.errors import BadArgument, CallerError, CheckpointMissing
from outlive.inspector.access import MAX_STATE_BYTES
from outlive.inspector.site import Site
from outlive.sync.thread import Thread
from outlive.view.units import format_size

if TYPE_CHECKING:
    from outlive.values import Checkpoint, CheckpointInfo


class TooLarge(CallerError):
    """A state that is loaded only on request."""


@dataclass(slots=True)
class Place:
    """What the address names: a thread, a namespace, and a checkpoint of it."""

    site: Site
    request: Request

    def __post_init__(self) -> None:
        self.thread_id  # noqa: B018  # refuses an address without a thread

    @property
    def thread_id(self) -> str:
        id = self.request.query_params.get("id", "")
        if not id:
            raise BadArgument("the address names no thread")
        return id

    @property
    def namespace(self) -> str:
        return self.request.query_params.get("ns", "")

    @property
    def thread(self) -> Thread[Any]:
        return self.site.store.thread(self.thread_id, namespace=self.namespace)

    def describe(self, id: str | None, thread: Thread[Any] | None = None) -> CheckpointInfo:
        """Return a checkpoint without its state, which is not read."""
        thread = thread or self.thread
        info = self.site.store.describe(thread, id)
        if info is None:
            raise CheckpointMissing(thread.id, id, "its page lists its checkpoints")
        return info

    def load(self, id: str | None, thread: Thread[Any] | None = None) -> Checkpoint:
        """Load a checkpoint with its state; what is to be hidden is hidden in it. Raises TooLarge before it loads."""
        thread = thread or self.thread
        size = self.describe(id, thread).state_bytes
        if size > MAX_STATE_BYTES and not self._may_be_large:
            raise TooLarge(f"this state has {format_size(size)}; add load=1 to the address to load it")
        with self._turn(size):
            checkpoint = thread.checkpoint(id)
            if checkpoint is None:
                raise CheckpointMissing(thread.id, id, "its page lists its checkpoints")
            return self.site.access.redaction.clean_checkpoint(checkpoint)

    @contextlib.contextmanager
    def _turn(self, size: int) -> Iterator[None]:
        """Load one large state at a time: it takes several times its size in memory."""
        if size <= MAX_STATE_BYTES:
            yield
            return
        with self.site.access.turn():
            yield

    @property
    def _may_be_large(self) -> bool:
        return self.request.query_params.get("load") == "1"
