"""LangGraph's savers, used as its runtime does: one checkpoint per state, a channel per key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from workloads import State

_METADATA: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}

Saver: TypeAlias = BaseCheckpointSaver[Any]
Versions: TypeAlias = dict[str, str | int | float]
# A checkpoint, and the versions of those channels that it wrote: made before the clock starts.
Prepared: TypeAlias = tuple[Checkpoint, Versions]


def prepare(state: State, step: int, before: Prepared | None = None) -> Prepared:
    """A channel that holds the same as before keeps its version: the savers need not store it again."""
    old = empty_checkpoint() if before is None else before[0]
    version = f"{step + 1:032}.{0:016}"
    held = old["channel_values"]
    written: Versions = {
        name: version for name, value in state.items() if name not in held or held[name] != value
    }
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = state
    checkpoint["channel_versions"] = {**old["channel_versions"], **written}
    return checkpoint, written


def prepare_all(states: Sequence[State]) -> list[Prepared]:
    made: list[Prepared] = []
    for step, state in enumerate(states):
        made.append(prepare(state, step, made[-1] if made else None))
    return made


def thread(thread_id: str = "talk") -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def put(saver: Saver, config: RunnableConfig, prepared: Prepared) -> RunnableConfig:
    checkpoint, versions = prepared
    return saver.put(config, checkpoint, _METADATA, versions)


async def aput(saver: Saver, config: RunnableConfig, prepared: Prepared) -> RunnableConfig:
    checkpoint, versions = prepared
    return await saver.aput(config, checkpoint, _METADATA, versions)


class PutLane:
    """A lane of a race: put each state as the child of the one before."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver
        self._config = thread()
        self._prepared: Prepared | None = None
        put(saver, thread("warm-up"), prepare({"step": 0}, 0))  # connects, and creates the tables

    def __call__(self, state: State, step: int) -> Callable[[], None]:
        self._prepared = prepare(state, step, self._prepared)
        return partial(self._put, self._prepared)

    def _put(self, prepared: Prepared) -> None:
        self._config = put(self._saver, self._config, prepared)

    def expect(self, state: State) -> None:
        if state_of(self._saver, thread()) != state:
            raise AssertionError("the peer's newest state is another state")


def put_all(path: Path, states: Sequence[State], thread_id: str = "talk") -> None:
    """Put each state in turn, each the child of the one before, and close the file."""
    with sqlite(path) as saver:
        extend(saver, thread(thread_id), prepare_all(states))


def extend(saver: Saver, config: RunnableConfig, checkpoints: Iterable[Prepared]) -> RunnableConfig:
    for prepared in checkpoints:
        config = put(saver, config, prepared)
    return config


def state_of(saver: Saver, config: RunnableConfig) -> State | None:
    found = saver.get_tuple(config)
    return None if found is None else found.checkpoint["channel_values"]


# Opening, as its documentation shows ------------------------------------------------------------------------


@contextmanager
def sqlite(path: Path, synchronous: str = "full") -> Iterator[SqliteSaver]:
    """As shipped; its documentation recommends no setting. FULL is what SQLite does when it is not told otherwise."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.conn.execute(f"pragma synchronous={synchronous}")
        yield saver


@contextmanager
def postgres(url: str) -> Iterator[PostgresSaver]:
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def async_sqlite(path: Path, synchronous: str = "full") -> AsyncIterator[AsyncSqliteSaver]:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await saver.conn.execute(f"pragma synchronous={synchronous}")
        yield saver


@asynccontextmanager
async def async_postgres(url: str, pool_size: int) -> AsyncIterator[AsyncPostgresSaver]:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool = AsyncConnectionPool(url, min_size=pool_size, max_size=pool_size, kwargs=options, open=False)
    async with pool:
        await pool.wait()
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver
