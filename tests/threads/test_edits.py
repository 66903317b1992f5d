"""A text that is edited again and again: every version loads exactly, alone, and costs about its edit."""

import os
import random

import pytest

import outlive
from outlive.backend import ThreadKey
from outlive.format.layout import has_composite
from outlive.format.manifest import layout_of
from outlive.runtime.runtime import run_now
from outlive.threads.engine import Engine

SEEDS = range(40 if os.environ.get("OUTLIVE_LONG") else 2)
STEPS = 150
ALPHABETS = ("abc def. ", "äöü€ 漢字 ", "😀a\x00\n")


def words(rng, length):
    return "".join(rng.choices(rng.choice(ALPHABETS), k=length))


def edited(rng, text):
    """Insert, delete, replace, move or append something."""
    new = words(rng, rng.randrange(200))
    new = new.encode() if isinstance(text, bytes) else new
    at, size = rng.randrange(len(text) + 1), rng.randrange(300)
    kind = rng.randrange(6)
    if kind == 0:
        return text[:at] + new + text[at:]
    if kind == 1 and len(text) > 2000:
        return text[:at] + text[at + size :]
    if kind == 2:
        return text[at:] + text[:at]
    if kind == 3:
        return text + new
    return text[:at] + new + text[at + len(new) :]


def start(rng):
    return {
        "long": words(rng, 90_000),
        "raw": rng.randbytes(70_000),
        "files": {f"file {n}": words(rng, rng.randrange(500, 9_000)) for n in range(12)},
        "lines": [words(rng, rng.randrange(2_000)) for _ in range(30)],
        "step": 0,
    }


def next_state(rng, state, step):
    state = {**state, "files": dict(state["files"]), "lines": list(state["lines"]), "step": step}
    for _ in range(rng.randrange(1, 4)):
        place = rng.choice(("long", "raw", "files", "files", "lines"))
        if place in ("long", "raw"):
            state[place] = edited(rng, state[place])
        elif place == "files":
            name = rng.choice(list(state["files"]))
            state["files"][name] = edited(rng, state["files"][name])
        else:
            index = rng.randrange(len(state["lines"]))
            state["lines"][index] = edited(rng, state["lines"][index])
    return state


def fill(thread, rng, steps=STEPS):
    """Save edited states; return them by the id of their checkpoint."""
    states, state = {}, start(rng)
    for step in range(steps):
        state = next_state(rng, state, step)
        states[thread.save(state).id] = state
    return states


def records(store, id="t"):
    engine: Engine = store._store._engine
    return run_now(engine.records(ThreadKey.of("", id)))


def expect(store, states, id="t"):
    thread = store.thread(id)
    for checkpoint, state in states.items():
        assert thread.load(checkpoint) == state
    report = store.verify()
    assert report.ok, report


@pytest.mark.parametrize("seed", SEEDS)
def test_every_version_loads_and_any_of_them_can_be_deleted(seed, tmp_path):
    rng = random.Random(seed)
    path = f"sqlite:///{tmp_path}/edits.db"
    with outlive.open(path) as store:
        states = fill(store.thread("t"), rng)
        assert any(has_composite(layout_of(record.body)) for record in records(store))
    with outlive.open(path) as store:  # nothing in memory
        expect(store, states)
        thread = store.thread("t")
        for erase in (False, True):
            gone = rng.sample(list(states), len(states) // 2)
            thread.delete_checkpoints(gone, erase=erase)
            states = {id: state for id, state in states.items() if id not in gone}
            expect(store, states)
        # Continue with what the deletion has written again.
        state = next_state(rng, thread.load(), STEPS)
        states[thread.save(state).id] = state
        expect(store, states)


@pytest.mark.parametrize("seed", SEEDS)
def test_edited_versions_are_copied_forked_and_exported(seed, tmp_path):
    rng = random.Random(100 + seed)
    with (
        outlive.open("memory:") as one,
        outlive.open(f"sqlite:///{tmp_path}/two.db") as two,
    ):
        states = fill(one.thread("t"), rng)
        one.copy_to(two)
        expect(two, states)
        thread = one.thread("t").fork("fork")
        state = next_state(rng, thread.load(), STEPS)
        thread.save(state)
        assert one.thread("fork").load() == state
        one.thread("t").delete()
        assert one.thread("fork").load() == state
        assert one.verify().ok
        # The copy knows its base by what it reads.
        state = next_state(rng, two.thread("t").load(), STEPS)
        states[two.thread("t").save(state).id] = state
        expect(two, states)


def test_erasing_versions_leaves_no_byte_of_their_text(tmp_path):
    rng = random.Random(7)
    text = words(rng, 50_000)
    with outlive.open("memory:") as store:
        thread = store.thread("t")
        ids = []
        for step in range(200):
            at = rng.randrange(len(text) - 200)
            text = text[:at] + f"<secret {step}>".rjust(150) + text[at + 150 :]
            ids.append(thread.save({"text": text, "n": step}).id)
        text = text.replace("secret", "public")
        ids.append(thread.save({"text": text, "n": 200}).id)
        assert thread.delete_checkpoints(ids[:-1], erase=True).erased
        engine: Engine = store._store._engine
        key = ThreadKey.of("", "t")
        names = list(run_now(engine.backend.inventory(key)).chunks)
        chunks = run_now(engine.backend.fetch(key, names))
        raws = [engine.raw(name, data) for name, data in chunks.items()]
        assert not any(b"secret" in raw for raw in raws)
        assert not any(b"secret" in record.body for record in records(store))
        assert thread.load() == {"text": text, "n": 200}


def test_an_edit_costs_the_edit_and_a_load_reads_few_chunks(tmp_path):
    rng = random.Random(11)
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=300_000))
    with outlive.open("memory:") as store:
        thread, stored = store.thread("t"), 0
        for step in range(600):
            at = rng.randrange(len(text) - 100)
            text = text[:at] + "".join(rng.choices("ABCDEF", k=100)) + text[at + 100 :]
            info = thread.save({"text": text, "step": step})
            stored += info.new_bytes
        assert thread.load() == {"text": text, "step": 599}
        assert stored < 3 * len(text)
        kept = records(store)
        stored += sum(len(record.body) for record in kept)
        assert stored < 4 * len(text)
        assert max(len(record.chunks) for record in kept) <= 64
