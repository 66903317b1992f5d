"""LlamaIndex workflows: their contexts on every store, and workflows as runs that survive a kill."""

import asyncio
import sys

import pytest
from pydantic import BaseModel
from workflows import Context, Workflow, step
from workflows.errors import WorkflowRuntimeError
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

import outlive
from outlive.adapters.llama_index import OutliveContexts, aresume, arun, resume, run
from outlive.errors import BadArgument, HeadMoved, LeaseLost, ThreadBusy
from rig.adapters import LEASE_S, Calls, die, recover


class Found(Event):
    city: str


class Booked(Event):
    city: str


class Planner(Workflow):
    """Searches, books two cities at once, and ends."""

    def __init__(self, folder, dies_in=None):
        super().__init__(timeout=None)
        self.calls = Calls(folder, dies_in)

    @step
    async def search(self, ctx: Context, ev: StartEvent) -> Found | None:
        self.calls("search")
        await ctx.store.set("log", [f"searched {ev.city}"])
        for city in (ev.city, "Faro"):
            ctx.send_event(Found(city=city))

    @step(num_workers=2)
    async def book(self, ctx: Context, ev: Found) -> Booked:
        if ev.city == "Faro":  # the other one of the two has ended
            while "total" not in self.calls.names:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
        self.calls(f"book:{ev.city}")
        return Booked(city=ev.city)

    @step
    async def total(self, ctx: Context, ev: Booked) -> StopEvent | None:
        self.calls("total")
        async with ctx.store.edit_state() as state:
            state["log"] = [*state["log"], f"booked {ev.city}"]
            count = len(state["log"])
        ctx.write_event_to_stream(Booked(city=ev.city))
        return StopEvent(result=state["log"]) if count == 3 else None


RESULT = ["searched Porto", "booked Porto", "booked Faro"]


def plan_and_die(report, url, folder, name="book:Faro"):
    with outlive.open(url) as store:
        workflow = Planner(folder, name)
        run(workflow, {"city": "Porto"}, thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


def plan_on_a_loop_and_die(report, url, folder):
    async def scenario():
        async with await outlive.open_async(url) as store:
            workflow = Planner(folder, "book:Faro")
            await arun(
                workflow, {"city": "Porto"}, thread_id="trip", store=store, run_id="r", lease_s=LEASE_S
            )

    asyncio.run(scenario())


@pytest.mark.parametrize("begin", [plan_and_die, plan_on_a_loop_and_die])
def test_a_workflow_that_is_killed_in_its_second_step_is_finished_by_another_process(
    workers, shared_url, folder, begin
):
    die(workers, begin, shared_url, str(folder))
    info = recover(shared_url, {"Planner": lambda run: resume(Planner(folder), run)})
    assert (info.status, info.result, info.attempt) == ("completed", RESULT, 2)
    calls = Calls(folder).names
    assert (calls.count("search"), calls.count("book:Porto"), calls.count("book:Faro")) == (1, 1, 2)
    with outlive.open(shared_url) as store:
        again = run(Planner(folder), {"city": "Porto"}, thread_id="trip", store=store, run_id="r")
        assert again.result == RESULT
    assert Calls(folder).names == calls


@pytest.mark.parametrize("name", ["search", "book:Porto", "total", "book:Faro"])
def test_every_kill_of_a_run_repeats_only_what_was_under_way(workers, folder, name):
    url = f"sqlite:///{folder}/agent.db"
    die(workers, plan_and_die, url, str(folder), name)
    info = recover(url, {"Planner": lambda run: resume(Planner(folder), run)})
    assert (info.status, info.result) == ("completed", RESULT)
    calls = Calls(folder).names
    before = {"search": [], "book:Porto": ["search"], "total": ["search", "book:Porto"]}
    assert all(calls.count(done) == 1 for done in before.get(name, ["search", "book:Porto"])), calls


def test_a_workflow_is_resumed_on_a_loop_and_its_events_are_passed_on(workers, folder):
    url = f"sqlite:///{folder}/agent.db"
    die(workers, plan_and_die, url, str(folder))
    events = []

    async def scenario():
        async with await outlive.open_async(url) as store:

            async def handle(run):
                outcome = await aresume(Planner(folder), run, on_event=events.append)
                assert outcome.result == RESULT

            report = await store.recover({"Planner": handle})
            assert [info.status for info in report.resumed] == ["completed"]

    asyncio.run(scenario())
    assert Booked(city="Faro") in events


def test_steps_that_are_functions_and_steps_that_are_not_async(folder):
    class Mixed(Workflow):
        @step
        def first(self, ev: StartEvent) -> Found:
            return Found(city=ev.city)

    @step(workflow=Mixed)
    async def second(ctx: Context, ev: Found) -> StopEvent:
        return StopEvent(result=ev.city)

    with outlive.open("memory:") as store:
        workflow = Mixed(timeout=None)
        for number in range(2):
            outcome = run(workflow, {"city": "Porto"}, thread_id="trip", store=store)
            assert outcome.result == "Porto"
            history = store.thread("trip", namespace="workflow").history()
            assert len(list(history)) == 4 * (number + 1)
    assert asyncio.run(result_of(workflow)) == "Faro"


async def result_of(workflow):
    return await workflow.run(city="Faro")


class Sender(Workflow):
    """Sends events, and is still at work when the others have them."""

    def __init__(self, folder, dies_in=None):
        super().__init__(timeout=None)
        self.calls = Calls(folder, dies_in)

    @step
    async def send(self, ctx: Context, ev: StartEvent) -> Found | None:
        self.calls("send")
        for city in ("Faro", "Porto", "Tomar"):
            ctx.send_event(Found(city=city))
            while f"book:{city}" not in self.calls.names:
                await asyncio.sleep(0.01)

    @step
    async def book(self, ctx: Context, ev: Found) -> Booked:
        self.calls(f"book:{ev.city}")
        return Booked(city=ev.city)

    @step
    async def gather(self, ctx: Context, ev: Booked) -> StopEvent | None:
        if (booked := ctx.collect_events(ev, [Booked] * 3)) is None:
            return None
        return StopEvent(result=sorted(each.city for each in booked))


def send_and_die(report, url, folder, name):
    with outlive.open(url) as store:
        run(Sender(folder, name), thread_id="trip", store=store, run_id="r", lease_s=LEASE_S)


@pytest.mark.parametrize("name", ["send", "book:Porto", "book:Tomar"])
def test_events_of_a_step_that_runs_again_are_not_there_twice(workers, url, folder, name):
    die(workers, send_and_die, url, str(folder), name)
    info = recover(url, {"Sender": lambda run: resume(Sender(folder), run)})
    assert (info.status, info.result) == ("completed", ["Faro", "Porto", "Tomar"])


class Chat(Workflow):
    def __init__(self, folder, dies_in=None):
        super().__init__(timeout=None)
        self.calls = Calls(folder, dies_in)

    @step
    async def hear(self, ctx: Context, ev: StartEvent) -> Found:
        await ctx.store.set("heard", [*await ctx.store.get("heard", default=[]), ev.words])
        return Found(city="")

    @step
    async def answer(self, ctx: Context, ev: Found) -> StopEvent:
        heard = await ctx.store.get("heard")
        self.calls(f"answer:{len(heard)}")
        return StopEvent(result=heard)


def chat_and_die(report, url, folder):
    with outlive.open(url) as store:
        options = {"thread_id": "trip", "store": store, "lease_s": LEASE_S}
        assert run(Chat(folder), {"words": "one"}, **options).result == ["one"]
        run(Chat(folder, "answer:2"), {"words": "two"}, **options, keep_context=True)


def test_a_run_may_begin_with_the_context_of_the_last_one(workers, url, folder):
    die(workers, chat_and_die, url, str(folder))
    assert recover(url, {"Chat": lambda run: resume(Chat(folder), run)}).result == ["one", "two"]
    with outlive.open(url) as store:
        kept = {"thread_id": "trip", "store": store, "keep_context": True}
        assert run(Chat(folder), {"words": "three"}, **kept).result == ["one", "two", "three"]
        assert run(Chat(folder), {"words": "four"}, thread_id="trip", store=store).result == ["four"]


# Questions


class Payment(InputRequiredEvent):
    eur: int


class Payer(Workflow):
    def __init__(self, folder):
        super().__init__(timeout=None)
        self.calls = Calls(folder)

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> Payment:
        self.calls("ask")
        return Payment(eur=ev.eur)

    @step
    async def pay(self, ctx: Context, ev: HumanResponseEvent) -> StopEvent:
        self.calls("pay")
        return StopEvent(result=f"said {ev.response}")


async def name_of(ctx, which):
    response = await ctx.wait_for_event(
        HumanResponseEvent,
        waiter_event=InputRequiredEvent(which=which),
        waiter_id=which,
        requirements={"which": which},
        timeout=None,
    )
    return response.name


class Waiter(Workflow):
    """Asks in the middle of two steps."""

    def __init__(self, folder):
        super().__init__(timeout=None)

    @step
    async def first(self, ctx: Context, ev: StartEvent) -> Found:
        return Found(city=await name_of(ctx, "first"))

    @step
    async def last(self, ctx: Context, ev: Found) -> StopEvent:
        return StopEvent(result=[ev.city, await name_of(ctx, "last")])


def test_a_question_is_answered_by_any_process(each_store, folder):
    outcome = run(Payer(folder), {"eur": 40}, thread_id="trip", store=each_store, run_id="r")
    assert (outcome.is_waiting, outcome.result) == (True, None)
    (question,) = each_store.questions()
    assert (question.name, question.payload) == ("Payment:1", {"event": "Payment", "eur": 40})
    each_store.answer("r", question.name, "yes")
    each_store.recover({"Payer": lambda run: resume(Payer(folder), run)})
    assert each_store.find_run("r").result == "said yes"
    assert Calls(folder).names == ["ask", "pay"]


def test_the_context_of_a_run_that_was_given_up_is_not_continued(each_store, folder):
    run(Payer(folder), {"eur": 40}, thread_id="trip", store=each_store, run_id="r")
    each_store.cancel("r")
    with pytest.raises(BadArgument, match="in the middle of its workflow"):
        run(Payer(folder), {"eur": 50}, thread_id="trip", store=each_store, keep_context=True)
    assert run(Payer(folder), {"eur": 50}, thread_id="trip", store=each_store).is_waiting


def test_a_step_that_waits_in_the_middle_is_continued(each_store, folder):
    assert run(Waiter(folder), thread_id="trip", store=each_store, run_id="r").is_waiting
    for which, name in [("first", "Ada"), ("last", "Byron")]:
        (question,) = each_store.questions()
        assert question.payload["which"] == which
        each_store.answer("r", question.name, {"which": which, "name": name})
        each_store.recover({"Waiter": lambda run: resume(Waiter(folder), run)})
    assert each_store.find_run("r").result == ["Ada", "Byron"]


# Errors


def test_a_lost_run_ends_the_workflow(folder):
    class Lost(Planner):
        @step
        async def total(self, ctx: Context, ev: Booked) -> StopEvent | None:
            self.calls("total")
            store.cancel("r")

    with outlive.open("memory:") as store:
        with pytest.raises(LeaseLost):
            run(Lost(folder), {"city": "Porto"}, thread_id="trip", store=store, run_id="r")
        assert store.find_run("r").status == "cancelled"
    assert Calls(folder).names.count("total") == 1


def test_an_error_of_a_step_fails_the_run(folder):
    class Failing(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            raise ValueError("broken")

    with outlive.open("memory:") as store:
        with pytest.raises((ValueError, WorkflowRuntimeError), match="broken"):
            run(Failing(), thread_id="trip", store=store, run_id="r")
        assert store.find_run("r").status == "failed"


# Contexts


def test_a_context_is_saved_and_continued_elsewhere(each_store, folder):
    async def scenario():
        handler = Planner(folder).run(city="Porto")
        assert await handler == RESULT
        contexts = OutliveContexts("trip", each_store)
        await contexts.save(handler.ctx, metadata={"user": "ann"})
        assert each_store.thread("trip", namespace="workflow").load()["context"]["state"]["state_data"] == {
            "_data": {"log": RESULT}
        }

    async def elsewhere():
        workflow, contexts = Planner(folder), OutliveContexts("trip", each_store)
        context = await contexts.load(workflow)
        assert await context.store.get("log") == RESULT
        (info,) = await contexts.history()
        assert info.metadata == {"user": "ann"}
        assert await contexts.load(workflow, at=info.id)
        assert (await contexts.delete(), await contexts.delete()) == (True, False)
        assert await contexts.load(workflow) is None

    asyncio.run(scenario())
    asyncio.run(elsewhere())


def test_the_past_of_contexts_and_a_writer_that_has_not_seen_the_newest(each_store, folder):
    async def scenario():
        contexts = OutliveContexts("trip", each_store)
        infos = []
        for city in ("Porto", "Evora"):
            handler = Planner(folder).run(city=city)
            await handler
            infos.append(await contexts.save(handler.ctx, expect=infos[-1].id if infos else outlive.NEW))
        with pytest.raises(HeadMoved):
            await OutliveContexts("trip", each_store).save(handler.ctx, expect=infos[0].id)
        paths = [change.path for change in await contexts.diff(infos[0].id)]
        assert "context.state.state_data._data.log[0]" in paths
        forked = await contexts.fork("other", at=infos[0].id)
        log = await (await forked.load(Planner(folder))).store.get("log")
        assert log[0] == "searched Porto"
        assert await contexts.prune(1) == 1
        assert [info.id for info in await contexts.history()] == [infos[1].id]

    asyncio.run(scenario())


def test_contexts_that_are_deleted_are_erased(folder):
    path = folder / "agent.db"

    async def scenario():
        contexts = OutliveContexts("trip", f"sqlite:///{path}")
        handler = Planner(folder).run(city="the-secret-word")
        await handler
        await contexts.save(handler.ctx)
        assert await contexts.delete()
        contexts.close()

    asyncio.run(scenario())
    assert b"the-secret-word" not in path.read_bytes()


def test_a_context_names_no_type_that_is_imported(each_store, folder):
    async def scenario():
        handler = Planner(folder).run(city="Porto")
        await handler
        contexts = OutliveContexts("trip", each_store)
        await contexts.save(handler.ctx)
        thread = each_store.thread("trip", namespace="workflow")
        state = thread.load()
        value = {"__is_pydantic": True, "value": {}, "qualified_name": "this.Zen"}
        state["context"]["state"]["state_data"]["_data"]["log"] = value
        thread.save(state)
        with pytest.raises(ValueError, match=r"this\.Zen"):
            await read_log(contexts, folder)
        assert "this" not in sys.modules

    asyncio.run(scenario())


async def read_log(contexts, folder):
    context = await contexts.load(Planner(folder))
    return await context.store.get("log")


class Trip(BaseModel):
    cities: list[str] = []


class Stay(BaseModel):
    nights: int


class Verdict(HumanResponseEvent):
    """An event that no step takes: one waits for it."""

    approved: bool


class Traveller(Workflow):
    @step
    async def go(self, ctx: Context[Trip], ev: StartEvent) -> StopEvent:
        await ctx.store.set("cities", ["Porto"])
        verdict = await ctx.wait_for_event(
            Verdict, waiter_event=InputRequiredEvent(), waiter_id="go", timeout=None
        )
        state = await ctx.store.get_state()
        return StopEvent(result=[*state.cities, verdict.approved])


def stay(kind):
    class Hidden(BaseModel):
        nights: int

    return {"known": Stay, "hidden": Hidden}[kind](nights=2)


class Guest(Workflow):
    @step
    async def come(self, ctx: Context, ev: StartEvent) -> InputRequiredEvent:
        await ctx.store.set("stay", stay(ev.kind))
        return InputRequiredEvent()

    @step
    async def leave(self, ctx: Context, ev: HumanResponseEvent) -> StopEvent:
        return StopEvent(result=(await ctx.store.get("stay")).nights)


def test_the_state_and_the_models_of_a_module_need_no_mention(each_store):
    options = {"respond": lambda answer: Verdict(approved=answer)}
    run(Traveller(timeout=None), thread_id="trip", store=each_store, run_id="r", **options)
    (question,) = each_store.questions()
    each_store.answer("r", question.name, True)
    report = each_store.recover({"Traveller": lambda run: resume(Traveller(), run, **options)})
    assert [info.result for info in report.resumed] == [["Porto", True]]


def test_what_no_other_process_could_load_is_refused_when_it_is_saved(each_store):
    with pytest.raises(BadArgument, match=r"types=\[\.\.\.\] with .*\.Hidden"):
        run(Guest(timeout=None), {"kind": "hidden"}, thread_id="a", store=each_store)
    run(Guest(timeout=None), {"kind": "known"}, thread_id="b", store=each_store, run_id="r")
    (question,) = each_store.questions()
    each_store.answer("r", question.name, True)
    report = each_store.recover({"Guest": lambda run: resume(Guest(), run)})
    assert [info.result for info in report.resumed] == [2]


def test_wrong_arguments_say_what_to_do(folder):
    workflow = Planner(folder)
    with outlive.open("memory:") as store:
        with store.run("t") as plain:
            with pytest.raises(BadArgument, match="not started by this adapter"):
                resume(workflow, plain)
            with pytest.raises(ThreadBusy):
                run(workflow, {"city": "Porto"}, thread_id="t", store=store)
        with pytest.raises(BadArgument, match="OutliveContexts takes"):
            OutliveContexts("t", 3)
