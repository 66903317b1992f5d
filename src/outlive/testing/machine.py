"""Any sequence of calls, by two stores on one backend, compared with a simple model after every step.

Hypothesis chooses the calls and, when something differs, finds the shortest sequence that shows it. Each
example works in a tenant of its own, so one backend serves them all. A third store, without a
cache, does the looking, so that it does not change what the other two remember.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ..backend import Inventory, Removal, ThreadKey
from ..errors import CheckpointExists, HeadMoved, OutcomeUnknown, StaleBase, ThreadNotEmpty
from ..store import AsyncStore
from .contract import Contract
from .interposed import Interposed
from .model import ModelThread, Pair, Saved, State, text
from .records import Waist, live
from .trial import COLOURS, Driver, Opener, Trial

T = TypeVar("T")
_numbers = itertools.count()

THREADS = ("a", "b")
NAMESPACES = ("", "sub")


class StoreMachine(RuleBasedStateMachine):
    """Two stores, one model."""

    def __init__(self, opener: Opener, driver: Driver) -> None:
        super().__init__()
        self.trial = Trial(opener, driver)
        self.tenant = f"example {next(_numbers)}"
        self.model = {id: ModelThread() for id in THREADS}
        self.count = 0
        self.past: list[State] = [State()]  # every state that was ever saved: it may come back
        self.touched: set[str] = set()
        self.sweep: tuple[str, Inventory, tuple[bytes, ...]] | None = None
        self.backends: list[Interposed] = []
        self.stores: list[AsyncStore] = []
        for _ in range(2):
            backend, store = self.run(self.trial.interposed(tenant=self.tenant))
            self.backends.append(backend)
            self.stores.append(store)
        self.looker = self.run(self.trial.store(tenant=self.tenant, cache_bytes=0))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.trial.driver.run(coroutine)

    def next_id(self) -> str:
        self.count += 1
        return f"{self.count:03}"

    def waist(self, id: str) -> Waist:
        return Waist(self.looker._engine.backend, ThreadKey.of(self.tenant, id))

    def edited(self, old: State, edit: str, number: int) -> State:
        """Return the next state of a conversation."""
        fresh = tuple(range(self.count * 7 + number, self.count * 7 + number + 1 + number % 4))
        messages = {
            "append": old.messages + fresh,
            "slide": old.messages[1 + number % 3 :] + fresh,
            "edit": (*old.messages[: number % 9], *fresh[:1], *old.messages[number % 9 + 1 :]),
            "drop": (*old.messages[: number % 9], *old.messages[number % 9 + 3 :]),
            "turn": (*old.messages[number % 5 :], *old.messages[: number % 5]),
            "keep": old.messages,
            "back": self.past[-1 - number % len(self.past)].messages,
            "anew": fresh * 3,
        }[edit]
        self.past.append(State(messages[-40:], self.count))
        return self.past[-1]

    def start(self, thread: str, namespace: str, edit: str, number: int) -> State:
        model = self.model[thread]
        head = model.head(namespace)
        return self.edited(State() if head is None else model.saved[namespace, head].state, edit, number)

    # Saving

    who = st.integers(0, 1)
    threads = st.sampled_from(THREADS)
    namespaces = st.sampled_from(["", "", "", *NAMESPACES])
    numbers = st.integers(0, 50)
    edits = st.sampled_from(
        ["append", "append", "slide", "edit", "drop", "turn", "keep", "back", "back", "anew"]
    )

    @rule(who=who, thread=threads, namespace=namespaces, edit=edits, number=numbers)
    def save(self, who: int, thread: str, namespace: str, edit: str, number: int) -> None:
        state, id, model = self.start(thread, namespace, edit, number), self.next_id(), self.model[thread]
        handle = self.stores[who].thread(thread, namespace=namespace)
        saved = self.run(handle.save(state.value(), id=id))
        model.add(namespace, id, state, model.head(namespace))
        assert (saved.seq, saved.parent) == (model.seq, model.saved[namespace, id].parent)
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces, edit=edits, number=numbers)
    def save_as_expected(self, who: int, thread: str, namespace: str, edit: str, number: int) -> None:
        state, id, model = self.start(thread, namespace, edit, number), self.next_id(), self.model[thread]
        head = model.head(namespace)
        if head is None:
            return
        handle = self.stores[who].thread(thread, namespace=namespace)
        self.run(handle.save(state.value(), id=id, expect=head))
        model.add(namespace, id, state, head)
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces, number=numbers)
    def save_expecting_another_head(self, who: int, thread: str, namespace: str, number: int) -> None:
        state, model = self.start(thread, namespace, "append", number), self.model[thread]
        stale = next(iter(model.line(namespace)[1:]), "never there")
        handle = self.stores[who].thread(thread, namespace=namespace)
        try:
            self.run(handle.save(state.value(), expect=stale))
        except HeadMoved as moved:
            assert moved.head == model.head(namespace)
        else:
            raise AssertionError("a stale expectation was let through")
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces, edit=edits, number=numbers)
    def save_from_an_old_parent(self, who: int, thread: str, namespace: str, edit: str, number: int) -> None:
        model = self.model[thread]
        line = model.line(namespace)
        parent = line[number % len(line)] if line else "never there"
        base = model.saved[namespace, parent].state if line else State()
        state, id = self.edited(base, edit, number), self.next_id()
        handle = self.stores[who].thread(thread, namespace=namespace)
        self.run(handle.save(state.value(), id=id, parent=parent))
        model.add(namespace, id, state, parent)
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces, number=numbers)
    def save_delayed(self, who: int, thread: str, namespace: str, number: int) -> None:
        handle, model = self.stores[who].thread(thread, namespace=namespace), self.model[thread]
        for turn in range(1 + number % 3):
            state, id = self.start(thread, namespace, "append", number + turn), self.next_id()
            self.run(handle.save(state.value(), id=id, durability="async"))
            model.add(namespace, id, state, model.head(namespace))
        self.run(handle.flush())
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces, edit=edits, number=numbers)
    def save_and_lose_the_answer(self, who: int, thread: str, namespace: str, edit: str, number: int) -> None:
        state, id, model = self.start(thread, namespace, edit, number), self.next_id(), self.model[thread]
        handle = self.stores[who].thread(thread, namespace=namespace)

        async def lose(results: list[Any]) -> None:
            if isinstance(results[0], Exception):
                self.backends[who].after("commit_all", lose)  # it is tried again: lose the answer to that
            else:
                raise OutcomeUnknown(thread, id, 1.0)

        self.backends[who].after("commit_all", lose)
        try:
            self.run(handle.save(state.value(), id=id))
        except OutcomeUnknown as unknown:
            assert unknown.checkpoint_id == id
        model.add(namespace, id, state, model.head(namespace))
        again = self.run(handle.save(state.value(), id=id))
        assert again.seq == model.seq
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces, number=numbers, same=st.booleans())
    def save_an_id_again(self, who: int, thread: str, namespace: str, number: int, same: bool) -> None:
        model = self.model[thread]
        if not (line := model.line(namespace)):
            return
        id = line[number % len(line)]
        saved = model.saved[namespace, id]
        value = saved.state.value() if same else {"other": number}
        handle = self.stores[who].thread(thread, namespace=namespace)
        try:
            assert self.run(handle.save(value, id=id, source=saved.source)).seq == saved.seq
        except CheckpointExists:
            assert not same
        else:
            assert same
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces, edit=edits, number=numbers)
    def replace(self, who: int, thread: str, namespace: str, edit: str, number: int) -> None:
        model = self.model[thread]
        if not (line := model.line(namespace)):
            return
        self.count += 1
        id = line[number % len(line)]
        state = self.start(thread, namespace, edit, number)
        handle = self.stores[who].thread(thread, namespace=namespace)
        replaced = self.run(handle.save(state.value(), id=id, replace=True))
        model.saved[namespace, id].state, model.saved[namespace, id].source = state, "loop"
        assert replaced.seq == model.saved[namespace, id].seq
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces)
    def load(self, who: int, thread: str, namespace: str) -> None:
        model = self.model[thread]
        head = model.head(namespace)
        loaded = self.run(self.stores[who].thread(thread, namespace=namespace).load())
        assert loaded == (None if head is None else model.saved[namespace, head].state.value())

    # Beside the checkpoints

    @rule(who=who, thread=threads, namespace=namespaces, number=numbers, early=st.booleans())
    def write(self, who: int, thread: str, namespace: str, number: int, early: bool) -> None:
        model = self.model[thread]
        line = model.line(namespace)
        target = line[number % len(line)] if line and not early else "not saved yet"
        handle, task = self.stores[who].thread(thread, namespace=namespace), f"task {number % 2}"
        self.count += 1
        value = {"text": text(number + self.count)}
        self.run(handle.write(task, [("c", value), ("__error__", self.count)], checkpoint=target))
        held = model.writes.setdefault((namespace, target), {})
        held.setdefault((task, 0), value)
        held[task, -1] = self.count
        self.touched.add(thread)

    @rule(who=who, thread=threads, number=numbers)
    def update(self, who: int, thread: str, number: int) -> None:
        self.count += 1
        self.run(self.stores[who].thread(thread).update({f"key {number % 3}": self.count}))
        self.model[thread].metadata[f"key {number % 3}"] = self.count
        self.model[thread].is_described = True
        self.touched.add(thread)

    # Copies

    @rule(who=who, source=threads, into=threads, namespace=namespaces, number=numbers)
    def fork(self, who: int, source: str, into: str, namespace: str, number: int) -> None:
        line = self.model[source].line(namespace)
        if line:
            id = line[number % len(line)]
            handle = self.stores[who].thread(source, namespace=namespace)
            self.copied(source, into, handle.fork(into, at=id), [(namespace, id)], "fork")

    @rule(who=who, source=threads, into=threads)
    def copy(self, who: int, source: str, into: str) -> None:
        if self.model[source].saved:
            pairs = [*self.model[source].saved, *self.model[source].writes]
            self.copied(source, into, self.stores[who].thread(source).copy(into), pairs)

    def copied(
        self,
        source: str,
        target: str,
        work: Coroutine[Any, Any, Any],
        pairs: list[Pair],
        how: str | None = None,
    ) -> None:
        one, other = self.model[source], self.model[target]
        self.touched.add(target)
        try:
            self.run(work)
        except ThreadNotEmpty:
            assert other.saved
            return
        assert not other.saved
        for pair in pairs:
            if pair in one.saved:
                saved = one.saved[pair]
                other.saved[pair] = Saved(saved.parent, saved.seq, saved.state, how or saved.source)
                other.seq = max(other.seq, saved.seq)
            if pair in one.writes:
                other.writes[pair] = {**one.writes[pair], **other.writes.get(pair, {})}
                other.writes[pair].update(
                    {key: value for key, value in one.writes[pair].items() if key[1] < 0}
                )
        other.metadata, other.is_described = dict(one.metadata), True

    # Deleting

    @rule(who=who, thread=threads)
    def delete(self, who: int, thread: str) -> None:
        self.run(self.stores[who].delete(thread))
        self.model[thread].clear()
        self.touched.add(thread)

    @rule(who=who, thread=threads, namespace=namespaces, number=numbers, erase=st.booleans())
    def remove(self, who: int, thread: str, namespace: str, number: int, erase: bool) -> None:
        model = self.model[thread]
        doomed = [id for index, id in enumerate(model.line(namespace)) if (index + number) % 3 == 0]
        handle = self.stores[who].thread(thread, namespace=namespace)
        done = self.run(handle.remove(doomed, erase=erase))
        assert (done.checkpoints, done.erased) == (len(doomed), erase)
        for id in doomed:
            model.remove((namespace, id))
        self.touched.add(thread)

    @rule(who=who, thread=threads, keep=st.integers(1, 4), erase=st.booleans())
    def prune(self, who: int, thread: str, keep: int, erase: bool) -> None:
        model = self.model[thread]
        doomed = [(namespace, id) for namespace in NAMESPACES for id in model.line(namespace)[keep:]]
        done = self.run(self.stores[who].thread(thread).prune(keep_last=keep, erase=erase))
        assert (done.checkpoints, done.erased) == (len(doomed), erase)
        for pair in doomed:
            model.remove(pair)
        self.touched.add(thread)

    @rule(thread=threads, namespace=namespaces, number=numbers)
    def remove_and_die(self, thread: str, namespace: str, number: int) -> None:
        """The first half of a deletion by a process that ended there: chunks are left that nobody reads."""
        model = self.model[thread]
        doomed = [id for index, id in enumerate(model.line(namespace)) if (index + number) % 2 == 0]
        removal = Removal(checkpoints=tuple((namespace, id) for id in doomed))
        self.run(self.waist(thread).commit(removal=removal))
        for id in doomed:
            model.remove((namespace, id))
        self.touched.add(thread)

    @rule(thread=threads)
    def look_for_dead_chunks(self, thread: str) -> None:
        """The first half of a sweep, as another process does it; whatever comes next, comes in between."""
        waist = self.waist(thread)
        inventory = self.run(waist.backend.inventory(waist.thread))
        records, writes = self.run(waist.records()), self.run(waist.backend.writes(waist.thread, None))
        self.sweep = (thread, inventory, tuple(inventory.chunks.keys() - live(records, writes)))

    @precondition(lambda self: self.sweep is not None)
    @rule()
    def remove_dead_chunks(self) -> None:
        """The second half."""
        assert self.sweep is not None
        (thread, inventory, dead), self.sweep = self.sweep, None
        removal = Removal(chunks=dead, chunks_until=inventory.revision)
        try:
            self.run(self.waist(thread).commit(removal=removal, generation=inventory.generation))
        except StaleBase:
            pass
        self.touched.add(thread)

    # The end of a process, and a new one

    @rule(who=who, orderly=st.booleans())
    def reopen(self, who: int, orderly: bool) -> None:
        if orderly and self.trial.opener.survives:
            self.run(self.stores[who].close())
        self.backends[who], self.stores[who] = self.run(self.trial.interposed(tenant=self.tenant))

    # What holds after every step

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        while self.touched:
            self.run(self.compare(self.touched.pop()))

    async def compare(self, id: str) -> None:
        model = self.model[id]
        for namespace in NAMESPACES:
            thread = self.looker.thread(id, namespace=namespace)
            listed = [item async for item in thread.history()]
            assert [item.id for item in listed] == model.line(namespace)
            for item in listed:
                saved = model.saved[namespace, item.id]
                assert (item.seq, item.parent) == (saved.seq, saved.parent)
                found = await thread.checkpoint(item.id)
                assert found is not None and found.state == saved.state.value()
                held = {(write.task, write.index): write.value for write in found.pending_writes}
                assert held == model.writes.get((namespace, item.id), {})
        assert await self.looker.thread(id).metadata() == model.metadata
        assert await self.waist(id).missing() == set()

    def teardown(self) -> None:
        try:
            self.run(self.compare_all())
        finally:
            if self.trial.opener.survives:  # else the next example goes on with the same backend
                self.run(self.trial.close())

    async def compare_all(self) -> None:
        for id in THREADS:
            await self.compare(id)
        verified = await self.looker.verify()
        assert verified.problems == ()
        expected = {id for id, model in self.model.items() if model.is_listed()}
        assert {info.id async for info in self.looker.threads()} == expected
        size = await self.looker.size()
        assert size.checkpoints == sum(len(model.saved) for model in self.model.values())


class MachineContract(Contract):
    def test_any_sequence_of_calls_agrees_with_a_simple_model(self, backend: Any, colour: str) -> None:
        profile = settings()
        with COLOURS[colour]() as driver:
            run_state_machine_as_test(
                cast(Any, lambda: StoreMachine(Opener.of(backend), driver)),
                settings=settings(
                    profile,
                    max_examples=max(6, profile.max_examples // 16),
                    stateful_step_count=25,
                    deadline=None,
                    report_multiple_bugs=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
