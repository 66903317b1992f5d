"""Runs that wait for people and events: no answer is lost, none is used twice, none wakes the wrong one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from outlive.backend import EntryQuery
from outlive.backend.entries import READY, TIMER
from outlive.errors import (
    AlreadyAnswered,
    AnswerRefused,
    BadArgument,
    LeaseLost,
    QuestionChanged,
    QuestionClosed,
    RunEnded,
    RunMissing,
    RunSuspended,
)
from outlive.format.registry import Registry
from outlive.retention.policy import Retain
from outlive.runs.waits import Question
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.interposed import Interposed
from outlive.testing.trial import Trial

Body = Callable[[Any], Coroutine[Any, Any, Any]]
POINTS = 14  # no ask or answer here makes more calls to the backend


class Agent:
    """An agent that takes a step, asks, and takes another step."""

    def __init__(self, names: tuple[str, ...] = ("ok?",)) -> None:
        self.names = names
        self.effects: list[Any] = []

    async def __call__(self, run: Any) -> Any:
        await run.step("before", self.effects.append, "before")
        answers = [await run.ask(name, {"about": name}) for name in self.names]
        await run.step("after", self.effects.append, tuple(answers))
        return answers


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


async def _begin(store: AsyncStore, body: Body, id: str = "r", thread: str = "t", **options: Any) -> Any:
    """Let a process run an agent until it ends or waits."""
    async with store.run(thread, run_id=id, agent="a", **options) as run:
        result = await body(run)
        run.info.result = result
    return run


async def _recover(trial: Trial, store: AsyncStore, body: Body) -> Any:
    return await store.recover({"a": trial.handler(body)}, concurrency=1)


async def _status(store: AsyncStore, id: str = "r") -> str:
    info = await store.find_run(id)
    assert info is not None
    return info.status


async def _entries(store: AsyncStore, kind: str) -> list[str]:
    query = EntryQuery(store._settings.tenant, kind)
    return [entry.key for _, entry in await store._engine.backend.entries(query)]


class WaitingContract(Contract):
    async def test_a_run_waits_without_a_process_and_continues_with_the_answer(self, trial: Trial) -> None:
        store, desk, worker = await trial.store(), await trial.store(), await trial.store()
        agent = Agent()
        run = await _begin(store, agent)
        assert (run.status, run.info.waits.names) == ("waiting", ("ok?",))
        assert await _all(store.recoverable()) == []
        assert (await _recover(trial, worker, agent)).resumed == []
        other = await store.run("t").start()  # the place is free
        await other.complete()
        (question,) = await _all(desk.questions())
        assert (question.run, question.thread, question.name) == ("r", "t", "ok?")
        assert (question.payload, question.agent, question.status) == ({"about": "ok?"}, "a", "open")
        told = await desk.answer("r", "ok?", "yes", by="desk")
        assert (told.value, told.by, told.status) == ("yes", "desk", "answered")
        assert await _status(desk) == "released"
        assert len(await _entries(desk, READY)) == 1
        report = await _recover(trial, worker, agent)
        assert [info.result for info in report.resumed] == [["yes"]]
        assert (report.resumed[0].attempt, report.resumed[0].failures) == (1, 0)
        assert agent.effects == ["before", ("yes",)]
        assert await _entries(desk, READY) == []
        steps = [(step.name, step.kind, step.status) for step in await desk.steps("r")]
        assert steps == [("before", "step", "done"), ("ok?", "ask", "done"), ("after", "step", "done")]

    async def test_the_first_answer_counts_and_the_second_learns_of_it(self, store: AsyncStore) -> None:
        await _begin(store, Agent())
        await store.answer("r", "ok?", 1, by="first")
        with pytest.raises(AlreadyAnswered) as refused:
            await store.answer("r", "ok?", 2, by="second")
        assert refused.value.by == "first"
        assert refused.value.at is not None
        (question,) = await _all(store.questions(status="answered"))
        assert question.value == 1

    async def test_an_early_answer_is_kept(self, trial: Trial) -> None:
        store = await trial.store()
        agent = Agent(("one?", "two?"))
        run = await store.run("t", run_id="r", agent="a").start()
        await store.answer("r", "one?", "early")
        assert await run.ask("one?", {"about": "one?"}) == "early"
        assert await run.ask("one?", {"about": "one?"}) == "early"
        with pytest.raises(QuestionChanged):
            await run.ask("one?", {"about": "something else"})
        await run.release()
        await store.answer("r", "two?", "early too")
        assert (await _recover(trial, store, agent)).resumed[0].result == ["early", "early too"]

    async def test_an_early_answer_that_does_not_fit_is_asked_for_again(self, trial: Trial) -> None:
        store = await trial.store()

        async def agent(run: Any) -> Any:
            return await run.ask("n?", schema=int)

        run = await store.run("t", run_id="r", agent="a").start()
        await store.answer("r", "n?", "not a number")
        await run.release()
        await _recover(trial, store, agent)
        assert await _status(store) == "waiting"
        await store.answer("r", "n?", 5)
        assert (await _recover(trial, store, agent)).resumed[0].result == 5

    async def test_two_questions_and_two_answers_in_either_order(self, trial: Trial) -> None:
        store = await trial.store()

        async def agent(run: Any) -> Any:
            return await run.ask_all({"a?": 1, "b?": Question(2, schema={"type": "string"})})

        for first, second in (("a?", "b?"), ("b?", "a?")):
            id = f"r {first}"
            await _begin(store, agent, id)
            assert {item.name for item in await _all(store.questions())} == {"a?", "b?"}
            await store.answer(id, first, first)
            assert await _status(store, id) == "waiting"
            await store.answer(id, second, second)
            assert await _status(store, id) == "released"
            report = await _recover(trial, store, agent)
            assert report.resumed[0].result == {"a?": "a?", "b?": "b?"}

    async def test_the_first_of_several_answers_withdraws_the_other_questions(self, trial: Trial) -> None:
        store = await trial.store()
        results = []

        async def agent(run: Any) -> Any:
            results.append(await run.ask_any({"a?": 1, "b?": 2}))
            await run.wait("end")
            return results[-1]

        await _begin(store, agent)
        await store.answer("r", "b?", "B")
        await _recover(trial, store, agent)
        assert await _status(store) == "waiting"
        assert await _all(store.questions()) == []
        with pytest.raises(QuestionClosed):
            await store.answer("r", "a?", "A")
        assert [event.name for event in await _all(store.questions(events=True))] == ["end"]
        await store.answer("r", "end", None)
        await _recover(trial, store, agent)
        assert results == [("b?", "B")] * 2

    async def test_answers_at_once_strand_no_run(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]

        async def agent(run: Any) -> Any:
            return await run.ask_all({f"q{n}": n for n in range(3)})

        for round in range(4):
            id = f"r{round}"
            await _begin(stores[0], agent, id, f"t{round}")
            answered = await trial.together(
                *(lambda n=n, run=id: stores[n].answer(run, f"q{n}", n) for n in range(3))
            )
            assert [error for error in answered if isinstance(error, BaseException)] == []
            assert await _status(stores[0], id) == "released"

    async def test_an_answer_that_does_not_fit_is_refused(self, trial: Trial) -> None:
        @dataclasses.dataclass
        class Verdict:
            ok: bool
            note: str = ""

        store = await trial.store()

        async def agent(run: Any) -> Any:
            return dataclasses.asdict(await run.ask("v?", schema=Verdict))

        await _begin(store, agent)
        for value, path in (
            ({"ok": "yes"}, "answer.ok"),
            ({"note": "no"}, "answer.ok"),
            ({"ok": True, "more": 1}, "answer.more"),
            (True, "answer"),
        ):
            with pytest.raises(AnswerRefused) as refused:
                await store.answer("r", "v?", value)
            assert refused.value.path == path
        assert await _status(store) == "waiting"
        await store.answer("r", "v?", Verdict(True, "fine"))
        report = await _recover(trial, store, agent)
        assert report.resumed[0].result == {"ok": True, "note": "fine"}

    async def test_what_a_run_asks_ends_with_it(self, store: AsyncStore) -> None:
        for id, end in (("cancelled", store.cancel), ("parked", store.park)):
            await _begin(store, Agent(), id, id, max_attempts=3)
            assert await _status(store, id) == "waiting"
            await end(id)
            assert await _all(store.questions(thread=id)) == []
            with pytest.raises(RunEnded):
                await store.answer(id, "ok?", 1)
            agent = Agent()
            async with await store.retry(id) as run:  # asks again
                await agent(run)
            assert [item.status for item in await _all(store.questions(thread=id))] == ["open"]
            await store.answer(id, "ok?", 2)
        async with store.run("done", run_id="done") as run:
            await store.answer("done", "x", 1)
            await run.ask_any({"x": 1, "y": 2})
        assert await _all(store.questions(thread="done")) == []

    async def test_a_deleted_thread_takes_its_questions_along(self, store: AsyncStore) -> None:
        await _begin(store, Agent())
        await store.delete("t")
        assert await _all(store.questions()) == []
        with pytest.raises(RunMissing):
            await store.answer("r", "ok?", 1)
        run = await store.run("u", run_id="s").start()
        await store.delete("u")
        with pytest.raises(LeaseLost):
            await run.ask("ok?")
        assert await _all(store.questions()) == []

    async def test_a_sweep_keeps_what_a_waiting_run_needs(self, store: AsyncStore) -> None:
        agent = Agent()
        async with store.run("t", run_id="r") as run:
            for n in range(5):
                await run.save({"n": n})
            await agent(run)
        await store.sweep(retain=Retain(ttl_s=0.001, keep_last=1))
        assert await _status(store) == "waiting"
        assert await store.thread("t").load() == {"n": 4}
        await store.answer("r", "ok?", 1)
        await store.sweep(retain=Retain(ttl_s=0.001, keep_last=1))
        async with store.run("t", run_id="r") as run:
            assert await agent(run) == [1]
        assert run.status == "completed"

    async def test_branches_that_ask_at_once_each_get_their_answer(self, trial: Trial) -> None:
        store = await trial.store()
        done: list[str] = []

        async def branch(run: Any, name: str) -> str:
            await run.step("s", key=name)(done.append)(name)
            return f"{name}={await run.ask(name)}"

        async def agent(run: Any) -> Any:
            works = [lambda name=name: _caught(branch(run, name)) for name in ("x", "y", "z")]
            results = await trial.together(*works)
            suspended = [result for result in results if isinstance(result, RunSuspended)]
            if suspended:
                raise suspended[0]
            return results

        await _begin(store, agent)
        report: Any = None
        while await _status(store) != "completed":
            # A branch that came after the run was suspended asks at the latest when it is resumed.
            asked = [item.name for item in await _all(store.questions())]
            await store.answer("r", asked[-1], asked[-1].upper())
            assert await _status(store) == "released"
            report = await _recover(trial, store, agent)
        assert report.resumed[0].result == ["x=X", "y=Y", "z=Z"]
        assert sorted(done) == ["x", "y", "z"]

    async def test_a_step_of_another_branch_is_finished_before_the_run_waits(self, trial: Trial) -> None:
        store = await trial.store()
        calls: list[str] = []

        async def slow(run: Any) -> None:
            for n in range(3):
                await run.step("slow", key=str(n))(_slowly(trial, calls, n))()

        async def agent(run: Any) -> Any:
            works = (lambda: _caught(slow(run)), lambda: _caught(_later(trial, run.ask("ok?"))))
            for result in await trial.together(*works):
                if isinstance(result, BaseException):
                    raise result

        await _begin(store, agent)
        assert await _status(store) == "waiting"
        assert calls == ["0", "1", "2"]
        assert len(await store.steps("r")) == 4
        await store.answer("r", "ok?", 1)
        assert len((await _recover(trial, store, agent)).resumed) == 1
        assert calls == ["0", "1", "2"]

    async def test_an_answer_at_any_moment_of_an_ask_is_used_once(self, trial: Trial) -> None:
        """The answer comes before each single call that the asking process makes to the store."""
        backend, store = await trial.interposed()
        desk = await trial.store()
        for point in range(POINTS):
            id, agent = f"r{point}", Agent()

            async def answer(id: str = id) -> None:
                if await desk.find_run(id) is not None:
                    await desk.answer(id, "ok?", "yes")

            async with store.run(id, run_id=id, agent="a") as run:
                backend.before_call(point, answer)
                await agent(run)
            await backend.act_now()
            if run.status == "waiting":
                assert await _status(desk, id) == "released", point
                await _recover(trial, desk, agent)
            assert await _status(desk, id) == "completed", point
            assert agent.effects == ["before", ("yes",)], point

    async def test_an_ask_at_any_moment_of_an_answer_strands_nothing(self, trial: Trial) -> None:
        """The run parks before each single call that the answering process makes to the store."""
        backend, desk = await trial.interposed()
        store = await trial.store()
        for point in range(POINTS):
            id, agent = f"r{point}", Agent()
            run = await store.run(id, run_id=id, agent="a").start()

            async def park(run: Any = run, agent: Agent = agent) -> None:
                async with run:
                    await agent(run)

            backend.before_call(point, park)
            await desk.answer(id, "ok?", "yes")
            await backend.act_now()
            if run.status == "waiting":
                assert await _status(store, id) == "released", point
                await _recover(trial, store, agent)
            assert await _status(store, id) == "completed", point
            assert agent.effects == ["before", ("yes",)], point

    async def test_a_crash_at_any_call_of_an_ask_or_an_answer_leaves_a_run_that_can_continue(
        self, trial: Trial
    ) -> None:
        """The process dies before, or just after, each single call that it makes to the store."""
        backend, dying = await trial.interposed()
        process = (backend, dying, await trial.store())
        for is_answer, is_after in itertools.product((False, True), repeat=2):
            point = 0
            while await _crash(trial, process, is_answer, is_after, point):
                point += 1
            assert point >= 2

    async def test_values_of_unknown_types_do_not_keep_anybody_from_answering(self, trial: Trial) -> None:
        @dataclasses.dataclass
        class Form:
            n: int

        registry = Registry()
        registry.add(Form, "testing.form")
        store, desk = await trial.store(registry=registry), await trial.store()

        async def agent(run: Any) -> Any:
            return await run.ask("form?", Form(7))

        await _begin(store, agent, prompt=Form(1))
        (question,) = await _all(desk.questions())
        assert question.name == "form?"
        await desk.answer("r", "form?", 1)
        assert (await _recover(trial, store, agent)).resumed[0].result == 1
        (question,) = await _all(store.questions(status="answered"))
        assert question.payload.n == 7

    async def test_questions_are_found_by_agent_and_age(self, store: AsyncStore) -> None:
        await _begin(store, Agent())
        assert len(await _all(store.questions(agent="a"))) == 1
        assert await _all(store.questions(agent="b")) == []
        assert await _all(store.questions(older_than_s=3600)) == []
        assert len(await _all(store.questions(older_than_s=0))) == 1
        with pytest.raises(BadArgument):
            await _all(store.questions(status="opened"))
        for name in ("", "a\nb", "x" * 201, "sleep#1"):
            with pytest.raises(BadArgument):
                await store.answer("r", name, 1)


async def _caught(work: Any) -> Any:
    """Return what a branch raises: threads must not die of it."""
    try:
        return await work
    except RunSuspended as suspended:
        return suspended


async def _later(trial: Trial, work: Any) -> Any:
    await trial.sleep(0.1)
    return await work


def _slowly(trial: Trial, calls: list[str], n: int) -> Any:
    def slow() -> None:
        import time

        time.sleep(0.15)
        calls.append(str(n))

    async def slow_async() -> None:
        await trial.sleep(0.15)
        calls.append(str(n))

    return slow if trial.driver.runtime.thread_ident() is not None else slow_async


class _Died(BaseException):
    """The process ends here."""


async def _crash(
    trial: Trial,
    process: tuple[Interposed, AsyncStore, AsyncStore],
    is_answer: bool,
    is_after: bool,
    point: int,
) -> bool:
    """Let a process die at one call; tell whether it came to that call."""
    id = f"{'answer' if is_answer else 'ask'} {point} {is_after}"
    (backend, dying, store), agent = process, Agent()
    deaths: list[int] = []

    async def die() -> None:
        deaths.append(point)
        raise _Died

    run = await (store if is_answer else dying).run(id, run_id=id, agent="a", lease_s=0.2).start()
    dying._heart._stop()  # a renewal would take the death for its own
    if is_answer:
        async with run:
            await agent(run)
    if is_after:
        backend.on_call = _after(backend, len(backend.calls) + point, die)
    else:
        backend.before_call(point, die)
    try:
        if is_answer:
            await dying.answer(id, "ok?", "yes")
        else:
            await agent(run)
    except (_Died, RunSuspended):
        pass
    backend.on_call, backend._at_call = None, None
    if not is_answer and run._is_live:
        run._stop()  # nothing renews the lease of a dead process
        await trial.sleep(0.25)
    # Whatever the crash left: it is recovered, or waits for the answer, and then it ends.
    await _recover(trial, store, agent)
    if await _status(store, id) == "waiting":
        await store.answer(id, "ok?", "yes")
        await _recover(trial, store, agent)
    assert await _status(store, id) == "completed", id
    assert agent.effects[-1] == ("yes",), id
    assert await _entries(store, READY) == await _entries(store, TIMER) == [], id
    return bool(deaths)


def _after(backend: Any, number: int, die: Any) -> Any:
    """Let the process die after a call was done and before it learns of it."""

    async def watch(name: str) -> None:
        if len(backend.calls) == number:
            backend.after(name, cast(Any, lambda result: die()))

    return watch
