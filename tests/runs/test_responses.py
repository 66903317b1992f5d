"""One prompt to several models: each update lasts, nothing that was finished is asked again, nothing unfinished is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest

import outlive
from outlive import FanOut, ModelResponse, PartialResponse, Usage, WriteProposal
from outlive.errors import BadArgument, LeaseLost, RunEnded
from outlive.testing.patience import PATIENCE_S, eventually
from rig.crash import BACKENDS, SERVERS, ram_folder, rounds, stop_between_calls

ALL = [*BACKENDS, *SERVERS]
MODELS = ("claude", "gpt", "gemini")


@pytest.fixture
def url(backend, url_for):
    if backend == "memory":
        yield "memory:"
        return
    with ram_folder() as folder:
        yield url_for(backend, folder)


def statuses(responses):
    return {(one.model_id, one.ordinal): one.status for one in responses}


# What is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_only_what_is_not_completed_is_asked_again_and_usage_adds_up(backend, url):
    with outlive.open(url) as store:
        with contextlib.suppress(KeyboardInterrupt), store.run("t", run_id="r", agent="a") as run:
            responses = run.responses.open([*MODELS, "gpt"], prompt={"ask": "why"}, verbose=True)
            assert {one.status for one in responses.all()} == {"not_started"}
            responses.complete(
                "claude", {"text": "because", "input_tokens": 10, "output_tokens": 5, "cost_usd": 0.5}
            )
            responses.update("gpt", {"text": "be", "input_tokens": 7, "tool_calls": {"read": 2}})
            responses.update(
                "gpt",
                PartialResponse(
                    text="bec",
                    input_tokens=9,
                    reasoning_tokens=4,
                    latency_ms=100,
                    tool_calls={"read": 3},
                    proposed_writes=(WriteProposal("a.py", "x = 1"),),
                ),
            )
            responses.fail("gpt", ValueError("quota"), ordinal=1, partial={"output_tokens": 1})
            raise KeyboardInterrupt

        seen = []

        def go_on(run):
            responses = run.responses
            seen.append([(one.model_id, one.ordinal, one.status) for one in responses.pending()])
            assert [one.text for one in responses.completed()] == ["because"]
            assert (responses.prompt, responses.verbose) == ({"ask": "why"}, True)
            left = responses.get("gpt")
            assert (left.text, left.proposed_writes) == ("bec", (WriteProposal("a.py", "x = 1"),))
            for one in responses.pending():
                usage = {"input_tokens": 20, "latency_ms": 50, "tool_calls": {"read": 1, "run": 1}}
                responses.complete(one.model_id, {"text": "done", **usage}, one.ordinal)
            assert responses.build() is None

        report = store.recover({"a": go_on})
        assert [one.run.error for one in report.failed] == []
        assert seen == [[("gpt", 0, "interrupted"), ("gemini", 0, "not_started"), ("gpt", 1, "failed")]]
        ended = store.run("t", run_id="r").start().responses.open()
        assert {one.status for one in ended.all()} == {"completed"}
        gpt = ended.get("gpt")
        assert (gpt.attempts, gpt.input_tokens, gpt.reasoning_tokens, gpt.latency_ms) == (2, 29, 4, 150)
        assert gpt.tool_calls == {"read": 4, "run": 1}
        assert (ended.get("gpt", 1).attempts, ended.get("gpt", 1).output_tokens) == (2, 1)
        assert ended.usage() == Usage(
            latency_ms=250, input_tokens=79, output_tokens=6, reasoning_tokens=4, cost_usd=0.5,
            tool_calls={"read": 6, "run": 3},
        )  # fmt: skip
        with pytest.raises(RunEnded):
            ended.open(["another"])


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_the_same_with_tasks(backend, url):
    async def ask(responses, model, ordinal, turns):
        for turn in range(1, turns + 1):
            await responses.update(model, {"text": "x" * turn, "output_tokens": turn}, ordinal)

    async def main():
        async with outlive.open_async(url) as store:
            run = await store.run("t", run_id="r", agent="a").start()
            responses = await run.responses.open(["m"] * 20, prompt="p")
            await asyncio.gather(*(ask(responses, "m", number, number + 1) for number in range(20)))
            await responses.complete("m", {"text": "whole"}, 3)
            await responses.interrupt("m", 4, partial={"text": "slow"})
            await run.release()

            async def go_on(run):
                assert [len(one.text) for one in (await run.responses.all())] == [
                    1,
                    2,
                    3,
                    5,
                    4,
                    *range(6, 21),
                ]
                assert [one.text for one in (await run.responses.completed())] == ["whole"]
                assert (await run.responses.update("m", {"output_tokens": 5}, 19)).output_tokens == 25
                return len(await run.responses.pending())

            report = await store.recover({"a": go_on})
            assert [(one.status, one.result) for one in report.resumed] == [("completed", 19)]

    asyncio.run(main())


def test_a_store_that_keeps_nothing_takes_everything():
    with outlive.open("null:") as store, store.run("t") as run:
        responses = run.responses.open(MODELS, prompt="p")
        responses.update("gpt", {"text": "a"})
        responses.complete("claude", {"text": "b"})
        assert [one.model_id for one in responses.pending()] == ["gpt", "gemini"]


# Many at once ---------------------------------------------------------------------------------------------------


def counting(run):
    """Count the commits of a run's store and the responses in each."""
    backend, commits = getattr(run, "_run", run)._engine.backend, []
    real = backend.commit_all

    async def commit_all(group):
        commits.extend(sum(entry.kind == "response" for entry in commit.entries) for commit in group)
        return await real(group)

    backend.commit_all = commit_all
    return commits


def test_all_models_begin_in_one_commit_and_those_who_wait_share_one(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store, store.run("t") as run:
        commits = counting(run)
        models = [f"m{number}" for number in range(30)]
        responses = run.responses.open(models, prompt="p")
        assert commits == [31]  # and what they have in common
        held = run._run._mutex
        outlive.runtime.runtime.run_now(held.__aenter__())
        asking = [
            threading.Thread(target=responses.update, args=(model, {"text": model})) for model in models
        ]
        for thread in asking:
            thread.start()
        while sum(len(slot.waiting) for slot in run._run.responses._slots.values()) < 30:
            pass
        outlive.runtime.runtime.run_now(held.__aexit__())
        for thread in asking:
            thread.join()
        assert commits == [31, 30]
        assert [one.text for one in responses.all()] == models


@pytest.mark.parametrize("backend", ["memory", *ALL])
def test_of_many_threads_on_one_model_the_newest_update_stays(backend, url):
    with outlive.open(url) as store:
        run = store.run("t", run_id="r").start()
        responses = run.responses.open(["m", "n"])
        order = []
        real = run._run.responses._pack

        def pack(place, record):  # called in the order in which updates count
            order.append((place[0], record.response.text))
            return real(place, record)

        run._run.responses._pack = pack

        def tell(teller):
            for number in range(rounds(15)):
                responses.update("mn"[teller % 2], {"text": f"{teller}/{number}"})

        tellers = [threading.Thread(target=tell, args=(number,)) for number in range(6)]
        for thread in tellers:
            thread.start()
        for thread in tellers:
            thread.join()
        last = dict(order)
        assert {one.model_id: one.text for one in responses.all()} == last
        run.release()
        with store.run("t", run_id="r") as again:
            assert {one.model_id: one.text for one in again.responses.all()} == last
            assert {one.attempts for one in again.responses.all()} == {1}


def test_a_cancelled_update_takes_nobody_along():
    async def main():
        async with outlive.open_async("memory:") as store:
            run = await store.run("t", run_id="r").start()
            responses = await run.responses.open(["a", "b", "c"])
            async with run._mutex:  # all three wait
                tasks = [
                    asyncio.create_task(responses.update(model, {"text": text}))
                    for model, text in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("c", "c1")]
                ]
                await asyncio.sleep(0)
                tasks[3].cancel()  # the newest of its model: the one before is the newest now
                tasks[4].cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(one, asyncio.CancelledError) for one in done] == [False] * 3 + [True] * 2
            assert [one.text for one in (await responses.all())] == ["a2", "b1", ""]
            await run.release()
            async with store.run("t", run_id="r") as again:
                assert [one.text for one in (await again.responses.all())] == ["a2", "b1", ""]

    asyncio.run(main())


def test_what_waits_to_be_stored_counts_for_those_who_come_later():
    async def main():
        async with outlive.open_async("memory:") as store, store.run("t") as run:
            responses = await run.responses.open(["m", "n"])
            async with run._mutex:
                waiting = [
                    asyncio.create_task(responses.update("n", {"output_tokens": 1})),
                    asyncio.create_task(responses.update("n", {"output_tokens": 2})),
                    asyncio.create_task(responses.complete("m", {"text": "whole"})),
                ]
                await asyncio.sleep(0)
                with pytest.raises(BadArgument, match="completed"):
                    await asyncio.wait_for(responses.update("m", {"text": "half"}), PATIENCE_S)
                assert statuses(await responses.all()) == {("m", 0): "not_started", ("n", 0): "not_started"}
            await asyncio.gather(*waiting)
            assert (await responses.get("m")).text == "whole"
            assert ((await responses.get("n")).output_tokens, (await responses.get("n")).attempts) == (2, 1)

    asyncio.run(main())


def test_of_two_who_open_at_once_the_second_adds_what_is_missing():
    async def main():
        async with outlive.open_async("memory:") as store, store.run("t") as run:
            responses = run.responses
            commits = counting(run)
            await asyncio.gather(responses.open(["a"], prompt="p"), responses.open(["a", "b"], prompt="p"))
            assert commits == [2, 2]
            assert [one.model_id for one in (await responses.all())] == ["a", "b"]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(rounds(3)))
def test_tasks_cancelled_at_random_lose_nothing_that_was_acknowledged(seed, tmp_path):
    rng = random.Random(seed)
    acknowledged = {}

    async def tell(responses, model):
        for number in range(1, 1000):
            await responses.update(model, {"text": "x" * number})
            acknowledged[model] = number

    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/store.db") as store:
            run = await store.run("t", run_id="r").start()
            responses = await run.responses.open([f"m{number}" for number in range(8)])
            tasks = [asyncio.create_task(tell(responses, f"m{number}")) for number in range(8)]
            rng.shuffle(tasks)
            for task in tasks:
                await asyncio.sleep(rng.uniform(0, 0.01))
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await run.release()
            async with store.run("t", run_id="r") as again:
                for one in await again.responses.all():
                    last = acknowledged.get(one.model_id, 0)
                    assert len(one.text) in (last, last + 1)

    asyncio.run(main())


def test_a_write_that_failed_is_taken_back_and_can_be_said_again(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/store.db") as store, store.run("t") as run:
        responses = run.responses.open(["m"])
        responses.update("m", {"text": "1", "input_tokens": 1})
        backend = run._run._engine.backend

        async def commit_all(commits):
            return [outlive.errors.StoreBusy("not now") for _ in commits]

        backend.commit_all = commit_all
        with pytest.raises(outlive.errors.StoreBusy):
            responses.complete("m", {"text": "12", "input_tokens": 2})
        assert responses.get("m").text == "1"
        assert [one.status for one in responses.pending()] == ["running"]
        del backend.commit_all
        for _ in range(2):  # twice is once
            done = responses.complete("m", {"text": "12", "input_tokens": 2})
            assert (done.input_tokens, done.attempts) == (2, 1)


# Dying ----------------------------------------------------------------------------------------------------------

SOURCE = str(Path(outlive.__file__).parent) + os.sep
WATCHED = {"responses.py", "response_values.py", "run.py", "inline.py", "writer.py", "log.py", "disk.py"}


def die_at(number):
    """Kill this process at the `number`th statement of those files, in whichever thread; return the count."""
    count = [0]

    def trace(frame, event, _):
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE) or os.path.basename(name) not in WATCHED:
            return None
        count[0] += event == "line"
        if event == "line" and count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    return count


def fan_out(report, url, number, turns):
    """Ask three models in threads, each update reported before and after."""
    store = outlive.open(url)
    run = store.run("t", run_id="r", agent="a", lease_s=600).start()
    count = die_at(number)
    responses = run.responses.open(MODELS, prompt="p")
    report("open")

    def ask(model):
        for turn in range(1, turns + 1):
            report("begin", model, turn)
            responses.update(model, {"text": "x" * turn, "output_tokens": turn})
            report("done", model, turn)
        report("begin", model, turns + 1)
        responses.complete(model, {"text": "x" * (turns + 1), "output_tokens": turns + 1})
        report("done", model, turns + 1)

    asking = [threading.Thread(target=ask, args=(model,)) for model in MODELS]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    sys.settrace(None)
    report("calls", count[0])


TURNS = 4


def check_after_death(url, said):
    """Each model is where it was acknowledged to be, or one update further; and a successor continues from there."""
    done = {model: turn for what, model, turn in (m for m in said if m[0] == "done")}
    begun = {model: turn for what, model, turn in (m for m in said if m[0] == "begin")}

    def go_on(run):
        responses = run.responses
        found = {one.model_id: one for one in responses.all()}
        assert not found or set(found) == set(MODELS)  # all or none
        assert ("open",) not in said or found
        for model, one in found.items():
            turn = len(one.text)
            assert done.get(model, 0) <= turn <= begun.get(model, 0)
            assert one.output_tokens == turn
            expected = "not_started" if not turn else "interrupted" if turn <= TURNS else "completed"
            assert one.status == expected
        responses.open(MODELS, prompt="p")
        before = {one.model_id: one.output_tokens for one in responses.pending()}
        for model, tokens in before.items():
            assert responses.complete(model, {"text": "end", "output_tokens": 1}).output_tokens == tokens + 1
        assert responses.pending() == []

    with outlive.open(url) as store:
        report = store.recover({"a": go_on})
        assert [one.message for one in report.failed] == []
        assert [one.id for one in report.resumed] == ["r"]
        assert store.verify().problems == ()


@pytest.mark.parametrize("backend", ALL)
def test_a_kill_at_any_statement_of_a_fan_out_keeps_each_models_last_update(
    backend, url_for, workers, tmp_path
):
    with ram_folder() as folder:
        (folder / "dry").mkdir()
        with workers.spawn(fan_out, url_for(backend, folder / "dry"), 0, TURNS) as worker:
            calls = worker.finish()[-1][1]
        kills = rounds(10 if backend in BACKENDS else 5, long=200)
        killed = 0
        for kill in range(kills):
            number = 1 + kill * calls // kills
            print("killed at statement", number)
            (folder / str(kill)).mkdir()
            url = url_for(backend, folder / str(kill))
            with workers.spawn(fan_out, url, number, TURNS) as worker:
                said = list(worker)
            killed += said[-1:] == [] or said[-1][0] != "calls"
            check_after_death(url, said)
        assert killed > kills * 0.8


def zombie(report, url):
    with outlive.open(url) as store:
        run = store.run("t", run_id="r", agent="a", lease_s=0.3).start()
        responses = run.responses.open(["m"])
        responses.update("m", {"text": "first"})
        report("stored")
        stop_between_calls(store)
        for tell in (responses.update, responses.complete):
            try:
                tell("m", {"text": "zombie"})
                report("accepted")
            except LeaseLost:
                report("refused")


@pytest.mark.parametrize("backend", ALL)
def test_a_zombies_update_is_refused(backend, url, workers):
    with workers.spawn(zombie, url) as worker:
        assert worker.receive() == ("stored",)
        with outlive.open(url) as store:
            second = {"a": lambda run: run.responses.complete("m", {"text": "second"}).text}
            eventually(lambda: store.recover(second).resumed)
            worker.signal(signal.SIGCONT)
            assert worker.finish() == [("refused",), ("refused",)]
            assert store.run("t", run_id="r").start().responses.open().get("m").text == "second"


# What others got wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "response, status",
    [
        ({"text": "half", "error": "timeout"}, "failed"),
        ({"text": "half", "status": "interrupted"}, "interrupted"),
        (ModelResponse("m", text="half", error="timeout", status="interrupted"), "interrupted"),
        (ModelResponse.from_partial("m", {"text": "half"}), "interrupted"),
        (ModelResponse("m", text="half"), "completed"),
    ],
)
def test_an_error_or_an_interruption_is_never_completed(response, status):
    with outlive.open("memory:") as store, store.run("t") as run:
        responses = run.responses.open(["m", "other"])
        responses.complete("other", {})
        assert responses.complete("m", response).status == status
        assert [one.model_id for one in responses.pending()] == ([] if status == "completed" else ["m"])


def test_a_crash_while_resuming_keeps_what_was_finished_before():
    with outlive.open("memory:") as store:
        for finished, model in enumerate(MODELS):
            with contextlib.suppress(KeyboardInterrupt), store.run("t", run_id="r") as run:
                responses = run.responses.open(MODELS, prompt="p")
                assert len(responses.completed()) == finished
                responses.complete(model, {"text": model})
                raise KeyboardInterrupt
        with store.run("t", run_id="r") as run:
            assert [one.text for one in run.responses.completed()] == list(MODELS)


def test_a_late_update_does_not_undo_what_is_completed():
    with outlive.open("memory:") as store, store.run("t") as run:
        responses = run.responses.open(["m"])
        responses.complete("m", {"text": "whole"})
        for late in (responses.update, responses.complete):
            with pytest.raises(BadArgument, match="model 'm' is completed"):
                late("m", {"text": "half"})
        with pytest.raises(BadArgument, match="completed"):
            responses.fail("m", "late")
        assert responses.get("m").text == "whole"


def test_models_are_added_on_resume_and_those_not_named_any_more_stay():
    with outlive.open("memory:") as store:
        with contextlib.suppress(KeyboardInterrupt), store.run("t", run_id="r") as run:
            run.responses.open(["a", "b"], prompt="p").complete("a", {"text": "A"})
            raise KeyboardInterrupt
        with store.run("t", run_id="r") as run:
            responses = run.responses.open(["c", "a"])
            assert [one.model_id for one in responses.pending()] == ["b", "c"]
            assert responses.prompt == "p"
            with pytest.raises(BadArgument, match="another prompt"):
                responses.open(["a"], prompt="q")


def test_a_failure_begins_a_new_attempt_and_keeps_what_was_done():
    with outlive.open("memory:") as store, store.run("t") as run:
        responses = run.responses.open(["m"])
        responses.begin("m")
        responses.update("m", {"text": "half", "cost_usd": 0.25})
        failed = responses.fail("m", TimeoutError("slow"))
        assert (failed.status, failed.error, failed.text) == ("failed", "TimeoutError: slow", "half")
        assert responses.build() is None  # an error alone is no interruption
        assert responses.begin("m").text == "half"
        again = responses.complete("m", {"text": "whole", "cost_usd": 0.5})
        assert (again.attempts, again.cost_usd, again.error, again.status) == (2, 0.75, None, "completed")


# Values and arguments -------------------------------------------------------------------------------------------


def test_nothing_is_built_when_nothing_was_interrupted():
    done, failed = ModelResponse("a", text="x"), ModelResponse("b", error="no")
    assert FanOut.build([done, failed], prompt="p") is None
    partial = ModelResponse.from_partial("c", {"text": "y", "output_tokens": 3})
    built = FanOut.build([done, failed, partial], prompt="p", verbose=True)
    assert [one.model_id for one in built.pending()] == ["b", "c"]
    assert (built.model_ids, built.usage.output_tokens) == (("a", "b", "c"), 3)
    assert FanOut.build(FanOut.start(["a"]).responses) is not None  # it never began


def test_response_snapshot_and_partial_become_each_other_and_are_states():
    response = ModelResponse(
        "m", ordinal=1, text="é", latency_ms=5, input_tokens=1, output_tokens=2, reasoning_tokens=3, cost_usd=0.1,
        tool_calls={"read": 2}, proposed_writes=[("a", "x"), {"path": "b", "delete": True}],
    )  # fmt: skip
    snapshot = json.loads(json.dumps(response.to_snapshot()))
    assert (snapshot["completed"], snapshot["interrupted"]) == (True, False)
    assert ModelResponse.from_snapshot(snapshot) == response
    partial = response.to_partial()
    left = ModelResponse.from_partial("m", partial, ordinal=1)
    assert (left.status, left.to_partial()) == ("interrupted", partial)
    old = {"model_id": "m", "text": "x", "latency_ms": 1, "interrupted": True, "completed": True}
    assert ModelResponse.from_snapshot(old).status == "interrupted"
    assert ModelResponse.from_snapshot({"model_id": "m", "error": "e", "completed": True}).status == "failed"
    state = {"all": FanOut.build([left], prompt="p"), "one": response, "write": WriteProposal("a", b"\0")}
    with outlive.open("memory:") as store:
        store.thread("t").save({**state, "partial": partial})
        assert store.thread("t").load() == {**state, "partial": partial}


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda r: r.open("gpt"), "list of ids"),
        (lambda r: r.open(["a\nb"]), "model id must be one line"),
        (lambda r: r.open([""]), "1 to 500 characters"),
        (lambda r: r.update("unknown", {}), "is not open .*'m'"),
        (lambda r: r.update("m", {}, 1), "ordinal 1"),
        (lambda r: r.update("m", {"txt": "x"}), "no field 'txt'"),
        (lambda r: r.update("m", {"text": b"x"}), "text must be a str"),
        (lambda r: r.update("m", {"input_tokens": -1}), "input_tokens must be"),
        (lambda r: r.update("m", {"cost_usd": float("nan")}), "cost_usd must be"),
        (lambda r: r.update("m", {"tool_calls": {"a": "b"}}), "tool_calls"),
        (lambda r: r.update("m", {"proposed_writes": ["a"]}), "proposed write"),
        (lambda r: r.update("m", "text"), "mapping"),
        (lambda r: r.complete("m", {"status": "fine"}), "status must be one of .*'fine'"),
        (lambda r: r.update("m", {"text": "x" * (17 << 20)}), "response of model 'm' has 17"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(call, complaint):
    with outlive.open("memory:") as store, store.run("t") as run:
        responses = run.responses.open(["m"])
        with pytest.raises(BadArgument, match=complaint):
            call(responses)
        assert statuses(responses.all()) == {("m", 0): "not_started"}


def test_responses_of_a_run_that_has_not_started_are_not_known():
    with outlive.open("memory:") as store:
        with pytest.raises(BadArgument, match="not started"):
            store.run("t").responses.open(["m"])
        with pytest.raises(BadArgument, match="open"):
            store.run("t").responses.pending()


def test_runs_whose_ids_look_like_keys_keep_their_responses_apart():
    with outlive.open("memory:") as store:
        for run_id in ("a", "a\n0000", "a\n0000\nm", "a\n"):
            with contextlib.suppress(KeyboardInterrupt), store.run("t", run_id=run_id) as run:
                run.responses.open(["m"]).update("m", {"text": run_id})
                raise KeyboardInterrupt
        for run_id in ("a", "a\n0000", "a\n0000\nm", "a\n"):
            with store.run("t", run_id=run_id) as run:
                assert [one.text for one in run.responses.all()] == [run_id]
