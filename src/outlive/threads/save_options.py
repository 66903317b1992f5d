"""The options of a save, declared once: for threads and runs, sync and async."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, runtime_checkable

from outlive.arguments import optional_id
from outlive.backend import Fence, ThreadKey
from outlive.threads.engine import Engine
from outlive.values import Interrupt, New, PendingWrite, Source


class Fencing(Protocol):
    """A lock on a thread: what is written under it is refused once another holder has taken it."""

    @property
    def fence(self) -> int | None: ...
    def _fence_of(self, engine: Engine, thread: ThreadKey) -> Fence: ...


@runtime_checkable
class RunHandle(Protocol):
    """A run, sync or async, or its `RunInfo`."""

    @property
    def id(self) -> str: ...
    @property
    def is_finished(self) -> bool: ...


class RunSaveOptions(TypedDict, total=False):
    """The options of `run.save`: those of `thread.save` without `run` and `fence`, which the run sets."""

    id: str | None
    parent: str | None
    expect: str | New | None
    step: int | None
    source: Source
    metadata: Mapping[str, Any] | None
    next_nodes: Sequence[str]
    completed_tasks: Sequence[str]
    interrupts: Sequence[Interrupt]
    writes: Sequence[tuple[str, str, Any] | PendingWrite]
    replace: bool
    durability: str | None
    timeout_s: float | None


class SaveOptions(RunSaveOptions, total=False):
    """The options of `thread.save`."""

    run: str | RunHandle | None
    fence: Fencing | None


def run_id_of(run: object) -> str | None:
    """Return the id of a run that is given by its id, as a run, or not at all. Raises BadArgument."""
    if isinstance(run, str) or not isinstance(run, RunHandle):
        return optional_id("run", run)
    return run.id
