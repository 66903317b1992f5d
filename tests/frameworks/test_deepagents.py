"""A deep agent, with virtual files, todos and a subagent in its state: saved, interrupted, killed and recovered."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from deepagents import create_deep_agent
from langchain.agents.middleware import TodoListMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.types import Command

import outlive
from adapters.langgraph.exactly import ExactDriver, exact_memory
from adapters.langgraph.graphs import Scripted, calls, thread
from outlive.adapters.langgraph import OutliveSaver, resume_graph, run_graph
from outlive.testing.patience import eventually

LEASE_S = 3.0
TODOS = [{"content": "write", "status": "in_progress"}, {"content": "check", "status": "pending"}]
SCRIPT = [
    calls("write_todos", "c1", todos=TODOS),
    calls("write_file", "c2", file_path="/plan.md", content="three days\nin Porto"),
    calls("task", "c3", description="look up the weather", subagent_type="scout"),
    calls("edit_file", "c4", file_path="/plan.md", old_string="Porto", new_string="Lisbon"),
    calls("book", "c5", city="Lisbon"),
    calls("read_file", "c6", file_path="/plan.md"),
    AIMessage("done", id="done"),
]
SCOUT = [
    calls("write_file", "s1", file_path="/weather.md", content="sun"),
    AIMessage("it is sunny", id="scouted"),
]
APPROVED = Command(resume={"decisions": [{"type": "approve"}]})
GO = {"messages": [HumanMessage("plan a trip", id="go")]}


def agent(folder, checkpointer=None, *, dies=False):
    @tool
    def book(city: str) -> str:
        """Book a city."""
        with (Path(folder) / "booked").open("a") as file:
            file.write(f"{city}\n")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"booked {city}"

    scout = {
        "name": "scout",
        "description": "looks things up",
        "system_prompt": "look it up",
        "model": Scripted(script=SCOUT),
        "tools": [],
    }
    return create_deep_agent(
        Scripted(script=SCRIPT),
        [book],
        subagents=[scout],
        middleware=[TodoListMiddleware()],
        interrupt_on={"edit_file": True},
        checkpointer=checkpointer,
        name="deep",
    )


def contents(state):
    return {path: file["content"] for path, file in state["files"].items()}


def is_whole(state):
    """Tell whether an agent has ended with all that it should have made."""
    return (
        contents(state) == {"/plan.md": "three days\nin Lisbon", "/weather.md": "sun"}
        and state["todos"] == TODOS
        and state["messages"][-1].content == "done"
    )


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_deep_agent_is_the_same_as_in_memory(mode, url, folder):
    def talk(driver):
        graph = agent(folder, driver.saver)
        yield driver.invoke(graph, GO, thread())
        yield driver.seen(graph, thread())
        yield driver.invoke(graph, APPROVED, thread())
        assert is_whole(driver.state(graph, thread()).values)
        yield driver.seen(graph, thread())

    with asyncio.Runner() as runner, OutliveSaver(url) as saver:
        loop = None if mode == "sync" else runner.get_loop()
        assert list(talk(ExactDriver(saver, loop))) == list(talk(ExactDriver(exact_memory(), loop)))


def test_a_person_approves_in_another_process(url, folder):
    with outlive.open(url) as store:
        output = run_graph(agent(folder), GO, thread_id="t", store=store, run_id="r")
        assert contents(output) == {"/plan.md": "three days\nin Porto", "/weather.md": "sun"}
        assert store.find_run("r").status == "waiting"
    with outlive.open(url) as store:
        (question,) = store.questions()
        assert question.payload["value"]["action_requests"][0]["name"] == "edit_file"
        store.answer("r", question.name, APPROVED.resume)
        graph = agent(folder)
        assert len(store.recover({"deep": lambda run: resume_graph(graph, run)}).resumed) == 1
        assert is_whole(run_graph(graph, None, thread_id="t", store=store, run_id="r"))


def approve_and_die(report, url, folder):
    with outlive.open(url) as store:
        graph = agent(folder, dies=True)
        run_graph(graph, GO, thread_id="t", store=store, run_id="r", lease_s=LEASE_S)
        run_graph(graph, APPROVED, thread_id="t", store=store, lease_s=LEASE_S)


def test_an_agent_that_is_killed_in_a_tool_is_recovered(workers, url, folder):
    with workers.spawn(approve_and_die, url, str(folder)) as worker:
        assert worker.receive() is None
    booked = Path(folder) / "booked"
    assert booked.read_text() == "Lisbon\n"
    with outlive.open(url) as store:
        graph = agent(folder)
        eventually(lambda: store.recover({"deep": lambda run: resume_graph(graph, run)}).resumed)
        run = store.find_run("r")
        assert (run.status, booked.read_text()) == ("completed", "Lisbon\nLisbon\n")
        assert is_whole(run_graph(graph, None, thread_id="t", store=store, run_id="r"))
