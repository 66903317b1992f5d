"""What a type checker knows of the API. mypy checks this file (`test_types.py`); nothing runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import outlive


@dataclass
class State:
    n: int


class Turn(TypedDict):
    text: str


def ask(prompt: str, tries: int = 1) -> int:
    return len(prompt) * tries


async def ask_later(prompt: str) -> float:
    return float(len(prompt))


def threads(store: outlive.Store) -> None:
    typed = store.thread("t", type=State)
    assert_type(typed, outlive.Thread[State])
    assert_type(typed.load(), State | None)
    assert_type(typed.fork("other"), outlive.Thread[State])
    typed.save(State(1), step=1, metadata={"by": "me"})
    typed.save({"n": 1})  # type: ignore[arg-type]
    typed.save(State(1), stepp=1)  # type: ignore[call-arg]
    typed.save(State(1), step="one")  # type: ignore[arg-type]
    assert_type(store.thread("t", type=Turn).load(), Turn | None)
    assert_type(store.thread("t", type=dict[str, int]).load(), dict[str, int] | None)
    assert_type(store.thread("t"), outlive.Thread[Any])
    store.thread("t", type=State | Turn).save(State(1))
    without: outlive.Thread = store.thread("t")
    assert_type(without, outlive.Thread[Any])


def runs(store: outlive.Store) -> None:
    store.run("t", agentt="a")  # type: ignore[call-arg]
    with store.run("t", agent="a", lease_s=10) as run:
        assert_type(run, outlive.Run)
        assert_type(run.step("ask", ask, "hello", tries=2), int)
        run.step("ask", ask, 5)  # type: ignore[call-overload]
        assert_type(run.step("ask", key="a")(ask)("hello"), int)

        @run.step("ask", effect=True)
        def decorated(prompt: str) -> bytes:
            return prompt.encode()

        plain: Callable[[str], bytes] = decorated
        assert_type(plain("x"), bytes)
        run.save(State(1), phase="one", step=2)
        run.save(State(1), fence=None)  # type: ignore[call-arg]
        store.thread("t").save(1, source="oops")  # type: ignore[arg-type]
        store.run("t", durability="never")  # type: ignore[arg-type]
        handlers = {"planner": resume}
        store.recover(handlers)
        store.recover({None: resume, "*": resume})
        store.recover({5: resume})  # type: ignore[arg-type]
        store.thread("t").save(1, run=run)
        store.thread("t").save(1, run=run.id)
        store.thread("t").save(1, run=5)  # type: ignore[arg-type]


def resume(run: outlive.Run) -> None: ...


async def async_threads_and_runs(store: outlive.AsyncStore) -> None:
    typed = store.thread("t", type=State)
    assert_type(typed, outlive.AsyncThread[State])
    assert_type(await typed.load(), State | None)
    await typed.save({"n": 1})  # type: ignore[arg-type]
    assert_type(await store.thread("t", type=Turn).load(), Turn | None)
    assert_type(store.thread("t"), outlive.AsyncThread[Any])
    async with store.run("t", agent="a") as run:
        assert_type(run, outlive.AsyncRun)
        assert_type(await run.step("ask", ask, "hello", tries=2), int)
        assert_type(await run.step("ask", ask_later, "hello"), float)
        assert_type(await run.step("ask", key="a")(ask_later)("hello"), float)
        await run.step("ask", ask_later, 5)  # type: ignore[call-overload]
        await typed.save(State(1), run=run)
