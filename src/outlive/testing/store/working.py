"""Workers: submitted runs are claimed once, in order, within limits, and given back when a worker drains."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outlive.backend import Commit, EntryQuery, EntryRecord, ThreadKey
from outlive.backend.entries import LOCK, READY, TIMER, WORKER
from outlive.errors import BadArgument, LeaseLost, RunElsewhere
from outlive.runs import worker_record
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.patience import eventually_async
from outlive.testing.store.waiting import _all, _entries
from outlive.testing.trial import Trial

Handler = Callable[[Any], Awaitable[Any]]


def _worker(store: AsyncStore, handlers: dict[Any, Handler], **options: Any) -> Any:
    """Return a worker of either mode, whose handlers await the methods of their runs."""
    inner = getattr(store, "_inner", None)
    options = {"interval_s": 0.2, "grace_s": 0, **options}
    return (store if inner is None else inner._store).worker(handlers, **options)


async def _during(trial: Trial, workers: list[Any], body: Callable[[], Awaitable[Any]]) -> None:
    """Let workers work until `body` returns."""

    async def and_stop() -> None:
        try:
            await body()
        finally:
            for worker in workers:
                worker.stop()

    for result in await trial.together(and_stop, *(worker.run for worker in workers)):
        if isinstance(result, BaseException):
            raise result


async def _until(trial: Trial, condition: Callable[[], Awaitable[Any]]) -> Any:
    return await eventually_async(condition, trial.sleep)


async def _work_off(trial: Trial, store: AsyncStore, *workers: Any) -> None:
    """Let workers work until all runs have ended."""

    async def have_ended() -> bool:
        return all(run.is_finished for run in await _all(store.runs()))

    await _during(trial, list(workers), lambda: _until(trial, have_ended))


class WorkerContract(Contract):
    async def test_a_submitted_run_is_worked_on_once(self, trial: Trial) -> None:
        stores, calls = [await trial.store() for _ in range(3)], []

        async def handler(run: Any) -> Any:
            calls.append(run.id)
            return {"twice": 2 * run.info.prompt}

        store = stores[0]
        for number in range(12):
            info = await store.submit(
                f"t{number}", run_id=f"r{number}", agent="a", prompt=number, attributes={"n": number}
            )
            assert (info.status, info.attempt, info.owner) == ("released", 0, None)
        assert await _entries(store, LOCK) == []
        await _work_off(trial, store, *(_worker(each, {"a": handler}) for each in stores))
        assert sorted(calls) == sorted(f"r{number}" for number in range(12))
        runs = await _all(store.runs())
        assert {run.result["twice"] for run in runs} == {2 * number for number in range(12)}
        assert {(run.status, run.attempt, run.failures) for run in runs} == {("completed", 1, 0)}
        assert await _entries(store, READY) == []

    async def test_a_run_is_submitted_once_under_its_id(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]
        infos = await trial.together(
            *(lambda each=each: each.submit("t", run_id="r", agent="a", prompt=1) for each in stores)
        )
        assert {(info.id, info.thread, info.prompt) for info in infos} == {("r", "t", 1)}
        again = await stores[0].submit("t", run_id="r", agent="other", prompt=2)
        assert (again.agent, again.prompt) == ("a", 1)
        assert len(await _entries(stores[0], READY)) == 1
        with pytest.raises(RunElsewhere):
            await stores[0].submit("elsewhere", run_id="r", agent="a")
        await stores[0].cancel("r")
        assert await _entries(stores[0], READY) == []
        assert (await stores[0].submit("t", run_id="r")).status == "cancelled"

    async def test_of_two_threads_at_most_one_gets_an_id(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(2)]
        results = await trial.together(
            *(
                lambda number=number, each=each: each.submit(f"t{number}", run_id="r", agent="a")
                for number, each in enumerate(stores)
            )
        )
        refused = [result for result in results if isinstance(result, RunElsewhere)]
        assert len(await _entries(stores[0], READY)) == 2 - len(refused) <= 1

    async def test_options_that_no_run_can_have_are_refused(self, store: AsyncStore) -> None:
        async def handler(run: Any) -> None:
            pass

        for options in ({"priority": 1000}, {"throttle_s": 1}, {"not_before": dt.datetime(2030, 1, 1)}):  # noqa: DTZ001
            with pytest.raises(BadArgument):
                await store.submit("t", **options)
        for wrong in (
            {"concurrency": 0}, {"limits": {"a": 0}}, {"limits": 2}, {"limits": {"*": 2}}, {"limit_tenant": 0},
            {"limits": {3: 3}}, {"grace_s": -1},
        ):  # fmt: skip
            with pytest.raises(BadArgument):
                _worker(store, {"a": handler}, **wrong)

    async def test_a_run_is_not_claimed_before_its_time(self, trial: Trial, store: AsyncStore) -> None:
        began: list[float] = []

        async def handler(run: Any) -> None:
            began.append(time.time())

        later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.6)
        info = await store.submit("t", agent="a", not_before=later)
        assert (info.status, info.waits and info.waits.reason) == ("waiting", "start")
        assert await _entries(store, READY) == []
        await _work_off(trial, store, _worker(store, {"a": handler}, interval_s=60))
        assert began[0] >= later.timestamp() - 0.2  # the clock of the store, as it was measured
        assert await _entries(store, TIMER) == []
        early = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
        assert (await store.submit("t", agent="a", not_before=early)).status == "released"

    async def test_by_priority_then_first_come_first_served(self, trial: Trial, store: AsyncStore) -> None:
        order: list[str] = []

        async def handler(run: Any) -> None:
            order.append(run.id)

        for id, agent, priority in (
            ("one", "a", 0), ("two", "bb", 5), ("three", "a", 0), ("four", "a", 9), ("five", None, 0),
        ):  # fmt: skip
            await store.submit(id, run_id=id, agent=agent, priority=priority)
        await _work_off(trial, store, _worker(store, {"a": handler, "*": handler}, concurrency=1))
        assert order == ["four", "two", "one", "three", "five"]

    async def test_several_workers_claim_in_the_order_of_submission(self, trial: Trial) -> None:
        """Three hands begin the first three runs; each that becomes free begins the very next."""
        stores = [await trial.store() for _ in range(3)]
        ids = [f"r{number:02}" for number in range(12)]
        begun: list[str] = []
        may_end: set[str] = set()

        async def handler(run: Any) -> None:
            begun.append(run.id)
            while run.id not in may_end:
                await trial.sleep(0.01)

        for number, id in enumerate(ids):
            await stores[0].submit(f"t{number % 7}-{number}", run_id=id, agent="a")

        async def body() -> None:
            try:
                for number in range(len(ids)):
                    expected = ids[: number + 3]

                    async def are_begun(count: int = len(expected)) -> bool:
                        return len(begun) >= count

                    await _until(trial, are_begun)
                    assert sorted(begun) == expected
                    may_end.add(begun[number])
            finally:
                may_end.update(ids)

        await _during(trial, [_worker(each, {"a": handler}, concurrency=1) for each in stores], body)

    async def test_a_run_is_claimed_though_something_else_had_its_place_first(self, trial: Trial) -> None:
        store = await trial.store()
        called: list[str] = []

        async def handler(run: Any) -> None:
            called.append(run.id)

        for name in ("lock", "run"):
            await store.submit(name, run_id=f"{name}-1", agent="a")
            if name == "lock":
                async with store.lock(name):
                    pass
            else:
                async with store.run(name, agent="another") as other:
                    await other.save({"a": 1})
            await store.submit(name, run_id=f"{name}-2", agent="a")
        await _work_off(trial, store, _worker(store, {"a": handler}, concurrency=2))
        assert sorted(called) == ["lock-1", "lock-2", "run-1", "run-2"]

    async def test_a_run_with_a_long_prompt_and_one_in_a_used_thread_are_claimed(self, trial: Trial) -> None:
        store = await trial.store()
        prompts: list[Any] = []

        async def handler(run: Any) -> None:
            prompts.append(run.info.prompt)

        async with store.run("used") as run:
            await run.complete()
        await store.submit("used", agent="a", prompt="short")
        await store.submit("new", agent="a", prompt="long " * 2000)
        await _work_off(trial, store, _worker(store, {"a": handler}))
        assert sorted(prompts, key=len) == ["short", "long " * 2000]

    async def test_runs_of_one_thread_follow_each_other(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(2)]
        log: list[tuple[str, str]] = []

        async def handler(run: Any) -> None:
            log.append(("begin", run.id))
            await run.step("work", lambda: None)
            log.append(("end", run.id))

        for number in range(6):
            await stores[0].submit("t", run_id=f"r{number}", agent="a")
        await _work_off(trial, stores[0], *(_worker(each, {"a": handler}) for each in stores))
        assert log == [(what, f"r{number}") for number in range(6) for what in ("begin", "end")]

    async def test_a_busy_thread_holds_up_no_other_and_is_not_tried_all_the_time(self, trial: Trial) -> None:
        store = await trial.store()
        backend, watched = await trial.interposed()
        calls: list[int] = []

        async def handler(run: Any) -> None:
            pass

        live = await store.run("busy", agent="b").start()
        for number in range(30):
            await store.submit("busy", run_id=f"busy{number}", agent="a")
        await store.submit("free", run_id="free", agent="a")

        async def body() -> None:
            async def is_done() -> bool:
                run = await store.find_run("free")
                return run is not None and run.is_finished

            await _until(trial, is_done)
            before = len(backend.calls)
            await trial.sleep(2)
            calls.append(len(backend.calls) - before)
            await live.complete()

            async def are_done() -> bool:
                return all(run.is_finished for run in await _all(store.runs()))

            await _until(trial, are_done)

        await _during(trial, [_worker(watched, {"a": handler}, interval_s=60)], body)
        assert 0 < calls[0] < 100

    async def test_a_run_that_asks_is_continued_when_it_is_answered(
        self, trial: Trial, store: AsyncStore
    ) -> None:
        other = await trial.store()

        async def handler(run: Any) -> Any:
            return await run.ask("go?")

        await store.submit("t", run_id="r", agent="a")

        async def body() -> None:
            async def is_asked() -> list[Any]:
                return await _all(other.questions())

            await _until(trial, is_asked)
            await other.answer("r", "go?", "yes")

            async def is_done() -> bool:
                run = await other.find_run("r")
                return run is not None and run.result == "yes"

            await _until(trial, is_done)

        await _during(trial, [_worker(store, {"a": handler}, interval_s=600)], body)
        assert len(await store.attempts("r")) == 2
        assert (await _all(store.runs()))[0].attempt == 1

    async def test_a_dead_run_is_recovered(self, trial: Trial, store: AsyncStore) -> None:
        async def handler(run: Any) -> Any:
            return run.info.attempt

        dead = await store.run("t", run_id="r", agent="a", lease_s=0.2).start()
        dead._heart.discard(_run_of(dead))
        await store.submit("t", run_id="next", agent="a")
        await _work_off(trial, store, _worker(store, {"a": handler}))
        results = {run.id: run.result for run in await _all(store.runs())}
        assert results == {"r": 2, "next": 1}

    async def test_limits_hold_across_workers(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]
        live: dict[str, int] = {"a": 0, "b": 0}
        most: dict[str, int] = {"a": 0, "b": 0, "all": 0}

        async def handler(run: Any) -> None:
            agent = run.info.agent
            live[agent] += 1
            most[agent] = max(most[agent], live[agent])
            most["all"] = max(most["all"], sum(live.values()))
            await trial.sleep(0.02)
            await run.step("work", lambda: None)
            live[agent] -= 1

        for number in range(12):
            await stores[0].submit(f"t{number}", agent="ab"[number % 2])
        workers = [
            _worker(each, {"a": handler, "b": handler}, limits={"a": 1}, limit_tenant=3) for each in stores
        ]
        await _work_off(trial, stores[0], *workers)
        assert most["a"] == 1
        assert 1 <= most["all"] <= 3
        key = workers[0]._slots._key
        slots = await stores[0]._engine.backend.entries(EntryQuery(key.tenant, LOCK, thread=key))
        assert {entry.status for _, entry in slots} == {"free"}

    async def test_a_drained_worker_gives_back_what_is_not_short(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        started: list[str] = []

        async def handler(run: Any) -> Any:
            started.append(run.id)
            while run.id == "long" and run.info.attempt == 1 and run.status == "running":
                await trial.sleep(0.01)
            return run.info.attempt

        worker = _worker(store, {"a": handler}, grace_s=0.1)

        async def drain() -> None:
            await store.submit("t1", run_id="long", agent="a")
            await store.submit("t2", run_id="short", agent="a")

            async def are_started() -> bool:
                return len(started) == 2

            await _until(trial, are_started)
            worker.drain()

        results = await trial.together(drain, worker.run)
        assert results == [None, None]
        runs = {run.id: run for run in await _all(other.runs())}
        assert (runs["long"].status, runs["long"].failures) == ("released", 0)
        assert (runs["short"].status, runs["short"].result) == ("completed", 1)
        assert await _all(other.workers()) == []
        await _work_off(trial, other, _worker(other, {"a": handler}))
        assert [run.result for run in await _all(other.runs()) if run.id == "long"] == [2]

    async def test_a_worker_is_a_record_that_others_see(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()

        async def handler(run: Any) -> None:
            pass

        key = ThreadKey.of("", "")
        thread = worker_record._thread("")
        assert key.digest.hex() in thread.id
        body = store._engine.codec.pack({"agents": "nonsense"})
        dead = EntryRecord(WORKER, "dead", body, "running", revision=1, lease_s=0.001)
        await store._engine.commit(Commit(thread, entries=(dead,)))
        worker = _worker(
            store, {"a": handler, None: handler}, concurrency=3, code_version="v1", policy="hold"
        )

        async def body_() -> None:
            async def is_seen() -> list[Any]:
                return await _all(other.workers())

            (seen,) = await _until(trial, is_seen)
            assert (seen.id, seen.agents, seen.capacity, seen.busy) == (worker.id, ("a", None), 3, 0)
            assert (seen.code_version, seen.is_draining) == ("v1", False)
            assert (seen.handles("a"), seen.handles("b"), seen.handles(None)) == (True, False, True)
            assert (seen.handles("a", "v1"), seen.handles("a", "v2")) == (True, False)

            async def is_removed() -> bool:
                query = EntryQuery(thread.tenant, WORKER, thread=thread)
                return len(await other._engine.backend.entries(query)) == 1

            await _until(trial, is_removed)

        await _during(trial, [worker], body_)
        assert await _all(other.workers()) == []

    async def test_a_worker_and_its_heartbeat_may_store_its_record_at_once(self, trial: Trial) -> None:
        backend, store = await trial.interposed()

        async def handler(run: Any) -> None:
            pass

        record = _worker(store, {"a": handler})._record
        await record.store()

        async def renew(*args: Any) -> None:
            await backend.commit_all([record._renewal()])

        record.is_draining = True
        backend.before("commit_all", renew)  # which is newer than what waits to be stored
        await record.store()
        (seen,) = await _all(store.workers())
        assert (seen.id, seen.is_draining) == (record.id, True)

    async def test_a_late_heartbeat_brings_back_no_record_of_a_worker(self, trial: Trial) -> None:
        store = await trial.store()

        async def handler(run: Any) -> None:
            pass

        record = _worker(store, {"a": handler})._record
        await record.store()
        late = record._renewal()
        await record.remove()
        (result,) = await store._engine.backend.commit_all([late])
        assert isinstance(result, LeaseLost)
        assert await _all(store.workers()) == []
        await record.store()  # as after a pause in which another worker took it for dead
        assert [worker.id for worker in await _all(store.workers())] == [record.id]

    async def test_a_long_queue_of_one_thread_is_not_read_for_each_of_its_runs(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        done: list[str] = []

        async def handler(run: Any) -> None:
            done.append(run.id)

        ids = [f"r{number:02}" for number in range(80)]  # more than are kept of one place
        for id in ids:
            await store.submit("t", run_id=id, agent="a")
        await store.submit("other", run_id="other", agent="a")
        await _work_off(trial, store, _worker(store, {"a": handler}, concurrency=4, interval_s=60))
        assert [id for id in done if id != "other"] == ids
        assert done.index("other") < 40  # it does not wait for the thread before it
        queries = [args[0] for name, args, _ in backend.calls if name == "entries"]
        long_pages = [query for query in queries if query.kind == READY and query.limit > 4]
        assert 0 < len(long_pages) < 20, "does `version` change with the commits of the same handle?"

    async def test_the_next_run_of_a_thread_waits_for_children_of_the_one_before(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        children: list[Any] = []
        seen: list[str] = []

        async def handler(run: Any) -> None:
            if run.id == "first":
                children.append(await other.run("t", run_id="child", parent="first").start())
            elif run.id == "second":
                child = await other.find_run("child")
                seen.append("" if child is None else child.status)

        for id in ("zeroth", "first", "second"):  # the first takes the place as the zeroth has left it
            await store.submit("t", run_id=id, agent="a")

        async def body() -> None:
            async def has_ended(id: str) -> bool:
                run = await other.find_run(id)
                return run is not None and run.is_finished

            await _until(trial, lambda: has_ended("first"))
            await trial.sleep(0.3)  # in which the worker looks again
            await children[0].complete()
            await _until(trial, lambda: has_ended("second"))

        await _during(trial, [_worker(store, {"a": handler})], body)
        assert seen == ["completed"]

    async def test_a_run_goes_to_workers_of_its_code_version(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(2)]
        done: list[tuple[str, str | None]] = []

        def of(version: str) -> Handler:
            async def handler(run: Any) -> None:
                done.append((version, run.info.code_version))

            return handler

        for number in range(4):
            await stores[0].submit(f"t{number}", agent="a", code_version=["v1", "v2"][number % 2])
        await stores[0].submit("any", agent="a")
        workers = [
            _worker(each, {"a": of(version)}, code_version=version, policy="hold")
            for each, version in zip(stores, ("v1", "v2"), strict=True)
        ]
        await _work_off(trial, stores[0], *workers)
        assert len(done) == 5
        assert all(run in (worker, None) for worker, run in done)

    async def test_a_run_that_is_given_back_is_left_to_others(self, trial: Trial) -> None:
        stores, calls = [await trial.store() for _ in range(2)], {"giver": 0, "taker": 0}

        async def give(run: Any) -> None:
            calls["giver"] += 1
            await run.release()

        async def take(run: Any) -> None:
            calls["taker"] += 1

        await stores[0].submit("t", agent="a")

        async def body() -> None:
            async def is_given() -> bool:
                return calls["giver"] > 0

            await _until(trial, is_given)
            await _work_off(trial, stores[1], _worker(stores[1], {"a": take}))

        await _during(trial, [_worker(stores[0], {"a": give}, interval_s=60)], body)
        assert calls == {"giver": 1, "taker": 1}

    async def test_a_damaged_ticket_hides_no_other(self, trial: Trial, store: AsyncStore) -> None:
        async def handler(run: Any) -> None:
            pass

        await store.submit("t", agent="a", run_id="r")
        for key, body in (
            ("0:", b""),
            ("x:a\n", b""),
            ("1:a\n000", b""),
            ("1:a\nnonsense", b"\xff"),
            ("1:a\n99900000000000000000001\nx", b""),
        ):
            ticket = EntryRecord(READY, key, body)
            await store._engine.commit(Commit(ThreadKey.of("", "t"), entries=(ticket,)))
        await _work_off(trial, store, _worker(store, {"b": handler, "*": handler}))


def _run_of(run: Any) -> Any:
    inner = getattr(run, "_inner", None)
    return run if inner is None else inner._run
