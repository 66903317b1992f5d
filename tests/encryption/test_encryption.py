"""An encrypted store: nothing of what was said can be read or moved without the key, and keys can be changed under way."""

import asyncio
import base64
import contextlib
import os
import pickle
import random
import sqlite3
import subprocess
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlive
from outlive.backend import Commit, Removal, ThreadKey
from outlive.backends.local.async_local import AsyncLocal
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.sync_local import SyncLocal
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.layers.encryption.keyring import KeyRing, key_of
from outlive.layers.encryption.layer import Encrypted, aad_of_chunk
from outlive.runtime.runtime import run_now
from outlive.testing import MachineContract, Opener, StoreContract
from outlive.testing.records.entries import EntryContract
from outlive.testing.records.expectations import ExpectationContract
from outlive.testing.records.odd_ids import IdContract
from outlive.testing.records.writes import WriteContract
from outlive.testing.store.copies import CopyContract
from outlive.testing.store.damage import DamageContract
from outlive.testing.store.delayed import DelayedContract
from outlive.testing.store.history import HistoryContract
from outlive.testing.store.pending import PendingContract
from outlive.testing.store.pruning import PruningContract
from outlive.testing.store.races import RaceContract
from outlive.testing.store.runs import RunContract
from outlive.testing.store.saving import SavingContract
from outlive.testing.store.streams import StreamContract
from outlive.testing.store.waiting import WaitingContract
from rig.crash import LONG, ram_folder, rounds
from rig.replicas import open_pair

OLD, NEW = random.Random(1).randbytes(32), random.Random(2).randbytes(32)
RING = KeyRing({"old": OLD})
BOTH = KeyRing({"old": OLD, "new": NEW})
SECRET = "the launch code is 0451"
BACKENDS = ("sqlite", "file", "postgresql", "redis")


# The contract ---------------------------------------------------------------------------------------------


class _Promises(
    StoreContract, MachineContract, EntryContract, ExpectationContract, IdContract, WriteContract
):
    """All that does not count stored bytes or compare them by their order: sealed bytes are more, and others."""


class _InShort(
    SavingContract,
    HistoryContract,
    PendingContract,
    CopyContract,
    PruningContract,
    RaceContract,
    DamageContract,
    DelayedContract,
    RunContract,
    WaitingContract,
    StreamContract,
    MachineContract,
    EntryContract,
    ExpectationContract,
    IdContract,
    WriteContract,
):
    """Every kind of record that is sealed, on every way to the store."""


@pytest.mark.long_io_mode("async")
class TestEncryptedMemory(_Promises if LONG else _InShort):
    @pytest.fixture
    def backend(self):
        inner = MemoryBackend()

        async def asynchronous():
            return Encrypted(AsyncLocal(inner), RING)

        return Opener(lambda: Encrypted(SyncLocal(inner), RING), asynchronous, survives=False)


class _OnFile(DamageContract, CopyContract, PruningContract):
    """What looks at stored rows most closely: a file refers to chunks in a way of its own."""


@pytest.mark.long_io_mode("sync")
class TestEncryptedSQLite(StoreContract if LONG else _OnFile):
    @pytest.fixture
    def backend(self):
        with ram_folder() as folder:
            path = str(folder / "store.db")

            async def asynchronous():
                return Encrypted(AsyncLocal(SQLiteBackend(path, fsync="normal")), RING)

            yield Opener(
                lambda: Encrypted(SyncLocal(SQLiteBackend(path, fsync="normal")), RING), asynchronous
            )


# What lies in the store --------------------------------------------------------------------------------------


def fill(store, id="thread"):
    """Say the secret in every way there is."""
    thread = store.thread(id)
    for n in range(3):
        thread.save({"n": n, "said": [f"{SECRET} {n} {i}" for i in range(30)]}, metadata={"about": SECRET})
    thread.save(
        {"n": 3, "said": SECRET},
        next_nodes=[SECRET],
        interrupts=[outlive.Interrupt("question", "node", SECRET)],
    )
    thread.write("task", [("channel", SECRET * 9), ("__error__", SECRET)])
    thread.set_metadata({"title": SECRET})
    with store.run(id, agent=SECRET, prompt=SECRET, attributes={"who": SECRET}) as run:
        run.step("step", lambda: SECRET)
        run.save({"n": 4, "said": SECRET})
        run.complete(SECRET)


def read(store, id="thread"):
    """Return all that was said."""
    thread = store.thread(id)
    steps = [(item.metadata, item.next_nodes, thread.load(item.id)) for item in thread.history()]
    writes = [(write.channel, write.value) for item in thread.history() for write in thread.writes(item.id)]
    runs = [(run.agent, run.prompt, run.attributes, run.result, run.status) for run in store.runs(thread=id)]
    return steps, writes, thread.metadata(), runs


@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_no_byte_of_what_was_said_lies_in_any_file(backend, url_for, tmp_path):
    for ring, is_found in ((None, True), (RING, False)):
        folder = tmp_path / str(is_found)
        folder.mkdir()
        with outlive.open(url_for(backend, folder), key=ring) as store:
            fill(store)
            files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
            assert any(b"launch code" in data for data in files) is is_found
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert any(b"launch code" in data for data in files) is is_found


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_saved_under_a_key_comes_back_as_without_one(backend, url_for, tmp_path):
    with outlive.open("memory:") as plain, outlive.open(url_for(backend, tmp_path), key=RING) as store:
        fill(plain)
        fill(store)
        assert read(store) == read(plain)
        fork = store.thread("thread").fork("fork")
        assert fork.load() == store.thread("thread").load()
        assert store.thread("thread").prune(keep_last=2).checkpoints == 4
        assert store.verify().problems == ()


@pytest.mark.parametrize("ring", [None, RING], ids=["plain", "sealed"])
def test_nobody_sees_that_two_tenants_hold_the_same(ring, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    names = []
    for tenant in ("", "a", "b\ud800"):
        with outlive.open(url, key=ring, tenant=tenant) as store:
            store.thread("t").save({"said": SECRET * 99})
            store.thread("fork of t").save({"said": SECRET * 99})
        with outlive.open(url, key=ring, tenant=tenant) as store:
            assert store.thread("t").load() == {"said": SECRET * 99}
            assert store.verify().ok
            backend = store._store._engine.backend
            names.append(set(run_now(backend.inventory(ThreadKey.of(tenant, "t"))).chunks))
            assert names[-1] == set(run_now(backend.inventory(ThreadKey.of(tenant, "fork of t"))).chunks)
    assert len(set.union(*names)) == 3


def test_both_colours_read_what_the_other_sealed(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario():
        async with outlive.open_async(url, key=RING) as store:
            thread = store.thread("t")
            assert await thread.load() == {"n": 1}
            await thread.save({"n": 2})
            assert (await store.rotate()).total == 0

    with outlive.open(url, key=RING) as store:
        store.thread("t").save({"n": 1})
        asyncio.run(scenario())
        assert store.thread("t").load() == {"n": 2}


# Meddling ----------------------------------------------------------------------------------------------------


def memory_store(ring=RING, inner=None, tenant=""):
    """A store in memory whose rows a test can change: (store, the rows)."""
    inner = inner or MemoryBackend()
    engine_of = outlive.factory.StoreConfig
    served = outlive.factory.BackendFactory("memory:", lambda _: SyncLocal(inner), None)
    target = engine_of(
        served, outlive.factory.Settings("memory:", tenant), 0, outlive.factory.EventSink(), ring
    )
    return outlive.Store(run_now(outlive.factory._open_inline(target))), inner


def table_of(inner, id="thread", tenant=""):
    return inner._tables[ThreadKey.of(tenant, id).digest]


def edit(inner, what, change, id="thread"):
    """Change the sealed bytes of every record of a kind."""
    table = table_of(inner, id)
    if what == "body":
        table.records = {key: replace(row, body=change(row.body)) for key, row in table.records.items()}
    elif what == "write":
        table.pending = {
            pair: {key: replace(row, body=change(row.body)) for key, row in rows.items()}
            for pair, rows in table.pending.items()
        }
    elif what == "entry":
        table.entries = {key: replace(row, body=change(row.body)) for key, row in table.entries.items()}
    elif what == "info":
        table.metadata = change(table.metadata)
    else:
        inner._data = {
            key: change(data) if key[0] == table.key.digest else data for key, data in inner._data.items()
        }


LOOKS = {
    "body": lambda store: store.thread("thread").load(),
    "chunk": lambda store: store.thread("thread").load(next(store.thread("thread").history(limit=9, filter={"about": SECRET})).id),
    "write": lambda store: [store.thread("thread").writes(item.id) for item in store.thread("thread").history()],
    "entry": lambda store: list(store.runs()),
    "info": lambda store: store.thread("thread").metadata(),
}  # fmt: skip
other = KeyRing({"old": NEW})
MEDDLING = {
    "flipped": (lambda data: data[:-1] + bytes((data[-1] ^ 1,)), outlive.errors.Undecryptable),
    "flipped nonce": (lambda data: data[:8] + bytes((data[8] ^ 1,)) + data[9:], outlive.errors.Undecryptable),
    "cut": (lambda data: data[:-1], outlive.errors.Undecryptable),
    "cut to its header": (lambda data: data[:20], outlive.errors.Undecryptable),
    "emptied": (lambda data: b"", outlive.errors.PlainRecord),
    "in the clear": (lambda data: b"\x93\x01\x02\x03", outlive.errors.PlainRecord),
    "of another key with the same id": (lambda data: other.encrypt(b"x", data), outlive.errors.Undecryptable),
    "of a key that is not in the ring": (
        lambda data: data[:3] + b"odd" + data[6:],
        outlive.errors.KeyMissing,
    ),
    "of another algorithm": (lambda data: data[:1] + b"\x02" + data[2:], outlive.errors.NewerFormat),
    "of no algorithm": (lambda data: data[:1] + b"\x00" + data[2:], outlive.errors.Undecryptable),
    "sealed for another place": (lambda data: RING.encrypt(b"elsewhere", b"x"), outlive.errors.Undecryptable),
}


@pytest.mark.parametrize("how", MEDDLING)
@pytest.mark.parametrize("what", LOOKS)
def test_a_record_that_was_meddled_with_is_refused_by_name(what, how):
    store, inner = memory_store()
    fill(store)
    LOOKS[what](store)
    change, error = MEDDLING[how]
    edit(inner, what, change)
    with pytest.raises(error) as raised:
        LOOKS[what](memory_store(inner=inner)[0])
    if isinstance(raised.value, outlive.Corrupt):
        assert raised.value.thread == "thread"
        assert memory_store(inner=inner)[0].verify().problems


@pytest.mark.parametrize("what", ["body", "write", "entry", "info"])
@pytest.mark.parametrize("where", ["another thread", "another tenant"])
def test_a_record_of_another_thread_or_tenant_is_refused(what, where):
    tenant = "b" if where == "another tenant" else ""
    inner = MemoryBackend()
    one, two = memory_store(inner=inner)[0], memory_store(inner=inner, tenant=tenant)[0]
    id = "thread" if tenant else "other"
    fill(one)
    fill(two, id)
    source, target = table_of(inner), table_of(inner, id, tenant)
    target.records, target.orders, target.pending = source.records, source.orders, source.pending
    target.metadata, target.chunks = source.metadata, source.chunks
    target.entries = {
        key: replace(note, body=next(iter(source.entries.values())).body)
        for key, note in target.entries.items()
    }
    for (digest, name), data in list(inner._data.items()):
        if digest == source.key.digest:
            inner._data[target.key.digest, name] = data
    fresh = memory_store(inner=inner, tenant=tenant)[0]
    with pytest.raises(outlive.errors.Undecryptable):
        {
            "body": lambda: fresh.thread(id).load(),
            "write": lambda: [fresh.thread(id).writes(pair[1]) for pair in source.pending],
            "entry": lambda: list(fresh.runs()),
            "info": lambda: fresh.thread(id).metadata(),
        }[what]()


def test_checkpoints_of_one_thread_cannot_change_places():
    store, inner = memory_store()
    thread = store.thread("thread")
    for n in range(2):
        thread.save({"n": n, "text": f"{n}" * 500}, id=f"{n}")
    rows = table_of(inner).records
    first, second = rows["", "0"], rows["", "1"]
    swaps = {
        "their bodies": {"body": second.body},
        "their chunks": {"chunks": second.chunks},
        "both": {"body": second.body, "chunks": second.chunks},
        "a step": {"step": 7},
        "a run": {"run": "other"},
        "a source": {"source": "fork"},
        "a size": {"size": first.size + 1},
        "a list that is longer": {"chunks": first.chunks + second.chunks},
    }
    for what, fields in swaps.items():
        print(what)
        rows["", "0"] = replace(first, **fields)
        with pytest.raises(outlive.errors.Undecryptable):
            memory_store(inner=inner)[0].thread("thread").load("0")
    rows["", "0"] = first
    assert thread.load("0")["n"] == 0


def test_chunks_that_change_names_are_refused():
    store, inner = memory_store()
    store.thread("thread").save({"n": 0, "text": "a" * 500}, id="0")
    store.thread("thread").save({"n": 1, "text": "b" * 500}, id="1")
    (one, two) = list(inner._data)
    inner._data[one], inner._data[two] = inner._data[two], inner._data[one]
    for id in "01":
        with pytest.raises(outlive.errors.Undecryptable):
            memory_store(inner=inner)[0].thread("thread").load(id)


@given(data=st.data())
@settings(max_examples=rounds(60, 2000))
def test_no_changed_byte_and_no_cut_goes_unseen(data):
    plain = data.draw(st.binary(max_size=200))
    sealed = RING.encrypt(b"place", plain)
    assert RING.decrypt(b"place", sealed) == plain
    assert plain not in sealed or len(plain) < 4
    at = data.draw(st.integers(0, len(sealed) - 1))
    changed = sealed[:at] + bytes((sealed[at] ^ data.draw(st.integers(1, 255)),)) + sealed[at + 1 :]
    for other in (changed, sealed[:at]):
        with pytest.raises(
            (
                outlive.errors.Undecryptable,
                outlive.errors.PlainRecord,
                outlive.errors.KeyMissing,
                outlive.errors.NewerFormat,
            )
        ):
            RING.decrypt(b"place", other)
    with pytest.raises(outlive.errors.Undecryptable):
        RING.decrypt(b"place" + data.draw(st.binary(min_size=1, max_size=4)), sealed)


@pytest.mark.parametrize(
    "how", ["flipped", "in the clear", "of a key that is not in the ring", "of another algorithm"]
)
@pytest.mark.parametrize("what", ["body", "chunk", "write", "info"])
def test_a_record_that_does_not_open_stands_in_the_way_of_nothing_else(what, how):
    store, inner = memory_store()
    fill(store)
    fill(store, "whole")
    last = store.thread("thread").checkpoint().id
    change, error = MEDDLING[how]
    edit(inner, what, change)
    fresh = memory_store(BOTH, inner)[0]
    assert len(fresh.verify().problems) == 6 if what == "body" else fresh.verify().problems
    done = fresh.rotate()
    assert done.problems
    assert fresh.rotate().total == 0
    assert read(memory_store(KeyRing({"new": NEW}), inner)[0], "whole") == read(store_of(RING), "whole")
    if what != "chunk":  # of which the store makes copies without looking into them
        with pytest.raises(error):
            fresh.thread("thread").copy("copy")
    swept = fresh.sweep(retain=outlive.Retain(keep_last=1))
    assert (swept.problems, swept.is_complete) == ([], True)
    if (
        what == "body" and error is outlive.errors.KeyMissing
    ):  # a ring that lacks a key: better to notice that now
        with pytest.raises(error):
            fresh.thread("thread").save({"n": "new"})
    else:
        fresh.thread("thread").save({"n": "new"})
        assert fresh.thread("thread").load() == {"n": "new"}
    assert fresh.thread("thread").delete_checkpoints([last]).checkpoints == 1


def store_of(ring):
    store = memory_store(ring)[0]
    fill(store, "whole")
    return store


def test_a_save_goes_on_when_the_head_was_meddled_with():
    store, inner = memory_store()
    store.thread("thread").save({"n": 1})
    edit(inner, "body", lambda data: data[:-1] + b"x")
    fresh = memory_store(inner=inner)[0]
    fresh.thread("thread").save({"n": 2})
    assert fresh.thread("thread").load() == {"n": 2}


# Keys --------------------------------------------------------------------------------------------------------


def test_a_store_is_opened_with_its_own_key_or_not_at_all(tmp_path):
    sealed, plain = f"sqlite:///{tmp_path}/sealed.db", f"sqlite:///{tmp_path}/plain.db"
    outlive.open(sealed, key=RING).close()
    outlive.open(plain).close()
    for url, key, error in (
        (sealed, None, outlive.errors.KeyMissing),
        (sealed, KeyRing({"new": NEW}), outlive.errors.KeyMissing),
        (sealed, KeyRing({"old": NEW}), outlive.errors.WrongKey),
        (plain, RING, outlive.errors.NotEncrypted),
    ):
        with pytest.raises(error):
            outlive.open(url, key=key)
    outlive.open(sealed, key=BOTH).close()


def test_a_naming_key_that_looks_sealed_is_not_taken_for_it():
    inner = MemoryBackend()
    inner._key = b"\xc1\x01\x03" + bytes(range(29))
    memory_store(None, inner)[0].thread("t").save(1)
    with pytest.raises(outlive.errors.NotEncrypted):
        memory_store(RING, inner)


@pytest.mark.parametrize(
    "keys",
    [
        {"a": b"short"},
        {"a": "text of thirty-two characters..."},
        {"a": b"password" * 4},
        {"a": bytes(32)},
        {"": OLD},
        {"x" * 65: OLD},
        {"é": OLD},
        {1: OLD},
        {"a\n": OLD},
        {OLD: "a"},
        {base64.b64encode(OLD).decode(): "a"},
        {"a": OLD, "b": OLD},
        OLD,
    ],
    ids=repr,
)
def test_what_cannot_be_a_ring_is_refused_without_showing_it(keys):
    with pytest.raises(outlive.errors.BadArgument) as raised:
        KeyRing(keys)
    for secret in ("passwordpass", "thirty-two", repr(OLD)[2:20], base64.b64encode(OLD).decode()[:9]):
        assert secret not in str(raised.value)


def test_a_ring_that_is_none_is_refused_at_open():
    with pytest.raises(outlive.errors.BadArgument):
        outlive.open("memory:", key=OLD)
    for newest in ("b", OLD, bytearray(OLD)):
        with pytest.raises(outlive.errors.BadArgument) as raised:
            KeyRing({"a": OLD}, newest=newest)
        assert repr(OLD)[2:20] not in str(raised.value)
    with pytest.raises(outlive.errors.BadArgument):
        outlive.open("memory:", tenant="\0outlive")
    with pytest.raises(outlive.errors.BadArgument):
        outlive.open("memory:").rotate()


def test_a_ring_is_read_from_text():
    def text(key):
        return base64.b64encode(key).decode()

    ring = KeyRing.parse(f"old:{text(OLD)}\n new:{text(NEW)} ")
    assert (ring.ids, ring.newest) == (("old", "new"), "new")
    assert ring.decrypt(b"", RING.encrypt(b"", b"said")) == b"said"
    twice, swapped = f"a:{text(OLD)} a:{text(NEW)}", f"{text(OLD)}:2026"
    for wrong in (
        "nothing",
        "old:no base64!",
        f"old:{text(OLD)[:-9]}",
        twice,
        swapped,
        "",
        " ",
        None,
        b"a:b",
    ):
        with pytest.raises(outlive.errors.BadArgument) as raised:
            KeyRing.parse(wrong)
        assert text(OLD)[:9] not in str(raised.value)
        assert "no base64!" not in str(raised.value)


def test_a_key_never_shows(tmp_path):
    ring = KeyRing({"a": OLD})
    with pytest.raises(TypeError):
        pickle.dumps(ring)
    shown = [repr(ring), repr(vars(ring))]
    store = outlive.open(f"sqlite:///{tmp_path}/x.db", key=ring)
    shown.append(repr(store))
    try:
        KeyRing({"b": NEW}).decrypt(b"", ring.encrypt(b"", b"x"))
    except outlive.errors.KeyMissing as error:
        shown += ["".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())]
    store.close()
    for text in shown:
        assert repr(OLD)[2:14] not in text
        assert OLD.hex()[:12] not in text


def test_the_same_record_is_sealed_to_the_same_bytes_and_no_two_share_a_nonce():
    assert RING.encrypt(b"p", b"d") == RING.encrypt(b"p", b"d")
    nonces = {RING.encrypt(b"p", b"%d" % n)[6:19] for n in range(rounds(20_000, 1_000_000))}
    assert len(nonces) == rounds(20_000, 1_000_000)
    places = {RING.encrypt(b"%d" % n, b"d", is_named=True)[6:19] for n in range(1000)}
    assert len(places) == 1000
    named = KeyRing(
        {"same": OLD}
    )  # two headers are two texts, whose tags under one nonce would give the key away
    assert named.encrypt(b"p", b"d")[7:20] != RING.encrypt(b"p", b"d")[6:19]


def test_without_cryptography_a_ring_says_what_to_install(tmp_path):
    (tmp_path / "cryptography.py").write_text("raise ImportError")
    code = "import outlive\ntry: outlive.KeyRing({'a': bytes(range(32))})\nexcept outlive.errors.ExtraMissing as error: print(error)"
    path = os.pathsep.join([str(tmp_path), str(Path(outlive.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=150
    )  # fmt: skip
    assert "outlive[crypto]" in done.stdout, done.stderr


# Without a key ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_verify_needs_no_key_and_nothing_else_reads(backend, url_for, tmp_path):
    url = url_for(backend, tmp_path)
    with outlive.open(url, key=RING) as store:
        fill(store)
        whole = store.verify()
    with outlive.open(url, key=KeyRing()) as store:
        assert store.verify() == whole
        assert [(info.id, info.checkpoints, info.metadata) for info in store.threads()] == [("thread", 6, {})]
        thread = store.thread("thread")
        for call in (
            thread.load,
            lambda: list(thread.history()),
            lambda: list(store.runs()),
            lambda: thread.save({}),
            store.rotate,
        ):
            with pytest.raises(outlive.errors.KeyMissing):
                call()
        assert store.delete("thread")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_ring_without_keys_opens_neither_a_plain_store_nor_a_new_one(backend, url_for, tmp_path):
    url = url_for(backend, tmp_path)
    with pytest.raises(outlive.errors.KeyMissing, match="the ring has none"):
        outlive.open(url, key=KeyRing())
    with outlive.open(url) as store:  # nothing was begun there
        store.thread("t").save(1)
    with pytest.raises(
        outlive.errors.NotEncrypted, match=r"^this store is not encrypted, .* open it without key="
    ):
        outlive.open(url, key=KeyRing())
    with outlive.open(url) as store:
        assert store.thread("t").load() == 1


@pytest.mark.parametrize("what", LOOKS)
def test_verify_without_a_key_finds_a_record_in_the_clear(what):
    store, inner = memory_store()
    fill(store)
    keyless = memory_store(KeyRing(), inner)[0]
    assert keyless.verify().ok
    edit(inner, what, lambda data: b"\x93\x01\x02\x03")
    assert any("not encrypted" in str(problem) for problem in keyless.verify().problems)


def test_verify_without_a_key_finds_a_chunk_that_is_gone_and_flipped_bytes(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    for sql in (
        "delete from chunk where key = (select min(key) from chunk)",
        "update checkpoint set body = body || x'00' where seq = 1",
        "update chunk set data = data || x'00' where key = (select min(key) from chunk)",
    ):
        for path in tmp_path.glob("store.db*"):
            path.unlink()
        with outlive.open(url, key=RING) as store:
            fill(store)
        with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
            db.execute(sql)
        db.close()
        with outlive.open(url, key=KeyRing()) as store:
            assert store.verify().problems, sql


# Rotation ----------------------------------------------------------------------------------------------------------


def sealed_under(inner, tenant=""):
    """Return the ids of the keys that anything of a store in memory is sealed under."""
    found = {key_of(data) for data in inner._data.values()}
    for table in inner._tables.values():
        found |= {key_of(row.body) for row in table.records.values()}
        found |= {key_of(row.body) for rows in table.pending.values() for row in rows.values()}
        found |= {key_of(row.body) for row in table.entries.values()}
        found |= {key_of(table.metadata)} if table.metadata else set()
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_after_a_rotation_the_old_key_can_go(backend, url_for, tmp_path):
    url = url_for(backend, tmp_path)
    with outlive.open(url, key=RING) as store:
        fill(store)
        store.thread("thread").fork("fork")
        with store.run("only a run", prompt=SECRET):
            pass
        before = read(store), read(store, "fork")
        names = run_now(store._store._engine.backend.inventory(ThreadKey.of("", "thread"))).chunks.keys()
    told = []
    with outlive.open(url, key=BOTH) as store:
        assert (read(store), read(store, "fork")) == before
        done = store.rotate(progress=lambda count, total: told.append(count))
        assert (done.threads, done.checkpoints, done.infos) == (3, 8, 2)
        assert done.entries >= 5
        assert store.rotate().total == 0
    assert told[:3] == [1, 2, 3]
    with outlive.open(url, key=KeyRing({"new": NEW})) as store:
        assert (read(store), read(store, "fork")) == before
        assert [run.prompt for run in store.runs(thread="only a run")] == [SECRET]
        assert store.verify().ok
        again = run_now(store._store._engine.backend.inventory(ThreadKey.of("", "thread"))).chunks.keys()
        assert again == names
        store.thread("thread").save({"n": 9})
    with pytest.raises(outlive.errors.KeyMissing):
        outlive.open(url, key=RING)
    with pytest.raises(outlive.errors.KeyMissing, match="under key 'new'"), outlive.open(url):
        pass


def test_a_rotation_that_dies_at_any_call_leaves_all_readable_and_goes_on_when_repeated():
    class Died(BaseException):
        pass

    class Dying:
        def __init__(self, inner, calls):
            self.inner, self.left, self.name = inner, calls, inner.name

        def __getattr__(self, name):
            method = getattr(self.inner, name)

            async def call(*args, **options):
                self.left -= 1
                if self.left < 0:
                    raise Died
                return await method(*args, **options)

            return call

    calls = 0
    while True:
        store, inner = memory_store()
        fill(store)
        expected = read(store)
        layer = memory_store(BOTH, inner)[0]._store._engine.backend
        is_over = True
        try:
            run_now(outlive.layers.encryption.rotation.rotate((Dying(layer.inner, calls),), layer.ring, ""))
        except Died:
            is_over = False
        fresh = memory_store(BOTH, inner)[0]
        assert read(fresh) == expected
        fresh.rotate()
        assert sealed_under(inner) - {key_of(inner._key)} == {"new"}
        assert read(memory_store(KeyRing({"new": NEW}), inner)[0]) == expected
        if is_over:
            break
        calls += 1
    assert calls > 20


@pytest.mark.parametrize("backend", ["sqlite", "redis", "postgresql"])
def test_others_go_on_saving_while_keys_rotate(backend, url_for, tmp_path):
    url = url_for(backend, tmp_path)
    with outlive.open(url, key=RING) as store:
        for name in "ab":
            for n in range(20):
                store.thread(name).save({"n": n, "said": [f"{i} {'x' * 300}" for i in range(n)]})
    failures, stop = [], threading.Event()

    def save(name):
        try:
            with outlive.open(url, key=BOTH) as store:
                thread = store.thread(name)
                n = 20
                while not stop.is_set():
                    thread.save({"n": n, "said": [f"{i} {'x' * 300}" for i in range(n)]}, id=f"{n}")
                    if n % 7 == 0:
                        thread.prune(keep_last=10)
                    n += 1
                done[name] = n
        except BaseException as error:
            failures.append(error)

    done = {}
    threads = [threading.Thread(target=save, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    with outlive.open(url, key=BOTH) as store:
        store.rotate()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    with outlive.open(url, key=KeyRing({"new": NEW})) as store:
        assert store.verify().ok
        for name in "ab":
            assert store.thread(name).load()["n"] == done[name] - 1
            assert all(
                len(store.thread(name).load(item.id)["said"]) for item in store.thread(name).history(limit=5)
            )


def test_what_is_sealed_is_never_exchanged_for_what_is_not():
    layer = memory_store()[0]._store._engine.backend
    with pytest.raises(outlive.errors.BadArgument):
        run_now(
            layer.commit_all([Commit(ThreadKey.of("", "t"), reencrypted=outlive.backend.ReencryptedBodies())])
        )
    name = b"n" * 16
    run_now(layer.commit_all([Commit(ThreadKey.of("", "t"), chunks=((name, b"data"),))]))
    (stored,) = run_now(layer.inner.fetch(ThreadKey.of("", "t"), [name])).values()
    assert key_of(stored) == "old"
    assert RING.decrypt(aad_of_chunk(ThreadKey.of("", "t"), name), stored) == b"data"
    run_now(layer.commit_all([Commit(ThreadKey.of("", "t"), removal=Removal(everything=True))]))


# Two stores -----------------------------------------------------------------------------------------------------


def sealed_rows(path):
    """Return all that a SQLite file holds sealed, but for the entry by which each of a pair knows its own part."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        found = [
            db.execute(f"select {columns} from {table}").fetchall()
            for table, columns in (
                ("chunk", "name, data"),
                ("checkpoint", "id, body"),
                ("write", "task, idx, body"),
                ("entry where kind <> 'pair'", "kind, key, body"),
                ("thread where metadata is not null", "id, metadata"),
            )
        ]
    db.close()
    return [sorted(rows) for rows in found]


@pytest.mark.parametrize("replication", ["sync", "async"])
def test_both_of_a_pair_hold_the_same_sealed_bytes_also_after_a_rotation(replication, tmp_path):
    one, two = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two"))
    with open_pair(one, two, mode=replication, key=RING) as store:
        fill(store)
        expected = read(store)
    assert sealed_rows(tmp_path / "one.db") == sealed_rows(tmp_path / "two.db")
    with open_pair(one, two, mode=replication, key=BOTH) as store:
        assert store.rotate().checkpoints == 6
        assert store.rotate().total == 0
    rows = sealed_rows(tmp_path / "one.db")
    assert rows == sealed_rows(tmp_path / "two.db")
    assert {key_of(row[-1]) for table in rows for row in table} == {"new"}
    for url in (one, two):
        with outlive.open(url, key=KeyRing({"new": NEW})) as store:
            assert store.verify().ok
            assert read(store) == expected
