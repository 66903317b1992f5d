"""Any sequence of calls, by two stores on one backend, compared with a simple model after every
step.

Hypothesis chooses the calls and, when something differs, finds the shortest sequence that shows it.
Each example works in a tenant of its own, so one backend serves them all. A third store, without a
cache, does the looking, so that it does not change what the other two remember.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from outlive.backend import Removal, ThreadKey
from outlive.errors import CheckpointExists, HeadMoved, OutcomeUnknown, StaleBase, ThreadNotEmpty
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.interposed import Interposed
from outlive.testing.model import CheckpointKey, ModelThread, Saved, State, text
from outlive.testing.thread_records import Probe, live
from outlive.testing.trial import IO_MODES, Driver, Opener, Trial
from outlive.threads.thread import AsyncThread
from outlive.values import Source

T = TypeVar("T")
_numbers = itertools.count()

THREADS = ("a", "b")
NAMESPACES = ("", "sub")
EDITS = ("append", "append", "slide", "edit", "drop", "turn", "keep", "back", "back", "restart")


@dataclass(frozen=True)
class Call:
    """Which handle acts, on which thread, and the numbers that replace chance."""

    who: int
    thread: str
    namespace: str
    edit: str
    number: int


CALLS = st.builds(
    Call,
    st.integers(0, 1),
    st.sampled_from(THREADS),
    st.sampled_from(("", "", *NAMESPACES)),
    st.sampled_from(EDITS),
    st.integers(0, 50),
)


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
        self.backends: list[Interposed] = []
        self.stores: list[AsyncStore] = []
        for _ in range(2):
            backend, store = self.run(self.trial.interposed(tenant=self.tenant))
            self.backends.append(backend)
            self.stores.append(store)
        self.looker = self.run(self.trial.store(tenant=self.tenant, cache_bytes=0))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.trial.driver.run(coroutine)

    def handle(self, call: Call) -> AsyncThread:
        self.touched.add(call.thread)
        return self.stores[call.who].thread(call.thread, namespace=call.namespace)

    def probe(self, id: str) -> Probe:
        return Probe(self.looker._engine.backend, ThreadKey.of(self.tenant, id))

    def next_id(self) -> str:
        self.count += 1
        return f"{self.count:03}"

    def next_state(self, call: Call) -> State:
        """Return the next state of the conversation of a call."""
        model, number = self.model[call.thread], call.number
        head = model.head(call.namespace)
        old = () if head is None else model.saved[call.namespace, head].state.messages
        fresh = tuple(range(self.count * 7 + number, self.count * 7 + number + 1 + number % 4))
        if call.edit == "back":
            return self.past[-1 - number % len(self.past)]
        messages = {
            "append": old + fresh,
            "slide": old[1 + number % 3 :] + fresh,
            "edit": (*old[: number % 9], *fresh[:1], *old[number % 9 + 1 :]),
            "drop": (*old[: number % 9], *old[number % 9 + 3 :]),
            "turn": (*old[number % 5 :], *old[: number % 5]),
            "keep": old,
            "restart": fresh * 3,
        }[call.edit]
        self.past.append(State(messages[-40:], self.count))
        return self.past[-1]

    # Saving

    @rule(
        call=CALLS,
        how=st.sampled_from(("head", "head", "head", "expected", "stale", "parent", "delayed", "lost")),
    )
    def save(self, call: Call, how: str) -> None:
        """Save the next state: from the head, as expected, on a wrong expectation, from an old
        parent.
        """
        model, state, id = self.model[call.thread], self.next_state(call), self.next_id()
        line, handle = model.line(call.namespace), self.handle(call)
        parent = head = line[0] if line else None
        options: dict[str, Any] = {}
        if how == "stale":
            self.save_expecting_another_head(handle, state, line)
            return
        if how == "expected" and line:
            options["expect"] = head
        elif how == "parent":
            parent = options["parent"] = line[call.number % len(line)] if line else "never there"
        elif how == "delayed":
            options["durability"] = "async"
        elif how == "lost":
            self.lose_the_answer(call.who, handle, state, id)
        saved = self.run(handle.save(state.value(), id=id, **options))
        self.run(handle.flush())
        model.add(call.namespace, id, state, parent)
        if how != "delayed":
            assert (saved.seq, saved.parent) == (model.seq, parent)

    def save_expecting_another_head(self, handle: AsyncThread, state: State, line: list[str]) -> None:
        try:
            self.run(handle.save(state.value(), expect=line[1] if len(line) > 1 else "never there"))
        except HeadMoved as moved:
            assert moved.head == (line[0] if line else None)
        else:
            raise AssertionError("a stale expectation was let through")

    def lose_the_answer(self, number: int, handle: AsyncThread, state: State, id: str) -> None:
        """Store the checkpoint and lose the answer: the caller tries again."""

        async def lose(results: list[Any]) -> None:
            if isinstance(results[0], Exception):
                # It is tried again: lose the answer to that.
                self.backends[number].after("commit_all", lose)
            else:
                raise OutcomeUnknown(handle.id, id, 1.0)

        self.backends[number].after("commit_all", lose)
        try:
            self.run(handle.save(state.value(), id=id))
        except OutcomeUnknown as unknown:
            assert unknown.checkpoint == id

    @rule(call=CALLS, how=st.sampled_from(("same", "other", "replace", "replace")))
    def save_an_id_again(self, call: Call, how: str) -> None:
        """The same content is answered, another one refused, and a replacement keeps its place."""
        model, handle = self.model[call.thread], self.handle(call)
        if not (line := model.line(call.namespace)):
            return
        id = line[call.number % len(line)]
        saved = model.saved[call.namespace, id]
        state = saved.state if how == "same" else self.next_state(call)
        try:
            again = self.run(handle.save(state.value(), id=id, source=saved.source, replace=how == "replace"))
        except CheckpointExists:
            assert how == "other" and state != saved.state
            return
        assert how != "other" or state == saved.state
        assert again.seq == saved.seq
        saved.state = state

    @rule(call=CALLS)
    def load(self, call: Call) -> None:
        model = self.model[call.thread]
        head = model.head(call.namespace)
        loaded = self.run(self.handle(call).load())
        assert loaded == (None if head is None else model.saved[call.namespace, head].state.value())

    # Beside the checkpoints

    @rule(call=CALLS, early=st.booleans())
    def write(self, call: Call, early: bool) -> None:
        model, handle = self.model[call.thread], self.handle(call)
        head = model.head(call.namespace)
        target = "not saved yet" if early or head is None else head
        self.count += 1
        value = {"text": text(call.number + self.count)}
        self.run(handle.write("task", [("c", value), ("__error__", self.count)], checkpoint=target))
        writes = model.writes.setdefault((call.namespace, target), {})
        writes.setdefault(("task", 0), value)
        writes["task", -1] = self.count

    @rule(call=CALLS)
    def update(self, call: Call) -> None:
        self.count += 1
        self.run(self.handle(call).set_metadata({f"key {call.number % 3}": self.count}))
        model = self.model[call.thread]
        model.metadata[f"key {call.number % 3}"] = self.count
        model.is_described = True

    # Copies

    @rule(call=CALLS, into=st.sampled_from(THREADS), whole=st.booleans())
    def copy(self, call: Call, into: str, whole: bool) -> None:
        """Fork from a checkpoint, or copy the thread."""
        source, target, handle = self.model[call.thread], self.model[into], self.handle(call)
        line = source.line(call.namespace)
        if not line:
            return
        id = line[call.number % len(line)]
        self.touched.add(into)
        try:
            self.run(handle.copy(into) if whole else handle.fork(into, checkpoint=id))
        except ThreadNotEmpty:
            assert target.saved or target.metadata
            return
        assert not target.saved and not target.metadata
        pairs = [*source.saved, *source.writes] if whole else [(call.namespace, id)]
        self.take(source, target, pairs, None if whole else "fork")

    def take(
        self, source: ModelThread, target: ModelThread, pairs: list[CheckpointKey], how: Source | None
    ) -> None:
        used = (
            target.seq
            if any(source.saved[pair].seq <= target.seq for pair in pairs if pair in source.saved)
            else 0
        )
        for pair in pairs:
            if (saved := source.saved.get(pair)) is not None:
                target.saved[pair] = Saved(saved.parent, saved.seq + used, saved.state, how or saved.source)
                target.seq = max(target.seq, saved.seq + used)
            target.writes.pop(pair, None)
            if pair in source.writes:
                target.writes[pair] = dict(source.writes[pair])
        target.metadata, target.is_described = dict(source.metadata), True

    # Deleting

    @rule(call=CALLS)
    def delete(self, call: Call) -> None:
        self.run(self.stores[call.who].delete(call.thread))
        self.model[call.thread].clear()
        self.touched.add(call.thread)

    @rule(call=CALLS, erase=st.booleans())
    def remove(self, call: Call, erase: bool) -> None:
        model = self.model[call.thread]
        line = model.line(call.namespace)
        doomed = [id for index, id in enumerate(line) if (index + call.number) % 3 == 0]
        done = self.run(self.handle(call).delete_checkpoints(doomed, erase=erase))
        assert (done.checkpoints, done.erased) == (len(doomed), erase)
        for id in doomed:
            model.remove((call.namespace, id))

    @rule(call=CALLS, keep=st.integers(1, 3), erase=st.booleans())
    def prune(self, call: Call, keep: int, erase: bool) -> None:
        model = self.model[call.thread]
        doomed = [(namespace, id) for namespace in NAMESPACES for id in model.line(namespace)[keep:]]
        done = self.run(self.handle(call).prune(keep_last=keep, erase=erase))
        assert (done.checkpoints, done.erased) == (len(doomed), erase)
        for pair in doomed:
            model.remove(pair)

    @rule(call=CALLS, meanwhile=CALLS)
    def delete_in_two_steps(self, call: Call, meanwhile: Call) -> None:
        """Another process removes records and finds dead chunks; a save comes before it acts."""
        model, probe = self.model[call.thread], self.probe(call.thread)
        line = model.line(call.namespace)
        doomed = [id for index, id in enumerate(line) if (index + call.number) % 2 == 0]
        self.run(probe.commit(removal=Removal(checkpoints=tuple((call.namespace, id) for id in doomed))))
        for id in doomed:
            model.remove((call.namespace, id))
        inventory = self.run(probe.backend.inventory(probe.thread))
        read = live(self.run(probe.records()), self.run(probe.backend.writes(probe.thread, None)))
        self.save(meanwhile, "head")
        removal = Removal(chunks=tuple(inventory.chunks.keys() - read), chunks_until=inventory.revision)
        try:
            self.run(probe.commit(removal=removal, generation=inventory.generation))
        except StaleBase:
            pass  # and it leaves the chunks, as if it had died between its steps
        self.touched.add(call.thread)

    # The end of a process, and a new one

    @rule(call=CALLS, orderly=st.booleans())
    def reopen(self, call: Call, orderly: bool) -> None:
        if orderly and self.trial.opener.survives:
            self.run(self.stores[call.who].close())
        fresh = self.run(self.trial.interposed(tenant=self.tenant))
        self.backends[call.who], self.stores[call.who] = fresh

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
                assert (item.seq, item.parent, item.source) == (saved.seq, saved.parent, saved.source)
                checkpoint = await thread.checkpoint(item.id)
                assert checkpoint is not None and checkpoint.state == saved.state.value()
                writes = {(write.task, write.index): write.value for write in checkpoint.pending_writes}
                assert writes == model.writes.get((namespace, item.id), {})
        assert await self.looker.thread(id).metadata() == model.metadata
        assert await self.probe(id).missing() == set()

    def teardown(self) -> None:
        try:
            self.run(self.compare_all())
        finally:
            if self.trial.opener.survives:  # else the next example uses the same backend
                self.run(self.trial.close())

    async def compare_all(self) -> None:
        for id in THREADS:
            await self.compare(id)
        assert (await self.looker.verify()).problems == ()
        expected = {id for id, model in self.model.items() if model.is_listed()}
        assert {info.id async for info in self.looker.threads()} == expected
        size = await self.looker.size()
        assert size.checkpoints == sum(len(model.saved) for model in self.model.values())


class MachineContract(Contract):
    def test_any_sequence_of_calls_agrees_with_a_simple_model(self, backend: Any, io_mode: str) -> None:
        profile = settings()
        few = 2 if io_mode == "sync" else 1  # a hop to another thread for each call takes its time
        with IO_MODES[io_mode]() as driver:
            run_state_machine_as_test(
                cast(Any, lambda: StoreMachine(Opener.of(backend), driver)),
                settings=settings(
                    profile,
                    max_examples=few if profile.max_examples <= 100 else profile.max_examples * few // 50,
                    stateful_step_count=40,
                    deadline=None,
                    report_multiple_bugs=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
