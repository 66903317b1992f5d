"""What a task wrote is stored once: the state that it becomes part of refers to the bytes of the write."""

import random

import pytest

from outlive.backend import Commit, ThreadKey
from outlive.factory import open as open_store
from outlive.format import chunk, manifest
from outlive.format import planner as planning
from outlive.format.codec import Codec
from outlive.format.registry import Registry
from outlive.format.splitter import split
from outlive.runtime.runtime import run_now
from outlive.threads import prune
from outlive.threads.cache import Cache
from outlive.threads.engine import Draft, Engine

CODEC = Codec(Registry())
NAMER = chunk.Namer(b"k" * 32)


def message(rng, size=None):
    words = "".join(rng.choices("abcdefgh ", k=size or rng.choice((10, 200, 900, 3000))))
    return {"content": words, "id": None if rng.random() < 0.5 else rng.getrandbits(60)}


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_with_loose_bytes_gives_the_state_again(seed):
    rng = random.Random(seed)
    stored, old, state = {}, None, []
    for _ in range(12):
        written = [message(rng) for _ in range(rng.randrange(1, 4))]
        raw = CODEC.pack(written)
        data = chunk.encode(raw)
        stored[NAMER.name(data)] = data
        stored_pieces = {
            packed[: planning.PIECE_KEY]: (packed, NAMER.name(data), raw.find(packed))
            for packed in map(CODEC.pack, written)
        }
        for one in written:
            if rng.random() < 0.5:
                one["id"] = rng.getrandbits(60)  # as LangGraph does to a message without one
        state = [*state, *written] if rng.random() < 0.8 else [*state[1:], *written, message(rng)]
        pieces = split(CODEC, state, old)
        plan = planning.plan(CODEC, NAMER, pieces, old, stored_pieces)
        stored.update(plan.chunks)
        raws = [chunk.decode(stored[name]) for name in plan.names]
        assert CODEC.unpack(chunk.assemble(plan.layout, raws, pieces.size)) == state
        assert len(plan.layout) <= 2 * planning.MAX_SPANS
        plan.settle()
        old = pieces


@pytest.fixture
def engine():
    store = open_store("memory:")
    inner = store._store._engine
    yield Engine(inner.backend, inner.codec, inner.namer, Cache(1 << 24), inner.runtime)
    store.close()


def write(engine, key, value):
    record, chunks = engine.write_record("", "c", "task", 0, "messages", value, "")
    stored_pieces = engine.stored_pieces(record, chunks, value)
    engine.remember_stored(key, "", stored_pieces)
    run_now(engine.commit(Commit(key, writes=(record,), chunks=tuple(chunks.items()))))


def test_a_message_that_was_written_first_is_not_stored_again(engine):
    rng, key = random.Random(1), ThreadKey.of("", "t")
    state = [message(rng, 1000) for _ in range(5)]
    run_now(engine.save(key, state, Draft("", "one")))
    more = {"content": "".join(rng.choices("abcdefgh", k=5000)), "id": None}
    write(engine, key, [more])
    saved = run_now(engine.save(key, [*state, {**more, "id": "later"}], Draft("", "two")))
    assert saved.added < 500
    reading, stream = run_now(engine.load(key, "", "two", None, None))
    assert engine.unpack(key, "two", stream) == [*state, {**more, "id": "later"}]
    assert len(manifest.layout_of(reading.record.body)) <= 4


@pytest.mark.parametrize("url", ["memory:", "file:{}/folder", "sqlite:///{}/file.db"])
def test_a_write_that_was_withdrawn_is_not_referred_to(url, tmp_path):
    rng, key = random.Random(4), ThreadKey.of("", "t")
    state, more = [message(rng, 1000)], message(rng, 5000)
    with open_store(url.format(tmp_path)) as store:
        inner = store._store._engine
        engine = Engine(inner.backend, inner.codec, inner.namer, Cache(1 << 24), inner.runtime)
        run_now(engine.save(key, state, Draft("", "one")))
        record, chunks = engine.write_record("", "c", "task", 0, "messages", [more], "")
        engine.remember_stored(
            key, "", engine.stored_pieces(record, chunks, [more])
        )  # it stood in a queue, and never got further
        run_now(engine.save(key, [*state, more], Draft("", "two")))
        assert store.thread("t").load() == [*state, more]
        assert store.verify().ok


def test_what_was_deleted_since_is_not_referred_to(engine):
    rng, key = random.Random(2), ThreadKey.of("", "t")
    run_now(engine.save(key, [message(rng, 1000)], Draft("", "one")))
    more = message(rng, 5000)
    write(engine, key, [more])
    other = Engine(engine.backend, engine.codec, engine.namer, Cache(1 << 24), engine.runtime)
    run_now(prune.remove(other, key, ids=[("", "c")]))  # takes the write along, and its chunk
    run_now(engine.save(key, [more], Draft("", "two")))
    _, stream = run_now(other.load(key, "", "two", None, None))
    assert other.unpack(key, "two", stream) == [more]


def test_a_write_that_changed_after_it_was_packed_is_not_confused(engine):
    rng, key = random.Random(3), ThreadKey.of("", "t")
    run_now(engine.save(key, [message(rng, 1000)], Draft("", "one")))
    more = {"content": "".join(rng.choices("abcdefgh", k=2000)), "id": None}
    record, chunks = engine.write_record("", "c", "task", 0, "messages", [more], "")
    more["content"] = more["content"][::-1]
    assert engine.stored_pieces(record, chunks, [more]) == {}
