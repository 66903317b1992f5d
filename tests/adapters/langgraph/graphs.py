"""Small graphs, and someone who drives them, in either io_mode, and tells what was seen."""

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Interrupt, StateSnapshot, interrupt


class Driver:
    """Calls graphs by their sync methods, or by their async ones when it has a loop.

    `is_inside`: by their sync methods, from code that runs on the loop.
    """

    def __init__(self, saver, loop=None, *, is_inside=False):
        self.saver = saver
        self._loop = loop
        self._is_inside = is_inside

    def compile(self, builder, **options):
        return builder.compile(checkpointer=self.saver, **options)

    def _call(self, graph, name, *arguments, **options):
        if self._loop is None:
            return getattr(graph, name)(*arguments, **options)
        if self._is_inside:
            return self._inside(lambda: getattr(graph, name)(*arguments, **options))
        return self._loop.run_until_complete(getattr(graph, f"a{name}")(*arguments, **options))

    def _each(self, graph, name, *arguments, **options):
        if self._loop is None:
            return list(getattr(graph, name)(*arguments, **options))
        if self._is_inside:
            return self._inside(lambda: list(getattr(graph, name)(*arguments, **options)))

        async def gather():
            return [item async for item in getattr(graph, f"a{name}")(*arguments, **options)]

        return self._loop.run_until_complete(gather())

    def _inside(self, call):
        async def on_loop():
            return call()

        return self._loop.run_until_complete(on_loop())

    def invoke(self, graph, input, config, **options):
        return plain(self._call(graph, "invoke", input, config, **options))

    def update(self, graph, config, values, **options):
        return self._call(graph, "update_state", config, values, **options)

    def state(self, graph, config, **options):
        return self._call(graph, "get_state", config, **options)

    def bulk_update(self, graph, config, supersteps):
        return self._call(graph, "bulk_update_state", config, supersteps)

    def history(self, graph, config, **options):
        return self._each(graph, "get_state_history", config, **options)

    def stream(self, graph, input, config, **options):
        return self._each(graph, "stream", input, config, **options)

    def seen(self, graph, config):
        """Return all that can be read of a thread, without the ids that are random."""
        return [
            shown(self.state(graph, config, subgraphs=True)),
            *[shown(found) for found in self.history(graph, config)],
        ]


def plain(value: Any) -> Any:
    """Return a value without what is random in it."""
    if isinstance(value, BaseMessage):
        return (type(value).__name__, plain({**value.model_dump(), "id": None}))
    if isinstance(value, Interrupt):
        return ("interrupt", plain(value.value))
    if isinstance(value, StateSnapshot):
        return shown(value)
    if isinstance(value, dict):
        found = {key: plain(item) for key, item in value.items()}
        if "__interrupt__" in found:  # of tasks that ran at once
            found["__interrupt__"].sort(key=repr)
        return found
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def shown(found: StateSnapshot) -> dict[str, Any]:
    tasks = [
        (task.name, str(task.error) if task.error else None, plain(task.interrupts), plain(task.result))
        + ((shown(task.state),) if isinstance(task.state, StateSnapshot) else ())
        for task in found.tasks
    ]
    metadata = {name: (found.metadata or {}).get(name) for name in ("source", "step", "tenant")}
    return {
        "values": plain(found.values),
        "next": sorted(found.next),
        "tasks": sorted(tasks, key=repr),
        "metadata": metadata,
        "has_parent": found.parent_config is not None,
    }


def thread(id="t", **more):
    return {"configurable": {"thread_id": id, **more}, "metadata": {"tenant": "acme"}}


# Graphs ------------------------------------------------------------------------------------------------------


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    answer: str


class Chat(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    turn: int


def says(name, **more):
    """Return a node that writes its name into the log."""

    def node(state):
        return {"log": [name], **more}

    return node


def asks(name):
    """Return a node that asks a person, and logs the answer."""

    def node(state):
        return {"log": [f"{name}={interrupt(f'{name}?')}"]}

    return node


def line(schema, *nodes, **named):
    """Return a graph whose nodes follow one another."""
    builder = StateGraph(schema)
    before = START
    for name, node in [*nodes, *named.items()]:
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    builder.add_edge(before, END)
    return builder


def fan(schema, first, last, **between):
    """Return a graph whose nodes between the first and the last run in parallel."""
    builder = StateGraph(schema)
    builder.add_node("first", first)
    builder.add_node("last", last)
    builder.add_edge(START, "first")
    for name, node in between.items():
        builder.add_node(name, node)
        builder.add_edge("first", name)
    builder.add_edge(list(between), "last")
    builder.add_edge("last", END)
    return builder


def join(value, writes):
    """The reducer of a DeltaChannel."""
    return [*value, *(item for write in writes for item in write)]


def delta_schema(frequency):
    class Deltas(TypedDict, total=False):
        log: Annotated[list[str], DeltaChannel(join, snapshot_frequency=frequency)]
        rare: Annotated[list[str], DeltaChannel(join, snapshot_frequency=frequency)]
        turn: int

    return Deltas


def delta_graph(driver, frequency=4):
    def work(state):
        turn = state.get("turn", 0) + 1
        return {"log": [f"work {turn}"], "turn": turn, **({"rare": [str(turn)]} if turn % 5 == 1 else {})}

    return driver.compile(line(delta_schema(frequency), work=work, more=lambda state: {"log": ["more"]}))


class Scripted(BaseChatModel):
    """A chat model that says what it was told to, depending on how many messages it has said before."""

    script: list[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        said = sum(isinstance(message, AIMessage) for message in messages)
        return ChatResult(
            generations=[ChatGeneration(message=self.script[said % len(self.script)].model_copy())]
        )


def calls(name, id, **arguments):
    """Return a message that calls a tool."""
    return AIMessage(
        content="", tool_calls=[{"name": name, "args": arguments, "id": id, "type": "tool_call"}]
    )
