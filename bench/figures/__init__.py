"""One module per claim; each one's docstring says how it is measured and goes into the published page."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

# In the order of the page. A module is imported when its figure is measured.
FIGURES = (
    "disk",
    "growth",
    "save",
    "sizes",
    "load",
    "savers",
    "listing",
    "newest",
    "inspector",
    "large",
    "memory",
    "postgres-disk",
    "postgres-save",
    "postgres-load",
    "postgres-savers",
    "redis-save",
    "redis-savers",
    "replicate",
    "step",
    "steps",
    "heartbeats",
    "claim",
    "waiting-runs",
    "answers",
    "ask-races",
    "queue",
    "dead-runs",
    "langgraph",
    "encrypted",
    "sweep",
    "start",
)
# They need the environment of the frameworks: ./dev bench --frameworks.
FRAMEWORKS = ("openai-agents", "pydantic-ai", "claude", "strands", "agent-framework", "adk", "llama-index")


def module_path(name: str) -> Path:
    return Path(__file__).resolve().parent / f"{name.replace('-', '_')}.py"


def module(name: str) -> ModuleType:
    return importlib.import_module(f"figures.{module_path(name).stem}")
