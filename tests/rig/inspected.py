"""A store with a conversation, a fork, a question, a failed run and hostile texts, and clients of its inspector."""

from __future__ import annotations

import contextlib
import re

from starlette.testclient import TestClient

import outlive
from outlive.inspector import app

HOSTILE = '<script>alert(1)</script>\u202e"><img src=x onerror=alert(2)>'


def talk(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def fill(store):
    thread = store.thread("trip-42")
    first = thread.save({"messages": talk("Plan a trip"), "notes": {"seen": (1, 2)}}, step=1)
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "function": {"name": "ferries", "arguments": '{"port": "north"}'}}],
    }
    result = {"role": "tool", "tool_call_id": "c1", "content": "a night ferry"}
    thread.save(
        {"messages": [*talk("Plan a trip"), call, result], "notes": {"seen": (1, 2), "ferry": "night"}},
        step=2,
    )
    thread.save(
        {"messages": talk("Plan a trip", "By train then"), "notes": {}}, parent=first.id, source="update"
    )
    thread.set_metadata({"user": "ada"})
    store.thread(HOSTILE).save({HOSTILE: HOSTILE, "messages": talk(HOSTILE)})
    store.thread("secrets").save({"api_key": "sk-very-secret", "user": {"email": "ada@example.org"}})
    with (
        contextlib.suppress(outlive.RunSuspended),
        store.run("refund", run_id="refund-7", agent="refunds") as run,
    ):
        run.step("look up the order", lambda: {"order": 7})
        run.ask("approve?", {"amount": 120}, schema={"type": "boolean"})
    with contextlib.suppress(ZeroDivisionError), store.run("sums", run_id="sum-1", agent="sums") as run:
        run.step("divide", lambda: 1 / 0)


def client_of(store, **options):
    return TestClient(app(store, **options), base_url="http://localhost:7788", follow_redirects=False)


def form_token(client):
    return re.search(r'name="form_token" value="([^"]+)"', client.get("/store").text)[1]


def act(client, name, /, **fields):
    """Send the form of an act."""
    headers = {"sec-fetch-site": "same-origin", "origin": "http://localhost:7788"}
    return client.post(f"/act/{name}", data={"form_token": form_token(client), **fields}, headers=headers)


def fill_trip(store):
    """Fill a store as an agent for journeys would, for pictures."""
    thread = store.thread("trip-42")
    messages = [
        {"role": "user", "content": "Plan a trip to the island, three days, by ferry if there is one."}
    ]
    thread.save({"messages": messages, "notes": {}}, step=1, source="input")
    call = {
        "id": "c1",
        "function": {"name": "search_ferries", "arguments": '{"port": "north", "day": "friday"}'},
    }
    messages = [
        *messages,
        {"role": "assistant", "content": "I look for ferries first.", "tool_calls": [call]},
    ]
    asked = thread.save({"messages": messages, "notes": {"port": "north"}}, step=2)
    result = {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "TP 1901, night ferry, 22:40 to 06:10, 120 EUR",
    }
    messages = [*messages, result]
    thread.save({"messages": messages, "notes": {"port": "north", "ferry": "TP 1901"}}, step=3)
    by_train = {"role": "assistant", "content": "There is no ferry on Friday. I would take the train."}
    thread.save(
        {"messages": [*messages[:2], by_train], "notes": {"port": "south"}}, parent=asked.id, source="update"
    )
    reply = {
        "role": "assistant",
        "content": "The night ferry TP 1901 leaves on Friday at 22:40 and costs 120 EUR. Shall I book it?",
    }
    notes = {"port": "north", "ferry": "TP 1901", "cost": 120, "cabin": ("inside", 2), "bookable": True}
    last = list(thread.history())[1]
    thread.save({"messages": [*messages, reply], "notes": notes}, parent=last.id, step=4)
    thread.set_metadata({"user": "ada", "title": "The island"})
    for number, user in ((41, "ada"), (40, "grace"), (39, "edsger")):
        store.thread(f"trip-{number}").save({"messages": talk("Where to?", "North.")})
        store.thread(f"trip-{number}").set_metadata({"user": user})
    with (
        contextlib.suppress(outlive.RunSuspended),
        store.run("refund", run_id="refund-7", agent="refunds") as run,
    ):
        run.step("look up the order", lambda: {"order": 7, "flight": "TP 1901"})
        run.step("check the tariff", lambda: "refundable until the day before")
        run.ask("approve?", {"amount": 120, "flight": "TP 1901"}, schema={"type": "boolean"})
    with (
        contextlib.suppress(ZeroDivisionError),
        store.run("trip-41", run_id="plan-881", agent="travel") as run,
    ):
        run.step("search ferries", lambda: ["TP 1901"])
        run.step("share the cost", lambda: 120 / 0)
    with store.run("trip-40", run_id="plan-880", agent="travel") as run:
        run.step("search ferries", lambda: ["TP 1900"])


def write_graph(store):
    """Let LangGraph write a conversation with a tool and an interrupt."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.types import interrupt

    from outlive.adapters.langgraph import OutliveSaver

    def plan(state):
        call = {"name": "search_ferries", "args": {"port": "north"}, "id": "c1"}
        return {"messages": [AIMessage("I look.", tool_calls=[call])]}

    def search(state):
        return {"messages": [ToolMessage("a night ferry", tool_call_id="c1")]}

    def book(state):
        return {"messages": [AIMessage(f"booked: {interrupt({'book?': 120})}")]}

    builder = StateGraph(MessagesState)
    for node in (plan, search, book):
        builder.add_node(node)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "search")
    builder.add_edge("search", "book")
    graph = builder.compile(checkpointer=OutliveSaver(store))
    graph.invoke({"messages": [HumanMessage("Plan a trip")]}, {"configurable": {"thread_id": "graph-1"}})
