"""The run that an agent works in: known to what the framework calls, in any task or thread.

A framework calls tools, models and sessions in tasks and threads of its own, and turns their errors
into messages for the model. So the run is in a context variable, and what ends the work (the run
was lost, or waits for a person) is noted: every later call is refused with it, and it is raised
when the framework has returned.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Unpack

from outlive.backend import ThreadKey
from outlive.errors import LeaseLost, OutliveError, RunEnded, RunForked, RunSuspended, StoreClosed
from outlive.runs.run import AsyncRun
from outlive.threads.engine import Engine
from outlive.threads.save_options import RunSaveOptions
from outlive.threads.thread import AsyncThread
from outlive.values import CheckpointInfo

_ENDS = (LeaseLost, RunEnded, RunForked, RunSuspended, StoreClosed)


@dataclass(slots=True)
class Work:
    """The work on a run, and what has ended it."""

    run: AsyncRun
    ended_by: BaseException | None = None
    counts: Counter[str] = field(default_factory=Counter)  # of calls that have no id of their own

    def check(self) -> None:
        """Raise what has ended the work."""
        if self.ended_by is not None:
            raise self.ended_by

    def note(self, error: BaseException, *, is_ours: bool = False) -> None:
        """Note an error if it ends the work; `is_ours`: the store raised it, and no code of the program."""
        if self.ended_by is None and (
            isinstance(error, _ENDS) or (is_ours and isinstance(error, OutliveError))
        ):
            self.ended_by = error

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuse a call after the end of the work, and note an error that ends it."""
        self.check()
        try:
            yield
        except BaseException as error:
            self.note(error)
            raise


_work: ContextVar[Work | None] = ContextVar("outlive_work", default=None)


def current_work() -> Work | None:
    """Return the work that this task or thread belongs to."""
    return _work.get()


def run_on(engine: Engine, thread: ThreadKey) -> Work | None:
    """Return the current work if its run has this thread: what is written there then carries its fence."""
    work = _work.get()
    if (
        work is None
        or work.run._engine.namer.key != engine.namer.key
        or work.run._key.digest != thread.digest
    ):
        return None
    return work


async def save_in_run(
    thread: AsyncThread[Any], state: Any, **options: Unpack[RunSaveOptions]
) -> CheckpointInfo:
    """Save a state; under the fence of the current run, if that has this thread. Raises LeaseLost."""
    work = run_on(thread._engine, thread._key)
    if work is None:
        return await thread.save(state, **options)
    with work.guarded():
        return await thread.save(state, fence=work.run, **options)


@contextlib.contextmanager
def working_on(run: AsyncRun) -> Iterator[Work]:
    """Make a run the current one. What has ended the work is raised at the end, whatever the framework made of it."""
    work = Work(run)
    token = _work.set(work)
    try:
        yield work
    except BaseException as error:
        if work.ended_by is not None and work.ended_by is not error:
            raise work.ended_by from error
        raise
    else:
        work.check()
    finally:
        _work.reset(token)
