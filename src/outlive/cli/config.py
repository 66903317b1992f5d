"""Turns a URL and the options of a command into the configuration of a store or a pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlive.factory import StoreConfig


def open_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as `outlive.open` takes them: those of a pair in one object."""
    if "secondary" not in options:
        return options
    from outlive.layers.replication.options import Replication

    pair = {name: value for name, value in options.items() if name in Replication.__slots__}
    others = {name: value for name, value in options.items() if name not in pair}
    return {**others, "replication": Replication(**pair)}


def configure_store(url: str, options: dict[str, Any]) -> StoreConfig:
    """Check a URL and options. Nothing is opened."""
    from outlive.factory import configure

    return configure(url, **open_arguments(options))
