"""The Claude Agent SDK: its sessions on every store, by the suite that it ships, and its queries as runs that survive a kill.

The program that the SDK drives is not installed here. A stand-in speaks its protocol, started by the SDK as that is.
"""

import asyncio
import functools
import gc
import json
import os
import uuid

import pytest
import trio
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    InMemorySessionStore,
    ResultMessage,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
    query,
)
from claude_agent_sdk.testing import run_session_store_conformance

import outlive
from outlive.adapters.claude import OutliveSessionStore, aresume, arun, resume, run
from outlive.errors import BadArgument, CheckpointMissing, LeaseLost, ThreadBusy
from outlive.testing.patience import eventually
from rig.adapters import APPENDS, LEASE_S, PROCESSES, Calls, append_at_once, die, recover
from rig.claude_stand_in import PLAN, installed

SESSION = "0b8f7b1e-7a3b-4c55-9a39-5d3f6a2f4c11"
KEY = {"project_key": "proj", "session_id": SESSION}
SUB = {**KEY, "subpath": "subagents/agent-1"}


def entry(text, type="user", **more):
    id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{type} {text}"))
    message = {"role": type, "content": text}
    return {"type": type, "uuid": id, "sessionId": SESSION, "message": message, **more}


def texts(entries):
    return [entry["message"]["content"] for entry in entries or ()]


# Sessions


def in_asyncio(work):
    return asyncio.run(work())


@pytest.mark.parametrize("start", [in_asyncio, trio.run])
def test_the_suite_of_the_sdk_passes(each_url, start):
    tenants = iter(range(99))
    opened = []

    def make():
        own = {} if each_url == "memory:" else {"tenant": f"t{next(tenants)}"}
        opened.append(OutliveSessionStore(each_url, **own))
        return opened[-1]

    start(functools.partial(run_session_store_conformance, make))
    assert len(opened) == 15, "a probe, and a store for each contract"
    for store in opened:
        store.close()


@pytest.fixture
def sessions(each_store):
    return OutliveSessionStore(each_store)


def test_a_batch_that_comes_again_adds_what_is_new(sessions, each_store):
    async def scenario():
        title = {"type": "custom-title", "customTitle": "trip"}
        await sessions.append(KEY, [entry("a"), entry("b"), title])
        await sessions.append(KEY, [entry("b"), entry("c"), entry("c"), title])
        await OutliveSessionStore(each_store).append(KEY, [entry("a"), entry("d")])
        await sessions.append(KEY, [entry("d"), entry("c")])
        stored = await sessions.load(KEY)
        assert [one.get("uuid") for one in stored] == [
            *(one.get("uuid") for one in [entry("a"), entry("b"), title, entry("c"), title, entry("d")])
        ]
        assert len(await sessions.history(KEY)) == 3, "what adds nothing is no checkpoint"

    asyncio.run(scenario())


def test_what_a_caller_has_is_its_own(sessions):
    async def scenario():
        mine = [entry("a")]
        await sessions.append(KEY, mine)
        mine[0]["message"]["content"] = "changed"
        (await sessions.load(KEY))[0]["message"]["content"] = "changed"
        await sessions.append(KEY, [entry("b")])
        assert texts(await sessions.load(KEY)) == ["a", "b"]

    asyncio.run(scenario())


def test_the_helpers_of_the_sdk_see_what_they_see_in_its_own_store(sessions, tmp_path):
    key = {**KEY, "project_key": project_key_for_directory(str(tmp_path))}

    async def play(store):
        for n in range(3):
            when = f"2026-01-01T00:00:0{n}.000Z"
            question = entry(
                f"question {n}",
                timestamp=when,
                parentUuid=None if n == 0 else entry(f"answer {n - 1}")["uuid"],
            )
            answer = entry(f"answer {n}", "assistant", timestamp=when, parentUuid=question["uuid"])
            answer["uuid"] = entry(f"answer {n}")["uuid"]
            await store.append(key, [question, answer])
        await store.append(key, [{"type": "tag", "tag": "travel"}])
        listed = await list_sessions_from_store(store, directory=str(tmp_path))
        messages = await get_session_messages_from_store(store, SESSION, directory=str(tmp_path))
        return [(one.session_id, one.summary, one.tag, one.created_at) for one in listed], messages

    async def both():
        ours, theirs = await play(sessions), await play(InMemorySessionStore())
        assert ours == theirs
        assert ours[0][0][:3] == (SESSION, "question 0", "travel")
        assert len(ours[1]) == 6

    asyncio.run(both())


def test_the_past_of_a_session(sessions):
    async def scenario():
        for n in range(3):
            await sessions.append(KEY, [entry(str(n))])
        newest, before, _ = await sessions.history(KEY)
        assert [info.id for info in await sessions.history(KEY, limit=1)] == [newest.id]
        assert texts(await sessions.load(KEY, at=before.id)) == ["0", "1"]
        with pytest.raises(CheckpointMissing):
            await sessions.load(KEY, at="no-such")
        (change,) = await sessions.diff(KEY, before.id)
        assert change.path == "items[2]"
        forked = await sessions.fork(KEY, at=before.id, title="another way")
        assert forked["project_key"] == KEY["project_key"]
        copied = [one for one in await sessions.load(forked) if one["type"] == "user"]
        assert texts(copied) == ["0", "1"]
        assert {one["sessionId"] for one in copied} == {forked["session_id"]} != {SESSION}
        assert {one["session_id"] for one in await sessions.list_sessions("proj")} == {
            SESSION, forked["session_id"],
        }  # fmt: skip
        assert await sessions.prune(KEY, keep_last=1) == 2
        assert texts(await sessions.load(KEY)) == ["0", "1", "2"]

    asyncio.run(scenario())


def test_what_is_deleted_is_erased(folder):
    path = folder / "agent.db"

    async def scenario():
        async with OutliveSessionStore(f"sqlite:///{path}") as sessions:
            await sessions.append(KEY, [entry("the-first-word")])
            await sessions.append(SUB, [entry("the-second-word")])
            await sessions.delete(SUB)
            assert b"the-second-word" not in path.read_bytes()
            await sessions.delete(KEY)
            assert b"the-first-word" not in path.read_bytes()
            await sessions.append(KEY, [entry("the-first-word")])
            assert texts(await sessions.load(KEY)) == ["the-first-word"]

    asyncio.run(scenario())


def test_a_session_in_an_encrypted_store_of_a_tenant(folder):
    url, options = (
        f"sqlite:///{folder}/agent.db",
        {"key": outlive.KeyRing({"k": os.urandom(32)}), "tenant": "acme"},
    )

    async def scenario():
        async with OutliveSessionStore(url, **options) as sessions:
            await sessions.append(KEY, [entry("the-secret-word")])
        assert b"the-secret-word" not in (folder / "agent.db").read_bytes()
        async with OutliveSessionStore(url, **options) as sessions:
            assert texts(await sessions.load(KEY)) == ["the-secret-word"]

    asyncio.run(scenario())


def add_many(report, url, number, wait):
    async def scenario():
        async with OutliveSessionStore(url) as sessions:
            await sessions.load(KEY)
            wait(report)
            for n in range(APPENDS):
                await sessions.append(KEY, [entry(f"{number} {n}"), entry(f"{number} {n}", "assistant")])

    asyncio.run(scenario())


def test_two_processes_append_at_once_and_lose_nothing(workers, shared_url, folder):
    append_at_once(workers, add_many, shared_url, folder)

    async def read():
        async with OutliveSessionStore(shared_url) as sessions:
            return texts(await sessions.load(KEY))

    said = asyncio.run(read())
    assert len(said) == 2 * PROCESSES * APPENDS
    assert all(one == other for one, other in zip(said[::2], said[1::2], strict=True))


def test_one_store_is_used_from_several_loops_and_from_trio(each_url):
    sessions = OutliveSessionStore(each_url)
    for n in range(2):
        asyncio.run(sessions.append(KEY, [entry(f"asyncio {n}")]))
        trio.run(sessions.append, KEY, [entry(f"trio {n}")])
    assert texts(asyncio.run(sessions.load(KEY))) == ["asyncio 0", "trio 0", "asyncio 1", "trio 1"]
    sessions.close()


# Queries


def options_in(folder, *, asks=None, hangs=None, plan=PLAN, cwd=None, **more):
    """Options that start the stand-in; each has a configuration folder of its own, as on another machine."""
    cwd = cwd or folder
    env = {
        "STAND_IN_FOLDER": str(folder),
        "STAND_IN_PLAN": json.dumps(plan),
        "STAND_IN_PROJECT": project_key_for_directory(str(cwd)),
        "CLAUDE_CONFIG_DIR": str(folder / f"config-{uuid.uuid4().hex}"),
    }
    if asks:
        env["STAND_IN_ASKS"] = asks
    if hangs:
        env["STAND_IN_HANGS"] = hangs
    return ClaudeAgentOptions(cli_path=installed(folder), cwd=str(cwd), env=env, **more)


def prompts(folder):
    return [json.loads(line) for line in (folder / "prompts").read_text().splitlines()]


ALL = ["prompt", "search:Lisbon", "book:Porto", "book:Faro"]


@pytest.mark.parametrize("start", [in_asyncio, trio.run])
def test_a_query_is_stored_and_another_continues_it(folder, start):
    sessions = OutliveSessionStore(f"sqlite:///{folder}/agent.db")

    async def ask(prompt, plan, **place):
        options = options_in(folder, plan=plan, session_store=sessions, session_store_flush="eager", **place)
        return [message async for message in query(prompt=prompt, options=options)]

    first = start(functools.partial(ask, "go", PLAN[:1], session_id=SESSION))
    again = start(functools.partial(ask, "more", PLAN[:2], resume=SESSION))
    assert isinstance(first[-1], ResultMessage)
    assert again[-1].result == "done"
    assert Calls(folder).names == ["prompt", "search:Lisbon", "prompt", "book:Porto"]
    sessions.close()


def die_in(url, folder, name):
    """Return a function that kills this process when the transcript has the call that is under way."""

    async def stop(message):
        if not isinstance(message, AssistantMessage) or not hasattr(message.content[0], "name"):
            return
        block = message.content[0]
        if f"{block.name}:{block.input['city']}" != name:
            return
        async with OutliveSessionStore(url) as sessions:
            key = {**KEY, "project_key": project_key_for_directory(str(folder))}
            while block.id not in json.dumps(await sessions.load(key)) or name not in Calls(folder).names:
                await asyncio.sleep(0.02)
        Calls(folder, "killed")("killed")

    return stop


def plan_and_die(report, url, folder, name="book:Porto"):
    with outlive.open(url) as store:
        options = options_in(folder, hangs=name)
        stop = die_in(url, folder, name)
        run(options, "go", session_id=SESSION, store=store, run_id="r", on_message=stop, lease_s=LEASE_S)


def plan_on_a_loop_and_die(report, url, folder):
    async def scenario():
        async with await outlive.open_async(url) as store:
            stop = die_in(url, folder, "book:Porto")
            place = {"session_id": SESSION, "store": store, "run_id": "r", "lease_s": LEASE_S}
            await arun(options_in(folder, hangs="book:Porto"), "go", on_message=stop, **place)

    asyncio.run(scenario())


@pytest.mark.parametrize("begin", [plan_and_die, plan_on_a_loop_and_die])
def test_a_query_that_is_killed_in_its_second_tool_is_finished_by_another_process(
    workers, shared_url, folder, begin
):
    die(workers, begin, shared_url, folder)
    info = recover(shared_url, {"claude": lambda run: resume(options_in(folder), run)})
    assert (info.status, info.result, info.attempt) == ("completed", "done", 2)
    assert Calls(folder).names == [
        *ALL[:3], "killed", "prompt", "book:Porto", "book:Faro",
    ], "the first tool is not called again"  # fmt: skip
    assert prompts(folder) == ["go", "Continue where you were interrupted."]
    with outlive.open(shared_url) as store:
        again = run(options_in(folder), "go", session_id=SESSION, store=store, run_id="r")
        assert (again.output, again.result) == ("done", None)


def test_a_run_is_resumed_on_a_loop_and_from_another_folder(workers, url, folder):
    die(workers, plan_and_die, url, folder)
    heard = []
    (folder / "elsewhere").mkdir()

    async def scenario():
        async with await outlive.open_async(url) as store:
            options = options_in(folder, cwd=folder / "elsewhere")
            handlers = {"claude": functools.partial(aresume, options, on_message=heard.append)}
            while not (report := await store.recover(handlers)).resumed:
                assert not report.failed, report.failed
                await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert isinstance(heard[-1], ResultMessage)
    assert Calls(folder).names.count("search:Lisbon") == 1


def test_a_run_whose_prompt_was_not_stored_sends_it_again(folder, url):
    with outlive.open(url) as store:
        missing = options_in(folder)
        missing.cli_path = str(folder / "nothing")
        with pytest.raises(Exception, match="nothing"):
            run(missing, "go", session_id=SESSION, store=store, run_id="r")
        outcome = run(options_in(folder), "go", session_id=SESSION, store=store, run_id="r2")
        assert outcome.output == "done"
        later = run(options_in(folder, plan=[]), "and then?", session_id=SESSION, store=store)
        assert later.output == "done"
        assert prompts(folder) == ["go", "and then?"]


def test_a_sync_run_works_from_trio(folder, url):
    def work():
        with outlive.open(url) as store:
            return run(options_in(folder), "go", session_id=SESSION, store=store).output

    assert trio.run(trio.to_thread.run_sync, work) == "done"


# Questions


@pytest.mark.parametrize(
    "answer, calls",
    [(True, ["book:Porto"]), ({"approve": False, "message": "too far"}, [])],
    ids=["allowed", "refused"],
)
def test_a_permission_is_a_question_that_any_process_answers(each_store, folder, answer, calls):
    def options():
        return options_in(folder, asks="book", plan=PLAN[:2])

    place = {"session_id": SESSION, "store": each_store, "run_id": "r"}
    assert run(options(), "go", ask=True, **place).is_waiting
    (question,) = each_store.questions()
    assert question.payload == {"tool": "book", "arguments": {"city": "Porto"}}
    assert not each_store.recover({"claude": lambda run: resume(options(), run, ask=True)}).resumed
    each_store.answer("r", question.name, answer)
    each_store.recover({"claude": lambda run: resume(options(), run, ask=True)})
    assert each_store.find_run("r").result == "done"
    assert Calls(folder).names == ["prompt", "search:Lisbon", "prompt", *calls]
    told = prompts(folder)[1]
    assert (
        'allowed this tool call, so make it again: book with the input {"city": "Porto"}' in told
    ) == bool(calls)
    assert ("The reason: too far" in told) == (not calls)


def test_the_same_call_is_asked_again_unless_the_answer_is_for_always(each_store, folder):
    plan = [PLAN[1], PLAN[1], PLAN[2], PLAN[1]]

    def options():
        return options_in(folder, asks="book", plan=plan)

    run(options(), "go", ask=True, session_id=SESSION, store=each_store, run_id="r")
    names = []
    for answer in (True, {"approve": True, "always": True}):
        (question,) = each_store.questions()
        names.append(question.name)
        each_store.answer("r", question.name, answer)
        each_store.recover({"claude": lambda run: resume(options(), run, ask=True)})
    assert each_store.find_run("r").result == "done"
    assert len(set(names)) == 2
    assert [name for name in Calls(folder).names if name != "prompt"] == [
        "book:Porto", "book:Porto", "book:Faro", "book:Porto",
    ]  # fmt: skip


# What ends a run


# A query that is cancelled leaves a stream of the SDK open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lost_run_stops_the_program(each_store, folder):
    def lose(message):
        if isinstance(message, AssistantMessage) and getattr(message.content[0], "name", "") == "book":
            eventually(lambda: "book:Porto" in Calls(folder).names)
            each_store.cancel("r")

    options = options_in(folder)
    with pytest.raises(LeaseLost):
        run(options, "go", session_id=SESSION, store=each_store, run_id="r", on_message=lose)
    assert each_store.find_run("r").status == "cancelled"
    gc.collect()  # that stream, while the warning is ignored


def test_an_error_of_the_program_fails_the_run(each_store, folder):
    options = options_in(folder)
    options.cli_path = str(folder / "missing")
    with pytest.raises(Exception, match="missing"):
        run(options, "go", session_id=SESSION, store=each_store, run_id="r")
    assert each_store.find_run("r").status == "failed"


def test_wrong_arguments_say_what_to_do(folder):
    options = ClaudeAgentOptions(cwd=str(folder))
    with outlive.open("memory:") as store:
        with pytest.raises(BadArgument, match="UUID"):
            run(options, "go", session_id="trip", store=store)
        with pytest.raises(BadArgument, match="resume"):
            run(ClaudeAgentOptions(resume=SESSION), "go", session_id=SESSION, store=store)
        with pytest.raises(BadArgument, match="can_use_tool"):
            run(ClaudeAgentOptions(can_use_tool=print), "go", session_id=SESSION, store=store, ask=True)
        with pytest.raises(BadArgument, match="str"):
            run(options, ["go"], session_id=SESSION, store=store)
        with store.run("t") as other, pytest.raises(BadArgument, match="not started by this adapter"):
            resume(options, other)
        thread = json.dumps(
            ["claude", project_key_for_directory(str(folder)), SESSION], separators=(",", ":")
        )
        with store.run(thread), pytest.raises(ThreadBusy):
            run(options, "go", session_id=SESSION, store=store)
        with pytest.raises(BadArgument, match="project_key"):
            asyncio.run(OutliveSessionStore(store).load({"session_id": SESSION}))
    with pytest.raises(BadArgument, match="OutliveSessionStore takes"):
        OutliveSessionStore(3)
