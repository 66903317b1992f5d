"""What a LangGraph config names: a thread, a namespace, a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from outlive.arguments import check_id, check_namespace
from outlive.errors import BadArgument


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint of a thread and namespace; `id` None means the newest."""

    thread: str
    namespace: str = ""
    id: str | None = None

    @property
    def config(self) -> RunnableConfig:
        """The config that names this checkpoint."""
        return {
            "configurable": {
                "thread_id": self.thread,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": self.id,
            }
        }


def ref_of(config: RunnableConfig) -> CheckpointRef:
    """Return which checkpoint a config names."""
    configurable = configurable_of(config)
    if "thread_id" not in configurable:
        raise BadArgument('the config names no thread; give {"configurable": {"thread_id": "..."}}')
    namespace, id = configurable.get("checkpoint_ns"), configurable.get("checkpoint_id")
    return CheckpointRef(
        thread_of(configurable["thread_id"]),
        check_namespace("" if namespace is None else namespace),
        check_id("checkpoint_id", id) if id else None,
    )


def is_of_graph(config: RunnableConfig) -> bool:
    """Tell whether a graph that runs made this call: it continues meanwhile, and waits only when it ends."""
    return "__pregel_runtime" in configurable_of(config)


def checkpoint_of(config: RunnableConfig | None) -> str | None:
    """Return the id of the checkpoint that a config names, or None."""
    id = configurable_of(config).get("checkpoint_id") if config else None
    return check_id("checkpoint_id", id) if id else None


def thread_of(value: object) -> str:
    """Return a thread id; an int means its decimal digits, as in LangGraph's SQLite saver."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return check_id("thread_id", value)


def configurable_of(config: RunnableConfig | None) -> Mapping[str, Any]:
    """Return the configurable part of a config."""
    configurable = (config or {}).get("configurable", {})
    if type(configurable) is not dict and not isinstance(configurable, Mapping):
        raise BadArgument(f'config["configurable"] must be a mapping, not {configurable!r:.100}')
    return configurable
