"""All that langgraph-checkpoint-conformance asks for, of every capability, on every backend."""

import asyncio
import inspect

import pytest
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer

import outlive
from outlive.adapters.langgraph import OutliveSaver

BACKENDS = ("memory", "file", "sqlite", "postgresql", "redis")
TESTS = {
    "put": 17, "put_writes": 10, "get_tuple": 10, "list": 16, "delete_thread": 5,
    "delete_for_runs": 7, "copy_thread": 8, "prune": 8,
}  # fmt: skip


class BySync(OutliveSaver):
    """A saver whose async methods are its sync ones: the suite knows only the former."""

    async def alist(self, *arguments, **options):
        for found in self.list(*arguments, **options):
            yield found


def _by_sync(name):
    async def method(self, *arguments, **options):
        return getattr(self, name)(*arguments, **options)

    return method


for _name in [*TESTS, "get_delta_channel_history"]:
    if _name != "list":
        setattr(BySync, f"a{_name}", _by_sync(_name))


@pytest.fixture(params=BACKENDS)
def urls(request, url_for, folder):
    """A function that gives the URL of another store each time."""
    number = iter(range(100))

    def fresh():
        if request.param == "memory":
            return "memory:"
        place = folder / str(next(number))
        place.mkdir()
        found = url_for(request.param, place)
        return f"{found}?fsync=normal" if request.param in ("file", "sqlite") else found

    return fresh


def check(factory):
    report = asyncio.run(validate(RegisteredCheckpointer("outlive", factory)))
    failures = [line for result in report.results.values() for line in result.failures]
    assert failures == []
    assert {name: result.tests_passed for name, result in report.results.items()} == TESTS


def test_the_suite_is_the_one_that_we_know():
    assert {capability.value for capability in Capability} == set(TESTS)


@pytest.mark.parametrize("kind", [OutliveSaver, BySync])
def test_a_saver_on_a_url_conforms(kind, urls):
    async def factory():
        with kind(urls()) as saver:
            yield saver

    check(factory)


def test_a_saver_on_an_async_store_conforms(urls):
    async def factory():
        async with outlive.open_async(urls()) as store, OutliveSaver(store) as saver:
            yield saver

    check(factory)


def test_every_method_of_the_base_class_is_there_with_the_names_of_its_parameters():
    from langgraph.checkpoint.base import BaseCheckpointSaver

    for name, method in inspect.getmembers(BaseCheckpointSaver, inspect.isfunction):
        ours = getattr(OutliveSaver, name)
        if not name.startswith("_") and name not in ("get", "aget"):
            assert ours is not method, name
            assert (
                list(inspect.signature(method).parameters)
                == list(inspect.signature(ours).parameters)[: len(inspect.signature(method).parameters)]
            ), name
