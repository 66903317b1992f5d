"""What `run_graph` returns and asks: the typed output of version 2, and interrupts of any size."""

import asyncio
import dataclasses
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, GraphOutput, interrupt
from pydantic import BaseModel

import outlive
from outlive.adapters.langgraph import OutliveSaver, arun_graph, resume_graph, run_graph


class Claim(BaseModel):
    eur: int = 0
    approved: bool = False


@dataclasses.dataclass
class Record:
    eur: int = 0
    approved: bool = False


class Letter(TypedDict, total=False):
    text: str
    answer: Any


def approve(state: Any) -> dict[str, Any]:
    return {"approved": interrupt("pay?")}


def read(state: Letter) -> dict[str, Any]:
    return {"answer": interrupt({"letter": state["text"]})}


def graph_of(schema: Any, node: Any) -> Any:
    return StateGraph(schema).add_node("node", node).add_edge(START, "node").compile(name="claims")


@pytest.mark.parametrize("schema", [Claim, Record])
def test_version_2_returns_the_same_kind_of_output_whenever_it_is_asked(schema):
    graph = graph_of(schema, approve)
    with outlive.open("memory:") as store:
        ask = {"thread_id": "t", "store": store, "version": "v2"}
        waiting = run_graph(graph, {"eur": 40}, run_id="r", **ask)
        assert isinstance(waiting, GraphOutput)
        assert (waiting.value, [asked.value for asked in waiting.interrupts]) == (schema(eur=40), ["pay?"])
        again = run_graph(graph, None, run_id="r", **ask)  # it still waits
        assert (again.value, again.interrupts) == (waiting.value, waiting.interrupts)
        done = run_graph(graph, Command(resume=True), **ask)
        assert done == GraphOutput(schema(eur=40, approved=True))
        assert run_graph(graph, None, run_id="r", **ask) == done  # it has ended


def test_version_2_is_awaited_and_recovered():
    graph, outputs = graph_of(Claim, approve), []

    async def main():
        async with outlive.open_async("memory:") as store:
            waiting = await arun_graph(graph, {"eur": 1}, thread_id="t", store=store, version="v2")
            done = await arun_graph(graph, Command(resume=True), thread_id="t", store=store, version="v2")
            return waiting.value, done.value

    assert asyncio.run(main()) == (Claim(eur=1), Claim(eur=1, approved=True))
    with outlive.open("memory:") as store:
        run_graph(graph, {"eur": 2}, thread_id="t", store=store)
        (question,) = store.questions()
        store.answer(question.run, question.name, True)
        resume = {"claims": lambda run: outputs.append(resume_graph(graph, run, version="v2"))}
        assert len(store.recover(resume).resumed) == 1
    assert outputs == [GraphOutput(Claim(eur=2, approved=True))]


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_an_interrupt_that_is_too_large_for_a_question_is_asked_without_its_value(backend, url_for, folder):
    graph, text = graph_of(Letter, read), "long " * 400_000
    with outlive.open(url_for(backend, folder)) as store:
        output = run_graph(graph, {"text": text}, thread_id="t", store=store, run_id="r")
        assert output["__interrupt__"][0].value == {"letter": text}
        (question,) = store.questions()
        assert question.payload.keys() == {"node", "id", "value_bytes"}
        assert question.payload["value_bytes"] > len(text)
        state = graph.copy({"checkpointer": OutliveSaver(store)}).get_state(
            {"configurable": {"thread_id": "t"}}
        )
        assert state.interrupts[0].value == {"letter": text}
        store.answer("r", question.name, "seen")
        assert len(store.recover({"claims": lambda run: resume_graph(graph, run)}).resumed) == 1
        assert run_graph(graph, None, thread_id="t", store=store, run_id="r")["answer"] == "seen"


def test_a_run_whose_graph_was_answered_by_someone_else_is_cancelled_or_ends_with_its_answer():
    graph = graph_of(Letter, read)
    for settle in ("cancel", "answer"):
        with outlive.open("memory:") as store:
            run_graph(graph, {"text": "a"}, thread_id="t", store=store, run_id="r")
            beside = graph.copy({"checkpointer": OutliveSaver(store)})
            config = {"configurable": {"thread_id": "t"}}
            assert beside.invoke(Command(resume="beside"), config)["answer"] == "beside"
            (question,) = store.questions()  # the run knows nothing of it
            if settle == "cancel":
                assert store.cancel("r").status == "cancelled"
            else:
                store.answer("r", question.name, "late")
                store.recover({"claims": lambda run: resume_graph(graph, run)})
                assert store.find_run("r").status == "completed"
            assert list(store.questions()) == []
            assert beside.get_state(config).values["answer"] == "beside"
