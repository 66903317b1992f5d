"""A filled store, clients of its inspector, and a browser that visits it."""

from __future__ import annotations

import pytest

import outlive
from rig.browser import browser, served, visiting
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


@pytest.fixture(scope="module")  # Playwright keeps an event loop: other modules start their own
def chromium():
    with browser() as chromium:
        yield chromium


@pytest.fixture
def visitor(chromium, store):
    with served(store, write=True) as address, visiting(chromium, address) as visitor:
        yield visitor
