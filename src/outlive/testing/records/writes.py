"""Pending writes: kept before their checkpoint is, the first one wins, control writes by rank."""

from __future__ import annotations

from outlive.backend import Removal
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, draft, write

ONE = chunk("one")


class WriteContract(Contract):
    async def test_a_write_comes_back_as_it_was_sent(self, probe: Probe) -> None:
        sent = write(
            "a", "task", 3, bytes(range(256)), namespace="sub", channel="channel", path="~__pregel_pull, node",
            chunks=(ONE[0],), rank=(1, 2, 3),
        )  # fmt: skip
        receipt = await probe.commit(writes=(sent,), chunks=(ONE,))
        assert receipt.writes == (sent,)
        assert await probe.backend.writes(probe.thread, None) == [sent]

    async def test_writes_may_come_before_their_checkpoint(self, probe: Probe) -> None:
        await probe.commit(writes=(write("a", "task"),))
        assert await probe.backend.writes(probe.thread, [("", "a")]) == [write("a", "task")]
        await probe.save("a")
        assert (await probe.backend.read(probe.thread, "")).writes == (write("a", "task"),)

    async def test_a_thread_of_writes_alone_is_listed_and_has_no_checkpoint(self, probe: Probe) -> None:
        await probe.commit(writes=(write("a", "task"),))
        row = await probe.row()
        assert row is not None and (row.checkpoints, row.head) == (0, None)

    async def test_the_first_write_of_an_index_wins(self, probe: Probe) -> None:
        await probe.commit(writes=(write("a", "task", 0, b"first"),))
        late = (write("a", "task", 0, b"second", rank=(9, 9, 9)), write("a", "task", 1, b"one"))
        assert (await probe.commit(writes=late)).writes == late[1:]
        bodies = [pending.body for pending in await probe.backend.writes(probe.thread, None)]
        assert bodies == [b"first", b"one"]

    async def test_the_first_of_an_index_wins_within_a_commit_too(self, probe: Probe) -> None:
        await probe.commit(writes=(write("a", "task", 0, b"first"), write("a", "task", 0, b"second")))
        assert [pending.body for pending in await probe.backend.writes(probe.thread, None)] == [b"first"]

    async def test_the_last_control_write_wins(self, probe: Probe) -> None:
        for body in (b"first", b"second", b"third"):
            await probe.commit(writes=(write("a", "task", -1, body), write("a", "task", -2, b"-" + body)))
        bodies = [pending.body for pending in await probe.backend.writes(probe.thread, None)]
        assert bodies == [b"-third", b"third"]

    async def test_the_last_of_an_index_wins_within_a_commit_when_it_is_a_control_write(
        self, probe: Probe
    ) -> None:
        await probe.commit(writes=(write("a", "task", -1, b"z first"), write("a", "task", -1, b"a last")))
        assert [pending.body for pending in await probe.backend.writes(probe.thread, None)] == [b"a last"]

    async def test_a_control_write_is_ranked_by_the_commit(self, probe: Probe) -> None:
        await probe.commit(draft("a"), epoch=3)
        receipt = await probe.commit(writes=(write("a", "task", -1), write("a", "task", 0)))
        assert [pending.rank for pending in receipt.writes] == [(3, 0, 2), (0, 0, 0)]

    async def test_a_control_write_of_a_lower_rank_loses(self, probe: Probe) -> None:
        for body, rank in ((b"a", (1, 2, 3)), (b"b", (1, 2, 2)), (b"c", (0, 9, 9)), (b"d", (1, 1, 9))):
            await probe.commit(writes=(write("a", "task", -1, body, rank=rank),))
        assert [pending.body for pending in await probe.backend.writes(probe.thread, None)] == [b"a"]
        await probe.commit(writes=(write("a", "task", -1, b"e", rank=(1, 3, 0)),))
        assert [pending.body for pending in await probe.backend.writes(probe.thread, None)] == [b"e"]

    async def test_writes_are_handed_out_by_path_task_and_index(self, probe: Probe) -> None:
        sent = [
            write("a", "t", -1, path="1", rank=(1, 1, 1)),
            write("a", "t", 0, path="1"),
            write("a", "t", 10, path="1"),
            write("a", "u", 2, path="1"),
            write("a", "a", 0, path="2"),
            write("b", "a", 0, path=""),
            write("a", "a", 0, path="", namespace="sub"),
        ]
        await probe.commit(writes=tuple(reversed(sent)))
        assert await probe.backend.writes(probe.thread, None) == sent
        assert await probe.backend.writes(probe.thread, [("", "a")]) == sent[:5]
        assert await probe.backend.writes(probe.thread, [("", "b"), ("sub", "a"), ("", "none")]) == sent[5:]
        assert await probe.backend.writes(probe.thread, []) == []

    async def test_writes_of_two_namespaces_do_not_meet(self, probe: Probe) -> None:
        await probe.commit(
            writes=(write("a", "task", body=b"root"), write("a", "task", body=b"sub", namespace="s"))
        )
        await probe.commit(draft("a"), draft("a", namespace="s"))
        assert [pending.body for pending in (await probe.backend.read(probe.thread, "")).writes] == [b"root"]
        await probe.commit(removal=Removal(checkpoints=(("s", "a"),)))
        assert [pending.body for pending in await probe.backend.writes(probe.thread, None)] == [b"root"]

    async def test_a_write_that_lost_its_checkpoint_may_be_written_again(self, probe: Probe) -> None:
        await probe.commit(draft("a"), writes=(write("a", "task", 0, b"old"),))
        await probe.commit(removal=Removal(checkpoints=(("", "a"),)))
        await probe.commit(writes=(write("a", "task", 0, b"new"),))
        assert [pending.body for pending in await probe.backend.writes(probe.thread, None)] == [b"new"]
        assert await probe.backend.audit(probe.thread) == []

    async def test_two_hundred_writes_of_one_checkpoint_are_kept(self, probe: Probe) -> None:
        sent = [write("a", f"task {number // 20:02}", number % 20) for number in range(200)]
        await probe.commit(writes=tuple(sent))
        assert await probe.backend.writes(probe.thread, [("", "a")]) == sent
