"""Classes and serializers that a command line names. Names in stored data are never looked up."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from outlive.adapters.langgraph.values.user_types import Name
from outlive.errors import BadArgument


def named_types(names: Iterable[str]) -> list[type | Name]:
    """Return the classes of dotted names; modules in the working directory are found too."""
    types: list[type | Name] = []
    for name in names:
        kind = _look("--type", "MODULE.CLASS, such as myapp.state.Ticket", name)
        if not isinstance(kind, type):
            raise BadArgument(f"--type {name}: there is no class of that name; {_advice(name)}")
        types.append(kind)
        module, _, attribute = name.rpartition(".")
        if module in sys.modules:  # rows may name a class by the module from which it has moved
            types.append((module, attribute))
    return types


def _advice(name: str) -> str:
    if "[" in name:
        return "name the class of a state whose annotations have it, or call import_langgraph(types=[...])"
    return "one inside another class is MODULE.Outer.Inner"


def named_serde(name: str | None) -> SerializerProtocol | None:
    """Return the serializer of a dotted name, or what a function of that name returns."""
    if name is None:
        return None
    serde = _look("--serde", "MODULE.NAME, such as myapp.checkpoints.serde", name)
    if callable(serde):
        try:
            serde = serde()
        except Exception as error:
            raise BadArgument(
                f"--serde {name}: calling it failed ({type(error).__name__}: {error})"
            ) from error
    if not any(all(callable(getattr(serde, method, None)) for method in methods) for methods in _METHODS):
        raise BadArgument(
            f"--serde {name} is {type(serde).__name__}, and neither a serializer nor a function that returns one"
        )
    return maybe_add_typed_methods(serde)


_METHODS = (("dumps_typed", "loads_typed"), ("dumps", "loads"))


def _look(option: str, wanted: str, name: str) -> Any:
    """Return what a dotted name means, None if its module has no such name."""
    parts = name.split(".")
    if len(parts) < 2 or not all(parts):
        raise BadArgument(f"{option} takes {wanted}, not {name!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an installed command does not search there
    for size in range(len(parts) - 1, 0, -1):  # the longest module: the rest may be a class in a class
        module = ".".join(parts[:size])
        try:
            value: Any = importlib.import_module(module)
        except ImportError as error:
            if size > 1 and isinstance(error, ModuleNotFoundError) and error.name == module:
                continue
            raise BadArgument(f"{option} {name}: there is no such module ({error})") from error
        for part in parts[size:]:
            value = getattr(value, part, None)
        return value
    raise AssertionError("the first part is always tried")
