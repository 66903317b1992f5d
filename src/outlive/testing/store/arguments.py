"""Invalid arguments are refused before anything is stored, with an error that helps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import pytest

from outlive.errors import BadArgument
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.values import PendingWrite

LONG = "x" * 1001
NAIVE = dt.datetime(2026, 1, 1)  # noqa: DTZ001

NOT_IDS: list[Any] = [5, b"bytes", ("a",), True, "", LONG]
SAVES: dict[str, dict[str, Any]] = {
    **{f"id {value!r:.20}": {"id": value} for value in NOT_IDS},
    **{f"parent {value!r:.20}": {"parent": value} for value in NOT_IDS},
    **{f"expect {value!r:.20}": {"expect": value} for value in NOT_IDS},
    **{f"run {value!r:.20}": {"run": value} for value in NOT_IDS},
    "step as text": {"step": "1"},
    "step as bool": {"step": True},
    "step as float": {"step": 1.0},
    "step too large": {"step": 1 << 63},
    "source unknown": {"source": "elsewhere"},
    "source no text": {"source": None},
    "metadata no mapping": {"metadata": [("a", 1)]},
    "metadata keys": {"metadata": {1: 2}},
    "next_nodes as text": {"next_nodes": "abc"},
    "next_nodes of numbers": {"next_nodes": [1]},
    "next_nodes no sequence": {"next_nodes": 5},
    "completed_tasks as text": {"completed_tasks": "abc"},
    "interrupts of dicts": {"interrupts": [{"id": "i"}]},
    "interrupts no sequence": {"interrupts": 5},
    "writes as text": {"writes": "abc"},
    "writes of pairs": {"writes": [("c", 1)]},
    "writes of no task": {"writes": [("", "c", 1)]},
    "writes to no channel": {"writes": [("a", 5, 1)]},
    "writes with a negative index": {"writes": [PendingWrite("a", -1, "c", 1)]},
    "writes to a control channel by another index": {"writes": [PendingWrite("a", 0, "__error__", 1)]},
    "fence of a number": {"fence": 3},
    "durability": {"durability": "exit"},
    "timeout zero": {"timeout_s": 0},
    "timeout negative": {"timeout_s": -1},
    "timeout text": {"timeout_s": "1"},
    "timeout not a number": {"timeout_s": float("nan")},
    "timeout endless": {"timeout_s": float("inf")},
}

CALLS: dict[str, Callable[[Any], Any]] = {
    "load an int": lambda store: store.thread("t").load(5),
    "load an empty id": lambda store: store.thread("t").load(""),
    "load at a naive moment": lambda store: store.thread("t").load(at=NAIVE),
    "load at a number": lambda store: store.thread("t").load(at=5),
    "load with no time": lambda store: store.thread("t").load(timeout_s=0),
    "checkpoint at text": lambda store: store.thread("t").checkpoint(at="now"),
    "exists of bytes": lambda store: store.thread("t").exists(b"a"),
    "history with a negative limit": lambda store: _all(store.thread("t").history(limit=-1)),
    "history with a limit of text": lambda store: _all(store.thread("t").history(limit="1")),
    "history before a number": lambda store: _all(store.thread("t").history(before=5)),
    "history of a run by number": lambda store: _all(store.thread("t").history(run=5)),
    "history by no filter": lambda store: _all(store.thread("t").history(filter=5)),
    "lineage of a number": lambda store: store.thread("t").lineage(5),
    "diff of numbers": lambda store: store.thread("t").diff(1, 2),
    "write of no task": lambda store: store.thread("t").write("", [("c", 1)], checkpoint="c"),
    "write to no channel": lambda store: store.thread("t").write("a", [(5, 1)], checkpoint="c"),
    "write of no pairs": lambda store: store.thread("t").write("a", [5], checkpoint="c"),
    "write of nothing iterable": lambda store: store.thread("t").write("a", 5, checkpoint="c"),
    "write with a path of bytes": lambda store: store.thread("t").write(
        "a", [("c", 1)], path=b"", checkpoint="c"
    ),
    "write to a checkpoint by number": lambda store: store.thread("t").write("a", [("c", 1)], checkpoint=5),
    "writes of a number": lambda store: store.thread("t").writes(5),
    "fork to a number": lambda store: store.thread("t").fork(5),
    "fork at a number": lambda store: store.thread("t").fork("b", checkpoint=5),
    "copy to nothing": lambda store: store.thread("t").copy(""),
    "update with a list": lambda store: store.thread("t").set_metadata([1]),
    "update with keys of numbers": lambda store: store.thread("t").set_metadata({1: 2}),
    "remove a number": lambda store: store.thread("t").delete_checkpoints([5]),
    "remove nothing iterable": lambda store: store.thread("t").delete_checkpoints(5),
    "remove by run number": lambda store: store.thread("t").delete_checkpoints(run=5),
    "threads with a prefix of bytes": lambda store: _all(store.threads(prefix=b"a")),
    "threads after a number": lambda store: _all(store.threads(after=5)),
    "threads with a negative limit": lambda store: _all(store.threads(limit=-1)),
    "threads by no filter": lambda store: _all(store.threads(filter=5)),
    "delete a number": lambda store: store.delete(5),
}


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


async def _not_refused(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the results and other errors of the calls that do not raise BadArgument."""
    wrong: dict[str, Any] = {}
    for what, call in calls.items():
        try:
            wrong[what] = await call()
        except BadArgument:
            continue
        except Exception as error:  # noqa: BLE001
            wrong[what] = error
    return wrong


class ArgumentContract(Contract):
    async def test_a_save_with_a_bad_argument_is_refused(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        saves = {what: partial(thread.save, {}, **argument) for what, argument in SAVES.items()}
        assert await _not_refused(saves) == {}
        assert not await thread.exists()

    async def test_a_call_with_a_bad_argument_is_refused(self, store: AsyncStore) -> None:
        await store.thread("t").save({}, id="c")
        assert await _not_refused({what: partial(call, store) for what, call in CALLS.items()}) == {}
        assert (await store.size()).checkpoints == 1

    async def test_a_thread_id_is_text_of_some_length(self, store: AsyncStore) -> None:
        for id in NOT_IDS:
            with pytest.raises(BadArgument):
                store.thread(id)

    async def test_a_namespace_is_text(self, store: AsyncStore) -> None:
        for namespace in (5, None, b"", LONG):
            with pytest.raises(BadArgument):
                store.thread("t", namespace=cast(str, namespace))

    async def test_a_thousand_characters_are_an_id(self, store: AsyncStore) -> None:
        id = "\U0001f600" * 1000
        await store.thread(id, namespace=id).save(1, id=id, run=id)
        assert await store.thread(id, namespace=id).load(id) == 1
