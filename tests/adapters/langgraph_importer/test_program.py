"""A program on SqliteSaver is moved: its database is imported, one line is changed, and it continues."""

from __future__ import annotations

import enum

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from adapters.langgraph_importer.comparing import sqlite_saver
from adapters.langgraph_importer.graphs import on
from outlive.adapters.langgraph import OutliveSaver

TRIP = f"{__name__}.Trip"


class Mode(enum.Enum):
    TRAIN = "train"


class Leg(BaseModel):
    to: str
    mode: Mode = Mode.TRAIN


class Trip(BaseModel):
    legs: list[Leg] = []
    approved: bool | None = None


class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


@tool
def search(city: str) -> str:
    """Search for trains."""
    return f"a train to {city} at 10:40"


def plan(trip: Trip):
    return {"legs": [Leg(to="Lisbon")]}


def approve(trip: Trip):
    return {"approved": interrupt({"legs": trip.legs})}


def agent(saver):
    call = {"name": "search", "args": {"city": "Lisbon"}, "id": "c1"}
    replies = [AIMessage("", tool_calls=[call]), AIMessage("It leaves at 10:40.")]
    return create_agent(Model(messages=iter(replies)), [search], checkpointer=saver)


def trips(saver):
    return StateGraph(Trip).add_sequence([plan, approve]).add_edge(START, "plan").compile(checkpointer=saver)


def ask(graph, text):
    return graph.invoke({"messages": [HumanMessage(text)]}, on("chat"))["messages"]


def test_a_program_is_moved_by_one_command_and_one_line(program):
    with sqlite_saver(program.folder / "old.db") as saver:
        asked = trips(saver).invoke(Trip(), on("trip"))["__interrupt__"]
        assert ask(agent(saver), "When is a train?")[-1].content == "It leaves at 10:40."
    planned = program("import-langgraph", "old.db", "new.db", "--dry-run")
    assert f"--type {TRIP}" in planned.out
    moved = program("import-langgraph", "old.db", "new.db", "--type", TRIP)
    assert moved.code == 0, moved.err
    shown = program("show", "trip", "--store", "new.db").out.splitlines()
    assert shown[0] == "next nodes  approve"
    assert shown[1].startswith(f"interrupt   approve {asked[0].id}: ")

    with OutliveSaver(f"sqlite:///{program.folder}/new.db") as saver:  # the one line
        done = trips(saver).invoke(Command(resume=True), on("trip"))
        assert done == {"legs": [Leg(to="Lisbon")], "approved": True}
        messages = agent(saver).get_state(on("chat")).values["messages"]
        assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert program("show", "trip", "--store", "new.db").out.splitlines()[0] == "next nodes  none"
    assert "  tool search: a train to Lisbon at 10:40" in program("show", "chat", "--store", "new.db").out
