"""Strands Agents: its sessions on every store, and its agents as runs that survive a kill."""

import asyncio
import functools
import json
import os
import threading

import pydantic
import pytest
from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import NullConversationManager, SlidingWindowConversationManager
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent, BeforeToolsEvent
from strands.models import Model
from strands.multiagent import GraphBuilder
from strands.session import FileSessionManager
from strands.types.exceptions import EventLoopException

import outlive
from outlive.adapters.strands import OutliveSessionManager, aresume, arun, resume, run
from outlive.errors import BadArgument, HeadMoved, LeaseLost, ThreadBusy
from rig.adapters import APPENDS, LEASE_S, PROCESSES, Calls, append_at_once, die, recover


def call(name, id, /, **input):
    return {"toolUse": {"name": name, "toolUseId": id, "input": input}}


class Scripted(Model):
    """A model that answers by the number of its own messages, and counts its calls."""

    stateful = False

    def __init__(self, script, calls=None):
        self.script, self.calls = script, calls or (lambda name: None)

    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    def structured_output(self, *args, **options):
        raise NotImplementedError

    async def stream(self, messages, *args, **options):
        number = sum(message["role"] == "assistant" for message in messages)
        self.calls(f"model:{number}")
        answer = self.script[number]
        if callable(answer):
            for event in answer():
                yield event
            return
        yield {"messageStart": {"role": "assistant"}}
        blocks = [{"text": answer}] if isinstance(answer, str) else answer
        for block in blocks:
            if "text" in block:
                yield {"contentBlockStart": {"start": {}}}
                for letter in block["text"]:
                    yield {"contentBlockDelta": {"delta": {"text": letter}}}
            else:
                use = block["toolUse"]
                start = {"toolUse": {"name": use["name"], "toolUseId": use["toolUseId"]}}
                yield {"contentBlockStart": {"start": start}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(use["input"])}}}}
            yield {"contentBlockStop": {}}
        reason = "tool_use" if any("toolUse" in block for block in blocks) else "end_turn"
        yield {"messageStop": {"stopReason": reason}}


def made(script, calls=None, **options):
    options = {"conversation_manager": NullConversationManager(), "callback_handler": None, **options}
    return Agent(model=Scripted(script, calls), name="planner", **options)


def texts(messages):
    return [block.get("text") for message in messages for block in message["content"]]


def plain(messages):
    """The messages without what differs from time to time."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


# Sessions


def manager_on(store, **options):
    return OutliveSessionManager("trip", store, **options)


def test_a_session_continues_in_another_agent_and_in_another_loop(each_store):
    for turn in range(3):
        agent = made(["zero", "one", "two"], session_manager=manager_on(each_store))
        agent.state.set(f"turn {turn}", turn)
        assert len(agent.messages) == 2 * turn
        if turn == 1:
            asyncio.run(agent.invoke_async("question"))
        else:
            agent("question")  # Strands makes a thread and an event loop for the call
    again = made([], session_manager=manager_on(each_store))
    assert texts(again.messages) == ["question", "zero", "question", "one", "question", "two"]
    assert again.state.get() == {"turn 0": 0, "turn 1": 1, "turn 2": 2}


def test_a_session_on_a_store_of_an_event_loop_is_used_there_and_elsewhere(url):
    async def scenario():
        async with await outlive.open_async(url) as store:
            manager = manager_on(store)
            agent = made(["here", "elsewhere"], session_manager=manager)
            await agent.invoke_async("question")
            await asyncio.to_thread(agent, "question")
            again = made([], session_manager=manager_on(store))
            assert texts(again.messages) == ["question", "here", "question", "elsewhere"]
            manager.close()

    asyncio.run(scenario())


def test_parallel_tools_and_streams_leave_what_they_leave_in_strands_own_session(each_store, folder):
    def talk(manager):
        agent = planner(None, session_manager=manager)

        async def stream():
            return [event async for event in agent.stream_async("go")]

        events = asyncio.run(stream())
        assert events[-1]["result"].stop_reason == "end_turn"
        return [event["data"] for event in events if "data" in event]

    theirs = FileSessionManager("trip", storage_dir=str(folder / "files"))
    mine = manager_on(each_store)
    assert talk(mine) == talk(theirs) == list("done")
    agents = [
        made([], session_manager=manager_on(each_store)),
        made([], session_manager=FileSessionManager("trip", storage_dir=str(folder / "files"))),
    ]
    ours, shipped = (plain(_sorted_results(agent.messages)) for agent in agents)
    assert ours == shipped
    assert agents[0].state.get() == agents[1].state.get() == {"city": "Porto"}


def _sorted_results(messages):
    """Parallel tools end in any order."""
    for message in messages:
        message["content"].sort(key=lambda block: block.get("toolResult", {}).get("toolUseId", ""))
    return messages


def test_every_message_is_a_checkpoint_and_an_unchanged_agent_is_not_saved_again(each_store):
    manager = manager_on(each_store)
    made(["one", "two"], session_manager=manager)("question")
    assert [info.metadata for info in manager.history()] == [
        {"messages": 2, "role": "assistant"},
        {"messages": 1, "role": "user"},
    ]
    agent = made([], session_manager=manager)
    manager.sync_agent(agent)
    assert len(manager.history()) == 2
    agent.state.set("new", True)
    manager.sync_agent(agent)
    assert len(manager.history()) == 3


def test_what_a_conversation_manager_removes_is_removed_in_the_session(each_store):
    options = {"conversation_manager": SlidingWindowConversationManager(window_size=2)}
    agent = made(["a", "b", "b", "b"], session_manager=manager_on(each_store), **options)
    for _ in range(3):
        agent("question")
    again = made([], session_manager=manager_on(each_store), **options)
    assert plain(again.messages) == plain(agent.messages)
    assert len(again.messages) == 2
    assert again.conversation_manager.removed_message_count == 4


def test_the_past_of_a_session(each_store):
    manager = manager_on(each_store)
    agent = made(["zero", "one", "two"], session_manager=manager)
    agent("a")
    agent("b")
    newest, _, before, *_ = manager.history()
    assert [info.id for info in manager.history(limit=1)] == [newest.id]
    past = made([], session_manager=manager_on(each_store, at=before.id))
    assert texts(past.messages) == ["a", "zero"]
    with pytest.raises(BadArgument, match="fork"):
        past("x")
    forked = manager.fork("other", at=before.id)
    other = made(["", "another"], session_manager=forked)
    other("c")
    assert texts(other.messages) == ["a", "zero", "c", "another"]
    assert "data.messages[2]" in [change.path for change in manager.diff(before.id)]
    manager.restore(agent, before.id)
    agent("d")
    assert texts(made([], session_manager=manager_on(each_store)).messages) == ["a", "zero", "d", "one"]
    assert manager.prune(keep_last=1) == 6
    assert (manager.delete(), manager.delete()) == (True, False)
    assert made([], session_manager=manager_on(each_store)).messages == []


def guarded():
    yield {"messageStart": {"role": "assistant"}}
    yield {"redactContent": {"redactUserContentMessage": "[removed]"}}
    yield {"contentBlockStart": {"start": {}}}
    yield {"contentBlockDelta": {"delta": {"text": "no"}}}
    yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "guardrail_intervened"}}


@pytest.mark.parametrize("keep_history", [False, True])
def test_what_is_redacted_is_erased(folder, keep_history):
    path = folder / "agent.db"
    with OutliveSessionManager("trip", f"sqlite:///{path}", keep_history=keep_history) as manager:
        agent = made(["the-first-answer", guarded], session_manager=manager)
        agent("hello")
        agent("the-secret-word")
        assert texts(agent.messages)[2] == "[removed]"
        counts = [info.metadata["messages"] for info in manager.history()]
        assert counts == ([4, 3, 3, 2, 1] if keep_history else [4, 3, 2, 1])
        if keep_history:
            past = manager_on(f"sqlite:///{path}", at=manager.history()[2].id)
            assert texts(made([], session_manager=past).messages)[2] == "the-secret-word"
            past.close()
    assert keep_history or b"the-secret-word" not in path.read_bytes()


def test_what_is_redacted_in_a_run_is_erased(folder):
    path = folder / "agent.db"
    with outlive.open(f"sqlite:///{path}") as store:
        run(made([guarded]), "the-secret-word", thread_id="trip", store=store, run_id="r")
        state = store.thread("trip", namespace="agent/default").load()
        assert texts(state["data"]["messages"]) == ["[removed]", "no"]
        counts = [
            info.metadata["messages"] for info in store.thread("trip", namespace="agent/default").history()
        ]
        assert counts == [2]


def test_a_session_in_an_encrypted_store_of_a_tenant(folder):
    options = {"key": outlive.KeyRing({"k": os.urandom(32)}), "tenant": "acme"}
    for _ in range(2):
        with OutliveSessionManager("trip", f"sqlite:///{folder}/agent.db", **options) as manager:
            made(["one", "two"], session_manager=manager)("the-secret-word")
            assert b"the-secret-word" not in (folder / "agent.db").read_bytes()
    with OutliveSessionManager("trip", f"sqlite:///{folder}/agent.db", **options) as manager:
        assert len(made([], session_manager=manager).messages) == 4


def test_images_come_back_as_bytes(each_store):
    image = {"image": {"format": "png", "source": {"bytes": bytes(range(256))}}}
    made(["nice"], session_manager=manager_on(each_store))([{"text": "look"}, image])
    again = made([], session_manager=manager_on(each_store))
    assert again.messages[0]["content"][1] == image


def test_agents_share_a_session(each_store):
    for name in ("one", "two"):
        made([name], agent_id=name, session_manager=manager_on(each_store))("question")
    again = made([], agent_id="one", session_manager=manager_on(each_store))
    assert texts(again.messages) == ["question", "one"]
    assert len(manager_on(each_store).history(agent_id="two")) == 2


def graph_on(manager, calls):
    builder = GraphBuilder()
    for name in ("first", "second"):
        count = functools.partial(lambda node, number: calls(node), name)
        builder.add_node(made([f"{name} done"], count, agent_id=name), name)
    builder.add_edge("first", "second")
    return builder.set_session_manager(manager).set_graph_id("plan").set_max_node_executions(9).build()


def walk_and_die(report, url, folder):
    with OutliveSessionManager("trip", url) as manager:
        graph_on(manager, Calls(folder, "second"))("go")


def test_a_graph_that_is_killed_continues_at_its_second_node(workers, url, folder):
    die(workers, walk_and_die, url, str(folder))
    calls = Calls(folder)
    with OutliveSessionManager("trip", url) as manager:
        result = graph_on(manager, calls)("go")
    assert (result.status.value, calls.names) == ("completed", ["first", "second", "second"])
    with outlive.open(url) as store:
        assert store.thread("trip").namespaces() == ["multi-agent/plan"]


def test_the_second_of_two_processes_at_once_is_told(each_store):
    one, two = (made(["x", "y", "z"], session_manager=manager_on(each_store)) for _ in range(2))
    one("first")
    with pytest.raises((HeadMoved, EventLoopException)):
        two("second")
    again = made(["x", "y"], session_manager=manager_on(each_store))
    again("third")
    assert texts(again.messages) == ["first", "x", "third", "y"]


def talk_many(report, url, number, wait):
    with OutliveSessionManager("trip", url) as manager:
        agent = made([str(n) for n in range(9 * APPENDS * PROCESSES)], session_manager=manager)
        wait(report)
        done = 0
        while done < APPENDS // 4:
            try:
                agent(f"{number} {done}")
            except (HeadMoved, EventLoopException):
                manager.initialize(agent)  # read what the other one has added
                if not any(f"{number} {done}" == text for text in texts(agent.messages)):
                    continue
            done += 1


def test_two_processes_at_once_lose_no_message(workers, shared_url, folder):
    append_at_once(workers, talk_many, shared_url, folder)
    with OutliveSessionManager("trip", shared_url) as manager:
        said = texts(made([], session_manager=manager).messages)
    for number in range(PROCESSES):
        for n in range(APPENDS // 4):
            assert said.count(f"{number} {n}") == 1


# Runs

SCRIPT = [
    [call("search", "c1", city="Porto")],
    [call("book", "c2", city="Porto"), call("book", "c3", city="Faro")],
    "done",
]
ALL = ["model:0", "search:Porto", "model:1", "book:Porto", "book:Faro", "model:2"]


def planner(folder, dies_in=None, script=SCRIPT, **options):
    calls = (lambda name: None) if folder is None else Calls(folder, dies_in)

    @tool(context=True)
    def search(city: str, tool_context: ToolContext) -> str:
        """Search a city."""
        tool_context.agent.state.set("city", city)
        calls(f"search:{city}")
        return f"found {city}"

    @tool
    async def book(city: str) -> str:
        """Book a city."""
        if city == "Faro" and folder is not None:  # the other one of the two has ended
            while "book:Porto" not in calls.names:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
        calls(f"book:{city}")
        return f"booked {city}"

    return made(script, calls, tools=[search, book], **options)


def plan_and_die(report, url, folder, name="book:Faro"):
    with outlive.open(url) as store:
        run(planner(folder, name), "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def plan_on_a_loop_and_die(report, url, folder):
    async def scenario():
        async with await outlive.open_async(url) as store:
            agent = planner(folder, "book:Faro")
            await arun(agent, "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)

    asyncio.run(scenario())


def results(messages):
    return {
        block["toolResult"]["toolUseId"]: block["toolResult"]["content"][0]["text"]
        for message in messages
        for block in message["content"]
        if "toolResult" in block
    }


@pytest.mark.parametrize("begin", [plan_and_die, plan_on_a_loop_and_die])
def test_an_agent_that_is_killed_in_its_second_tool_is_finished_by_another_process(
    workers, shared_url, folder, begin
):
    with OutliveSessionManager("trip", shared_url) as manager:
        made([], session_manager=manager).state.set("before", 1)
    die(workers, begin, shared_url, str(folder))
    info = recover(shared_url, {"planner": lambda run: resume(planner(folder), run)})
    assert (info.status, info.result, info.attempt) == ("completed", "done", 2)
    assert Calls(folder).names == [*ALL[:5], "book:Faro", "model:2"], (
        "only what was under way is called again"
    )
    with OutliveSessionManager("trip", shared_url) as manager:
        agent = made([], session_manager=manager)
    assert results(agent.messages) == {"c1": "found Porto", "c2": "booked Porto", "c3": "booked Faro"}
    assert [message["role"] for message in agent.messages] == ["user", "assistant"] * 3
    assert agent.state.get("city") == "Porto"
    with outlive.open(shared_url) as store:
        again = run(planner(folder), "go", thread_id="trip", store=store, run_id="r")
        assert (again.output, again.result) == ("done", None)
        assert [step.name for step in store.steps("r")] == ["tool:search", "tool:book", "tool:book"]


@pytest.mark.parametrize("name", ["model:0", "search:Porto", "model:1", "book:Porto", "model:2"])
def test_every_kill_of_a_run_repeats_only_what_was_under_way(workers, url, folder, name):
    die(workers, plan_and_die, url, str(folder), name)
    info = recover(url, {"planner": lambda run: resume(planner(folder), run)})
    assert (info.status, info.result) == ("completed", "done")
    assert sorted(Calls(folder).names) == sorted([*ALL, name])


def test_an_agent_is_resumed_on_a_loop_and_its_events_are_heard(workers, url, folder):
    die(workers, plan_and_die, url, str(folder))
    heard = []

    async def scenario():
        async with await outlive.open_async(url) as store:
            handlers = {"planner": functools.partial(aresume, planner(folder), on_event=heard.append)}
            while not (report := await store.recover(handlers)).resumed:
                assert not report.failed, report.failed
                await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert [event["data"] for event in heard if "data" in event] == list("done")


def end_and_die(report, url, folder):
    def stop(event):
        if "result" in event:
            Calls(folder, "end")("end")

    with outlive.open(url) as store:
        run(planner(folder), "go", thread_id="trip", store=store, run_id="r", on_event=stop, lease_s=LEASE_S)


def test_a_run_that_is_killed_after_its_last_message_calls_nothing_again(workers, url, folder):
    die(workers, end_and_die, url, str(folder))
    info = recover(url, {"planner": lambda run: resume(planner(folder), run)})
    assert (info.result, Calls(folder).names) == ("done", [*ALL, "end"])


def state_and_die(report, url, folder):
    with outlive.open(url) as store:
        run(noter(folder, "two"), "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def noter(folder, dies_in=None):
    calls = Calls(folder, dies_in)

    @tool(context=True)
    async def note(word: str, tool_context: ToolContext) -> str:
        """Note a word."""
        if word == "two":
            while "one" not in calls.names:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
        tool_context.agent.state.set(word, "noted")
        calls(word)
        return word

    return made([[call("note", "a", word="one"), call("note", "b", word="two")], "done"], tools=[note])


def test_what_a_finished_tool_has_changed_in_the_state_is_there_after_a_kill(workers, url, folder):
    die(workers, state_and_die, url, str(folder))
    agent = noter(folder)
    assert recover(url, {"planner": lambda run: resume(agent, run)}).result == "done"
    assert agent.state.get() == {"one": "noted", "two": "noted"}
    assert Calls(folder).names == ["one", "two", "two"]


def test_calls_with_one_id_in_two_messages_are_two_calls(each_store, folder):
    script = [[call("search", "search", city="Porto")], [call("search", "search", city="Faro")], "done"]
    outcome = run(planner(folder, script=script), "go", thread_id="trip", store=each_store)
    assert (outcome.output, outcome.result.stop_reason) == ("done", "end_turn")
    assert [name for name in Calls(folder).names if "search" in name] == ["search:Porto", "search:Faro"]


def test_a_call_that_a_hook_has_made_again_is_made_again(each_store, folder):
    agent, times = planner(folder, script=[[call("search", "c", city="Porto")], "done"]), []

    def again(event: AfterToolCallEvent) -> None:
        times.append(event)
        event.retry = len(times) < 3

    agent.add_hook(again)
    run(agent, "go", thread_id="trip", store=each_store, run_id="r")
    assert Calls(folder).names.count("search:Porto") == 3


def test_a_tool_that_raises_is_not_called_again(each_store, folder):
    calls = Calls(folder)

    @tool
    def work() -> str:
        """Work."""
        calls("work")
        raise ValueError("broken")

    agent = made([[call("work", "c")], "done"], tools=[work])
    assert run(agent, "go", thread_id="trip", store=each_store, run_id="r").output == "done"
    assert (calls.names, results(agent.messages)["c"]) == (["work"], "Error: broken")


class City(pydantic.BaseModel):
    name: str


def test_structured_output_is_the_output(each_store):
    script = [[call("City", "c", name="Porto")]]
    options = {"thread_id": "trip", "store": each_store, "run_id": "r", "structured_output_model": City}
    assert run(made(script), "go", **options).output == City(name="Porto")
    assert run(made([]), "go", **options).output == City(name="Porto")


# Questions


def payer(calls):
    @tool
    def pay(eur: int) -> str:
        """Pay an amount."""
        calls(f"pay:{eur}")
        return f"paid {eur}"

    def approve(event: BeforeToolCallEvent) -> None:
        if event.interrupt("approve", reason=event.tool_use["input"]) != "yes":
            event.cancel_tool = "not approved"

    agent = made([[call("pay", "c1", eur=1), call("pay", "c2", eur=2)], "done"], calls, tools=[pay])
    agent.add_hook(approve)
    return agent


def test_interrupts_are_questions_that_any_process_answers(each_store, folder):
    calls = Calls(folder)
    assert run(payer(calls), "go", thread_id="trip", store=each_store, run_id="r").is_waiting
    questions = sorted(each_store.questions(), key=lambda question: question.payload["reason"]["eur"])
    assert [question.payload for question in questions] == [
        {"name": "approve", "reason": {"eur": 1}},
        {"name": "approve", "reason": {"eur": 2}},
    ]
    each_store.answer("r", questions[0].name, "yes")
    assert not each_store.recover({"planner": lambda run: resume(payer(calls), run)}).resumed
    each_store.answer("r", questions[1].name, "no")
    outcomes = []
    each_store.recover({"planner": lambda run: outcomes.append(resume(payer(calls), run))})
    assert outcomes[0].output == "done"
    assert calls.names == ["model:0", "pay:1", "model:1"]
    agent = made([], session_manager=manager_on(each_store))
    assert results(agent.messages) == {"c1": "paid 1", "c2": "not approved"}


def asker(calls):
    @tool(context=True)
    def ask(what: str, tool_context: ToolContext) -> str:
        """Ask a person."""
        answer = tool_context.interrupt("ask", reason=what)
        calls(f"ask:{what}")
        return str(answer)

    return made([[call("ask", "c1", what="a")], [call("ask", "c2", what="b")], "done"], calls, tools=[ask])


def test_a_tool_asks_and_its_answer_is_its_result(each_store, folder):
    calls = Calls(folder)
    run(asker(calls), "go", thread_id="trip", store=each_store, run_id="r")
    for answer in ("first", {"second": 2}):
        (question,) = each_store.questions()
        each_store.answer("r", question.name, answer)
        each_store.recover({"planner": lambda run: resume(asker(calls), run)})
    assert each_store.find_run("r").result == "done"
    assert calls.names == ["model:0", "ask:a", "model:1", "ask:b", "model:2"]


def test_an_answer_is_not_one_to_a_later_interrupt_of_the_same_hook(each_store, folder):
    def careful():
        agent = planner(folder)

        def check(event: BeforeToolsEvent) -> None:
            event.interrupt("check")

        agent.add_hook(check)
        return agent

    run(careful(), "go", thread_id="trip", store=each_store, run_id="r")
    names = set()
    for _ in range(2):
        (question,) = each_store.questions()
        names.add(question.name)
        each_store.answer("r", question.name, True)
        each_store.recover({"planner": lambda run: resume(careful(), run)})
    assert (len(names), each_store.find_run("r").result) == (2, "done")


def pay_and_die(report, url, folder):
    with outlive.open(url) as store:
        store.recover({"planner": lambda run: resume(payer(Calls(folder, "pay:2")), run)})


def test_a_kill_after_the_answers_asks_nobody_again(workers, url, folder):
    with outlive.open(url) as store:
        run(payer(Calls(folder)), "go", thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)
        for question in store.questions():
            store.answer("r", question.name, "yes")
    die(workers, pay_and_die, url, str(folder))
    assert recover(url, {"planner": lambda run: resume(payer(Calls(folder)), run)}).result == "done"
    names = Calls(folder).names
    assert names.count("pay:2") == 2
    assert names.count("model:0") == names.count("model:1") == 1


# What ends a run


def test_a_lost_run_is_not_told_to_the_model(folder):
    calls = Calls(folder)
    with outlive.open("memory:") as store:

        @tool
        def work(n: int) -> str:
            """Work."""
            calls(f"work:{n}")
            if n == 1:
                store.cancel("r")
            return "worked"

        script = [*([call("work", f"c{n}", n=n)] for n in range(4)), "done"]
        with pytest.raises(LeaseLost):
            run(made(script, calls, tools=[work]), "go", thread_id="trip", store=store, run_id="r")
        assert calls.names == ["model:0", "work:0", "model:1", "work:1"]


def test_a_session_cannot_be_written_by_the_process_that_lost_the_run(each_store):
    """The fence of the run is that of its session too."""
    entered, leave = threading.Event(), threading.Event()

    @tool
    def work() -> str:
        """Work."""
        entered.set()
        leave.wait(60)
        return "worked"

    def work_slowly():
        with pytest.raises(LeaseLost):
            run(
                made([[call("work", "c")], "late"], tools=[work]),
                "go",
                thread_id="trip",
                store=each_store,
                run_id="r",
            )

    thread = threading.Thread(target=work_slowly)
    thread.start()
    assert entered.wait(60)
    each_store.cancel("r")
    leave.set()
    thread.join()
    messages = each_store.thread("trip", namespace="agent/default").load()["data"]["messages"]
    assert "late" not in texts(messages)
    assert len(messages) == 2


def test_a_run_continues_the_conversation_of_its_thread(each_store):
    made(["zero"], session_manager=manager_on(each_store))("a")
    outcome = run(made(["", "one"]), "b", thread_id="trip", store=each_store)
    assert outcome.output == "one"
    agent = made([], session_manager=manager_on(each_store))
    assert texts(agent.messages) == ["a", "zero", "b", "one"]


def test_an_agent_that_was_in_a_run_works_without_one(each_store):
    agent = planner(None)
    run(agent, "go", thread_id="trip", store=each_store)
    before = len(list(each_store.thread("trip", namespace="agent/default").history()))
    agent.messages.clear()
    assert str(agent("go")) == "done\n"
    assert len(list(each_store.thread("trip", namespace="agent/default").history())) == before


def test_wrong_arguments_say_what_to_do():
    with outlive.open("memory:") as store:
        with pytest.raises(BadArgument, match="session_manager"):
            run(made([], session_manager=manager_on(store)), "go", thread_id="t", store=store)
        with store.run("t") as other, pytest.raises(BadArgument, match="not started by this adapter"):
            resume(made([]), other)
        with store.run("trip"), pytest.raises(ThreadBusy):
            run(made([]), "go", thread_id="trip", store=store)
        store.thread("x", namespace="agent/default").save({"other": 1})
        with pytest.raises(BadArgument, match="no snapshot"):
            made([], session_manager=OutliveSessionManager("x", store))
    with pytest.raises(BadArgument, match="OutliveSessionManager takes"):
        OutliveSessionManager("x", 3)
