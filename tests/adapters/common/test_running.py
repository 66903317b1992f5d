"""Agents as runs: calls that are not repeated, questions that wait, and errors that no framework can swallow."""

import asyncio
import dataclasses
import datetime as dt

import pydantic
import pytest

import outlive
from outlive.adapters.common import running
from outlive.adapters.common.current import current_work, working_on
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.plain import Plain, jsonable
from outlive.adapters.common.questions import Decision, approval, ask_all, decision_of
from outlive.adapters.common.thread_list import ThreadList
from outlive.adapters.common.travel import Past
from outlive.errors import AnswerRefused, BadArgument, CheckpointMissing, LeaseLost, Unencodable
from outlive.runtime.runtime import run_now
from rig.adapters import LEASE_S, Calls, die, recover

TOOLS = ("search", "book", "pay")


def framework(tools, calls, swallows=False):
    """An agent loop of somebody else, which turns errors of tools into messages."""

    async def loop():
        messages = []
        for number, tool in enumerate(tools):
            try:
                messages.append(await calls(tool, f"call-{number}"))
            except Exception as error:
                if not swallows:
                    raise
                messages.append(f"error: {error}")
        return messages

    return loop()


def agent(folder, dies_in=None, asks=False):
    """The work of an adapter: each tool is called through the ledger, and its result is added to the session."""
    calls, session = Calls(folder, dies_in), ThreadList("t")

    async def work(current):
        home = StoreHome(outlive.Store(current.run.thread._store), {}, "agent")

        async def call(tool, call_id):
            async def body():
                await asyncio.sleep(0)
                calls(tool)
                return {"tool": tool}

            if asks and tool == "pay":
                name, question = approval(tool, call_id, {"eur": 40})
                if not decision_of((await ask_all(current, {name: question}))[name]).approve:
                    return "refused"
            result = await kept(tool, body, key=call_id)
            home.call(lambda store: session.append(store, [result], id=f"{current.run.id}:{call_id}"))
            return result

        output = await framework(TOOLS, call)
        await current.run.complete(len(output))
        return output

    return running.in_loop(work)


def begin_and_die(report, url, folder):
    with outlive.open(url) as store:
        running.begin(store, agent(folder, "book"), "t", agent="a", prompt="go", run_id="r", lease_s=LEASE_S)


@pytest.mark.each_engine
def test_an_agent_that_is_killed_in_a_tool_is_finished_by_another_process(workers, shared_url, folder):
    die(workers, begin_and_die, shared_url, str(folder))
    run = recover(shared_url, {"a": lambda run: running.resume(run, agent(folder))})
    assert (run.status, run.result, run.prompt, run.attempt) == ("completed", 3, "go", 2)
    assert Calls(folder).names == ["search", "book", "book", "pay"]
    with outlive.open(shared_url) as store:
        assert store.thread("t").load() == {"items": [{"tool": tool} for tool in TOOLS]}
        outcome = running.begin(store, agent(folder), "t", agent="a", run_id="r")
        assert (outcome.output, outcome.run.result) == (None, 3), "it has ended, and nothing is called"


def test_a_question_makes_the_run_wait_until_it_is_answered(each_store, folder):
    outcome = running.begin(each_store, agent(folder, asks=True), "t", agent="a", run_id="r")
    assert (outcome.is_waiting, outcome.output) == (True, None)
    (question,) = each_store.questions()
    assert (question.name, question.payload) == (
        "pay:call-2", {"tool": "pay", "arguments": {"eur": 40}, "call_id": "call-2"},
    )  # fmt: skip
    with pytest.raises(AnswerRefused):
        each_store.answer("r", question.name, {"approve": "perhaps"})
    each_store.answer("r", question.name, {"approve": True})
    each_store.recover({"a": lambda run: running.resume(run, agent(folder, asks=True))})
    assert each_store.find_run("r").status == "completed"
    assert Calls(folder).names == ["search", "book", "pay"]


def test_an_agent_on_a_store_of_a_loop(folder):
    async def scenario():
        async with await outlive.open_async(f"sqlite:///{folder}/a.db") as store:
            calls = []

            async def work(current):
                async def body():
                    calls.append(1)
                    return "done"

                first, second = await asyncio.gather(kept("tool", body, key="a"), kept("tool", body, key="b"))
                await current.run.complete([first, second])
                return first

            outcome = await running.abegin(store, work, "t", agent="a", run_id="r")
            assert (outcome.output, outcome.run.result, len(calls)) == ("done", ["done", "done"], 2)
            with pytest.raises(BadArgument, match="open_async"):
                running.begin(store, work, "t")

    asyncio.run(scenario())
    with outlive.open("memory:") as store:

        async def on_a_loop():
            running.begin(store, running.in_loop(lambda current: None), "t")

        with pytest.raises(BadArgument, match="arun"):
            asyncio.run(on_a_loop())


def test_a_lost_run_is_not_an_error_of_a_tool():
    called = []

    def work_of(store):
        async def work(current):
            async def call(tool, call_id):
                async def body():
                    called.append(tool)
                    if tool == "book":
                        store.cancel(current.run.id)

                return await kept(tool, body, key=call_id)

            return await framework(TOOLS, call, swallows=True)

        return running.in_loop(work)

    with outlive.open("memory:") as store:
        with pytest.raises(LeaseLost):
            running.begin(store, work_of(store), "t", run_id="r")
        assert (called, store.find_run("r").status) == (["search", "book"], "cancelled")


def test_an_error_of_a_tool_is_one_and_is_called_again_on_a_retry():
    attempts = []

    async def body():
        attempts.append(1)
        raise outlive.errors.BadArgument("of the program itself")

    async def work(current):
        with pytest.raises(BadArgument):
            await kept("tool", body)
        current.check()
        return "handled"

    with outlive.open("memory:") as store:
        assert running.begin(store, running.in_loop(work), "t").output == "handled"
    assert attempts == [1]


def test_without_a_run_a_call_is_a_call():
    assert current_work() is None
    assert run_now(kept("tool", lambda: 3, dump=str, load=int)) == 3


def test_a_stored_result_is_loaded_and_a_new_one_is_the_very_object():
    results = []
    with outlive.open("memory:") as store:
        for _ in range(2):
            run = store.run("t", run_id="r").start()
            with working_on(run._run):
                results.append(
                    run_now(kept("tool", lambda: dt.timedelta(2), dump=lambda d: d.days, load=dt.timedelta))
                )
            run.release()
        assert results == [dt.timedelta(2)] * 2


class Point(pydantic.BaseModel):
    x: int
    raw: bytes = b""


def test_typed_values_become_plain_and_come_back():
    for mode in ("json", "python"):
        plain = Plain(list[Point], mode)
        assert plain.load(plain.dump([Point(x=1, raw=b"ab")])) == [Point(x=1, raw=b"ab")]
    assert Plain(Point, "python").dump(Point(x=1, raw=b"\xff")) == {"x": 1, "raw": b"\xff"}
    with pytest.raises(Unencodable, match="Point"):
        Plain(Point).dump(Point(x=1, raw=b"\xff"))

    class Forgetful(pydantic.BaseModel):
        n: int

        @pydantic.model_serializer
        def without(self):
            return {"n": self.n + 1}

    with pytest.raises(Unencodable, match="another value"):
        Plain(Forgetful).dump(Forgetful(n=1))

    @dataclasses.dataclass
    class Data:
        at: int

    assert jsonable({"data": Data(1), "code": len}) == {
        "data": {"at": 1},
        "code": "<builtin_function_or_method>",
    }


def test_a_decision_says_more_than_yes():
    assert decision_of(True) == Decision(True)
    assert decision_of({"approve": False, "message": "no"}) == Decision(False, message="no")


def test_the_past_of_a_list(each_store):
    home, items, past = StoreHome(each_store, {}, "x"), ThreadList("t"), Past("t")
    for n in range(4):
        home.call(lambda store, n=n: items.append(store, [n]))
    infos = home.call(past.history)
    assert [info.metadata["items"] for info in infos] == [4, 3, 2, 1]
    assert home.call(lambda store: past.load(store, infos[2].id)) == {"items": [0, 1]}
    home.call(lambda store: past.fork(store, "copy", infos[2].id))
    assert each_store.thread("copy").load() == {"items": [0, 1]}
    (change,) = home.call(lambda store: past.diff(store, infos[1].id))
    assert (change.path, change.new) == ("items[3]", 3)
    with pytest.raises(CheckpointMissing):
        home.call(lambda store: past.load(store, "never"))
    assert home.call(lambda store: past.prune(store, 1)) == 3
    assert home.call(items.read) == [0, 1, 2, 3]
