"""What a store should hold, in plain Python: the model that the state machine compares with."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from outlive.testing.store.pruning import noise
from outlive.values import Source

CheckpointKey = tuple[str, str]  # (namespace, checkpoint)

SIZES = (40, 300, 700, 3000, 70_000)  # inline, in a run, a run of its own, a large leaf


@functools.lru_cache(maxsize=2000)
def text(number: int) -> str:
    return noise(number, SIZES[number % 3] if number % 11 else SIZES[3 + number % 2])


@dataclass(frozen=True)
class State:
    """A state as the model knows it: which messages, in which order."""

    messages: tuple[int, ...] = ()
    turn: int = 0

    def value(self) -> dict[str, Any]:
        return {"messages": [{"text": text(number)} for number in self.messages], "turn": self.turn}


@dataclass
class Saved:
    """A checkpoint as the model knows it."""

    parent: str | None
    seq: int
    state: State
    source: Source = "loop"


@dataclass
class ModelThread:
    """A thread as it should be."""

    seq: int = 0
    saved: dict[CheckpointKey, Saved] = field(default_factory=dict)
    writes: dict[CheckpointKey, dict[tuple[str, int], Any]] = field(default_factory=dict)
    metadata: dict[str, int] = field(default_factory=dict)
    # It has metadata of its own, if only an empty one that came with a copy.
    is_described: bool = False

    def line(self, namespace: str) -> list[str]:
        """Return the ids of a namespace, newest first."""
        places = [(saved.seq, pair[1]) for pair, saved in self.saved.items() if pair[0] == namespace]
        return [id for _, id in sorted(places, reverse=True)]

    def head(self, namespace: str) -> str | None:
        return next(iter(self.line(namespace)), None)

    def add(self, namespace: str, id: str, state: State, parent: str | None) -> None:
        self.seq += 1
        self.saved[namespace, id] = Saved(parent, self.seq, state)

    def remove(self, pair: CheckpointKey) -> None:
        del self.saved[pair]
        self.writes.pop(pair, None)

    def clear(self) -> None:
        self.saved, self.writes, self.metadata, self.is_described = {}, {}, {}, False

    def is_listed(self) -> bool:
        return bool(self.saved or self.writes) or self.is_described
