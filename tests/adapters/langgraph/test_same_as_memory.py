"""Graphs as people write them: on our saver each returns, streams and stores exactly what it does on InMemorySaver.

(With a serializer that changes nothing: LangGraph's own makes a list of a tuple.)
`test_graphs.py` has the same comparison for interrupts, subgraphs, time travel and DeltaChannels, with plain values.
Here values are compared with their types, and with all metadata.
"""

import contextlib
import dataclasses
import enum
import operator
import threading
from collections.abc import Sequence
from typing import Annotated, Any, NotRequired, TypedDict

import numpy
import pytest
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    hook_config,
)
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.channels import EphemeralValue, Topic, UntrackedValue
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.managed import RemainingSteps
from langgraph.types import CachePolicy, Command, Overwrite, RetryPolicy, Send, StateUpdate, interrupt
from pydantic import BaseModel, Field

import outlive
from adapters.langgraph.exactly import ExactDriver, exact, exact_memory
from adapters.langgraph.graphs import Log, Scripted, asks, calls, fan, line, says, thread
from outlive.adapters.langgraph import OutliveSaver
from rig.crash import LONG

SCENARIOS = {}
ON_A_SERVER = ("agent_returns_a_model", "subgraph_has_its_own_checkpointer", "state_is_a_pydantic_model")


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def talk(driver, graph, *inputs, **options):
    """Invoke a graph with inputs, one after the other, and yield all that can be seen after each."""
    for given in inputs:
        yield driver.invoke(graph, given, thread(), **options)
        yield driver.seen(graph, thread())


def human(text):
    return {"messages": [HumanMessage(text, id=f"h-{text}")]}


# Agents ---------------------------------------------------------------------------------------------------------


class Weather(BaseModel):
    city: str
    degrees: float = Field(ge=-90)
    tags: list[str] = []


@dataclasses.dataclass
class Forecast:
    city: str
    days: tuple[int, ...] = ()


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def pay(eur: int, to: str) -> str:
    """Pay an amount."""
    return f"paid {eur} to {to}"


@scenario
def agent_returns_a_model(driver):
    wrong = calls("Weather", "c0", city="Lisbon", degrees=-100)
    right = calls("Weather", "c1", city="Lisbon", degrees=21.5, tags=["sun"])
    graph = create_agent(
        Scripted(script=[wrong, right]),
        [add],
        response_format=ToolStrategy(Weather),
        checkpointer=driver.saver,
    )
    yield from talk(driver, graph, human("weather?"))
    assert type(driver.state(graph, thread()).values["structured_response"]) is Weather
    yield from talk(driver, graph, human("again?"))


@scenario
def agent_returns_a_dataclass(driver):
    graph = create_agent(
        Scripted(script=[calls("Forecast", "c1", city="Porto", days=[1, 2])]),
        response_format=ToolStrategy(Forecast),
        checkpointer=driver.saver,
    )
    yield from talk(driver, graph, human("forecast?"))
    assert type(driver.state(graph, thread()).values["structured_response"]) is Forecast


@tool(response_format="content_and_artifact")
def look_up(city: str) -> tuple[str, Any]:
    """Look up a city."""
    return f"{city} found", {
        "forecast": Forecast(city, (1, 2)),
        "weather": Weather(city=city, degrees=1),
        "grid": numpy.arange(6, dtype="f4").reshape(2, 3),
    }


@scenario
def tools_return_artifacts(driver):
    graph = create_agent(
        Scripted(script=[calls("look_up", "c1", city="Faro"), AIMessage("done", id="a")]),
        [look_up],
        checkpointer=driver.saver,
    )
    yield from talk(driver, graph, human("find"))
    (answer,) = [m for m in driver.state(graph, thread()).values["messages"] if isinstance(m, ToolMessage)]
    assert type(answer.artifact["forecast"]) is Forecast


class Budget(enum.Enum):
    LOW = "low"
    HIGH = "high"


class CountedState(AgentState):
    calls: NotRequired[Annotated[int, operator.add]]
    budget: NotRequired[Budget]
    forecasts: NotRequired[Annotated[list[Forecast], operator.add]]


class Counting(AgentMiddleware):
    """Counts calls of the model in the state, and ends the agent after three."""

    state_schema = CountedState

    @hook_config(can_jump_to=["end"])
    def before_model(self, state, runtime):
        if state.get("calls", 0) >= 3:
            return {"messages": [AIMessage("enough", id="enough")], "jump_to": "end"}
        return {"budget": Budget.HIGH if state.get("calls") else Budget.LOW}

    def after_model(self, state, runtime):
        return {"calls": 1, "forecasts": [Forecast("Lisbon", (state.get("calls", 0),))]}


@scenario
def middleware_has_state(driver):
    script = [calls("add", f"c{number}", a=number, b=1) for number in range(5)]
    graph = create_agent(
        Scripted(script=script),
        [add],
        middleware=[Counting(), TodoListMiddleware()],
        checkpointer=driver.saver,
    )
    yield from talk(driver, graph, human("count"))
    values = driver.state(graph, thread()).values
    assert (values["calls"], values["budget"]) == (3, Budget.HIGH)


@scenario
def middleware_writes_todos_and_summarizes(driver):
    todos = [{"content": "book", "status": "in_progress"}, {"content": "fly", "status": "pending"}]
    script = [
        calls("write_todos", "c1", todos=todos),
        *(AIMessage(f"turn {n}", id=f"a{n}") for n in range(9)),
    ]
    summary = SummarizationMiddleware(
        Scripted(script=[AIMessage("all so far")]), trigger=("messages", 6), keep=("messages", 2)
    )
    graph = create_agent(
        Scripted(script=script), [add], middleware=[TodoListMiddleware(), summary], checkpointer=driver.saver
    )
    yield from talk(driver, graph, human("plan"), human("more"), human("and more"))
    values = driver.state(graph, thread()).values
    assert values["todos"] == todos
    assert len(values["messages"]) < 6


DECISIONS = {
    "approve": {"type": "approve"},
    "edit": {"type": "edit", "edited_action": {"name": "pay", "args": {"eur": 1, "to": "bob"}}},
    "reject": {"type": "reject", "message": "too much"},
    "respond": {"type": "respond", "message": "ask again tomorrow"},
}


@scenario
def a_person_decides_about_tool_calls(driver):
    def both():
        first, second = calls("pay", "c1", eur=40, to="ann"), calls("pay", "c2", eur=2, to="eve")
        return AIMessage("", id="m", tool_calls=[*first.tool_calls, *second.tool_calls])

    graph = create_agent(
        Scripted(script=[both(), AIMessage("done", id="d")]),
        [pay, add],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": {"allowed_decisions": [*DECISIONS]}})],
        checkpointer=driver.saver,
    )
    for number, (name, decision) in enumerate(DECISIONS.items()):
        config = thread(f"t{number}")
        yield driver.invoke(graph, human(name), config)
        yield driver.seen(graph, config)
        answer = {"decisions": [decision, DECISIONS["approve"]]}
        yield driver.invoke(graph, Command(resume=answer), config)
        yield driver.seen(graph, config)


@tool
def note(text: str, runtime: ToolRuntime) -> Command:
    """Write a note into the state."""
    said = ToolMessage(
        f"noted after {len(runtime.state['messages'])}", tool_call_id=runtime.tool_call_id, id="n"
    )
    return Command(update={"notes": [text], "messages": [said]})


class Notes(AgentState):
    notes: NotRequired[Annotated[list[str], operator.add]]


@scenario
def tools_write_the_state(driver):
    graph = create_agent(
        Scripted(
            script=[calls("note", "c1", text="one"), calls("note", "c2", text="two"), AIMessage("ok", id="o")]
        ),
        [note],
        state_schema=Notes,
        checkpointer=driver.saver,
    )
    yield from talk(driver, graph, human("note"))
    assert driver.state(graph, thread()).values["notes"] == ["one", "two"]


# The functional API ---------------------------------------------------------------------------------------------


@scenario
def tasks_return_objects_and_are_kept(driver):
    started = []

    @task
    def forecast(city):
        started.append(city)
        return Forecast(city, (len(city),))

    @task(retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    def flaky(count):
        started.append("flaky")
        if started.count("flaky") < 3:
            raise ConnectionError("again")
        return Weather(city="x", degrees=count)

    @entrypoint(checkpointer=driver.saver)
    def workflow(cities: list[str], *, previous: Any = None):
        forecasts = [future.result() for future in [forecast(city) for city in cities]]
        weather = flaky(len(cities)).result()
        answer = interrupt({"forecasts": forecasts})
        return entrypoint.final(value=(answer, previous), save={"forecasts": forecasts, "weather": weather})

    yield from talk(driver, workflow, ["Lisbon", "Porto"], Command(resume=Budget.LOW))
    yield sorted(started)
    yield from talk(driver, workflow, ["Faro"], Command(resume=(1, 2)))
    yield sorted(started)


@scenario
def workflows_call_graphs_and_remember_what_they_returned(driver):
    inner = line(Log, a=says("a"), ask=asks("inner")).compile()

    @task
    def total(numbers):
        return sum(numbers)

    @entrypoint(checkpointer=driver.saver)
    def workflow(number: int, *, previous: list[int] | None = None):
        log = inner.invoke({"log": [str(number)]})["log"]
        return [*(previous or []), total([number, len(log)]).result()]

    for number in range(2):
        yield from talk(driver, workflow, number, Command(resume="yes"))


@scenario
def a_task_that_failed_is_done_again_alone(driver):
    count = {"good": 0, "bad": 0}

    @task
    def good():
        count["good"] += 1
        return {"n": count["good"]}

    @task
    def bad():
        count["bad"] += 1
        if count["bad"] == 1:
            raise RuntimeError("once")
        return count["bad"]

    @entrypoint(checkpointer=driver.saver)
    def workflow(_: Any):
        return [good().result(), bad().result()]

    with pytest.raises(RuntimeError, match="once"):
        driver.invoke(workflow, 1, thread())
    yield from talk(driver, workflow, None)
    yield dict(count)


# States of many kinds -------------------------------------------------------------------------------------------


class Leg(BaseModel):
    city: str
    budget: Budget = Budget.LOW


class Trip(BaseModel):
    legs: Annotated[list[Leg], operator.add] = []
    forecast: Forecast | None = None
    turn: int = 0


@scenario
def state_is_a_pydantic_model(driver):
    def plan(state: Trip):
        assert type(state) is Trip
        return {"legs": [Leg(city="Porto", budget=Budget.HIGH)], "turn": state.turn + 1}

    def finish(state: Trip):
        return Trip(forecast=Forecast("Porto", (state.turn,)), turn=state.turn)

    graph = driver.compile(line(Trip, plan=plan, ask=asks_nothing, finish=finish))
    yield from talk(driver, graph, Trip(legs=[Leg(city="Faro")]), {"turn": 5})


def asks_nothing(state):
    return {}


@dataclasses.dataclass
class Record:
    names: Annotated[list[str], operator.add] = dataclasses.field(default_factory=list)
    kind: Budget = Budget.LOW
    inner: Forecast | None = None
    pair: tuple[int, str] = (0, "")


@scenario
def state_is_a_dataclass(driver):
    def work(state: Record):
        assert type(state) is Record
        return Record(
            names=["work"], kind=Budget.HIGH, inner=Forecast("x", (1,)), pair=(state.pair[0] + 1, "w")
        )

    graph = driver.compile(line(Record, work=work, more=lambda state: {"names": [state.kind.value]}))
    yield from talk(driver, graph, Record(names=["in"]), {"names": ["again"]})


class Channels(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    bag: Annotated[Sequence[Any], Topic(Any, True)]
    once: Annotated[str, EphemeralValue(str)]
    never: Annotated[Any, UntrackedValue(object)]
    counts: Annotated[dict[str, int], operator.or_]
    seen: Annotated[set[Any], operator.or_]
    steps: RemainingSteps


LOCK = threading.Lock()


@scenario
def state_has_channels_of_every_kind(driver):
    def first(state):
        return {"log": ["first"], "bag": (1, Budget.LOW), "once": "now", "never": LOCK, "seen": {(1, 2)}}

    def second(state):
        assert hasattr(state["never"], "acquire")
        return {
            "log": [f"{state['once']} {state['steps']}"],
            "bag": Leg(city="x"),
            "counts": {"a": 1},
            "seen": {3},
        }

    def third(state):
        return {"log": Overwrite([f"{len(state['bag'])} {'once' in state}"]), "counts": {"b": 2}}

    graph = driver.compile(line(Channels, first=first, second=second, third=third))
    # LangGraph hands out a Topic's own list, and changes it while a checkpoint of durability="async" waits.
    yield from talk(driver, graph, {"log": ["in"]}, {"log": ["again"]}, durability="sync")


class Input(TypedDict):
    question: str


class Output(TypedDict):
    answer: str


class Whole(Input, Output):
    private: NotRequired[Forecast]


@scenario
def input_and_output_have_schemas_of_their_own(driver):
    class Hidden(TypedDict):
        secret: Leg

    def first(state: Input) -> Hidden:
        return {"secret": Leg(city=state["question"])}

    def second(state: Hidden) -> Whole:
        return {"answer": state["secret"].city.upper(), "private": Forecast("x")}

    builder = StateGraph(Whole, input_schema=Input, output_schema=Output)
    builder.add_node(first)
    builder.add_node(second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    yield from talk(driver, driver.compile(builder), {"question": "where"}, {"question": "when"})


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


@scenario
def messages_are_removed(driver):
    def trim(state):
        return {"messages": [RemoveMessage(message.id) for message in state["messages"][:-2]]}

    def clear(state):
        if len(state["messages"]) < 2:
            return {}
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), AIMessage("a summary", id="s")]}

    def reply(state):
        return {"messages": [AIMessage([{"type": "text", "text": "yes"}], id=f"r{len(state['messages'])}")]}

    graph = driver.compile(line(Chat, reply=reply, trim=trim, again=reply, clear=clear))
    yield from talk(driver, graph, human("one"), human("two"), human("three"))


# Send, Command --------------------------------------------------------------------------------------------------


@scenario
def objects_are_sent(driver):
    builder = StateGraph(Log)
    builder.add_node("plan", says("plan"))
    builder.add_node("work", lambda leg: {"log": [f"{type(leg).__name__} {leg.city}={interrupt(leg)}"]})
    builder.add_node("sum", says("sum"), defer=True)
    builder.add_edge(START, "plan")
    cities = [Leg(city="Porto"), Forecast("Faro", (1,)), Leg(city="Lisbon", budget=Budget.HIGH)]
    builder.add_conditional_edges("plan", lambda _: [Send("work", city) for city in cities], ["work"])
    builder.add_edge("work", "sum")
    graph = driver.compile(builder)
    yield from talk(driver, graph, {"log": []})
    asked = driver.state(graph, thread()).interrupts
    assert {type(question.value) for question in asked} == {Leg, Forecast}
    answers = {question.id: question.value.city.upper() for question in asked}
    first, *rest = sorted(answers, key=answers.get)
    yield from talk(driver, graph, Command(resume={first: answers[first]}))
    yield from talk(driver, graph, Command(resume={id: answers[id] for id in rest}))


@scenario
def a_subgraph_sends_its_parent_elsewhere(driver):
    def leave(state):
        return Command(graph=Command.PARENT, goto="other", update={"log": ["left"], "answer": "inner"})

    inner = line(Log, i=says("i"), leave=leave).compile()
    builder = line(Log, a=says("a"), sub=inner, b=says("b"))
    builder.add_node("other", lambda state: Command(goto=[Send("end", state)], update={"log": ["other"]}))
    builder.add_node("end", says("end"))
    graph = driver.compile(builder)
    yield from talk(driver, graph, {"log": ["in"]}, {"log": ["again"]})


@scenario
def a_command_resumes_and_updates_at_once(driver):
    graph = driver.compile(line(Log, a=says("a"), ask=asks("ask"), b=says("b")))
    yield from talk(driver, graph, {"log": []})
    yield from talk(driver, graph, Command(resume="yes", update={"answer": "beside"}))
    yield from talk(driver, graph, Command(goto="b", update={"log": ["straight to b"]}))


class Approval(BaseModel):
    approved: bool
    budget: Budget = Budget.LOW


@scenario
def an_interrupt_names_what_it_wants(driver):
    def node(state):
        answer = interrupt({"leg": Leg(city="x")}, response_schema=Approval)
        return {"log": [f"{type(answer).__name__} {answer.approved}"]}

    graph = driver.compile(line(Log, node=node))
    yield from talk(driver, graph, {"log": []}, Command(resume={"approved": True}))
    yield from talk(driver, graph, {"log": []}, Command(resume=Approval(approved=False, budget=Budget.HIGH)))


# Subgraphs ------------------------------------------------------------------------------------------------------


@scenario
def subgraph_has_its_own_checkpointer(driver):
    inner = line(Log, i=says("i"), ask=asks("inner")).compile(checkpointer=driver.other)
    graph = driver.compile(line(Log, a=says("a"), sub=inner, b=says("b")))
    yield from talk(driver, graph, {"log": ["in"]}, Command(resume="yes"))
    yield from talk(driver, graph, {"log": ["again"]}, Command(resume="no"))


@scenario
def a_node_calls_graphs_that_remember(driver):
    first = line(Log, i=says("first")).compile(checkpointer=True)
    second = line(Log, ask=asks("second")).compile()

    def node(state):
        log = first.invoke({"log": state["log"][-1:]})["log"]
        return {"log": [f"{len(log)}", *second.invoke({"log": []})["log"]]}

    graph = driver.compile(line(Log, a=says("a"), node=node))
    for turn in range(2):
        yield from talk(driver, graph, {"log": [str(turn)]}, Command(resume=f"yes {turn}"))


# Streams --------------------------------------------------------------------------------------------------------

MODES = ("values", "updates", "custom", "messages", "debug", "tasks", "checkpoints")


def streaming(driver):
    """Return a graph that writes to its stream, calls a model in a subgraph, and asks."""
    model = Scripted(script=[AIMessage("one two", id="m1")])

    def tell(state):
        get_stream_writer()({"progress": Forecast("x", (1,))})
        return {"messages": [AIMessage("told", id="told")]}

    def think(state):
        return {"messages": [model.invoke(state["messages"])]}

    def ask(state):
        return {"messages": [HumanMessage(interrupt("ok?"), id="answer")]}

    inner = line(Chat, think=think).compile()
    return driver.compile(line(Chat, tell=tell, sub=inner, ask=ask))


@scenario
def every_mode_streams_the_same(driver):
    graph = streaming(driver)
    for number, mode in enumerate(MODES):
        config = thread(f"t{number}")
        options = {"stream_mode": mode, "subgraphs": bool(number % 2)}
        yield driver.stream(graph, human("hi"), config, **options)
        yield driver.stream(graph, Command(resume="fine"), config, **options)


@scenario
def all_modes_stream_at_once(driver):
    graph = streaming(driver)
    for version in ("v1", "v2"):
        options = {"stream_mode": ["values", "updates", "tasks", "checkpoints"], "version": version}
        config = thread(version)
        yield driver.stream(graph, human("hi"), config, subgraphs=True, durability="sync", **options)
        yield driver.stream(graph, Command(resume="fine"), config, durability="exit", **options)
        yield driver.seen(graph, config)


# Updates and time travel ----------------------------------------------------------------------------------------


@scenario
def many_updates_at_once(driver):
    graph = driver.compile(line(Trip, a=asks_nothing, b=asks_nothing))
    driver.bulk_update(
        graph,
        thread(),
        [
            [StateUpdate({"legs": [Leg(city="Faro")], "turn": 1}, "a")],
            [StateUpdate({"legs": [Leg(city="Porto")]}, "b"), StateUpdate({"forecast": Forecast("y")}, "a")],
        ],
    )
    yield driver.seen(graph, thread())
    driver.bulk_update(graph, thread(), [[StateUpdate(None, END)]])
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, {"turn": 9}, thread())
    driver.update(graph, thread(), {"turn": 10}, as_node="a")
    yield driver.seen(graph, thread())
    yield driver.invoke(graph, None, thread())
    driver.update(graph, thread(), None, as_node="__copy__")
    yield driver.seen(graph, thread())


@scenario
def every_old_checkpoint_is_run_again_and_forked(driver):
    def work(state):
        return {"legs": [Leg(city=f"w{state.turn}")], "turn": state.turn + 1}

    graph = driver.compile(line(Trip, one=work, two=work, three=work))
    driver.invoke(graph, Trip(), thread())
    history = driver.history(graph, thread())
    for old in history:
        yield exact(driver._call(graph, "get_state", old.config))
        yield driver.invoke(graph, None, old.config)
    old = next(state for state in history if state.next == ("two",))
    forked = driver.update(graph, old.config, {"legs": [Leg(city="fork")]})
    yield driver.invoke(graph, None, forked)
    yield driver.seen(graph, thread())


# Caches and durability ------------------------------------------------------------------------------------------


@scenario
def nodes_are_cached(driver):
    count = []

    def slow(state):
        count.append(len(state["log"]))
        return {"log": ["slow"]}

    builder = StateGraph(Log)
    builder.add_node("slow", slow, cache_policy=CachePolicy())
    builder.add_node("after", says("after"))
    builder.add_edge(START, "slow")
    builder.add_edge("slow", "after")
    graph = driver.compile(builder, cache=InMemoryCache())
    for number in range(3):
        config = thread(f"t{number}")
        yield driver.stream(graph, {"log": ["in"]}, config, stream_mode=["updates", "values"])
        yield driver.seen(graph, config)
    yield list(count)
    driver._call(graph, "clear_cache")
    yield driver.invoke(graph, {"log": ["in"]}, thread("t9"))
    yield list(count)


@scenario
def a_store_saves_when_the_graph_exits(driver):
    graph = driver.compile(fan(Log, says("first"), asks("last"), a=says("a"), b=says("b")))
    for durability in ("exit", "async", "sync"):
        config = thread(durability)
        yield driver.invoke(graph, {"log": ["in"]}, config, durability=durability)
        yield driver.invoke(graph, Command(resume="yes"), config, durability=durability)
        yield driver.seen(graph, config)


@scenario
def a_node_fails_and_the_graph_continues(driver):
    count = []

    def fail(state):
        count.append(1)
        if len(count) == 1:
            raise ValueError("not yet")
        return {"log": ["now"]}

    inner = line(Log, i=says("i"), fail=fail).compile()
    graph = driver.compile(line(Log, a=says("a"), sub=inner, b=says("b")))
    with pytest.raises(ValueError, match="not yet"):
        driver.invoke(graph, {"log": []}, thread())
    yield driver.seen(graph, thread())
    yield from talk(driver, graph, None)


# All of them ----------------------------------------------------------------------------------------------------

# sync, async in worker threads, async on a store that belongs to the loop, sync from code that runs on a loop
MODES_OF_IO = ("sync", "async", "loop", "inside")


@contextlib.contextmanager
def driven(io_mode, url, other_url, loop):
    with OutliveSaver(other_url) as other:
        if io_mode == "loop":
            store = loop.run_until_complete(outlive.open_async(url)._open())
            saver = OutliveSaver(store)
            yield _driver(saver, other, io_mode, loop)
            loop.run_until_complete(saver.aclose())
            loop.run_until_complete(store.close())
            return
        with OutliveSaver(url) as saver:
            yield _driver(saver, other, io_mode, loop)


def _driver(saver, other, io_mode, loop):
    driver = ExactDriver(saver, None if io_mode == "sync" else loop, is_inside=io_mode == "inside")
    driver.other = other  # the checkpointer of a subgraph
    return driver


def expected_of(name, io_mode, loop):
    seen = list(SCENARIOS[name](_driver(exact_memory(), exact_memory(), io_mode, loop)))
    assert seen, "a scenario that shows nothing tests nothing"
    return seen


# In short each scenario runs sync, and in one of the other modes.
CASES = [
    (name, io_mode)
    for number, name in enumerate(sorted(SCENARIOS))
    for io_mode in (MODES_OF_IO if LONG else ("sync", MODES_OF_IO[1 + number % 3]))
]


@pytest.mark.parametrize("name, mode", CASES)
def test_a_graph_is_the_same_as_in_memory(name, mode, url, loop):
    with driven(mode, url, "memory:", loop) as driver:
        assert list(SCENARIOS[name](driver)) == expected_of(name, mode, loop)


@pytest.mark.parametrize("backend, mode", [("postgresql", "async"), ("redis", "loop")])
def test_a_graph_is_the_same_on_a_server(backend, mode, url_for, folder, loop):
    for number, name in enumerate(sorted(SCENARIOS) if LONG else ON_A_SERVER):
        place = folder / str(number)
        place.mkdir()
        with driven(mode, url_for(backend, place), "memory:", loop) as driver:
            assert list(SCENARIOS[name](driver)) == expected_of(name, mode, loop), name
