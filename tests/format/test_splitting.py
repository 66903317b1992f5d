"""However a state changes: what is put together again is the state, and what is stored follows the change."""

import base64
import copy
import dataclasses
import functools
import os
import random
import typing

import pydantic
import pytest

import outlive
from outlive.format import chunk, manifest, planner
from outlive.format.codec import Codec
from outlive.format.composite import Composite
from outlive.format.layout import assemble, has_composite
from outlive.format.registry import Registry
from outlive.format.splitter import LARGE, Growing, split

LONG = bool(os.environ.get("OUTLIVE_LONG"))
SEEDS = range(1200) if LONG else range(20)
STEPS = 20


@dataclasses.dataclass
class Box:
    label: str
    inside: object


class CheckpointKey(typing.NamedTuple):
    left: object
    right: object


class Model(pydantic.BaseModel):
    name: str = "m"
    inside: typing.Any = None


@dataclasses.dataclass(frozen=True)
class Tag:
    name: str


REGISTRY = Registry()
for cls in (Box, CheckpointKey, Model, Tag):
    REGISTRY.add(cls, f"pieces.{cls.__name__}")
CODEC = Codec(REGISTRY)
BARE = Codec(Registry())


def same(a, b):
    """Equal, of the same types, and with keys in the same order, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Box | Model):
        return same(vars(a), vars(b))
    return a == b


# One thread, without a store ---------------------------------------------------------------------------


class Saver:
    """Saves one state after another like a thread does, and looks at everything that can be looked at.

    Not `thorough`, it only measures, and reads the state back from time to time.
    """

    def __init__(self, thorough=True):
        self.codec = CODEC
        self.thorough = thorough
        self.count = 0
        self.namer = chunk.Namer(b"k" * 32)
        self.chunks = {}
        self.base = None
        self.last = None  # (names, layout, size)
        self.stored = 0  # bytes of chunks and bodies

    def save(self, state, *, commits=True, growing=None):
        pieces = split(self.codec, state, self.base, growing)
        plan = planner.plan_chunks(self.codec, self.namer, pieces, self.base)
        body = manifest.encode_fields(plan.layout, {})
        layout = manifest.layout_of(body)
        new = {name: data for name, data in plan.chunks.items() if name not in self.chunks}
        known = {**self.chunks, **new}
        self.count += 1
        if self.thorough or self.count % 20 == 0:
            self._check_kept(pieces)
            stream = self._stream(plan.names, layout, known, pieces.size)
            assert same(self.codec.unpack(stream), state), "the state that comes back is another one"
        self._check_spans(pieces, layout)
        if commits:
            plan.record_spans()
            self.base = pieces
            self.chunks = known
            self.last = (plan.names, layout, pieces.size)
            self.stored += sum(map(len, new.values())) + len(body) + 16 * len(plan.names)
        return plan

    def cost(self, state):
        """Save, and return what that stored."""
        before = self.stored
        self.save(state)
        return self.stored - before

    def _stream(self, names, layout, known, size):
        assert set(names) <= set(known), "a span names a chunk that was never stored"
        return assemble(layout, [chunk.decode(known[name]) for name in names], size)

    def _check_kept(self, pieces):
        for part in pieces.parts:
            data, end = part.bytes_of(self.codec), 0
            assert len(data) == part.size
            assert part.ends == sorted(part.ends)
            assert part.ends[-1:] == [part.size] or part.size == 0
            for start, length, other, offset in part.kept:
                assert start >= end, "kept ranges overlap or are out of order"
                end = start + length
                assert data[start:end] == other.bytes_of(self.codec)[offset : offset + length], (
                    "kept, but not the same"
                )

    def _check_spans(self, pieces, layout):
        large = 0
        for part in pieces.parts:
            large += sum(end - start >= LARGE for start, end in zip([0, *part.ends], part.ends, strict=False))
        spans = [item for item in layout if isinstance(item, tuple)]
        # Two neighbours of a large piece count once more each: it divides them.
        assert len(spans) - large <= planner.MAX_SPANS + large, (len(spans), large)
        if not large:
            assert len(spans) <= planner.MAX_SPANS

    def rebase(self):
        """Forget the pieces and read them back, as another process does that knows none of the types."""
        names, layout, size = self.last
        stream = self._stream(names, layout, self.chunks, size)
        pieces = split(BARE, BARE.unpack(stream, opaque=True))
        again = b"".join(part.bytes_of(BARE) for part in pieces.parts)
        assert again == stream, "read back, the stream is another one"
        raws = {name: chunk.decode(self.chunks[name]) for name in names}
        composite = Composite.read(names, raws[names[0]]) if has_composite(layout) else None
        planner.place(pieces, layout, names, composite)
        for part in pieces.parts:
            data = part.bytes_of(BARE)
            at = 0
            for name, offset, length in part.spans:
                for chunk_name, start, size in (
                    name.spans(offset, length) if name is composite else [(name, offset, length)]
                ):
                    if chunk_name:
                        placed = raws[chunk_name][start : start + size]
                        assert placed == data[at : at + size], "placed wrongly"
                    at += size
            assert at == part.size
        self.base = pieces


# Random states and what happens to them ----------------------------------------------------------------


class World:
    """A random state, and the ways in which it changes."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.number = 0
        self.state = self.start()

    def text(self, low=1, high=600):
        self.number += 1
        size = self.rng.randrange(low, high)
        return f"{self.number}:" + self.rng.choice("abcdefé日") * size

    def message(self):
        kind = self.rng.randrange(9)
        if kind == 0:
            return self.text()
        if kind == 1:
            return Box(self.text(1, 9), {"text": self.text()})
        if kind == 2:
            return (self.number, self.text())
        if kind == 3:
            return {1: self.text(), "1": [self.rng.random()], (2, "t"): None}
        if kind == 4:
            return {"role": "tool", "data": self.blob(), "tags": {Tag("a"), Tag(self.text(1, 5))}}
        if kind == 5:
            return self.rng.choice(
                [self.rng.randrange(1 << 80), 0, True, None, 1.5, "", [], {}, b"", "\ud800"]
            )
        return {"role": "user", "content": self.text(), "n": self.number}

    def blob(self):
        size = self.rng.choice([0, 10, 300, 3000])
        return self.rng.choice([bytes, bytearray])(self.rng.randbytes(size))

    def leaf(self):
        size = self.rng.choice([LARGE - 5, LARGE, LARGE + 1, 100_000])
        return self.rng.choice([lambda: self.rng.randbytes(size), lambda: self.text(1, 2) + "é" * size])()

    def messages(self):
        return [self.message() for _ in range(self.rng.choice([0, 1, 3, 7, 8, 15, 16, 40, 90]))]

    def thing(self):
        make = self.rng.choice(
            [
                self.messages,
                self.messages,
                lambda: {self.text(1, 4): self.text() for _ in range(self.rng.choice([1, 8, 30]))},
                lambda: list(range(self.rng.choice([5, 300, 1500]))),
                lambda: {n: self.text() for n in range(self.rng.choice([3, 40]))},
                lambda: Box("b", self.messages()),
                lambda: Model(inside=self.messages()),
                lambda: CheckpointKey(self.messages(), self.text()),
                lambda: (self.messages(), self.messages()),
                lambda: {f"file{n}.py": self.text(1000, 9000) for n in range(self.rng.choice([2, 9]))},
                self.leaf,
                lambda: [self.leaf(), self.text(), self.leaf()],
                lambda: {"a": self.leaf(), "b": {"c": [self.leaf()]}},
                lambda: {frozenset({1, Tag("x")}), b"\xc4\xc5", self.text(1, 2000)},
                lambda: {"\ud800": self.messages(), "k": self.text(1000, 4000)},
                self.blob,
                self.message,
            ]
        )
        return make()

    def start(self):
        return {self.rng.choice("abcdefgh") * 2: self.thing() for _ in range(self.rng.randrange(1, 6))}

    # Changes

    def containers(self):
        """Every list and dict in the state that can be changed, as (container, its parent's setter)."""
        found, todo = [], [self.state]
        while todo:
            item = todo.pop()
            if isinstance(item, list | dict):
                found.append(item)
            if isinstance(item, dict):
                todo.extend(item.values())
            elif isinstance(item, list | tuple):
                todo.extend(item)
            elif isinstance(item, Box | Model):
                todo.append(item.inside)
        return found

    def change(self):
        """Change something, in place or not, and tell what was done."""
        rng = self.rng
        found = self.containers()
        big = [item for item in found if len(item) >= 8]
        target = rng.choice(big if big and rng.random() < 0.7 else found)
        ways = [self.grow, self.replace_top, self.swap_bytes, self.copy_all, self.retype, self.nothing]
        if isinstance(target, list):
            ways += [
                self.append,
                self.append,
                self.insert,
                self.delete,
                self.slide,
                self.edit,
                self.shuffle,
                self.heavy,
            ]
        else:
            ways += [self.put, self.edit, self.delete_key, self.reorder, self.rename, self.heavy]
        way = rng.choice(ways)
        way(target)
        return way.__name__

    def nothing(self, target):
        pass

    def copy_all(self, target):
        """Equal objects, none of them the same."""
        self.state = copy.deepcopy(self.state)
        for item in self.containers():
            for key in list(item) if isinstance(item, dict) else range(len(item)):
                if type(item[key]) is bytes:
                    item[key] = bytes(bytearray(item[key]))

    def append(self, target):
        target.extend(self.message() for _ in range(self.rng.choice([1, 1, 1, 2, 10])))

    def insert(self, target):
        target.insert(self.rng.choice([0, len(target) // 2, len(target)]), self.message())

    def delete(self, target):
        if target:
            start = self.rng.randrange(len(target))
            del target[start : start + self.rng.choice([1, 1, 3, 20])]

    def slide(self, target):
        count = self.rng.choice([1, 1, 2, 5])
        del target[:count]
        target.extend(self.message() for _ in range(count))

    def edit(self, target):
        if target:
            key = self.rng.choice(list(target) if isinstance(target, dict) else range(len(target)))
            target[key] = self.message()

    def heavy(self, target):
        """An element that stayed whole grows until it is split, or the other way round."""
        if target:
            key = self.rng.choice(list(target) if isinstance(target, dict) else range(len(target)))
            heavy = [self.text(2000, 6000) for _ in range(12)]
            target[key] = self.rng.choice([heavy, {"parts": heavy, "x": 1}, "small", {"a": 1}, self.leaf()])

    def shuffle(self, target):
        self.rng.shuffle(target)

    def put(self, target):
        target[self.rng.choice([self.text(1, 5), self.rng.randrange(50), "zz"])] = self.message()

    def delete_key(self, target):
        if len(target) > 1:
            del target[self.rng.choice(list(target))]

    def reorder(self, target):
        items = list(target.items())
        self.rng.shuffle(items)
        target.clear()
        target.update(items)

    def rename(self, target):
        """The same value under another key."""
        if target:
            target[self.text(1, 5)] = target.pop(self.rng.choice(list(target)))

    def grow(self, target):
        self.state[self.text(1, 5)] = self.thing()

    def replace_top(self, target):
        if isinstance(self.state, dict):
            self.state[self.rng.choice(list(self.state))] = self.thing()

    def retype(self, target):
        """The same content in another type, at the same place."""
        key = self.rng.choice(list(self.state))
        value = self.state[key]
        if isinstance(value, list):
            self.state[key] = self.rng.choice([tuple, lambda v: Box("b", v), lambda v: Model(inside=v), lambda v: dict(enumerate(v))])(value)  # fmt: skip
        elif isinstance(value, tuple):
            self.state[key] = list(value)
        elif isinstance(value, Box | Model):
            self.state[key] = value.inside
        elif isinstance(value, dict):
            self.state[key] = self.rng.choice([list(value.values()), list(map(list, value.items()))])

    def swap_bytes(self, target):
        """bytes become a bytearray of the same content, or the other way round: the same bytes in msgpack."""
        swap = {bytes: bytearray, bytearray: bytes}
        for item in self.containers():
            for key in list(item) if isinstance(item, dict) else range(len(item)):
                if type(item[key]) in swap and self.rng.random() < 0.5:
                    item[key] = swap[type(item[key])](item[key])


def play(seed, steps=STEPS):
    world, saver, done = World(seed), Saver(), []
    try:
        for _ in range(steps):
            saver.save(world.state)
            for _ in range(world.rng.choice([1, 1, 1, 2, 5])):
                done.append(world.change())
                if not world.state:
                    world.state = world.start()
            luck = world.rng.random()
            if luck < 0.15:
                saver.rebase()
            elif luck < 0.3:
                saver.save(world.state, commits=False)  # a save that the store refused
                done.append("refused")
        saver.rebase()
        assert saver.save(world.state).pieces.size
    except Exception as error:
        raise AssertionError(f"seed {seed}: {done[-6:]}") from error


@pytest.mark.parametrize("tenth", range(10))
def test_whatever_happens_to_a_state_what_comes_back_is_the_state(tenth):
    for seed in SEEDS[tenth::10]:
        play(seed)


@pytest.mark.parametrize(
    "state",
    [None, 0, "", "x" * 70_000, b"y" * 70_000, [], {}, (), set(), [[]], {"": {}}, "\ud800" * 70_000, bytearray(90_000),
     [b"y" * 70_000] * 3, ["x" * 70_000, "x" * 70_000], {"a": ["x" * 3000] * 9}, dict.fromkeys(range(9), "x" * 3000)],
    ids=lambda state: f"{type(state).__name__} {str(state)[:12]}",
)  # fmt: skip
def test_a_state_of_any_form_is_split_put_together_and_based_on(state):
    saver = Saver()
    saver.save(state)
    saver.rebase()
    assert not saver.save(state).chunks
    for other in (None, [], "x", {"a": 1}, ["x" * 3000] * 9):
        saver.save(other)
        saver.save(state)


@pytest.mark.parametrize("seed", range(200) if LONG else range(12))
def test_a_list_that_only_grows_is_stored_as_any_other(seed):
    chance = random.Random(seed)
    saver, usual, growing = Saver(), Saver(), Growing([])

    def element():
        sizes = [3, 30, 300, 3000, 40_000, 70_000]
        text = "".join(chance.choices("abcdef", k=chance.choice(sizes)))
        return chance.choice([text, text.encode(), {"role": "user", "content": text}, [text] * 9])

    for _ in range(30):
        growing.elements.extend(element() for _ in range(chance.randrange(4)))
        if chance.random() < 0.1:  # changed otherwise: another list
            growing = Growing(growing.elements[: chance.randrange(len(growing.elements) + 1)])
        if chance.random() < 0.1:  # a base that was read back, or of another list
            saver.rebase()
            usual.rebase()
        state = {"items": growing.elements, "n": chance.randrange(9)}
        if chance.random() < 0.2:
            saver.save(state, growing=growing, commits=False)  # refused: the base stays
        saver.save(state, growing=growing)
        usual.save(state)
        assert saver.stored <= usual.stored * 1.1 + 1000


def test_what_was_appended_alone_is_packed():
    saver, growing, packed = Saver(), Growing([{"text": "x" * 500} for _ in range(500)]), []
    saver.save({"items": growing.elements}, growing=growing)
    pack = saver.codec.pack_native
    saver.codec = Codec(REGISTRY)
    saver.codec.pack_native = lambda value, *path: packed.append(data := pack(value, *path)) or data
    saver.thorough = False
    growing.elements.extend([{"text": "y" * 500}] * 2)
    saver.save({"items": growing.elements}, growing=growing)
    assert sum(map(len, packed)) < 5000


@pytest.mark.parametrize("kind", [str, bytes])
@pytest.mark.parametrize("key", ["\ud800", "a\udfff", 1, b"k", (1, 2), None, Tag("t"), "plain"], ids=repr)
def test_a_big_dict_with_a_key_that_msgpack_does_not_have_comes_back(key, kind):
    big = "x" * 5000 if kind is str else b"x" * 5000
    saver = Saver()
    for n in range(3):
        state = {"a": {"first": big, key: [big, n], "b": [{"t": "y" * 300}] * (20 + n)}, key: [big] * 10}
        saver.save(state)
        saver.rebase()
        saver.save({**state, "more": n})


@pytest.mark.parametrize("kind", [str, bytes])
def test_a_large_leaf_is_stored_once_whether_the_same_object_or_an_equal_one(kind):
    make = {str: lambda: "".join(map(chr, range(33, 120))) * 1000, bytes: lambda: bytes(range(256)) * 300}[
        kind
    ]
    saver = Saver()
    leaf = make()
    saver.save({"image": leaf, "n": 0})
    for n, state in enumerate(
        [
            {"image": leaf, "n": 1},
            {"image": make(), "n": 2},
            {"n": 3, "image": leaf},
            {"n": 4, "images": [leaf]},
            {"n": 5, "deep": {"a": [{"image": leaf}], "pad": ["x" * 500] * 20}},
        ]
    ):
        plan = saver.save(state)
        assert not any(len(chunk.decode(data)) >= LARGE for data in plan.chunks.values()), n
    plan = saver.save({"image": leaf[:-1] + leaf[:1], "n": 6})
    assert any(len(chunk.decode(data)) >= LARGE for data in plan.chunks.values())


def test_a_leaf_that_was_freed_is_not_mistaken_for_another_at_its_address():
    saver = Saver()
    for n in range(200):
        saver.save({"image": bytes([n]) * (LARGE + 100)})  # each is freed before the next is made


@pytest.mark.parametrize("other", [bytearray, memoryview])
def test_bytes_that_become_another_type_in_place_are_noticed(other):
    """Both have the same msgpack bytes, so comparing bytes alone would call them equal."""
    for size, depth in ((5, 0), (3000, 0), (5, 1), (70_000, 0), (70_000, 1)):
        messages = [{"role": "user", "content": "x" * 300, "data": bytes(size)} for _ in range(12)]
        state = {"a": messages} if depth == 0 else {"a": Box("b", (messages, {1: messages}))}
        saver = Saver()
        saver.save(state)
        messages[5]["data"] = other(messages[5]["data"])
        if other is memoryview:
            with pytest.raises(outlive.errors.Unencodable):
                saver.save(state)
            messages[5]["data"] = bytes(size)
        saver.save(state)  # compares types


def test_a_thousand_tiny_elements_are_cut_in_groups_and_still_shared():
    saver = Saver()
    numbers = list(range(5000))
    saver.save({"numbers": numbers})
    numbers.append(7)
    assert saver.save({"numbers": numbers}).added < 1000
    numbers[2500] = -1
    assert saver.save({"numbers": numbers}).added < 2500


# What sharing is worth --------------------------------------------------------------------------------
#
# Texts do not compress, so that a stored byte is a byte of the state. Figures are of stored bytes: new
# chunks, the body, and the names of its chunks.

RNG = random.Random(11)


def text(size):
    return base64.b85encode(RNG.randbytes(size * 4 // 5)).decode()


def message(n, size=1000):
    return {"role": "user", "id": n, "content": text(size)}


@functools.cache
def thousand():
    return [message(n) for n in range(1000)]


NESTS = {
    "list": lambda messages: messages,
    "dict": lambda messages: {"messages": messages, "n": len(messages)},
    "dict behind": lambda messages: {"n": len(messages), "messages": messages, "plan": "p"},
    "three dicts": lambda messages: {"a": {"b": {"messages": messages}, "x": 1}, "y": [1]},
    "dataclasses": lambda messages: Box("a", Box("b", Box("c", messages))),
    "pydantic": lambda messages: Model(inside=Model(inside={"m": messages})),
    "tuples": lambda messages: (1, (2, (3, messages))),
    "namedtuple in a list": lambda messages: [CheckpointKey(0, {"m": messages}), "x"],
    "int keys": lambda messages: {1: {2: {3: messages}}},
    "mixed": lambda messages: {"state": Box("a", (Model(inside=messages), 1)), "n": len(messages)},
    "surrogate keys": lambda messages: {"\ud800": {"m": messages}},
}


@pytest.mark.parametrize("nest", NESTS)
def test_an_appended_message_costs_itself_and_little_more(nest):
    wrap, messages, saver, costs = NESTS[nest], list(thousand()), Saver(thorough=False), []
    saver.save(wrap(messages))
    for n in range(64):
        messages.append(message(1000 + n))
        costs.append(saver.cost(wrap(messages)))
    assert costs[0] < 3000
    assert sorted(costs)[len(costs) // 2] < 3000  # most saves merge nothing
    assert sum(costs) / len(costs) < 8000


def test_a_conversation_that_grows_from_nothing_rewrites_each_byte_a_few_times():
    saver, messages, costs = Saver(thorough=False), [], []
    for n in range(500):
        messages.append(message(n))
        costs.append(saver.cost({"messages": messages}))
    assert sum(costs) / len(costs) < 8000
    names, _, _ = saver.last
    assert len(names) <= 40


def test_one_edited_file_of_forty_costs_itself():
    saver = Saver(thorough=False)
    files = {f"src/module_{n}.py": text(8000) for n in range(40)}
    saver.save({"files": files, "n": 0})
    for n in range(20):
        files[f"src/module_{n * 7 % 40}.py"] = text(8000)
        assert saver.cost({"files": files, "n": n}) < 12_000


def test_a_sliding_window_costs_what_came_in():
    saver, window = Saver(thorough=False), [message(n) for n in range(200)]
    saver.save({"window": window})
    before = saver.stored
    for n in range(100):
        window.pop(0)
        window.append(message(200 + n))
        saver.save({"window": window})
    assert (saver.stored - before) / 100 < 8000


def costs_of(first, *others):
    saver = Saver()
    saver.save(first)
    return [saver.cost(state) for state in others]


def test_a_list_that_moves_to_another_key_is_not_stored_again():
    messages = thousand()
    costs = costs_of({"a": messages, "n": 1}, {"b": messages, "n": 2}, {"n": 3, "deep": {"c": messages}})
    assert max(costs) < 8000


def test_other_keys_around_it_and_another_order_do_not_store_a_list_again():
    messages = thousand()
    costs = costs_of(
        {"a": 1, "messages": messages, "z": text(2000)},
        {"z": text(2000), "messages": messages, "a": 1},
        {"messages": messages, "new": 1, "a": 1},
        {"new": 1, "plan": {"x": text(500)}, "messages": messages},
    )
    assert max(costs) < 8000


def test_a_second_list_beside_it_does_not_store_the_first_again():
    messages, log = thousand(), [message(n) for n in range(100)]
    costs = costs_of(
        {"messages": messages}, {"log": log[:1], "messages": messages}, {"log": log[:2], "messages": messages}
    )
    assert max(costs) < 8000


@pytest.mark.parametrize("place", [0, 1, 500, 998])
def test_a_message_put_in_anywhere_costs_itself(place):
    messages = list(thousand())
    messages.insert(place, message(-1))
    assert costs_of({"messages": thousand()}, {"messages": messages})[0] < 8000


@pytest.mark.parametrize("place", [0, 1, 500, 999])
def test_a_message_edited_or_taken_out_anywhere_costs_itself(place):
    edited, cut = list(thousand()), list(thousand())
    edited[place] = message(-2)
    del cut[place]
    costs = costs_of(
        {"messages": thousand()}, {"messages": edited}, {"messages": thousand()}, {"messages": cut}
    )
    assert max(costs[0], costs[2]) < 8000


def test_edits_all_over_stay_cheap_and_within_the_limit_of_spans():
    saver, messages = Saver(thorough=False), list(thousand())
    saver.save({"messages": messages})
    before = saver.stored
    for n in range(100):
        messages[n * 389 % 1000] = message(-n)
        saver.save({"messages": messages})
    assert (saver.stored - before) / 100 < 24_000


def test_an_image_is_one_chunk_that_is_never_written_again():
    saver, image = Saver(thorough=False), RNG.randbytes(300_000)
    messages = [message(0), {"role": "user", "image": image}]
    state = {"messages": messages, "n": 0}
    plan = saver.save(state)
    (name,) = [name for name, data in plan.chunks.items() if len(data) > 250_000]
    assert len(chunk.decode(plan.chunks[name])) < 300_010
    before = saver.stored
    for n in range(200):
        messages.append(message(n))
        state["n"] = n
        if n % 50 == 49:
            saver.rebase()
        plan = saver.save(state)
        assert name in plan.names
        assert all(len(data) < 250_000 for data in plan.chunks.values())
    assert (saver.stored - before) / 200 < 8000


def test_a_process_that_reads_the_base_back_shares_as_much_as_the_one_that_wrote_it():
    messages, saver = list(thousand()), Saver(thorough=False)
    saver.save({"messages": Box("b", messages)})
    for n in range(5):
        saver.rebase()
        messages.append(message(n))
        assert saver.cost({"messages": Box("b", messages)}) < 8000


def test_a_store_counts_what_it_stores():
    """The same through the front door: stored bytes of a thread, as a user sees them."""
    with outlive.open("memory:") as store:
        thread = store.thread("a")
        messages = list(thousand())
        thread.save({"messages": messages})
        before = thread.size().stored_bytes
        for n in range(64):
            messages.append(message(n))
            thread.save({"messages": messages})
        assert (thread.size().stored_bytes - before) / 64 < 8000
        assert thread.load() == {"messages": messages}
        assert store.verify().ok
