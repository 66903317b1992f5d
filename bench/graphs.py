"""A graph as everybody writes it, and its life on two savers in turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from measure import Race, settled
from text import prose

HUMAN, AI = 200, 1_000  # characters of a turn
HISTORY = 50
_CONFIG: Any = {"configurable": {"thread_id": "talk"}}


class _State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def chat(saver: BaseCheckpointSaver[Any], seed: int = 7) -> Any:
    """Compile a graph of one node that answers; each seed gives the same answers in the same order."""
    rng = random.Random(seed)

    def answer(_: _State) -> dict[str, Any]:
        return {"messages": [AIMessage(prose(rng, AI))]}

    builder = StateGraph(_State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile(checkpointer=saver)
    graph.get_state({"configurable": {"thread_id": "warm-up"}})  # connects, and creates the tables
    return graph


def talk(
    ours: BaseCheckpointSaver[Any], theirs: BaseCheckpointSaver[Any], turns: int, laps: int, seed: int
) -> Race:
    """Let both savers keep the same conversation, turn by turn, then read it."""
    race = Race(seed)
    graphs = {"ours": chat(ours), "theirs": chat(theirs)}
    rng = random.Random(8)
    with settled():
        for _ in range(turns):
            prompt = prose(rng, HUMAN)
            race.lap(**{lane: _turn(graph, prompt) for lane, graph in graphs.items()})
        for _ in range(laps):
            race.lap(**{f"{lane} state": _state(graph) for lane, graph in graphs.items()})
        for _ in range(max(3, laps // 5)):
            race.lap(**{f"{lane} history": _history(graph) for lane, graph in graphs.items()})
    for lane, graph in graphs.items():
        assert len(graph.get_state(_CONFIG).values["messages"]) == 2 * turns, lane
    return race


def _turn(graph: Any, prompt: str) -> Callable[[], object]:
    return lambda: graph.invoke({"messages": [HumanMessage(prompt)]}, _CONFIG)


def _state(graph: Any) -> Callable[[], object]:
    return lambda: graph.get_state(_CONFIG)


def _history(graph: Any) -> Callable[[], object]:
    return lambda: list(graph.get_state_history(_CONFIG, limit=HISTORY))
