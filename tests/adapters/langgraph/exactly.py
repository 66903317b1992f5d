"""What two savers must agree on: values with their exact types, without the ids and times that are random."""

import copy
import dataclasses
import itertools
import re
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Interrupt, StateSnapshot
from pydantic import BaseModel

from adapters.langgraph.graphs import Driver

_RANDOM = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # of a checkpoint, task or message
    r"|\b[0-9a-f]{32}\b"  # of an interrupt
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00"
)
_IN_ANY_ORDER = ("interrupts", "next", "tasks", "__interrupt__")  # of tasks that run at once


def exact(value: Any) -> Any:
    """Return a value in a form that differs when its type or anything in it does."""
    if isinstance(value, str) and type(value) is str:
        return _RANDOM.sub("<random>", value)
    if isinstance(value, StateSnapshot):
        return _snapshot(value)
    if isinstance(value, Interrupt):
        return ("Interrupt", exact(value.value), exact(getattr(value, "response_schema", None)))
    if isinstance(value, BaseMessage):
        # LangGraph gives a message its id while the write that contains it may be being stored.
        fields = {**value.__dict__, "id": value.id or "<random>"}
        return (type(value), exact(fields), exact(value.__pydantic_extra__))
    if isinstance(value, BaseModel):
        return (type(value), exact(value.__dict__), exact(value.__pydantic_extra__))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value), [exact(getattr(value, field.name)) for field in dataclasses.fields(value)])
    if isinstance(value, dict):
        return (type(value), {exact(key): _item(key, item) for key, item in value.items()})
    if isinstance(value, list | tuple | set | frozenset):
        items = [exact(item) for item in value]
        return (type(value), sorted(items, key=repr) if isinstance(value, set | frozenset) else items)
    if isinstance(value, BaseException):
        return repr(value)
    if hasattr(value, "tobytes"):  # of numpy
        return (type(value), str(value.dtype), value.shape, value.tobytes())
    return (type(value), value)


def _item(key: Any, value: Any) -> Any:
    if key in _IN_ANY_ORDER and isinstance(value, list | tuple):
        return sorted((exact(item) for item in value), key=repr)
    return exact(value)


def _snapshot(state: StateSnapshot) -> Any:
    metadata = {name: value for name, value in (state.metadata or {}).items() if name != "parents"}
    return {
        "values": exact(state.values),
        "next": sorted(state.next),
        "tasks": sorted((_task(task) for task in state.tasks), key=repr),
        "interrupts": sorted((exact(question) for question in state.interrupts), key=repr),
        "metadata": exact(metadata),
        "parents": sorted((state.metadata or {}).get("parents", {})),
        "has_parent": state.parent_config is not None,
    }


def _task(task: Any) -> Any:
    # The error of a task is an exception in the process that ran it, and text for all others.
    error = None if task.error is None else str(task.error)
    inside = exact(task.state) if isinstance(task.state, StateSnapshot) else None
    return [task.name, error, exact(task.interrupts), exact(task.result), inside]


class Copies:
    """A serializer that changes nothing: LangGraph's own makes a list of a tuple, and a dict of some objects."""

    def __init__(self) -> None:
        self._values: dict[bytes, Any] = {}
        self._numbers = itertools.count()  # LangGraph saves from several threads

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        """Keep a copy, and return its number."""
        number = str(next(self._numbers)).encode()
        self._values[number] = repr(value) if isinstance(value, BaseException) else copy.deepcopy(value)
        return "copy", number

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return a copy of what was kept."""
        return copy.deepcopy(self._values[data[1]])


def exact_memory() -> InMemorySaver:
    """Return the saver that every other is compared with."""
    return InMemorySaver(serde=Copies())


class ExactDriver(Driver):
    """A driver that tells types apart, and all metadata."""

    def invoke(self, graph: Any, input: Any, config: Any, **options: Any) -> Any:
        """Return the output of an invocation."""
        return exact(self._call(graph, "invoke", input, config, **options))

    def stream(self, graph: Any, input: Any, config: Any, **options: Any) -> Any:
        """Return the chunks of a stream."""
        return exact(super().stream(graph, input, config, **options))

    def seen(self, graph: Any, config: Any) -> Any:
        """Return all that can be read of a thread: its state with the subgraphs in it, and its history."""
        return exact([self.state(graph, config, subgraphs=True), *self.history(graph, config)])
