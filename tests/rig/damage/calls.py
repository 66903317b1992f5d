"""What is stored, and every public call that can be made on it. An answer is plain data, the same each time."""

import dataclasses
import datetime as dt
import random

import outlive
from outlive import Corrupt, Interrupt

THREADS = ["alice", "bob", "nobody"]
IDS = ["c0", "c1", "c2", "c3", "asked", "none"]
RUNS = ["done", "half", "lost"]


# What is stored ----------------------------------------------------------------------------------------


def _text(rng, size):
    return "".join(rng.choices("abcdefgh ", k=size))


def fill(store):
    """Store something of everything."""
    rng = random.Random(5)
    for name in ("alice", "bob"):
        thread = store.thread(name)
        messages = [{"role": "user", "content": _text(rng, 300)} for _ in range(9)]
        for n in range(3):
            messages.append({"role": "tool", "content": _text(rng, 300)})
            thread.save({"messages": messages, "n": n}, id=f"c{n}", metadata={"n": n})
        thread.write("task1", [("a", 1), ("b", _text(rng, 900))])
        thread.set_metadata({"title": "first"})
        sub = store.thread(name, namespace="sub")
        sub.save({"n": 0}, id="c0")
        sub.save({"n": 1}, id="c1")
    with store.run("alice", run_id="done", agent="planner") as run:
        run.step("add", lambda: 1)
    run = store.run("alice", run_id="half", agent="planner").start()
    run.step("add", lambda: 1)
    run.responses.open(["m1", "m2"], prompt="why?")
    run.responses.complete("m1", {"text": "because"})
    run.release()
    store.run("bob", run_id="lost", agent="planner").start().release()


def fill_more(store):
    """Change most of it: what is there by now has older copies."""
    rng = random.Random(6)
    for name in ("alice", "bob"):
        thread = store.thread(name)
        thread.save({"n": 3, "text": _text(rng, 2000)}, id="c3", run="done")
        thread.save(
            {"n": 4}, id="asked", source="interrupt", interrupts=[Interrupt("q1", "ask", {"text": "sure?"})]
        )
        thread.write("task2", [("a", [1, 2])])
        thread.set_metadata({"title": f"about {name}"})
        store.thread(name, namespace="sub").save({"n": 2}, id="c2")
    run = store.run("alice", run_id="half").start()
    run.step("add", lambda: 1)
    run.step("send", effect=True)(lambda: "sent")()
    run.responses.open(["m1", "m2"], prompt="why?")
    run.responses.update("m2", {"text": "part"})
    run.release()


# Answers ------------------------------------------------------------------------------------------------


def plain(value):
    """Return an answer as data that can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.name.startswith("_") and field.name != "owner"
        }
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes | str | int | float | bool | dt.datetime | type(None)):
        return value
    return repr(value)


class Told(Corrupt):
    """A call went around what is damaged, and said so in its answer."""


def _readable(runs):
    runs = list(runs)
    if unreadable := [run.error for run in runs if not run.is_readable]:
        raise Told(unreadable[0])
    return runs


def _reads():
    yield "threads", lambda store: [plain(info) for info in store.threads()]
    yield "threads by title", lambda store: [t.id for t in store.threads(filter={"title": "about bob"})]
    yield "runs", lambda store: [(run.id, run.status, run.attempt) for run in _readable(store.runs())]
    yield "recoverable", lambda store: sorted(run.id for run in _readable(store.recoverable()))
    for name in THREADS:
        for space in ("", "sub"):
            at = lambda store, name=name, space=space: store.thread(name, namespace=space)  # noqa: E731
            for call, read in _THREAD_READS.items():
                yield f"{call} of {name}/{space}", lambda store, at=at, read=read: plain(read(at(store)))
        for call, read in _WHOLE_READS.items():
            yield f"{call} of {name}", lambda store, name=name, read=read: plain(read(store.thread(name)))


_THREAD_READS = {
    "load": lambda thread: thread.load(),
    "checkpoint": lambda thread: thread.checkpoint(),
    "exists": lambda thread: thread.exists(),
    "history": lambda thread: list(thread.history()),
    "first page": lambda thread: [one.id for one in thread.history(limit=2)],
    "heads": lambda thread: thread.tips(),
    "lineage": lambda thread: thread.lineage(),
    **{f"load {one}": lambda thread, one=one: thread.load(one) for one in IDS},
    **{f"exists {one}": lambda thread, one=one: thread.exists(one) for one in IDS},
    **{f"writes {one}": lambda thread, one=one: thread.writes(one) for one in IDS},
}
_WHOLE_READS = {
    "info": lambda thread: thread.info(),
    "metadata": lambda thread: thread.metadata(),
    "interrupts": lambda thread: thread.interrupts(),
    "everything": lambda thread: list(thread.history(all_namespaces=True)),
    "history of a run": lambda thread: [one.id for one in thread.history(run="done")],
    "export": lambda thread: thread.export(),
    "diff": lambda thread: thread.diff("c0", "c3"),
    "size": lambda thread: thread.size(),
}


# Changes ---------------------------------------------------------------------------------------------------


def _short(checkpoint):
    return checkpoint.id, checkpoint.parent, checkpoint.seq


def _line(thread):
    return [(one.id, one.parent) for one in thread.history()]


def _start(store, thread, run_id):
    """Start or resume a run; return what its steps and models say, and which functions were called."""
    called = []
    run = store.run(thread, run_id=run_id).start()
    if run.is_finished:
        return run.status, plain(run.result)
    values = [run.step(name, key=None)(called.append)(name) for name in ("add", "send") if run_id == "half"]
    responses = run.responses.open().all() if run_id == "half" else []
    answer = values, called, [plain(one) for one in responses], run.info.attempt
    run.release()
    return answer


def _recover(store):
    report = store.recover({None: lambda run: None, "planner": lambda run: None})
    if report.skipped:
        raise Told(report.skipped[0].message)
    return sorted(run.id for run in report.resumed), len(report.failed)


def _sweep(store):
    swept = store.sweep(retain=outlive.Retain(keep_last=2))
    if swept.problems:
        raise Told(swept.problems[0])
    return swept.keep_last.checkpoints


def _copy(store):
    with outlive.open("memory:") as other:
        store.copy_to(other)
        return {name: plain(other.thread(name).load()) for name in THREADS}, [r.id for r in other.runs()]


def _delete(store, name):
    was = store.delete(name)
    left = store.thread(name)
    return was, left.load(), left.info(), left.save({"again": 1}).parent, left.load(), left.verify().problems


CHANGES = {
    "save": lambda store: [
        _short(store.thread("alice").save({"new": 1}, id="new")),
        _line(store.thread("alice")),
    ],
    "save if head": lambda store: _short(store.thread("alice").save({"new": 1}, id="new", expect="asked")),
    "save again": lambda store: _short(store.thread("alice").save({"n": 4}, id="again", parent="c1")),
    "save in a namespace": lambda store: _short(store.thread("bob", namespace="sub").save({"n": 9}, id="n")),
    "replace": lambda store: store.thread("alice").save({"n": 7}, id="c3", replace=True).id,
    "write": lambda store: [
        store.thread("alice").write("task9", [("a", 1)]),
        plain(store.thread("alice").writes()),
    ],
    "update": lambda store: [store.thread("alice").set_metadata({"x": 1}), store.thread("alice").metadata()],
    "resume": lambda store: [
        store.thread("bob").resume("q1", "yes"),
        plain(store.thread("bob").interrupts()),
    ],
    "fork": lambda store: [_line(store.thread("alice").fork("fork")), plain(store.thread("fork").load())],
    "fork at": lambda store: _line(store.thread("bob").fork("fork", checkpoint="c1")),
    "copy": lambda store: _line(store.thread("bob").copy("copy")),
    "prune": lambda store: [
        store.thread("alice").prune(keep_last=2).checkpoints,
        _line(store.thread("alice")),
    ],
    "remove": lambda store: [
        store.thread("bob").delete_checkpoints(["c2"]).checkpoints,
        [one.id for one in store.thread("bob").history()],
    ],
    "sweep": _sweep,
    "start": lambda store: _start(store, "bob", "fresh"),
    "start half": lambda store: _start(store, "alice", "half"),
    "start done": lambda store: _start(store, "alice", "done"),
    "recover": _recover,
    "cancel": lambda store: store.cancel("lost").status,
    "park": lambda store: store.park("half").status,
    "retry": lambda store: store.retry("half").status,
    "lock": lambda store: store.lock("bob").acquire().release(),
    "copy to": _copy,
    "import": lambda store: _line(store.import_thread(store.thread("bob").export(), id="imported")),
    "delete": lambda store: _delete(store, "alice"),
    "delete the other": lambda store: _delete(store, "bob"),
}
READS = dict(_reads())
