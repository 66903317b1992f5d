"""Graphs that leave everything in a database that LangGraph's savers can leave there."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt


@dataclasses.dataclass
class Ticket:
    """A class of the user's own."""

    number: int
    tags: set[str]


class Chat(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    turns: int
    note: str
    seen: Annotated[list, operator.add]


class Thought(TypedDict):
    note: str


def _answer(state):
    call = {"name": "look", "args": {"at": state.get("turns", 0)}, "id": f"c{state.get('turns', 0)}"}
    said = [
        AIMessage(f"answer {len(state['messages'])}", tool_calls=[call]),
        ToolMessage("seen", tool_call_id=call["id"]),
    ]
    return {"messages": said, "turns": state.get("turns", 0) + 1, "seen": [{"bytes": b"\0\xff", "half": 0.5}]}


def chat():
    """Return a graph with a subgraph and parallel branches."""
    inner = StateGraph(Chat, output_schema=Thought)
    inner.add_node("think", lambda state: {"note": f"thought {len(state['messages'])}"})
    inner.add_edge(START, "think")
    inner.add_edge("think", END)
    builder = StateGraph(Chat)
    builder.add_node("answer", _answer)
    builder.add_node("inner", inner.compile(checkpointer=True))
    builder.add_edge(START, "answer")
    builder.add_edge(START, "inner")
    builder.add_edge("answer", END)
    return builder


class Asked(TypedDict, total=False):
    answers: Annotated[list, operator.add]
    ticket: object


def _ask(state):
    return {"answers": [interrupt({"question": "first"}), interrupt({"question": "second"})]}


def asking():
    """Return a graph that asks two questions in one node, beside a branch that has finished."""
    builder = StateGraph(Asked)
    builder.add_node("ask", _ask)
    builder.add_node("beside", lambda state: {"answers": ["beside"]})
    builder.add_edge(START, "ask")
    builder.add_edge(START, "beside")
    return builder


class Many(TypedDict, total=False):
    items: Annotated[list, operator.add]


def sending():
    """Return a graph that fans out, and stops before the workers."""
    builder = StateGraph(Many)
    builder.add_node("plan", lambda state: {"items": ["plan"]})
    builder.add_node("work", lambda state: {"items": [f"work {state['n']}"]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"n": n}) for n in range(3)], ["work"])
    return builder


def _joined(value, updates):
    return [*(value or []), *(item for update in updates for item in update)]


class Delta(TypedDict, total=False):
    log: Annotated[list, DeltaChannel(_joined, snapshot_frequency=4)]


def delta():
    """Return a graph whose list is stored as writes."""
    builder = StateGraph(Delta)
    builder.add_node(
        "note", lambda state: {"log": [HumanMessage(f"note {len(state['log'])}", id=f"n{len(state['log'])}")]}
    )
    builder.add_edge(START, "note")
    return builder


def ticketing():
    """Return a graph whose state holds an object of the user's own class."""
    builder = StateGraph(Asked)
    builder.add_node("open", lambda state: {"ticket": Ticket(7, {"a", "b", "c"})})
    builder.add_edge(START, "open")
    return builder


def _steps(turns):
    """Give (builder, options of compile, input, thread) of each invocation."""
    for turn in range(turns):
        yield chat, {}, {"messages": [HumanMessage(f"turn {turn}", id=f"h{turn}")]}, "chat"
    yield asking, {}, {"answers": ["start"]}, "asked"
    yield asking, {}, {"answers": ["start"]}, "half"
    yield asking, {}, Command(resume="one"), "half"
    yield sending, {"interrupt_before": ["work"]}, {"items": []}, "sending"
    for turn in range(turns + 3):
        yield delta, {}, {"log": [f"in {turn}"]}, "delta"
    yield ticketing, {}, {"answers": []}, "ticket"


def on(thread):
    return {"configurable": {"thread_id": thread}}


def fill(saver, turns=3):
    """Run all graphs on a saver, and fork one of them."""
    for make, options, given, thread in _steps(turns):
        make().compile(checkpointer=saver, **options).invoke(
            given, {**on(thread), "metadata": {"who": "ada"}}
        )
    graph = chat().compile(checkpointer=saver)
    old = list(graph.get_state_history(on("chat")))[1]
    graph.update_state(old.config, {"note": "from here"}, as_node="answer")


async def fill_async(saver, turns=3):
    for make, options, given, thread in _steps(turns):
        await make().compile(checkpointer=saver, **options).ainvoke(given, on(thread))


THREADS = ("asked", "chat", "delta", "half", "sending", "ticket")
