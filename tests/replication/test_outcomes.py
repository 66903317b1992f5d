"""What a client of a pair is told, and what is in the stores in the end, when they change places in the middle of its call.

Something happens before each single call that an operation makes to one of the two stores. The client asks again, under the same id, until it
gets a definite answer. Then everything is healed: what was acknowledged is on the line once, in both stores; what was refused is nowhere.
"""

import contextlib
import itertools

import pytest

import outlive
from outlive.backend import OUTBOX, EntryQuery, HistoryQuery, ThreadKey
from outlive.runtime.runtime import run_now
from rig.replicas import Client, memories

MODES = {
    "strict": {},
    "queue": {"on_secondary_down": "queue"},
    "async": {"mode": "async"},
}


def branch(world, id="other"):
    """Another client continues from the same checkpoint, if it can."""
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
            records = run_now(backend.history(HistoryQuery(key, None, limit=100)))[1]
            both.append([(one.epoch, one.seq, one.id, one.parent) for one in records])
            assert run_now(backend.entries(EntryQuery("", OUTBOX))) == []
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


def over_with_a_run(world):
    world.other.store.promote()
    world.claim(world.other, "other")


def over_and_back_with_a_run(world):
    over_with_a_run(world)
    world.other.store.failback()


def back_with_a_run(world):
    world.other.store.failback()
    world.claim(world.other, "other")


class Claims(World):
    """Two clients that want the same place."""

    def __init__(self, mode, epoch):
        super().__init__(mode, epoch)
        self.runs = {}

    def claim(self, client, id):
        self.refused.discard(id)
        try:
            run = client.store.run("t", run_id=id)
            run.start()
        except (outlive.ThreadBusy, outlive.RunBusy):
            self.refused.add(id)
        except outlive.StoreError:
            return False
        else:
            self.runs[id] = run
        return True

    def check_claims(self):
        assert len(self.runs) == 1, f"{len(self.runs)} owners of one place"
        (run,) = self.runs.values()
        run.save({"by": "owner"})  # it was not outranked by what nobody has
        self.settle()
        held = [run_now(backend.entries(EntryQuery("", "run"))) for backend in self.backends]
        found = [{(entry.key, entry.status) for _, entry in runs} for runs in held]
        assert found[0] == found[1]
        assert not self.refused & {id for id, _ in found[0]}
        run.complete()


@pytest.mark.parametrize("mode", ["strict"])
@pytest.mark.parametrize(
    "epoch, event",
    [(0, over_with_a_run), (0, over_and_back_with_a_run), (1, back_with_a_run)],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_a_place_that_was_claimed_while_the_stores_changed_has_one_owner(mode, epoch, event):
    for number in itertools.count():
        world = Claims(mode, epoch)
        has_happened = world.client.at_call(number, lambda world=world: event(world))
        is_definite = world.claim(world.client, "mine")
        if not has_happened():
            assert number > 1
            return
        for _ in range(6):
            is_definite = is_definite or world.claim(world.client, "mine")
        assert is_definite
        world.settle()
        world.check_claims()
        world.settle()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_back", [False, True], ids=["failed over", "after the failback"])
def test_the_retry_of_a_stored_save_is_answered_in_every_epoch_also_after_a_branch(mode, is_back):
    """Idempotency comes first, whatever the retry expects."""
    world = World(mode, 0)
    first = world.client.store.thread("t").save(2, id="b", expect="a")
    world.client.store.promote()
    world.client.store.thread("t").save(3, id="c", parent="a")  # the head, on another branch
    if is_back:
        world.client.store.failback()
    for client in (world.client, world.other):
        again = client.store.thread("t").save(2, id="b", expect="a")
        assert (again.id, again.seq, again.epoch) == (first.id, first.seq, first.epoch)
    assert world.client.store.thread("t").load() == 3
    with pytest.raises(outlive.CheckpointExists):
        world.client.store.thread("t").save("other", id="b", expect="a")


@pytest.mark.parametrize("mode", ["queue", "async"])
def test_what_came_back_as_a_branch_is_stored_for_whoever_asks_again(mode):
    """Acknowledged and queued in the primary alone; the secondary continued without it."""
    world = World(mode, 0)
    world.settle()
    world.client.links[1].mode = "refuse"
    world.client.store.thread("t").save(2, id="b", expect="a")
    world.other.links[0].mode = "refuse"
    over(world)
    world.acknowledged.add("b")
    world.client.links[0].mode, world.client.links[1].mode = "refuse", "pass"
    world.client.store.replication_status()  # from which it learns of the promotion
    with pytest.raises(outlive.OutcomeUnknown):  # a refusal would say that it is stored nowhere
        world.client.store.thread("t").save(2, id="b", expect="a")
    world.settle()
    assert world.client.store.thread("t").save(2, id="b", expect="a").id == "b"
    world.check(mode, is_line=False)


@pytest.mark.parametrize("mode", MODES)
def test_a_save_that_is_nowhere_is_refused_when_the_store_that_may_have_it_is_asked_again(mode):
    """The primary never got it. In the queueing modes only the primary itself can tell."""
    world = World(mode, 0)
    world.settle()

    async def lose(*_):
        raise outlive.OutcomeUnknown("t", "b", None, "no answer")

    world.client.links[0].inner.before("commit_all", lose)
    with pytest.raises(outlive.OutcomeUnknown):
        world.client.store.thread("t").save(2, id="b", expect="a")
    over(world)
    world.client.store.replication_status()
    with pytest.raises(outlive.HeadMoved if mode == "strict" else outlive.OutcomeUnknown):
        world.client.store.thread("t").save(2, id="b", expect="a")
    world.settle()
    world.client.store.replication_status()
    with pytest.raises(outlive.HeadMoved):
        world.client.store.thread("t").save(2, id="b", expect="a")
    assert "b" not in [checkpoint.id for checkpoint in world.client.store.thread("t").history()]


DEEDS = {
    "metadata": (
        lambda store: store.thread("t").set_metadata({"by": "orphan"}),
        lambda store: store.thread("t").info().metadata,
    ),
    "replacement": (
        lambda store: store.thread("t").save("orphan", id="a", replace=True),
        lambda store: store.thread("t").load("a"),
    ),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_what_else_was_not_acknowledged_is_withdrawn_too(deed):
    act, look = DEEDS[deed]
    world = World("strict", 0)
    world.client.store.thread("t").set_metadata({"by": "first"})
    before = look(world.other.store)
    world.client.links[1].mode = "refuse"
    with pytest.raises(outlive.OutcomeUnknown):
        act(world.client.store)
    world.other.links[0].mode = "refuse"  # a promotion by hand would bring it along
    over(world)
    world.settle()
    assert look(world.other.store) == before
    world.check("strict", is_line=True)


@pytest.mark.parametrize("how", ["asked again", "carried over in the background"])
def test_what_is_acknowledged_has_everything_before_it_in_both_stores(how):
    """Two saves of two clients, one after the other, did not reach the secondary. The second one does not go there alone."""
    world = World("strict", 0)
    for client, id in ((world.client, "b"), (world.other, "c")):
        client.links[1].mode = "refuse"
        with pytest.raises(outlive.NotReplicated):
            client.store.thread("t").save(id, id=id)
    world.other.heal()
    if how == "asked again":
        world.other.store.thread("t").save("c", id="c")
    else:
        outbox = world.other.pair._outbox
        run_now(world.other.pair.stores.drain(0, outbox, process=outbox.process))
    found = run_now(world.backends[1].history(HistoryQuery(ThreadKey.of("", "t"), None)))[1]
    assert [one.id for one in found] == ["c", "b", "a"]
