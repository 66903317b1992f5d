"""Any operation, and any other in the middle of it: before each single call of the backend that the
first makes.

There are some 2,000 such meetings. The short mode takes a fixed sample of them, another one for
each mode and half, the long mode all. What must hold after each: nobody cries damage, every
checkpoint that is listed has the content of its id, what was acknowledged is there unless somebody
deleted, and verify finds nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from outlive.errors import CheckpointExists, CheckpointMissing, HeadMoved, ThreadNotEmpty
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.interposed import Interposed
from outlive.testing.store.pruning import noise
from outlive.testing.trial import ROUNDS, SyncDriver, Trial

Operation = Callable[[AsyncStore, str], Awaitable[Any]]
POINTS = 9  # no operation here makes more calls before its last one matters
SAMPLE = 97  # one of so many meetings in the short mode
EXPECTED = (HeadMoved, CheckpointMissing, CheckpointExists, ThreadNotEmpty)


def _state(start: int, stop: int) -> dict[str, Any]:
    return {"messages": [noise(n, 900) for n in range(start, stop)]}


# The states that each id may have; more than one where an operation replaces it.
CONTENTS: dict[str, list[Any]] = {
    "first": [_state(0, 20)],
    "second": [_state(0, 12)],
    "third": [_state(4, 12), _state(30, 36)],
    "saved": [_state(4, 14)],
    "expected": [_state(2, 12)],
    "delayed": [_state(4, 13)],
    "again": [_state(0, 20)],
}


async def _furnish(store: AsyncStore, id: str) -> None:
    thread = store.thread(id)
    for name in ("first", "second", "third"):
        await thread.save(CONTENTS[name][0], id=name)
        await thread.write("task", [("c", _state(50, 52))], checkpoint=name)
    await thread.set_metadata({"title": "x"})


async def _save_delayed(store: AsyncStore, id: str) -> None:
    await store.thread(id).save(CONTENTS["delayed"][0], id="delayed", durability="async")
    await store.thread(id).flush()


async def _look(store: AsyncStore, id: str) -> None:
    """Read in every way; whatever comes back must be whole."""
    thread = store.thread(id)
    for item in [item async for item in thread.history()]:
        checkpoint = await thread.checkpoint(item.id)
        assert checkpoint is None or checkpoint.state in CONTENTS[item.id]
        assert checkpoint is None or all(write.value == _state(50, 52) for write in checkpoint.pending_writes)
    for write in await thread.writes("third"):
        assert write.value == _state(50, 52)
    await thread.lineage()
    await thread.diff("second")


async def _verify(store: AsyncStore, id: str) -> None:
    assert (await store.thread(id).verify()).problems == ()


SAVES: dict[str, Operation] = {
    "saved": lambda store, name: store.thread(name).save(CONTENTS["saved"][0], id="saved"),
    "expected": lambda store, name: store.thread(name).save(
        CONTENTS["expected"][0], id="expected", expect="third"
    ),
    "delayed": _save_delayed,
    "third": lambda store, name: store.thread(name).save(CONTENTS["third"][1], id="third", replace=True),
    "again": lambda store, name: store.thread(name).save(CONTENTS["again"][0], id="again", parent="first"),
}
DELETIONS: dict[str, Operation] = {
    "remove": lambda store, name: store.thread(name).delete_checkpoints(["first"]),
    "erase": lambda store, name: store.thread(name).delete_checkpoints(["first", "second"], erase=True),
    "prune": lambda store, name: store.thread(name).prune(keep_last=1),
    "prune and erase": lambda store, name: store.thread(name).prune(keep_last=1, erase=True),
    "delete": lambda store, name: store.thread(name).delete(),
}
OTHERS: dict[str, Operation] = {
    "write": lambda store, name: store.thread(name).write(
        "other", [("c", _state(50, 52))], checkpoint="third"
    ),
    "update": lambda store, name: store.thread(name).set_metadata({"title": "y"}),
    "fork": lambda store, name: store.thread(name).fork(f"{name} fork", checkpoint="second"),
    "copy": lambda store, name: store.thread(name).copy(f"{name} copy"),
    "look": _look,
    "verify": _verify,
}
OPERATIONS = {**SAVES, **DELETIONS, **OTHERS}


def _meetings() -> Iterator[tuple[str, str, int]]:
    return itertools.product(OPERATIONS, OPERATIONS, range(POINTS))


class InterleavingContract(Contract):
    async def test_any_operation_in_the_middle_of_any_other_loses_nothing(self, trial: Trial) -> None:
        backend, first_store = await trial.interposed()
        second_store, looker = await trial.store(), await trial.store(cache_bytes=0)
        offset = 3 if isinstance(trial.driver, SyncDriver) else 41
        for number, (first, second, point) in enumerate(_meetings()):
            if ROUNDS > 1 or number % SAMPLE == offset:
                id = f"{first}, {second} before call {point}"
                await _meet(trial, backend, first_store, second_store, id, (first, second, point))
                await _check(looker, id, {first, second})


async def _meet(
    trial: Trial,
    backend: Interposed,
    first_store: AsyncStore,
    second_store: AsyncStore,
    id: str,
    meeting: tuple[str, str, int],
) -> None:
    """Let the first store act, and the second one before a given call of the first."""
    first, second, point = meeting
    await _furnish(first_store, id)
    await second_store.thread(id).load()

    async def act() -> None:
        await _attempt(OPERATIONS[second], second_store, id)

    backend.before_call(point, act)
    await _attempt(OPERATIONS[first], first_store, id)
    await backend.act_now()  # it made fewer calls than that


async def _attempt(operation: Operation, store: AsyncStore, id: str) -> None:
    try:
        await operation(store, id)
    except EXPECTED:
        pass  # the other one came before, and that is what is said
    except Exception as error:
        error.add_note(f"in {id!r}")
        raise


async def _check(store: AsyncStore, id: str, done: set[str]) -> None:
    for name in (id, f"{id} fork", f"{id} copy"):
        thread = store.thread(name)
        listed = [item async for item in thread.history()]
        assert len({item.seq for item in listed}) == len(listed), name
        for item in listed:
            assert await thread.load(item.id) in CONTENTS[item.id], f"{item.id} of {name}"
        assert (await thread.verify()).problems == (), name
    if not done & DELETIONS.keys():
        acknowledged = (done & SAVES.keys()) - {"expected"}
        assert {item.id async for item in store.thread(id).history()} >= acknowledged, id
