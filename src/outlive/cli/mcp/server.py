"""Serves the tools over standard input and output, until the client closes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
from anyio import to_thread
from mcp.server import Server
from mcp.server.stdio import stdio_server

from outlive import __version__
from outlive.cli.mcp.parameters import input_schema
from outlive.cli.mcp.tools import INSTRUCTIONS, Tool, call_tool, offered

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from outlive.cli.context import Call
    from outlive.cli.mcp.desk import Desk

_AT_ONCE = 2  # calls; each may hold a large state


def serve(call: Call, desk: Desk) -> None:
    """Serve the tools until the client closes standard input."""
    anyio.run(_serve, call, desk)


async def _serve(call: Call, desk: Desk) -> None:
    server = make_server(call, desk)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def make_server(call: Call, desk: Desk) -> Server[Any]:
    """Return the server: it lists the tools, and calls one in a thread."""
    turns = anyio.CapacityLimiter(_AT_ONCE)

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = offered(write=desk.is_writable)
        return types.ListToolsResult(tools=[_described(name, tool) for name, tool in tools.items()])

    async def perform(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        text, is_error = await to_thread.run_sync(
            call_tool, call, desk, params.name, params.arguments or {}, limiter=turns
        )
        # Only text: structured content would bring characters unescaped to a screen.
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)

    return Server(
        "outlive", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=perform
    )  # fmt: skip


def _described(name: str, tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=not tool.is_write,
        destructive_hint=tool.is_destructive,
        idempotent_hint=not tool.is_write,
        open_world_hint=False,
    )
    return types.Tool(
        name=name, description=tool.description, input_schema=input_schema(tool.parameters), annotations=hints
    )
