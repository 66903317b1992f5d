"""Objects of LangChain and LangGraph other than messages, stored field by field and therefore exactly.

Their classes are imported when first needed: a saver works without the package `langgraph`.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from outlive.adapters.langgraph.values.messages import opened
from outlive.errors import TypeChanged
from outlive.format.registry import RegisteredType, Registry

_LANGGRAPH, _LANGCHAIN = "langgraph.types", "langchain_core.documents.base"
_DOCUMENT, _TAG = "langchain.Document", "langgraph."
# Their required fields, and those that are left out when they are None.
_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Send": (("node", "arg"), ("timeout",)),
    "Interrupt": (("value", "id"), ("response_schema",)),
    "Command": ((), ("graph", "update", "resume", "goto")),
    "Overwrite": (("value",), ()),
}
TAGS = frozenset((_DOCUMENT, *(f"{_TAG}{name}" for name in _PARTS)))


class LibraryTypes(Registry):
    """The classes above, and LangChain's documents."""

    def of(self, cls: type) -> RegisteredType | None:
        """Return how a class is taken apart."""
        if cls not in self._by_type and cls.__module__ in (_LANGGRAPH, _LANGCHAIN):
            self._learn(cls.__module__)
        return super().of(cls)

    def tagged(self, tag: str, version: int) -> RegisteredType:
        """Return how what is stored under a tag is put together."""
        if tag not in self._by_tag:
            with contextlib.suppress(ImportError):
                self._learn(_LANGCHAIN if tag == _DOCUMENT else _LANGGRAPH)
        if tag not in self._by_tag:
            raise TypeChanged(tag, version, "langgraph is not installed, or no longer has it")
        return super().tagged(tag, version)

    def _learn(self, home: str) -> None:
        module = importlib.import_module(home)
        if home == _LANGCHAIN:
            self.add(module.Document, _DOCUMENT)
            return
        for name in _PARTS:
            kind = getattr(module, name, None)
            if isinstance(kind, type):
                self.add(kind, f"{_TAG}{name}", encode=_parts, decode=_made(kind))


def _parts(value: Any) -> dict[str, Any]:
    needed, optional = _PARTS[type(value).__name__]
    fields = {name: opened(getattr(value, name)) for name in needed}
    for name in optional:
        part = getattr(value, name, None)
        if part is not None:
            fields[name] = opened(part)
    return fields


def _made(kind: Any) -> Any:
    return lambda parts: kind(**parts)
