"""Redis keys that are lost, put back as they were before, or changed: every answer is right or a typed error, and verify tells."""

import contextlib
import os
import random
import re

import pytest

import outlive
from outlive import Interrupt
from outlive.backend import ThreadKey
from outlive.backends.redis.keys import Keys
from outlive.errors import Corrupt, StoreError
from outlive.testing.patience import eventually
from rig.servers import ValkeyServer
from rig.servers.resp import Refused

LONG = bool(os.environ.get("OUTLIVE_LONG"))
LETTERS = "mrocwe"
OTHER = "other"
SEED = int(os.environ.get("OUTLIVE_SEED") or 1)


def keys_of(id):
    return Keys.of("outlive:", ThreadKey.of("", id).digest, is_single=True).all


def begin(store, id="t"):
    """Give a thread something of everything."""
    thread = store.thread(id)
    text = [f"message {n}" for n in range(300)]
    for n in range(3):
        thread.save({"n": n, "text": text[: 100 * n]}, id=f"c{n}")
    thread.save({"asked": True}, id="c3", interrupts=[Interrupt("q", "ask")])
    thread.resume("q", "first answer")
    thread.write("task", [("channel", "first" * 40)])
    thread.set_metadata({"title": "first"})
    with store.run(id, run_id="run-1") as run:
        run.step("one", lambda: 1)
        run.complete("done")
    store.run(id, run_id="run-2").start().release()


def go_on(store, id="t"):
    """Change something of everything, so that most counts are the same afterwards."""
    thread = store.thread(id)
    thread.save({"n": 4}, id="c4")
    thread.delete_checkpoints(["c0"])
    thread.save({"n": 22}, id="c2", replace=True)
    thread.resume("q", "second answer", checkpoint="c3")
    thread.set_metadata({"title": "second"})
    run = store.retry("run-2").start()
    run.step("two", lambda: 2)
    run.complete("done too")


def answers(store, id="t"):
    """Ask everything; an answer may be an error."""
    thread = store.thread(id)
    calls = {
        "load": thread.load,
        "load by id": lambda: thread.load("c1"),
        "load replaced": lambda: thread.load("c2"),
        "exists": lambda: [thread.exists(f"c{n}") for n in range(6)],
        "history": lambda: [(c.id, c.seq, c.parent) for c in thread.history()],
        "metadata": thread.metadata,
        "writes": lambda: thread.writes("c3"),
        "threads": lambda: [(info.id, info.checkpoints) for info in store.threads()],
        "newest": lambda: [(info.id, info.checkpoints) for info in store.threads(order="updated")],
        "runs": lambda: shown(store.runs()),
        "runs by status": lambda: shown(store.runs(status="completed")),
        "runs of the thread": lambda: shown(store.runs(thread=id)),
        "recoverable": lambda: shown(store.recoverable()),
        "stored result": lambda: store.run(id, run_id="run-1").start().result,
    }
    found = {}
    for name, call in calls.items():
        try:
            found[name] = call()
        except StoreError as error:
            found[name] = error
    return found


def shown(runs):
    """Return what is told of runs. One that is damaged is listed as what it is, and hides no other."""
    runs = list(runs)
    if any(not run.is_readable for run in runs):
        raise Corrupt("a run is damaged")
    return [(run.id, run.status, run.result) for run in runs]


@pytest.fixture(scope="module")
def server():
    with ValkeyServer(ram=True) as server:
        yield server


@pytest.fixture
def url(server):
    server.call("FLUSHALL")
    return server.url


@pytest.fixture
def store_with(url):
    """Two threads: one that is damaged, and one that must not notice."""
    with outlive.open(url) as store:
        store.thread(OTHER).save({"n": 1})
        begin(store)


def dumped(server):
    return {key: server.call("DUMP", key) for key in server.call("KEYS", "*")}


def put(server, key, value):
    server.call("DEL", key)
    if value is not None:
        server.call("RESTORE", key, 0, value)


def judge(server, what, sound, *, must_tell=True, is_seen=True):
    """Ask a damaged store: the answer is the truth or an error, verify tells, no save is lost, and the thread can be deleted."""
    with outlive.open(server.url) as store:
        report = store.verify()
        assert not must_tell or not report.ok, f"{what}: verify says that all is well"
    with outlive.open(server.url) as store:
        for name, answer in answers(store).items():
            if is_seen and not isinstance(answer, StoreError):
                assert repr(answer) == repr(sound[name]), f"{what}: {name} is {answer!r:.300}"
        assert store.thread(OTHER).load() == {"n": 1}, what
    with outlive.open(server.url) as store:
        thread = store.thread("t")
        try:
            saved = thread.save({"new": True}, id="new")
        except StoreError:
            saved = None
        if saved and is_seen:
            head, seq, _ = sound["history"][0]
            assert (saved.seq, saved.parent) == (seq + 1, head), f"{what}: saved as {saved}"
            with contextlib.suppress(StoreError):
                assert thread.load() == {"new": True}, what
        store.delete("t")
        assert thread.load() is None, what
        assert thread.save({"again": True}).seq >= 1, what
        assert thread.load() == {"again": True}, what
        assert sorted(info.id for info in store.threads()) == [OTHER, "t"], what
        assert not list(store.runs()), what
        if is_seen:
            assert store.verify().ok, f"{what}: {store.verify().problems}"


def damaged(server, changes):
    """Do each change to a copy of the store, judge it, and put everything back."""
    with outlive.open(server.url) as store:
        sound = answers(store)
        assert not [answer for answer in sound.values() if isinstance(answer, StoreError)]
        assert store.verify().ok
    dump = dumped(server)
    for what, change, options in changes:
        server.call("FLUSHALL")
        for key, value in dump.items():
            put(server, key, value)
        change()
        judge(server, what, sound, **options)


def thread_keys(server):
    digest = ThreadKey.of("", "t").digest.hex().encode()
    bucket = b"{%s}" % re.search(rb"{(\d+)}", keys_of("t")[0].encode())[1]
    return sorted(
        key for key in server.call("KEYS", "*") if digest in key or bucket in key or key == b"outlive:recent"
    )


def test_no_key_of_a_thread_or_its_bucket_is_lost_unnoticed(server, store_with):
    with outlive.open(server.url) as store:
        go_on(store)
    keys = thread_keys(server)
    assert len(keys) == 10
    damaged(server, [(f"{key} is gone", lambda key=key: server.call("DEL", key), {}) for key in keys])


def test_no_key_of_a_thread_is_taken_for_the_truth_when_it_is_an_older_copy(server, store_with):
    older = dumped(server)
    with outlive.open(server.url) as store:
        go_on(store)
    newer = dumped(server)
    keys = [key for key in thread_keys(server) if older.get(key) != newer[key]]
    assert {chr(key[-1]) for key in keys} >= set("mrowe")
    damaged(
        server,
        [
            (f"{key} is older", lambda key=key: put(server, key, older[key]), {"must_tell": key[-1:] != b"c"})
            for key in keys
        ],
    )


def each_part(server, key):
    """Return the fields of a hash with their values, or the members of a sorted set."""
    if server.call("TYPE", key) == b"hash":
        flat = server.call("HGETALL", key)
        return list(zip(flat[::2], flat[1::2], strict=True))
    return [(member, None) for member in server.call("ZRANGE", key, 0, -1)]


def drop(server, key, name, value):
    server.call("ZREM" if value is None else "HDEL", key, name)


def flip(chance, data):
    changed = bytearray(data or b"x")
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def change_part(server, chance, key, name, value):
    """Change one bit of a value or of a member."""
    if value is None:
        score = server.call("ZSCORE", key, name)
        server.call("ZREM", key, name)
        server.call("ZADD", key, score, flip(chance, name))
    else:
        server.call("HSET", key, name, flip(chance, value))


def change_name(server, chance, key, name, value):
    server.call("HDEL", key, name)
    server.call("HSET", key, flip(chance, name), value)


def test_no_field_or_member_is_lost_older_or_changed_unnoticed(server, store_with):
    chance = random.Random(SEED)
    older = {key: dict(each_part(server, key)) for key in thread_keys(server)}
    with outlive.open(server.url) as store:
        go_on(store)
    changes = []
    for key in thread_keys(server):
        for name, value in each_part(server, key):
            where = f"{name} of {key}"
            # A chunk that no checkpoint needs may go. Without this mark, rows are added up.
            is_chunk = {"must_tell": key[-1:] != b"c" and name != b"totals"}
            changes.append((f"no {where}", lambda part=(key, name, value): drop(server, *part), is_chunk))
            # A changed name is found by verify alone: what it named is not missed by its number.
            is_seen = {"is_seen": value is not None, "must_tell": name != b"totals"}
            changed = lambda part=(key, name, value): change_part(server, chance, *part)  # noqa: E731
            changes.append((f"other {where}", changed, is_seen))
            renamed = lambda part=(key, name, value): change_name(server, chance, *part)  # noqa: E731
            if value is not None:
                changes.append((f"renamed {where}", renamed, {**is_seen, "is_seen": False}))
            former = older.get(key, {}).get(name)
            if former is not None and former != value and (key[-2:], name) != (b":m", b"projection"):
                put_back = lambda part=(key, name, former): server.call("HSET", *part)  # noqa: E731
                changes.append((f"older {where}", put_back, is_chunk))
    if not LONG:
        changes = [one for one in changes if one[0].startswith("older")] + chance.sample(changes, 10)
    damaged(server, changes)


@pytest.mark.parametrize(
    "command", [("SET", b"text"), ("SADD", b"x"), ("RPUSH", b"x")], ids=lambda one: one[0]
)
def test_a_key_of_another_type_is_damage(server, store_with, command):
    with outlive.open(server.url) as store:
        go_on(store)
        sound = answers(store)
    for key in thread_keys(server):
        value = server.call("DUMP", key)
        server.call("DEL", key)
        server.call(command[0], key, command[1])
        with outlive.open(server.url) as store:
            assert not store.verify().ok, key
            for name, answer in answers(store).items():
                assert isinstance(answer, StoreError) or repr(answer) == repr(sound[name]), (key, name)
            if chr(key[-1]) in LETTERS and key[-2:-1] == b":":
                assert store.thread(OTHER).load() == {"n": 1}
                store.delete("t")
                assert store.thread("t").save({"n": 1}).seq >= 1
                return
        put(server, key, value)


# Servers that evict -----------------------------------------------------------------------------------------------


def evict(server, policy):
    """Let the server throw away about a tenth of its keys."""
    before = len(server.call("KEYS", "*"))
    server.call("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        used = int(server.info("memory")["used_memory"])
        with server.connect() as connection:
            while len(connection.call("KEYS", "*")) > 9 * before / 10:
                used -= 20_000
                connection.call("CONFIG", "SET", "maxmemory", used)
                with contextlib.suppress(Refused):
                    connection.call("SET", "needs", "memory")
    finally:
        server.call("CONFIG", "SET", "maxmemory", "0")
        server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert int(server.info("stats")["evicted_keys"]) > 0


@pytest.mark.parametrize("policy", ["allkeys-random", "allkeys-lru", "volatile-random"])
def test_no_thread_whose_keys_were_evicted_looks_as_if_it_never_was(server, url, policy):
    options = {"ttl_s": 600} if policy.startswith("volatile") else {}
    ids = [f"{n}" for n in range(60)]
    with outlive.open(url, **options) as store:
        for id in ids:
            store.thread(id).save(heavy(id))
        evict(server, policy)
        lost = [id for id in ids if is_lost(store, id)]
        assert lost
        for id in lost:
            store.delete(id)
            assert store.thread(id).save({"id": "other"}).seq >= 1
        assert listed(store) == sorted(ids)


def heavy(id):
    return {"id": id, "text": random.Random(id).randbytes(5000)}


def is_lost(store, id):
    """Tell whether a thread raises. Otherwise it is whole; and what is saved to a lost one is refused or there."""
    fresh = store.thread(id)
    store._store._engine.cache.drop(ThreadKey.of("", id).digest)
    try:
        assert fresh.load() == heavy(id)
    except StoreError:
        with contextlib.suppress(StoreError):
            fresh.save({"id": "more"})
            assert fresh.load() == {"id": "more"}
        return True
    return False


# Indexes that lost keys, and are written before anybody lists them ------------------------------------------------


def bucket_of(id):
    return re.search(r"{(\d+)}", keys_of(id)[0])[1]


def same_bucket(count):
    """Return ids of some threads of one bucket."""
    found = {}
    for n in range(100_000):
        ids = found.setdefault(bucket_of(f"{n}"), [])
        ids.append(f"{n}")
        if len(ids) == count:
            return ids
    raise AssertionError("no bucket has so many")


def listed(store):
    return sorted(info.id for info in store.threads())


def delete_lost(server, store, lost, new):
    server.call("DEL", *keys_of(lost)[:6])
    store.delete(lost)
    store.thread(lost).save({"n": 2})
    return []


def begin_beside(server, store, lost, new):
    store.thread(new).save({"n": 2})
    return [new]


def begin_by_metadata(server, store, lost, new):
    store.thread(new).set_metadata({"title": "x"})
    return [new]


def begin_after_a_loss(server, store, lost, new):
    server.call("CLIENT", "KILL", "TYPE", "normal")
    store.thread(lost).save({"n": 2})
    return begin_beside(server, store, lost, new)


@pytest.mark.parametrize("go", [delete_lost, begin_beside, begin_by_metadata, begin_after_a_loss])
def test_an_identity_that_is_lost_is_not_restored_with_one_bucket_alone(server, url, go):
    lost, new = same_bucket(2)
    ids = sorted({*(f"{n}" for n in range(20)), lost} - {new})
    with outlive.open(url) as store:
        for id in ids:
            store.thread(id).save({"n": 1})
        server.call("DEL", "outlive:identity")
        begun = go(server, store, lost, new)
        with outlive.open(url) as other:  # which knows nothing of before
            assert listed(other) == listed(store) == sorted(ids + begun)
        assert all(store.thread(id).load() for id in ids)


def delete_damaged(server, store, one):
    server.call("DEL", keys_of(one)[1])
    with pytest.raises(Corrupt):
        store.thread(one).load()
    store.delete(one)
    store.thread(one).save({"n": 2})


def delete_without_row(server, store, one):
    server.call("DEL", keys_of(one)[0])
    store.delete(one)
    store.thread(one).save({"n": 2})


def delete_whole(server, store, one):
    store.delete(one)
    store.thread(one).save({"n": 2})


def save_deleted(server, store, one):
    """Save to a thread that was deleted before, and so had no line in the index of threads."""
    store.thread(one).save({"n": 2})


@pytest.mark.parametrize("go", [delete_damaged, delete_without_row, delete_whole, save_deleted])
@pytest.mark.parametrize("names", [("threads", "roster"), ("threads", "entries", "roster")], ids=len)
def test_an_index_that_is_lost_with_its_count_is_not_taken_for_whole(server, url, go, names):
    one, *others = ids = same_bucket(3)
    with outlive.open(url) as store:
        for id in ids:
            store.thread(id).save({"n": 1})
            store.run(id, run_id=f"run of {id}").start().release()
        if go is save_deleted:
            store.delete(one)
        server.call("DEL", *(f"outlive:{{{bucket_of(one)}}}:{name}" for name in names))
        go(server, store, one)
        assert listed(store) == sorted(ids)
        assert sorted(run.id for run in store.recoverable()) == sorted(f"run of {id}" for id in others)


def test_a_loss_that_nothing_can_name_is_told_until_it_is_accepted(server, url):
    named, unnamed, new = same_bucket(3)
    bucket = f"outlive:{{{bucket_of(named)}}}"
    with outlive.open(url) as store:
        store.thread(OTHER).save({"n": 1})
        for id in (named, unnamed):
            store.thread(id).save({"n": 1})
            store.run(id, run_id=f"run of {id}").start().release()
        server.call("DEL", f"{bucket}:threads", keys_of(unnamed)[0])
        assert listed(store) == sorted([named, OTHER])
        digest = ThreadKey.of("", unnamed).digest.hex()
        assert not store.verify().ok
        assert digest in str(store.verify().problems)  # a caller who knows the id may still delete it
        server.call("UNLINK", *keys_of(unnamed)[:6])
        server.call("HDEL", f"{bucket}:roster", digest)
        store.verify()  # which clears the lines of its runs
        assert store.verify().ok
        assert store.thread(unnamed).save({"n": 2}).seq == 1

        server.call("DEL", f"{bucket}:roster", f"{bucket}:threads", f"{bucket}:entries")
        server.call("DEL", *keys_of(named)[:6], *keys_of(unnamed)[:6])
        with pytest.raises(Corrupt, match="nothing tells whether it had this thread"):
            store.thread(new).load()
        (problem,) = store.verify().problems
        assert f"HDEL {bucket}:roster lost" in str(problem)
        server.call("HDEL", f"{bucket}:roster", "lost")
        assert store.verify().ok
        assert store.thread(new).save({"n": 1}).seq == 1
        assert listed(store) == sorted([new, OTHER])


def totals_of(store):
    size = store.size()
    return size.threads, size.checkpoints, size.stored_bytes


def test_totals_are_those_of_the_rows_whatever_was_deleted(server, url):
    one, two, three = same_bucket(3)
    with outlive.open(url) as store, outlive.open(url, tenant="other") as other:
        for id in (one, two, three):
            store.thread(id).save({"n": 1, "text": id * 500})
        other.thread(one).save({"n": 1})
        for n in range(5):
            store.thread(two).save({"n": n}, id=f"{n}")
        store.thread(two).prune(keep_last=2)
        server.call("DEL", keys_of(one)[0])
        store.delete(one)  # nothing tells what it had
        expected = (2, 3, sum(store.thread(id).size().stored_bytes for id in (two, three)))
        assert totals_of(store) == expected
        assert store.verify().ok
        assert server.call("HGET", f"outlive:{{{bucket_of(two)}}}:roster", "totals") == b"1"
        assert totals_of(store) == expected
        assert totals_of(other) == (1, 1, other.thread(one).size().stored_bytes)


def test_totals_that_are_wrong_are_told_and_added_up_again(server, url):
    one, two = same_bucket(2)
    roster = f"outlive:{{{bucket_of(one)}}}:roster"
    with outlive.open(url) as store:
        store.thread(one).save({"n": 1})
        store.thread(two).save({"n": 1})
        sound = totals_of(store)
        for field in (b"t\0", b"c\0", b"b\0", b"t\0nobody"):
            server.call("HINCRBY", roster, field, 1)
            (problem,) = store.verify().problems
            assert "totals of bucket" in str(problem)
            assert totals_of(store) == sound
            assert store.verify().ok


def test_totals_are_added_up_again_when_a_roster_is_lost(server, url):
    one, two, three = same_bucket(3)
    bucket = f"outlive:{{{bucket_of(one)}}}"
    with outlive.open(url) as store:
        for id in (one, two, three, OTHER):
            store.thread(id).save({"n": 1})
        sound = totals_of(store)
        for harm in (
            lambda: server.call("DEL", f"{bucket}:roster"),
            lambda: server.call("HDEL", f"{bucket}:roster", "threads"),
            lambda: server.call("ZREM", f"{bucket}:threads", b"\0" + one.encode()),
        ):
            harm()
            assert totals_of(store) == sound
            assert totals_of(store) == sound
            assert store.verify().ok
        server.call("DEL", f"{bucket}:roster")
        store.thread(one).save({"n": 2})  # which counts what it adds, in a roster without a count
        assert totals_of(store)[:2] == (sound[0], sound[1] + 1)
        assert store.verify().ok


def test_the_index_by_time_is_made_again_when_it_is_lost(server, url):
    with outlive.open(url) as store:
        ids = [f"{n}" for n in range(20)]
        for id in ids:
            store.thread(id).save({"n": 1})
        for harm in (
            lambda: server.call("DEL", "outlive:recent"),
            lambda: server.call("HDEL", "outlive:identity", "listed"),
            lambda: server.call("ZREM", "outlive:recent", server.call("ZRANGE", "outlive:recent", 3, 3)[0]),
            lambda: server.call("ZADD", "outlive:recent", 0, b"\0" + b"0" * 16 + b"nobody"),
            lambda: server.call("ZADD", "outlive:recent", 0, b"no line"),
        ):
            harm()
            assert [info.id for info in store.threads(order="updated")] == ids[::-1]
            assert store.verify().ok
            harm()
            assert not store.verify().ok
            assert store.verify().ok
            assert [info.id for info in store.threads(order="updated")] == ids[::-1]
        server.call("DEL", "outlive:identity")
        assert [info.id for info in store.threads(order="updated")] == ids[::-1]


def test_a_thread_whose_ttl_ended_is_in_no_total_and_in_no_order(server, url):
    with outlive.open(url) as store:
        store.thread("stays").save({"n": 1})
        sound = totals_of(store)
    with outlive.open(url, ttl_s=0.5) as store:
        for id in ("stays", "over"):
            store.thread(id if id == "over" else same_bucket(2)[0]).save({"n": 1})
        eventually(lambda: totals_of(store) == sound, "the TTL deletes nothing")
        assert [info.id for info in store.threads(order="updated")] == ["stays"]
        assert server.call("ZCARD", "outlive:recent") == 1
        assert store.verify().ok


def test_a_thread_that_a_store_with_a_ttl_deletes_leaves_the_totals(server, url):
    with outlive.open(url) as store, outlive.open(url, ttl_s=600) as ending:
        store.thread("stays").save({"n": 1})
        sound = totals_of(store)
        store.thread("goes").save({"n": 1})
        ending.delete("goes")  # its first commit with a TTL
        assert totals_of(store) == sound
        assert store.verify().ok


def test_a_deleted_thread_that_begins_again_without_a_ttl_has_none(server, url):
    with outlive.open(url) as store, outlive.open(url, ttl_s=600) as ending:
        ending.thread("t").save({"n": 1})
        ending.delete("t")
        store.thread("t").save({"n": 2, "text": "x" * 3000})
        store.run("t", run_id="r").start().release()
        assert {server.call("PTTL", key) for key in keys_of_thread(server, "t")} == {-1}
        size = store.thread("t").size()
        assert totals_of(store) == (1, size.checkpoints, size.stored_bytes)
        assert store.verify().ok
        ending.thread("t").save({"n": 3})
        assert min(server.call("PTTL", key) for key in keys_of_thread(server, "t")) > 0
        assert totals_of(store)[:2] == (1, size.checkpoints + 1)
        assert store.verify().ok


def keys_of_thread(server, id):
    return server.call("KEYS", "*:" + ThreadKey.of("", id).digest.hex() + ":*")


def test_a_thread_that_its_ttl_took_is_no_damage_and_one_that_was_evicted_is(server, url):
    with outlive.open(url, ttl_s=60) as store:
        store.thread("lost").save({"n": 1})
    with outlive.open(url, ttl_s=0.3) as store:
        store.thread("over").save({"n": 1})
        store.run("over", run_id="r").start().release()
        eventually(lambda: not keys_of_thread(server, "over"), "the TTL deletes nothing")
        for key in keys_of_thread(server, "lost"):
            server.call("DEL", key)
        assert store.thread("over").load() is None
        with pytest.raises(Corrupt, match="all keys of it are gone"):
            store.thread("lost").load()
    with outlive.open(url, ttl_s=60) as store:
        assert store.thread("over").save({"n": 2}).seq == 1
        assert [info.id for info in store.runs()] == []
        store.delete("lost")
        assert [info.id for info in store.threads()] == ["over"]
        assert store.verify().problems == ()


def test_a_store_that_was_emptied_is_empty(server, url):
    with outlive.open(url) as store:
        begin(store)
        server.call("FLUSHALL")
        assert store.thread("t").load() is None
        assert list(store.threads()) == list(store.runs()) == []
        assert store.thread("t").save({"n": 1}).seq == 1
        assert [info.id for info in store.threads()] == ["t"]
        assert store.verify().problems == ()


def test_a_thread_begun_by_a_deletion_is_listed_with_its_runs(url):
    with outlive.open(url) as store:
        store.delete("t")
        store.thread("t").save({"n": 1})
        store.run("t", run_id="r").start().release()
        assert [info.id for info in store.threads()] == ["t"]
        assert [run.id for run in store.recoverable()] == ["r"]
