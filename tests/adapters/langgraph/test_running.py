"""Invocations of graphs as runs: leased, exclusive, recovered by another process, and done once."""

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Command, interrupt
from pydantic import BaseModel, field_serializer, model_serializer

import outlive
from adapters.langgraph.graphs import Log, asks, fan, line, says, thread
from outlive.adapters.langgraph import OutliveSaver, aresume_graph, arun_graph, resume_graph, run_graph
from outlive.adapters.langgraph.operations import CheckpointOperations
from outlive.testing.patience import PATIENCE_S, eventually
from rig.crash import BACKENDS, SERVERS, stop_between_calls

SOON_S = PATIENCE_S
LEASE_S = 1.0


@pytest.fixture
def store(url):
    with outlive.open(url) as opened:
        yield opened


# Graphs whose nodes leave traces --------------------------------------------------------------------------------


def trace(folder, name):
    with open(Path(folder) / "traces", "a") as file:
        file.write(name + "\n")


def traces(folder):
    return (Path(folder) / "traces").read_text().split()


def counted(folder, name, ends=None):
    """Return a node that leaves a trace, and the first time ends or stops its process."""

    def node(state):
        trace(folder, name)
        marker = Path(folder) / f"{name} was there"
        if ends is not None and not marker.exists():
            marker.touch()
            ends() if callable(ends) else os.kill(os.getpid(), ends)
        return {"log": [name]}

    return node


def graph_of(folder, where=None, ends=None, **options):
    nodes = {name: counted(folder, name, ends if name == where else None) for name in ("one", "two", "three")}
    return line(Log, **nodes).compile(**options)


def recovered(store, graph):
    """Recover until something was; return its run."""
    end = time.monotonic() + SOON_S
    while not (report := store.recover({"assistant": lambda begun: resume_graph(graph, begun)})).resumed:
        assert time.monotonic() < end, "nothing was recovered"
        time.sleep(0.05)
    (found,) = report.resumed
    return found


# In one process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_saver", [False, True])
def test_a_run_gives_what_the_graph_gives_and_is_known_to_the_store(store, folder, with_saver):
    graph = graph_of(folder, checkpointer=OutliveSaver(store) if with_saver else None)
    given = {} if with_saver else {"store": store}
    assert run_graph(graph, {"log": ["in"]}, thread_id="t", run_id="r", agent="assistant", **given) == {
        "log": ["in", "one", "two", "three"]
    }
    (found,) = store.runs()
    assert (found.id, found.thread, found.status, found.agent, found.attempt) == (
        "r",
        "t",
        "completed",
        "assistant",
        1,
    )
    reader = graph_of(folder, checkpointer=OutliveSaver(store))
    history = list(reader.get_state_history(thread()))
    assert {one.metadata["run_id"] for one in history} == {"r"}


def test_a_run_that_has_ended_gives_its_output_back_and_runs_nothing(store, folder):
    graph = graph_of(folder)
    outputs = [
        run_graph(graph, {"log": [name]}, thread_id=7, store=store, run_id="r")
        for name in ("first", "ignored")
    ]
    assert outputs[0] == outputs[1] == {"log": ["first", "one", "two", "three"]}
    assert traces(folder) == ["one", "two", "three"]
    run_graph(graph, {"log": ["next"]}, thread_id=7, store=store, run_id="s")
    assert run_graph(graph, None, thread_id=7, store=store, run_id="r") == outputs[0]


def test_while_a_run_goes_on_no_other_has_its_thread(store):
    refused = []

    def node(state):
        for run_id in ("other", None):
            with pytest.raises(outlive.ThreadBusy) as error:
                run_graph(graph, {"log": []}, thread_id="t", store=store, run_id=run_id)
            refused.append(error.value.holder)
        run_graph(inner, {"log": []}, thread_id="u", store=store)
        return {"log": ["node"]}

    graph, inner = line(Log, node=node).compile(), line(Log, a=says("a")).compile()
    run_graph(graph, {"log": []}, thread_id="t", store=store, run_id="r")
    assert refused == ["r", "r"]


def test_an_interrupt_makes_the_run_wait_and_the_answer_continues_it(store):
    graph = line(Log, a=says("a"), ask=asks("ask"), b=says("b")).compile()
    asked = run_graph(graph, {"log": ["in"]}, thread_id="t", store=store, run_id="r")
    assert asked["log"] == ["in", "a"]
    assert [interrupt.value for interrupt in asked["__interrupt__"]] == ["ask?"]
    (question,) = store.questions()
    assert (question.run, question.status, question.payload["node"], question.payload["value"]) == (
        "r", "open", "ask", "ask?",
    )  # fmt: skip
    assert store.find_run("r").status == "waiting"
    assert [(asked.node, asked.payload) for asked in store.thread("t").interrupts()] == [("ask", "ask?")]
    assert "__interrupt__" in [write.channel for write in store.thread("t").writes()]
    again = run_graph(graph, None, thread_id="t", store=store, run_id="r")
    assert again == asked
    with pytest.raises(outlive.errors.BadArgument, match="run 'r' of this thread waits for this answer"):
        run_graph(graph, Command(resume="yes"), thread_id="t", store=store, run_id="another")
    expected = {"log": ["in", "a", "ask=yes", "b"]}
    assert run_graph(graph, Command(resume="yes"), thread_id="t", store=store) == expected
    assert [(run.id, run.status, run.attempt) for run in store.runs()] == [("r", "completed", 1)]
    assert list(store.questions()) == []
    assert store.thread("t").interrupts() == ()
    assert run_graph(graph, None, thread_id="t", store=store, run_id="r") == expected


def test_an_answer_from_another_process_makes_a_worker_continue_the_graph(store):
    graph = line(Log, a=says("a"), ask=asks("ask"), b=says("b")).compile(name="assistant")
    run_graph(graph, {"log": ["in"]}, thread_id="t", store=store, run_id="r")
    handlers = {"assistant": lambda run: resume_graph(graph, run)}
    assert store.recover(handlers).resumed == []  # it waits, and is no dead run
    (question,) = store.questions(agent="assistant")
    store.answer("r", question.name, "yes", by="support")
    with pytest.raises(outlive.errors.AlreadyAnswered):
        store.answer("r", question.name, "no")
    assert [run.id for run in store.recover(handlers).resumed] == ["r"]
    assert run_graph(graph, None, thread_id="t", store=store, run_id="r") == {
        "log": ["in", "a", "ask=yes", "b"]
    }


def test_an_answer_by_a_plain_invocation_ends_the_run_that_waited(store):
    graph = line(Log, a=says("a"), ask=asks("ask")).compile(name="assistant")
    run_graph(graph, {"log": ["in"]}, thread_id="t", store=store, run_id="r")
    plain = line(Log, a=says("a"), ask=asks("ask")).compile(checkpointer=OutliveSaver(store))
    assert plain.invoke(Command(resume="plain"), thread())["log"] == ["in", "a", "ask=plain"]
    (question,) = store.questions()
    store.answer("r", question.name, "late")
    (resumed,) = store.recover({"assistant": lambda run: resume_graph(graph, run)}).resumed
    assert resumed.status == "completed"
    assert plain.get_state(thread()).values["log"] == ["in", "a", "ask=plain"]


def test_an_answer_goes_to_the_run_that_asked_last(store):
    graph = line(Log, a=says("a"), ask=asks("ask")).compile(name="assistant")
    for run_id in ("old", "new"):
        run_graph(graph, {"log": [run_id]}, thread_id="t", store=store, run_id=run_id)
    output = run_graph(graph, Command(resume="yes"), thread_id="t", store=store)
    assert output["log"] == ["old", "a", "new", "a", "ask=yes"]
    assert {run.id: run.status for run in store.runs()} == {"old": "waiting", "new": "completed"}


def test_an_answer_beside_another_is_refused_and_so_is_more_than_an_answer(store):
    graph = line(Log, a=says("a"), ask=asks("ask")).compile(name="assistant")
    run_graph(graph, {"log": []}, thread_id="t", store=store, run_id="r")
    with pytest.raises(outlive.errors.BadArgument, match=r"\) alone"):
        run_graph(graph, Command(resume="yes", update={"log": ["x"]}), thread_id="t", store=store)
    (question,) = store.questions()
    store.answer("r", question.name, "first", by="ada")
    with pytest.raises(outlive.errors.AlreadyAnswered, match="ada"):
        run_graph(graph, Command(resume="second"), thread_id="t", store=store)
    assert run_graph(graph, None, thread_id="t", store=store, run_id="r") == {"log": ["a", "ask=first"]}


def test_an_answer_may_be_an_object(store):
    def ask(state):
        return {"log": [interrupt({"options": {"beta", "alpha", "gamma"}})]}

    graph = line(Log, ask=ask).compile()
    run_graph(graph, {"log": []}, thread_id="t", store=store, run_id="r")
    (question,) = store.questions()
    assert sorted(question.payload["value"]["options"]) == ["alpha", "beta", "gamma"]
    output = run_graph(graph, Command(resume=Decision(ok=True)), thread_id="t", store=store)
    assert output == {"log": [Decision(ok=True)]}


def test_what_a_serializer_encrypts_is_in_no_question(tmp_path):
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16)
    graph = line(Log, ask=asks("secret")).compile(checkpointer=OutliveSaver("memory:", serde=serde))
    with outlive.open(tmp_path / "a.db") as store:
        run_graph(graph, {"log": []}, thread_id="t", store=store, run_id="r")
        (question,) = store.questions()
        assert question.payload.keys() == {"node", "id"}
        output = run_graph(graph, Command(resume="hidden"), thread_id="t", store=store)
        assert output == {"log": ["secret=hidden"]}
        assert [answered.value for answered in store.questions(status="answered")] != ["hidden"]
    for file in tmp_path.iterdir():
        assert b"hidden" not in file.read_bytes()
        assert b"secret?" not in file.read_bytes()


def test_an_interrupt_may_show_bytes(store):
    def ask(state):
        return {"log": [interrupt({"image": b"\xff\x00"})]}

    graph = line(Log, ask=ask).compile()
    run_graph(graph, {"log": []}, thread_id="t", store=store)
    (question,) = store.questions()
    assert question.payload["value"] == {"image": "_wA="}


class Unprintable(BaseModel):
    """A model that its own serializer cannot turn into JSON."""

    a: int = 1

    @field_serializer("a")
    def print(self, a):
        raise ValueError("not for people")


def test_a_payload_that_is_no_json_does_not_end_the_run(store):
    graph = line(Log, ask=lambda state: {"log": [interrupt(Unprintable())]}).compile()
    output = run_graph(graph, {"log": []}, thread_id="t", store=store, run_id="r")
    assert [interrupt.value for interrupt in output["__interrupt__"]] == [Unprintable()]
    (question,) = store.questions()
    assert question.payload["value"] == "<Unprintable>"
    assert run_graph(graph, Command(resume="yes"), thread_id="t", store=store) == {"log": ["yes"]}


class Offer(BaseModel):
    """A model whose JSON differs from process to process, as that of a set or of changed code does."""

    printed: ClassVar[itertools.count] = itertools.count()

    @model_serializer
    def print(self):
        return {"printed": next(self.printed)}


def test_a_question_stays_as_it_was_asked(store):
    graph = line(Log, ask=lambda state: {"log": [interrupt(Offer())]}).compile(name="g")
    for _ in range(3):
        run_graph(graph, None if store.find_run("r") else {"log": []}, thread_id="t", store=store, run_id="r")
    (question,) = store.questions()
    store.answer("r", question.name, "yes")
    (resumed,) = store.recover({"g": lambda run: resume_graph(graph, run)}).resumed
    assert resumed.status == "completed"
    assert run_graph(graph, None, thread_id="t", store=store, run_id="r") == {"log": ["yes"]}


class Decision(BaseModel):
    ok: bool


def test_several_interrupts_are_answered_by_id_and_checked_by_their_schemas(store):
    def decide(state):
        decision = interrupt({"why": Decision(ok=False)}, response_schema=Decision)
        return {"log": [decision, interrupt("and now?")]}

    graph = fan(Log, says("first"), says("last"), decide=decide, other=asks("other")).compile()
    run_graph(graph, {"log": []}, thread_id="t", store=store, run_id="r")
    asked = {question.payload["node"]: question for question in store.questions()}
    assert asked["decide"].payload["value"] == {"why": {"ok": False}}
    assert asked["decide"].schema["properties"]["ok"]["type"] == "boolean"
    with pytest.raises(outlive.errors.BadArgument, match="asks 2 questions"):
        run_graph(graph, Command(resume="x"), thread_id="t", store=store)
    with pytest.raises(outlive.errors.AnswerRefused, match="ok"):
        store.answer("r", asked["decide"].name, {"ok": "perhaps"})
    resume = {asked["decide"].payload["id"]: {"ok": True}, asked["other"].payload["id"]: "fine"}
    output = run_graph(graph, Command(resume=resume), thread_id="t", store=store)
    assert [interrupt.value for interrupt in output["__interrupt__"]] == ["and now?"]
    output = run_graph(graph, Command(resume="done"), thread_id="t", store=store)
    assert output["log"] == ["first", Decision(ok=True), "done", "other=fine", "last"]
    assert [(run.id, run.status) for run in store.runs()] == [("r", "completed")]


def test_what_a_node_raises_is_raised_and_the_run_has_failed(store):
    def node(state):
        raise ZeroDivisionError("in the node")

    graph = line(Log, node=node).compile()
    with pytest.raises(ZeroDivisionError):
        run_graph(graph, {"log": []}, thread_id="t", store=store, run_id="r")
    (found,) = store.runs()
    assert found.status == "failed"
    assert store.recover({"assistant": lambda begun: resume_graph(graph, begun)}).resumed == []


def test_an_async_run_does_the_same(url, folder):
    async def main():
        graph = line(Log, a=counted(folder, "a"), ask=asks("ask"), b=counted(folder, "b")).compile()
        async with outlive.open_async(url) as store:
            asked = await arun_graph(graph, {"log": ["in"]}, thread_id="t", store=store, run_id="r")
            assert [one.value for one in asked["__interrupt__"]] == ["ask?"]
            for _ in range(2):
                answered = await arun_graph(
                    graph, Command(resume="yes"), thread_id="t", store=store, run_id="r"
                )
                assert answered == {"log": ["in", "a", "ask=yes", "b"]}
            assert [(run.id, run.status) async for run in store.runs()] == [("r", "completed")]

    asyncio.run(main())
    assert traces(folder) == ["a", "b"]


def test_a_run_needs_a_store(folder):
    graph = graph_of(folder)
    with pytest.raises(outlive.errors.BadArgument, match="needs a store"):
        run_graph(graph, {"log": []}, thread_id="t")
    with pytest.raises(outlive.errors.BadArgument, match="needs the store"):
        asyncio.run(arun_graph(graph, {"log": []}, thread_id="t"))


def test_a_thread_is_talked_to_by_runs_and_by_plain_invocations(store, folder):
    graph = graph_of(folder, checkpointer=OutliveSaver(store))
    run_graph(graph, {"log": ["run"]}, thread_id="t")
    graph.invoke({"log": ["plain"]}, thread())
    assert run_graph(graph, {"log": ["again"]}, thread_id="t")["log"][::4] == ["run", "plain", "again"]


def test_options_and_the_config_reach_the_graph(store):
    seen = {}

    def node(state, config):
        seen.update(config["configurable"], tags=config["tags"])
        return {"log": ["node"]}

    graph = line(Log, a=says("a"), node=node).compile()
    config = {"configurable": {"user": "u"}, "tags": ["x"], "metadata": {"tenant": "acme"}}
    stopped = run_graph(
        graph, {"log": []}, thread_id="t", store=store, config=config, interrupt_before=["node"]
    )
    assert stopped["log"] == ["a"]
    run_graph(graph, None, thread_id="t", store=store, config=config, durability="exit")
    assert (seen["user"], seen["tags"], seen["thread_id"]) == ("u", ["x"], "t")
    assert next(OutliveSaver(store).list(thread())).metadata["tenant"] == "acme"


# Killed -------------------------------------------------------------------------------------------------------


def invoke_and_die(report, url, folder, where, ends, durability="sync"):
    """Run a graph that ends this process in one of its nodes."""
    with outlive.open(url) as store:
        if ends == signal.SIGSTOP:
            ends = functools.partial(stop_between_calls, store)
        graph = graph_of(folder, where, ends)
        try:
            run_graph(
                graph, {"log": ["in"]}, thread_id="t", store=store, run_id="r", agent="assistant", lease_s=LEASE_S,
                durability=durability,
            )  # fmt: skip
        except outlive.OutliveError as error:
            report(type(error).__name__)
        else:
            report("done")


def die_in_the_second_node(report, url, folder):
    invoke_and_die(report, url, folder, "two", signal.SIGKILL)


def die_before_the_first_checkpoint(report, url, folder):
    OutliveSaver.put = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
    invoke_and_die(report, url, folder, None, None)


def die_between_writes_and_checkpoint(report, url, folder):
    """What the first node wrote is stored, the checkpoint after it is not."""
    real = OutliveSaver.put

    def put(saver, config, checkpoint, metadata, versions):
        if metadata["step"] == 1:
            while all(write[1] != "log" for write in saver.get_tuple(config).pending_writes):
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(saver, config, checkpoint, metadata, versions)

    OutliveSaver.put = put
    invoke_and_die(report, url, folder, None, None)


def answer_and_die(report, url, folder, where):
    with outlive.open(url) as store:
        graph = asking_graph(folder, where)
        run_graph(
            graph,
            {"log": ["in"]},
            thread_id="t",
            store=store,
            run_id="question",
            agent="assistant",
            lease_s=LEASE_S,
        )
        run_graph(
            graph,
            Command(resume="yes"),
            thread_id="t",
            store=store,
            agent="assistant",
            lease_s=LEASE_S,
        )


def resume_and_die(report, url, folder, where):
    with outlive.open(url) as store:
        graph = asking_graph(folder, where)
        store.recover({"assistant": lambda run: resume_graph(graph, run)}, concurrency=1)


def asking_graph(folder, where=None):
    def ask(state):
        answer = interrupt("?")
        return {
            "log": [
                f"answer {answer}",
                *counted(folder, "ask", signal.SIGKILL if where == "ask" else None)(state)["log"],
            ]
        }

    after = counted(folder, "after", signal.SIGKILL if where == "after" else None)
    return line(Log, before=counted(folder, "before"), ask=ask, after=after).compile()


@pytest.mark.parametrize("backend", [*BACKENDS, *SERVERS])
def test_a_killed_run_is_recovered_from_its_last_checkpoint(workers, url_for, folder, backend):
    check_kill(workers, url_for(backend, folder), folder, "two")


@pytest.mark.parametrize("where", ["one", "three"])
def test_wherever_it_is_killed(workers, url, folder, where):
    check_kill(workers, url, folder, where)


def check_kill(workers, url, folder, where):
    with workers.spawn(invoke_and_die, url, str(folder), where, signal.SIGKILL) as worker:
        assert worker.receive() is None
    names = ["one", "two", "three"]
    until = names[: names.index(where) + 1]
    assert traces(folder) == until
    with outlive.open(url) as store:
        found = recovered(store, graph_of(folder))
        assert (found.id, found.status, found.attempt) == ("r", "completed", 2)
        assert traces(folder) == [*until, *names[names.index(where) :]], "what was done is not done again"
        assert run_graph(graph_of(folder), None, thread_id="t", store=store, run_id="r") == {
            "log": ["in", *names]
        }
        assert len(traces(folder)) == 4


def parallel_graph(folder, ends=None, is_stored=lambda: True):
    def slow(state):
        eventually(is_stored)  # what the quick one wrote
        return counted(folder, "slow", ends)(state)

    return fan(
        Log, counted(folder, "first"), counted(folder, "last"), quick=counted(folder, "quick"), slow=slow
    ).compile()


def die_beside_a_finished_branch(report, url, folder):
    with outlive.open(url) as store:
        saver = OutliveSaver(store)

        def is_stored():
            found = saver.get_tuple(thread())
            return found and any(write[2] == ["quick"] for write in found.pending_writes)

        graph = parallel_graph(folder, signal.SIGKILL, is_stored)
        run_graph(
            graph, {"log": ["in"]}, thread_id="t", store=store, run_id="r", agent="assistant", lease_s=LEASE_S
        )


def test_a_branch_that_was_finished_is_not_done_again(workers, url, folder):
    with workers.spawn(die_beside_a_finished_branch, url, str(folder)) as worker:
        assert worker.receive() is None
    with outlive.open(url) as store:
        assert recovered(store, parallel_graph(folder)).status == "completed"
    assert traces(folder) == ["first", "quick", "slow", "slow", "last"]


def die_at_a_write(report, url, folder, number, is_stored):
    """End this process before or after what the saver stores as its `number`th."""
    count = itertools.count(1)

    def mortal(real):
        async def store(keeper, *arguments, **options):
            is_last = next(count) == number
            if is_last and not is_stored:
                os.kill(os.getpid(), signal.SIGKILL)
            done = await real(keeper, *arguments, **options)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return store

    CheckpointOperations.put, CheckpointOperations.put_writes = (
        mortal(CheckpointOperations.put),
        mortal(CheckpointOperations.put_writes),
    )
    with outlive.open(url) as store:
        run_graph(
            fan_of(folder), {"log": ["in"]}, thread_id="t", store=store, run_id="r", agent="assistant", lease_s=LEASE_S
        )  # fmt: skip
    report("done")


def fan_of(folder):
    inner = line(Log, deep=counted(folder, "deep")).compile()
    sides = {"left": counted(folder, "left"), "sub": lambda state: {"log": inner.invoke({"log": []})["log"]}}
    return fan(Log, counted(folder, "first"), counted(folder, "last"), **sides).compile()


@pytest.mark.long
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("number", range(1, 13))
def test_before_and_after_whatever_write_it_is_killed_the_run_ends_as_if_it_had_not_been(
    workers, url, folder, number, is_stored
):
    with workers.spawn(die_at_a_write, url, str(folder), number, is_stored) as worker:
        ended = worker.receive()
    with outlive.open(url) as store:
        assert ended == ("done",) or recovered(store, fan_of(folder)).status == "completed"
        output = run_graph(fan_of(folder), None, thread_id="t", store=store, run_id="r")
    assert sorted(output["log"]) == ["deep", "first", "in", "last", "left"]
    assert max(traces(folder).count(name) for name in output["log"]) <= 2


def test_a_run_whose_step_was_done_but_not_its_checkpoint_is_not_taken_for_finished(workers, url, folder):
    with workers.spawn(die_between_writes_and_checkpoint, url, str(folder)) as worker:
        assert worker.receive() is None
    assert traces(folder) == ["one"]
    with outlive.open(url) as store:
        assert recovered(store, graph_of(folder)).status == "completed"
        assert traces(folder) == ["one", "two", "three"]
        assert run_graph(graph_of(folder), None, thread_id="t", store=store, run_id="r")["log"][-1] == "three"


@pytest.mark.parametrize("how", ["a run", "an invocation"])
def test_a_run_that_others_went_on_from_does_not_fork_the_thread_and_is_not_given_their_output(
    workers, url, folder, how
):
    with workers.spawn(die_in_the_second_node, url, str(folder)) as worker:
        assert worker.receive() is None
    with outlive.open(url) as store:
        graph = graph_of(folder, checkpointer=OutliveSaver(store))
        if how == "a run":
            end = time.monotonic() + SOON_S
            while True:  # until the lease of the dead one has run out
                with contextlib.suppress(outlive.ThreadBusy):
                    run_graph(
                        graph, {"log": ["other"]}, thread_id="t", store=store, run_id="other", agent="b"
                    )
                    break
                assert time.monotonic() < end
                time.sleep(0.05)
        else:
            graph.invoke({"log": ["other"]}, thread())
        before = [one.config for one in graph.get_state_history(thread())]
        end = time.monotonic() + SOON_S
        while not (report := store.recover({"assistant": lambda begun: resume_graph(graph, begun)})).failed:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert report.failed[0].code == "HeadMoved"
        assert [one.config for one in graph.get_state_history(thread())] == before


def test_a_person_may_edit_the_state_before_a_run_goes_on(workers, url, folder):
    with workers.spawn(die_in_the_second_node, url, str(folder)) as worker:
        assert worker.receive() is None
    with outlive.open(url) as store:
        graph = graph_of(folder, checkpointer=OutliveSaver(store))
        graph.update_state(thread(), {"log": ["edited"]})
        assert recovered(store, graph).status == "completed"
        assert graph.get_state(thread()).values["log"] == ["in", "one", "edited", "two", "three"]


def test_a_run_that_was_killed_before_its_first_checkpoint_has_not_lost_its_input(workers, url, folder):
    with workers.spawn(die_before_the_first_checkpoint, url, str(folder)) as worker:
        assert worker.receive() is None
    with outlive.open(url) as store:
        assert OutliveSaver(store).get_tuple(thread()) is None
        assert recovered(store, graph_of(folder)).status == "completed"
        assert run_graph(graph_of(folder), None, thread_id="t", store=store, run_id="r")["log"] == [
            "in",
            "one",
            "two",
            "three",
        ]
    assert traces(folder) == ["one", "two", "three"]


@pytest.mark.parametrize("where", ["ask", "after"])
def test_a_worker_that_was_killed_with_the_answer_leaves_it_to_the_next(workers, url, folder, where):
    with outlive.open(url) as store:
        run_graph(
            asking_graph(folder), {"log": ["in"]}, thread_id="t", store=store, run_id="r", agent="assistant"
        )
        (question,) = store.questions()
        store.answer("r", question.name, "yes")
    with workers.spawn(resume_and_die, url, str(folder), where) as worker:
        assert worker.receive() is None
    with outlive.open(url) as store:
        assert recovered(store, asking_graph(folder)).id == "r"
        output = run_graph(asking_graph(folder), None, thread_id="t", store=store, run_id="r")
        assert output == {"log": ["in", "before", "answer yes", "ask", "after"]}
    assert (
        traces(folder)
        == {"ask": ["before", "ask", "ask", "after"], "after": ["before", "ask", "after", "after"]}[where]
    )


@pytest.mark.parametrize("where", ["ask", "after"])
def test_a_run_that_was_killed_while_it_acted_on_an_answer_still_has_the_answer(workers, url, folder, where):
    with workers.spawn(answer_and_die, url, str(folder), where) as worker:
        assert worker.receive() is None
    with outlive.open(url) as store:
        assert recovered(store, asking_graph(folder)).id == "question"
        output = run_graph(asking_graph(folder), None, thread_id="t", store=store, run_id="question")
        assert output == {"log": ["in", "before", "answer yes", "ask", "after"]}
    assert (
        traces(folder)
        == {"ask": ["before", "ask", "ask", "after"], "after": ["before", "ask", "after", "after"]}[where]
    )


def test_a_zombie_stores_nothing_more(workers, url, folder):
    with workers.spawn(invoke_and_die, url, str(folder), "two", signal.SIGSTOP) as zombie:
        end = time.monotonic() + SOON_S
        while not (folder / "two was there").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        with outlive.open(url) as store:
            assert recovered(store, graph_of(folder)).status == "completed"  # when the lease has run out
            reader = graph_of(folder, checkpointer=OutliveSaver(store))
            before = [one.config for one in reader.get_state_history(thread())]
            zombie.signal(signal.SIGCONT)
            assert zombie.receive() == ("LeaseLost",)
            zombie.finish()
            assert [one.config for one in reader.get_state_history(thread())] == before
            assert reader.get_state(thread()).values == {"log": ["in", "one", "two", "three"]}
            (found,) = store.runs()
            assert (found.status, found.attempt) == ("completed", 2)


@pytest.mark.parametrize(
    "die, redone",
    [
        (die_in_the_second_node, ["two"]),
        (die_between_writes_and_checkpoint, []),
    ],
    ids=["in a node", "between writes and checkpoint"],
)
def test_an_async_process_recovers_a_run_too(workers, url, folder, die, redone):
    with workers.spawn(die, url, str(folder)) as worker:
        assert worker.receive() is None

    async def main():
        graph = graph_of(folder)
        async with outlive.open_async(url) as store:
            end = time.monotonic() + SOON_S
            while not (await store.recover({"assistant": functools.partial(aresume_graph, graph)})).resumed:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)
            return await arun_graph(graph, None, thread_id="t", store=store, run_id="r")

    assert asyncio.run(main()) == {"log": ["in", "one", "two", "three"]}
    assert traces(folder) == ["one", *redone, "two", "three"]
