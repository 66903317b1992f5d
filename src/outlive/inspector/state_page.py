"""One level of a state: what is below a path, with types, sizes and the beginning of each value."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlive.format.diff import join_path
from outlive.inspector.access import PAGE
from outlive.view.escape import escape_lines, escape_terminal
from outlive.view.graph import read_graph
from outlive.view.opaque import OpaqueCodec, unwrap
from outlive.view.path import pick, split_path
from outlive.view.values import count_of, kind_of, one_line

if TYPE_CHECKING:
    from outlive.values import Checkpoint

_PREVIEW, _TEXT, _HEX = 200, 20_000, 64


def state_root(checkpoint: Checkpoint, params: Mapping[str, str]) -> Any:
    """Return what paths lead into: the values of a graph, or the whole state."""
    graph = None if params.get("raw") == "1" else read_graph(checkpoint.state)
    return checkpoint.state if graph is None else graph.values


def state_level(checkpoint: Checkpoint, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the value at a path: its own text, or a page of its children."""
    path, start = params.get("path", ""), _number(params.get("from", "0"))
    value = pick(state_root(checkpoint, params), path)
    inner = unwrap(value)
    children = _children(inner, path)
    total = len(inner) if children is not None else 0
    page = [] if children is None else list(itertools.islice(children, start, start + PAGE))
    text = None if children is not None else _text(inner)
    return {
        "path": path,
        "crumbs": _crumbs(path),
        "type": kind_of(value),
        "count": count_of(value),
        "bytes": len(OpaqueCodec().pack(value)),
        "children": [_child(name, at, child) for name, at, child in page],
        "is_container": children is not None,
        "from": start,
        "more": start + PAGE if start + PAGE < total else None,
        "text": text,
        "shown": None if text is None else escape_lines(text),
        "is_cut": isinstance(inner, str) and len(inner) > _TEXT,
    }


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _children(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return ((str(key), join_path(path, key), item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return ((f"[{at}]", f"{path}[{at}]", item) for at, item in enumerate(value))
    return None


def _child(name: str, path: str, value: Any) -> dict[str, Any]:
    inner = unwrap(value)
    return {
        "name": name[:_PREVIEW],
        "shown": escape_terminal(name[:_PREVIEW]),
        "path": path,
        "type": kind_of(value),
        "count": count_of(value),
        "bytes": len(OpaqueCodec().pack(value)),
        "preview": one_line(value, _PREVIEW),
        "opens": isinstance(inner, dict | list | tuple)
        or (isinstance(inner, str | bytes) and len(inner) > _PREVIEW // 2),
    }


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:_TEXT]
    if isinstance(value, bytes | bytearray):
        return f"{bytes(value[:_HEX]).hex(' ')}{' …' if len(value) > _HEX else ''}"
    return one_line(value, _TEXT)


def _crumbs(path: str) -> list[dict[str, str]]:
    """Return the places on the way to a path."""
    crumbs = [{"name": "state", "path": ""}]
    steps = ({"name": step[0].lstrip("."), "path": path[: step.end()]} for step in split_path(path))
    return [*crumbs, *steps]
