"""Invocations of graphs as runs: known while they are going on, and taken over by another process when theirs dies.

`run` begins a run of outlive (leased, exclusive on its thread) and invokes the graph with a saver whose writes carry the
run's fence: once another process has taken the run over, nothing that the former one still writes is stored. The input
is kept in the run's record, so a crash before the first checkpoint loses nothing. `resume` is what a recovery calls:
it goes on from the last checkpoint of the run, or with its input when there is none yet.

    store.recover({"assistant": lambda run: resume(graph, run)})

A graph that stops to ask a person (`interrupt`) ends its run; the answer, `Command(resume=...)`, is the input of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from outlive.adapters.langgraph.config import thread_of
from outlive.adapters.langgraph.saver import OutliveSaver
from outlive.adapters.langgraph.values.codec import ValueCodec
from outlive.adapters.langgraph.values.serializer import StrictSerializer
from outlive.arguments import check_id, check_run
from outlive.backend import HistoryQuery
from outlive.errors import BadArgument, HeadMoved, RunEnded
from outlive.runs.lease import RUN, RunInfo
from outlive.runs.run import AsyncRun
from outlive.runtime.loop import AsyncRuntime
from outlive.runtime.runtime import new_id, run_now
from outlive.store import AsyncStore
from outlive.sync.facades import Run, Store

_MARK = "langgraph"  # [mark, kind, bytes]: a value that the codec of the graph's serializer wrote
_DEFAULTS = {"durability": "sync"}
_PAGE = 64


def run(
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

    With the id of a run that has ended its output is given back, and nothing is run. `agent` (default: the graph's name) is
    what `store.recover` chooses its handler by. `options` go to `graph.invoke`, with durability="sync" unless they
    say otherwise. Raises ThreadBusy while another run has this thread, LeaseLost when this one was taken over.
    """
    inner = _store_of(graph, store)._store
    info = _info(inner, graph, input, thread_id, run_id, agent, lease_s, max_attempts, code_version)
    with Run(inner._run(info, is_bare=True, is_named=run_id is not None)) as begun:
        going = _Going(graph, begun._run, config)
        return going.ended_with() if begun.is_finished else going.go_on(options)


def resume(graph: Any, run: Run, *, config: RunnableConfig | None = None, **options: Any) -> Any:
    """Go on with a run of a graph from where it is, and return its output."""
    return _Going(graph, run._run, config).go_on(options)


async def arun(
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
    """Invoke a graph as a run of `store`, which was opened by `outlive.open_async`; see `run`."""
    if not isinstance(store, AsyncStore):
        raise BadArgument("arun needs the store: arun(..., store=await outlive.open_async(url))")
    info = _info(store, graph, input, thread_id, run_id, agent, lease_s, max_attempts, code_version)
    async with store._run(info, is_bare=True, is_named=run_id is not None) as begun:
        going = _Going(graph, begun, config)
        return await going.aended_with() if begun.is_finished else await going.ago_on(options)


async def aresume(graph: Any, run: AsyncRun, *, config: RunnableConfig | None = None, **options: Any) -> Any:
    """Go on with a run of a graph from where it is, and return its output."""
    return await _Going(graph, run, config).ago_on(options)


@dataclass(frozen=True, slots=True)
class _Standing:
    """The checkpoint that a run goes on from."""

    id: str
    passed_by: str | None = (
        None  # the checkpoint of others who went on from there, with an input or answer of their own
    )


class _Going:
    """A graph whose checkpoints are written in the name of a run."""

    def __init__(self, graph: Any, run: AsyncRun, config: RunnableConfig | None) -> None:
        serde = _serde_of(graph)
        self._run = run
        home = cast(AsyncStore, run.thread._home)
        self._codec = _codec(home, serde)
        store = home if isinstance(run.engine.runtime, AsyncRuntime) else Store(home)
        epoch, fence = run.rank
        saver = OutliveSaver(store, serde=serde)._fenced((RUN, run.id, epoch, fence) if fence else None)
        self.graph = graph.copy({"checkpointer": saver})
        self.config = _config(config, run.info)

    def go_on(self, options: Mapping[str, Any]) -> Any:
        """Invoke the graph with the run's input, or let it go on from its last checkpoint."""
        found = run_now(self._standing())
        state = None if found is None else self.graph.get_state(self._at(found.id))
        if found is not None and self._is_over(found, state):
            self._run.info.result = [_MARK, "checkpoint", found.id]
            return self._shown(state)
        output = self.graph.invoke(self._input(found), self.config, **{**_DEFAULTS, **options})
        self._run.info.result = run_now(self._result())
        return output

    async def ago_on(self, options: Mapping[str, Any]) -> Any:
        """Invoke the graph with the run's input, or let it go on from its last checkpoint."""
        found = await self._standing()
        state = None if found is None else await self.graph.aget_state(self._at(found.id))
        if found is not None and self._is_over(found, state):
            self._run.info.result = [_MARK, "checkpoint", found.id]
            return self._shown(state)
        output = await self.graph.ainvoke(self._input(found), self.config, **{**_DEFAULTS, **options})
        self._run.info.result = await self._result()
        return output

    def ended_with(self) -> Any:
        """Return the output of a run that has ended."""
        return self._shown(self.graph.get_state(self._last()))

    async def aended_with(self) -> Any:
        """Return the output of a run that has ended."""
        return self._shown(await self.graph.aget_state(self._last()))

    async def _standing(self) -> _Standing | None:
        """Find out how far the run has come; None when its input is in no checkpoint yet."""
        backend, key, id = self._run.engine.backend, self._run.key, self._run.id
        _, own = await backend.history(HistoryQuery(key, "", limit=1, run=id))
        if not own:
            return None
        head, before = own[0], None
        while True:
            _, page = await backend.history(HistoryQuery(key, "", before=before, limit=_PAGE))
            newer = [record for record in page if record.order > own[0].order]
            for record in newer:
                if record.run != id and record.source in ("input", "loop"):
                    return _Standing(own[0].id, passed_by=record.id)
            head = page[0] if before is None and page else head  # perhaps a person has edited the state
            if not newer or len(newer) < len(page):
                return _Standing(head.id)
            before = newer[-1].order

    def _is_over(self, found: _Standing, state: Any) -> bool:
        """Tell whether there is nothing left to do, seen from a checkpoint that was named by its id.

        (Asked without an id, LangGraph leaves out of `next` what was written but is in no checkpoint yet, as if it were done.)
        """
        if not state.next or (found.passed_by and state.interrupts):
            return True
        if found.passed_by is not None:  # to go on from there would fork the thread
            raise HeadMoved(self._run.info.thread, "", found.id, found.passed_by)
        return False

    def _input(self, found: _Standing | None) -> Any:
        return None if found is not None else _unpack(self._codec, self._run.info.prompt)

    async def _result(self) -> list[Any]:
        """Return what the run is remembered by: its last checkpoint, which has its output. (A copy would grow with the thread.)"""
        reading = await self._run.engine.backend.read(self._run.key, "", chunks=False)
        return [_MARK, "checkpoint", reading.record.id if reading.record is not None else None]

    def _last(self) -> RunnableConfig:
        result = self._run.info.result
        if not isinstance(result, list) or result[:2] != [_MARK, "checkpoint"]:
            raise RunEnded(self._run.id, self._run.status)
        return self._at(result[2])

    def _at(self, id: str | None) -> RunnableConfig:
        return {"configurable": {"thread_id": self._run.info.thread, "checkpoint_id": id}}

    def _shown(self, state: Any) -> Any:
        """Return what an invocation gives, of the state that it ended with."""
        channels = self.graph.output_channels
        if isinstance(channels, str):
            return state.values.get(channels) if isinstance(state.values, dict) else state.values
        shown = {name: value for name, value in state.values.items() if name in channels}
        return {**shown, "__interrupt__": list(state.interrupts)} if state.interrupts else shown


def _config(config: RunnableConfig | None, info: RunInfo) -> RunnableConfig:
    given: RunnableConfig = config or {}
    configurable = {**given.get("configurable", {}), "thread_id": info.thread}
    metadata = {**given.get("metadata", {}), "run_id": info.id}
    return {**given, "configurable": configurable, "metadata": metadata}


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
        prompt=_pack(_codec(store, _serde_of(graph)), input),
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
    raise BadArgument("run needs a store: run(..., store=outlive.open(url)), or a graph with an OutliveSaver")


def _serde_of(graph: Any) -> SerializerProtocol:
    saver = getattr(graph, "checkpointer", None)
    return saver.serde if isinstance(saver, BaseCheckpointSaver) else StrictSerializer()


def _codec(store: AsyncStore, serde: SerializerProtocol) -> ValueCodec:
    return ValueCodec(store._engine.codec.registry, maybe_add_typed_methods(serde))


def _pack(codec: ValueCodec, value: Any) -> list[Any]:
    kind = "open" if codec.is_open else "sealed"
    return [_MARK, kind, codec.pack(value if codec.is_open else codec.seal(value, None, "input"), "input")]


def _unpack(codec: ValueCodec, stored: Any) -> Any:
    if not isinstance(stored, list) or len(stored) != 3 or stored[0] != _MARK:
        raise BadArgument("this run was not begun by outlive.adapters.langgraph.run")
    return codec.unpack(stored[2])
