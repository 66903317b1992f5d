"""Calls of tools of ADK as steps of the current run."""

from __future__ import annotations

from typing import Any

from google.adk.events import EventActions
from google.adk.plugins import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from outlive.adapters.common.ledger import kept
from outlive.adapters.common.plain import jsonable


class KeptTools(BasePlugin):
    """Makes each call of a tool a step. The callbacks of agents and of other plugins are called as before."""

    def __init__(self) -> None:
        super().__init__(name="outlive_kept_tools")

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        """Let the tool that is about to be called ask the ledger first."""
        if not isinstance(tool.run_async, _Kept):
            tool.run_async = _Kept(tool)  # type: ignore[method-assign]


class _Kept:
    """Calls a tool once for each id of a call, and once more when a person has confirmed that call."""

    def __init__(self, tool: BaseTool) -> None:
        self._name = tool.name
        self._run = tool.run_async

    async def __call__(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        was_called = False

        async def call() -> Any:
            nonlocal was_called
            was_called = True
            return await self._run(args=args, tool_context=tool_context)

        def dump(result: Any) -> Any:
            actions = tool_context.actions.model_dump(mode="json", exclude_defaults=True)
            return {"result": jsonable(result), "actions": actions}

        answer = "" if tool_context.tool_confirmation is None else ":confirmed"
        key = f"{tool_context.function_call_id}{answer}"
        stored = await kept(f"tool:{self._name}", call, key=key, dump=dump)
        if was_called:
            return stored
        _act(tool_context, EventActions.model_validate(stored["actions"]))
        return stored["result"]


def _act(tool_context: ToolContext, actions: EventActions) -> None:
    """Do what a stored call did beside its result, such as changes of the state."""
    for name in actions.model_fields_set:
        value = getattr(actions, name)
        if name == "state_delta":
            for key, part in value.items():
                tool_context.state[key] = part
        elif isinstance(value, dict):
            getattr(tool_context.actions, name).update(value)
        else:
            setattr(tool_context.actions, name, value)
