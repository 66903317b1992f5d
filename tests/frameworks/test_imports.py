"""Every framework that has an adapter is installed here, in one environment, and imports without a warning."""

import importlib

import pytest

MODULES = [
    "agents",
    "agent_framework",
    "claude_agent_sdk",
    "deepagents",
    "google.adk",
    "pydantic_ai",
    "strands",
    "workflows",
]


@pytest.mark.parametrize("name", MODULES)
def test_a_framework_imports(name):
    importlib.import_module(name)
