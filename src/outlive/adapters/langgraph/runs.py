"""Invocations of graphs as runs, which another process takes over when theirs dies.

`run_graph` starts a run (leased, exclusive on its thread) and invokes the graph with a saver whose
writes carry the run's fence: after another process has taken the run over, nothing that the first
one still writes is stored. The input is kept in the run's record, so a crash before the first
checkpoint loses nothing. `resume_graph` is what a recovery calls: it continues from the last
checkpoint of the run, or with its input when there is none yet.

    store.recover({"assistant": lambda run: resume_graph(graph, run)})

A graph that stops to ask a person (`interrupt`) makes its run wait: see `interrupts.py`. The answer
comes by `store.answer` from any process, or as the input of `run_graph`, `Command(resume=...)`.
Then the same run continues.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from outlive.adapters.langgraph.config import thread_of
from outlive.adapters.langgraph.interrupts import answer_run, questions_of, resumed_by
from outlive.adapters.langgraph.packed_values import MARK, pack, unpack
from outlive.adapters.langgraph.saver import OutliveSaver
from outlive.adapters.langgraph.session import Session
from outlive.adapters.langgraph.values.codec import ValueCodec
from outlive.adapters.langgraph.values.serializer import StrictSerializer
from outlive.arguments import check_id, check_run
from outlive.backend import Fence, HistoryQuery
from outlive.errors import BadArgument, HeadMoved, RunEnded
from outlive.runs.lease import RUN, RunInfo
from outlive.runs.run import AsyncRun
from outlive.runs.waits import Question
from outlive.runtime.loop import AsyncRuntime
from outlive.runtime.runtime import new_id, run_now
from outlive.store import AsyncStore
from outlive.sync.run import Run
from outlive.sync.store import Store

_DEFAULTS = {"durability": "sync"}
_PAGE = 64


def run_graph(
    graph: Any,
    input: Any,
    *,
    thread_id: str | int,
    store: Store | None = None,
    run_id: str | None = None,
    agent: str | None = None,
    config: RunnableConfig | None = None,
    lease_s: float = 30.0,
    max_attempts: int = 5,
    code_version: str | None = None,
    **options: Any,
) -> Any:
    """Invoke a graph as a run of `store` (default: the store of its checkpointer) and return its output.

    With the `run_id` of a run that has ended, return that run's output and invoke nothing. A graph
    that stops at `interrupt()` makes its run wait: the output has the interrupts, as with
    `graph.invoke`. `store.answer`, or another call with `Command(resume=...)`, continues that run.
    `store.recover` chooses a handler by `agent` (default: the graph's name). `options` go to
    `graph.invoke`, with durability="sync" unless you pass another one. Raises ThreadBusy while
    another run has this thread, LeaseLost when another process has taken this run over.
    """
    inner = _store_of(graph, store)._store
    info = _info(inner, graph, input, thread_id, run_id, agent, lease_s, max_attempts, code_version)
    is_named = run_now(answer_run(inner, info, input, _codec_of(inner, graph), is_named=run_id is not None))
    with Run(inner._run(info, is_bare=True, is_named=is_named)) as started:
        graph_run = _GraphRun(graph, started._run, config, options)
        return graph_run.stored_output() if started.is_finished else graph_run.invoke()
    return graph_run.output  # it waits


def resume_graph(graph: Any, run: Run, *, config: RunnableConfig | None = None, **options: Any) -> Any:
    """Continue a run of a graph from its last checkpoint, and return its output."""
    return _GraphRun(graph, run._run, config, options).invoke()


async def arun_graph(
    graph: Any,
    input: Any,
    *,
    thread_id: str | int,
    store: AsyncStore | None = None,
    run_id: str | None = None,
    agent: str | None = None,
    config: RunnableConfig | None = None,
    lease_s: float = 30.0,
    max_attempts: int = 5,
    code_version: str | None = None,
    **options: Any,
) -> Any:
    """Invoke a graph as a run of `store`, which `outlive.open_async` has opened; see `run_graph`."""
    if not isinstance(store, AsyncStore):
        raise BadArgument("arun_graph needs the store: arun_graph(..., store=await outlive.open_async(url))")
    info = _info(store, graph, input, thread_id, run_id, agent, lease_s, max_attempts, code_version)
    is_named = await answer_run(store, info, input, _codec_of(store, graph), is_named=run_id is not None)
    async with store._run(info, is_bare=True, is_named=is_named) as started:
        graph_run = _GraphRun(graph, started, config, options)
        return await graph_run.astored_output() if started.is_finished else await graph_run.ainvoke()
    return graph_run.output  # it waits


async def aresume_graph(
    graph: Any, run: AsyncRun, *, config: RunnableConfig | None = None, **options: Any
) -> Any:
    """Continue a run of a graph from its last checkpoint, and return its output."""
    return await _GraphRun(graph, run, config, options).ainvoke()


@dataclass(frozen=True, slots=True)
class _ResumePoint:
    """The checkpoint that a run continues from."""

    id: str
    # A checkpoint of another invocation, which continued from there with its own input or answer.
    passed_by: str | None = None


class _GraphRun:
    """A graph whose saver writes checkpoints under the fence of a run."""

    def __init__(
        self, graph: Any, run: AsyncRun, config: RunnableConfig | None, options: Mapping[str, Any]
    ) -> None:
        serde = _serde_of(graph)
        self._run = run
        owner = cast(AsyncStore, run.thread._store)
        self._codec = Session.of(owner, serde).codec
        store = owner if isinstance(run._engine.runtime, AsyncRuntime) else Store(owner)
        epoch, number = run._rank
        fence = Fence(RUN, run.id, epoch, number) if number else None
        saver = OutliveSaver(store, serde=serde)._fenced(fence)
        self.graph = copy.copy(graph)  # graph.copy() would lose the class of its output
        self.graph.checkpointer = saver
        self.config = _config(config, run.info)
        self._options = {**_DEFAULTS, **options}
        self.output: Any = None  # of the last invocation
        self._answered: set[str] = set()  # names of questions

    def invoke(self) -> Any:
        """Invoke the graph with the run's input, or continue from its last checkpoint."""
        point = run_now(self._resume_point())
        state = None if point is None else self.graph.get_state(self._at(point.id))
        if point is not None and self._is_over(point, state):
            self._run.info.result = [MARK, "checkpoint", point.id]
            return self._output_of(state)
        input = self._input(point)
        questions = {} if state is None else questions_of(state, self._codec)
        self.output = None if state is None else self._output_of(state)
        while True:
            if questions:
                input = run_now(self._ask(questions))
            self.output = self.graph.invoke(input, self.config, **self._options)
            questions = questions_of(self.graph.get_state(self.config), self._codec)
            if not questions:
                self._run.info.result = run_now(self._result())
                return self.output

    async def ainvoke(self) -> Any:
        """Invoke the graph with the run's input, or continue from its last checkpoint."""
        point = await self._resume_point()
        state = None if point is None else await self.graph.aget_state(self._at(point.id))
        if point is not None and self._is_over(point, state):
            self._run.info.result = [MARK, "checkpoint", point.id]
            return self._output_of(state)
        input = self._input(point)
        questions = {} if state is None else questions_of(state, self._codec)
        self.output = None if state is None else self._output_of(state)
        while True:
            if questions:
                input = await self._ask(questions)
            self.output = await self.graph.ainvoke(input, self.config, **self._options)
            questions = questions_of(await self.graph.aget_state(self.config), self._codec)
            if not questions:
                self._run.info.result = await self._result()
                return self.output

    async def _ask(self, questions: dict[str, Question]) -> Any:
        """Return what continues the graph. Raises RunSuspended, which makes the run wait, without all answers."""
        if not self._answered.isdisjoint(questions):
            raise BadArgument(
                "a node calls interrupt() more than once, and this version of LangGraph gives all of them the same id; "
                "update langgraph, or ask once in each node"
            )
        # The id says which interrupt it is. Its payload may look different in another process: the
        # code of a model may have changed since, and a set has another order.
        first = {name: self._run._waits.first_asked(name) or asked for name, asked in questions.items()}
        answers = await self._run.ask_all(first)
        self._answered |= first.keys()
        return resumed_by(first, answers, self._codec)

    def stored_output(self) -> Any:
        """Return the output of a run that has ended."""
        return self._output_of(self.graph.get_state(self._last()))

    async def astored_output(self) -> Any:
        """Return the output of a run that has ended."""
        return self._output_of(await self.graph.aget_state(self._last()))

    async def _resume_point(self) -> _ResumePoint | None:
        """Find the checkpoint to continue from; None when the input is in no checkpoint yet."""
        backend, key, id = self._run._engine.backend, self._run._key, self._run.id
        _, own = await backend.history(HistoryQuery(key, "", limit=1, run=id))
        if not own:
            return None
        head, before = own[0], None
        while True:
            _, page = await backend.history(HistoryQuery(key, "", before=before, limit=_PAGE))
            newer = [record for record in page if record.order > own[0].order]
            for record in newer:
                if record.run != id and record.source in ("input", "loop"):
                    return _ResumePoint(own[0].id, passed_by=record.id)
            head = page[0] if before is None and page else head  # a person may have edited the state
            if not newer or len(newer) < len(page):
                return _ResumePoint(head.id)
            before = newer[-1].order

    def _is_over(self, point: _ResumePoint, state: Any) -> bool:
        """Tell whether there is nothing left to do; `state` is that of a checkpoint named by its id.

        (Without an id, LangGraph leaves tasks out of `next` whose writes are stored but in no
        checkpoint yet.)
        """
        if not state.next or (point.passed_by and state.interrupts):
            return True
        if point.passed_by is not None:  # continuing from there would fork the thread
            raise HeadMoved(self._run.info.thread, "", point.id, point.passed_by)
        return False

    def _input(self, point: _ResumePoint | None) -> Any:
        return None if point is not None else unpack(self._codec, self._run.info.prompt)

    async def _result(self) -> list[Any]:
        """Return the result to store: the last checkpoint, which has the output.

        (A copy would grow with the thread.)
        """
        reading = await self._run._engine.backend.read(self._run._key, "", chunks=False)
        return [MARK, "checkpoint", reading.record.id if reading.record is not None else None]

    def _last(self) -> RunnableConfig:
        result = self._run.info.result
        if not isinstance(result, list) or result[:2] != [MARK, "checkpoint"]:
            raise RunEnded(self._run.id, self._run.status)
        return self._at(result[2])

    def _at(self, id: str | None) -> RunnableConfig:
        return {"configurable": {"thread_id": self._run.info.thread, "checkpoint_id": id}}

    def _output_of(self, state: Any) -> Any:
        """Return what an invocation returns that ends with a state."""
        channels, values = self.graph.output_channels, state.values
        if isinstance(channels, str):
            output = values.get(channels) if isinstance(values, dict) else values
        else:
            output = {name: value for name, value in values.items() if name in channels}
        if self._options.get("version") == "v2":
            return self._typed(output, state.interrupts)
        if state.interrupts and isinstance(output, dict):
            return {**output, "__interrupt__": list(state.interrupts)}
        return {"__interrupt__": list(state.interrupts)} if state.interrupts else output

    def _typed(self, output: Any, interrupts: tuple[Any, ...]) -> Any:
        """Return an output as `version="v2"` does: with the class of the graph's output, apart from interrupts."""
        from langgraph.types import GraphOutput  # the extra needs only langgraph-checkpoint

        mapper = getattr(self.graph, "_output_mapper", None)
        return GraphOutput(value=mapper(output) if mapper else output, interrupts=interrupts)


def _config(config: RunnableConfig | None, info: RunInfo) -> RunnableConfig:
    base: RunnableConfig = config or {}
    configurable = {**base.get("configurable", {}), "thread_id": info.thread}
    metadata = {**base.get("metadata", {}), "run_id": info.id}
    return {**base, "configurable": configurable, "metadata": metadata}


def _info(
    store: AsyncStore,
    graph: Any,
    input: Any,
    thread_id: str | int,
    run_id: str | None,
    agent: str | None,
    lease_s: float,
    max_attempts: int,
    code_version: str | None,
) -> RunInfo:
    check_run(lease_s, 0, max_attempts)
    return RunInfo(
        id=new_id() if run_id is None else check_id("run_id", run_id),
        thread=thread_of(thread_id),
        agent=agent or graph.get_name(),
        prompt=pack(_codec_of(store, graph), input, "input"),
        max_attempts=max_attempts,
        lease_s=float(lease_s),
        code_version=code_version,
    )


def _store_of(graph: Any, store: Store | None) -> Store:
    if isinstance(store, Store):
        return store
    saver = getattr(graph, "checkpointer", None)
    if store is None and isinstance(saver, OutliveSaver):
        return Store(saver._shared.sync)
    raise BadArgument(
        "run_graph needs a store: run_graph(..., store=outlive.open(url)), or a graph with an OutliveSaver"
    )


def _codec_of(store: AsyncStore, graph: Any) -> ValueCodec:
    return Session.of(store, _serde_of(graph)).codec


def _serde_of(graph: Any) -> SerializerProtocol:
    saver = getattr(graph, "checkpointer", None)
    return saver.serde if isinstance(saver, BaseCheckpointSaver) else StrictSerializer(strict=False)
