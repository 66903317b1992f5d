"""Conversations whose every state is known beforehand, and a ledger of what a store promised to keep."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import outlive

Doing = tuple[Any, ...]  # ("save", step, id)  ("write", checkpoint id, number)  ("prune", how many to keep)

_WORDS = ("plan", "book", "ticket", "Lisbon", "hotel", "train", "answer", "tool", "error", "später", "明日")


@functools.lru_cache(100_000)
def message(thread: str, number: int) -> dict[str, Any]:
    """Return the message with this number: mostly short, sometimes larger than a chunk's threshold."""
    rng = random.Random(f"{thread}/{number}")
    words = rng.choice((8, 8, 8, 40, 200, 3000))
    return {
        "role": ("user", "assistant", "tool")[number % 3],
        "content": " ".join(rng.choices(_WORDS, k=words)),
        "at": number,
    }


def state(thread: str, step: int) -> dict[str, Any]:
    """Return the state after `step` messages."""
    messages = [message(thread, number) for number in range(step)]
    return {"thread": thread, "step": step, "messages": messages, "plan": {"done": step // 5}}


def script(thread: str, step: int, seed: object) -> Iterator[Doing]:
    """Continue a conversation without end: save each step, sometimes leave a write, sometimes prune."""
    rng = random.Random(f"{thread}/{seed}")
    while True:
        step += 1
        checkpoint = f"{thread}/{step}/{seed}"
        yield "save", step, checkpoint
        for number in range(rng.choice((0, 0, 0, 1, 3))):
            yield "write", checkpoint, number
        if rng.random() < 0.1:
            yield "prune", rng.randint(1, 8)


def act(thread: Any, doing: Doing) -> Any:
    """Do it on a `Thread`; on an `AsyncThread`, return what is to be awaited."""
    match doing:
        case "save", step, id:
            return thread.save(state(thread.id, step), id=id, step=step)
        case "write", id, number:
            return thread.write(f"task {number}", [("out", message(id, number))], checkpoint=id)
        case "prune", keep:
            return thread.prune(keep_last=keep)
    raise AssertionError(doing)


class Ledger:
    """What one worker was told about one thread, and what may be found after it died.

    A worker does one thing at a time on a thread and says so before and after. What it began but did not
    report done may be there or not, but never by half.
    """

    def __init__(self, thread: str) -> None:
        self.thread = thread
        self.saved: dict[int, str] = {}  # step → checkpoint id
        self.written: dict[str, set[str]] = {}  # checkpoint id → tasks that wrote
        self.doing: Doing | None = None

    @property
    def last(self) -> int:
        return max(self.saved, default=0)

    def begin(self, doing: Doing) -> None:
        self.doing = doing

    def done(self) -> None:
        assert self.doing is not None
        match self.doing:
            case "save", step, id:
                self.saved[step] = id
            case "write", id, number:
                self.written.setdefault(id, set()).add(f"task {number}")
            case "prune", keep:
                self.saved = self._newest(keep)
        self.doing = None

    def _newest(self, keep: int) -> dict[int, str]:
        return {step: self.saved[step] for step in sorted(self.saved)[-keep:]}

    def check(self, store: outlive.Store) -> None:
        """Compare the thread with what was promised, and settle what was in flight by what is there."""
        thread = store.thread(self.thread)
        found = {past.step: past.id for past in thread.history()}
        self._settle(found)
        assert found == self.saved
        assert list(found) == sorted(found, reverse=True)
        for step, saved in self.saved.items():
            assert thread.load(saved) == state(self.thread, step)
            writes = {write.task: write.value for write in thread.writes(saved)}
            assert writes.keys() >= self.written.get(saved, set())
            assert all(value == message(saved, int(task.split()[1])) for task, value in writes.items())
        head = thread.checkpoint()
        assert (head.step if head else 0) == self.last

    def _settle(self, found: dict[int, str]) -> None:
        doing, self.doing = self.doing, None
        match doing:
            case "save", step, id if found.get(step) == id:
                self.saved[step] = id
            case "prune", keep if found == self._newest(keep):
                self.saved = self._newest(keep)
