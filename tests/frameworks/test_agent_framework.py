"""Microsoft Agent Framework: its checkpoints and histories on every store, and agents and workflows as runs that survive a kill."""

import asyncio
import copy
import functools
from dataclasses import dataclass

import pytest
from agent_framework import (
    Agent,
    AgentExecutor,
    AgentExecutorResponse,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Executor,
    FileCheckpointStorage,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionTool,
    HistoryProvider,
    InMemoryCheckpointStorage,
    InMemoryHistoryProvider,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowEvent,
    WorkflowMessage,
    handler,
    register_checkpoint_type,
    response_handler,
    tool,
)

import outlive
from outlive.adapters.agent_framework import (
    OutliveCheckpointStorage,
    OutliveHistoryProvider,
    aresume,
    arun,
    resume,
    run,
)
from outlive.adapters.common import running
from outlive.errors import AnswerRefused, BadArgument, HeadMoved, LeaseLost, ThreadBusy
from rig.adapters import APPENDS, LEASE_S, PROCESSES, Calls, append_at_once, die, recover

# A model that follows a script


class Scripted(BaseChatClient):
    script, calls, label = (), None, "model"

    def _inner_get_response(self, *, messages, stream, options, **kwargs):
        number = sum(message.role == "assistant" for message in messages)
        contents = self.script[number]

        async def answer():
            if self.calls is not None:
                self.calls(f"{self.label}:{number}")
            return ChatResponse(
                messages=[Message("assistant", copy.deepcopy(contents))],
                response_id=f"r{number}",
                usage_details={"input_token_count": 5},
            )

        async def updates():
            for part in (await answer()).messages[0].contents:
                texts = part.text if part.type == "text" else None
                for piece in [Content.from_text(letter) for letter in texts] if texts else [part]:
                    yield ChatResponseUpdate(role="assistant", contents=[piece], response_id=f"r{number}")

        if stream:
            return self._build_response_stream(updates(), response_format=options.get("response_format"))
        return answer()


class Client(FunctionInvocationLayer, ChatMiddlewareLayer, Scripted):
    """The layers of every client of the framework."""

    def __init__(self, script, calls=None, label="model"):
        super().__init__()
        self.script, self.calls, self.label = script, calls, label


def call(name, id, **args):
    return Content.from_function_call(call_id=id, name=name, arguments=args)


def text(words):
    return [Content.from_text(words)]


# Checkpoints: the contract of the framework


@dataclass
class Sealed:
    """Can be pickled, and not be copied."""

    value: str

    def __deepcopy__(self, memo):
        raise TypeError

    def __reduce__(self):
        return Sealed, (self.value,)


@dataclass
class Note:
    text: str


class Unnamed:
    pass


register_checkpoint_type(Sealed)


@pytest.fixture
def storage(each_store):
    return OutliveCheckpointStorage("trip", each_store, allowed_checkpoint_types=[Note])


def checkpoint(name="planner", **fields):
    return WorkflowCheckpoint(workflow_name=name, graph_signature_hash="hash", **fields)


def every_kind():
    """A checkpoint with a value in each field that can be changed in depth."""
    return checkpoint(
        messages={"a": [WorkflowMessage(source_id="a", target_id="b", data=["message"])]},
        state={"deep": {"er": ["state"]}, "sealed": Sealed("value")},
        pending_request_info_events={
            "q": WorkflowEvent.request_info("q", "a", {"request": ["data"]}, response_type=str)
        },
        metadata={"deep": {"er": ["metadata"]}},
    )


def spoil(found):
    found.messages["a"][0].data.append("spoilt")
    found.state["deep"]["er"].append("spoilt")
    found.state["sealed"].value = "spoilt"
    found.pending_request_info_events["q"].data["request"].append("spoilt")
    found.metadata["deep"]["er"].append("spoilt")


def seen(found):
    return (
        found.messages["a"][0].data,
        found.state["deep"]["er"],
        found.state["sealed"],
        found.pending_request_info_events["q"].data,
        found.metadata["deep"]["er"],
    )


async def read(storage, reader, id):
    if reader == "load":
        return await storage.load(id)
    if reader == "get_latest":
        return await storage.get_latest(workflow_name="planner")
    return (await storage.list_checkpoints(workflow_name="planner"))[0]


@pytest.mark.parametrize("reader", ["load", "get_latest", "list_checkpoints"])
def test_a_checkpoint_is_stored_as_it_was_and_each_reader_gets_its_own(storage, reader):
    async def scenario():
        given, expected = every_kind(), seen(every_kind())
        id = await storage.save(given)
        assert id == given.checkpoint_id
        spoil(given)
        for _ in range(2):
            found = await read(storage, reader, id)
            assert seen(found) == expected
            spoil(found)
        assert found.graph_signature_hash == "hash"

    asyncio.run(scenario())


def test_checkpoints_are_told_apart_by_the_name_of_their_workflow(storage):
    async def play(subject):
        assert await subject.get_latest(workflow_name="one") is None
        assert await subject.list_checkpoints(workflow_name="one") == []
        saved = [checkpoint(name) for name in ("one", "two", "one", "one")]
        for each in saved:
            await subject.save(each)
        with pytest.raises(WorkflowCheckpointException):
            await subject.load("missing")
        number = {each.checkpoint_id: n for n, each in enumerate(saved)}
        yield [number[id] for id in await subject.list_checkpoint_ids(workflow_name="one")]
        yield [number[each.checkpoint_id] for each in await subject.list_checkpoints(workflow_name="one")]
        yield number[(await subject.get_latest(workflow_name="one")).checkpoint_id]
        yield [await subject.delete(saved[3].checkpoint_id) for _ in range(2)]
        yield number[(await subject.get_latest(workflow_name="one")).checkpoint_id]
        saved[1].state["n"] = 1
        await subject.save(saved[1])  # under the same id
        yield (await subject.load(saved[1].checkpoint_id)).state
        yield len(await subject.list_checkpoint_ids(workflow_name="two"))

    async def both():
        ours = [each async for each in play(storage)]
        assert ours == [each async for each in play(InMemoryCheckpointStorage())]

    asyncio.run(both())


def test_only_classes_that_were_named_are_loaded(storage, each_store):
    async def scenario():
        id = await storage.save(checkpoint(state={"note": Note("kept")}))
        assert (await storage.load(id)).state["note"] == Note("kept")
        named = OutliveCheckpointStorage("trip", each_store, allowed_checkpoint_types=[f"{__name__}:Note"])
        assert (await named.load(id)).state["note"] == Note("kept")
        with pytest.raises(WorkflowCheckpointException, match="Note"):
            await OutliveCheckpointStorage("trip", each_store).load(id)
        id = await storage.save(checkpoint(state={"it": Unnamed()}))
        with pytest.raises(WorkflowCheckpointException, match="Unnamed"):
            await storage.load(id)

    asyncio.run(scenario())


def test_a_thread_that_holds_something_else_is_told(each_store):
    thread = each_store.thread("trip", namespace="workflow")
    thread.save({"other": 1}, id="x")
    with pytest.raises(WorkflowCheckpointException, match="holds no checkpoint"):
        asyncio.run(OutliveCheckpointStorage("trip", each_store).load("x"))


def test_the_past_of_a_workflow(storage):
    async def scenario():
        first, second = checkpoint(state={"n": 1}), checkpoint(state={"n": 2})
        second.previous_checkpoint_id = first.checkpoint_id
        other = checkpoint(state={"n": 3}, previous_checkpoint_id=first.checkpoint_id)
        for each in (first, second, other):
            await storage.save(each)
        history = await storage.history()
        assert [info.parent for info in history] == [first.checkpoint_id] * 2 + [None]
        changes = await storage.diff(first.checkpoint_id, second.checkpoint_id)
        assert ("checkpoint.state.n", 1, 2) in [(each.path, each.old, each.new) for each in changes]
        forked = await storage.fork("other", at=second.checkpoint_id)
        assert (await forked.get_latest(workflow_name="planner")).state == {"n": 2}
        assert await storage.prune(1) == 2
        assert (await storage.get_latest(workflow_name="planner")).state == {"n": 3}
        assert await storage.clear() == 1
        assert await storage.history() == []
        assert (await forked.load(second.checkpoint_id)).state == {"n": 2}

    asyncio.run(scenario())


def test_what_is_deleted_is_erased(folder):
    path = folder / "agent.db"

    async def scenario():
        storage = OutliveCheckpointStorage("trip", f"sqlite:///{path}")
        id = await storage.save(checkpoint(state={"word": "the-secret-word"}))
        assert await storage.delete(id)
        storage.close()
        provider = OutliveHistoryProvider(f"sqlite:///{path}")
        await provider.save_messages("talk", [Message("user", ["the-secret-word"])])
        await provider.clear("talk")
        assert await provider.get_messages("talk") == []
        provider.close()

    asyncio.run(scenario())
    assert b"the-secret-word" not in path.read_bytes()


# Workflows with a storage


class Adder(Executor):
    """Adds its number to a list, several times."""

    def __init__(self, id, calls=None, rounds=3):
        super().__init__(id=id)
        self.calls, self.rounds = calls or (lambda name: None), rounds
        self.count = 0

    @handler
    async def add(self, numbers: list[int], ctx: WorkflowContext[list[int], list[int]]) -> None:
        self.count += 1
        ctx.set_state(f"seen by {self.id}", [*(ctx.get_state(f"seen by {self.id}") or []), len(numbers)])
        self.calls(f"{self.id}:{len(numbers)}")
        if len(numbers) == self.rounds:
            await ctx.yield_output(numbers)
        else:
            await ctx.send_message([*numbers, len(numbers)])

    async def on_checkpoint_save(self):
        return {"count": self.count}

    async def on_checkpoint_restore(self, state):
        self.count = state["count"]


def chain(calls=None, rounds=4, **options):
    one, two = Adder("one", calls, rounds), Adder("two", calls, rounds)
    builder = WorkflowBuilder(name="chain", start_executor=one, max_iterations=1000, **options)
    return builder.add_edge(one, two).add_edge(two, one).build()


def test_a_workflow_leaves_what_it_leaves_in_the_frameworks_own_storage(storage, tmp_path):
    async def play(subject):
        workflow = chain(checkpoint_storage=subject)
        result = await workflow.run([])
        ids = await subject.list_checkpoint_ids(workflow_name="chain")
        found = [await subject.load(id) for id in ids]
        again = chain(checkpoint_storage=subject)
        resumed = await again.run(
            checkpoint_id=sorted(found, key=lambda each: each.iteration_count)[2].checkpoint_id
        )
        states = sorted((each.iteration_count, repr(each.state)) for each in found)
        return result.get_outputs(), resumed.get_outputs(), states

    ours = asyncio.run(play(storage))
    assert ours == asyncio.run(play(FileCheckpointStorage(tmp_path / "theirs")))
    assert ours[0] == ours[1] == [[0, 1, 2, 3]]


def test_a_storage_works_from_several_event_loops(folder):
    storage = OutliveCheckpointStorage("trip", f"sqlite:///{folder}/agent.db")
    for n in range(2):
        asyncio.run(storage.save(checkpoint(state={"n": n})))
    assert asyncio.run(storage.get_latest(workflow_name="planner")).state == {"n": 1}
    storage.close()


# Histories


@pytest.fixture
def provider(each_store):
    return OutliveHistoryProvider(each_store)


def said(messages):
    return [(str(message.role), message.text) for message in messages]


def test_a_history_is_that_of_the_frameworks_own_provider(each_store):
    script = [[call("look", "c1", n=1), call("look", "c2", n=2)], text("first"), text("second")]

    @tool(approval_mode="never_require")
    def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    async def talk(provider, stream):
        agent = Agent(Client(script), name="talker", tools=[look], context_providers=[provider])
        session = agent.create_session(session_id=f"talk {stream}")
        for words in ("hello", "again"):
            if stream:
                updates = agent.run(words, session=session, stream=True)
                assert [update async for update in updates]
                await updates.get_final_response()
            else:
                await agent.run(words, session=session)
        messages = await provider.get_messages(session.session_id, state=session.state.get("in_memory"))
        return [[(part.type, part.text, part.call_id) for part in message.contents] for message in messages]

    for stream in (False, True):
        ours = asyncio.run(talk(OutliveHistoryProvider(each_store), stream))
        assert ours == asyncio.run(talk(InMemoryHistoryProvider(), stream))
        assert len(ours) == 6


def test_messages_that_repeat_the_history_are_stored_once(provider, each_store):
    messages = [Message("user", ["a"]), Message("assistant", ["b"])]

    async def scenario():
        await provider.save_messages("talk", messages)
        await OutliveHistoryProvider(each_store).save_messages("talk", [*messages, Message("user", ["c"])])
        assert said(await provider.get_messages("talk")) == [("user", "a"), ("assistant", "b"), ("user", "c")]

    asyncio.run(scenario())


def test_the_past_of_a_history(provider):
    async def scenario():
        for n in range(3):
            await provider.save_messages("talk", [Message("user", [str(n)])])
        _, before, *_ = await provider.history("talk")
        assert said(await provider.get_messages("talk", at=before.id)) == [("user", "0"), ("user", "1")]
        assert [change.path for change in await provider.diff("talk", before.id)] == ["items[2]"]
        await provider.fork("talk", "other", at=before.id)
        await provider.save_messages("other", [Message("user", ["x"])])
        assert len(await provider.get_messages("other")) == 3
        assert await provider.prune("talk", 1) == 2
        assert len(await provider.get_messages("talk")) == 3
        assert (await provider.delete("talk"), await provider.delete("talk")) == (True, False)
        assert await provider.get_messages("talk") == []

    asyncio.run(scenario())


def test_with_a_guard_a_provider_that_has_not_seen_the_newest_message_is_told(each_store):
    async def scenario():
        guarded = OutliveHistoryProvider(each_store, guard="head")
        await guarded.get_messages("talk")
        await OutliveHistoryProvider(each_store).save_messages("talk", [Message("user", ["faster"])])
        with pytest.raises(HeadMoved):
            await guarded.save_messages("talk", [Message("user", ["late"])])
        await guarded.get_messages("talk")
        await guarded.save_messages("talk", [Message("user", ["now"])])

    asyncio.run(scenario())


def add_many(report, url, number, wait):
    async def scenario():
        provider = OutliveHistoryProvider(url)
        await provider.get_messages("talk")
        wait(report)
        for n in range(APPENDS):
            await provider.save_messages("talk", [Message("user", [f"{number} {n}"])])
        provider.close()

    asyncio.run(scenario())


def test_two_processes_at_once_lose_no_message(workers, shared_url, folder):
    append_at_once(workers, add_many, shared_url, folder)
    with outlive.open(shared_url) as store:
        messages = said(asyncio.run(OutliveHistoryProvider(store).get_messages("talk")))
    for number in range(PROCESSES):
        own = [words for _, words in messages if words.startswith(f"{number} ")]
        assert own == [f"{number} {n}" for n in range(APPENDS)]


# Agents as runs

SCRIPT = [
    [call("search", "c1", city="Porto")],
    [call("book", "c2", city="Porto"), call("book", "c3", city="Faro")],
    text("done"),
]
ALL = ["model:0", "search:Porto", "model:1", "book:Porto", "book:Faro", "model:2"]


def tools_of(calls):
    @tool(approval_mode="never_require")
    async def search(city: str) -> str:
        """Search a city."""
        calls(f"search:{city}")
        return f"found {city}"

    @tool(approval_mode="never_require")
    async def book(city: str) -> str:
        """Book a city."""
        if city == "Faro":  # the other one of the two has ended
            while "book:Porto" not in calls.names:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
        calls(f"book:{city}")
        return f"booked {city}"

    return [search, book]


def planner(folder, dies_in=None):
    calls = Calls(folder, dies_in)
    return Agent(Client(SCRIPT, calls), name="planner", tools=tools_of(calls))


def plan_and_die(report, url, folder, name="book:Faro", on_event=None):
    with outlive.open(url) as store:
        run(
            planner(folder, name),
            "go",
            thread_id="trip",
            store=store,
            run_id="r",
            lease_s=LEASE_S,
            on_event=on_event and (lambda update: None),
        )


def plan_on_a_loop_and_die(report, url, folder):
    async def scenario():
        async with await outlive.open_async(url) as store:
            agent = planner(folder, "book:Faro")
            await arun(agent, "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)

    asyncio.run(scenario())


def stored_messages(url):
    with outlive.open(url) as store:
        return asyncio.run(OutliveHistoryProvider(store).get_messages("trip"))


@pytest.mark.parametrize("begin", [plan_and_die, plan_on_a_loop_and_die])
def test_an_agent_that_is_killed_in_its_second_tool_is_finished_by_another_process(
    workers, shared_url, folder, begin
):
    die(workers, begin, shared_url, str(folder))
    info = recover(shared_url, {"planner": lambda run: resume(planner(folder), run)})
    assert (info.status, info.result, info.attempt) == ("completed", "done", 2)
    assert Calls(folder).names == [*ALL[:5], "book:Faro", "model:2"], (
        "only what was under way is called again"
    )
    results = [
        part.result for message in stored_messages(shared_url) for part in message.contents if part.call_id
    ]
    assert [result for result in results if result] == ["found Porto", "booked Porto", "booked Faro"]
    with outlive.open(shared_url) as store:
        again = run(planner(folder), "go", thread_id="trip", store=store, run_id="r")
        assert (again.output, again.response) == ("done", None)


@pytest.mark.parametrize(
    "name, streams",
    [
        ("model:0", (None, None)),
        ("search:Porto", (True, True)),
        ("model:1", (None, True)),
        ("book:Porto", (True, None)),
        ("model:2", (True, True)),
    ],
)
def test_every_kill_of_a_run_repeats_only_what_was_under_way(workers, url, folder, name, streams):
    die(workers, plan_and_die, url, str(folder), name, streams[0])
    heard = []
    options = {"on_event": heard.append} if streams[1] else {}
    info = recover(url, {"planner": lambda run: resume(planner(folder), run, **options)})
    assert (info.status, info.result) == ("completed", "done")
    assert sorted(Calls(folder).names) == sorted([*ALL, name])
    assert "".join(update.text for update in heard) == ("done" if streams[1] else "")
    assert said(stored_messages(url))[-1] == ("assistant", "done")


def test_an_agent_is_resumed_on_a_loop_and_its_updates_are_heard(workers, url, folder):
    die(workers, plan_and_die, url, str(folder))
    heard = []

    async def scenario():
        async with await outlive.open_async(url) as store:
            handlers = {"planner": functools.partial(aresume, planner(folder), on_event=heard.append)}
            while not (report := await store.recover(handlers)).resumed:
                assert not report.failed, report.failed
                await asyncio.sleep(0.1)
            assert [info.result for info in report.resumed] == ["done"]

    asyncio.run(scenario())
    letters = [update.text for update in heard if update.text]
    assert letters == ["d", "o", "n", "e"], "a live response comes in pieces"


def test_a_run_continues_the_conversation_of_its_thread(each_store):
    def talker():
        return Agent(Client([text("first"), text("second")]), name="talker")

    assert run(talker(), "hello", thread_id="talk", store=each_store).output == "first"
    assert run(talker(), "again", thread_id="talk", store=each_store).output == "second"
    messages = asyncio.run(OutliveHistoryProvider(each_store).get_messages("talk"))
    assert said(messages) == [
        ("user", "hello"), ("assistant", "first"), ("user", "again"), ("assistant", "second"),
    ]  # fmt: skip


def test_a_failed_tool_is_not_called_again_since_the_model_was_told(workers, url, folder):
    die(workers, fail_and_die, url, str(folder))
    info = recover(url, {"failing": lambda run: resume(failing(folder), run)})
    assert (info.result, Calls(folder).names) == ("done", ["fail", "model", "model"])


def failing(folder, dies_in=None):
    calls = Calls(folder, dies_in)

    @tool(approval_mode="never_require")
    def fail() -> str:
        """Fail."""
        calls("fail")
        raise ValueError("broken")

    class Told(Client):
        def _inner_get_response(self, *, messages, **options):
            if messages[-1].role == "tool":
                calls("model")
            return super()._inner_get_response(messages=messages, **options)

    return Agent(Told([[call("fail", "c1")], text("done")]), name="failing", tools=[fail])


def fail_and_die(report, url, folder):
    with outlive.open(url) as store:
        run(failing(folder, "model"), "go", thread_id="t", store=store, run_id="r", lease_s=LEASE_S)


def test_a_tool_that_adds_tools_adds_them_again(workers, url, folder):
    die(workers, load_and_die, url, str(folder))
    info = recover(url, {"loader": lambda run: resume(loader(folder), run)})
    assert (info.result, Calls(folder).names) == (
        "done",
        ["load", "model:1", "load", "model:1", "extra", "model:2"],
    )


def loader(folder, dies_in=None):
    calls = Calls(folder, dies_in)

    @tool(approval_mode="never_require")
    def extra() -> str:
        """Do more."""
        calls("extra")
        return "more"

    @tool(approval_mode="never_require")
    def load(ctx: FunctionInvocationContext) -> str:
        """Load a tool."""
        calls("load")
        ctx.tools.append(extra)
        return "loaded"

    class Counted(Client):
        def _inner_get_response(self, *, messages, **options):
            number = sum(message.role == "assistant" for message in messages)
            if number:
                calls(f"model:{number}")
            return super()._inner_get_response(messages=messages, **options)

    script = [[call("load", "c1")], [call("extra", "c1")], text("done")]  # one id twice
    return Agent(Counted(script), name="loader", tools=[load])


def load_and_die(report, url, folder):
    with outlive.open(url) as store:
        run(loader(folder, "model:1"), "go", thread_id="t", store=store, run_id="r", lease_s=LEASE_S)


def payer(calls):
    @tool(approval_mode="always_require")
    def pay(eur: int) -> str:
        """Pay an amount."""
        calls(f"pay:{eur}")
        return f"paid {eur}"

    script = [[call("pay", "c1", eur=1), call("pay", "c2", eur=2)], text("done")]
    return Agent(Client(script, calls), name="payer", tools=[pay])


@pytest.mark.parametrize("on_event", [None, lambda update: None])
def test_an_approval_is_a_question_that_any_process_answers(each_store, folder, on_event):
    calls = Calls(folder)
    outcome = run(payer(calls), "go", thread_id="t", store=each_store, run_id="r", on_event=on_event)
    assert outcome.is_waiting
    first, second = sorted(each_store.questions(), key=lambda question: question.name)
    assert (first.name, first.payload) == (
        "pay:c1", {"tool": "pay", "arguments": {"eur": 1}, "call_id": "c1"},
    )  # fmt: skip
    with pytest.raises(AnswerRefused):  # the framework has no use for the message
        each_store.answer("r", first.name, {"approve": False, "message": "too much"})
    each_store.answer("r", first.name, True)
    handlers = {"payer": lambda run: resume(payer(calls), run, on_event=on_event)}
    assert not each_store.recover(handlers).resumed
    each_store.answer("r", second.name, {"approve": False})
    assert not each_store.recover(handlers).failed
    assert (each_store.find_run("r").result, calls.names) == ("done", ["model:0", "pay:1", "model:1"])


def test_a_tool_that_is_only_declared_is_a_question_whose_answer_is_its_result(each_store, folder):
    def asker():
        schema = {"type": "object", "properties": {"what": {"type": "string"}}}
        ask = FunctionTool(name="ask_boss", description="Ask the boss.", input_model=schema, func=None)
        script = [[call("ask_boss", "c1", what="raise")], text("done")]
        return Agent(Client(script, Calls(folder)), name="asker", tools=[ask])

    assert run(asker(), "go", thread_id="t", store=each_store, run_id="r").is_waiting
    (question,) = each_store.questions()
    assert question.payload == {"tool": "ask_boss", "arguments": {"what": "raise"}, "call_id": "c1"}
    each_store.answer("r", question.name, {"granted": True})
    assert not each_store.recover({"asker": lambda run: resume(asker(), run)}).failed
    assert (each_store.find_run("r").result, Calls(folder).names) == ("done", ["model:0", "model:1"])


@pytest.mark.parametrize("on_event", [None, lambda update: None])
def test_a_lost_run_is_not_told_to_the_model(folder, on_event):
    calls = Calls(folder)
    with outlive.open("memory:") as store:

        @tool(approval_mode="never_require")
        def work(n: int) -> str:
            """Work."""
            calls(f"work:{n}")
            if n == 1:
                store.cancel("r")
            return "worked"

        script = [*([call("work", f"c{n}", n=n)] for n in range(4)), text("done")]
        worker = Agent(Client(script, calls), name="worker", tools=[work])
        with pytest.raises(LeaseLost):
            run(worker, "go", thread_id="t", store=store, run_id="r", on_event=on_event)
        assert calls.names == ["model:0", "work:0", "model:1", "work:1"]


def test_what_a_provider_saves_in_a_run_carries_its_fence(each_store):
    """A provider of an agent that is used inside the run writes to the same thread: it loses the thread with the run."""
    provider = OutliveHistoryProvider(each_store)

    async def write():
        await provider.save_messages("trip", [Message("user", ["late"])])

    def lose():
        with each_store.run("trip", run_id="r") as held:
            each_store.cancel("r")
            running.resume(held, running.in_loop(lambda current: write()))

    with pytest.raises(LeaseLost):
        lose()
    assert asyncio.run(provider.get_messages("trip")) == []


# Workflows as runs


def walk_and_die(report, url, folder, name="two:3"):
    with outlive.open(url) as store:
        run(chain(Calls(folder, name)), [], thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def walk_on_a_loop_and_die(report, url, folder):
    async def scenario():
        async with await outlive.open_async(url) as store:
            workflow = chain(Calls(folder, "two:3"))
            await arun(workflow, [], thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)

    asyncio.run(scenario())


STEPS = ["one:0", "two:1", "one:2", "two:3", "one:4"]


@pytest.mark.parametrize("begin", [walk_and_die, walk_on_a_loop_and_die])
def test_a_workflow_that_is_killed_is_finished_by_another_process(workers, shared_url, folder, begin):
    die(workers, begin, shared_url, str(folder))
    info = recover(shared_url, {"chain": lambda run: resume(chain(Calls(folder)), run)})
    assert (info.status, info.result, info.attempt) == ("completed", [[0, 1, 2, 3]], 2)
    assert Calls(folder).names == [*STEPS[:4], *STEPS[3:]]
    with outlive.open(shared_url) as store:
        again = run(chain(Calls(folder)), [], thread_id="trip", store=store, run_id="r")
        assert again.output == [[0, 1, 2, 3]]
        latest = asyncio.run(OutliveCheckpointStorage("trip", store).get_latest(workflow_name="chain"))
        assert latest.state["seen by one"] == [0, 2, 4]


@pytest.mark.parametrize("name", STEPS[::2])
def test_every_kill_of_a_workflow_repeats_only_the_superstep_that_was_under_way(workers, url, folder, name):
    die(workers, walk_and_die, url, str(folder), name)
    events = []

    async def scenario():
        async with await outlive.open_async(url) as store:
            handlers = {"chain": functools.partial(aresume, chain(Calls(folder)), on_event=events.append)}
            while not (report := await store.recover(handlers)).resumed:
                assert not report.failed, report.failed
                await asyncio.sleep(0.1)
            assert [info.result for info in report.resumed] == [[[0, 1, 2, 3]]]

    asyncio.run(scenario())
    assert sorted(Calls(folder).names) == sorted([*STEPS, name])
    assert "output" in [event.type for event in events]


class Teller(Executor):
    """Yields an output, and lets the next one work."""

    @handler
    async def tell(self, words: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{self.id}: {words}")
        await ctx.send_message(words)


def tellers(folder=None, dies_in=None):
    first, second = Teller(id="first"), Teller(id="second")
    calls = folder and Calls(folder, dies_in)

    class Last(Executor):
        @handler
        async def end(self, words: str, ctx: WorkflowContext[None, str]) -> None:
            if calls:
                calls("last")
            await ctx.yield_output("last")

    builder = WorkflowBuilder(name="tellers", start_executor=first)
    return builder.add_chain([first, second, Last(id="last")]).build()


def tell_and_die(report, url, folder):
    with outlive.open(url) as store:
        run(tellers(folder, "last"), "x", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def test_outputs_of_supersteps_before_the_kill_are_outputs_of_the_run(workers, url, folder):
    die(workers, tell_and_die, url, str(folder))
    info = recover(url, {"tellers": lambda run: resume(tellers(), run)})
    assert info.result == ["first: x", "second: x", "last"]


class Keeper(Executor):
    @handler
    async def keep(self, response: AgentExecutorResponse, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(response.agent_response.text)


def team(folder, dies_in=None):
    """Two agents work at once on the same words with calls of the same ids, and a third one after them."""
    calls = Calls(folder, dies_in)

    def member(name):
        script = [[call("look", "c1")], [call("take", "c2")], text(f"{name} done")]

        @tool(approval_mode="never_require")
        def look() -> str:
            """Look."""
            calls(f"{name}:look")
            return "seen"

        @tool(approval_mode="never_require")
        async def take() -> str:
            """Take."""
            while calls.names.count("a:look") + calls.names.count("b:look") < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3 if name == "b" else 0)
            calls(f"{name}:take")
            return "taken"

        agent = Agent(Client(script, calls, f"{name}:model"), name=name, tools=[look, take])
        return AgentExecutor(agent, id=name)

    class Start(Executor):
        @handler
        async def start(self, words: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(words)

    start, a, b, keeper = Start(id="start"), member("a"), member("b"), Keeper(id="keeper")
    builder = WorkflowBuilder(name="team", start_executor=start, output_from=[keeper])
    return builder.add_fan_out_edges(start, [a, b]).add_edge(a, keeper).add_edge(b, keeper).build()


def work_together_and_die(report, url, folder, on_event=None):
    with outlive.open(url) as store:
        run(team(folder, "b:take"), "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def test_finished_calls_of_agents_in_a_workflow_are_not_repeated(workers, shared_url, folder):
    die(workers, work_together_and_die, shared_url, str(folder))
    info = recover(shared_url, {"team": lambda run: resume(team(folder), run)})
    assert sorted(info.result) == ["a done", "b done"]
    names = Calls(folder).names
    assert names.count("b:take") == 2
    assert all(names.count(name) == 1 for name in names if name not in ("b:take", "b:model:2")), names


@pytest.mark.parametrize("on_event", [None, lambda event: None])
def test_an_agent_in_a_workflow_has_one_output_which_is_its_text(each_store, on_event):
    first, last = (AgentExecutor(Agent(Client([text(f"{name} done")] * 2), name=name)) for name in "ab")
    builder = WorkflowBuilder(name="team", start_executor=first).add_edge(first, last)
    outcome = run(builder.build(), "go", thread_id="trip", store=each_store, run_id="r", on_event=on_event)
    assert outcome.output == each_store.find_run("r").result == ["a done", "b done"]


def test_messages_are_stored_as_data(each_store):
    class Speaker(Executor):
        @handler
        async def speak(self, words: str, ctx: WorkflowContext[None, list[Message]]) -> None:
            await ctx.yield_output([Message("assistant", [words])])

    workflow = WorkflowBuilder(name="speaker", start_executor=Speaker(id="speaker")).build()
    outcome = run(workflow, "go", thread_id="trip", store=each_store, run_id="r")
    ((message,),) = outcome.output
    ((stored,),) = each_store.find_run("r").result
    assert Message.from_dict(stored).text == message.text == "go"


@dataclass
class Ask:
    eur: int


@dataclass
class Verdict:
    granted: bool
    by: str


class Asker(Executor):
    def __init__(self, calls):
        super().__init__(id="asker")
        self.calls = calls

    @handler
    async def ask(self, eur: int, ctx: WorkflowContext[None, str]) -> None:
        self.calls(f"ask:{eur}")
        await ctx.request_info(Ask(eur), Verdict)
        await ctx.request_info("name", str)

    @response_handler
    async def paid(self, request: Ask, verdict: Verdict, ctx: WorkflowContext[None, str]) -> None:
        self.calls("answered")
        await ctx.yield_output(f"{request.eur} {verdict.granted} by {verdict.by}")

    @response_handler
    async def named(self, request: str, name: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{request}: {name}")


def asking(calls):
    return WorkflowBuilder(name="asking", start_executor=Asker(calls)).build()


def test_pending_requests_are_questions_that_any_process_answers(each_store, folder):
    calls, types = Calls(folder), {"allowed_checkpoint_types": [Ask, Verdict]}
    outcome = run(asking(calls), 40, thread_id="trip", store=each_store, run_id="r", **types)
    assert (outcome.is_waiting, outcome.output) == (True, None)
    questions = {str(question.payload["request"]): question for question in each_store.questions()}
    money, name = questions[str({"eur": 40})], questions["name"]
    assert money.payload == {"executor": "asker", "request": {"eur": 40}}
    with pytest.raises(AnswerRefused):
        each_store.answer("r", money.name, "perhaps")
    each_store.answer("r", money.name, {"granted": True, "by": "Ada"})
    handlers = {"asking": lambda run: resume(asking(calls), run, **types)}
    assert not each_store.recover(handlers).resumed
    each_store.answer("r", name.name, "Byron")
    assert not each_store.recover(handlers).failed
    assert sorted(each_store.find_run("r").result) == ["40 True by Ada", "name: Byron"]
    assert calls.names == ["ask:40", "answered"]


def test_an_approval_of_an_agent_in_a_workflow_is_a_question(each_store, folder):
    calls = Calls(folder)

    def paying():
        executor, keeper = AgentExecutor(payer(calls), id="payer"), Keeper(id="keeper")
        builder = WorkflowBuilder(name="paying", start_executor=executor, output_from=[keeper])
        return builder.add_edge(executor, keeper).build()

    assert run(paying(), "go", thread_id="trip", store=each_store, run_id="r").is_waiting
    for question in list(each_store.questions()):
        each_store.answer("r", question.name, question.payload["arguments"]["eur"] == 2)
    assert not each_store.recover({"paying": lambda run: resume(paying(), run)}).failed
    assert (each_store.find_run("r").result, calls.names) == (["done"], ["model:0", "pay:2", "model:1"])


def test_a_lost_run_ends_the_workflow_before_its_next_superstep(folder):
    with outlive.open("memory:") as store:

        def cancel(name):
            Calls(folder)(name)
            if name == "two:1":
                store.cancel("r")

        with pytest.raises(LeaseLost):
            run(chain(cancel), [], thread_id="trip", store=store, run_id="r")
    assert Calls(folder).names == STEPS[:2]


def test_a_checkpoint_that_cannot_be_stored_fails_the_run(folder):
    class Unstorable(Executor):
        @handler
        async def start(self, words: str, ctx: WorkflowContext[str]) -> None:
            ctx.set_state("it", lambda: None)
            await ctx.send_message(words)

    class Second(Executor):
        @handler
        async def work(self, words: str, ctx: WorkflowContext[None, str]) -> None:
            Calls(folder)("second")

    first = Unstorable(id="first")
    workflow = WorkflowBuilder(name="w", start_executor=first).add_edge(first, Second(id="second")).build()
    with outlive.open("memory:") as store:
        with pytest.raises(Exception, match="pickle"):
            run(workflow, "go", thread_id="trip", store=store, run_id="r")
        assert store.find_run("r").status == "failed"
    assert Calls(folder).names == []


class OtherHistory(HistoryProvider):
    async def get_messages(self, session_id, **options):
        return []

    async def save_messages(self, session_id, messages, **options):
        pass


def test_wrong_arguments_say_what_to_do(folder):
    with outlive.open("memory:") as store:
        there = {"thread_id": "t", "store": store}
        with pytest.raises(BadArgument, match="leave out session, stream"):
            run(planner(folder), "go", **there, stream=True, session=None)
        with pytest.raises(BadArgument, match="Agent or a Workflow"):
            run("planner", "go", **there)
        with pytest.raises(BadArgument, match="calls no middleware"):
            run(Agent(Scripted(), name="bare"), "go", **there)
        other = Agent(Client([]), name="other", context_providers=[OtherHistory("other")])
        with pytest.raises(BadArgument, match="without OtherHistory"):
            run(other, "go", **there)
        with store.run("t") as other:
            with pytest.raises(BadArgument, match="with an agent"):
                resume(planner(folder), other)
            with pytest.raises(BadArgument, match="with a workflow"):
                resume(chain(), other)
            with pytest.raises(ThreadBusy):
                run(planner(folder), "go", **there)
        with pytest.raises(BadArgument, match="need a session"):
            asyncio.run(OutliveHistoryProvider(store).get_messages(None))
        with pytest.raises(BadArgument, match="module:qualname"):
            OutliveCheckpointStorage("t", store, allowed_checkpoint_types=["Note"])
    with pytest.raises(BadArgument, match="OutliveCheckpointStorage takes"):
        OutliveCheckpointStorage("t", 3)
    with pytest.raises(BadArgument, match="guard"):
        OutliveHistoryProvider("memory:", guard="tail")
