"""The conversation in a state: messages of OpenAI, Anthropic, LangChain, Pydantic AI and Google, in one shape.

They are recognised by their layout alone. What is not understood is shown as a value, never left
out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from outlive.dataclass import dataclass
from outlive.format.diff import join_path
from outlive.view.graph import GraphState
from outlive.view.messages import Message, read_messages
from outlive.view.opaque import flatten_models, unwrap
from outlive.view.values import one_line

_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "developer": "system", "function": "tool"}
_PARTS = {"user-prompt": "user", "system-prompt": "system", "tool-return": "tool", "retry-prompt": "tool"}
_CALLS = ("tool_use", "tool_call", "function_call", "tool-call", "function")
_RESULTS = ("tool_result", "tool-return", "function_response", "tool_response")
_TEXTS = ("text", "input_text", "output_text")
_THOUGHTS = ("thinking", "reasoning")
_DEPTH = 2  # levels of a state in which messages are looked for


@dataclass(slots=True)
class Block:
    """A part of a turn. `kind` is text, thought, call, result or value; a call may have its `result`."""

    kind: str
    text: str = ""
    name: str = ""
    id: str = ""
    result: Block | None = None
    at: int = 0  # the position of the message that has it


@dataclass(slots=True)
class Turn:
    """A message: who speaks, and what."""

    role: str
    path: str
    blocks: list[Block] = field(default_factory=list)
    name: str = ""
    at: int = 0  # its position in the list


@dataclass(slots=True)
class Conversation:
    """A list of messages at a place of a state."""

    path: str
    turns: list[Turn]

    def join_results(self) -> list[Turn]:
        """Return the turns with the result of each call beside it; a turn of such results alone is left out."""
        calls: dict[str, Block] = {}
        shown = []
        for at, turn in enumerate(self.turns):
            kept = []
            for block in turn.blocks:
                block.at = at
                call = calls.get(block.id) if block.kind == "result" and block.id else None
                if call is not None and call.result is None:
                    call.result = block
                else:
                    kept.append(block)
                if block.kind == "call" and block.id:
                    calls[block.id] = block
            if kept or not turn.blocks:
                shown.append(Turn(turn.role, turn.path, kept, turn.name, at))
        return shown


def read_conversations(state: Any, graph: GraphState | None = None) -> list[Conversation]:
    """Return the lists of messages in a state; a graph's own are read from its channels."""
    root = flatten_models(state) if graph is None else graph.values
    return list(_search(unwrap(root), "", _DEPTH))


def _search(value: Any, path: str, depth: int) -> Iterator[Conversation]:
    turns = _read_turns(value, path)
    if turns is not None:
        yield Conversation(path or "state", turns)
        return
    value = unwrap(value)
    if isinstance(value, dict) and depth:
        for key, item in value.items():
            yield from _search(item, join_path(path, key), depth - 1)


def _read_turns(value: Any, path: str) -> list[Turn] | None:
    stored = read_messages(value)
    if stored is not None and stored:
        return [_of_langchain(message, f"{path}[{at}]") for at, message in enumerate(stored)]
    items = unwrap(value)
    if not isinstance(items, list) or not items:
        return None
    turns = [_read_turn(unwrap(item), f"{path}[{at}]") for at, item in enumerate(items)]
    known = [turn for turn in turns if turn is not None]
    return known if len(known) == len(turns) else None


def _read_turn(item: Any, path: str) -> Turn | None:
    if not isinstance(item, dict):
        return None
    inner = unwrap(item.get("message"))
    if isinstance(inner, dict):  # an entry of a log, with a message in it
        return _read_turn(inner, join_path(path, "message"))
    parts = unwrap(item.get("parts"))
    if isinstance(parts, list) and item.get("kind") in ("request", "response"):
        return _of_pydantic(item, parts, path)
    role = item.get("role")
    if isinstance(role, str) and isinstance(parts, list):
        blocks = [block for part in parts for block in _google_blocks(unwrap(part))]
        return Turn(_ROLES.get(role, role), path, blocks)
    if isinstance(role, str) and ("content" in item or "tool_calls" in item or "text" in item):
        return _of_roles(item, role, path)
    return None


# OpenAI and Anthropic


def _of_roles(item: dict[Any, Any], role: str, path: str) -> Turn:
    role = _ROLES.get(role, role)
    content = item.get("content", item.get("text"))
    blocks = list(_content_blocks(content))
    if role == "tool":
        text = "\n".join(block.text for block in blocks)
        blocks = [Block("result", text, id=_text(item.get("tool_call_id")), name=_text(item.get("name")))]
    calls = unwrap(item.get("tool_calls"))
    blocks += [_call_block(unwrap(call)) for call in calls] if isinstance(calls, list) else []
    return Turn(role, path, blocks, _text(item.get("name")))


def _content_blocks(content: Any) -> Iterator[Block]:
    content = unwrap(content)
    if isinstance(content, str):
        if content:
            yield Block("text", content)
    elif isinstance(content, list):
        for block in content:
            yield _block(unwrap(block))
    elif content is not None:
        yield Block("value", one_line(content, 2_000))


def _block(block: Any) -> Block:
    if isinstance(block, str):
        return Block("text", block)
    if not isinstance(block, dict):
        return Block("value", one_line(block, 500))
    kind = block.get("type", block.get("part_kind"))
    if kind in _TEXTS and isinstance(block.get("text"), str):
        return Block("text", block["text"])
    if kind in _THOUGHTS:
        return Block("thought", _text(block.get("thinking") or block.get("reasoning") or block.get("text")))
    if kind in _CALLS:
        return _call_block(block)
    if kind in _RESULTS:
        return Block("result", _result(block.get("content")), id=_text(block.get("tool_use_id")))
    return Block("value", one_line(block, 500))


def _call_block(call: Any) -> Block:
    if not isinstance(call, dict):
        return Block("value", one_line(call, 500))
    function = unwrap(call.get("function"))
    named = function if isinstance(function, dict) else call
    arguments = next((named[key] for key in ("arguments", "args", "input") if key in named), None)
    name = _text(named.get("name") or named.get("tool_name"))
    return Block("call", _arguments(arguments), name, _text(call.get("id") or call.get("tool_call_id")))


def _arguments(value: Any) -> str:
    value = unwrap(value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={one_line(item, 400)}" for name, item in value.items())
    return "" if value is None else one_line(value, 400)


def _result(content: Any) -> str:
    return "\n".join(block.text for block in _content_blocks(content))


def _text(value: Any) -> str:
    value = unwrap(value)
    return value if isinstance(value, str) else "" if value is None else one_line(value, 200)


# LangChain, Pydantic AI, Google


def _of_langchain(message: Message, path: str) -> Turn:
    fields = message.fields
    role, _, name = message.speaker.partition(" ")
    role = _ROLES.get(role, role)
    if role == "tool":
        blocks = [Block("result", message.text, name, _text(fields.get("tool_call_id")))]
    else:
        blocks = [block for block in _content_blocks(fields.get("content")) if block.kind != "call"]
        calls = unwrap(fields.get("tool_calls"))
        blocks += [_call_block(unwrap(call)) for call in calls] if isinstance(calls, list) else []
    return Turn(role, path, blocks, name)


def _of_pydantic(item: dict[Any, Any], parts: list[Any], path: str) -> Turn:
    kinds = [_text(unwrap(part).get("part_kind")) for part in parts if isinstance(unwrap(part), dict)]
    role = next((_PARTS[kind] for kind in kinds if kind in _PARTS), "assistant")
    return Turn(role, path, [_pydantic_block(unwrap(part)) for part in parts])


def _pydantic_block(part: Any) -> Block:
    if not isinstance(part, dict):
        return Block("value", one_line(part, 500))
    kind = part.get("part_kind")
    if kind == "tool-call":
        return _call_block(part)
    if kind in ("tool-return", "retry-prompt"):
        return Block(
            "result",
            _result(part.get("content")),
            _text(part.get("tool_name")),
            _text(part.get("tool_call_id")),
        )
    if kind == "thinking":
        return Block("thought", _text(part.get("content")))
    return Block("text", _result(part.get("content")))


def _google_blocks(part: Any) -> Iterator[Block]:
    if isinstance(part, dict):
        for names, kind in (
            (("functionCall", "function_call"), "call"),
            (("functionResponse", "function_response"), "result"),
        ):
            inner = unwrap(next((part[name] for name in names if part.get(name) is not None), None))
            if isinstance(inner, dict):
                text = (
                    _arguments(inner.get("args"))
                    if kind == "call"
                    else one_line(inner.get("response"), 2_000)
                )
                yield Block(kind, text, _text(inner.get("name")), _text(inner.get("id")))
                return
        if isinstance(part.get("text"), str):
            yield Block("thought" if part.get("thought") else "text", part["text"])
            return
    yield Block("value", one_line(part, 500))
