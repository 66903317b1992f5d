"""`OutliveDurability`: the calls of an agent's models and tools as steps of the current run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from pydantic_ai import RunContext, ToolApproved, ToolDenied
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, ToolDefinition

from outlive.adapters.common.current import Work, current_work
from outlive.adapters.common.ledger import is_inside_step, kept
from outlive.adapters.common.plain import jsonable
from outlive.adapters.common.questions import Decision, approval, ask_all, decision_of
from outlive.runs.waits import Question

Options = Mapping[str, Any]  # of `run.step`
_METADATA = "outlive"


class OutliveDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside a run: `Agent(model, name="planner", capabilities=[OutliveDurability()])`.

    Each response of a model and each result of a tool is a step, and the process that resumes the
    run does not repeat it. A tool call that needs an approval, or that is made elsewhere, is a
    question. Options of `run.step` for a tool are in its metadata: `{"outlive": {"effect": True}}`.
    Outside a run the agent works as without this capability. Names of agents and tools are stored:
    a run that is under way needs those it began with.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="outlive",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        tool_config_key=_METADATA,
    )

    @property
    def in_durable_context(self) -> bool:
        """Tell whether there is a current run, and this is no part of a step."""
        return _durable_work() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Options | None]:
        """Return what makes operations steps."""
        return _Steps(
            agent_name=self.name,
            default_model_id=self.default_model_id,
            config=RoleBasedOperationConfig[Options | None](
                model={}, event=None, capability={}, tool={}, resolve_tool=_tool_options
            ),
        )

    def get_default_run_id(self) -> str | None:
        """Return the id of the run, with a number for each time that it runs an agent."""
        work = _durable_work()
        return None if work is None else f"{work.run.id}:{_next(work, 'agent run')}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of the thread."""
        work = _durable_work()
        return None if work is None else work.run.info.thread

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask a person. Without all answers the run waits."""
        work = _durable_work()
        return None if work is None else await _ask(work, requests)


def _durable_work() -> Work | None:
    return None if is_inside_step() else current_work()


def _next(work: Work, name: str) -> int:
    work.counts[name] += 1
    return work.counts[name]


# Steps


class _Steps(JournalCallableOperationBackend[Options | None]):
    async def execute(
        self,
        *,
        operation_id: object,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: Options | None,
    ) -> object:
        """Return the stored result of an operation, or call it. An event is passed on again by each attempt.

        A streamed request is the same step as one that is not: another process may resume without a
        stream.
        """
        if config is None:
            return await body()
        if isinstance(operation_id, ModelRequestId):
            request = replace(operation_id, streaming=False)
            name = self._namer.invocation_name(request, label=None).operation_name
        return await kept(name, body, key=_call_id(cache_key), **config)


def _call_id(cache_key: tuple[object, ...]) -> str | None:
    for part in cache_key:
        if isinstance(part, RunContext) and part.tool_call_id is not None:
            return part.tool_call_id
    return None


def _tool_options(operation: object, tool: object | None, name: str) -> Options | Literal[False]:
    """Return the options in the metadata of a tool; False: it is called without a step."""
    definition = cast("ToolDefinition | None", getattr(tool, "tool_def", None))
    options: Any = ((definition.metadata if definition else None) or {}).get(_METADATA, {})
    return options if options is False or isinstance(options, Mapping) else {}


# Questions


async def _ask(work: Work, requests: DeferredToolRequests) -> DeferredToolResults:
    results = DeferredToolResults()
    questions: dict[str, Question] = {}
    names: dict[str, str] = {}
    for call in [*requests.approvals, *requests.calls]:
        is_approval = call in requests.approvals
        if is_approval and (decision := _standing_decision(work, call.tool_name)) is not None:
            results.approvals[call.tool_call_id] = _verdict(decision)
            continue
        name, question = _question(call, requests.metadata.get(call.tool_call_id))
        questions[name] = question if is_approval else Question(question.payload)
        names[call.tool_call_id] = name
    answers = await ask_all(work, questions) if questions else {}
    for call in requests.approvals:
        if call.tool_call_id in names:
            decision = _noted(work, call.tool_name, answers[names[call.tool_call_id]])
            results.approvals[call.tool_call_id] = _verdict(decision)
    for call in requests.calls:
        results.calls[call.tool_call_id] = answers[names[call.tool_call_id]]
    return results


def _question(call: ToolCallPart, metadata: Any) -> tuple[str, Question]:
    more = {"metadata": jsonable(metadata)} if metadata else {}
    return approval(call.tool_name, call.tool_call_id, call.args_as_dict(), **more)


def _verdict(decision: Decision) -> ToolApproved | ToolDenied:
    if decision.approve:
        return ToolApproved()
    return ToolDenied(decision.message) if decision.message else ToolDenied()


def _noted(work: Work, tool: str, answer: Any) -> Decision:
    decision = decision_of(answer)
    if decision.always:
        work.counts[f"always:{tool}"] = 1 if decision.approve else -1
    return decision


def _standing_decision(work: Work, tool: str) -> Decision | None:
    """Return what a person decided for all calls of a tool."""
    vote = work.counts[f"always:{tool}"]
    return Decision(vote > 0) if vote else None
