"""A filled store, and clients of its inspector."""

from __future__ import annotations

import pytest

import outlive
from rig.inspected import client_of, fill


@pytest.fixture
def store(tmp_path):
    with outlive.open(tmp_path / "agent.db") as store:
        fill(store)
        yield store


@pytest.fixture
def client(store):
    return client_of(store)


@pytest.fixture
def writer(store):
    return client_of(store, write=True)
