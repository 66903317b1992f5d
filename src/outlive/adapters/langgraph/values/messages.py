"""Messages, which are most of what graphs store.

A message is stored as its fields. It is restored as it was, without pydantic's validation, as long
as its fields are those of the class today; otherwise the class itself is called. A list of messages
is stored as the list of their fields, in native msgpack types: the whole list is packed, compared
and unpacked in a few native calls. Their `type` names the class. A message that has more than its
fields is stored in the list as it is stored anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langchain_core import messages
from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from outlive.format.anatomy import Decode
from outlive.format.registry import Registry

TAG = "langchain.messages"
# Setters of a model's slots that work on frozen classes too, as in pydantic.
_set_fields = BaseModel.__dict__["__dict__"].__set__
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__
_KINDS: dict[str, type[BaseMessage]] = {
    "human": messages.HumanMessage,
    "ai": messages.AIMessage,
    "system": messages.SystemMessage,
    "tool": messages.ToolMessage,
    "chat": messages.ChatMessage,
    "function": messages.FunctionMessage,
    "remove": messages.RemoveMessage,
    "AIMessageChunk": messages.AIMessageChunk,
    "HumanMessageChunk": messages.HumanMessageChunk,
    "SystemMessageChunk": messages.SystemMessageChunk,
    "ToolMessageChunk": messages.ToolMessageChunk,
    "ChatMessageChunk": messages.ChatMessageChunk,
    "FunctionMessageChunk": messages.FunctionMessageChunk,
}
_TYPES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: frozenset(kind.model_fields) for kind in _TYPES}
TAGS = frozenset((TAG, *(f"{TAG}.{name}" for name in _KINDS)))


@dataclass(slots=True)
class Messages:
    """A list of messages to store: their fields, or the message where it has more than fields."""

    items: list[Any]


def opened(value: Any) -> Any:
    """Return a list of messages in the form in which it is stored, and anything else as it is."""
    if type(value) is not list or not value or not isinstance(value[0], BaseMessage):
        return value
    items: list[Any] = []
    for message in value:
        name = _TYPES.get(type(message))
        fields = message.__dict__ if name is not None else None
        if (
            fields is None
            or fields["type"] != name
            or message.__pydantic_extra__
            or message.__pydantic_private__
        ):
            if not isinstance(message, BaseMessage):
                return value
            items.append(message)
        else:
            items.append(fields)
    return Messages(items)


def _revive(stored: Any) -> list[Any]:
    return [_message(_KINDS[item["type"]], item) if type(item) is dict else item for item in stored]


def _message(
    kind: type[BaseMessage], fields: dict[str, Any], extra: dict[str, Any] | None = None
) -> BaseMessage:
    names = _FIELDS[kind]
    if fields.keys() != names:  # another version of langchain-core wrote it
        return kind(**fields, **(extra or {}))
    message = object.__new__(kind)
    _set_fields(message, fields)
    _set_fields_set(message, set(names) if extra is None else {*names, *extra})
    _set_extra(message, {} if extra is None else extra)
    _set_private(message, None)
    return message


def _parts(message: BaseMessage) -> Any:
    """Return the fields of a message outside of a list, and its extra fields."""
    if message.__pydantic_private__:
        raise TypeError("it has private attributes")
    return [message.__dict__, message.__pydantic_extra__] if message.__pydantic_extra__ else message.__dict__


def _alone(kind: type[BaseMessage]) -> Decode:
    return lambda stored: _message(kind, *stored) if type(stored) is list else _message(kind, stored)


def register_in(registry: Registry) -> None:
    """Let a registry know messages and lists of them."""
    registry.add(Messages, TAG, encode=lambda stored: stored.items, decode=_revive)
    for name, kind in _KINDS.items():
        registry.add(kind, f"{TAG}.{name}", encode=_parts, decode=_alone(kind))
