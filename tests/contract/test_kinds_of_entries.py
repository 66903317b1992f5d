"""Every kind of entry is sealed, copied, replicated and verified as the registry says."""

import contextlib
import itertools
import random

import apsw

import outlive
from outlive.backend import RESERVED, Commit, EntryQuery, EntryRecord, ThreadKey, commit
from outlive.backend.entries import ENCRYPTED, KINDS, EntryKind
from outlive.layers.encryption.keyring import KeyRing, is_encrypted, key_of
from outlive.runtime.runtime import run_now
from outlive.testing.patience import eventually
from rig.crash import LONG
from rig.replicas import open_pair

OLD, NEW = random.Random(1).randbytes(32), random.Random(2).randbytes(32)
RING, BOTH, LAST = KeyRing({"old": OLD}), KeyRing({"old": OLD, "new": NEW}), KeyRing({"new": NEW})
SAVED, SUBMITTED, OWN = (
    ThreadKey.of("", "saved"),
    ThreadKey.of("", "submitted"),
    ThreadKey.of(RESERVED, "own"),
)
EVERYWHERE = tuple(itertools.product(KINDS.values(), (SAVED, SUBMITTED)))


def backend_of(store):
    return store._store._engine.backend


def put(store, *kinds, keys=(SAVED, SUBMITTED)):
    """Store an entry of each kind, in a thread with a checkpoint and in one without."""
    store.thread(SAVED.id).save({"n": 1})
    for key in keys:
        entries = [EntryRecord(kind.name, "k", b"body", "ended", fence=7) for kind in kinds]
        run_now(commit(backend_of(store), Commit(key, entries=tuple(entries))))


def get(backend, kind, key):
    return [entry for _, entry in run_now(backend.entries(EntryQuery(key.tenant, kind.name, thread=key)))]


def test_a_rotation_seals_each_kind_under_the_new_key(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db?fsync=normal"
    with outlive.open(url, key=RING) as store:
        put(store, *KINDS.values())
        for kind, key in EVERYWHERE:
            (sealed,) = get(backend_of(store).inner, kind, key)
            assert is_encrypted(sealed.body) == kind.is_encrypted, kind
    with outlive.open(url, key=BOTH) as store:
        assert store.rotate().problems == []
        for kind, key in EVERYWHERE:
            (sealed,) = get(backend_of(store).inner, kind, key)
            assert not kind.is_encrypted or key_of(sealed.body) == "new", kind
    with outlive.open(url, key=LAST) as store:
        for kind, key in EVERYWHERE:
            (entry,) = get(backend_of(store), kind, key)
            assert (entry.body, entry.status, entry.fence) == (b"body", "ended", 7), kind
        assert store.verify().ok


def test_copy_to_brings_along_what_belongs_to_a_thread():
    with outlive.open("memory:") as source, outlive.open("memory:") as target:
        put(source, *KINDS.values())
        source.copy_to(target)
        for kind, key in EVERYWHERE:
            held, copied = (get(backend_of(store), kind, key) for store in (source, target))
            assert len(held) == 1
            assert copied == (held if kind.is_copied else []), kind


def test_the_other_store_of_a_pair_gets_what_is_replicated(tmp_path):
    """With each commit, and when it joins a store that has something. What layers keep for themselves has ways of its own."""
    kinds = [KINDS[name] for name in ENCRYPTED]
    one, two, three = (f"sqlite:///{tmp_path}/{n}.db?fsync=normal" for n in range(3))
    with open_pair(one, two) as store:
        put(store, *kinds)
    with outlive.open(three) as store:
        put(store, *kinds)
    joined = f"sqlite:///{tmp_path}/joined.db?fsync=normal"
    with open_pair(three, joined) as store:
        eventually(lambda: store.replication_status().is_caught_up)
    for url, kind, key in itertools.product((two, joined), kinds, (SAVED, SUBMITTED)):
        with outlive.open(url) as store:
            found = [entry.body for entry in get(backend_of(store), kind, key)]
            assert found == ([b"body"] if kind.is_replicated else []), (url, kind, key)


def test_verify_finds_damage_in_each_kind(tmp_path):
    for ring in (None, RING):
        path = tmp_path / f"{ring is None}.db"
        with outlive.open(f"sqlite:///{path}?fsync=normal", **({"key": ring} if ring else {})) as store:
            put(store, *KINDS.values(), keys=(SAVED, SUBMITTED, OWN))
            assert store.verify().problems == ()
            with contextlib.closing(
                apsw.Connection(str(path))
            ) as db:  # the same copy of SQLite as the store's
                rows = db.execute("select thread, kind, body from entry").fetchall()
                assert len(rows) == 3 * len(KINDS)
                damage = "update entry set body = ? where thread = ? and kind = ?"
                for thread, kind, body in (
                    rows if LONG else rows[ring is None :: 2]
                ):  # each row once, open or encrypted
                    db.execute(damage, [bytes(len(body)), thread, kind])
                    (problem,) = store.verify().problems
                    assert f"{kind} 'k'" in str(problem)
                    db.execute(damage, [body, thread, kind])
            assert store.verify().problems == ()


def test_verify_reports_a_stored_entry_of_an_unknown_kind(tmp_path, monkeypatch):
    stray = EntryKind("stray")
    for url in (f"sqlite:///{tmp_path}/store.db?fsync=normal", f"file:{tmp_path}/folder"):
        with outlive.open(url) as store:
            with monkeypatch.context() as patch:
                patch.setitem(KINDS, "stray", stray)
                put(store, stray, keys=(SAVED,))
            assert "unknown kind 'stray'" in str(store.verify().problems)
