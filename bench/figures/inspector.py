"""Pages of `outlive ui` on large stores: CPU time of a request, called without a network.

The list is a page of 100 of very many threads. The long thread has 10,000 checkpoints; its page has the newest 100 and
one state, and scripts read the rest in batches. The large state is loaded only on request. Open pages are event streams
on one thread of a store that nobody writes to.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ours
import outlive
from figures.listing import fill_some
from measure import Race, settled
from outlive.inspector import app
from scale import Scale
from table import Row, at_most, milliseconds, shown, within
from text import prose
from workloads import SEED

_CHECKPOINTS, _OPEN, _WATCHED_S = 10_000, 50, 5.0
_FILLERS = 128


def run(scale: Scale, room: Path) -> Iterator[Row]:
    asyncio.run(_fill(room / "many.db", scale.threads))
    with settled(), ours.open_store(room / "many.db") as store:
        page = _time(store, "/threads", scale.laps)
        yield within(f"100 of {scale.threads:,} threads, CPU", page, 0.050)
        yield shown("the same as JSON, CPU", milliseconds(_time(store, "/threads.json", scale.laps)))
        yield shown("store page, CPU", milliseconds(_time(store, "/store", 5)))
    asyncio.run(_fill_long(room / "long.db"))
    with settled(), ours.open_store(room / "long.db") as store:
        page = _time(store, "/thread?id=talk", scale.laps)
        yield within(f"thread of {_CHECKPOINTS:,} checkpoints, CPU", page, 0.060)
        yield shown(
            "another checkpoint of it, CPU", milliseconds(_time(store, "/detail?id=talk", scale.laps))
        )
        yield shown("1,000 rows of its tree, CPU", milliseconds(_time(store, "/tree.json?id=talk", 5)))
        yield shown(f"{_OPEN} open pages, CPU per second", milliseconds(asyncio.run(_watch(store))))
    with settled(), ours.open_store(room / "large.db") as store:
        store.thread("large").save({"parts": _parts(scale.megabytes)})
    with settled(), ours.open_store(room / "large.db") as store:
        asks = milliseconds(_time(store, "/thread?id=large", 5))
        address = "/thread?id=large&load=1&view=state"
        grown = _grown_bytes(store, address) / (scale.megabytes << 20)
        loads = _time(store, address, 3)
        yield within(f"state of {scale.megabytes} MB, CPU", loads, 0.500, f"before it is asked for {asks}")
        yield at_most("peak memory of that page / the state", grown, 4)


def _parts(megabytes: int) -> list[str]:
    """Return texts of 64 KiB that all differ."""
    text = prose(random.Random(SEED), 1 << 20)
    return [f"{at:06} {text[at * 997 % (1 << 19) :][: (1 << 16) - 7]}" for at in range(16 * megabytes)]


def _grown_bytes(store: outlive.Store, path: str) -> int:
    """Return by how much the memory of this process grows at most while a page is made (Linux)."""
    application = app(store)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is in use now
    before = _memory("VmRSS")
    asyncio.run(_request(application, path))
    return _memory("VmHWM") - before


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


async def _fill(path: Path, count: int) -> None:
    async with ours.open_async(path, fsync="normal") as store:
        await asyncio.gather(*(fill_some(store, range(n, count, _FILLERS)) for n in range(_FILLERS)))


async def _fill_long(path: Path) -> None:
    messages: list[dict[str, str]] = []
    async with ours.open_async(path, fsync="normal") as store:
        thread = store.thread("talk")
        for step in range(_CHECKPOINTS):
            if not step % 100:
                messages = [*messages, {"role": "user", "content": f"message {step} " * 20}]
            await thread.save({"messages": messages, "step": step}, step=step)


def _time(store: outlive.Store, path: str, laps: int) -> float:
    """Return the CPU seconds of a request, after a first one that is not counted."""
    application, race = app(store), Race()
    asyncio.run(_request(application, path))

    async def measure() -> None:
        for _ in range(laps):
            before = time.process_time()
            await _request(application, path)
            race.cpu_s["page"].append(time.process_time() - before)

    asyncio.run(measure())
    return race.cpu("page")


def _scope(path: str) -> dict[str, Any]:
    place, _, query = path.partition("?")
    return {
        "type": "http",
        "method": "GET",
        "path": place,
        "raw_path": place.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }


async def _request(application: Any, path: str) -> None:
    statuses = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await application(_scope(path), receive, send)
    if statuses != [200]:
        raise AssertionError(f"{path} answered {statuses}")


async def _watch(store: outlive.Store) -> float:
    """Return the CPU seconds that open pages cost per second."""
    application = app(store)
    pages = [asyncio.create_task(_request(application, "/live?topic=thread&id=talk")) for _ in range(_OPEN)]
    await asyncio.sleep(1)
    before = time.process_time()
    await asyncio.sleep(_WATCHED_S)
    used = time.process_time() - before
    for page in pages:
        page.cancel()
    await asyncio.gather(*pages, return_exceptions=True)
    return used / _WATCHED_S
