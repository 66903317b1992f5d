"""What the command line shows of LangGraph's threads: what the graph holds, as LangGraph itself would tell it."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os
import re
from dataclasses import dataclass
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel, PrivateAttr

import outlive
from outlive.adapters.langgraph import OutliveSaver, state
from outlive.adapters.langgraph import run_graph as run_as_run
from outlive.adapters.langgraph.values import codec, messages
from outlive.adapters.langgraph.values.serializer import StrictSerializer
from outlive.cli.stores import open_store
from outlive.format.extensions import Opaque, Raw
from outlive.view import graph as graph_layout
from outlive.view import messages as message_lines
from outlive.view import opaque
from outlive.view.graph import read_graph
from rig.program import fresh


@dataclass
class Plan:
    days: int


class Hotel(BaseModel):
    name: str
    nights: int = 2
    _room: int = PrivateAttr(7)


class Trip(TypedDict, total=False):
    hotel: Hotel
    messages: Annotated[list[AnyMessage], add_messages]
    plan: Plan
    booked: bool


class Found(TypedDict, total=False):
    items: Annotated[list[str], operator.add]
    n: int


CONFIG = {"configurable": {"thread_id": "trip"}}
PLAN = f"{Plan.__module__}:Plan"
CALL = {"name": "search", "args": {"city": "Lisbon", "limit": 3}, "id": "c1"}


def travel():
    def think(state):
        return {"messages": [AIMessage("Let me look.", id="m2", tool_calls=[CALL])], "plan": Plan(3)}

    def search(state):
        return {
            "messages": [ToolMessage("sunny", id="m3", name="search", tool_call_id="c1", artifact=Plan(4))]
        }

    def approve(state):
        return {"booked": interrupt({"eur": 40})}

    builder = StateGraph(Trip).add_node(think).add_node(search).add_node(approve)
    return builder.add_edge(START, "think").add_edge("think", "search").add_edge("search", "approve")


QUESTION = {"messages": [HumanMessage("Lisbon, please", id="m1")]}


@pytest.fixture
def trip(program):
    """The program, in a folder with a store in which a graph waits for an answer."""
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        travel().compile(checkpointer=saver).invoke(QUESTION, CONFIG)
    return program


def shown(program, *arguments):
    ended = program(*arguments)
    assert ended.code == 0, ended.err
    return ended.out.splitlines()


def item(program, *arguments):
    return json.loads(program(*arguments, "--json").out)["items"][0]


# show


def test_a_graph_is_shown_as_what_comes_next_what_it_asks_and_what_it_holds(trip):
    lines = shown(trip, "show", "trip")
    assert lines[0] == "next nodes  approve"
    assert lines[1].startswith("interrupt   approve ")
    assert lines[1].endswith(': {"eur": 40}')
    assert lines[-7:] == [
        "messages: 3 messages",
        "  human: Lisbon, please",
        "  ai: Let me look.",
        '    → search(city="Lisbon", limit=3)',
        "  tool search: sunny",
        f'    artifact: {PLAN}/1 {{"days": 4}}',
        f'plan: {PLAN}/1 {{"days": 3}}',
    ]
    bookkeeping = ("channel_versions", "versions_seen", "branch:to", "__pregel", "parent", "writes")
    assert not any(word in line for line in lines for word in bookkeeping)


def test_raw_shows_what_is_stored(trip):
    text = "\n".join(shown(trip, "show", "trip", "--raw"))
    assert all(word in text for word in ("channel_versions", "versions_seen", "channel_values", "parent"))
    raw = item(trip, "show", "trip", "--raw")
    assert raw["state"]["langgraph"] == 1
    assert [write["channel"] for write in raw["writes"]] == ["__interrupt__"]
    assert any(line.startswith("~ ts") for line in shown(trip, "diff", "trip", "--raw"))
    assert "NEXT" not in shown(trip, "history", "trip", "--raw")[0]


def test_json_has_values_next_nodes_and_interrupts(trip):
    head = item(trip, "show", "trip")
    assert head["next_nodes"] == ["approve"]
    assert [(asked["node"], asked["payload"]) for asked in head["interrupts"]] == [("approve", {"eur": 40})]
    assert head["open_interrupts"] == [head["interrupts"][0]["id"]]
    assert [message["content"] for message in head["values"]["messages"]] == [
        "Lisbon, please", "Let me look.", "sunny",
    ]  # fmt: skip
    assert head["values"]["plan"] == {"$type": PLAN, "version": 1, "value": {"days": 3}}
    assert not {"state", "writes"} & head.keys()


def test_paths_and_parts_are_those_of_the_channels(trip):
    assert shown(trip, "show", "trip", "--path", "messages[0].content") == ["Lisbon, please"]
    assert shown(trip, "show", "trip", "--path", "messages")[0] == "human: Lisbon, please"
    assert shown(trip, "show", "trip", "--path", "plan.days") == ["3"]
    assert {line.split()[0] for line in shown(trip, "show", "trip", "--parts")} == {
        "PATH",
        "messages",
        "plan",
    }
    assert "it has 'messages', 'plan'" in trip("show", "trip", "--path", "cities").err


def test_a_model_is_shown_by_its_fields(program):
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        graph = StateGraph(Trip).add_node("note", lambda state: {}).add_edge(START, "note")
        graph.compile(checkpointer=saver).invoke({"hotel": Hotel(name="Sol")}, CONFIG)
    assert shown(program, "show", "trip", "--path", "hotel.nights") == ["2"]
    expected = f'hotel: {Plan.__module__}:Hotel/1 {{"name": "Sol", "nights": 2, "_room": 7}}'
    assert shown(program, "show", "trip")[-1] == expected


def test_the_first_checkpoint_shows_the_input(trip):
    assert shown(trip, "show", "trip", "@1")[-3:] == [
        "input:", "  messages: 1 message", "    human: Lisbon, please",
    ]  # fmt: skip


def test_long_conversations_and_texts_are_shortened_unless_full(program):
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        graph = StateGraph(Trip).add_node("note", lambda state: {}).add_edge(START, "note")
        texts = [HumanMessage(f"number {number}") for number in range(49)]
        graph.compile(checkpointer=saver).invoke({"messages": [*texts, AIMessage("word\n" * 500)]}, CONFIG)
    lines = shown(program, "show", "trip")
    assert "  … 30 earlier; --full shows all" in lines
    assert "  human: number 30" in lines
    assert "  human: number 29" not in lines
    assert any(line.endswith("… (2,500 characters)") for line in lines)
    assert len(lines) < 60
    full = shown(program, "show", "trip", "--full")
    assert "  human: number 0" in full
    assert full.count("    word") == 499


def test_text_of_a_message_cannot_control_a_terminal(program):
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        graph = StateGraph(Trip).add_node("note", lambda state: {}).add_edge(START, "note")
        evil = AIMessage(
            "\x1b[2J\u202e", name="\x1b]0;", tool_calls=[{"name": "\x1b[2J", "args": {"\x1b": 1}, "id": "1"}]
        )
        graph.compile(checkpointer=saver).invoke({"messages": [evil]}, CONFIG)
    for command in ("show", "diff", "history"):
        assert not any("\x1b" in line or "\u202e" in line for line in shown(program, command, "trip"))
    assert r"  ai \x1b]0;: \x1b[2J\u202e" in shown(program, "show", "trip")


# diff and history


def test_diff_goes_channel_by_channel_and_message_by_message(trip):
    url = f"sqlite:///{trip.folder}/agent.db"
    assert shown(trip, "diff", "trip", "@2", "@4") == [
        "from trip @2 (step 0) to trip @4 (step 2): 3 changes",
        '+ messages[1]: ai: Let me look. → search(city="Lisbon", limit=3)',
        "+ messages[2]: tool search: sunny",
        f'+ plan: {PLAN}/1 {{"days": 3}}',
        "next nodes: think → approve",
    ]
    with OutliveSaver(url) as saver:
        graph = travel().compile(checkpointer=saver)
        changed = [RemoveMessage(id="m1"), AIMessage("I looked.", id="m2")]
        graph.update_state(CONFIG, {"messages": changed}, as_node="search")
    assert shown(trip, "diff", "trip")[1:4] == [
        "- messages[0]: human: Lisbon, please",
        '~ messages[0].content: "Let me look." → "I looked."',
        "- messages[0].tool_calls[0]: " + '{"name": "search", "args": {"city": "Lisbon", "limit": 3}, "id": "c1",…',
    ]  # fmt: skip
    paths = [change["path"] for change in json.loads(trip("diff", "trip", "--json").out)["items"]]
    assert paths == ["messages[0]", "messages[0].content", "messages[0].tool_calls[0]"]
    assert trip("diff", "trip", "--exit-code").code == 1


def test_history_has_a_line_for_each_step_of_the_graph(trip):
    header, *lines = (line.split() for line in shown(trip, "history", "trip"))
    assert header[:6] == ["SEQ", "STEP", "SOURCE", "NEXT", "MESSAGES", "CHANGED"]
    assert [line[1:6] if line[4] != "__start__" else line[1:5] for line in lines] == [
        ["@4", "2", "loop", "approve", "3"],
        ["@3", "1", "loop", "search", "2"],
        ["@2", "0", "loop", "think", "1"],
        ["@1", "-1", "input", "__start__"],
    ]
    assert lines[1][6:8] == ["messages,", "plan"]
    newest = item(trip, "history", "trip")
    assert (newest["next_nodes"], newest["messages"], newest["changed_channels"]) == (
        ["approve"],
        3,
        ["messages"],
    )


def test_a_page_of_history_and_its_filters_are_as_for_any_thread(trip):
    page = json.loads(trip("history", "trip", "--limit", 2, "--json").out)
    assert [(step["seq"], step["messages"]) for step in page["items"]] == [(4, 3), (3, 2)]
    rest = json.loads(trip("history", "trip", "--before", page["next"], "--json").out)
    assert [(step["seq"], step["messages"]) for step in rest["items"]] == [(2, 1), (1, None)]


# Next nodes and interrupts, beside LangGraph's own


def fan_out():
    def split(state):
        return Command(goto=[Send("work", {"n": number}) for number in range(3)])

    def work(state):
        return {"items": [interrupt(state["n"]) if state["n"] == 1 else "done"]}

    return StateGraph(Found).add_node(split, destinations=("work",)).add_node(work).add_edge(START, "split")


def joined():
    builder = StateGraph(Found)
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda state: {"items": ["x"]})
    builder.add_node("late", lambda state: {"n": interrupt("late?")}, defer=True)
    builder.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge(["a", "c"], "late")
    return builder.add_edge("a", "late").add_edge("late", END)


def nested():
    inner = StateGraph(Found).add_node("ask", lambda state: {"items": [interrupt("inner?")]})
    inner.add_node("first", lambda state: {"n": 1}).add_edge(START, "first").add_edge("first", "ask")
    builder = (
        StateGraph(Found)
        .add_node("inner", inner.compile())
        .add_node("beside", lambda state: {"items": ["y"]})
    )
    return builder.add_edge(START, "inner").add_edge(START, "beside")


def failing():
    def fail(state):
        raise ValueError("no seats")

    return (
        StateGraph(Found)
        .add_node("a", lambda state: {"n": 1})
        .add_node(fail)
        .add_edge(START, "a")
        .add_edge("a", "fail")
    )


@task
def double(number):
    return number * 2


def functional(saver):
    @entrypoint(checkpointer=saver)
    def agent(number, *, previous=None):
        return [double(number).result(), interrupt("more?")]

    return agent


BUILDERS = {"travel": travel, "fan_out": fan_out, "joined": joined, "nested": nested, "failing": failing}


def run_graph(name, saver):
    graph = functional(saver) if name == "functional" else BUILDERS[name]().compile(checkpointer=saver)
    inputs = {"travel": QUESTION, "functional": 4}
    with contextlib.nullcontext() if name != "failing" else pytest.raises(ValueError, match="no seats"):
        graph.invoke(inputs.get(name, {"n": 0}), CONFIG)
    return graph


def stored(saver_url, namespace=""):
    """Return the checkpoints as the program reads them: without any class."""
    with open_store(saver_url, {}) as store:
        thread = store.thread("trip", namespace=namespace)
        return [thread.checkpoint(info.id) for info in thread.history()]


@pytest.mark.parametrize("name", [*BUILDERS, "functional"])
def test_next_nodes_and_interrupts_are_those_of_langgraph(name, tmp_path):
    url = f"sqlite:///{tmp_path}/agent.db"
    with OutliveSaver(url) as saver:
        graph = run_graph(name, saver)
        head, history = graph.get_state(CONFIG), list(graph.get_state_history(CONFIG))
        checkpoints = stored(url)
        states = [read_graph(checkpoint.state) for checkpoint in checkpoints]
        if name != "functional":  # before its first step, only its writes name the entrypoint
            assert [sorted(state.next_nodes()) for state in states] == [sorted(step.next) for step in history]
        writes = checkpoints[0].pending_writes
        assert sorted(states[0].next_nodes(writes)) == sorted(head.next)
        expected = {(task.name, asked.id) for task in head.tasks for asked in task.interrupts}
        assert {(asked.node, asked.id) for asked in states[0].interrupts(writes)} == expected
        assert bool(expected) == (name != "failing")
        errors = [node for node, _ in states[0].errors(writes)]
        assert errors == (["fail"] if name == "failing" else [])
        if name not in ("functional", "failing"):
            graph.invoke(Command(resume=True), CONFIG)
            end = stored(url)[0]
            assert read_graph(end.state).next_nodes(end.pending_writes) == []
            assert read_graph(end.state).interrupts(end.pending_writes) == []


def test_a_subgraph_is_shown_by_the_beginning_of_its_namespace(program):
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        run_graph("nested", saver)
    lines = shown(program, "show", "trip", "--namespace", "inner")
    assert lines[0] == "next nodes  ask"
    assert lines[1].endswith(': "inner?"')
    assert lines[-1] == "n: 1"
    everything = shown(program, "history", "trip", "--all-namespaces")
    # The lines of the tree before it depend on which task was faster.
    assert {"ask", "first", "inner,"} <= {word for line in everything[1:] for word in line.split()}
    assert "no namespace 'outer'" in program("show", "trip", "--namespace", "outer").err


def test_several_tasks_of_a_node_are_counted_and_errors_are_shown(program):
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        run_graph("fan_out", saver)
    assert shown(program, "show", "trip")[0] == "next nodes  work"
    assert any("work ×3" in line for line in shown(program, "history", "trip"))
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        saver.delete_thread("trip")
        run_graph("failing", saver)
    assert shown(program, "show", "trip")[1].startswith("error       fail: ")
    assert "no seats" in shown(program, "show", "trip")[1]


def test_what_an_encrypting_serializer_wrote_is_shown_as_far_as_it_can_be_read(program):
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db", serde=Sealing([Plan])) as saver:
        travel().compile(checkpointer=saver).invoke(QUESTION, CONFIG)
    lines = shown(program, "show", "trip")
    assert lines[0] == "next nodes  approve"
    assert lines[1].startswith("interrupt   approve: sealed by its serializer (")
    assert lines[-2].startswith("messages: sealed by its serializer (")
    assert shown(program, "diff", "trip")[1].startswith("~ messages: sealed by its serializer (")
    assert "Lisbon" not in program("show", "trip", "--raw", "--json").out


class Sealing(StrictSerializer):
    """A serializer that decides alone what its bytes look like."""

    def dumps_typed(self, obj):
        kind, data = super().dumps_typed(obj)
        return f"{kind}+turned", data[::-1] + os.urandom(4)

    def loads_typed(self, data):
        return super().loads_typed((data[0].removesuffix("+turned"), data[1][:-4][::-1]))


def joined_lists(value, updates):
    return [*(value or []), *(item for update in updates for item in update)]


def test_a_delta_channel_is_shown_where_it_is_stored_whole_and_named_elsewhere(program):
    delta = pytest.importorskip("langgraph.channels.delta", reason="langgraph 1.1.10 has no DeltaChannel")
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        log = Annotated[list, delta.DeltaChannel(joined_lists, snapshot_frequency=4)]
        graph = StateGraph(TypedDict("Log", {"log": log})).add_node(
            "note", lambda state: {"log": [HumanMessage("noted")]}
        )
        graph = graph.add_edge(START, "note").compile(checkpointer=saver)
        for _ in range(2):
            graph.invoke({"log": [HumanMessage("in")]}, CONFIG)
    lines = {seq: shown(program, "show", "trip", f"@{seq}")[-1] for seq in range(2, 7)}
    absent = "log: (a DeltaChannel: its value is in the writes since an older checkpoint)"
    assert [line for line in lines.values() if line != absent] == ["  human: noted"]
    assert len([line for line in lines.values() if line == absent]) == 4
    assert shown(program, "diff", "trip", "@2", "@3")[1].startswith("~ log: (a DeltaChannel: ")
    assert program("diff", "trip", "@2", "@3", "--exit-code").code == 1


# Recognising a graph


def test_a_graph_is_shown_without_langgraph_or_langchain(trip):
    for command in ("show", "diff", "history"):
        ended = fresh(command, "trip", "--store", "agent.db", python=("-X", "importtime"), folder=trip.folder)
        assert ended.code == 0, ended.err
        modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in ended.err.splitlines()}
        assert not modules & {"langgraph", "langchain_core", "pydantic", "test_graphs"}


def test_the_program_knows_the_layout_that_the_saver_writes():
    """It reads it without importing the saver, which needs LangGraph."""
    assert graph_layout._LAYOUT == state.SHAPE
    assert (opaque._TYPED, opaque.SEALED) == (codec.TYPED, codec.SEALED)
    assert (message_lines._LIST, {f"{message_lines._LIST}.ai"} <= messages.TAGS) == (messages.TAG, True)


PLAIN = [
    {"langgraph": 1},
    {"langgraph": True, "channel_values": {}, "channel_versions": {}},
    {"langgraph": 2, "channel_values": {}, "channel_versions": {}},
    {"langgraph": 1, "channel_values": {}},
    {"langgraph": 1, "channel_values": {1: 2}, "channel_versions": {}},
    {"langgraph": 1, "channel_values": {}, "rest": b"x"},
    ["langgraph", 1],
]


@pytest.mark.parametrize("state", PLAIN)
def test_any_other_state_is_shown_as_it_is(program, state):
    assert read_graph(state) is None
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        store.thread("t").save(state)
        store.thread("t").save([state])
    for command in (["show", "t"], ["show", "t", "@1"], ["diff", "t"], ["history", "t"]):
        assert ageless(shown(program, *command)) == ageless(shown(program, *command, "--raw"))


def ageless(lines):
    """Return lines without what changes with time."""
    return [re.sub(r"(just now|\d+ (s|min) ago)|\s+", " ", line).split() for line in lines]


HOSTILE = {
    "messages": Opaque("langchain.messages", 1, [{"type": "human"}]),
    "more": Opaque("langchain.messages", 1, {"type": "human", "content": "x"}),
    "odd": Opaque(
        "langchain.messages", 1, [{"type": "ai", "content": [1, None, {"type": 5}], "tool_calls": [3, {}]}]
    ),
    "deep": Opaque("langchain.messages", 1, [[{"type": "ai", "content": {}}, 7]]),
    "class": Opaque("os:system", 1, "touch evil"),
    "deeper": functools.reduce(lambda inner, _: [inner], range(60), "x"),
    "model": Opaque("m:M", 1, {"fields": 5, "set": [], "extra": None}),
    "typed": Raw(56, b"\x92\xa7msgpack\xc4\x01\xc1"),
    "untyped": Raw(56, b"\x01"),
    "raw": Raw(48, b"\x93\xa2os\xa6system\xa4evil"),
    "__pregel_tasks": [Opaque("langgraph.Send", 1, {"node": 5}), 3, Opaque("langgraph.Send", 1, [])],
    "join:a+b:c": 5,
    "branch:to:x": [1, False],
    "branch:to:\x1b": None,
    "__start__": None,
}


def test_a_hostile_state_is_only_shown(program):
    state = {
        "langgraph": 1, "channel_values": HOSTILE, "updated_channels": [1, "messages", None],
        "channel_versions": {"branch:to:x": [], "__start__": 3}, "versions_seen": {"x": 5, "y": {"odd": "1"}, 3: {}},
    }  # fmt: skip
    url = f"sqlite:///{program.folder}/agent.db"
    with open_store(url, {}, create=True) as store:
        thread = store.thread("t")
        thread.save(state)
        thread.write(
            "task", [("__interrupt__", [Opaque("langgraph.Interrupt", 1, {"id": 5})]), ("__error__", 7)]
        )
        thread.save({**state, "channel_values": {}})
    for command in (
        ["show", "t"],
        ["show", "t", "@1"],
        ["diff", "t"],
        ["history", "t"],
        ["show", "t", "@1", "--full"],
    ):
        lines = shown(program, *command)
        assert not any("\x1b" in line for line in lines)
        json.loads(program(*command, "--json").out)
    assert "odd: 1 message" in shown(program, "show", "t", "@1")
    assert not os.path.exists(program.folder / "evil")


def test_a_damaged_state_leaves_the_list(trip):
    import apsw

    db = apsw.Connection(str(trip.folder / "agent.db"))
    db.execute("update chunk set data = zeroblob(20)")
    db.close()
    assert len(shown(trip, "history", "trip")) == 5
    assert trip("show", "trip").code == 3


class Shouted(HumanMessage):
    volume: int = 11


def test_messages_are_read_in_every_form_in_which_they_are_stored(program):
    messages = [HumanMessage("a"), AIMessage("b", made_up=1), Shouted("c", name="ada"), AIMessageChunk("d")]
    messages.append(AIMessage([{"type": "text", "text": "e"}, {"type": "image", "base64": "x"}]))
    with OutliveSaver(f"sqlite:///{program.folder}/agent.db") as saver:
        graph = StateGraph(Trip).add_node("note", lambda state: {}).add_edge(START, "note")
        graph.compile(checkpointer=saver).invoke({"messages": messages}, CONFIG)
    expected = ["human: a", "ai: b", "human ada: c", "ai: d", "ai: e", "  [image]"]
    assert shown(program, "show", "trip", "--path", "messages") == expected


def test_the_input_and_the_answers_of_a_run_are_shown_without_their_classes(program):
    graph = StateGraph(Trip).add_node("ask", lambda state: {"plan": interrupt("?")})
    graph = graph.add_edge(START, "ask").compile(name="desk")
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        run_as_run(graph, {"plan": Plan(5)}, thread_id="trip", store=store, run_id="r")
        assert run_as_run(graph, Command(resume=Plan(7)), thread_id="trip", store=store)["plan"] == Plan(7)
        prompt = store.find_run("r").prompt
    assert prompt[:2] == opaque._PACKED
    assert opaque.read_packed([*prompt[:2], b"\xc1"]) == [*prompt[:2], b"\xc1"]
    details = program("runs", "show", "r").out
    assert re.search(rf'^prompt +{{"plan": {PLAN}/1 {{"days": 5}}}}$', details, re.MULTILINE)
    (question,) = json.loads(program("questions", "--status", "all", "--json").out)["items"]
    assert question["value"]["value"] == {"days": 7}
