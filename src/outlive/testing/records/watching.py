"""Watches: a process that waits for work in a tenant is woken when it is stored."""

from __future__ import annotations

from typing import Any

from outlive.backend import WALL, EntryRecord, Watch
from outlive.testing.contract import Contract
from outlive.testing.patience import PATIENCE_S
from outlive.testing.thread_records import Probe, draft
from outlive.testing.trial import Trial

TICKET = EntryRecord("ticket", "7:planner\n1\nr")
WORK: dict[str, dict[str, Any]] = {
    "a ticket": {"entries": (TICKET,)},
    "a timer": {"entries": (EntryRecord("timer", "5\nr\nsleep", until=5, clock=WALL),)},
    "an answer": {"entries": (EntryRecord("run", "r"), EntryRecord("wait", "r\nq", b"yes", "answered"))},
    "a ticket with metadata": {"entries": (TICKET,), "metadata": b"decided by the client"},
    "a ticket of another store": {"entries": (EntryRecord("ticket", "other"),), "merge": True},
}


async def _calm(watch: Watch) -> None:
    """Take what a watch has to report of what is over."""
    while await watch.wait(0.25):
        pass


class WatchContract(Contract):
    async def test_work_that_is_stored_between_two_waits_is_reported(self, trial: Trial) -> None:
        here, other = await trial.probe("here"), await trial.probe("there")
        watch = await here.backend.watch("")
        for name, fields in WORK.items():
            await _calm(watch)
            await other.commit(**fields)
            assert await watch.wait(PATIENCE_S), name
        await watch.close()
        await watch.close()

    async def test_work_that_is_stored_during_a_wait_ends_it(self, trial: Trial) -> None:
        here, other = await trial.probe("here"), await trial.probe("there")
        watch = await here.backend.watch("")
        await _calm(watch)

        async def wait() -> bool:
            return await watch.wait(PATIENCE_S)

        async def work() -> None:
            await trial.sleep(0.1)
            await other.commit(draft("a"), entries=(TICKET,))

        assert await trial.together(wait, work) == [True, None]
        await watch.close()

    async def test_a_wait_ends_when_its_time_is_over(self, probe: Probe) -> None:
        watch = await probe.backend.watch("")
        await _calm(watch)
        assert not await watch.wait(0.0)
        await watch.close()

    async def test_every_watch_of_a_tenant_is_woken(self, trial: Trial) -> None:
        probe = await trial.probe(tenant="tenant")
        watches = [await probe.backend.watch("tenant") for _ in range(2)]
        for watch in watches:
            await _calm(watch)
        await probe.commit(entries=(TICKET,))
        for watch in watches:
            assert await watch.wait(PATIENCE_S)
            await watch.close()
