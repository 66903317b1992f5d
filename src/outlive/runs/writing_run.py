"""What the parts of a run (its ledger, questions, responses, stream) know of the run they write for."""

from __future__ import annotations

from typing import Protocol

from outlive.backend import ThreadKey
from outlive.threads.engine import Engine


class WritingRun(Protocol):
    """A run that writes under its fence. Each part asks for more that it needs itself."""

    @property
    def id(self) -> str: ...
    @property
    def _key(self) -> ThreadKey: ...
    @property
    def _engine(self) -> Engine: ...
    @property
    def _rank(self) -> tuple[int, int]: ...
