"""LangGraph's SQLite savers, used as its runtime does: one checkpoint per state, a channel per key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from workloads import State

NAME = "LangGraph SqliteSaver"
_METADATA: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}

# A checkpoint, and how often each of its channels was written: made before the clock starts.
Prepared: TypeAlias = tuple[Checkpoint, dict[str, str | int | float]]


def prepare(state: State, step: int) -> Prepared:
    versions: dict[str, str | int | float] = dict.fromkeys(state, step + 1)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = state
    checkpoint["channel_versions"] = versions
    return checkpoint, versions


def prepare_all(states: Sequence[State]) -> list[Prepared]:
    return [prepare(state, step) for step, state in enumerate(states)]


def thread(thread_id: str = "talk") -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def put(saver: SqliteSaver, config: RunnableConfig, prepared: Prepared) -> RunnableConfig:
    checkpoint, versions = prepared
    return saver.put(config, checkpoint, _METADATA, versions)


async def aput(saver: AsyncSqliteSaver, config: RunnableConfig, prepared: Prepared) -> RunnableConfig:
    checkpoint, versions = prepared
    return await saver.aput(config, checkpoint, _METADATA, versions)


def put_all(path: Path, states: Sequence[State], thread_id: str = "talk") -> None:
    """Put each state in turn, each the child of the one before, and close the file."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        extend(saver, thread(thread_id), prepare_all(states))


def extend(saver: SqliteSaver, config: RunnableConfig, checkpoints: Iterable[Prepared]) -> RunnableConfig:
    for prepared in checkpoints:
        config = put(saver, config, prepared)
    return config
