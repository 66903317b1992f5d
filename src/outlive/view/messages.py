"""Messages of LangChain as lines of text. They are read as they are stored: LangChain need not be installed."""

from __future__ import annotations

from typing import Any

from outlive.dataclass import dataclass
from outlive.format.extensions import Opaque
from outlive.view.escape import escape_lines, escape_terminal
from outlive.view.opaque import unwrap
from outlive.view.values import one_line

_LIST = "langchain.messages"  # the tag of a list; that of a single message has its type after a dot
_ROLES = ("human", "ai", "system", "tool", "chat", "function", "remove")
_LATEST = 20  # messages of a long list
_LINES, _CHARACTERS = 12, 1_000  # of a long text
_CALL = 100  # characters of a tool call


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message."""

    fields: dict[str, Any]

    @property
    def id(self) -> str | None:
        id = self.fields.get("id")
        return id if isinstance(id, str) else None

    @property
    def speaker(self) -> str:
        """Its role, and the name if it has one."""
        kind = str(self.fields["type"])
        role = kind.removesuffix("MessageChunk").lower()
        if role == "chat" and isinstance(own := self.fields.get("role"), str):
            role = own
        name = self.fields.get("name")
        return escape_terminal(f"{role} {name}" if isinstance(name, str) and name else role)

    @property
    def text(self) -> str:
        """Its text; another block of content is shown by its type."""
        content = unwrap(self.fields.get("content"))
        if isinstance(content, str):
            return content
        blocks = content if isinstance(content, list) else [content]
        return "\n".join(filter(None, map(_block_text, blocks)))

    @property
    def calls(self) -> list[str]:
        """The tools that it calls, each with its arguments, on one line."""
        calls = unwrap(self.fields.get("tool_calls"))
        return [_call(unwrap(call)) for call in calls] if isinstance(calls, list) else []

    @property
    def notes(self) -> list[str]:
        """What is worth knowing beside text and calls."""
        notes = []
        if self.fields.get("status") == "error":
            notes.append("(error)")
        if self.fields.get("type") == "remove" and self.id is not None:
            notes.append(f"(message {escape_terminal(self.id)})")
        if (artifact := self.fields.get("artifact")) is not None:
            notes.append(f"artifact: {one_line(artifact, _CALL)}")
        return notes

    def lines(self, *, full: bool = False) -> list[str]:
        """Return the message as `role: text`, and a line for each tool call."""
        first, *rest = _shortened(self.text, full).split("\n")
        calls = [f"→ {call}" for call in self.calls]
        shown = [f"{self.speaker}: {first}".rstrip(), *(f"  {line}" for line in rest)]
        return [*shown, *(f"  {line}" for line in (*calls, *self.notes))]

    def line(self) -> str:
        """Return the message on one line."""
        calls = (f"→ {call}" for call in self.calls)
        return " ".join([f"{self.speaker}:", *([escape_terminal(self.text)] if self.text else []), *calls])


def read_messages(value: Any) -> list[Message] | None:
    """Return the messages of a stored list, or None if the value is no list of messages."""
    is_list = isinstance(value, Opaque) and value.tag == _LIST  # then its items may have any class
    items = value.value if is_list else value
    if not isinstance(items, list) or not (is_list or (items and all(map(_is_tagged, items)))):
        return None
    messages = [message for item in items if (message := _read_message(item)) is not None]
    return messages if len(messages) == len(items) else None


def _is_tagged(value: Any) -> bool:
    return isinstance(value, Opaque) and value.tag.startswith(f"{_LIST}.")


def _read_message(value: Any) -> Message | None:
    fields = unwrap(value)
    if isinstance(fields, list) and len(fields) == 2:  # the extra fields are apart
        fields = fields[0]
    is_message = isinstance(fields, dict) and "content" in fields and _is_type(fields.get("type"))
    return Message(fields) if is_message else None


def show_messages(messages: list[Message], *, full: bool) -> list[str]:
    """Return the lines of messages; of a long list only the latest, unless `full`."""
    shown = messages if full else messages[-_LATEST:]
    earlier = len(messages) - len(shown)
    note = [f"… {earlier:,} earlier; --full shows all"] if earlier else []
    return [*note, *(line for message in shown for line in message.lines(full=full))]


def _is_type(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _ROLES or kind.endswith("MessageChunk"))


def _block_text(block: Any) -> str:
    block = unwrap(block)
    if isinstance(block, str):
        return block
    if not isinstance(block, dict):
        return "" if block is None else one_line(block)
    if isinstance(text := block.get("text"), str):
        return text
    kind = block.get("type")
    is_call = kind in ("tool_call", "tool_use", "function_call")  # the message lists its calls
    return "" if is_call or not isinstance(kind, str) else f"[{kind}]"


def _call(call: Any) -> str:
    if not isinstance(call, dict):
        return one_line(call, _CALL)
    arguments = unwrap(call.get("args"))
    if isinstance(arguments, dict):
        shown = ", ".join(f"{name}={one_line(value, _CALL)}" for name, value in arguments.items())
    else:
        shown = one_line(arguments, _CALL)
    text = f"{call.get('name')}({shown})"
    return escape_terminal(text if len(text) <= _CALL else f"{text[: _CALL - 2]}…)")


def _shortened(text: str, full: bool) -> str:
    lines = text.split("\n")
    if full or (len(text) <= _CHARACTERS and len(lines) <= _LINES):
        return escape_lines(text)
    cut = "\n".join(lines[:_LINES])[:_CHARACTERS]
    return f"{escape_lines(cut)}… ({len(text):,} characters)"
