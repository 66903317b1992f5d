"""The OpenAI Agents SDK: its sessions and run states on every store, and its agents as runs that survive a kill."""

import asyncio
import json
import os

import pydantic
import pytest
from agents import (
    Agent,
    ModelSettings,
    RunConfig,
    Runner,
    Session,
    SessionSettings,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.tool import ToolOutputText
from agents.tool_context import ToolContext

import outlive
from outlive.adapters.openai_agents import OutliveRunStates, OutliveSession, aresume, arun, resume, run
from outlive.adapters.openai_agents.calls import prepare
from outlive.errors import BadArgument, HeadMoved, LeaseLost, ThreadBusy
from rig.adapters import APPENDS, LEASE_S, PROCESSES, Calls, append_at_once, die, recover

set_tracing_disabled(True)


def message(text, role="user"):
    return {"role": role, "content": text}


def tool_output(result):
    return [item["output"] for item in result.to_input_list() if item.get("type") == "function_call_output"]


# Sessions


@pytest.fixture
def session(each_store):
    return OutliveSession("trip", each_store)


def test_a_session_is_one_of_the_sdk(session):
    assert isinstance(session, Session)


@pytest.mark.parametrize("limit", [None, 0, 1, 3, 99, -1])
def test_the_items_are_those_of_the_sdks_own_session(session, limit):
    async def play(subject):
        await subject.add_items([])
        for n in range(3):
            await subject.add_items([message(f"question {n}"), message(f"answer {n}", "assistant")])
        assert await subject.pop_item() == message("answer 2", "assistant")
        yield await subject.get_items(limit)
        yield await subject.get_items(limit=limit)
        await subject.clear_session()
        yield await subject.get_items()
        yield await subject.pop_item()
        await subject.add_items([message("again")])
        yield await subject.get_items()

    async def both():
        theirs = SQLiteSession("trip")
        ours = [seen async for seen in play(session)]
        assert ours == [seen async for seen in play(theirs)]
        theirs.close()

    asyncio.run(both())


@pytest.mark.parametrize("settings", [SessionSettings(limit=2), {"limit": 2}])
def test_the_settings_of_a_session_limit_what_is_read(each_store, settings):
    async def scenario():
        session = OutliveSession("trip", each_store, session_settings=settings)
        await session.add_items([message(str(n)) for n in range(5)])
        assert await session.get_items() == [message("3"), message("4")]
        assert len(await session.get_items(limit=4)) == 4

    asyncio.run(scenario())


def test_a_conversation_continues_in_another_session_and_in_another_loop(each_store):
    for turn in range(3):
        model = ScriptedModel([[assistant_message(f"answer {turn}")]])
        agent = Agent(name="a", model=model)
        asyncio.run(Runner.run(agent, f"question {turn}", session=OutliveSession("trip", each_store)))
        assert len(model.calls[0].input) == 2 * turn + 1
    items = each_store.thread("trip").load()["items"]
    assert [item["role"] for item in items] == ["user", "assistant"] * 3


@pytest.mark.parametrize("is_streamed", [False, True])
def test_parallel_tools_and_streams_leave_what_they_leave_in_the_sdks_own_session(each_store, is_streamed):
    async def talk(session):
        agent = weather_agent(
            [
                function_call("weather", {"city": "Porto"}, call_id="a"),
                function_call("weather", {"city": "Faro"}, call_id="b"),
            ]
        )
        if is_streamed:
            async for _ in (result := Runner.run_streamed(agent, "go", session=session)).stream_events():
                pass
        else:
            result = await Runner.run(agent, "go", session=session)
        assert result.final_output == "done"
        return [without_ids(item) for item in await session.get_items()]

    async def both():
        theirs = SQLiteSession("trip")
        assert await talk(OutliveSession("trip", each_store)) == await talk(theirs)
        theirs.close()

    asyncio.run(both())


def without_ids(item):
    return {name: value for name, value in item.items() if name != "id"}


def weather_agent(*turns):
    @function_tool
    async def weather(city: str) -> str:
        """Tell the weather of a city."""
        await asyncio.sleep(0)
        return f"sun in {city}"

    return Agent(name="a", model=ScriptedModel([*turns, [assistant_message("done")]]), tools=[weather])


def test_the_past_of_a_session(each_store):
    async def scenario():
        session = OutliveSession("trip", each_store)
        for n in range(3):
            await session.add_items([message(str(n))])
        newest, before, _ = await session.history()
        assert (newest.metadata, [info.id for info in await session.history(limit=1)]) == (
            {"items": 3},
            [newest.id],
        )
        past = OutliveSession("trip", each_store, at=before.id)
        assert await past.get_items() == [message("0"), message("1")]
        for change in (past.add_items([message("x")]), past.pop_item(), past.clear_session()):
            with pytest.raises(BadArgument, match="fork"):
                await change
        forked = await session.fork("other", at=before.id)
        await forked.add_items([message("another 2")])
        assert [item["content"] for item in await forked.get_items()] == ["0", "1", "another 2"]
        assert len(await session.get_items()) == 3
        (change,) = await session.diff(before.id)
        assert change.path == "items[2]"
        assert await session.prune(keep_last=1) == 2
        assert (await session.delete(), await session.delete()) == (True, False)
        assert await session.get_items() == []

    asyncio.run(scenario())


def test_what_is_cleared_is_erased(folder):
    path = folder / "agent.db"
    url = f"sqlite:///{path}"

    async def scenario():
        async with OutliveSession("trip", url) as session:
            await session.add_items([message("the-secret-word")])
            await session.clear_session()
        assert b"the-secret-word" not in path.read_bytes()
        async with OutliveSession("trip", url, keep_history=True) as session:
            await session.add_items([message("the-kept-word")])
            await session.clear_session()
            assert len(await session.history()) == 3

    asyncio.run(scenario())


def test_what_is_popped_is_erased(folder):
    path = folder / "agent.db"

    async def scenario():
        async with OutliveSession("trip", f"sqlite:///{path}") as session:
            await session.add_items([message("the-first-word")])
            await session.add_items([message("the-secret-word")])
            await session.add_items([message("the-last-word")])
            await session.pop_item()
            await session.pop_item()
            assert [info.metadata["items"] for info in await session.history()] == [1, 1]
        assert b"the-secret-word" not in path.read_bytes()
        assert b"the-first-word" in path.read_bytes()

    asyncio.run(scenario())


def test_an_add_that_is_cancelled_is_made_and_then_cancelled(each_store):
    async def scenario():
        session = OutliveSession("trip", each_store)
        adding = asyncio.create_task(session.add_items([message("once")]))
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert await session.get_items() == [message("once")]

    asyncio.run(scenario())


def test_a_session_in_an_encrypted_store_of_a_tenant(folder):
    url = f"sqlite:///{folder}/agent.db"
    options = {"key": outlive.KeyRing({"k": os.urandom(32)}), "tenant": "acme"}

    async def scenario():
        async with OutliveSession("trip", url, **options) as session:
            await session.add_items([message("the-secret-word")])
        assert b"the-secret-word" not in (folder / "agent.db").read_bytes()
        async with OutliveSession("trip", url, **options) as session:
            assert await session.get_items() == [message("the-secret-word")]

    asyncio.run(scenario())


def add_many(report, url, number, wait):
    async def scenario():
        async with OutliveSession("trip", url) as session:
            await session.get_items()
            wait(report)
            for n in range(APPENDS):
                await session.add_items([message(f"{number} {n}"), message(f"{number} {n}", "assistant")])

    asyncio.run(scenario())


def test_two_processes_add_at_once_and_lose_nothing(workers, shared_url, folder):
    append_at_once(workers, add_many, shared_url, folder)
    with outlive.open(shared_url) as store:
        items = store.thread("trip").load()["items"]
    assert len(items) == 2 * PROCESSES * APPENDS
    assert all(a["content"] == b["content"] for a, b in zip(items[::2], items[1::2], strict=True))


def test_a_guarded_session_tells_the_loser(each_store):
    async def scenario():
        guarded, other = OutliveSession("t", each_store, guard="head"), OutliveSession("t", each_store)
        await guarded.get_items()
        await other.add_items([message("first")])
        with pytest.raises(HeadMoved):
            await guarded.add_items([message("second")])

    asyncio.run(scenario())


# Run states


def approving(calls, script=None):
    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        calls(f"pay:{amount}")
        return f"paid {amount}"

    pays = [
        function_call("pay", {"amount": 1}, call_id="c1"),
        function_call("pay", {"amount": 2}, call_id="c2"),
    ]
    return Agent(
        name="payer", model=counted(calls, script or [pays, [assistant_message("done")]]), tools=[pay]
    )


class Counted(ScriptedModel):
    """A scripted model that counts its calls, and continues its script where another process was killed."""

    def __init__(self, calls, script):
        done = sum(name.startswith("model") for name in calls.names)
        super().__init__(script[done:])
        self._count = calls
        self._number = done

    async def get_response(self, *args, **options):
        self._count(f"model:{self._number}")
        self._number += 1
        return await super().get_response(*args, **options)

    async def stream_response(self, *args, **options):
        self._count(f"model:{self._number}")
        self._number += 1
        async for event in super().stream_response(*args, **options):
            yield event


def counted(calls, script):
    return Counted(calls, script)


def test_a_run_state_is_saved_and_continued_elsewhere(each_store, folder):
    calls = Calls(folder)

    async def ask():
        result = await Runner.run(approving(calls), "go")
        states = OutliveRunStates("trip", each_store)
        saved = await states.save(result.to_state(), metadata={"user": "ann"})
        assert (saved.source, saved.metadata) == ("interrupt", {"interruptions": 2, "user": "ann"})

    async def answer():
        agent, states = approving(calls), OutliveRunStates("trip", each_store)
        state = await states.load(agent)
        first, second = state.get_interruptions()
        state.approve(first)
        state.reject(second, rejection_message="too much")
        result = await Runner.run(agent, state)
        assert (result.final_output, tool_output(result)) == ("done", ["paid 1", "too much"])
        (info,) = await states.history()
        assert (await states.load(agent, at=info.id)).get_interruptions()
        assert (await states.delete(), await states.delete(), await states.load(agent)) == (True, False, None)

    asyncio.run(ask())
    asyncio.run(answer())
    assert calls.names == ["model:0", "pay:1", "model:1"]


def test_fifty_growing_run_states_share_what_they_have_in_common(folder):
    async def scenario():
        states = OutliveRunStates("trip", f"sqlite:///{folder}/agent.db")
        agent = weather_agent(
            *([function_call("weather", {"city": str(n) * 1000}, call_id=f"c{n}")] for n in range(50))
        )
        total = 0
        result = Runner.run_streamed(agent, "go", max_turns=99)
        async for event in result.stream_events():
            if getattr(event, "name", "") == "tool_output":
                state = result.to_state()
                total += len(json.dumps(state.to_json()))
                await states.save(state)
        states.close()
        return total

    total = asyncio.run(scenario())
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        assert store.thread("trip", namespace="run states").size().stored_bytes < total / 20


# Runs

TURNS = [
    [function_call("search", {"city": "Porto"}, call_id="c1")],
    [
        function_call("book", {"city": "Porto"}, call_id="c2"),
        function_call("book", {"city": "Faro"}, call_id="c3"),
    ],
    [assistant_message("done")],
]


def planner(folder, dies_in=None, turns=None):
    calls = Calls(folder, dies_in)

    @function_tool
    async def search(city: str) -> str:
        """Search a city."""
        calls(f"search:{city}")
        return f"found {city}"

    @function_tool
    async def book(city: str) -> str:
        """Book a city."""
        if city == "Faro":  # the other one of the two has ended
            while "book:Porto" not in calls.names:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
        calls(f"book:{city}")
        return f"booked {city}"

    return Agent(name="planner", model=counted(calls, turns or TURNS), tools=[search, book])


def plan_and_die(report, url, folder):
    with outlive.open(url) as store:
        run(planner(folder, "book:Faro"), "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def stream_and_die(report, url, folder):
    with outlive.open(url) as store:
        options = {"run_id": "r", "lease_s": LEASE_S, "on_event": lambda event: None}
        run(planner(folder, "book:Faro"), "go", thread_id="trip", store=store, **options)


def plan_on_a_loop_and_die(report, url, folder):
    async def scenario():
        async with await outlive.open_async(url) as store:
            agent = planner(folder, "book:Faro")
            await arun(agent, "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)

    asyncio.run(scenario())


@pytest.mark.parametrize("begin", [plan_and_die, stream_and_die, plan_on_a_loop_and_die])
def test_an_agent_that_is_killed_in_its_second_tool_is_finished_by_another_process(
    workers, shared_url, folder, begin
):
    with outlive.open(shared_url) as store:
        asyncio.run(OutliveSession("trip", store).add_items([message("before")]))
    die(workers, begin, shared_url, str(folder))
    run_info = recover(shared_url, {"planner": lambda run: resume(planner(folder), run)})
    assert (run_info.status, run_info.result, run_info.attempt) == ("completed", "done", 2)
    finished = ["model:0", "search:Porto", "model:1", "book:Porto", "book:Faro"]
    assert Calls(folder).names == [*finished, "book:Faro", "model:2"], (
        "only what was under way is called again"
    )
    with outlive.open(shared_url) as store:
        again = run(planner(folder), "go", thread_id="trip", store=store, run_id="r")
        assert (again.final_output, again.result) == ("done", None)
        items = store.thread("trip").load()["items"]
    assert [item.get("content") for item in items[:2]] == ["before", "go"]
    assert [item.get("type", "message") for item in items[2:]] == [
        "function_call", "function_call_output", "function_call", "function_call",
        "function_call_output", "function_call_output", "message",
    ]  # fmt: skip
    assert [item["output"] for item in items if item.get("type") == "function_call_output"] == [
        "found Porto", "booked Porto", "booked Faro",
    ]  # fmt: skip


def test_an_agent_is_resumed_on_a_loop_and_by_a_stream(workers, folder):
    url = f"sqlite:///{folder}/agent.db"
    die(workers, plan_and_die, url, str(folder))
    events = []

    async def scenario():
        async with await outlive.open_async(url) as store:

            async def handle(run):
                outcome = await aresume(planner(folder), run, on_event=events.append)
                assert outcome.final_output == "done"

            report = await store.recover({"planner": handle})
            assert [info.status for info in report.resumed] == ["completed"]

    asyncio.run(scenario())
    names = [getattr(event, "name", event.type) for event in events]
    assert [name for name in names if name in ("tool_called", "tool_output")].count("tool_output") == 3
    assert Calls(folder).names.count("model:1") == 1


def test_every_kill_of_a_run_repeats_only_what_was_under_way(workers, folder):
    url = f"sqlite:///{folder}/agent.db"
    for number, name in enumerate(["model:0", "search:Porto", "model:1", "book:Porto", "model:2"]):
        place = folder / str(number)
        place.mkdir()
        die(workers, die_in, f"{url}{number}", str(place), name)
        calls = Calls(place)
        before = calls.names
        # a model that was killed has given no response: its script begins with it
        script = TURNS[sum(call.startswith("model") for call in before) - name.startswith("model") :]
        info = recover(f"{url}{number}", {"planner": lambda run, p=place, s=script: resume(again(p, s), run)})
        assert (info.status, info.result) == ("completed", "done")
        assert sorted(set(calls.names)) == sorted(set(ALL))
        assert len(calls.names) == len(ALL) + 1, calls.names


ALL = ["model:0", "search:Porto", "model:1", "book:Porto", "book:Faro", "model:2"]


def again(folder, script):
    agent = planner(folder)
    done = len(TURNS) - len(script)
    model = Counted.__new__(Counted)
    ScriptedModel.__init__(model, script)
    model._count, model._number = Calls(folder), done
    agent.model = model
    return agent


def die_in(report, url, folder, name):
    with outlive.open(url) as store:
        run(planner(folder, name), "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def test_an_approval_is_a_question_that_any_process_answers(each_store, folder):
    calls = Calls(folder)
    outcome = run(approving(calls), "go", thread_id="trip", store=each_store, run_id="r")
    assert (outcome.is_waiting, outcome.final_output, len(outcome.result.interruptions)) == (True, None, 2)
    first, second = sorted(each_store.questions(), key=lambda question: question.name)
    assert (first.name, first.payload) == (
        "pay:c1", {"tool": "pay", "arguments": {"amount": 1}, "call_id": "c1", "agent": "payer"},
    )  # fmt: skip
    each_store.answer("r", first.name, True)
    assert not each_store.recover({"payer": lambda run: resume(approving(calls), run)}).resumed
    each_store.answer("r", second.name, {"approve": False, "message": "too much"}, by="ann")
    outputs = []
    each_store.recover({"payer": lambda run: outputs.append(resume(approving(calls), run))})
    assert (each_store.find_run("r").status, outputs[0].final_output) == ("completed", "done")
    assert tool_output(outputs[0].result) == ["paid 1", "too much"]
    assert calls.names == ["model:0", "pay:1", "model:1"]
    kinds = [item.get("type", item.get("role")) for item in each_store.thread("trip").load()["items"]]
    assert kinds == [
        "user",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]


def test_a_lost_run_is_not_told_to_the_model(folder):
    calls = Calls(folder)
    with outlive.open("memory:") as store:

        @function_tool
        def work(n: int) -> str:
            """Work."""
            calls(f"work:{n}")
            if n == 1:
                store.cancel("r")
            return "worked"

        turns = [[function_call("work", {"n": n}, call_id=f"c{n}")] for n in range(4)]
        agent = Agent(name="a", model=counted(calls, [*turns, [assistant_message("done")]]), tools=[work])
        with pytest.raises(LeaseLost):
            run(agent, "go", thread_id="trip", store=store, run_id="r")
        assert calls.names == ["model:0", "work:0", "model:1", "work:1"]
        assert store.find_run("r").status == "cancelled"


def test_an_error_of_a_tool_is_told_to_the_model_as_before():
    @function_tool(failure_error_function=lambda ctx, error: str(error))
    def fail() -> str:
        """Fail."""
        raise ValueError("no such city")

    agent = Agent(
        name="a",
        model=ScriptedModel([[function_call("fail", {}, call_id="c")], [assistant_message("sorry")]]),
        tools=[fail],
    )
    with outlive.open("memory:") as store:
        outcome = run(agent, "go", thread_id="trip", store=store)
        assert (outcome.final_output, tool_output(outcome.result)) == ("sorry", ["no such city"])


def test_while_a_run_has_the_thread_no_other_begins():
    with outlive.open("memory:") as store, store.run("trip"):
        with pytest.raises(ThreadBusy):
            run(Agent(name="a", model=ScriptedModel([])), "go", thread_id="trip", store=store)


class Plan(pydantic.BaseModel):
    city: str
    days: int


def test_a_typed_output_is_one_again_when_the_run_had_ended():
    agent = Agent(
        name="a", model=ScriptedModel([[assistant_message('{"city": "Porto", "days": 3}')]]), output_type=Plan
    )
    with outlive.open("memory:") as store:
        outcome = run(agent, "go", thread_id="trip", store=store, run_id="r")
        assert outcome.final_output == Plan(city="Porto", days=3)
        assert store.find_run("r").result == {"city": "Porto", "days": 3}
        assert run(agent, "go", thread_id="trip", store=store, run_id="r").final_output == Plan(
            city="Porto", days=3
        )


def crew(folder, dies_in=None):
    """A lead that hands over to a writer, which uses a scout as a tool, twice at once."""
    calls = Calls(folder, dies_in)

    @function_tool
    def look(ctx: ToolContext, city: str) -> ToolOutputText:
        """Look at a city."""
        calls(f"look:{city}")
        return ToolOutputText(text=f"{city} is fine")

    def scout_script(call):
        items = [{"content": call.input}] if isinstance(call.input, str) else call.input
        city = items[0]["content"]
        calls(f"scout:{city}:{len(items)}")
        if len(items) > 1:
            return [assistant_message(f"{city}!")]
        return [function_call("look", {"city": city}, call_id=f"look-{city}")]

    scout = Agent(name="scout", model=ScriptedModel([ModelStep.respond(scout_script)] * 9), tools=[look])

    def write(call):
        calls(f"writer:{len(call.input)}")
        if any(item.get("type") == "function_call_output" and item["call_id"] == "s1" for item in call.input):
            return [assistant_message("written")]
        cities = [("s1", "Porto"), ("s2", "Faro")]
        return [function_call("ask_scout", {"input": city}, call_id=call_id) for call_id, city in cities]

    writer_model = ScriptedModel([ModelStep.respond(write)] * 9)
    writer = Agent(name="writer", model=writer_model, tools=[scout.as_tool("ask_scout", "ask the scout")])
    lead_model = ScriptedModel([[function_call("transfer_to_writer", {}, call_id="h1")]])
    return Agent(name="lead", model=lead_model, handoffs=[writer]), lead_model


def lead_and_die(report, url, folder):
    with outlive.open(url) as store:
        run(crew(folder, "look:Faro")[0], "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def test_handoffs_and_agents_used_as_tools_are_not_repeated_either(workers, folder):
    url = f"sqlite:///{folder}/agent.db"
    die(workers, lead_and_die, url, str(folder))
    before = Calls(folder).names
    lead, lead_model = crew(folder)
    info = recover(url, {"lead": lambda run: resume(lead, run)})
    assert (info.status, info.result) == ("completed", "written")
    assert not lead_model.calls, "the handoff is stored"
    new = Calls(folder).names[len(before) :]
    assert new.count("look:Faro") == 1
    assert sorted(before + new).count("scout:Porto:1") == 1
    assert sorted(before + new).count("scout:Faro:1") == 1


def test_an_agent_that_was_prepared_works_without_a_run_as_before():
    agent = weather_agent([function_call("weather", {"city": "Porto"}, call_id="a")])
    model = agent.model
    for _ in range(2):
        prepare(agent)
    assert agent.model._model is model
    result = asyncio.run(Runner.run(agent, "go"))
    assert tool_output(result) == ["sun in Porto"]
    agent = weather_agent([function_call("weather", {"city": "Porto"}, call_id="a")])
    prepare(agent)

    async def stream():
        result = Runner.run_streamed(agent, "go")
        return [event.type async for event in result.stream_events()], result.final_output

    events, output = asyncio.run(stream())
    assert output == "done"
    assert events.count("raw_response_event") > 4


def test_models_by_name_and_of_the_configuration_are_steps_too():
    class Provider:
        def __init__(self, model):
            self.model = model

        def get_model(self, name):
            return self.model

        async def aclose(self):
            pass

    with outlive.open("memory:") as store:
        for number, config in enumerate(
            [
                lambda model: RunConfig(model_provider=Provider(model)),
                lambda model: RunConfig(model=model, model_settings=ModelSettings(temperature=0)),
            ]
        ):
            model = ScriptedModel([[assistant_message("done")]])
            outcome = run(
                Agent(name="a", model="some-model"),
                "go",
                thread_id=f"t{number}",
                store=store,
                run_config=config(model),
            )
            assert outcome.final_output == "done"
            assert [step.name for step in store.steps(outcome.run.id)] == ["conversation", "model"]


def test_wrong_arguments_say_what_to_do(folder):
    agent = Agent(name="a", model=ScriptedModel([]))
    with outlive.open("memory:") as store:
        with pytest.raises(BadArgument, match="thread_id"):
            run(agent, "go", thread_id="t", store=store, session=OutliveSession("t", store))
        with pytest.raises(BadArgument, match="conversation_id"):
            run(agent, "go", thread_id="t", store=store, run_id="r", conversation_id="c")
        assert store.find_run("r") is None
        with store.run("t") as plain, pytest.raises(BadArgument, match="not started by this adapter"):
            resume(agent, plain)
        with pytest.raises(BadArgument, match="OutliveSession takes"):
            OutliveSession("t", 3)

    async def on_a_loop():
        with outlive.open("memory:") as store:
            run(agent, "go", thread_id="t", store=store)

    with pytest.raises(BadArgument, match="arun"):
        asyncio.run(on_a_loop())
