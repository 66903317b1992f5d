"""One implementation, two modes: the same names, the same arguments, and no event loop on the sync side."""

import ast
import asyncio
import datetime as dt
import functools
import inspect
import re
from pathlib import Path

import pytest

import outlive
from outlive import (
    AsyncLock,
    AsyncResponses,
    AsyncRun,
    AsyncStore,
    AsyncThread,
    AsyncWorker,
    Lock,
    Responses,
    Run,
    Store,
    Thread,
    Worker,
)
from outlive.runtime.runtime import run_now

PAIRS = [
    (AsyncStore, Store),
    (AsyncThread, Thread),
    (AsyncRun, Run),
    (AsyncLock, Lock),
    (AsyncWorker, Worker),
    (AsyncResponses, Responses),
]
SOURCE = Path(outlive.__file__).parent

# Where the two modes meet, and where the suite drives both.
MAY_IMPORT_ASYNCIO = {
    "runtime/loop.py",
    "backends/local/async_local.py",
    "backends/local/worker.py",
    "backends/redis/exchanges.py",
    "backends/postgres/groups.py",
    "backends/postgres/pool.py",
    "backends/redis/io_modes.py",
    "backends/server/sockets.py",
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
def test_a_method_has_the_same_signature_sync_and_async(asynchronous, sync, name):
    assert name in public(asynchronous), f"{asynchronous.__name__} has no {name}"
    assert name in public(sync), f"{sync.__name__} has no {name}"
    assert described(public(asynchronous)[name]) == described(public(sync)[name])


def in_sync_code(docstring):
    """Return a docstring with its examples written for the sync API."""
    return re.sub(r"\basync (?=with|for)|\bawait ", "", docstring)


def members(cls):
    """Return the public methods and properties of a class."""
    return {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}


@pytest.mark.parametrize("asynchronous, sync", PAIRS)
def test_the_docstrings_are_the_same_but_for_the_examples(asynchronous, sync):
    shared = members(asynchronous).keys() & members(sync).keys()
    assert {name: in_sync_code(members(asynchronous)[name].__doc__) for name in shared} == {
        name: members(sync)[name].__doc__ for name in shared
    }


@pytest.mark.parametrize("asynchronous, sync", PAIRS)
def test_the_docstrings_are_written_where_an_editor_finds_them(asynchronous, sync):
    for cls in (asynchronous, sync):
        tree = ast.parse(Path(inspect.getsourcefile(cls)).read_text(encoding="utf-8"))
        (body,) = [
            node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__
        ]
        written = {
            node.name
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node)
        }
        assert members(cls).keys() - written == set()


@pytest.mark.parametrize("asynchronous, sync", PAIRS)
def test_no_method_of_the_sync_api_has_to_be_awaited(asynchronous, sync):
    assert [name for name, method in public(sync).items() if inspect.iscoroutinefunction(method)] == []
    plain = {name for name, method in public(asynchronous).items() if not inspect.iscoroutinefunction(method)}
    handles = {
        "thread",
        "threads",
        "history",
        "run",
        "child",
        "runs",
        "recoverable",
        "lock",
        "worker",
        "workers",
    }
    handles |= {"questions", "follow"}
    # A step is awaited too: its coroutine is returned. The others store nothing.
    assert plain <= handles | {"step", "stop", "drain", "alive"}


def attributes(handle):
    """Return what a handle shows that is not a method."""
    names = {name for name in dir(handle) if not name.startswith("_")}
    return names - public(type(handle)).keys()


def test_both_have_the_same_attributes():
    with outlive.open("memory:") as store:
        run = store.run("r").start()
        worker = store.worker({"*": lambda run: None})
        for handle in (store, store.thread("t"), run, store.lock("l"), worker, run.responses):
            inner = getattr(handle, f"_{type(handle).__name__.lower()}")
            assert attributes(handle) == attributes(inner)
            for name in attributes(handle) - {"thread", "responses", "effect_key"}:
                assert getattr(handle, name) == getattr(inner, name)
        assert run.thread.id == run._run.thread.id == "r"


def test_a_store_is_opened_by_the_same_arguments():
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
        "namespaces": lambda thread: thread.namespaces(),
        "delete_namespace": lambda thread: thread.delete_namespace(),
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
        "submit",
        "workers",
        "recoverable",
        "follow",
        "recover",
        "responses",
        "steps",
        "attempts",
        "find_run",
        "retry",
        "answer",
        "questions",
        "park",
        "cancel",
        "lock",
        "worker",
    }  # their own tests drive them sync and async
    pairs = {"promote", "failback", "replication_status"}  # so do those of stores with a secondary
    assert public(cls).keys() - (HANDLES | runs | pairs) == CALLS[cls].keys()


@functools.cache
def imported(path):
    """Return the names of all modules that a file imports, wherever in it."""
    return list(_imported(path))


def _imported(path):
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


# What is said to callers who mix the two ----------------------------------------------------------------------


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


def test_every_public_class_and_member_has_a_docstring():
    missing = []
    for name in outlive.__all__:
        kind = getattr(outlive, name)
        if not isinstance(kind, type):
            continue
        names = [member for member in vars(kind) if not member.startswith("_")]
        called = [m for m in names if callable(getattr(kind, m)) or isinstance(vars(kind)[m], property)]
        missing += [f"{name}.{member}" for member in called if not getattr(kind, member).__doc__]
        missing += [] if kind.__doc__ else [name]
    assert missing == []


def test_an_option_that_does_not_exist_is_refused_by_its_name():
    with outlive.open("memory:") as store:
        with pytest.raises(outlive.errors.BadArgument, match=r"thread\.save takes no metdata=.*metadata"):
            store.thread("t").save(1, metdata={})
        with pytest.raises(outlive.errors.BadArgument, match=r"store\.run takes no lease=.*lease_s"):
            store.run("t", lease=3)
        assert store.thread("t").load() is None


def test_a_checkpoint_belongs_to_a_run_that_is_given_as_such_or_by_its_id():
    async def scenario():
        async with outlive.open_async("memory:") as store:
            run, thread = store.run("t", run_id="r"), store.thread("t")
            saved = [await thread.save(1, run=which) for which in ("r", run, run.info)]
            assert [info.run for info in saved] == ["r", "r", "r"]
            assert len([info async for info in thread.history(run=run)]) == 3

    asyncio.run(scenario())
    with outlive.open("memory:") as store:
        run, thread = store.run("t", run_id="r"), store.thread("t")
        saved = thread.save(1, run=run)
        thread.save(2)
        assert saved.run == "r"
        assert [info.id for info in thread.history(run=run)] == [saved.id]
        assert thread.delete_checkpoints(run=run).checkpoints == 1
        with pytest.raises(outlive.errors.BadArgument, match="run must be a str"):
            thread.save(3, run=saved)


def test_runs_locks_and_workers_show_what_they_are():
    with outlive.open("memory:") as store:
        run = store.run("t", run_id="r")
        assert repr(run) == "<Run 'r' of 't' not started>"
        with run:
            assert repr(run) == "<Run 'r' of 't' running attempt 1>"
        assert repr(run) == "<Run 'r' of 't' completed attempt 1>"
        lock = store.lock("t", namespace="sub")
        assert repr(lock) == "<Lock on 't' namespace 'sub' not held>"
        with lock:
            assert repr(lock) == f"<Lock on 't' namespace 'sub' held, fence {lock.fence}>"
        worker = store.worker({"*": print}, interval_s=2)
        assert repr(worker) == f"<Worker {worker.id} 0 of 8 hands busy>"
        worker.stop()
        assert repr(worker) == f"<Worker {worker.id} ending>"
