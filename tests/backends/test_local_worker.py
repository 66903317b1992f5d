"""The thread behind an async store of this machine: errors, groups, deadlines, loops, the end of the program."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

import outlive
from outlive.backend import CheckpointRecord, Commit, Receipt, ThreadKey
from outlive.backends.local.async_local import AsyncLocal
from outlive.backends.local.memory import MemoryBackend
from outlive.errors import OutcomeUnknown, StoreBusy
from outlive.testing.patience import PATIENCE_S, eventually


class Faulty(MemoryBackend):
    """A backend that raises what no backend should, and that can be kept waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.has_begun = threading.Event()

    def commit_all(self, commits):
        self.groups.append([commit.first_id for commit in commits])
        self.has_begun.set()
        assert self.gate.wait(PATIENCE_S)
        if any(commit.first_id == "faulty" for commit in commits):
            raise ZeroDivisionError("a bug")
        return super().commit_all(commits)

    def facts(self):
        raise SystemExit("a bug")


def commit(id: str, thread: str = "t", timeout_s: float | None = None) -> Commit:
    record = CheckpointRecord("", id, None, None, None, "loop", 0, 0, (), b"")
    return Commit(ThreadKey.of("", thread), checkpoints=(record,), timeout_s=timeout_s)


def test_an_error_of_the_backend_reaches_the_caller_and_the_worker_continues():
    async def main():
        backend = AsyncLocal(Faulty())
        with pytest.raises(ZeroDivisionError):
            await backend.commit_all([commit("faulty")])
        with pytest.raises(SystemExit):
            await backend.facts()
        assert isinstance((await backend.commit_all([commit("next")]))[0], Receipt)
        await backend.close()

    asyncio.run(main())


def test_others_of_a_group_are_told_that_nobody_knows_after_an_error_of_the_backend():
    async def main():
        backend = AsyncLocal(Faulty())
        groups = await asyncio.gather(
            *(backend.commit_all([commit(id, thread=id)]) for id in ("before", "faulty", "after"))
        )
        for (result,) in groups:
            assert isinstance(result, OutcomeUnknown)
            assert "ZeroDivisionError: a bug" in str(result)
        assert backend.local.groups == [["before", "faulty", "after"]]
        (receipt,) = await backend.commit_all([commit("after", thread="after")])
        assert isinstance(receipt, Receipt)
        await backend.close()

    asyncio.run(main())


def test_commits_that_wait_share_the_next_group_in_the_order_of_their_calls():
    async def main():
        backend = AsyncLocal(Faulty())
        backend.local.gate.clear()
        first = asyncio.create_task(backend.commit_all([commit("0")]))
        await asyncio.to_thread(backend.local.has_begun.wait)
        rest = [asyncio.create_task(backend.commit_all([commit(str(n))])) for n in range(1, 20)]
        await asyncio.sleep(0)
        rest[4].cancel()
        await asyncio.sleep(0)
        backend.local.gate.set()
        results = await asyncio.gather(first, *rest, return_exceptions=True)
        assert backend.local.groups == [["0"], [str(n) for n in range(1, 20) if n != 5]]
        seqs = [result[0].checkpoints[0].seq for result in results if isinstance(result, list)]
        assert seqs == list(range(1, 20))
        assert isinstance(results[5], asyncio.CancelledError)
        await backend.close()

    asyncio.run(main())


def test_each_commit_has_its_own_deadline():
    """Whichever is the first: those that were sent are in doubt, those that wait are withdrawn."""

    async def main():
        backend = AsyncLocal(Faulty())
        backend.local.gate.clear()
        sent = [commit("sent", timeout_s=0.05), commit("sent-too", timeout_s=PATIENCE_S)]
        calls = [asyncio.create_task(backend.commit_all([each])) for each in sent]
        await asyncio.to_thread(backend.local.has_begun.wait)
        for id, timeout_s in [("patient", PATIENCE_S), ("soon", 0.05), ("sooner", 0.01), ("endless", None)]:
            calls.append(asyncio.create_task(backend.commit_all([commit(id, timeout_s=timeout_s)])))
        done, _ = await asyncio.wait([calls[0], calls[3], calls[4]], timeout=PATIENCE_S)
        assert done == {calls[0], calls[3], calls[4]}
        assert not any(call.done() for call in (calls[1], calls[2], calls[5]))
        backend.local.gate.set()
        results = [(await call)[0] for call in calls]
        kinds = [OutcomeUnknown, Receipt, Receipt, StoreBusy, StoreBusy, Receipt]
        assert [type(result) for result in results] == kinds
        assert backend.local.groups == [["sent", "sent-too"], ["patient", "endless"]]
        await backend.close()

    asyncio.run(main())


def test_the_worker_serves_the_next_loop_when_one_was_closed_in_the_middle_of_a_commit():
    backend = AsyncLocal(Faulty())
    backend.local.gate.clear()
    first = asyncio.new_event_loop()
    first.create_task(backend.commit_all([commit("first")])).add_done_callback(lambda _: None)
    first.run_until_complete(asyncio.sleep(0.01))
    assert backend.local.has_begun.wait(PATIENCE_S)
    for task in asyncio.all_tasks(first):
        task.cancel()
    first.run_until_complete(asyncio.sleep(0))
    first.close()

    async def main():
        call = asyncio.create_task(backend.commit_all([commit("second")]))
        await asyncio.sleep(0.01)
        backend.local.gate.set()
        (receipt,) = await call
        assert receipt.checkpoints[0].seq == 2  # the first was sent, and is finished before it
        await backend.close()

    asyncio.run(main())


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "outlive-worker-test"]


class Named(MemoryBackend):
    name = "worker-test"


def test_a_closed_store_leaves_no_thread_and_so_does_a_forgotten_one():
    async def use(*, closes: bool) -> None:
        backend = AsyncLocal(Named())
        await backend.commit_all([commit("1")])
        assert len(workers()) == 1
        if closes:
            await backend.close()

    for closes in (True, False):
        asyncio.run(use(closes=closes))
        eventually(lambda: not workers())


PROGRAM = """
import asyncio, sys, threading
import outlive

async def save(wait=lambda: None):
    global store  # a forgotten store would end its worker
    store = await outlive.open_async(sys.argv[1])
    wait()
    for n in range(3):
        await store.thread("t").save({"n": n})

async def leave():
    await save()
    task = asyncio.create_task(store.thread("t").save({"n": 3}))
    while not store._engine.backend._inner._sent:
        await asyncio.sleep(0)

if sys.argv[2] == "saved":
    asyncio.run(save())
elif sys.argv[2] == "sent":  # the loop ends while a commit is with the worker
    asyncio.run(leave())
else:  # the main thread ends, and the loop of another one still works
    is_open = threading.Event()
    def wait():
        is_open.set()
        threading.main_thread().join()
    threading.Thread(target=lambda: asyncio.run(save(wait))).start()
    is_open.wait()
"""


@pytest.mark.parametrize("how, saves", [("saved", 3), ("sent", 4), ("thread", 3)])
def test_a_program_that_ends_without_closing_its_store_finishes_what_was_sent(how, saves, tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, how], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    with outlive.open(url) as store:
        assert len(list(store.thread("t").history())) == saves
