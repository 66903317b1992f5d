"""Pydantic AI: its conversations on every store, and its agents as runs that survive a kill."""

import asyncio
import os

import pydantic
import pytest
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, ModelRetry
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationRecord,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

import outlive
from outlive.adapters.pydantic_ai import (
    OutliveConversationStore,
    OutliveDurability,
    aresume,
    arun,
    resume,
    run,
)
from outlive.errors import BadArgument, CheckpointMissing, LeaseLost, ThreadBusy
from outlive.runs.run import AsyncRun
from rig.adapters import APPENDS, LEASE_S, PROCESSES, Calls, append_at_once, die, recover

# Conversations


def said(text):
    return ModelRequest(parts=[UserPromptPart(content=text)])


def texts(messages):
    return [part.content for message in messages for part in message.parts]


def talking(text="hello"):
    return Agent(TestModel(custom_output_text=text), name="talker")


@pytest.fixture(params=["the framework's own", "memory", "sqlite", "postgresql", "redis"])
def conversations(request, url_for, folder):
    """The store of the framework, which says what is right, and ours on every store."""
    if request.param == "the framework's own":
        yield InMemoryConversationStore()
        return
    url = "memory:" if request.param == "memory" else url_for(request.param, folder)
    with outlive.open(url) as store:
        yield OutliveConversationStore(store)


async def saved(conversations, *prompts, id="trip", scope=None):
    conversation = Conversation(conversation_id=id)
    for prompt in prompts:
        conversation.messages.append(said(prompt))
        await conversations.save(conversation, scope=scope)
    return conversation


def test_a_conversation_is_loaded_as_it_was_saved(conversations):
    async def scenario():
        assert await conversations.load("trip") is None
        first = await talking().run("go", conversation=Conversation(conversation_id="trip"))
        entries = await conversations.save(first)
        assert len(entries) == 2
        loaded = await conversations.load("trip")
        assert loaded.messages == first.all_messages()
        assert (loaded.usage, loaded.revision) == (first.usage, first.conversation.revision)
        second = await talking("again").run("go on", conversation=loaded)
        assert len(await conversations.save(second)) == 2
        again = await conversations.load("trip")
        assert (texts(again.messages), again.usage.requests) == (["go", "hello", "go on", "again"], 2)
        assert texts((await conversations.load("trip", limit=3)).messages) == ["hello", "go on", "again"]
        assert [entry.id for entry in (await conversations.load_entries("trip"))[:2]] == [
            entry.id for entry in entries
        ]
        assert (await conversations.read_entry(entries[1].id)).message == entries[1].message
        with pytest.raises(LookupError):
            await conversations.read_entry("nobody")

    asyncio.run(scenario())


def test_the_loser_of_two_saves_is_told(conversations):
    async def scenario():
        await saved(conversations, "one")
        first, second = await conversations.load("trip"), await conversations.load("trip")
        first.messages.append(said("two"))
        await conversations.save(first)
        second.messages.append(said("three"))
        with pytest.raises(ConversationConflict):
            await conversations.save(second)
        with pytest.raises(ConversationConflict):
            await saved(conversations, "a new one of that id")
        missing = ConversationRecord(conversation_id="other", head_id="nowhere")
        with pytest.raises(ConversationConflict):
            await conversations.write_record(missing, expected_revision=None)
        assert texts((await conversations.load("trip")).messages) == ["one", "two"]
        assert await conversations.load("other") is None

    asyncio.run(scenario())


def test_branches_and_rewritten_histories(conversations):
    async def scenario():
        await saved(conversations, "one", "two", "three")
        loaded = await conversations.load("trip")
        tip = (await conversations.load_entries("trip"))[-1].id
        branched = await conversations.branch("trip", at=1, expected_revision=loaded.revision)
        branched.messages.append(said("another two"))
        await conversations.save(branched)
        assert texts((await conversations.load("trip")).messages) == ["one", "another two"]
        (record,) = await conversations.list_conversations()
        assert record.branches == [tip]
        back = await conversations.branch("trip", from_entry=tip, expected_revision=branched.revision)
        assert texts(back.messages) == ["one", "two", "three"]
        rewritten = Conversation(
            conversation_id="trip", messages=[said("a summary"), said("four")], revision=back.revision
        )
        await conversations.save(rewritten)
        assert texts((await conversations.load("trip")).messages) == ["a summary", "four"]
        (record,) = await conversations.list_conversations()
        assert len(record.branches) == 2
        with pytest.raises(UserError):
            await conversations.branch("trip", from_entry="nowhere", expected_revision=record.revision)

    asyncio.run(scenario())


def test_a_fork_outlives_the_conversation_that_it_comes_from(conversations):
    async def scenario():
        await saved(conversations, "one", "two", "three", scope="ann")
        fork = await conversations.fork("trip", at=2, new_conversation_id="fork")
        fork.messages.append(said("other"))
        await conversations.save(fork)
        await conversations.delete("trip")
        assert await conversations.load("trip") is None
        assert texts((await conversations.load("fork")).messages) == ["one", "two", "other"]
        (record,) = await conversations.list_conversations(scope="ann")
        assert (record.conversation_id, record.forked_from) == ("fork", "trip")
        with pytest.raises(ConversationConflict):
            await conversations.fork("fork", new_conversation_id="fork")
        await saved(conversations, "begins again")
        assert texts((await conversations.load("trip")).messages) == ["begins again"]

    asyncio.run(scenario())


def test_conversations_are_listed_by_scope_and_the_newest_first(conversations):
    async def scenario():
        for number in range(4):
            await saved(conversations, "one", id=f"c{number}", scope="ann" if number % 2 else "bob")
        again = await conversations.load("c0")
        again.messages.append(said("two"))
        await conversations.save(again)
        ids = [record.conversation_id for record in await conversations.list_conversations()]
        assert ids == ["c0", "c3", "c2", "c1"]
        for limit, expected in [(0, []), (1, ["c3"]), (9, ["c3", "c1"])]:
            records = await conversations.list_conversations(scope="ann", limit=limit)
            assert [record.conversation_id for record in records] == expected
        assert await conversations.load("c1", scope="bob") is None
        await conversations.delete("c1", scope="bob")
        assert await conversations.load("c1", scope="ann")
        with pytest.raises(ConversationConflict):
            await conversations.delete_record("c1", expected_revision="another")

    asyncio.run(scenario())


def test_bytes_and_requests_that_wait_survive(conversations):
    def asking(tools=DeferredToolRequests):
        agent = Agent(TestModel(), name="asker", output_type=[str, tools])

        @agent.tool_plain(requires_approval=True)
        def pay(eur: int) -> str:
            return "paid"

        return agent

    async def scenario():
        scan = BinaryContent(data=bytes(range(256)), media_type="application/pdf")
        result = await asking().run(["look", scan], conversation=Conversation(conversation_id="trip"))
        await conversations.save(result)
        loaded = await conversations.load("trip")
        assert loaded.messages == result.all_messages()
        assert loaded.deferred_tool_requests == result.output
        results = loaded.deferred_tool_requests.build_results(approve_all=True)
        ended = await asking().run(conversation=loaded, deferred_tool_results=results)
        await conversations.save(ended)
        assert (await conversations.load("trip")).deferred_tool_requests is None

    asyncio.run(scenario())


def test_another_process_finds_a_history_by_its_end_alone(each_store):
    async def scenario():
        await saved(OutliveConversationStore(each_store), "one", "two")
        await saved(OutliveConversationStore(each_store), "other", id="other")
        each_store.thread("no conversation").save({"x": 1})
        entries = await OutliveConversationStore(each_store).load_entries("trip")
        fresh = OutliveConversationStore(each_store)
        assert await fresh.read_history(entries[1].id) == entries
        assert (await OutliveConversationStore(each_store).read_entry(entries[0].id)) == entries[0]

    asyncio.run(scenario())


def test_the_past_of_a_conversation(each_store):
    async def scenario():
        conversations = OutliveConversationStore(each_store)
        await saved(conversations, "one", "two", "three")
        newest, before, _ = await conversations.history("trip")
        assert [info.id for info in await conversations.history("trip", limit=1)] == [newest.id]
        past = await conversations.at("trip", before.id)
        assert (texts(past.messages), past.revision) == (["one", "two"], None)
        with pytest.raises(CheckpointMissing):
            await conversations.at("trip", "nowhere")
        (change,) = await conversations.diff("trip", before.id)
        assert change.path == "items[2]"
        assert await conversations.prune("trip", keep_last=1) == 2
        assert texts((await conversations.load("trip")).messages) == ["one", "two", "three"]

    asyncio.run(scenario())


def test_a_conversation_that_is_deleted_is_erased(folder):
    path = folder / "agent.db"

    async def scenario():
        async with OutliveConversationStore(f"sqlite:///{path}") as conversations:
            await saved(conversations, "the-secret-word", "more")
            await conversations.delete("trip")
        assert b"the-secret-word" not in path.read_bytes()

    asyncio.run(scenario())


def test_conversations_in_an_encrypted_store_of_a_tenant(folder):
    options = {"key": outlive.KeyRing({"k": os.urandom(32)}), "tenant": "acme"}

    async def scenario():
        for turn in range(2):
            async with OutliveConversationStore(f"sqlite:///{folder}/agent.db", **options) as conversations:
                conversation = await conversations.load("trip") or Conversation(conversation_id="trip")
                assert len(conversation.messages) == turn
                conversation.messages.append(said("the-secret-word"))
                await conversations.save(conversation, scope="the-secret-word")
        assert b"the-secret-word" not in (folder / "agent.db").read_bytes()

    asyncio.run(scenario())


def save_many(report, url, number, wait):
    async def scenario():
        async with OutliveConversationStore(url) as conversations:
            wait(report)
            for n in range(APPENDS):
                while True:
                    conversation = await conversations.load("trip") or Conversation(conversation_id="trip")
                    conversation.messages += [said(f"{number} {n}"), said(f"{number} {n}")]
                    try:
                        await conversations.save(conversation)
                    except ConversationConflict:
                        continue
                    break

    asyncio.run(scenario())


def test_two_processes_save_at_once_and_lose_nothing(workers, shared_url, folder):
    append_at_once(workers, save_many, shared_url, folder)

    async def scenario():
        async with OutliveConversationStore(shared_url) as conversations:
            return texts((await conversations.load("trip")).messages)

    seen = asyncio.run(scenario())
    assert len(set(seen)) == PROCESSES * APPENDS
    assert seen[::2] == seen[1::2]


# Runs


def tool_call(name, call_id, **args):
    return ToolCallPart(tool_name=name, args=args, tool_call_id=call_id)


def scripted(calls, *turns):
    """A model that plays turns: which one, the responses in the history say."""

    def turn_of(messages):
        number = sum(isinstance(message, ModelResponse) for message in messages)
        calls(f"model:{number}")
        return turns[number]

    def respond(messages, info):
        return ModelResponse(parts=turn_of(messages))

    async def stream(messages, info):
        for index, part in enumerate(turn_of(messages)):
            if isinstance(part, TextPart):
                for word in part.content:
                    yield word
            else:
                args = part.args_as_json_str()
                yield {index: DeltaToolCall(part.tool_name, args, tool_call_id=part.tool_call_id)}

    return FunctionModel(respond, stream_function=stream)


TURNS = [
    [tool_call("search", "c1", city="Porto")],
    [tool_call("book", "c2", city="Porto"), tool_call("book", "c3", city="Faro")],
    [TextPart("done")],
]


def planner(folder, dies_in=None):
    calls = Calls(folder, dies_in)
    agent = Agent(scripted(calls, *TURNS), name="planner", capabilities=[OutliveDurability()])

    @agent.tool_plain
    def search(city: str) -> str:
        calls(f"search:{city}")
        return f"found {city}"

    @agent.tool_plain
    async def book(city: str) -> dict[str, str]:
        if city == "Faro":  # the other one of the two has ended
            while "book:Porto" not in calls.names:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
        calls(f"book:{city}")
        return {"booked": city}

    return agent


def plan_and_die(report, url, folder, name="book:Faro"):
    with outlive.open(url) as store:
        run(planner(folder, name), "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


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


async def messages_of(store, id="trip"):
    conversation = await OutliveConversationStore(store).load(id)
    return conversation.messages if conversation else []


def tool_results(messages):
    parts = [part for message in messages for part in message.parts if part.part_kind == "tool-return"]
    return [part.content for part in parts]


@pytest.mark.parametrize("begin", [plan_and_die, stream_and_die, plan_on_a_loop_and_die])
def test_an_agent_that_is_killed_in_its_second_tool_is_finished_by_another_process(
    workers, shared_url, folder, begin
):
    with outlive.open(shared_url) as store:
        asyncio.run(saved(OutliveConversationStore(store), "before"))
    die(workers, begin, shared_url, str(folder))
    run_info = recover(shared_url, {"planner": lambda run: resume(planner(folder), run)})
    assert (run_info.status, run_info.result, run_info.attempt) == ("completed", "done", 2)
    finished = ["model:0", "search:Porto", "model:1", "book:Porto", "book:Faro"]
    assert Calls(folder).names == [*finished, "book:Faro", "model:2"], (
        "only what was under way is called again"
    )
    with outlive.open(shared_url) as store:
        again = run(planner(folder), "go", thread_id="trip", store=store, run_id="r")
        assert (again.output, again.result) == ("done", None)
        messages = asyncio.run(messages_of(store))
    assert texts(messages[:1]) == ["before"]
    assert tool_results(messages) == ["found Porto", {"booked": "Porto"}, {"booked": "Faro"}]
    assert (messages[1].parts[0].content, messages[-1].text, len(messages)) == ("go", "done", 7)


@pytest.mark.parametrize("name", ["model:0", "search:Porto", "model:1", "book:Porto", "model:2"])
def test_every_kill_of_a_run_repeats_only_what_was_under_way(workers, folder, name):
    url = f"sqlite:///{folder}/agent.db"
    die(workers, plan_and_die, url, str(folder), name)
    info = recover(url, {"planner": lambda run: resume(planner(folder), run)})
    assert (info.status, info.result) == ("completed", "done")
    calls = Calls(folder).names
    assert sorted(set(calls)) == sorted(
        ["model:0", "search:Porto", "model:1", "book:Porto", "book:Faro", "model:2"]
    )
    assert (len(calls), calls.count(name)) == (7, 2)


def test_an_agent_is_resumed_on_a_loop_and_by_a_stream(workers, folder):
    url = f"sqlite:///{folder}/agent.db"
    die(workers, stream_and_die, url, str(folder))
    events = []

    async def scenario():
        async with await outlive.open_async(url) as store:

            async def handle(run):
                outcome = await aresume(planner(folder), run, on_event=events.append)
                assert outcome.output == "done"

            report = await store.recover({"planner": handle})
            assert [info.status for info in report.resumed] == ["completed"]

    asyncio.run(scenario())
    kinds = [event.event_kind for event in events]
    assert (kinds.count("function_tool_call"), kinds.count("function_tool_result")) == (3, 3)
    assert Calls(folder).names.count("model:1") == 1


def end_and_die(report, url, folder):
    AsyncRun.complete = lambda run, result: Calls(folder, "complete")("complete")
    plan_and_die(report, url, folder, None)


def test_a_run_that_is_killed_before_its_end_is_noted_adds_its_messages_once(workers, shared_url, folder):
    die(workers, end_and_die, shared_url, str(folder))
    with outlive.open(shared_url) as store:
        before = asyncio.run(messages_of(store))
    recover(shared_url, {"planner": lambda run: resume(planner(folder), run)})
    with outlive.open(shared_url) as store:
        assert asyncio.run(messages_of(store)) == before
    assert (len(before), len(Calls(folder).names)) == (6, 7), "no call is repeated"


def test_a_run_of_another_begin_is_resumed_too(each_store, folder):
    agent, prompt = planner(folder), {"pydantic-ai": 1, "prompt": "go"}
    with each_store.run("trip", prompt=prompt) as begun:
        assert resume(agent, begun).output == "done"
    assert len(asyncio.run(messages_of(each_store))) == 6


def test_what_is_saved_while_a_run_works_comes_before_its_messages(each_store):
    agent = Agent(TestModel(custom_output_text="done"), name="a", capabilities=[OutliveDurability()])

    @agent.tool_plain
    async def interrupt() -> str:
        await saved(OutliveConversationStore(each_store), "meanwhile")
        return "ok"

    run(agent, "go", thread_id="trip", store=each_store)
    messages = asyncio.run(messages_of(each_store))
    assert texts(messages[:2]) == ["meanwhile", "go"]
    conversation = asyncio.run(OutliveConversationStore(each_store).load("trip"))
    assert conversation.usage.requests == 2


def test_a_handler_of_the_capability_hears_a_response_while_it_comes(folder):
    heard = []

    async def hear(ctx, events):
        heard.extend([(event.event_kind, len(store.steps("r"))) async for event in events])

    agent = Agent(
        scripted(Calls(folder), *TURNS[2:]),
        name="a",
        capabilities=[OutliveDurability(event_stream_handler=hear)],
    )
    with outlive.open("memory:") as store:
        assert run(agent, "go", thread_id="trip", store=store, run_id="r").output == "done"
        names = [step.name for step in store.steps("r")]
    assert names == ["conversation", "a__model.request"]
    assert ("part_delta", 1) in heard, "the response is not stored yet"


def test_what_a_tool_calls_is_a_part_of_its_step(folder):
    calls = Calls(folder)
    inner = Agent(scripted(calls, *PAYS[1:]), name="inner", capabilities=[OutliveDurability()])
    outer = Agent(
        scripted(calls, [tool_call("ask", "c1")], [TextPart("done")]),
        name="outer",
        capabilities=[OutliveDurability()],
    )

    @outer.tool_plain
    async def ask() -> str:
        return (await inner.run("go")).output

    with outlive.open("memory:") as store:
        outcome = run(outer, "go", thread_id="trip", store=store, run_id="r")
        assert tool_results(outcome.result.all_messages()) == ["done"]
        assert len(store.steps("r")) == 4


# Questions


PAYS = [[tool_call("pay", "c1", eur=1), tool_call("pay", "c2", eur=2)], [TextPart("done")]]


def paying(calls, turns=PAYS):
    agent = Agent(scripted(calls, *turns), name="payer", capabilities=[OutliveDurability()])

    @agent.tool_plain(requires_approval=True)
    def pay(eur: int) -> str:
        calls(f"pay:{eur}")
        return f"paid {eur}"

    return agent


def test_an_approval_is_a_question_that_any_process_answers(each_store, folder):
    calls = Calls(folder)
    outcome = run(paying(calls), "go", thread_id="trip", store=each_store, run_id="r")
    assert (outcome.is_waiting, outcome.output, outcome.result) == (True, None, None)
    first, second = sorted(each_store.questions(), key=lambda question: question.name)
    assert (first.name, first.payload) == (
        "pay:c1", {"tool": "pay", "arguments": {"eur": 1}, "call_id": "c1"},
    )  # fmt: skip
    each_store.answer("r", first.name, True)
    assert not each_store.recover({"payer": lambda run: resume(paying(calls), run)}).resumed
    each_store.answer("r", second.name, {"approve": False, "message": "too much"}, by="ann")
    outcomes = []
    each_store.recover({"payer": lambda run: outcomes.append(resume(paying(calls), run))})
    assert (each_store.find_run("r").status, outcomes[0].output) == ("completed", "done")
    assert tool_results(outcomes[0].result.all_messages()) == ["paid 1", "too much"]
    assert calls.names == ["model:0", "pay:1", "model:1"]
    assert len(asyncio.run(messages_of(each_store))) == 4


def test_a_decision_for_all_calls_of_a_tool_is_asked_once(folder):
    calls = Calls(folder)
    turns = [*([tool_call("pay", f"c{n}", eur=n)] for n in range(3)), [TextPart("done")]]

    with outlive.open("memory:") as store:
        assert run(paying(calls, turns), "go", thread_id="trip", store=store, run_id="r").is_waiting
        store.answer("r", "pay:c0", {"approve": True, "always": True})
        store.recover({"payer": lambda run: resume(paying(calls, turns), run)})
        assert store.find_run("r").status == "completed"
    assert [name for name in calls.names if name.startswith("pay")] == ["pay:0", "pay:1", "pay:2"]


def test_a_call_that_is_made_elsewhere_is_a_question_for_its_result(each_store, folder):
    toolset = ExternalToolset(
        [
            ToolDefinition(
                name="measure",
                parameters_json_schema={"type": "object", "properties": {"m": {"type": "integer"}}},
            )
        ]
    )
    turns = [[tool_call("measure", "c1", m=3)], [TextPart("done")]]
    agent = Agent(
        scripted(Calls(folder), *turns), name="a", toolsets=[toolset], capabilities=[OutliveDurability()]
    )
    assert run(agent, "go", thread_id="trip", store=each_store, run_id="r").is_waiting
    each_store.answer("r", "measure:c1", {"depth": 4})
    outcomes = []
    each_store.recover({"a": lambda run: outcomes.append(resume(agent, run))})
    assert tool_results(outcomes[0].result.all_messages()) == [{"depth": 4}]


# Errors


def test_a_lost_run_is_not_told_to_the_model(folder):
    calls = Calls(folder)
    turns = [[tool_call("work", f"c{n}", n=n)] for n in range(4)]
    agent = Agent(scripted(calls, *turns, [TextPart("done")]), name="a", capabilities=[OutliveDurability()])
    with outlive.open("memory:") as store:

        @agent.tool_plain
        def work(n: int) -> str:
            calls(f"work:{n}")
            if n == 1:
                store.cancel("r")
            return "worked"

        with pytest.raises(LeaseLost):
            run(agent, "go", thread_id="trip", store=store, run_id="r")
        assert calls.names == ["model:0", "work:0", "model:1", "work:1"]
        assert store.find_run("r").status == "cancelled"
        assert asyncio.run(messages_of(store)) == []


def test_a_tool_that_asks_the_model_to_try_again_does(folder):
    calls = Calls(folder)
    turns = [[tool_call("find", "c1", city="x")], [tool_call("find", "c2", city="Faro")], [TextPart("done")]]
    agent = Agent(scripted(calls, *turns), name="a", capabilities=[OutliveDurability()])

    @agent.tool_plain(metadata={"outlive": {"effect": True}})
    def find(city: str) -> str:
        if city == "x":
            raise ModelRetry("no such city")
        return "found"

    plain = asyncio.run(agent.run("go"))
    with outlive.open("memory:") as store:
        outcome = run(agent, "go", thread_id="trip", store=store)
    assert outcome.output == plain.output == "done"
    contents = tool_results(outcome.result.all_messages())
    assert contents == tool_results(plain.all_messages()) != ["found"]


def test_an_error_of_a_tool_fails_the_run_as_it_fails_the_agent(folder):
    agent = Agent(
        scripted(Calls(folder), [tool_call("fail", "c1")]), name="a", capabilities=[OutliveDurability()]
    )

    @agent.tool_plain
    def fail() -> str:
        raise ValueError("broken")

    with outlive.open("memory:") as store, pytest.raises(ValueError, match="broken"):
        run(agent, "go", thread_id="trip", store=store)


def test_a_tool_without_a_step_is_called_again(workers, folder):
    calls = Calls(folder)
    turns = [[tool_call("look", "c1")], [tool_call("pay", "c2", eur=1)], [TextPart("done")]]
    agent = paying(calls, turns)

    @agent.tool_plain(metadata={"outlive": False})
    def look() -> str:
        calls("look")
        return "seen"

    with outlive.open("memory:") as store:
        assert run(agent, "go", thread_id="trip", store=store, run_id="r").is_waiting
        store.answer("r", "pay:c2", True)
        store.recover({"payer": lambda run: resume(agent, run)})
        assert store.find_run("r").status == "completed"
    assert calls.names.count("look") == 2


class Plan(pydantic.BaseModel):
    city: str
    days: int


def test_a_typed_output_is_one_again_when_the_run_had_ended():
    model = TestModel(custom_output_args={"city": "Porto", "days": 3})
    agent = Agent(model, name="a", output_type=Plan, capabilities=[OutliveDurability()])
    with outlive.open("memory:") as store:
        for _ in range(2):
            outcome = run(agent, "go", thread_id="trip", store=store, run_id="r")
            assert outcome.output == Plan(city="Porto", days=3)
        assert store.find_run("r").result == {"city": "Porto", "days": 3}


def test_a_prompt_with_bytes_and_the_options_of_the_agent(each_store):
    agent = Agent(TestModel(), name="a", deps_type=str, capabilities=[OutliveDurability()])

    @agent.instructions
    def instructions(ctx):
        return f"for {ctx.deps}"

    scan = BinaryContent(data=bytes(range(256)), media_type="application/pdf")
    outcome = run(agent, ["look", scan], thread_id="trip", store=each_store, deps="ann", timeout=600)
    request = outcome.result.all_messages()[0]
    assert (request.parts[0].content, request.instructions) == (["look", scan], "for ann")


def test_a_durable_agent_works_without_a_run_as_before(folder):
    result = asyncio.run(planner(folder).run("go"))
    assert (result.output, len(result.all_messages())) == ("done", 6)


def test_while_a_run_has_the_thread_no_other_begins(folder):
    with outlive.open("memory:") as store, store.run("trip"), pytest.raises(ThreadBusy):
        run(planner(folder), "go", thread_id="trip", store=store)


def test_wrong_arguments_say_what_to_do(folder):
    agent = planner(folder)
    with outlive.open("memory:") as store:
        with pytest.raises(BadArgument, match="thread_id"):
            run(agent, "go", thread_id="t", store=store, message_history=[])
        with pytest.raises(BadArgument, match=r"capabilities=\[OutliveDurability"):
            run(talking(), "go", thread_id="t", store=store)
        with store.run("t") as plain, pytest.raises(BadArgument, match="not started by this adapter"):
            resume(agent, plain)
        store.thread("other").save({"x": 1})
        with pytest.raises(BadArgument, match="an id of its own"):
            run(agent, "go", thread_id="other", store=store)
        with pytest.raises(BadArgument, match="OutliveConversationStore takes"):
            OutliveConversationStore(3)

    async def on_a_loop():
        with outlive.open("memory:") as store:
            run(agent, "go", thread_id="t", store=store)

    with pytest.raises(BadArgument, match="arun"):
        asyncio.run(on_a_loop())
