"""The options of a save, declared once: for threads and runs, sync and async."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, runtime_checkable

from outlive.arguments import (
    check_id,
    check_interrupts,
    check_metadata,
    check_names,
    check_source,
    check_step,
    check_timeout,
    check_writes,
    optional_id,
)
from outlive.backend import Fence, ThreadKey
from outlive.threads.engine import Engine
from outlive.threads.save import Draft
from outlive.values import Interrupt, New, PendingWrite, Source


class Fencing(Protocol):
    """A run or a lock on a thread: what is written under it is refused once another process has taken it."""

    def _fence_of(self, engine: Engine, thread: ThreadKey) -> Fence | None: ...


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
    if run is None or isinstance(run, str) or not isinstance(run, RunHandle):
        return optional_id("run", run)
    return run.id


def set_options(draft: Draft, options: SaveOptions) -> None:
    """Check the options of a save, and note them in its draft; `fence` and `durability` are not for it."""
    if (id := options.get("id")) is not None:
        draft.id = check_id("id", id)
    draft.parent, draft.follows = _parent_of(options)
    if (expect := options.get("expect")) is not None:
        draft.expect = (draft.namespace, _expected_head(expect))
    if (step := options.get("step")) is not None:
        draft.step = check_step(step)
    draft.source = check_source(options.get("source", "loop"))
    draft.run = run_id_of(options.get("run"))
    draft.replace = options.get("replace", False)
    if writes := options.get("writes"):
        draft.writes = check_writes(writes)
    if metadata := options.get("metadata"):
        draft.metadata = check_metadata(metadata)
    if names := options.get("next_nodes"):
        draft.next_nodes = check_names("next_nodes", names)
    if names := options.get("completed_tasks"):
        draft.completed_tasks = check_names("completed_tasks", names)
    if interrupts := options.get("interrupts"):
        draft.interrupts = check_interrupts(interrupts)
    if (timeout_s := options.get("timeout_s")) is not None:
        draft.timeout_s = check_timeout(timeout_s)


def _expected_head(expect: str | New) -> str | None:
    """Return the id that `expect=` names; None for a thread without a checkpoint."""
    return None if isinstance(expect, New) else check_id("expect", expect)


def _parent_of(options: SaveOptions) -> tuple[str | None, bool]:
    """Return the parent of a save, and whether it follows the head, whatever that is when it is stored."""
    parent, expect = options.get("parent"), options.get("expect")
    if parent is not None:
        return check_id("parent", parent), False
    if options.get("replace", False):
        return None, True  # it keeps the parent that the checkpoint has
    if expect is not None:
        return _expected_head(expect), False
    return None, True
