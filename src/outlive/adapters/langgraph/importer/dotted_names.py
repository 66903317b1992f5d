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


def named_types(names: Iterable[str]) -> list[Name]:
    """Return the (module, class) of dotted names; modules in the working directory are found too."""
    types: list[Name] = []
    for name in names:
        module, kind = _parts("--type", "MODULE.CLASS, such as myapp.state.Ticket", name)
        if not isinstance(_look("--type", module, kind), type):
            raise BadArgument(f"--type {name}: {module} has no class of that name")
        types.append((module, kind))
    return types


def named_serde(name: str | None) -> SerializerProtocol | None:
    """Return the serializer of a dotted name, or what a function of that name returns."""
    if name is None:
        return None
    module, attribute = _parts("--serde", "MODULE.NAME, such as myapp.checkpoints.serde", name)
    serde = _look("--serde", module, attribute)
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


def _parts(option: str, wanted: str, name: str) -> tuple[str, str]:
    module, _, attribute = name.rpartition(".")
    if not module or not attribute:
        raise BadArgument(f"{option} takes {wanted}, not {name!r}")
    return module, attribute


def _look(option: str, module: str, attribute: str) -> Any:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an installed command does not search there
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise BadArgument(f"{option} {module}.{attribute}: there is no such module ({error})") from error
