"""The names of attributes, those of OpenTelemetry's GenAI conventions and our own.

A run is the invocation of an agent, a step the execution of a tool, and a thread the conversation.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from outlive.errors import ExtraMissing
from outlive.events import Event

OPERATION, AGENT, CONVERSATION, TOOL = (
    "gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.conversation.id", "gen_ai.tool.name",
)  # fmt: skip
INVOKE_AGENT, EXECUTE_TOOL = "invoke_agent", "execute_tool"
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
_OWN = (
    "thread", "namespace", "checkpoint", "run", "status", "attempt", "previous", "step", "key",
    "state_bytes", "new_bytes", "error",
)  # fmt: skip
_MOST = 20  # of usage


def api(module: str) -> Any:
    """Return a module of OpenTelemetry. Raises ExtraMissing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ExtraMissing("OpenTelemetry", "otel") from error


def of_event(event: Event) -> dict[str, Any]:
    """Return what an event tells as attributes."""
    values = {f"outlive.{name}": getattr(event, name) for name in _OWN}
    values |= {AGENT: event.agent, CONVERSATION: event.thread}
    return {name: value for name, value in values.items() if value not in (None, "")}


def of_usage(usage: Mapping[str, Any] | None, before: Mapping[str, Any]) -> dict[str, int | float]:
    """Return what was used since `before` as attributes: the numbers in the usage of a run that have grown."""
    used = {
        name: amount
        for name, value in (usage or {}).items()
        if isinstance(name, str) and (amount := _number(value) - _number(before.get(name)))
    }
    return {_USAGE.get(name, f"outlive.usage.{name}"): used[name] for name in list(used)[:_MOST]}


def _number(value: object) -> int | float:
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
