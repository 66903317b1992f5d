"""The tests here need an environment of their own; without it they are not collected."""

import importlib.util

import pytest

from rig.crash import ram_folder

collect_ignore_glob = [] if importlib.util.find_spec("deepagents") else ["test_*.py"]


@pytest.fixture
def folder():
    with ram_folder() as name:
        yield name


@pytest.fixture
def url(folder):
    return f"sqlite:///{folder}/agent.db?fsync=normal"
