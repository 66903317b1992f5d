"""Copies between stores, and threads as JSON: whole, repeatable, and equal to what they were made of."""

import asyncio
import copy
import datetime as dt
import json
import random
import threading

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlive
from format.test_codec import CODEC, VALUES
from outlive import testing
from outlive.backend import ThreadKey
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.sync_local import SyncLocal
from outlive.errors import NewerFormat
from outlive.format.extensions import Raw
from outlive.format.manifest import needs_parent
from outlive.format.readable import changed, changes, packed, readable, readable_text, text_of
from outlive.runtime.runtime import run_now
from outlive.threads.save import Draft, Save
from rig.crash import LONG, rounds
from rig.replicas import open_pair

BACKENDS = ("sqlite", "file", "postgresql", "redis")
KEY = outlive.KeyRing({"k": bytes(range(32))})


def fill(store, *ids):
    for id in ids:
        thread = store.thread(id)
        for n in range(6):
            thread.save(
                {"n": n, "said": [f"{id} {i} " * 40 for i in range(n * 3)], "pair": (n, {n})},
                step=n,
                metadata={"n": (n,)},
                interrupts=[outlive.Interrupt("i", "node", {n})] if n == 5 else [],
            )
        store.thread(id, namespace="sub").save({"of": id})
        thread.write("task", [("c", id * 300), ("__error__", "x")])
        thread.write("early", [("c", 1)], checkpoint="not saved yet")
        thread.set_metadata({"title": id})
        with store.run(id, agent="a", prompt="p", run_id=f"run of {id}") as run:
            run.step("s", lambda: 1)
            run.complete({"result"})


def contents(store, id):
    """Return all that a store has of a thread, but for names of chunks and counters of its own."""
    thread = store.thread(id)
    steps = [
        (item.namespace, item.id, item.parent, item.seq, item.epoch, item.step, item.source, item.run, item.created_at,
         item.metadata, item.interrupts, store.thread(id, namespace=item.namespace).load(item.id),
         store.thread(id, namespace=item.namespace).writes(item.id))
        for item in thread.history(all_namespaces=True)
    ]  # fmt: skip
    return steps, thread.writes("not saved yet"), thread.metadata()


def runs(store, id):
    return [(run.id, run.status, run.prompt, run.result, run.attempt) for run in store.runs(thread=id)]


def memory_store(inner, **options):
    served = outlive.factory.BackendFactory("memory:", lambda _: inner, None)
    settings = outlive.factory.Settings("memory:")
    target = outlive.factory.StoreConfig(served, settings, 1 << 20, outlive.factory.EventSink(), **options)
    return outlive.Store(run_now(outlive.factory._open_inline(target)))


# Store to store ----------------------------------------------------------------------------------------------


EVERY = [(one, two) for one in BACKENDS for two in BACKENDS if one != two]
ROUND = list(
    zip(BACKENDS, (*BACKENDS[1:], BACKENDS[0]), strict=True)
)  # each once as source and once as target


@pytest.mark.parametrize("source, target", EVERY if LONG else ROUND)
def test_any_store_is_copied_into_any_other(source, target, url_for, tmp_path):
    told = []
    with outlive.open(url_for(source, tmp_path)) as one, outlive.open(url_for(target, tmp_path)) as two:
        fill(one, "a", "b")
        assert one.copy_to(two, progress=lambda *said: told.append(said)) == 2
        assert told == [(1, 2), (2, 2)]
        for id in "ab":
            assert contents(two, id) == contents(one, id)
            assert runs(two, id) == runs(one, id)
        assert two.verify().ok
        with two.run("a", run_id="run of a") as run:
            assert run.result == {"result"}  # the ledger came along: nothing runs twice


def test_a_copy_into_an_encrypted_store_is_how_one_is_made(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/plain.db") as plain:
        fill(plain, "a")
        with outlive.open(f"sqlite:///{tmp_path}/sealed.db", key=KEY) as sealed:
            plain.copy_to(sealed)
            assert contents(sealed, "a") == contents(plain, "a")
            assert sealed.backup(f"sqlite:///{tmp_path}/backup.db") == 1
        with outlive.open(f"sqlite:///{tmp_path}/backup.db", key=KEY) as backup:
            assert contents(backup, "a") == contents(plain, "a")
        with outlive.open("memory:") as out:
            with outlive.open(f"sqlite:///{tmp_path}/sealed.db", key=KEY) as sealed:
                sealed.copy_to(out)
            assert contents(out, "a") == contents(plain, "a")


def test_some_threads_are_copied_and_an_id_that_is_not_there_is_told():
    with outlive.open("memory:") as one, outlive.open("memory:") as two:
        fill(one, "a", "b", "c")
        assert one.copy_to(two, threads=["a", "c"]) == 2
        assert [info.id for info in two.threads()] == ["a", "c"]
        for wrong in (["d"], ["a", "zz"], "a", [1], 5):
            with pytest.raises(outlive.errors.BadArgument):
                one.copy_to(two, threads=wrong)
        for target in (one, "memory:", None):
            with pytest.raises(outlive.errors.BadArgument):
                one.copy_to(target)


def test_without_a_key_nothing_is_copied_rather_than_what_can_be_seen(tmp_path):
    url = f"sqlite:///{tmp_path}/sealed.db"
    with outlive.open(url, key=KEY) as store:
        store.thread("only metadata").set_metadata({"title": "x"})
    with outlive.open(url, key=outlive.KeyRing()) as store, outlive.open("memory:") as target:
        with pytest.raises(outlive.errors.KeyMissing):
            store.copy_to(target)


def test_what_did_not_change_since_a_moment_is_left_out():
    with outlive.open("memory:") as one, outlive.open("memory:") as two:
        one.thread("old").save(1)
        moment = dt.datetime.now(dt.UTC)
        one.thread("new").save(1)
        assert one.copy_to(two, since=moment) == 1
        assert [info.id for info in two.threads()] == ["new"]
        with pytest.raises(outlive.errors.BadArgument):
            one.copy_to(two, since=dt.datetime.now())


def test_runs_of_a_thread_that_has_nothing_else_come_along():
    with outlive.open("memory:") as one, outlive.open("memory:") as two:
        one.run("t", run_id="r", prompt="p", lease_s=1).start()
        one.thread("t").delete_checkpoints([one.thread("t").checkpoint().id])
        assert [info.checkpoints for info in one.threads()] == [0]
        one.copy_to(two)
        assert runs(two, "t") == [("r", "running", "p", None, 1)]


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_a_run_that_was_copied_goes_on_in_the_target_and_a_repeated_copy_leaves_it_alone(
    backend, url_for, tmp_path
):
    with outlive.open("memory:") as source, outlive.open(url_for(backend, tmp_path)) as target:
        thread = source.thread("t")
        for n in range(20):  # fences are counted in commits, of which a copy needs fewer
            thread.save({"n": n})
        run = source.run("t", run_id="r", agent="a").start()
        with pytest.raises(ZeroDivisionError):
            run.step("s", effect=True)(lambda: 1 / 0)()
        thread.write("task", [("__error__", "old")])
        at = thread.checkpoint().id
        run.release()
        source.copy_to(target)
        target.thread("t").write("task", [("__error__", "new")], checkpoint=at)
        report = target.recover({"a": lambda run: run.step("s", effect=True)(lambda: 5)()})
        assert (len(report.resumed), report.failed) == (1, [])
        source.copy_to(target)
        assert runs(target, "t") == [("r", "completed", None, 5, 2)]
        assert [write.value for write in target.thread("t").writes(at)] == ["new"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_was_deleted_from_a_pair_comes_back_from_a_backup_into_both(mode, tmp_path, monkeypatch):
    one, two, saved = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two", "saved"))
    with open_pair(one, two, mode=mode, key=KEY) as store:
        fill(store, "a")
        expected, of_run = contents(store, "a"), runs(store, "a")
        store.backup(saved)
        store.delete("a")
        with outlive.open(saved, key=KEY) as backup:
            with monkeypatch.context() as patched, testing.tuned(copy_page=2):
                bring, left = outlive.threads.copy._Copy._put, iter([True, True])

                async def cut_off(*args, **fields):
                    if not next(left, False):
                        raise Died
                    return await bring(*args, **fields)

                patched.setattr(outlive.threads.copy._Copy, "_put", cut_off)
                with pytest.raises(Died):
                    backup.copy_to(store)
            assert 0 < len(ids(store)) < len(expected[0])
            backup.copy_to(store)
            backup.copy_to(store)
        place = lambda step: (*step[:3], *step[4:])  # noqa: E731  # all but the seq, which continues after the deletion
        assert [place(step) for step in contents(store, "a")[0]] == [place(step) for step in expected[0]]
        assert runs(store, "a") == of_run
        store.promote()
        assert [place(step) for step in contents(store, "a")[0]] == [place(step) for step in expected[0]]
        assert runs(store, "a") == of_run
        store.thread("a").prune(keep_last=1)
        left = ids(store)
        with outlive.open(saved, key=KEY) as backup:
            backup.copy_to(store)
        assert ids(store) == left  # single ones stay deleted for an hour
        assert store.verify().ok


def ids(store):
    return [item.id for item in store.thread("a").history(all_namespaces=True)]


class Counting:
    """A backend that counts what passes, and dies when it is told to."""

    def __init__(self, inner, calls=1 << 60):
        self.inner, self.left, self.name, self.sent = inner, calls, inner.name, 0

    def __getattr__(self, name):
        method = getattr(self.inner, name)

        async def call(*args, **options):
            self.left -= 1
            if self.left < 0:
                raise Died
            if name == "commit_all":
                self.sent += sum(len(data) for commit in args[0] for _, data in commit.chunks)
            return await method(*args, **options)

        return call


class Died(BaseException):
    pass


@pytest.mark.parametrize("batch", [1, 8 << 20])
def test_a_copy_that_dies_at_any_call_leaves_whole_checkpoints_and_goes_on(batch, tuned):
    tuned(transfer_batch_bytes=batch)
    source = outlive.open("memory:")
    fill(source, "a", "b")
    expected = {id: contents(source, id) for id in "ab"}
    calls = 0
    while True:
        local = MemoryBackend()
        dying = Counting(SyncLocal(local))
        target = memory_store(dying)
        dying.left = calls
        is_over = True
        try:
            source.copy_to(target)
        except Died:
            is_over = False
        there = memory_store(SyncLocal(local))
        assert there.verify().ok
        for id in "ab":
            history = contents(there, id)[0]
            assert [step[:12] for step in history] == [step[:12] for step in expected[id][0]][
                len(expected[id][0]) - len(history) :
            ]
        source.copy_to(there)
        assert {id: contents(there, id) for id in "ab"} == expected
        if is_over:
            break
        calls += 1
    assert calls > 15


def test_a_repeated_copy_sends_only_what_is_new():
    source, counting = outlive.open("memory:"), Counting(SyncLocal(MemoryBackend()))
    fill(source, "a")
    target = memory_store(counting)
    source.copy_to(target)
    first, counting.sent = counting.sent, 0
    before = run_now(counting.inner.inventory(ThreadKey.of("", "a")))
    source.copy_to(target)
    assert (first > 1000, counting.sent) == (True, 0)
    assert (
        run_now(counting.inner.inventory(ThreadKey.of("", "a"))) == before
    )  # not even a commit: that would count as use
    source.thread("a").save({**source.thread("a").load(), "n": "new" * 100})
    source.copy_to(target)
    assert 0 < counting.sent < 1000


def test_damage_in_the_source_stops_the_copy_by_name():
    local = MemoryBackend()
    source, target = memory_store(SyncLocal(local)), outlive.open("memory:")
    fill(source, "a")
    key = next(iter(local._data))
    local._data[key] = local._data[key][:-1] + b"?"
    fill(source, "b")
    with pytest.raises(outlive.Corrupt) as raised:
        memory_store(SyncLocal(local)).copy_to(target)
    assert raised.value.thread == "a"
    assert contents(target, "b") == contents(source, "b")  # the others are there all the same


def test_a_target_that_stores_something_else_is_found():
    class Lying(MemoryBackend):
        def _apply(self, table, effect):
            super()._apply(table, effect)
            for name, _ in effect.chunks:
                self._data[table.key.digest, name] = b"\1\0\0\0\0\1?"

    source = outlive.open("memory:")
    fill(source, "a")
    with pytest.raises(outlive.Corrupt):
        source.copy_to(memory_store(SyncLocal(Lying())))


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_a_copy_goes_on_while_others_save_prune_and_fork_on_both_sides(backend, url_for, tmp_path):
    url, other = url_for(backend, tmp_path), f"sqlite:///{tmp_path}/other.db"
    stop, failures = threading.Event(), []

    def work(url, seed):
        rng = random.Random(seed)
        try:
            with outlive.open(url) as store:
                n = 0
                while not stop.is_set():
                    thread = store.thread(rng.choice("ab"))
                    thread.save(
                        {"n": n, "said": [f"{i} {'x' * 200}" for i in range(n % 20)]}, metadata={"seed": seed}
                    )
                    n += 1
                    if n % 5 == 0:
                        thread.prune(keep_last=3)
                    if n % 11 == 0:
                        store.delete(f"fork {seed}")
                        thread.fork(f"fork {seed}")
        except BaseException as error:
            failures.append(error)

    with outlive.open(url) as source, outlive.open(other) as target:
        fill(source, "a", "b")
        threads = [threading.Thread(target=work, args=(place, n)) for n, place in enumerate((url, other))]
        for thread in threads:
            thread.start()
        try:
            for _ in range(rounds(6)):
                source.copy_to(target)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []
        source.copy_to(target)
        assert source.verify().ok
        assert target.verify().ok
        for id in "ab":
            ids = {item.id for item in target.thread(id).history()}
            assert {item.id for item in source.thread(id).history()} <= ids


def test_both_colours_copy(tmp_path):
    async def scenario():
        async with outlive.open_async(f"sqlite:///{tmp_path}/a.db") as one:
            async with outlive.open_async("memory:") as two:
                await one.copy_to(two)
                text = await two.thread("a").export()
                made = await two.import_thread(text, id="made")
                return await made.load(), await two.thread("a").load()

    with outlive.open(f"sqlite:///{tmp_path}/a.db") as store:
        fill(store, "a")
        expected = store.thread("a").load()
        assert asyncio.run(scenario()) == (expected, expected)


# JSON ---------------------------------------------------------------------------------------------------------


@given(VALUES)
@settings(max_examples=rounds(60, 5000))
def test_any_value_is_written_as_json_and_comes_back_to_the_same_bytes(value):
    data = CODEC.pack(value)
    form = readable(data)
    text = json.dumps(form, ensure_ascii=False)
    text.encode()  # whatever it holds, it can be written into a file
    assert packed(json.loads(text)) == data


@given(st.text(st.characters(exclude_categories=())))
def test_any_id_is_written_as_json_and_comes_back(text):
    form = readable_text(text)
    json.dumps(form, ensure_ascii=False).encode()
    assert text_of(json.loads(json.dumps(form))) == text


FORMS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, -0.0, 1.0]), st.text("ab$", max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text("ab$", max_size=2), inner, max_size=4)),
    max_leaves=15,
)  # fmt: skip


@given(FORMS, FORMS)
@settings(max_examples=rounds(150, 10_000))
def test_changes_make_one_form_of_another_exactly(old, new):
    kept = copy.deepcopy(old)
    said = json.loads(json.dumps(changes(old, new)))
    assert json.dumps(changed(old, said)) == json.dumps(new)
    assert old == kept
    assert changes(new, new) == []


def test_common_values_are_readable():
    value = {
        "when": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "pair": (1, 2.5),
        "tags": {"x"},
        "raw": b"\0\1",
        "nan": float("nan"),
        3: "three",
    }
    assert readable(CODEC.pack(value)) == {
        "$map": [
            ["when", {"$datetime": "2026-01-02T03:04:05.000000", "zone": 0}],
            ["pair", {"$tuple": [1, 2.5]}],
            ["tags", {"$set": ["x"]}],
            ["raw", {"$bytes": "AAE="}],
            ["nan", {"$float": "nan"}],
            [3, "three"],
        ]
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exported_thread_is_imported_as_an_equal_one(backend, url_for, tmp_path):
    with outlive.open(url_for(backend, tmp_path), key=KEY if backend == "sqlite" else None) as store:
        fill(store, "a\ud800")
        thread = store.thread("a\ud800")
        thread.save({"branch": 1}, parent=next(thread.history(limit=1)).parent)
        text = thread.export()
        with outlive.open("memory:") as other:
            made = other.import_thread(text.encode())
            assert contents(other, made.id) == contents(store, "a\ud800")
            assert json.loads(made.export()) == json.loads(text)
            assert other.verify().ok
            assert other.size().stored_bytes < thread.size().state_bytes  # what is the same is stored once
            with pytest.raises(outlive.errors.ThreadNotEmpty):
                other.import_thread(text)
            assert other.import_thread(text, id="again").load() == thread.load()
            assert made.save({"n": 9}).seq == next(thread.history(limit=1)).seq + 1


@given(st.lists(VALUES, min_size=1, max_size=4))
@settings(max_examples=rounds(8, 500))
def test_a_history_of_any_states_comes_back(states):
    with outlive.open("memory:") as store:
        engine = store._store._engine
        engine.codec = CODEC
        thread = store.thread("t")
        for state in states:
            thread.save(state, metadata={"state": state})
        made = store.import_thread(thread.export(), id="made")
        for one, two in zip(thread.history(), made.history(), strict=True):
            assert CODEC.pack(one.metadata) == CODEC.pack(two.metadata)
            assert CODEC.pack(thread.load(one.id)) == CODEC.pack(made.load(two.id))


def test_an_export_of_a_long_conversation_grows_with_what_is_new():
    with outlive.open("memory:") as store:
        thread = store.thread("t")
        messages = []
        for n in range(60):
            messages.append({"role": "user", "content": f"message {n} " * 20})
            thread.save({"messages": messages})
        text = thread.export()
        assert len(text) < 4 * store.thread("t").checkpoint().state_bytes
        assert '"splice"' in text
        assert store.import_thread(text, id="made").load() == {"messages": messages}


GOOD = {"outlive": 1, "thread": "t", "checkpoints": [{"id": "a", "state": 1}]}
BAD = {
    "no JSON": "{",
    "something else": "[]",
    "no version": '{"thread": "t"}',
    "no id": '{"outlive": 1}',
    "deep": "[" * 100_000,
    "an id that is a number": json.dumps({**GOOD, "thread": 5}),
    "an id that is too long": json.dumps({**GOOD, "thread": "x" * 1001}),
    "checkpoints that are no list": json.dumps({**GOOD, "checkpoints": {}}),
    "a checkpoint that is none": json.dumps({**GOOD, "checkpoints": [1]}),
    "no state": json.dumps({**GOOD, "checkpoints": [{"id": "a"}]}),
    "an unknown mark": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": {"$eval": "x"}}]}),
    "wrong base64": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": {"$bytes": "?"}}]}),
    "packed nonsense": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": {"$packed": "wQ=="}}]}),
    "a wrong array": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": {"$ndarray": ["O", [1], "x"]}}]}),
    "a wrong source": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": 1, "source": "me"}]}),
    "a wrong place": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": 1, "seq": -1}]}),
    "a wrong time": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": 1, "created_at": "now"}]}),
    "changes of nothing": json.dumps({**GOOD, "checkpoints": [{"id": "a", "changes_of": "b", "changes": []}]}),
    "changes that do not fit": json.dumps(
        {**GOOD, "checkpoints": [{"id": "a", "state": 1}, {"id": "b", "changes_of": "a", "changes": [{"at": ["x", 1], "set": 1}]}]}
    ),
    "metadata that is no mapping": json.dumps({**GOOD, "metadata": [1]}),
    "said that is no mapping": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": 1, "metadata": 3}]}),
    "a write without a task": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": 1, "writes": [{"index": 0}]}]}),
    "a checkpoint twice": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": 1}, {"id": "a", "state": 2}]}),
    "an array of objects": json.dumps(
        {**GOOD, "checkpoints": [{"id": "a", "state": {"$ndarray": ["O", [1], {"$bytes": ""}]}}]}
    ),
    "a source that is none": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": 1, "source": {}}]}),
    "an id that is no text": json.dumps({**GOOD, "checkpoints": [{"id": {"$text": "\\uzzzz"}, "state": 1}]}),
    "a removal that does not fit": json.dumps(
        {**GOOD, "checkpoints": [{"id": "a", "state": [1]}, {"id": "b", "changes_of": "a", "changes": [{"at": [0], "remove": True}]}]}
    ),
    "an index that no engine holds": json.dumps(
        {**GOOD, "checkpoints": [{"id": "a", "state": 1, "writes": [{"index": 1 << 60, "task": "t", "channel": "c"}]}]}
    ),
    "a rank that no engine holds": json.dumps(
        {**GOOD, "checkpoints": [{"id": "a", "state": 1, "writes": [{"index": -1, "task": "t", "channel": "c", "rank": [0, 0, 1 << 60]}]}]}
    ),
    **{
        f"{mark} of {what!r}": json.dumps({**GOOD, "checkpoints": [{"id": "a", "state": {mark: what}}]})
        for mark in ("$packed", "$datetime", "$time", "$date", "$uuid", "$decimal", "$bytes", "$text", "$int", "$map", "$dict")
        for what in (5, "?\\u", [1], {"a": 1})
    },
    "a write without a place": json.dumps({**GOOD, "writes": [{"index": 0, "task": "t", "channel": "c"}]}),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_export_is_refused_and_leaves_nothing(what):
    with outlive.open("memory:") as store:
        with pytest.raises(outlive.errors.BadArgument):
            store.import_thread(BAD[what])
        assert list(store.threads()) == []
        assert store.import_thread(json.dumps(GOOD)).load() == 1


def test_what_only_an_adapter_can_build_is_readable_and_comes_back():
    message = ormsgpack.packb(
        ["langchain_core.messages", "AIMessage", {"content": "hi", "x": ormsgpack.Ext(2, b"\xc1")}]
    )
    with outlive.open("memory:") as store:
        store.thread("t").save({"messages": [Raw(53, message)], "n": 1})
        store.thread("t").save({"messages": [Raw(53, message), Raw(48, b"\xc1 none")], "n": 2})
        text = store.thread("t").export()
        first, second = json.loads(text)["checkpoints"]
        assert first["state"]["messages"] == [
            {
                "$extension": 53,
                "value": [
                    "langchain_core.messages",
                    "AIMessage",
                    {"content": "hi", "x": {"$extension": 2, "bytes": "wQ=="}},
                ],
            }
        ]
        made = store.import_thread(text, id="made")
        assert json.loads(made.export())["checkpoints"] == [first, second]
        assert store.verify().ok


def test_that_a_checkpoint_needs_its_parent_is_exported_too():
    with outlive.open("memory:") as store:
        engine = store._store._engine
        for id in ("whole", "difference"):
            draft = Draft("", id, needs_parent=id == "difference")
            run_now(Save(engine, ThreadKey.of("", "t"), {"of": id}, draft).run())
        made = store.import_thread(store.thread("t").export(), id="made")
        assert [
            needs_parent(record.body) for record in run_now(engine.records(ThreadKey.of("", "made")))
        ] == [
            True,
            False,
        ]
        assert made.prune(keep_last=1).checkpoints == 0


def test_an_export_of_a_newer_outlive_is_refused_by_both_versions():
    with outlive.open("memory:") as store, pytest.raises(NewerFormat):
        store.import_thread('{"outlive": 2, "thread": "t"}')
