"""What cannot be stored is refused in one sentence: where it is, what to do, and which node wrote it."""

import asyncio
import operator
import re
import sys
import threading
import traceback
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import outlive
from adapters.langgraph.graphs import Scripted, calls, line, thread
from outlive.adapters.langgraph import OutliveSaver, run_graph
from outlive.errors import Unencodable

LOCK = threading.Lock()
KEEP_OUT = "keep it out of the state"
TASK = r"task '[0-9a-f-]{36}'"


class State(TypedDict, total=False):
    x: Any
    log: Annotated[list[Any], operator.add]


def writes(value):
    return line(State, think=lambda state: {"x": {"deep": [value]}}, after=lambda state: {})


def refused(call):
    """Return the sentence with which a call is refused."""
    with pytest.raises(Unencodable) as info:
        call()
    text = "".join(traceback.format_exception(info.value))
    assert "During handling" not in text
    assert "direct cause" not in text
    assert "\n" not in str(info.value)
    return str(info.value)


def check(sentence, path, *patterns):
    """Check that a sentence names a path, and then has what patterns describe, in their order."""
    assert sentence.startswith(f"{path}: ")
    assert re.search(".*".join(patterns), sentence), sentence


@pytest.fixture
def saver():
    with OutliveSaver("memory:") as made:
        yield made


itself: list[Any] = []
itself.append(itself)
LIVE = {
    "lambda": (lambda: 1, f"function is code, not data: {KEEP_OUT}"),
    "class": (State, f"is code, not data: {KEEP_OUT}"),
    "generator": ((number for number in range(3)), f"generator is not data: {KEEP_OUT}"),
    "lock": (LOCK, rf"_thread\.lock is not data: {KEEP_OUT}"),
    "thread": (threading.current_thread(), f"Thread is not data: {KEEP_OUT}"),
    "file": (sys.__stdout__, f"TextIOWrapper is not data: {KEEP_OUT}"),
    "module": (sys, f"module is not data: {KEEP_OUT}"),
    "object": (object(), r"object is no data class .* outlive\.register\("),
    "itself": (itself, r"inside itself: it is the same object as x\.deep\[0\]"),
}


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_node_that_writes_what_is_no_data_is_named(saver, name, mode):
    value, reason = LIVE[name]
    graph = writes(value).compile(checkpointer=saver)
    if mode == "sync":
        sentence = refused(lambda: graph.invoke({"log": []}, thread()))
    else:
        sentence = refused(lambda: asyncio.run(graph.ainvoke({"log": []}, thread())))
    check(
        sentence,
        "x.deep[0][0]" if value is itself else "x.deep[0]",
        reason,
        "node 'think', ",
        TASK,
        "channel 'x'",
    )


@pytest.mark.parametrize("how", ["sync", "exit", "run"])
def test_the_node_is_named_when_the_checkpoint_is_refused(saver, how):
    """LangGraph reports the checkpoint then, and not the write before it."""
    if how == "run":
        with outlive.open("memory:") as store:
            graph = writes(LOCK).compile()
            sentence = refused(lambda: run_graph(graph, {"log": []}, thread_id="t", store=store))
    else:
        graph = writes(LOCK).compile(checkpointer=saver)
        sentence = refused(lambda: graph.invoke({"log": []}, thread(), durability=how))
    node = "one of the nodes after, think" if how == "exit" else "node 'think'"
    check(sentence, "x.deep[0]", KEEP_OUT, node, "wrote it to channel 'x'")


@pytest.mark.parametrize(
    "path, channel, who",
    [
        ("~__pregel_pull, think", "x", "node 'think', task 'a-task', wrote it to channel 'x'"),
        ("~__pregel_push, 0000000000, False", "x", "task 'a-task', wrote it to channel 'x'"),
        (
            "~__pregel_push, ~__pregel_pull, flow, 0000000001",
            "__return__",
            "a task of 'flow', task 'a-task', returned it",
        ),
        ("~__pregel_pull, ask", "__interrupt__", r"node 'ask', task 'a-task', passed it to interrupt\(\)"),
        ("", "__resume__", r"the program passed it to Command\(resume=\.\.\.\)"),
    ],
)
def test_a_refused_write_names_its_task(saver, path, channel, who):
    place = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c"}}
    sentence = refused(lambda: saver.put_writes(place, [(channel, [LOCK])], "a-task", path))
    assert re.search(rf"{KEEP_OUT}.* \({who}\)$", sentence), sentence


def test_the_channel_of_an_update_is_named(saver):
    graph = writes(1).compile(checkpointer=saver)
    sentence = refused(lambda: graph.update_state(thread("u"), {"x": LOCK}, as_node="think"))
    check(sentence, "x", KEEP_OUT, "channel 'x'")


def test_what_the_program_passes_to_a_graph_is_named(saver):
    graph = line(State, ask=lambda state: {"log": [interrupt("?")]}).compile(checkpointer=saver)
    check(refused(lambda: graph.invoke({"x": LOCK}, thread())), "input.x", KEEP_OUT, "as input to the graph")
    graph.invoke({"log": []}, thread("u"))
    answer = refused(lambda: graph.invoke(Command(resume=[LOCK]), thread("u")))
    check(answer, "resume[0]", KEEP_OUT, r"passed it to Command\(resume=\.\.\.\)")
    with outlive.open("memory:") as store:
        start = refused(lambda: run_graph(graph, {"x": LOCK}, thread_id="t", store=store))
        check(start, "input.x", KEEP_OUT)


def test_what_a_node_asks_or_sends_is_named(saver):
    asking = line(State, ask=lambda state: {"log": [interrupt({"q": LOCK})]}).compile(checkpointer=saver)
    sentence = refused(lambda: asking.invoke({"log": []}, thread()))
    check(sentence, "interrupt.q", KEEP_OUT, "node 'ask'", r"passed it to interrupt\(\)")

    def sending(argument, written):
        builder = StateGraph(State)
        builder.add_node("plan", lambda state: {})
        builder.add_node("work", lambda state: {"x": written})
        builder.add_edge(START, "plan")
        builder.add_conditional_edges("plan", lambda _: [Send("work", {"x": argument})], ["work"])
        return builder.compile(checkpointer=saver)

    sentence = refused(lambda: sending(LOCK, 1).invoke({"log": []}, thread("s"), durability="sync"))
    check(sentence, "Send.arg.x", KEEP_OUT, "node 'plan'", r"passed it to Send\(\)")
    sentence = refused(lambda: sending(1, LOCK).invoke({"log": []}, thread("w"), durability="sync"))
    check(sentence, "x", KEEP_OUT, "node 'work'", "channel 'x'")


def test_what_a_subgraph_a_task_or_a_tool_returns_is_named(saver):
    inner = line(State, deep=lambda state: {"x": LOCK}).compile()
    graph = line(State, sub=inner).compile(checkpointer=saver)
    sentence = refused(lambda: graph.invoke({"log": []}, thread()))
    check(sentence, "x", KEEP_OUT, "node 'deep'", "channel 'x'")

    @task
    def lock():
        return LOCK

    @entrypoint(checkpointer=saver)
    def workflow(is_direct: bool):
        return LOCK if is_direct else str(lock().result())

    sentence = refused(lambda: workflow.invoke(False, thread("f")))
    check(sentence, "result", KEEP_OUT, "a task of 'workflow'", "returned it")
    sentence = refused(lambda: workflow.invoke(True, thread("g")))
    check(sentence, "result", KEEP_OUT, "node 'workflow'", "returned it")

    @tool(response_format="content_and_artifact")
    def connect(to: str) -> tuple[str, Any]:
        """Connect."""
        return "ok", {"connection": LOCK}

    agent = create_agent(
        Scripted(script=[calls("connect", "c", to="x"), AIMessage("ok")]), [connect], checkpointer=saver
    )
    sentence = refused(lambda: agent.invoke({"messages": "go"}, thread("a"), durability="sync"))
    check(sentence, "messages[2].artifact.connection", KEEP_OUT, "node 'tools'", "channel 'messages'")


def test_a_thread_continues_from_the_checkpoint_before(saver):
    values = iter([LOCK, "data"])
    graph = line(State, a=lambda state: {"log": ["a"]}, b=lambda state: {"x": next(values)}).compile(
        checkpointer=saver
    )
    refused(lambda: graph.invoke({"log": ["in"]}, thread(), durability="sync"))
    assert graph.get_state(thread()).next == ("b",)
    assert graph.invoke(None, thread()) == {"log": ["in", "a"], "x": "data"}
