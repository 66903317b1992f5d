"""An outline is stored as the plain dict that it stands for, and what its writer calls unchanged is not looked at."""

import copy
import os
import random

import pytest

from outlive.errors import Unencodable
from outlive.format import chunk, manifest, planner
from outlive.format.codec import Codec
from outlive.format.extensions import Raw
from outlive.format.layout import assemble
from outlive.format.outline import Outline, split_state
from outlive.format.registry import Registry

SEEDS = range(600) if os.environ.get("OUTLIVE_LONG") else range(20)
CODEC = Codec(Registry())


class Saver:
    """Saves outlines one after the other, as a thread does."""

    def __init__(self):
        self.namer = chunk.Namer(b"k" * 32)
        self.chunks = {}
        self.base = None
        self.stored = 0

    def save(self, outline):
        pieces = split_state(CODEC, outline, self.base)
        plan = planner.plan_chunks(CODEC, self.namer, pieces, self.base)
        layout = manifest.layout_of(manifest.encode_fields(plan.layout, {}))
        self.chunks.update(plan.chunks)
        raws = [chunk.decode(self.chunks[name]) for name in plan.names]
        self.stream = assemble(layout, raws, pieces.size)
        plan.record_spans()
        self.base, self.layout, self.names = pieces, layout, plan.names
        self.stored += plan.added
        return CODEC.unpack(self.stream, opaque=True)

    def read_back(self, versions):
        """Split again what is stored, as another process does."""
        state = CODEC.unpack(self.stream, opaque=True)
        fields = {name: value for name, value in state.items() if name != "values"}
        pieces = split_state(CODEC, outline_of(self.base.id, None, fields, state["values"], versions, ()))
        assert b"".join(part.bytes_of(CODEC) for part in pieces.parts) == self.stream
        planner.place(pieces, self.layout, self.names, None)
        self.base = pieces


def outline_of(id, base, fields, values, versions, changed, prepare=lambda name, value: value):
    return Outline(id, base, fields, "values", values, versions, changed, prepare)


def noting(names):
    return lambda name, value: names.append(name) or value


class World:
    """Random fields and values; `change` gives what it changes another version."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.step = 0
        self.fields, self.values, self.versions, self.changed = {}, {}, {}, set()
        self.makers = (self.number, self.text, self.messages, self.long_text, self.mixed, self.packed)

    def number(self):
        return self.rng.randrange(1 << 40)

    def text(self):
        return f"{self.step} " * self.rng.randrange(300)

    def long_text(self):
        return f"{self.rng.random()} " * self.rng.choice([200, 5_000])

    def messages(self):
        return [
            {"id": self.rng.random(), "text": "x" * self.rng.randrange(900)}
            for _ in range(self.rng.randrange(40))
        ]

    def mixed(self):
        return {
            "a": (1, {2, 3}),
            "b": bytearray(b"b" * self.rng.randrange(3000)),
            "c": b"c" * 10,
            "d": self.messages(),
        }

    def packed(self):
        return Raw(50, bytes(self.rng.randrange(256) for _ in range(self.rng.randrange(3000))))

    def change(self):
        self.step += 1
        self.changed = set()
        width = self.rng.choice([1, 1, 1, 60])  # now and then the fields are large
        self.fields = {
            "step": self.step,
            "seen": {f"node {n}": {"value": "0" * 40} for n in range(width)},
            "ts": str(self.rng.random()),
        }
        names = [f"channel {n}" for n in range(self.rng.choice([2, 5, 30]))]
        for name in self.rng.sample(names, self.rng.randrange(len(names))):
            old = self.values.get(name)
            if type(old) is list and self.rng.random() < 0.7:
                self.values[name] = [*old, *self.messages()]
            elif name in self.values and self.rng.random() < 0.2:
                del self.values[name]
            else:
                self.values[name] = self.rng.choice(self.makers)()
            self.versions[name] = self.step
            self.changed.add(name)

    def outline(self, base, prepare=lambda name, value: value):
        return outline_of(
            str(self.step), base, self.fields, self.values, dict(self.versions), self.changed, prepare
        )


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    return all(map(same, a, b)) and len(a) == len(b) if isinstance(a, list | tuple) else a == b


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_back_is_the_plain_dict(seed):
    world, saver = World(seed), Saver()
    for _ in range(15):
        base = str(world.step)
        world.change()
        asked = []
        outline = world.outline(base, noting(asked))
        expected = copy.deepcopy({"values": world.values, **world.fields})
        stored = saver.save(outline)
        assert same(stored, expected), seed
        if saver.stored and world.rng.random() < 0.2:
            saver.read_back(dict(world.versions))
        elif world.step > 1:
            assert set(asked) >= world.changed & world.values.keys()


def test_a_value_of_the_version_of_the_base_is_not_even_looked_at():
    saver, talk = Saver(), [f"message {n}" * 20 for n in range(100)]
    versions = {"talk": 1, "small": 1}
    saver.save(outline_of("1", None, {"ts": 1}, {"talk": talk, "small": "s"}, versions, versions))
    before = saver.stored
    asked = []
    prepare = noting(asked)
    talk.append("changed in place, without another version")
    kept = saver.save(outline_of("2", "1", {"ts": 2}, {"talk": talk, "small": "s"}, versions, (), prepare))
    assert (asked, saver.stored, len(kept["values"]["talk"])) == ([], before, 100)
    # Of another base, the same version says nothing.
    other = saver.save(outline_of("3", "1", {"ts": 3}, {"talk": talk, "small": "s"}, versions, (), prepare))
    assert (sorted(asked), len(other["values"]["talk"])) == (["small", "talk"], 101)
    # Nor does the absence from `changed` when the version is another one.
    talk.append("more")
    more = saver.save(outline_of("4", "3", {"ts": 4}, {"talk": talk}, {"talk": 2}, (), prepare))
    assert len(more["values"]["talk"]) == 102


def test_many_small_values_are_stored_when_they_change():
    saver = Saver()
    values = {f"channel {n}": random.Random(n).randbytes(200).hex() for n in range(50)}
    versions = dict.fromkeys(values, 1)
    saver.save(outline_of("0", None, {}, dict(values), versions, versions))
    first = saver.stored
    for step in range(1, 20):
        name = f"channel {step}"
        values[name], versions[name] = random.Random(-step).randbytes(200).hex(), step + 1
        stored = saver.save(outline_of(str(step), str(step - 1), {}, dict(values), dict(versions), {name}))
        assert stored["values"] == values
    assert saver.stored < 2 * first


def test_a_key_that_no_map_can_have_and_a_value_that_is_no_data():
    stored = Saver().save(outline_of("1", None, {"a": 1}, {"\ud800": 1, "b": 2}, {}, ()))
    assert stored == {"values": {"\ud800": 1, "b": 2}, "a": 1}
    with pytest.raises(Unencodable) as caught:
        Saver().save(outline_of("1", None, {"a": 1}, {"x": [1, {"y": object()}]}, {}, ()))
    assert caught.value.path == "state.values.x[1].y"
