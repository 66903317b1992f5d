"""The options of a run, declared once: sync and async."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict

from outlive.runs.budget import Budget


class SubmitOptions(TypedDict, total=False):
    """The options of `store.submit`: what the record of a run has."""

    namespace: str
    run_id: str | None
    agent: str | None
    prompt: Any
    parent: str | None
    attributes: Mapping[str, Any] | None
    code_version: str | None
    lease_s: float
    progress_s: float | None
    max_attempts: int
    backoff_s: float | None
    priority: int
    budget: Budget | None
    exclusive: bool


class RunOptions(SubmitOptions, total=False):
    """The options of `store.run`: those of the record, and how this process works on it."""

    new: bool
    throttle_s: float
    clock: Callable[[], float] | None
    durability: Literal["sync", "async", "exit"]
