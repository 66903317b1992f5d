"""Graphs for real: each does and shows on our saver, sync and async, what it does and shows on InMemorySaver."""

import contextlib
import itertools
import operator
import time
import warnings
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

import outlive
from adapters.langgraph.graphs import (
    Chat,
    Driver,
    Log,
    Scripted,
    asks,
    calls,
    delta_graph,
    delta_schema,
    fan,
    line,
    plain,
    says,
    shown,
    thread,
)
from outlive.adapters.langgraph import OutliveSaver
from outlive.testing.patience import eventually
from rig.crash import LONG

SCENARIOS = {}
ON_EVERY_BACKEND = (
    "several_ask_at_once_and_are_answered_one_after_the_other",
    "time_travel_reaches_into_subgraphs",
    "deltas_are_replayed",
    "an_agent_of_langchain_calls_tools",
)  # the others too with OUTLIVE_LONG=1


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


@contextlib.contextmanager
def driven(how, url, loop):
    if how == "loop":  # a store that belongs to the loop
        store = loop.run_until_complete(outlive.open_async(url)._open())
        saver = OutliveSaver(store)
        yield Driver(saver, loop)
        loop.run_until_complete(saver.aclose())
        loop.run_until_complete(store.close())
        return
    with OutliveSaver(url) as saver:
        yield Driver(saver, None if how == "sync" else loop)


# Interrupts ---------------------------------------------------------------------------------------------------


@scenario
def an_interrupt_is_answered(driver):
    graph = driver.compile(line(Log, a=says("a"), ask=asks("ask"), b=says("b")))
    yield driver.invoke(graph, {"log": ["in"]}, thread())
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume="yes"), thread())
    yield driver.seen(graph, thread())


@scenario
def a_node_asks_twice(driver):
    def node(state):
        return {"log": [interrupt("first?"), interrupt("second?")]}

    graph = driver.compile(line(Log, node=node))
    yield driver.invoke(graph, {"log": ["in"]}, thread())
    yield driver.invoke(graph, Command(resume="1"), thread())
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume="2"), thread())
    yield driver.seen(graph, thread())


@scenario
def several_ask_at_once_and_are_answered_one_after_the_other(driver):
    graph = driver.compile(fan(Log, says("first"), says("last"), x=asks("x"), y=asks("y"), z=says("z")))
    yield driver.invoke(graph, {"log": []}, thread())
    waiting = {one.value: one.id for one in driver.state(graph, thread()).interrupts}
    yield sorted(waiting)
    yield driver.invoke(graph, Command(resume={waiting["y?"]: "to y"}), thread())
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume={waiting["x?"]: "to x"}), thread())
    yield driver.seen(graph, thread())


@scenario
def several_are_answered_at_once(driver):
    graph = driver.compile(fan(Log, says("first"), says("last"), x=asks("x"), y=asks("y")))
    yield driver.invoke(graph, {"log": []}, thread())
    waiting = driver.state(graph, thread()).interrupts
    answers = {one.id: f"to {one.value}" for one in waiting}
    yield driver.invoke(graph, Command(resume=answers), thread())
    yield driver.seen(graph, thread())


@scenario
def a_graph_stops_before_and_after_nodes(driver):
    builder = line(Log, a=says("a"), b=says("b"), c=says("c"))
    graph = driver.compile(builder, interrupt_before=["b"], interrupt_after=["b"])
    for input in ({"log": ["in"]}, None, None):
        yield driver.invoke(graph, input, thread())
        yield driver.seen(graph, thread())


# Parallel branches, Send, errors, Command ------------------------------------------------------------------------


@scenario
def branches_run_in_parallel(driver):
    graph = driver.compile(fan(Log, says("first"), says("last"), **{name: says(name) for name in "abcdef"}))
    for turn in range(3):
        # LangGraph hands out the barrier's own set, and changes it while a checkpoint of durability="async" waits.
        yield driver.invoke(graph, {"log": [str(turn)]}, thread(), durability="sync")
    yield driver.seen(graph, thread())


@scenario
def a_node_sends_many_tasks(driver):
    builder = StateGraph(Log)
    builder.add_node("plan", says("plan"))
    builder.add_node("work", lambda item: {"log": [f"{item['n']}: {item['deep']['x'][0]}"]})
    builder.add_node("sum", says("sum"))
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan", lambda _: [Send("work", {"n": n, "deep": {"x": [n * n]}}) for n in range(12)], ["work"]
    )
    builder.add_edge("work", "sum")
    builder.add_edge("sum", END)
    graph = driver.compile(builder)
    yield driver.invoke(graph, {"log": []}, thread())
    yield driver.seen(graph, thread())


@scenario
def sent_tasks_ask_and_are_answered(driver):
    builder = StateGraph(Log)
    builder.add_node("plan", says("plan"))
    builder.add_node("work", lambda item: {"log": [f"{item['n']}={interrupt(item['n'])}"]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("work", {"n": n}) for n in range(3)], ["work"])
    graph = driver.compile(builder)
    yield driver.invoke(graph, {"log": []}, thread())
    yield driver.seen(graph, thread())
    answers = {one.id: one.value * 10 for one in driver.state(graph, thread()).interrupts}
    yield driver.invoke(graph, Command(resume=answers), thread())
    yield driver.seen(graph, thread())


@scenario
def what_succeeded_beside_an_error_is_not_done_again(driver):
    count = {"good": 0, "bad": 0}

    def good(state):
        count["good"] += 1
        return {"log": ["good"]}

    def bad(state):
        count["bad"] += 1
        if count["bad"] == 1:
            eventually(lambda: count["good"])
            time.sleep(1)  # LangGraph cancels the others when one fails, and stores what the good one said
            raise RuntimeError("once")
        return {"log": ["bad"]}

    graph = driver.compile(fan(Log, says("first"), says("last"), good=good, bad=bad))
    with pytest.raises(RuntimeError, match="once"):
        driver.invoke(graph, {"log": []}, thread(), durability="sync")
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, None, thread())
    yield driver.seen(graph, thread())
    yield dict(count)


@scenario
def a_node_goes_where_it_wants(driver):
    def go(state):
        return Command(goto="again" if len(state["log"]) < 6 else END, update={"log": ["go"]})

    builder = StateGraph(Log)
    builder.add_node("go", go, destinations=("again", END))
    builder.add_node("again", lambda state: Command(goto="go", update={"log": ["again"], "answer": "so far"}))
    builder.add_edge(START, "go")
    graph = driver.compile(builder)
    yield driver.invoke(graph, {"log": []}, thread())
    yield driver.seen(graph, thread())


# Subgraphs -----------------------------------------------------------------------------------------------------


def with_subgraph(driver, *, asking=True, **options):
    inner = line(Log, i1=says("i1"), i2=asks("inner") if asking else says("i2"), i3=says("i3"))
    return driver.compile(line(Log, before=says("before"), sub=inner.compile(**options), after=says("after")))


@scenario
def a_subgraph_is_interrupted_and_goes_on(driver):
    graph = with_subgraph(driver)
    yield driver.invoke(graph, {"log": []}, thread())
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume="ok"), thread())
    yield driver.seen(graph, thread())


@scenario
def a_subgraph_with_a_memory_of_its_own_keeps_it(driver):
    graph = with_subgraph(driver, asking=False, checkpointer=True)
    for turn in range(3):
        yield driver.invoke(graph, {"log": [str(turn)]}, thread())
        yield driver.seen(graph, thread())


@scenario
def a_subgraph_with_a_memory_of_its_own_is_interrupted(driver):
    graph = with_subgraph(driver, checkpointer=True)
    for turn in range(2):
        yield driver.invoke(graph, {"log": [str(turn)]}, thread())
        yield driver.invoke(graph, Command(resume=f"ok {turn}"), thread())
        yield driver.seen(graph, thread())


@scenario
def subgraphs_in_subgraphs(driver):
    deepest = line(Log, d=asks("deepest")).compile()
    middle = line(Log, m1=says("m1"), deep=deepest, m2=asks("middle")).compile()
    graph = driver.compile(line(Log, top=says("top"), mid=middle))
    yield driver.invoke(graph, {"log": []}, thread())
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume="1"), thread())
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume="2"), thread())
    yield driver.seen(graph, thread())


@scenario
def the_state_of_a_subgraph_is_edited(driver):
    graph = with_subgraph(driver)
    driver.invoke(graph, {"log": []}, thread())
    inner = driver.state(graph, thread(), subgraphs=True).tasks[0].state
    driver.update(graph, inner.config, {"log": ["edited"]})
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume="ok"), thread())
    yield driver.seen(graph, thread())


# Updates and time travel -------------------------------------------------------------------------------------------


@scenario
def the_state_is_updated(driver):
    graph = driver.compile(line(Log, a=says("a"), b=says("b")), interrupt_before=["b"])
    driver.update(graph, thread(), {"log": ["before anything"]}, as_node="__start__")
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, {"log": ["in"]}, thread())
    driver.update(graph, thread(), {"log": ["as a"]}, as_node="a")
    driver.update(graph, thread(), {"answer": "x"})
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, None, thread())
    yield driver.seen(graph, thread())


@scenario
def an_old_checkpoint_is_replayed(driver):
    graph = driver.compile(line(Log, a=says("a"), b=says("b"), c=says("c")))
    for turn in range(2):
        driver.invoke(graph, {"log": [str(turn)]}, thread())
    for old in driver.history(graph, thread()):
        yield driver.invoke(graph, None, old.config)
    yield driver.seen(graph, thread())


@scenario
def an_old_checkpoint_is_forked(driver):
    graph = driver.compile(line(Log, a=says("a"), b=says("b"), c=says("c")))
    driver.invoke(graph, {"log": ["in"]}, thread())
    old = driver.history(graph, thread())[2]
    forked = driver.update(graph, old.config, {"log": ["forked"]})
    yield driver.invoke(graph, None, forked)
    yield driver.seen(graph, thread())
    yield shown(driver.state(graph, old.config))
    yield driver.invoke(graph, {"log": ["continues from the fork"]}, thread())
    yield [shown(found) for found in driver.history(graph, thread(), before=old.config)]
    yield [shown(found) for found in driver.history(graph, thread(), limit=3)]
    yield [shown(found) for found in driver.history(graph, thread(), filter={"source": "update"})]


@scenario
def an_answered_interrupt_is_answered_otherwise(driver):
    graph = driver.compile(line(Log, a=says("a"), ask=asks("ask"), b=says("b")))
    driver.invoke(graph, {"log": ["in"]}, thread())
    waiting = driver.state(graph, thread())
    yield driver.invoke(graph, Command(resume="yes"), thread())
    yield driver.invoke(graph, None, waiting.config)
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume="no"), thread())
    yield driver.seen(graph, thread())


@scenario
def time_travel_reaches_into_subgraphs(driver):
    graph = with_subgraph(driver, checkpointer=True)
    driver.invoke(graph, {"log": ["0"]}, thread())
    driver.invoke(graph, Command(resume="ok"), thread())
    driver.invoke(graph, {"log": ["1"]}, thread())
    before = [found for found in driver.history(graph, thread()) if "sub" in found.next]
    for old in before:
        yield driver.invoke(graph, None, old.config)
        yield driver.seen(graph, thread())
        yield driver.invoke(graph, Command(resume="otherwise"), thread())
        yield driver.seen(graph, thread())


@scenario
def time_travel_with_a_subgraph_that_forgets(driver):
    graph = with_subgraph(driver)
    driver.invoke(graph, {"log": ["0"]}, thread())
    driver.invoke(graph, Command(resume="ok"), thread())
    for old in [found for found in driver.history(graph, thread()) if found.next]:
        yield driver.invoke(graph, None, old.config)
        yield driver.seen(graph, thread())


# Durability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("how", ["sync", "async", "loop"])
def test_every_durability_gives_what_it_gives_in_memory(how, durability, url, loop):
    def run(driver):
        inner = line(Log, i=says("i")).compile(checkpointer=True)
        graph = driver.compile(line(Log, a=says("a"), sub=inner, ask=asks("ask"), b=says("b")))
        for turn in range(2):
            yield driver.invoke(graph, {"log": [str(turn)]}, thread(), durability=durability)
            yield driver.seen(graph, thread())
            yield driver.invoke(graph, Command(resume="ok"), thread(), durability=durability)
            yield driver.seen(graph, thread())

    expected = list(run(Driver(InMemorySaver(), None if how == "sync" else loop)))
    with driven(how, url, loop) as driver:
        assert list(run(driver)) == expected


# Messages and agents --------------------------------------------------------------------------------------------


@scenario
def messages_are_added_replaced_and_removed(driver):
    def reply(state):
        said = state["messages"][-1]
        answer = AIMessage(f"you said {said.content}", id=f"ai-{len(state['messages'])}")
        return {"messages": [answer], "turn": state.get("turn", 0) + 1}

    graph = driver.compile(line(Chat, reply=reply))
    for turn in range(5):
        yield driver.invoke(graph, {"messages": [HumanMessage(f"hello {turn}", id=f"h{turn}")]}, thread())
    yield driver.invoke(graph, {"messages": [HumanMessage("edited", id="h0"), RemoveMessage("h1")]}, thread())
    yield driver.seen(graph, thread())


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def confirm(what: str) -> str:
    """Ask a person."""
    return f"{what}: {interrupt({'confirm': what})}"


SCRIPT = [
    AIMessage(
        content=[{"type": "text", "text": "let me see"}],
        tool_calls=[
            {"name": "add", "args": {"a": 1, "b": 2}, "id": "c1", "type": "tool_call"},
            {"name": "confirm", "args": {"what": "pay"}, "id": "c2", "type": "tool_call"},
        ],
        usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        response_metadata={"model": "scripted", "nested": {"logprobs": [0.5, None]}},
    ),
    AIMessage("done: 3 and paid"),
]


def talks_with(driver, graph):
    yield driver.invoke(
        graph, {"messages": [SystemMessage("be brief"), HumanMessage("add and pay")]}, thread()
    )
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume="yes"), thread())
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, {"messages": "once more"}, thread())
    yield driver.invoke(graph, Command(resume="no"), thread())
    yield driver.seen(graph, thread())
    assert any(
        isinstance(message, ToolMessage) for message in driver.state(graph, thread()).values["messages"]
    )


@scenario
def an_agent_of_langgraph_calls_tools(driver):
    from langgraph.prebuilt import create_react_agent

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it moved to langchain, which the next one uses
        graph = create_react_agent(Scripted(script=SCRIPT), [add, confirm], checkpointer=driver.saver)
    yield from talks_with(driver, graph)


@scenario
def an_agent_of_langchain_calls_tools(driver):
    from langchain.agents import create_agent

    graph = create_agent(Scripted(script=SCRIPT), [add, confirm], checkpointer=driver.saver)
    yield from talks_with(driver, graph)


@scenario
def an_agent_of_langchain_asks_before_a_tool_is_called(driver):
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    graph = create_agent(
        Scripted(script=[calls("add", "c1", a=1, b=2), AIMessage("3")]),
        [add],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"add": True})],
        checkpointer=driver.saver,
    )
    yield driver.invoke(graph, {"messages": [HumanMessage("add")]}, thread())
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, Command(resume={"decisions": [{"type": "approve"}]}), thread())
    yield driver.seen(graph, thread())


# The functional API -------------------------------------------------------------------------------------------------


@scenario
def functions_are_tasks_and_their_results_are_kept(driver):
    count = []

    @task
    def square(number):
        count.append(number)
        return number * number

    @entrypoint(checkpointer=driver.saver)
    def workflow(numbers, *, previous=None):
        squares = [future.result() for future in [square(number) for number in numbers]]
        answer = interrupt({"squares": squares})
        return entrypoint.final(
            value={"squares": squares, "answer": answer, "before": previous}, save=sum(squares)
        )

    for numbers in ([1, 2, 3], [4]):
        yield driver.invoke(workflow, numbers, thread())
        yield driver.invoke(workflow, Command(resume="go"), thread())
        yield driver.seen(workflow, thread())
    yield sorted(count)


# DeltaChannels -----------------------------------------------------------------------------------------------------


@scenario
def deltas_are_replayed(driver):
    graph = delta_graph(driver)
    for turn in range(6):
        yield driver.invoke(graph, {"log": [f"in {turn}"]}, thread())
    yield driver.seen(graph, thread())
    old = driver.history(graph, thread())[9]
    forked = driver.update(graph, old.config, {"log": ["forked"]})
    yield driver.invoke(graph, None, forked)
    yield driver.invoke(graph, {"log": ["after the fork"]}, thread())
    yield driver.seen(graph, thread())


@scenario
def deltas_in_exit_mode(driver):
    graph = delta_graph(driver, 100)
    for turn in range(4):
        yield driver.invoke(graph, {"log": [f"in {turn}"]}, thread(), durability="exit")
    yield driver.seen(graph, thread())


@scenario
def a_plain_channel_becomes_a_delta(driver):
    class Before(TypedDict, total=False):
        log: Annotated[list[str], operator.add]
        turn: int

    plain_graph = driver.compile(line(Before, work=says("plain")))
    driver.invoke(plain_graph, {"log": ["in"]}, thread())
    graph = delta_graph(driver)
    for turn in range(3):
        yield driver.invoke(graph, {"log": [str(turn)]}, thread())
    yield driver.seen(graph, thread())


@scenario
def deltas_with_interrupts_and_subgraphs(driver):
    schema = delta_schema(3)
    inner = line(schema, i=says("i"), ask=asks("ask")).compile(checkpointer=True)
    graph = driver.compile(line(schema, a=says("a"), sub=inner, b=says("b")))
    for turn in range(3):
        yield driver.invoke(graph, {"log": [f"in {turn}"]}, thread())
        yield driver.invoke(graph, Command(resume="ok"), thread())
        yield driver.seen(graph, thread())


FREQUENCIES = (1, 3, 100)


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_deltas_stay_whole_when_their_thread_is_pruned(saver, frequency):
    ours, twin = Driver(saver), Driver(InMemorySaver())
    graphs = delta_graph(ours, frequency), delta_graph(twin, frequency)
    for turn in range(8):
        for driver, graph in zip((ours, twin), graphs, strict=True):
            driver.invoke(graph, {"log": [f"in {turn}"]}, thread())
        kept = 1 + turn % 3
        assert saver.prune(["t"], keep_last=kept).checkpoints > 0
        found, expected = (
            driver.history(graph, thread()) for driver, graph in zip((ours, twin), graphs, strict=True)
        )
        assert len(found) == kept
        assert [one.values for one in found] == [one.values for one in expected[:kept]]


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_deltas_stay_whole_when_runs_are_deleted(saver, frequency):
    ours, twin = Driver(saver), Driver(InMemorySaver())
    graphs = delta_graph(ours, frequency), delta_graph(twin, frequency)
    for turn in range(7):
        for driver, graph in zip((ours, twin), graphs, strict=True):
            config = thread()
            driver.invoke(graph, {"log": [f"in {turn}"]}, {**config, "metadata": {"run_id": f"run {turn}"}})
    saver.delete_for_runs(["run 0", "run 2", "run 3", "run 5"])
    found = ours.history(graphs[0], thread())
    expected = [
        one
        for one in twin.history(graphs[1], thread())
        if one.metadata["run_id"] in ("run 1", "run 4", "run 6")
    ]
    assert [(one.metadata["run_id"], one.values) for one in found] == [
        (one.metadata["run_id"], one.values) for one in expected
    ]
    for driver, graph in zip((ours, twin), graphs, strict=True):
        driver.invoke(graph, {"log": ["continues"]}, thread())
    assert ours.state(graphs[0], thread()).values == twin.state(graphs[1], thread()).values


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_deltas_stay_whole_when_their_thread_is_copied_and_pruned(saver, frequency):
    ours, twin = Driver(saver), Driver(InMemorySaver())
    graphs = delta_graph(ours, frequency), delta_graph(twin, frequency)
    for turn in range(5):
        for driver, graph in zip((ours, twin), graphs, strict=True):
            driver.invoke(graph, {"log": [f"in {turn}"]}, thread())
    saver.prune(["t"], keep_last=4)
    saver.copy_thread("t", "u")
    saver.delete_thread("t")
    saver.prune(["u"])
    for turn in range(3):
        expected = twin.invoke(graphs[1], {"log": [f"on {turn}"]}, thread())
        assert ours.invoke(graphs[0], {"log": [f"on {turn}"]}, thread("u")) == expected


def test_a_fork_above_which_all_was_pruned_stays_whole(saver):
    ours, twin = Driver(saver), Driver(InMemorySaver())
    ends = []
    for driver in (ours, twin):
        graph = delta_graph(driver, 100)
        for turn in range(4):
            driver.invoke(graph, {"log": [f"in {turn}"]}, thread())
        old = driver.history(graph, thread())[5]
        driver.update(graph, old.config, {"log": ["forked"]})
        if driver is ours:
            saver.prune(["t"], keep_last=3)
        ends.append([one.values for one in driver.history(graph, thread())][:3])
    assert ends[0] == ends[1]


# Objects that are independent -------------------------------------------------------------------------------------


def test_snapshots_of_one_history_share_no_object(saver):
    driver = Driver(saver)

    def reply(state):
        return {"messages": [AIMessage("x", additional_kwargs={"deep": {"list": [1]}})]}

    graph = driver.compile(line(Chat, reply=reply))
    for turn in range(20):
        driver.invoke(graph, {"messages": [HumanMessage(f"hello {turn}")]}, thread())
    whole = driver.history(graph, thread(), limit=50)
    assert len(whole) == 50
    before = [plain(found.values) for found in whole]
    for edited, found in enumerate(whole):
        if len(found.values["messages"]) < 2:
            continue
        found.values["messages"][0].content = "edited"
        found.values["messages"][1].additional_kwargs["deep"]["list"].append(edited)
        found.values["messages"].pop()
        others = [plain(one.values) for one in whole[edited + 1 :]]
        assert others == before[edited + 1 :]
    assert [plain(found.values) for found in driver.history(graph, thread(), limit=50)] == before
    one, two = driver.state(graph, thread()), driver.state(graph, thread())
    one.values["messages"][0].content = "edited"
    assert plain(two.values) == before[0]


def test_what_a_program_edits_after_a_put_is_not_edited_in_the_store(saver):
    driver = Driver(saver)
    message = HumanMessage("hello", additional_kwargs={"deep": [1]})
    graph = driver.compile(line(Chat, reply=lambda state: {"turn": 1}))
    driver.invoke(graph, {"messages": [message]}, thread())
    message.content = "edited"
    message.additional_kwargs["deep"].append(2)
    (found,) = driver.state(graph, thread()).values["messages"]
    assert (found.content, found.additional_kwargs) == ("hello", {"deep": [1]})


# All of them ------------------------------------------------------------------------------------------------------


HOWS = ("sync", "async", "loop")
# In short each scenario runs sync, and in one of the two ways to be awaited.
WAYS = [
    (name, how)
    for number, name in enumerate(sorted(SCENARIOS))
    for how in (HOWS if LONG else ("sync", HOWS[1 + number % 2]))
]


@pytest.mark.parametrize("name, how", WAYS)
def test_a_graph_does_what_it_does_in_memory(name, how, url, loop):
    expected = list(SCENARIOS[name](Driver(InMemorySaver(), None if how == "sync" else loop)))
    assert expected, "a scenario that shows nothing tests nothing"
    with driven(how, url, loop) as driver:
        found = list(SCENARIOS[name](driver))
    assert found == expected


ENGINES = ("memory", "file", "postgresql", "redis")
SHARES = zip(ENGINES, ("loop", "async", "loop", "sync"), strict=True)


@pytest.mark.parametrize("backend, how", list(itertools.product(ENGINES, HOWS)) if LONG else list(SHARES))
def test_graphs_do_the_same_on_every_backend(backend, how, url_for, folder, loop):
    names = sorted(SCENARIOS) if LONG else ON_EVERY_BACKEND
    for number, name in enumerate(names):
        place = folder / str(number)
        place.mkdir()
        url = "memory:" if backend == "memory" else url_for(backend, place)
        expected = list(SCENARIOS[name](Driver(InMemorySaver(), None if how == "sync" else loop)))
        with driven(how, url, loop) as driver:
            assert list(SCENARIOS[name](driver)) == expected, name
