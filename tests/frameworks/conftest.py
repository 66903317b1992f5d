"""The tests here need an environment of their own; without it they are not collected."""

import importlib.util

import pytest

from rig.adapters import each_store, each_url, folder, shared_url

__all__ = ["each_store", "each_url", "folder", "shared_url"]
collect_ignore_glob = [] if importlib.util.find_spec("deepagents") else ["test_*.py"]


@pytest.fixture
def url(folder):
    return f"sqlite:///{folder}/agent.db?fsync=normal"
