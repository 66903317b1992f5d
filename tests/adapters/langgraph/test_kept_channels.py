"""A channel whose version has not changed keeps its bytes; what is loaded is what was put, whatever happened between."""

import ast
import copy
import os
import random

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint

from outlive.adapters.langgraph import OutliveSaver
from outlive.adapters.langgraph.operations import CheckpointOperations
from outlive.adapters.langgraph.values.codec import SEALED

SEEDS = range(200) if os.environ.get("OUTLIVE_LONG") else range(12)


class Mirrored:
    """A serializer of the user's own; what it stores is read by nobody else."""

    def dumps_typed(self, value):
        return "mirrored", repr(value).encode()[::-1]

    def loads_typed(self, typed):
        assert typed[0] == "mirrored"
        return ast.literal_eval(typed[1][::-1].decode())


def config_of(thread, id=None):
    named = {} if id is None else {"checkpoint_id": id}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **named}}


class World:
    """Threads that two processes write, and what each checkpoint must contain.

    Versions are small numbers, so branches of a thread have the same versions of other values.
    """

    def __init__(self, seed, savers):
        self.rng = random.Random(seed)
        self.savers = savers
        self.serial = 0
        self.threads = {"a": {}}

    def value(self):
        self.serial += 1
        size = self.rng.choice([1, 1, 3, 60])
        return [AIMessage(f"{self.serial} " * 30, id=f"{self.serial}-{n}") for n in range(size)]

    def parent_in(self, thread):
        ids = list(self.threads[thread])
        if not ids:
            return None
        return ids[-1] if self.rng.random() < 0.7 else self.rng.choice(ids)

    def child_of(self, stored):
        """Return a checkpoint below another: some channels change, appear or vanish."""
        checkpoint = copy.deepcopy(stored) if stored else empty_checkpoint()
        values, versions, changed = checkpoint["channel_values"], checkpoint["channel_versions"], {}
        for channel in self.rng.sample(["messages", "plan", "notes", "x"], self.rng.randrange(4)):
            versions[channel] = changed[channel] = versions.get(channel, 0) + 1
            if channel in values and self.rng.random() < 0.2:
                del values[channel]
            elif channel in values and self.rng.random() < 0.6:
                values[channel] = [*values[channel], *self.value()]
            else:
                values[channel] = self.value()
        self.serial += 1
        checkpoint["id"] = f"{self.serial:06}"
        return checkpoint, changed

    def put(self, thread):
        saver, parent = self.rng.choice(self.savers), self.parent_in(thread)
        if parent is not None and self.rng.random() < 0.5:  # as a graph that is resumed
            self.check(saver, thread, parent)
        checkpoint, changed = self.child_of(self.threads[thread].get(parent))
        if self.rng.random() < 0.1 and parent is not None and parent == list(self.threads[thread])[-1]:
            checkpoint["id"] = parent  # replaced, with the versions that it had
            checkpoint["channel_versions"] = copy.deepcopy(self.threads[thread][parent]["channel_versions"])
            changed = {}
            other = self.rng.choice(self.savers)
            for channel in checkpoint["channel_values"]:
                checkpoint["channel_values"][channel] = self.value()
            other.put(config_of(thread), checkpoint, {"step": 1}, checkpoint["channel_versions"])
        else:
            saver.put(config_of(thread, parent), checkpoint, {"step": 1}, changed)
        self.threads[thread][checkpoint["id"]] = copy.deepcopy(checkpoint)

    def check(self, saver, thread, id):
        loaded = saver.get_tuple(config_of(thread, id)).checkpoint
        expected = self.threads[thread][id]
        assert {name: loaded[name] for name in expected} == expected

    def copy(self, thread):
        target = f"{thread}{len(self.threads)}"
        self.rng.choice(self.savers).copy_thread(thread, target)
        self.threads[target] = copy.deepcopy(self.threads[thread])

    def delete(self, thread):
        self.rng.choice(self.savers).delete_thread(thread)
        self.threads[thread] = {}

    def prune(self, thread):
        self.rng.choice(self.savers).prune([thread], strategy="keep_latest")
        newest = list(self.threads[thread])[-1:]
        self.threads[thread] = {id: self.threads[thread][id] for id in newest}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_checkpoint_is_loaded_as_it_was_put(url, seed):
    with OutliveSaver(url) as one, OutliveSaver(url) as other:
        world = World(seed, [one, other])
        for _ in range(40):
            thread = world.rng.choice(list(world.threads))
            world.put(thread)
            if world.rng.random() < 0.1:
                world.rng.choice([world.copy, world.delete, world.prune])(thread)
        for thread, checkpoints in world.threads.items():
            for id in checkpoints:
                world.check(world.rng.choice(world.savers), thread, id)
            assert len(list(one.list(config_of(thread)))) == len(checkpoints), seed


def put(saver, thread, parent, id, values, versions, changed):
    checkpoint = {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": versions}
    saver.put(config_of(thread, parent), checkpoint, {"step": 1}, changed)


def test_a_channel_of_the_same_version_is_not_packed(saver, monkeypatch):
    talk = [AIMessage("x" * 100, id=str(n)) for n in range(50)]
    put(saver, "t", None, "1", {"talk": talk, "n": 1}, {"talk": 1, "n": 1}, {"talk": 1, "n": 1})
    prepared = []
    monkeypatch.setattr(
        "outlive.adapters.langgraph.state._opened", lambda name, value: prepared.append(name) or value
    )
    put(saver, "t", "1", "2", {"talk": talk, "n": 2}, {"talk": 1, "n": 2}, {"n": 2})
    assert prepared == ["n"]
    # Below another checkpoint than the last one, everything is looked at.
    put(saver, "t", "1", "3", {"talk": talk, "n": 2}, {"talk": 1, "n": 2}, {"n": 2})
    assert prepared == ["n", "talk", "n"]


def test_a_replaced_checkpoint_is_what_its_child_builds_on(url):
    """Also when it was replaced by another process, under versions that it had."""
    with OutliveSaver(url) as one, OutliveSaver(url) as other:
        put(one, "t", None, "1", {"talk": ["old"] * 20}, {"talk": 1}, {"talk": 1})
        put(other, "t", None, "1", {"talk": ["new"] * 20}, {"talk": 1}, {"talk": 1})
        loaded = one.get_tuple(config_of("t", "1")).checkpoint
        put(one, "t", "1", "2", loaded["channel_values"], loaded["channel_versions"], {})
        assert one.get_tuple(config_of("t")).checkpoint["channel_values"] == {"talk": ["new"] * 20}


def sealed_channels(saver, thread):
    """Return which channels of the newest checkpoint a serializer has sealed."""
    operations: CheckpointOperations = saver._operations(saver._shared.sync)
    session = operations.session
    read = session.load(session.key(thread), "", None)
    with pytest.raises(StopIteration) as caught:
        read.send(None)
    values = session.codec.unpack(caught.value.value[1], opaque=True)["channel_values"]
    return {channel for channel, value in values.items() if getattr(value, "code", None) == SEALED}


@pytest.mark.parametrize("is_read_back", [False, True])
def test_another_serializer_seals_also_what_has_not_changed(url, is_read_back):
    values, versions = {"talk": ["secret"] * 20, "n": 1}, {"talk": 1, "n": 1}
    with OutliveSaver(url) as plain:
        put(plain, "t", None, "1", values, versions, versions)
        if is_read_back:
            sealing = OutliveSaver(url, serde=Mirrored())
        else:
            sealing = copy.copy(plain)
            sealing.serde, sealing._operations_by_store = Mirrored(), {}
        put(sealing, "t", "1", "2", {**values, "n": 2}, {**versions, "n": 2}, {"n": 2})
        assert sealed_channels(sealing, "t") == {"talk", "n"}
        assert sealing.get_tuple(config_of("t")).checkpoint["channel_values"] == {**values, "n": 2}
        put(sealing, "t", "2", "3", {**values, "n": 2}, {**versions, "n": 2}, {})
        assert sealed_channels(sealing, "t") == {"talk", "n"}
        sealing.close()
