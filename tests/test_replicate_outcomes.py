"""What a client of a pair is told, and what is in the stores in the end, when they change places in the middle of its call.

Something happens before each single call that an operation makes to one of the two stores. The client asks again, under the same id, until it
gets a definite answer. Then everything is healed: what was acknowledged is on the line once, in both stores; what was refused is nowhere.
"""

import contextlib
import itertools

import pytest

import outlive
from outlive.backend import NOTE, ThreadKey
from outlive.runtime import run_now
from replicas import Client, memories

MODES = {
    "strict": {},
    "queue": {"on_secondary_down": "queue"},
    "async": {"replication": "async"},
}


def branch(world, id="other"):
    """Another client goes on from the same checkpoint, if it can."""
    with contextlib.suppress(outlive.HeadMoved):
        world.other.store.thread("t").save({"by": "other"}, id=id, expect="a")
        world.acknowledged.add(id)


def over(world):
    world.other.store.promote()
    branch(world)


def over_and_back(world):
    over(world)
    world.other.store.failback()


def over_and_back_and_over(world):
    over_and_back(world)
    branch(world, "third")
    world.other.store.promote()
    branch(world, "fourth")


def back(world):
    world.other.store.failback()
    branch(world)


def back_and_over(world):
    back(world)
    world.other.store.promote()
    branch(world, "third")


def unheard(world):
    """The primary hears the client, which does not hear the primary."""
    over(world)
    world.client.links[0].mode = "deaf"


def cut(world):
    over(world)
    world.client.links[0].mode = "refuse"


def secondary_unheard(world):
    back(world)
    world.client.links[1].mode = "deaf"


def secondary_cut(world):
    """It cannot bring its save to the secondary, which is promoted then."""
    world.client.links[1].mode = "refuse"


EVENTS = {
    0: [over, over_and_back, over_and_back_and_over, unheard, cut, secondary_cut],
    1: [back, back_and_over, secondary_unheard],
}


class World:
    def __init__(self, mode, epoch):
        self.backends = memories()
        options = MODES[mode]
        self.client, self.other = Client(self.backends, **options), Client(self.backends, **options)
        self.acknowledged, self.refused, self.unknown = {"a"}, set(), set()
        self.client.store.thread("t").save({"by": "first"}, id="a")
        self.other.store.thread("t").load()
        if epoch:
            self.other.store.promote()
            self.client.store.replication_status()

    def attempt(self, id, **expected):
        """Save once, and sort the answer."""
        for answers in (self.acknowledged, self.refused, self.unknown):
            answers.discard(id)
        try:
            self.client.store.thread("t").save({"by": "client"}, id=id, **expected)
        except outlive.HeadMoved:
            self.refused.add(id)
        except outlive.StoreError as error:
            is_unknown = isinstance(error, outlive.OutcomeUnknown)
            (self.unknown if is_unknown else self.refused).add(id)
            return False
        else:
            self.acknowledged.add(id)
        return True

    def settle(self):
        for client in (self.client, self.other):
            client.heal()
        if self.other.store.replication_status().is_failed_over:
            self.other.store.failback()
        for source in (1, 0, 1):
            run_now(self.other.pair.stores.drain(source, None))

    def check(self, mode, *, is_line):
        both = []
        for backend in self.backends:
            key = ThreadKey.of("", "t")
            records = run_now(backend.history(key, None, limit=100))[1]
            both.append([(one.epoch, one.seq, one.id, one.parent) for one in records])
            assert run_now(backend.entries("", NOTE)) == []
        assert both[0] == both[1]
        found = [id for _, _, id, _ in both[0]]
        assert len(found) == len(set(found))
        assert self.acknowledged <= set(found)
        assert not self.refused & set(found), f"refused and stored: {self.refused & set(found)} of {both[0]}"
        if mode == "strict" and is_line:
            line = [one.id for one in self.other.store.thread("t").lineage()]
            assert self.acknowledged <= set(line)
            assert not set(found) - set(line) - self.unknown
        assert self.other.store.verify().problems == ()


CASES = [(epoch, event) for epoch, events in EVENTS.items() for event in events]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("expected", [{"expect": "a"}, {}], ids=["compare-and-set", "save"])
@pytest.mark.parametrize("epoch, event", CASES, ids=lambda one: getattr(one, "__name__", str(one)))
@pytest.mark.parametrize("asks_again", [False, True], ids=["once", "until it is settled"])
def test_acknowledged_is_on_the_line_and_refused_is_nowhere(mode, expected, epoch, event, asks_again):
    for number in itertools.count():
        world = World(mode, epoch)
        has_happened = world.client.at_call(number, lambda world=world: event(world))
        is_definite = world.attempt("mine", **expected)
        if not has_happened():
            assert number > 0
            return
        for _ in range(6 if asks_again else 0):
            if is_definite:
                break
            world.other.store.replication_status()
            is_definite = world.attempt("mine", **expected)
            if event is secondary_cut:
                over(world)
        world.settle()
        if asks_again:
            is_definite = is_definite or world.attempt("mine", **expected)
            assert is_definite
            world.settle()
        world.check(mode, is_line=bool(expected))
