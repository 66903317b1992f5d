"""Google ADK: its sessions on every store, and its agents as runs that survive a kill."""

import asyncio
import functools
import time

import pytest
from google.adk.agents import BaseAgent, LlmAgent, RunConfig, SequentialAgent
from google.adk.agents.run_config import StreamingMode
from google.adk.artifacts import InMemoryArtifactService, artifact_util
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions, RequestInput
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.workflow import START, Workflow
from google.genai import types

import outlive
from outlive.adapters.adk import OutliveArtifactService, OutliveSessionService, aresume, arun, resume, run
from outlive.errors import BadArgument, LeaseLost, ThreadBusy
from rig.adapters import APPENDS, LEASE_S, PROCESSES, Calls, append_at_once, die, recover

WHO = {"app_name": "planner", "user_id": "ann"}
PLACE = {**WHO, "session_id": "trip"}
MINE = {"user_id": "ann", "session_id": "trip"}


def text(words):
    return [types.Part(text=words)]


def call(name, id, **args):
    return types.Part(function_call=types.FunctionCall(name=name, id=id, args=args))


def event(words, author="user", timestamp=None, **delta):
    return Event(
        author=author,
        content=types.Content(role="user", parts=text(words)),
        actions=EventActions(state_delta=delta),
        timestamp=timestamp or time.time(),
    )


class Scripted(BaseLlm):
    """A model that answers by the number of its own messages in the request, and counts its calls."""

    model: str = "scripted"
    script: list
    calls: object = None

    async def generate_content_async(self, llm_request, stream=False):
        number = sum(content.role == "model" for content in llm_request.contents)
        if self.calls is not None:
            self.calls(f"model:{number}")
        parts = self.script[number]
        if stream and parts[0].text:
            for letter in parts[0].text:
                yield response(text(letter), partial=True)
        yield response(parts)


def response(parts, **options):
    return LlmResponse(content=types.Content(role="model", parts=parts), **options)


# Sessions


@pytest.fixture
def service(each_store):
    return OutliveSessionService(each_store)


def plain(session):
    return session.model_dump(exclude={"last_update_time"})


def test_the_sessions_are_those_of_adks_own_service(service):
    first = event(
        "hello", timestamp=5.0, mood="good", **{"app:x": 1, "user:y": [2], "temp:z": 3, "gone": None}
    )
    events = [first, event("earlier", timestamp=4.0, mood="bad"), event("later", timestamp=6.0)]

    async def play(subject):
        session = await subject.create_session(
            **WHO, session_id=" trip ", state={"a": 1, "app:b": 2, "user:c": 3, "temp:d": 4}
        )
        yield plain(session)
        with pytest.raises(AlreadyExistsError):
            await subject.create_session(**PLACE)
        for each in events:
            await subject.append_event(session, each.model_copy(deep=True))
        part = event("part")
        part.partial = True
        await subject.append_event(session, part)
        yield plain(session)
        configs = [None, *(GetSessionConfig(num_recent_events=n) for n in (0, 1, 2, 9))]
        configs += [GetSessionConfig(after_timestamp=moment) for moment in (4.5, 6.0, 7.0)]
        for config in configs:
            seen = await subject.get_session(**PLACE, config=config)
            yield (plain(seen), seen.last_update_time)
        await subject.create_session(app_name="planner", user_id="bob", session_id="b")
        await subject.create_session(app_name="other", user_id="ann", session_id="o")
        for query in ({"app_name": "planner"}, WHO, {"app_name": "none"}):
            yield [plain(found) for found in (await subject.list_sessions(**query)).sessions]
        yield await subject.get_user_state(**WHO)
        await subject.delete_session(**PLACE)
        await subject.delete_session(**PLACE)
        yield await subject.get_session(**PLACE)
        with pytest.raises(SessionNotFoundError):
            await subject.append_event(session, event("late"))

    async def both():
        ours = [seen async for seen in play(service)]
        theirs = [seen async for seen in play(InMemorySessionService())]
        assert ours == theirs

    asyncio.run(both())


def test_what_a_caller_has_is_its_own(service):
    async def scenario():
        session = await service.create_session(**PLACE, state={"list": [1]})
        session.state["list"].append(2)
        new = event("hello", box=[1])
        await service.append_event(session, new)
        new.actions.state_delta["box"].append(2)
        await service.append_event(session, event("again"))
        stored = await service.get_session(**PLACE)
        assert stored.state == {"list": [1], "box": [1]}
        assert [each.actions.state_delta for each in stored.events] == [{"box": [1]}, {}]

    asyncio.run(scenario())


def test_a_writer_that_has_not_seen_the_newest_event_is_told(service, each_store):
    async def scenario():
        await service.create_session(**PLACE)
        first, second = await service.get_session(**PLACE), await service.get_session(**PLACE)
        await OutliveSessionService(each_store).append_event(first, event("one"))
        with pytest.raises(StaleSessionError):
            await service.append_event(second, event("two", **{"user:x": 1}))
        assert await service.get_user_state(**WHO) == {}, "nothing of it is stored"
        assert len((await service.get_session(**PLACE)).events) == 1

    asyncio.run(scenario())


def add_many(report, url, number, wait):
    async def scenario():
        async with OutliveSessionService(url) as service:
            wait(report)
            done = 0
            while done < APPENDS:
                session = await service.get_session(**PLACE)
                try:
                    await service.append_event(session, event("add", count=session.state["count"] + 1))
                except StaleSessionError:
                    continue
                done += 1
            session = await service.create_session(**WHO, session_id=f"own {number}")
            for n in range(APPENDS):
                await service.append_event(session, event("share", **{f"user:{number} {n}": n}))

    asyncio.run(scenario())


def test_two_processes_at_once_lose_no_update(workers, shared_url, folder):
    with outlive.open(shared_url) as store:
        service = OutliveSessionService(store)
        asyncio.run(service.create_session(**PLACE, state={"count": 0}))
        append_at_once(workers, add_many, shared_url, folder)
        session = asyncio.run(service.get_session(**PLACE))
        assert (session.state["count"], len(session.events)) == (PROCESSES * APPENDS,) * 2
        assert len(asyncio.run(service.get_user_state(**WHO))) == PROCESSES * APPENDS


def test_the_past_of_a_session(service):
    async def scenario():
        session = await service.create_session(**PLACE)
        for n in range(3):
            await service.append_event(session, event(str(n), n=n))
        newest, before, *_ = await service.history(**PLACE)
        assert newest.metadata["author"] == "user"
        past = await service.get_session(**PLACE, at=before.id)
        assert (past.state, len(past.events)) == ({"n": 1}, 2)
        with pytest.raises(StaleSessionError):
            await service.append_event(past, event("x"))
        forked = await service.fork("other", **PLACE, at=before.id)
        await service.append_event(forked, event("another"))
        assert (forked.id, len(forked.events), forked.state) == ("other", 3, {"n": 1})
        assert "state.n" in [change.path for change in await service.diff(before.id, **PLACE)]
        assert await service.prune(1, **PLACE) == 3
        assert len((await service.get_session(**PLACE)).events) == 3

    asyncio.run(scenario())


def test_what_is_deleted_is_erased(folder):
    path = folder / "agent.db"

    async def scenario():
        async with OutliveSessionService(f"sqlite:///{path}") as service:
            session = await service.create_session(**PLACE)
            await service.append_event(session, event("the-secret-word"))
            await service.delete_session(**PLACE)
        assert b"the-secret-word" not in path.read_bytes()

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", [StreamingMode.NONE, StreamingMode.SSE])
def test_an_agent_with_parallel_tools_and_streams_leaves_what_it_leaves_in_adks_own_service(each_store, mode):
    async def talk(service):
        runner = Runner(app_name="planner", agent=agent(None), session_service=service)
        await service.create_session(**PLACE)
        stream = runner.run_async(
            **MINE, new_message=types.Content(parts=text("go")), run_config=RunConfig(streaming_mode=mode)
        )
        seen = [each.partial async for each in stream]
        stored = (await service.get_session(**PLACE)).events
        return seen, [(each.author, each.content) for each in stored]

    ours = asyncio.run(talk(OutliveSessionService(each_store)))
    assert ours == asyncio.run(talk(InMemorySessionService()))
    assert (True in ours[0]) == (mode is StreamingMode.SSE)


# Artifacts

FILE = {**PLACE, "filename": "plan.bin"}
MINE_TOO = {**PLACE, "filename": "user:photo.png"}


@pytest.fixture
def artifacts(each_store):
    return OutliveArtifactService(each_store)


def data(content, kind="application/octet-stream"):
    return types.Part.from_bytes(data=content, mime_type=kind)


def reference(name, version=0, session="trip"):
    uri = artifact_util.get_artifact_uri("planner", "ann", name, version, session)
    return types.Part(file_data=types.FileData(file_uri=uri))


def test_the_artifacts_are_those_of_adks_own_service(artifacts):
    """Versions, scopes, references and errors are compared call by call."""

    async def refused(work):
        with pytest.raises(InputValidationError) as caught:
            await work
        return str(caught.value)

    def known(version):
        return version and version.model_dump(exclude={"create_time", "canonical_uri"})

    async def play(subject):
        yield await subject.load_artifact(**FILE)
        yield await subject.get_artifact_version(**FILE)
        parts = [
            data(b"\x00\xff" * 9),
            types.Part(text="plan"),
            {"inlineData": {"data": "AAE=", "mimeType": "a/b"}},
        ]
        for part in parts:
            yield await subject.save_artifact(**FILE, artifact=part, custom_metadata={"by": ["ann"]})
        yield await subject.save_artifact(**MINE_TOO, artifact=data(b"png", "image/png"))
        yield await subject.save_artifact(**{**FILE, "filename": "a/b.txt"}, artifact=types.Part(text=""))
        for version in (None, 0, 1, 2, 3, -1):
            yield await subject.load_artifact(**FILE, version=version)
            yield known(await subject.get_artifact_version(**FILE, version=version))
        yield await subject.list_versions(**FILE)
        yield [known(each) for each in await subject.list_artifact_versions(**FILE)]
        yield await subject.load_artifact(**{**MINE_TOO, "session_id": "another"})
        for session in ("trip", "another", None):
            yield await subject.list_artifact_keys(**WHO, session_id=session)
        link = {**FILE, "filename": "link"}
        for part in (
            reference("plan.bin", 1),
            reference("user:photo.png", session=None),
            reference("link", 2),
        ):
            yield await subject.save_artifact(**link, artifact=part)
        yield await subject.load_artifact(**link, version=0)
        yield await subject.load_artifact(**link, version=1)
        yield await refused(subject.load_artifact(**link))  # it refers to itself
        yield await refused(subject.save_artifact(**link, artifact=reference("x", session="another")))
        yield await refused(subject.save_artifact(**link, artifact=types.Part()))
        yield await refused(subject.save_artifact(**{**FILE, "session_id": None}, artifact=data(b"")))
        yield await refused(subject.load_artifact(**{**FILE, "user_id": "../bob"}))
        yield await subject.save_artifact(**FILE, artifact=data(b""))  # what a rewind leaves
        yield await subject.load_artifact(**FILE)
        for _ in range(2):
            await subject.delete_artifact(**FILE)
        yield await subject.load_artifact(**FILE, version=0)
        yield await subject.list_versions(**FILE)
        yield await subject.list_artifact_keys(**PLACE)
        yield await subject.save_artifact(**FILE, artifact=data(b"new"))

    async def both():
        ours = [seen async for seen in play(artifacts)]
        assert ours == [seen async for seen in play(InMemoryArtifactService())]

    asyncio.run(both())


def test_a_session_is_found_by_its_id_with_white_space_as_sessions_are(artifacts):
    async def scenario():
        padded = {**FILE, "session_id": " trip\n"}
        await artifacts.save_artifact(**padded, artifact=types.Part(text="plan"))
        assert (await artifacts.load_artifact(**FILE)).text == "plan"
        assert await artifacts.list_artifact_keys(**WHO, session_id="trip ") == ["plan.bin"]
        await artifacts.delete_artifact(**FILE)
        assert await artifacts.load_artifact(**padded) is None

    asyncio.run(scenario())


def test_a_version_has_a_time_and_an_address(artifacts):
    async def scenario():
        before = time.time()
        await artifacts.save_artifact(**FILE, artifact=data(b"x"))
        version = await artifacts.get_artifact_version(**FILE)
        assert version.canonical_uri == reference("plan.bin").file_data.file_uri
        assert before - 60 < version.create_time < time.time() + 60
        version.custom_metadata["spoilt"] = True
        assert (await artifacts.get_artifact_version(**FILE)).custom_metadata == {}

    asyncio.run(scenario())


def test_old_versions_are_pruned_and_numbers_are_not_given_again(artifacts):
    async def scenario():
        for n in range(3):
            await artifacts.save_artifact(**FILE, artifact=data(bytes([n])))
        assert await artifacts.prune(1, **FILE) == 2
        assert await artifacts.load_artifact(**FILE, version=0) is None
        assert await artifacts.save_artifact(**FILE, artifact=data(b"x")) == 3
        assert await artifacts.list_versions(**FILE) == [2, 3]

    asyncio.run(scenario())


def test_artifacts_that_are_deleted_are_erased(folder):
    path = folder / "agent.db"

    async def scenario():
        async with OutliveArtifactService(f"sqlite:///{path}") as service:
            await service.save_artifact(**FILE, artifact=data(b"the-secret-word"))
            await service.save_artifact(**FILE, artifact=data(b"other"))
            await service.delete_artifact(**FILE)

    asyncio.run(scenario())
    assert b"the-secret-word" not in path.read_bytes()


def save_many(report, url, number, wait):
    async def scenario():
        async with OutliveArtifactService(url) as service:
            wait(report)
            for n in range(APPENDS):
                await service.save_artifact(**FILE, artifact=types.Part(text=f"{number} {n}"))

    asyncio.run(scenario())


def test_two_processes_that_save_one_file_get_versions_of_their_own(workers, shared_url, folder):
    append_at_once(workers, save_many, shared_url, folder)

    async def scenario():
        async with OutliveArtifactService(shared_url) as service:
            versions = await service.list_versions(**FILE)
            return versions, [(await service.load_artifact(**FILE, version=n)).text for n in versions]

    versions, texts = asyncio.run(scenario())
    assert versions == list(range(PROCESSES * APPENDS))
    for number in range(PROCESSES):
        assert [each for each in texts if each.startswith(f"{number} ")] == [
            f"{number} {n}" for n in range(APPENDS)
        ]


def test_an_agent_in_a_run_saves_artifacts_and_a_finished_save_is_not_repeated(workers, shared_url, folder):
    die(workers, write_and_die, shared_url, str(folder))

    def finish(run):
        with outlive.open(shared_url) as store:
            return resume(writer(folder), run, artifact_service=OutliveArtifactService(store))

    info = recover(shared_url, {"writer": finish})
    assert (info.result, Calls(folder).names) == ("done", ["write:1", "write:2", "write:2"])
    with outlive.open(shared_url) as store:
        service = OutliveArtifactService(store)
        where = {**MINE, "app_name": "writer"}
        assert asyncio.run(service.list_versions(**where, filename="1.txt")) == [0]
        assert asyncio.run(service.load_artifact(**where, filename="2.txt")).text == "page 2"


def writer(folder, dies_in=None):
    calls = Calls(folder, dies_in)

    async def write(n: int, tool_context: ToolContext) -> str:
        """Write a page."""
        calls(f"write:{n}")
        await tool_context.save_artifact(f"{n}.txt", types.Part(text=f"page {n}"))
        return "written"

    script = [[call("write", "c1", n=1)], [call("write", "c2", n=2)], text("done")]
    return LlmAgent(name="writer", model=Scripted(script=script), tools=[write])


def write_and_die(report, url, folder):
    with outlive.open(url) as store:
        run(
            writer(folder, "write:2"),
            "go",
            **MINE,
            store=store,
            run_id="r",
            lease_s=LEASE_S,
            artifact_service=OutliveArtifactService(store),
        )


# Runs

SCRIPT = [
    [call("search", "c1", city="Porto")],
    [call("book", "c2", city="Porto"), call("book", "c3", city="Faro")],
    text("done"),
]
ALL = ["model:0", "search:Porto", "model:1", "book:Porto", "book:Faro", "model:2"]


def agent(folder, dies_in=None):
    calls = (lambda name: None) if folder is None else Calls(folder, dies_in)

    async def search(city: str, tool_context: ToolContext) -> dict:
        """Search a city."""
        tool_context.state["user:city"] = city
        calls(f"search:{city}")
        return {"found": city}

    async def book(city: str, tool_context: ToolContext) -> str:
        """Book a city."""
        if city == "Faro" and folder is not None:  # the other one of the two has ended
            while "book:Porto" not in calls.names:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
        tool_context.state[city] = "booked"
        calls(f"book:{city}")
        return f"booked {city}"

    return LlmAgent(name="planner", model=Scripted(script=SCRIPT, calls=calls), tools=[search, book])


def plan_and_die(report, url, folder, name="book:Faro"):
    with outlive.open(url) as store:
        run(agent(folder, name), "go", **MINE, store=store, run_id="r", lease_s=LEASE_S)


def plan_on_a_loop_and_die(report, url, folder):
    async def scenario():
        async with await outlive.open_async(url) as store:
            await arun(agent(folder, "book:Faro"), "go", **MINE, store=store, run_id="r", lease_s=LEASE_S)

    asyncio.run(scenario())


def stored_session(url):
    with outlive.open(url) as store:
        return asyncio.run(OutliveSessionService(store).get_session(**PLACE))


@pytest.mark.parametrize("begin", [plan_and_die, plan_on_a_loop_and_die])
def test_an_agent_that_is_killed_in_its_second_tool_is_finished_by_another_process(
    workers, shared_url, folder, begin
):
    die(workers, begin, shared_url, str(folder))
    info = recover(shared_url, {"planner": lambda run: resume(agent(folder), run)})
    assert (info.status, info.result, info.attempt) == ("completed", "done", 2)
    assert Calls(folder).names == [*ALL[:5], "book:Faro", "model:2"], (
        "only what was under way is called again"
    )
    session = stored_session(shared_url)
    assert session.state == {"user:city": "Porto", "Porto": "booked", "Faro": "booked"}
    responses = [part.response for each in session.events for part in each.get_function_responses()]
    assert responses == [{"found": "Porto"}, {"result": "booked Porto"}, {"result": "booked Faro"}]
    with outlive.open(shared_url) as store:
        again = run(agent(folder), "go", **MINE, store=store, run_id="r")
        assert (again.output, again.events) == ("done", [])


@pytest.mark.parametrize("name", ["model:0", "search:Porto", "model:1", "book:Porto", "model:2"])
def test_every_kill_of_a_run_repeats_only_what_was_under_way(workers, url, folder, name):
    die(workers, plan_and_die, url, str(folder), name)
    info = recover(url, {"planner": lambda run: resume(agent(folder), run)})
    assert (info.status, info.result) == ("completed", "done")
    assert sorted(Calls(folder).names) == sorted([*ALL, name])


def test_an_agent_is_resumed_on_a_loop_and_its_events_are_heard(workers, url, folder):
    die(workers, plan_and_die, url, str(folder))
    heard = []

    async def scenario():
        async with await outlive.open_async(url) as store:
            handlers = {"planner": functools.partial(aresume, agent(folder), on_event=heard.append)}
            while not (report := await store.recover(handlers)).resumed:
                assert not report.failed, report.failed
                await asyncio.sleep(0.1)
            assert [info.result for info in report.resumed] == ["done"]

    asyncio.run(scenario())
    assert heard[-1].author == "planner"


def end_and_die(report, url, folder):
    def stop(event):
        if event.is_final_response():
            Calls(folder, "end")("end")

    with outlive.open(url) as store:
        run(agent(folder), "go", **MINE, store=store, run_id="r", on_event=stop, lease_s=LEASE_S)


def test_a_run_that_is_killed_after_its_last_event_calls_nothing_again(workers, shared_url, folder):
    die(workers, end_and_die, shared_url, str(folder))
    info = recover(shared_url, {"planner": lambda run: resume(agent(folder), run)})
    assert (info.result, Calls(folder).names) == ("done", [*ALL, "end"])


# Runs of several agents


class InTurn(BaseAgent):
    """An agent of the program's own, which says nothing about its progress."""

    async def _run_async_impl(self, ctx):
        for each in self.sub_agents:
            async for event in each.run_async(ctx):
                yield event


def helper(name, calls):
    async def work(n: int) -> str:
        """Work."""
        calls(f"{name}:{n}")
        return f"{name} worked"

    script = [[call("work", f"{name}-{n}", n=n)] for n in (1, 2)] + 3 * [text(f"{name} is done")]
    model = Scripted(script=script, calls=lambda which: calls(f"{name}-{which}"))
    return LlmAgent(name=name, description=name, model=model, tools=[work])


def team(kind, folder, dies_in=None):
    calls = Calls(folder, dies_in)
    two = [helper("first", calls), helper("last", calls)]

    def leader(below):
        script = [[call("transfer_to_agent", "t", agent_name=below.name)]]
        return LlmAgent(name="team", model=Scripted(script=script), sub_agents=[below])

    match kind:
        case "agents in sequence":
            return SequentialAgent(name="team", sub_agents=two)
        case "an agent that transfers":
            return leader(two[1])
        case "an agent that transfers to agents in sequence":
            return leader(SequentialAgent(name="group", sub_agents=two))
        case "an agent of its own":
            return InTurn(name="team", sub_agents=two)
        case "a workflow":
            return Workflow(name="team", edges=[(START, *two)])


def work_and_die(report, url, folder, kind, name):
    with outlive.open(url) as store:
        run(team(kind, folder, name), "go", **MINE, store=store, run_id="r", lease_s=LEASE_S)


@pytest.mark.filterwarnings("ignore:.*deprecated in favor of Workflow:DeprecationWarning")
@pytest.mark.parametrize(
    "kind",
    [
        "agents in sequence",
        "an agent that transfers",
        "an agent that transfers to agents in sequence",
        "an agent of its own",
        "a workflow",
    ],
)
@pytest.mark.parametrize("name", ["last-model:0", "last:2"])
def test_several_agents_that_are_killed_are_finished_by_another_process(workers, url, folder, kind, name):
    die(workers, work_and_die, url, str(folder), kind, name)
    info = recover(url, {"team": lambda run: resume(team(kind, folder), run)})
    assert (info.status, info.result) == ("completed", "last is done")
    names = Calls(folder).names
    assert {"last:1", "last:2"} <= set(names)
    if kind in ("agents in sequence", "an agent that transfers"):
        assert [each for each in names if names.count(each) > 1] == [name, name]
    answered = {each.id for event in stored_team(url) for each in event.get_function_responses()}
    assert {each.id for event in stored_team(url) for each in event.get_function_calls()} == answered


def stored_team(url):
    with outlive.open(url) as store:
        place = {**PLACE, "app_name": "team"}
        return asyncio.run(OutliveSessionService(store).get_session(**place)).events


def test_a_node_of_a_workflow_asks_and_any_process_answers(each_store):
    def asker():
        async def ask(node_input):
            yield RequestInput(interrupt_id="q1", message="how many?")

        def use(node_input):
            return f"{node_input} nights"

        return Workflow(name="asker", edges=[(START, ask, use)])

    assert run(asker(), "go", **MINE, store=each_store, run_id="r").is_waiting
    (question,) = each_store.questions()
    assert question.payload["arguments"]["message"] == "how many?"
    each_store.answer("r", question.name, "three")
    report = each_store.recover({"asker": lambda run: resume(asker(), run)})
    assert [info.result for info in report.resumed] == ["three nights"]


# Questions


def payer(calls):
    def pay(eur: int) -> dict:
        """Pay an amount."""
        calls(f"pay:{eur}")
        return {"paid": eur}

    model = Scripted(script=[[call("pay", "c1", eur=1), call("pay", "c2", eur=2)], text("done")])
    return LlmAgent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])


def test_a_confirmation_is_a_question_that_any_process_answers(each_store, folder):
    calls = Calls(folder)
    assert run(payer(calls), "go", **MINE, store=each_store, run_id="r").is_waiting
    first, second = sorted(each_store.questions(), key=lambda question: question.name)
    assert (first.name, first.payload["tool"], first.payload["arguments"]) == ("pay:c1", "pay", {"eur": 1})
    each_store.answer("r", first.name, True)
    assert not each_store.recover({"payer": lambda run: resume(payer(calls), run)}).resumed
    each_store.answer("r", second.name, {"approve": False})
    each_store.recover({"payer": lambda run: resume(payer(calls), run)})
    assert (each_store.find_run("r").result, calls.names) == ("done", ["pay:1"])


def test_a_long_running_tool_is_a_question_whose_answer_is_its_result(each_store):
    def ask_boss(what: str) -> dict:
        """Ask the boss."""
        return {"status": "pending"}

    def asker():
        model = Scripted(script=[[call("ask_boss", "c1", what="raise")], text("done")])
        return LlmAgent(name="asker", model=model, tools=[LongRunningFunctionTool(ask_boss)])

    assert run(asker(), "go", **MINE, store=each_store, run_id="r").is_waiting
    (question,) = each_store.questions()
    assert question.payload == {"tool": "ask_boss", "arguments": {"what": "raise"}, "call_id": "c1"}
    each_store.answer("r", question.name, {"granted": True})
    outcomes = []
    each_store.recover({"asker": lambda run: outcomes.append(resume(asker(), run))})
    assert outcomes[0].output == "done"


def test_a_lost_run_is_not_told_to_the_model(folder):
    calls = Calls(folder)
    with outlive.open("memory:") as store:

        def work(n: int) -> str:
            """Work."""
            calls(f"work:{n}")
            if n == 1:
                store.cancel("r")
            return "worked"

        script = [*([call("work", f"c{n}", n=n)] for n in range(4)), text("done")]
        worker = LlmAgent(name="worker", model=Scripted(script=script, calls=calls), tools=[work])
        with pytest.raises(LeaseLost):
            run(worker, "go", **MINE, store=store, run_id="r")
        assert calls.names == ["model:0", "work:0", "model:1", "work:1"]


def test_wrong_arguments_say_what_to_do():
    with outlive.open("memory:") as store:
        with pytest.raises(BadArgument, match="session_service"):
            run(agent(None), "go", **MINE, store=store, session_service=InMemorySessionService())
        with store.run("t") as other, pytest.raises(BadArgument, match="not started by this adapter"):
            resume(agent(None), other)
        with store.run('["adk","session","planner","ann","trip"]'), pytest.raises(ThreadBusy):
            run(agent(None), "go", **MINE, store=store)
        store.thread('["adk","session","planner","ann","x"]').save({"other": 1})
        with pytest.raises(BadArgument, match="another state"):
            asyncio.run(OutliveSessionService(store).get_session(**WHO, session_id="x"))
    with pytest.raises(BadArgument, match="OutliveSessionService takes"):
        OutliveSessionService(3)
