"""Traces and metrics, as the exporters of OpenTelemetry's SDK get them."""

import asyncio
import subprocess
import sys
import threading
from decimal import Decimal

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as names

import outlive
from outlive import otel
from outlive.events import Event
from outlive.testing.patience import PATIENCE_S, eventually


class Tracing:
    def __init__(self):
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self._provider.get_tracer("test")
        self.spans = otel.spans(self.tracer)

    def finished(self, name=None):
        spans = self._exporter.get_finished_spans()
        return [span for span in spans if name is None or span.name.startswith(name)]

    def tree(self):
        """Return (name of the parent, name) of every span, in the order in which they ended."""
        by_id = {span.context.span_id: span.name for span in self.finished()}
        return [
            (None if span.parent is None else by_id.get(span.parent.span_id), span.name)
            for span in self.finished()
        ]


@pytest.fixture
def tracing():
    before = trace.get_current_span()
    yield Tracing()
    assert trace.get_current_span() is before  # whatever was made current is current no more


def test_steps_and_saves_are_inside_their_run(tracing):
    with outlive.open("memory:", on_event=tracing.spans) as store:

        def call():
            with tracing.tracer.start_as_current_span("chat gpt"):
                return 1

        with tracing.tracer.start_as_current_span("request"):
            with store.run("t", run_id="r", agent="planner") as run:
                run.step("ask", call)
                with tracing.tracer.start_as_current_span("own work"):
                    run.step("outer", lambda: run.step("inner", int))
                run.save({"n": 1}, usage={"input_tokens": 12, "completion_tokens": 3, "cost": 0.5})
            store.thread("other").save({"n": 1})
    saves = [edge for edge in tracing.tree() if edge[1] != "outlive.load"]
    assert saves == [
        ("execute_tool ask", "chat gpt"),
        ("invoke_agent planner", "execute_tool ask"),
        ("execute_tool outer", "execute_tool inner"),
        ("own work", "execute_tool outer"),
        ("invoke_agent planner", "own work"),
        ("invoke_agent planner", "outlive.save"),
        ("request", "invoke_agent planner"),
        ("request", "outlive.save"),
        (None, "request"),
    ]
    (run,) = tracing.finished("invoke_agent")
    # The conventions of OpenTelemetry 1.30 do not have all of these names yet.
    assert (
        run.attributes.items()
        >= {
            names.GEN_AI_OPERATION_NAME: "invoke_agent",
            getattr(names, "GEN_AI_AGENT_NAME", "gen_ai.agent.name"): "planner",
            getattr(names, "GEN_AI_CONVERSATION_ID", "gen_ai.conversation.id"): "t",
            names.GEN_AI_USAGE_INPUT_TOKENS: 12,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: 3,
            "outlive.usage.cost": 0.5,
            "outlive.run": "r",
            "outlive.attempt": 1,
            "outlive.status": "completed",
        }.items()
    )
    assert run.status.status_code is trace.StatusCode.UNSET
    (ask, *_) = tracing.finished("execute_tool")
    assert (
        ask.attributes.items()
        >= {
            names.GEN_AI_OPERATION_NAME: "execute_tool",
            getattr(names, "GEN_AI_TOOL_NAME", "gen_ai.tool.name"): "ask",
            "outlive.key": "#1",
            "outlive.status": "done",
        }.items()
    )
    assert all(span.end_time >= span.start_time for span in tracing.finished())


def test_async_branches_have_steps_of_their_own(tracing):
    async def main():
        async with outlive.open_async("memory:", on_event=tracing.spans) as store:
            async with store.run("t", run_id="r", agent="planner") as run:

                async def branch(name):
                    async def call():
                        with tracing.tracer.start_as_current_span(f"chat {name}"):
                            await asyncio.sleep(0.01)

                    await run.step("ask", key=name)(call)()

                await asyncio.gather(branch("a"), branch("b"))
                assert trace.get_current_span().name == "invoke_agent planner"
            assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(main())
    asks = {span.context.span_id: span.attributes["outlive.key"] for span in tracing.finished("execute_tool")}
    assert {asks[span.parent.span_id]: span.name for span in tracing.finished("chat")} == {
        "=a": "chat a",
        "=b": "chat b",
    }


def test_a_thread_without_the_context_works_inside_the_run(tracing):
    with outlive.open("memory:", on_event=tracing.spans) as store:
        with store.run("t", run_id="r", agent="planner") as run:
            worker = threading.Thread(target=lambda: run.step("ask", int))
            worker.start()
            worker.join()
    assert ("invoke_agent planner", "execute_tool ask") in tracing.tree()


def test_what_goes_wrong_is_an_error(tracing):
    def fail():
        raise ValueError("no luck")

    with outlive.open("memory:", on_event=tracing.spans) as store:
        with pytest.raises(ValueError, match="no luck"), store.run("t", run_id="r") as run:
            run.step("a", fail)
        with pytest.raises(outlive.errors.Unencodable), store.run("t", run_id="s") as run:
            run.step("b", object)
        lost = store.run("u", run_id="lost").start()
        store.cancel("lost")
        with pytest.raises(outlive.LeaseLost):
            lost.step("c", int)
    by_name = {(span.name, span.attributes["outlive.run"]): span for span in tracing.finished() if "outlive.run" in span.attributes}  # fmt: skip
    step, run = by_name["execute_tool a", "r"], by_name["invoke_agent", "r"]
    for span in (step, run):
        assert span.status.status_code is trace.StatusCode.ERROR
        assert (span.status.description, span.attributes["error.type"]) == (
            "ValueError: no luck",
            "ValueError",
        )
    assert by_name["execute_tool b", "s"].attributes["outlive.status"] == "interrupted"
    assert by_name["execute_tool c", "lost"].attributes["outlive.status"] == "interrupted"
    assert by_name["invoke_agent", "lost"].status.description == "lost to another process"


DIE = """
import os, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import outlive
from outlive import otel
store = outlive.open(sys.argv[1], on_event=otel.spans(TracerProvider().get_tracer("test")))
with store.run("t", run_id="r", agent="planner") as run:
    context = trace.get_current_span().get_span_context()
    print(f"{context.trace_id:032x} {context.span_id:016x}", flush=True)
    run.step("first", int)
    os._exit(9)
"""


def test_an_attempt_in_another_process_links_to_the_first(tracing, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    died = subprocess.run([sys.executable, "-c", DIE, url], capture_output=True, text=True, check=False)
    assert died.returncode == 9, died.stderr
    first = died.stdout.split()
    with outlive.open(url, on_event=tracing.spans) as store:
        assert [run.trace[:53] for run in store.runs()] == [f"00-{first[0]}-{first[1]}-"]
        for _ in range(2):
            store.recover({"planner": lambda run: run.release()})
        store.recover({"planner": lambda run: run.step("first", int)})
    attempts = tracing.finished("invoke_agent")
    assert [span.attributes["outlive.attempt"] for span in attempts] == [2, 3, 4]
    for span in attempts:
        (link,) = span.links
        assert [f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}"] == first
        assert f"{span.context.trace_id:032x}" != first[0]
    assert [span.attributes["outlive.previous"] for span in attempts] == ["died", "released", "released"]


@pytest.mark.parametrize("stored", ["", "x" * 55, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, None])
def test_a_damaged_trace_context_is_no_link(tracing, stored):
    tracing.spans(Event("claim", "t", run="r", attempt=2, trace=stored))
    tracing.spans(Event("end", "t", run="r", status="completed"))
    (span,) = tracing.finished()
    assert span.links == ()


def test_without_an_sdk_nothing_is_traced():
    with outlive.open("memory:", on_event=otel.spans()) as store:
        with store.run("t", run_id="r") as run:
            run.step("a", int)
        assert store.find_run("r").trace is None


@pytest.mark.parametrize("make", [otel.spans, otel.metrics])
def test_what_is_no_tracer_or_meter_is_refused(make):
    with pytest.raises(outlive.errors.BadArgument, match="of OpenTelemetry, not 'planner'"):
        make("planner")


def test_a_question_is_an_event_of_its_run(tracing):
    with outlive.open("memory:", on_event=tracing.spans) as store:
        with store.run("t", run_id="r") as run:
            run.ask("ok?")
        store.answer("r", "ok?", True)
        with store.run("t", run_id="r") as run:
            run.ask("ok?")
    first, second = tracing.finished("invoke_agent")
    assert [(event.name, event.attributes["outlive.step"]) for event in first.events] == [
        ("outlive.question", "ok?")
    ]
    assert [span.attributes["outlive.status"] for span in (first, second)] == ["waiting", "completed"]
    assert second.attributes["outlive.previous"] == "waiting"
    assert {"outlive.answer", "outlive.wake"} <= {span.name for span in tracing.finished()}


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_a_run_that_ended_in_another_thread_is_not_current_any_more(tracing):
    with outlive.open("memory:", on_event=tracing.spans) as store:
        with tracing.tracer.start_as_current_span("request") as request:
            runs = [store.run(id, run_id=id).start() for id in "abc"]
            assert trace.get_current_span().attributes["outlive.run"] == "c"
            in_a_thread(runs[2].complete)
            assert trace.get_current_span().attributes["outlive.run"] == "b"
            in_a_thread(runs[0].complete)  # not the innermost one
            assert trace.get_current_span().attributes["outlive.run"] == "b"
            in_a_thread(runs[1].complete)
            assert trace.get_current_span() is request
            assert trace.get_current_span(baggage.set_baggage("user", "ada")) is request
            with tracing.tracer.start_as_current_span("next"):
                store.run("u", run_id="u").start().complete()
    assert ("request", "next") in tracing.tree()
    (inner,) = [span for span in tracing.finished("invoke_agent") if span.attributes["outlive.run"] == "u"]
    assert inner.parent.span_id == next(s for s in tracing.finished() if s.name == "next").context.span_id


def test_contexts_of_ended_runs_form_no_chain(tracing):
    """A thread that starts runs which end elsewhere keeps none of them."""
    with outlive.open("memory:", on_event=tracing.spans) as store:
        for number in range(50):
            run = store.run("t", run_id=f"r-{number}").start()
            in_a_thread(run.complete)
        store.run("t", run_id="last").start()
        assert not isinstance(context.get_current().before, type(context.get_current()))
        store.find_run("last")
        store.cancel("last")
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_task_that_ends_a_run_of_another_task_leaves_no_context(tracing):
    async def main():
        async with outlive.open_async("memory:", on_event=tracing.spans) as store:
            run = await store.run("t", run_id="r").start()
            await asyncio.create_task(run.complete())
            assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(main())


def test_each_attempt_has_its_own_part_of_the_usage(tracing):
    def work(run):
        run.save({"n": 1}, usage={"input_tokens": 10, "cost": Decimal("0.5"), "model": "m"})
        if run.info.attempt == 1:
            run.release()
        elif run.info.attempt == 2 and run.ask("ok?"):
            run.save({"n": 2}, usage={"output_tokens": 3})

    with outlive.open("memory:", on_event=tracing.spans) as store:
        with store.run("t", run_id="r", agent="planner") as run:
            work(run)
        store.recover({"planner": work})
        store.answer("r", "ok?", True)
        store.recover({"planner": work})
        assert store.find_run("r").usage["input_tokens"] == 30
        lost = store.run("u", run_id="lost").start()
        lost.save({"n": 1}, usage={"input_tokens": 7})
        store.cancel("lost")
        with pytest.raises(outlive.LeaseLost):
            lost.save({"n": 2})
    used = [
        {name: value for name, value in span.attributes.items() if "usage" in name}
        for span in tracing.finished("invoke_agent")
    ]
    part = {names.GEN_AI_USAGE_INPUT_TOKENS: 10, "outlive.usage.cost": 0.5}
    assert used == [
        part,
        part,
        {**part, names.GEN_AI_USAGE_OUTPUT_TOKENS: 3},
        {names.GEN_AI_USAGE_INPUT_TOKENS: 7},
    ]


SUBMIT = """
import sys
from opentelemetry.sdk.trace import TracerProvider
import outlive
from outlive import otel
tracer = TracerProvider().get_tracer("test")
with outlive.open(sys.argv[1], on_event=otel.spans(tracer)) as store:
    with tracer.start_as_current_span("request") as span:
        context = span.get_span_context()
        print(f"{context.trace_id:032x} {context.span_id:016x}")
        store.submit("t", run_id="r", agent="planner")
    store.submit("u", run_id="untraced", agent="planner")
"""


def test_a_submitted_run_links_to_the_span_that_submitted_it(tracing, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    submitted = subprocess.run(
        [sys.executable, "-c", SUBMIT, url], capture_output=True, text=True, check=True
    )
    request = submitted.stdout.split()
    with outlive.open(url, on_event=tracing.spans) as store:
        assert store.find_run("r").trace.split("-")[1:3] == request
        assert store.find_run("untraced").trace is None
        store.recover(
            {"planner": lambda run: run.release() if run.info.attempt == 1 else None}, concurrency=1
        )
        store.recover({"planner": int}, concurrency=1)
    spans = [span for span in tracing.finished("invoke_agent") if span.attributes["outlive.run"] == "r"]
    assert [span.attributes["outlive.attempt"] for span in spans] == [1, 2]
    for span in spans:
        (link,) = span.links
        assert [f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}"] == request
        assert span.parent is None
        assert f"{span.context.trace_id:032x}" != request[0]


def test_a_watcher_can_store_only_a_trace_context(tracing):
    class Wrong(otel.Spans):
        def current_trace(self):
            return "x" * 100_000

    with outlive.open("memory:", on_event=Wrong(tracing.tracer)) as store:
        assert store.submit("t", run_id="r", agent="planner").trace is None
        assert store.find_run("r").trace is None


def test_a_start_that_failed_lends_its_span_to_no_other(tracing):
    with outlive.open("memory:", on_event=tracing.spans) as store:
        store.run("t", run_id="holder").start()
        with pytest.raises(outlive.ThreadBusy):
            store.run("t", run_id="r", agent="planner").start()
        store.cancel("holder")
        context = trace.SpanContext(1, 2, True, trace.TraceFlags(1))
        with trace.use_span(trace.NonRecordingSpan(context)):
            store.submit("t", run_id="r", agent="planner")
        store.recover({"planner": int}, concurrency=1)
    (span,) = tracing.finished("invoke_agent planner")
    assert [link.context.span_id for link in span.links] == [2]


# Metrics


class Measuring:
    def __init__(self):
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader])
        self.meter = self._provider.get_meter("test")
        self.metrics = otel.metrics(self.meter)

    def points(self, name):
        data = self._reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return [point for metric in found for point in metric.data.data_points]

    def value(self, name, **attributes):
        (value,) = [
            point.value
            for point in self.points(name)
            if point.attributes.items() >= {key.replace("_", "."): value for key, value in attributes.items()}.items()
        ]  # fmt: skip
        return value


@pytest.fixture
def measuring():
    return Measuring()


def test_what_a_store_does_is_counted(measuring):
    with outlive.open("memory:", on_event=[measuring.metrics]) as store:
        with store.run("t", run_id="r", agent="planner") as run:
            run.save({"text": "x" * 1000})
            run.step("ask", int)
            with pytest.raises(ZeroDivisionError):
                run.step("divide", lambda: 1 / 0)
        store.thread("t").load()
        with store.run("t", run_id="q", agent="planner") as run:
            run.ask("ok?")
        store.answer("q", "ok?", True)
        lost = store.run("u").start()
        store.cancel(lost.id)
        with pytest.raises(outlive.LeaseLost):
            lost.save({"n": 1})
    assert measuring.value("outlive.saves") == 1
    assert measuring.value("outlive.save.bytes") > 0
    (state,) = measuring.points("outlive.save.state_bytes")
    assert (state.count, state.sum > 1000) == (1, True)
    (duration,) = measuring.points("outlive.save.duration")
    assert (duration.count, duration.sum > 0) == (1, True)
    steps = {(point.attributes["gen_ai.tool.name"], point.attributes["outlive.status"]) for point in measuring.points("outlive.step.duration")}  # fmt: skip
    assert steps == {("ask", "done"), ("divide", "raised")}
    assert measuring.value("outlive.runs.ended", outlive_status="completed") == 1
    assert measuring.value("outlive.runs.ended", outlive_status="waiting") == 1
    assert measuring.value("outlive.fences.refused") == 1
    assert measuring.value("outlive.questions.asked") == measuring.value("outlive.questions.answered") == 1
    named = {name for point in measuring.points("outlive.runs.ended") for name in point.attributes}
    assert named == {"gen_ai.agent.name", "outlive.status"}


def test_a_takeover_is_a_recovery_and_a_resumed_wait_is_none(measuring, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    assert subprocess.run([sys.executable, "-c", DIE, url], capture_output=True, check=False).returncode == 9
    with outlive.open(url, on_event=measuring.metrics) as store:
        with store.run("t", run_id="r", agent="planner") as run:
            run.ask("ok?")
        store.answer("r", "ok?", True)
        with store.run("t", run_id="r", agent="planner") as run:
            run.ask("ok?")
    assert measuring.value("outlive.recoveries") == 1
    assert sum(point.value for point in measuring.points("outlive.runs.claimed")) == 2


def fill(store):
    """Leave a run of each status."""
    for id in ("completed", "released", "parked", "waiting"):
        with store.run(id, run_id=id, agent="planner") as run:
            if id == "waiting":
                run.ask("ok?")
            elif id == "released":
                run.release()
        if id == "parked":
            store.run("p", run_id="p").start()
            store.park("p")
    store.run("running", run_id="running").start()


WANTED = {"running": 1, "waiting": 1, "released": 1, "parked": 1}


def by_status(measuring):
    return {point.attributes["outlive.status"]: point.value for point in measuring.points("outlive.runs")}


def test_gauges_ask_the_store(measuring, monkeypatch):
    monkeypatch.setattr("outlive.otel.store_look._FRESH_S", -1.0)
    with outlive.open("memory:", tenant="acme") as store:
        measuring.metrics.observe(store)
        assert set(by_status(measuring).values()) == {0}
        fill(store)
        assert by_status(measuring) == WANTED
        assert measuring.value("outlive.runs.dead", outlive_tenant="acme") == 0
        assert measuring.value("outlive.runs.dead.age") == 0
        assert 0 < measuring.value("outlive.runs.released.age") < PATIENCE_S
        assert measuring.value("outlive.questions.open") == 1
        assert measuring.value("outlive.questions.open.age") > 0
        store.answer("waiting", "ok?", True)
        assert measuring.value("outlive.questions.open") == 0
        store.run("dead", run_id="dead", lease_s=0.2).start()
        store._store._heart._stop()  # as a process that hangs
        assert eventually(lambda: measuring.value("outlive.runs.dead") == 1)
        assert 0 < measuring.value("outlive.runs.dead.age") < PATIENCE_S
        with outlive.open("memory:", tenant="other") as second:
            measuring.metrics.observe(second)
            assert len(measuring.points("outlive.runs")) == 8
        assert len(measuring.points("outlive.runs")) == 4
    assert measuring.points("outlive.runs") == []
    with pytest.raises(outlive.errors.BadArgument, match="observe takes a store"):
        measuring.metrics.observe("memory:")


def stores_of(measuring, name="outlive.questions.open"):
    return {point.attributes["outlive.store"]: point.value for point in measuring.points(name)}


def test_gauges_tell_stores_apart(measuring, monkeypatch, tmp_path):
    """Also stores that two `metrics()` of one meter observe: the meter has each gauge once."""
    monkeypatch.setattr("outlive.otel.store_look._FRESH_S", -1.0)
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
    another = otel.metrics(measuring.meter)
    with outlive.open(first) as a, outlive.open(second) as b:
        measuring.metrics.observe(a)
        measuring.metrics.observe(a)
        another.observe(b)
        with a.run("t", run_id="r") as run:
            run.ask("ok?")
        assert stores_of(measuring) == {first: 1, second: 0}
        with outlive.open(first) as again:
            another.observe(again)  # the same store
            assert stores_of(measuring) == {first: 1, second: 0}
            a.close()
            assert stores_of(measuring) == {first: 1, second: 0}
        assert stores_of(measuring) == {second: 0}
    assert stores_of(measuring) == {}


def test_a_store_is_observed_by_a_name(measuring):
    with (
        outlive.open("memory:") as a,
        outlive.open("memory:") as b,
        outlive.open("memory:") as c,
        outlive.open("memory:", tenant="acme") as d,
    ):
        measuring.metrics.observe(a, name="orders")
        for store in (b, c):
            measuring.metrics.observe(store)
        with pytest.raises(outlive.errors.BadArgument, match="another store is observed as 'orders'"):
            measuring.metrics.observe(outlive.open("memory:"), name="orders")
        measuring.metrics.observe(d, name="orders")
        assert set(stores_of(measuring)) == {"orders", "memory:", "memory:#2"}
        assert len(measuring.points("outlive.questions.open")) == 4


def test_two_metrics_of_a_meter_count_in_one_counter(measuring):
    another = otel.metrics(measuring.meter)
    with (
        outlive.open("memory:", on_event=measuring.metrics) as a,
        outlive.open("memory:", on_event=another) as b,
    ):
        a.thread("t").save({"n": 1})
        b.thread("t").save({"n": 1})
    assert measuring.value("outlive.saves") == 2


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/store.db"])
def test_gauges_of_an_async_store_are_collected_by_any_thread(measuring, tmp_path, url):
    async def main():
        async with outlive.open_async(url.format(tmp_path)) as store:
            measuring.metrics.observe(store)
            run = await store.run("t", run_id="r").start()
            assert by_status(measuring)["running"] == 1  # in the thread of the event loop, too
            assert (await asyncio.to_thread(by_status, measuring))["running"] == 1
            await run.complete()

    asyncio.run(main())
    assert measuring.points("outlive.runs") == []


def test_a_store_that_cannot_be_reached_has_no_values(measuring, monkeypatch):
    async def unreachable(query, *, timeout_s=None):
        raise outlive.errors.StoreUnavailable("down")

    with outlive.open("memory:") as store:
        measuring.metrics.observe(store)
        with monkeypatch.context() as patched:
            patched.setattr(store._store._engine.backend, "entries", unreachable)
            assert measuring.points("outlive.runs") == []
        monkeypatch.setattr("outlive.otel.store_look._FRESH_S", -1.0)
        assert set(by_status(measuring).values()) == {0}


def test_spans_and_metrics_are_used_together(tracing, measuring):
    with outlive.open("memory:", on_event=[tracing.spans, measuring.metrics]) as store:
        store.thread("t").save({"n": 1})
    assert [span.name for span in tracing.finished()] == ["outlive.save"]
    assert measuring.value("outlive.saves") == 1
    for wrong in ([7], ["save"], {}):
        with pytest.raises(outlive.errors.BadArgument, match="on_event must be a function"):
            outlive.open("memory:", on_event=wrong)


def test_a_watcher_that_cannot_trace_does_not_stop_a_run(tracing):
    class Broken(otel.Spans):
        def begin_trace(self, thread, run, agent):
            raise RuntimeError("no")

    with outlive.open("memory:", on_event=Broken(tracing.tracer)) as store:
        with pytest.warns(UserWarning, match="on_event raised RuntimeError: no"):
            run = store.run("t", run_id="r").start()
        run.complete()
    assert tracing.finished("invoke_agent")[0].links == ()
