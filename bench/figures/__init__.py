"""One module per claim; each one's docstring says how it is measured and goes into the published page."""

from __future__ import annotations

from types import ModuleType

from figures import (
    claim,
    cpu,
    disk,
    encrypted,
    growth,
    heartbeats,
    langgraph_graph,
    large,
    listing,
    load,
    memory,
    newest,
    postgres_disk,
    postgres_load,
    postgres_save,
    postgres_savers,
    postgres_steps,
    redis_save,
    replicate,
    save,
    savers,
    step,
    sweep,
)

FIGURES: dict[str, ModuleType] = {
    "disk": disk,
    "growth": growth,
    "save": save,
    "cpu": cpu,
    "load": load,
    "savers": savers,
    "listing": listing,
    "newest": newest,
    "large": large,
    "memory": memory,
    "postgres-disk": postgres_disk,
    "postgres-save": postgres_save,
    "postgres-load": postgres_load,
    "postgres-savers": postgres_savers,
    "redis-save": redis_save,
    "replicate": replicate,
    "step": step,
    "heartbeats": heartbeats,
    "claim": claim,
    "postgres-steps": postgres_steps,
    "langgraph": langgraph_graph,
    "encrypted": encrypted,
    "sweep": sweep,
}
