"""The short cuts of a save give what the long way gives: the exact stream, whatever was edited since."""

import asyncio
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outlive
from outlive.format import chunk, planner
from outlive.format import splitter as piece
from outlive.format.codec import Codec
from outlive.format.layout import assemble
from outlive.format.part import Part
from outlive.format.registry import Registry

pytestmark = pytest.mark.heavy

LONG = bool(os.environ.get("OUTLIVE_LONG"))
EXAMPLES = 2000 if LONG else 30
CODEC = Codec(Registry())
NAMER = chunk.Namer(b"k" * 32)

texts = st.text(st.characters(codec="utf-8"), min_size=20, max_size=90)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 300), st.just(1.0), texts, st.binary(max_size=20)
)
elements = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": texts, "n": scalars}),
    st.lists(scalars, max_size=5),
    scalars,
)
edits = st.one_of(
    st.tuples(st.just("append"), st.lists(elements, max_size=4)),
    st.tuples(st.just("insert"), st.integers(0, 200), elements),
    st.tuples(st.just("replace"), st.integers(0, 200), elements),
    st.tuples(st.just("mutate"), st.integers(0, 200), scalars),
    st.tuples(st.just("remove"), st.integers(0, 200)),
    st.tuples(st.just("slide"), st.integers(0, 4), st.lists(elements, max_size=4)),
    st.tuples(st.just("nothing")),
)


def edit(messages, what, *details):
    if what == "append":
        messages += details[0]
    elif what == "slide":
        del messages[: details[0]]
        messages += details[1]
    elif what == "nothing" or not messages:
        return
    elif what == "remove":
        del messages[details[0] % len(messages)]
    elif what == "insert":
        messages.insert(details[0] % len(messages), details[1])
    elif what == "mutate" and isinstance(messages[details[0] % len(messages)], dict):
        messages[details[0] % len(messages)]["n"] = details[1]  # the very same dict, and another value in it
    else:
        messages[details[0] % len(messages)] = details[1]


def stream_of(pieces):
    """Put the stream together and leave the parts as they are."""
    return b"".join([part.bytes_of(CODEC) if part.leaf else part.cut(0, part.size) for part in pieces.parts])


@pytest.fixture(params=[32, 300, 2000])
def segment(request, tuned):
    """Segments so short that a small list has many."""
    tuned(segment_bytes=request.param)


def checked_split(state, old, stored):
    """Split along the old state, and compare with splitting alone and with packing; return pieces that are stored."""
    pieces = piece.split(CODEC, state, old)
    assert stream_of(pieces) == CODEC.pack(state) == stream_of(piece.split(CODEC, state))
    plan = planner.plan_chunks(CODEC, NAMER, pieces, old)
    stored.update(plan.chunks)
    raws = [chunk.decode(stored[name]) for name in plan.names]
    assert assemble(plan.layout, raws, pieces.size) == CODEC.pack(state)
    plan.record_spans()
    return pieces


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(elements, min_size=30, max_size=60), st.lists(edits, max_size=8), st.booleans())
def test_whatever_is_edited_the_stream_is_exact(segment, messages, changes, is_dict):
    stored, pieces = {}, None
    for step, change in enumerate([("nothing",), *changes]):
        edit(messages, *change)
        items = {f"key {n}": message for n, message in enumerate(messages)} if is_dict else messages
        pieces = checked_split({"items": items, "step": step}, pieces, stored)


@pytest.mark.parametrize("at", [0, 1, 450, 899, 900, 902])
def test_an_element_that_was_changed_in_place_is_noticed_wherever_it_is(at):
    messages = [{"content": f"{n} " * 100, "seen": False} for n in range(900)]
    stored = {}
    old = checked_split(messages, None, stored)
    for more in range(3):
        messages.append({"content": f"{more} more " * 50, "seen": False})
        old = checked_split(messages, old, stored)
    messages[at]["seen"] = True
    new = checked_split(messages, old, stored)
    assert stream_of(new) != stream_of(old)


class EventSink(Codec):
    """Knows the longest bytes that it packed."""

    longest = 0

    def pack_native(self, value, path="state"):
        data = super().pack_native(value, path)
        self.longest = max(self.longest, len(data))
        return data


def test_a_long_list_that_grew_is_never_packed_into_one_buffer():
    codec = EventSink(Registry())
    messages = [{"content": f"{n} " * 200} for n in range(2000)]
    old = piece.split(codec, messages)
    codec.longest = 0
    messages.append({"content": "one more"})
    new = piece.split(codec, messages, old)
    assert new.size > 20 * piece.SEGMENT
    assert codec.longest <= piece.SEGMENT + 10


def test_large_strings_side_by_side_have_nothing_between_them():
    pieces = piece.split(CODEC, [f"{n}" * 100_000 for n in range(5)])
    assert [part.size for part in pieces.parts] == [1] + 5 * [100_005]


def calls_of_a_small_change(files):
    """Count the calls that it takes to save a small change beside many large files."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    state = {f"file {n:03}": f"{n:03}" * 30_000 for n in range(files)}
    old = checked_split({**state, "step": 1}, None, {})
    sys.setprofile(count)
    try:
        pieces = piece.split(CODEC, {**state, "step": 2}, old)
        planner.plan_chunks(CODEC, NAMER, pieces, old)
    finally:
        sys.setprofile(None)
    return calls


def test_twice_as_many_large_files_take_about_twice_the_calls():
    assert calls_of_a_small_change(100) < 2.5 * calls_of_a_small_change(50)


@given(st.binary(min_size=200, max_size=210), st.binary(min_size=20, max_size=25), st.data())
def test_a_part_has_just_what_it_would_give(data, more, draw):
    part = Part(data, [len(data)])
    grown = Part(None, [len(data) + len(more)])
    grown.hold_more(part, more)
    whole = data + more
    low = draw.draw(st.integers(0, len(whole)))
    high = max(low, len(whole) - draw.draw(st.integers(0, 30)))
    other = bytearray(whole[low:high])
    what = draw.draw(st.sampled_from(["the same", "another byte", "shorter", "longer"]))
    if other and what == "another byte":
        other[-draw.draw(st.integers(1, len(other)))] ^= 1
    elif what == "shorter":
        del other[-1:]
    elif what == "longer":
        other += whole[high : high + 1]
    assert grown.has(memoryview(other), low, high) == (other == whole[low:high])


def test_those_who_were_committed_beside_a_refused_save_go_on_as_if_nothing_had_been(tmp_path):
    asyncio.run(save_beside_refusals(f"sqlite:///{tmp_path}/group.db"))


async def save_beside_refusals(url):
    states = {n: [f"{n} {i} " * 30 for i in range(40)] for n in range(6)}
    async with outlive.open_async(url) as store:
        threads = {n: store.thread(f"t{n}") for n in states}
        for _ in range(12):
            for n, state in states.items():
                state.append(f"{n} and {len(state)} " * 40)
            saves = [thread.save(states[n]) for n, thread in threads.items()]
            wrong = store.thread("wrong").save({}, expect="somebody")
            *done, refused = await asyncio.gather(*saves, wrong, return_exceptions=True)
            assert isinstance(refused, outlive.HeadMoved)
            assert [checkpoint.thread for checkpoint in done] == [thread.id for thread in threads.values()]
        for n, thread in threads.items():
            assert await thread.load() == states[n]
        assert (await store.verify()).ok


def test_a_save_under_an_id_that_is_there_is_found_also_with_the_head_read_beside_it(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/again.db") as store:
        thread, other = store.thread("t"), store.thread("t", namespace="other")
        first = thread.save({"n": 1}, id="a")
        thread.save({"n": 2}, id="b")
        assert thread.save({"n": 1}, id="a").seq == first.seq
        assert other.save({"n": 3}, id="a").parent is None  # the same id in another namespace is another one
        assert thread.save({"n": 4}, id="c").parent == "b"
        with pytest.raises(outlive.CheckpointExists):
            thread.save({"n": 5}, id="a")
