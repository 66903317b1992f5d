"""One implementation, two modes: the same names, the same arguments, and no event loop on the sync side."""

import ast
import asyncio
import datetime as dt
import inspect
import re
from pathlib import Path

import pytest

import outlive
from outlive import AsyncResponses, AsyncStore, AsyncThread, Responses, Store, Thread
from outlive.runtime.runtime import run_now

PAIRS = [(AsyncThread, Thread), (AsyncStore, Store), (AsyncResponses, Responses)]
SOURCE = Path(outlive.__file__).parent

# Where the two modes meet, and where the suite drives both.
MAY_IMPORT_ASYNCIO = {
    "runtime/loop.py",
    "backends/local/threaded.py",
    "backends/postgres/connection.py",
    "backends/postgres/pool.py",
    "backends/redis/connection_classes.py",
    "backends/redis/connection.py",
}
NOT_CORE = ("testing/", "adapters/", "cli/", "inspector/")


def public(cls):
    """Return the public methods of a class, from wherever it has them."""
    return {
        name: member
        for name, member in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


def in_sync_words(annotation):
    """Say an annotation of the async mode in the words of the sync one."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = text.replace("Handler", "Callable[[Run], Any]")
    return re.sub(r"\bAsync(Iterator|Store|Thread|Run|Lock|Worker)\b", r"\1", text)


def described(function):
    signature = inspect.signature(function)
    parameters = [
        (parameter.name, parameter.kind.name, parameter.default, in_sync_words(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    return parameters, in_sync_words(signature.return_annotation)


def cases():
    return [
        pytest.param(asynchronous, sync, name, id=f"{sync.__name__}.{name}")
        for asynchronous, sync in PAIRS
        for name in sorted(public(asynchronous).keys() | public(sync).keys())
    ]


@pytest.mark.parametrize("asynchronous, sync, name", cases())
def test_a_method_has_the_same_signature_in_both_colours(asynchronous, sync, name):
    assert name in public(asynchronous), f"{asynchronous.__name__} has no {name}"
    assert name in public(sync), f"{sync.__name__} has no {name}"
    assert described(public(asynchronous)[name]) == described(public(sync)[name])


@pytest.mark.parametrize("asynchronous, sync, name", cases())
def test_a_method_has_the_same_words_in_both_colours(asynchronous, sync, name):
    assert getattr(asynchronous, name).__doc__
    assert getattr(asynchronous, name).__doc__ == getattr(sync, name).__doc__


@pytest.mark.parametrize("asynchronous, sync", PAIRS)
def test_no_method_of_the_sync_colour_has_to_be_awaited(asynchronous, sync):
    assert [name for name, method in public(sync).items() if inspect.iscoroutinefunction(method)] == []
    plain = {name for name, method in public(asynchronous).items() if not inspect.iscoroutinefunction(method)}
    assert plain <= {"thread", "threads", "history", "run", "runs", "recoverable", "lock", "worker"}


@pytest.mark.parametrize("asynchronous, sync", PAIRS)
def test_both_colours_have_the_same_properties(asynchronous, sync):
    def properties(cls):
        found = inspect.getmembers(cls, lambda member: isinstance(member, property))
        return {name for name, _ in found if not name.startswith("_")}

    with outlive.open("memory:") as store:
        responses = store.run("r").start().responses
        handles = {Store: store, Thread: store.thread("t"), Responses: responses}
        for name in properties(sync):
            inner = getattr(handles[sync], f"_{sync.__name__.lower()}")
            assert getattr(handles[sync], name) == getattr(inner, name)
    assert properties(asynchronous) <= properties(sync)


def test_a_store_is_opened_by_the_same_arguments_in_both_colours():
    assert described(outlive.open)[0] == described(outlive.open_async)[0]


# Every coroutine of the core, with what it takes to run it.
CALLS = {
    AsyncThread: {
        "save": lambda thread: thread.save({"n": 3}, metadata={"a": 1}),
        "load": lambda thread: thread.load(at=dt.datetime.now(dt.UTC)),
        "checkpoint": lambda thread: thread.checkpoint(),
        "exists": lambda thread: thread.exists(),
        "history": lambda thread: every(thread.history(limit=3)),
        "lineage": lambda thread: thread.lineage(),
        "tips": lambda thread: thread.tips(),
        "diff": lambda thread: thread.diff("one"),
        "write": lambda thread: thread.write("task", [("c", "x" * 5000)]),
        "writes": lambda thread: thread.writes(),
        "interrupts": lambda thread: thread.interrupts(),
        "resume": lambda thread: thread.resume("i", 1, checkpoint="one"),
        "fork": lambda thread: thread.fork("fork"),
        "copy": lambda thread: thread.copy("copy"),
        "export": lambda thread: thread.export(),
        "info": lambda thread: thread.info(),
        "metadata": lambda thread: thread.metadata(),
        "set_metadata": lambda thread: thread.set_metadata({"title": "x"}),
        "verify": lambda thread: thread.verify(),
        "size": lambda thread: thread.size(),
        "flush": lambda thread: thread.flush(),
        "delete_checkpoints": lambda thread: thread.delete_checkpoints(["two"], erase=True),
        "prune": lambda thread: thread.prune(keep_last=1, erase=True),
        "delete": lambda thread: thread.delete(),
    },
    AsyncStore: {
        "threads": lambda store: every(store.threads()),
        "delete": lambda store: store.delete("t"),
        "verify": lambda store: store.verify(),
        "size": lambda store: store.size(),
        "ping": lambda store: store.ping(),
        "copy_to": lambda store: store.copy_to(outlive.open("memory:")._store),
        "import_thread": lambda store: store.import_thread('{"outlive": 1, "thread": "in"}'),
        "backup": lambda store: store.backup("memory:"),
        "sweep": lambda store: store.sweep(retain=outlive.Retain(keep_last=1)),
        "start_sweeping": lambda store: store.start_sweeping(outlive.Retain(keep_last=1)),
        "stop_sweeping": lambda store: store.stop_sweeping(),
        "rotate": lambda store: encrypted(store).rotate(),
        "flush": lambda store: store.flush(),
        "close": lambda store: store.close(),
    },
    AsyncResponses: {
        "open": lambda responses: responses.open(["m"], prompt="p"),
        "begin": lambda responses: responses.begin("m"),
        "update": lambda responses: responses.update("m", {"text": "x"}),
        "fail": lambda responses: responses.fail("m", "broken"),
        "interrupt": lambda responses: responses.interrupt("m"),
        "complete": lambda responses: responses.complete("m", {"text": "xy"}),
        "all": lambda responses: responses.all(),
        "get": lambda responses: responses.get("m"),
        "pending": lambda responses: responses.pending(),
        "completed": lambda responses: responses.completed(),
        "usage": lambda responses: responses.usage(),
        "build": lambda responses: responses.build(),
    },
}


def encrypted(store):
    """Only a store with a key has what this needs: the same is tried on one of those."""
    return outlive.open("memory:", key=outlive.KeyRing({"k": bytes(range(32))}))._store


HANDLES = {"thread"}  # these only make a handle


async def every(items):
    return [item async for item in items]


@pytest.fixture(
    params=["memory:", "sqlite:///:memory:", "sqlite:///{}/store.db", "file:///{}/store", "null:"]
)
def store(request, tmp_path):
    with outlive.open(request.param.format(str(tmp_path))) as store:
        thread = store.thread("t")
        thread.save({"n": 1, "text": "x" * 5000}, id="one", interrupts=[outlive.Interrupt("i", "n")])
        thread.save({"n": 2}, id="two", durability="async")
        thread.flush()
        yield store


def test_no_coroutine_of_the_core_suspends_on_the_sync_side(store):
    """`run_now` raises when one does: there is nobody who would wake it up."""
    responses = store.run("r").start()._run.responses
    thread = store.thread("t")._thread
    for cls, handle in ((AsyncResponses, responses), (AsyncThread, thread), (AsyncStore, store._store)):
        for name, call in CALLS[cls].items():
            try:
                run_now(call(handle))
            except outlive.CallerError:
                assert "null" in repr(store), name  # nothing is kept there, and that is said without waiting


@pytest.mark.parametrize("cls", [AsyncThread, AsyncStore, AsyncResponses])
def test_every_public_coroutine_is_tried_for_that(cls):
    runs = {
        "run",
        "runs",
        "recoverable",
        "recover",
        "find_run",
        "retry",
        "park",
        "cancel",
        "lock",
        "worker",
    }  # their own tests drive them sync and async
    pairs = {"promote", "failback", "replication_status"}  # so do those of stores with a secondary
    assert public(cls).keys() - (HANDLES | runs | pairs) == CALLS[cls].keys()


def imported(path):
    """Return the names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def test_the_core_does_not_import_asyncio():
    found = {
        name
        for path in SOURCE.rglob("*.py")
        if not (name := path.relative_to(SOURCE).as_posix()).startswith(NOT_CORE)
        and any(str(module).partition(".")[0] == "asyncio" for module in imported(path))
    }
    assert found <= MAY_IMPORT_ASYNCIO


def test_the_core_does_not_import_the_tests_tools():
    for path in SOURCE.rglob("*.py"):
        if not path.relative_to(SOURCE).as_posix().startswith("testing/"):
            tops = {str(module).partition(".")[0] for module in imported(path)}
            assert not tops & {"pytest", "hypothesis", "pickle", "marshal"}, path.name


# What is said to whoever mixes the two ----------------------------------------------------------------------


async def entered(manager):
    async with manager:
        pass


async def iterated(items):
    async for _ in items:
        pass


def test_a_sync_store_in_async_code_says_what_to_write():
    with outlive.open("memory:") as store:
        for manager in (outlive.open("memory:"), store.run("t"), store.lock("t")):
            with pytest.raises(outlive.errors.SyncAsyncMixed, match="`with` instead of `async with`"):
                asyncio.run(entered(manager))
        for items in (store.thread("t").history(), store.threads(), store.runs(), store.recoverable()):
            with pytest.raises(outlive.errors.SyncAsyncMixed, match="`for` instead of `async for`"):
                asyncio.run(iterated(items))


def test_an_async_store_in_sync_code_says_what_to_write():
    async def scenario():
        async with outlive.open_async("memory:") as store:
            for manager in (outlive.open_async("memory:"), store, store.run("t"), store.lock("t")):
                with pytest.raises(outlive.errors.SyncAsyncMixed, match="`async with` instead of `with`"):
                    with manager:
                        pass
            for items in (store.thread("t").history(), store.threads(), store.runs(), store.recoverable()):
                with pytest.raises(outlive.errors.SyncAsyncMixed, match="`async for` instead of `for`"):
                    for _ in items:
                        pass
                assert [item async for item in items] == []

    asyncio.run(scenario())
    assert issubclass(outlive.errors.SyncAsyncMixed, TypeError)
