"""Resident memory of a process that saves very many threads in turn, one state of some 100 KB each.

The cache of what was saved last is bounded (64 MB a store by default), so memory stops growing once it is
full: the growth over the last half of the saves counts. The states are made one at a time and not kept.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import ours
import yardstick
from scale import Scale
from table import Row, megabytes
from workloads import State, messages

_MESSAGES = 120  # some 100 KB
_BAR_BYTES = 16_000_000


def run(scale: Scale, room: Path) -> Iterator[Row]:
    """Measure in a fresh process: this one has freed memory that new objects would hide in."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        size, marks = pool.submit(_watch, room / "store.db", scale).result()
    before, half, full, twice = marks
    count = scale.cached_threads
    after = f"{megabytes(half)} after {count // 2:,}, {megabytes(full)} after {count:,}"
    yield Row(f"memory: threads of {megabytes(size)} saved in turn", f"{megabytes(before)} before, {after}")
    grown = twice - full
    what = f"memory: growth from {count:,} to {2 * count:,} threads"
    yield Row(
        what, f"{megabytes(grown)} to {megabytes(twice)}", f"<= {_BAR_BYTES / 1e6:g} MB", grown <= _BAR_BYTES
    )


def _watch(path: Path, scale: Scale) -> tuple[int, list[int]]:
    """Return the packed size of a state, and the resident bytes before and after each stage."""
    talk = messages(_MESSAGES)
    options = {} if scale.cache_bytes is None else {"cache_bytes": scale.cache_bytes}
    with ours.open_store(path, **options) as store:
        store.thread("warm-up").save(_state(talk, 0))
        marks = [_resident_bytes()]
        for start, stop in _stages(scale.cached_threads):
            for number in range(start, stop):
                store.thread(f"talk-{number}").save(_state(talk, number))
            marks.append(_resident_bytes())
    return yardstick.packed_size(_state(talk, 0)), marks


def _stages(count: int) -> list[tuple[int, int]]:
    return [(0, count // 2), (count // 2, count), (count, 2 * count)]


def _state(talk: list[dict[str, object]], number: int) -> State:
    """Make a state of this thread's own: no string in it is shared with another thread's."""
    own = [{**message, "content": f"{number}: {message['content']}"} for message in talk]
    return {"messages": own, "step": number}


def _resident_bytes() -> int:
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the peak, which is never less
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
