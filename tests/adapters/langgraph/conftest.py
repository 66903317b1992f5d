"""Savers on a store of their own."""

import pytest

import outlive
from adapters.langgraph.making import Async, Sync, new_loop
from outlive.adapters.langgraph import OutliveSaver
from rig.crash import ram_folder


@pytest.fixture
def folder():
    with ram_folder() as name:
        yield name


@pytest.fixture
def loop():
    made = new_loop()
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


@pytest.fixture
def url(folder):
    return f"sqlite:///{folder}/agent.db?fsync=normal"


@pytest.fixture
def saver(url):
    """A saver on SQLite."""
    with OutliveSaver(url) as made:
        yield made


@pytest.fixture(params=["sync", "async", "loop"])
def both(request, url, loop):
    """A saver by its sync methods, by its async ones, and by its async ones on a store that belongs to a loop."""
    if request.param == "loop":
        store = loop.run_until_complete(outlive.open_async(url)._open())
        made = OutliveSaver(store)
        yield Async(made, loop)
        loop.run_until_complete(made.aclose())
        loop.run_until_complete(store.close())
        return
    with OutliveSaver(url) as made:
        yield Sync(made) if request.param == "sync" else Async(made, loop)
