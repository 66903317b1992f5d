"""Entries: small records by kind and key. The greater rank wins; conditions make them locks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlive.backend import (
    ABSENT,
    NEXT,
    OUTBOX,
    WALL,
    Commit,
    EntryCursor,
    EntryQuery,
    EntryRecord,
    Fence,
    Receipt,
    Removal,
    ThreadKey,
    ThreadQuery,
    Totals,
    escape,
)
from outlive.backend.entries import KINDS
from outlive.errors import BadArgument, EntryHeld, LeaseLost
from outlive.testing.contract import Contract
from outlive.testing.patience import PATIENCE_S
from outlive.testing.thread_records import Probe, draft, expected
from outlive.testing.trial import Trial


async def _keys(probe: Probe, kind: str, **options: Any) -> list[str]:
    return [entry.key for _, entry in await probe.backend.entries(EntryQuery("", kind, **options))]


class EntryContract(Contract):
    async def test_an_entry_of_an_unknown_kind_is_refused_and_nothing_of_its_commit_is_stored(
        self, probe: Probe
    ) -> None:
        await probe.commit(draft("a"), entries=(EntryRecord("run", "r", status="running", fence=1),))
        before = await probe.dump()
        for kind in ("note", "", "Run", "run\0", "\ud800", "kind " * 200):
            stray = EntryRecord(kind, "k", b"body")
            for fields in (
                {},
                {"merge": True},
                {"metadata": b"metadata"},
                {"fence": Fence("run", "r", 0, 1)},
            ):
                with expected(BadArgument, f"{kind[:20]!r} with {fields}"):
                    await probe.commit(draft("b"), entries=(EntryRecord("step", "s"), stray), **fields)
        renewal = Commit(
            probe.thread,
            entries=(EntryRecord("note", "k", None, lease_s=9.0),),
            fence=Fence("run", "r", 0, 1),
        )
        other = probe.of("other")
        results = await probe.backend.commit_all([renewal, Commit(other.thread, (draft("x"),)), renewal])
        assert [type(result) for result in results] == [BadArgument, Receipt, BadArgument]
        assert await other.ids() == ["x"]
        assert await probe.dump() == before

    async def test_a_reservation_lists_and_commits_and_is_only_a_hint(self, probe: Probe) -> None:
        other = probe.of("other")
        for each in (probe, other):
            await each.commit(entries=(EntryRecord("ticket", f"k {each.thread.id}", b"x", fence=NEXT),))
        query = EntryQuery("", "ticket", prefix="k ")
        for is_refused in (False, True):
            reservation = await probe.backend.reserve()
            try:
                listed = await reservation.entries(query)
                assert len(listed) == (1 if is_refused else 2)
                commits = [
                    Commit(thread, entries=(replace(entry, gone=True, expect=entry.rank),))
                    for thread, entry in listed[:1]
                ]
                if is_refused:  # by a claim that did not see it reserved
                    await reservation.release()
                    assert isinstance((await probe.backend.commit_all(commits))[0], Receipt)
                    commits = [Commit(commits[0].thread, entries=commits[0].entries)]
                (result,) = await reservation.commit_all(commits)
                assert isinstance(result, EntryHeld if is_refused else Receipt)
            finally:
                await reservation.release()
        assert await probe.backend.entries(query) == []

    async def test_every_kind_of_entry_is_kept(self, probe: Probe) -> None:
        kinds = [kind for kind in KINDS if kind != OUTBOX]  # a pair of stores reads these itself
        await probe.commit(entries=tuple(EntryRecord(kind, "k", kind.encode()) for kind in kinds))
        for kind in kinds:
            assert await probe.entries(kind) == [EntryRecord(kind, "k", kind.encode())]

    async def test_an_entry_comes_back_as_it_was_sent(self, probe: Probe) -> None:
        sent = EntryRecord(
            "run", "r", bytes(range(256)), "running", epoch=1, fence=2, revision=3, until=4, clock="c"
        )
        receipt = await probe.commit(entries=(sent,))
        assert receipt.entries == (sent,)
        assert await probe.backend.entries(EntryQuery("", "run", thread=probe.thread)) == [
            (probe.thread, sent)
        ]

    async def test_an_entry_gives_way_to_an_equal_or_greater_rank_only(self, probe: Probe) -> None:
        for body, (epoch, fence, revision), wins in (
            (b"a", (1, 5, 5), True),
            (b"b", (1, 5, 4), False),
            (b"c", (1, 4, 9), False),
            (b"d", (0, 9, 9), False),
            (b"e", (1, 5, 5), True),
            (b"f", (1, 5, 6), True),
            (b"g", (1, 6, 0), True),
            (b"h", (2, 0, 0), True),
        ):
            entry = EntryRecord("step", "n", body, epoch=epoch, fence=fence, revision=revision)
            if wins:
                assert (await probe.commit(entries=(entry,))).entries == (entry,)
            else:
                with pytest.raises(EntryHeld):
                    await probe.commit(entries=(entry,))
            assert (entry in await probe.entries("step")) == wins

    async def test_an_entry_is_removed(self, probe: Probe) -> None:
        await probe.commit(entries=(EntryRecord("step", "n", fence=2), EntryRecord("step", "m")))
        await probe.commit(
            entries=(
                EntryRecord("step", "n", fence=2, gone=True),
                EntryRecord("step", "never there", gone=True),
            )
        )
        assert await _keys(probe, "step") == ["m"]
        await probe.commit(entries=(EntryRecord("step", "n", fence=0, expect=ABSENT),))
        assert await _keys(probe, "step") == ["m", "n"]

    async def test_entries_are_removed_and_put_again_in_one_group(self, probe: Probe) -> None:
        """Tickets of a queue: a group may claim what it has just put, and put it again."""
        ticket = EntryRecord("ticket", "5:agent\nkey", b"t", fence=1)
        gone, thread = replace(ticket, gone=True), probe.thread
        other = probe.of("other")
        group = [
            Commit(thread, entries=(ticket, EntryRecord("run", "r", b"r", "released"))),
            Commit(thread, (draft("a"),), entries=(gone,)),
            Commit(other.thread, entries=(ticket,)),
            Commit(thread, entries=(replace(ticket, body=b"again", expect=ABSENT),)),
            Commit(thread, entries=(replace(gone, expect=(0, 9, 0)),)),
            Commit(other.thread, entries=(replace(gone, expect=ticket.rank), EntryRecord("run", "s"))),
        ]
        results = await probe.backend.commit_all(group)
        assert [type(result) for result in results] == [*[Receipt] * 4, EntryHeld, Receipt]
        assert [
            (key, entry.body) for key, entry in await probe.backend.entries(EntryQuery("", "ticket"))
        ] == [(thread, b"again")]
        assert await _keys(probe, "run") == ["r", "s"]
        for removed in (gone, gone):
            await probe.commit(entries=(removed,))
        assert await _keys(probe, "ticket") == []
        for key in (thread, other.thread, None):
            assert await probe.backend.audit(key) == []

    async def test_an_entry_is_removed_only_as_expected(self, probe: Probe) -> None:
        await probe.commit(entries=(EntryRecord("lock", "l", b"theirs", fence=2),))
        with pytest.raises(EntryHeld):
            await probe.commit(entries=(EntryRecord("lock", "l", fence=1, expect=(0, 1, 0), gone=True),))
        assert len(await probe.entries("lock")) == 1
        await probe.commit(entries=(EntryRecord("lock", "l", fence=2, expect=(0, 2, 0), gone=True),))
        assert await probe.entries("lock") == []

    async def test_offering_what_is_stored_is_done_already_whatever_it_expects(self, probe: Probe) -> None:
        """The reply may have been lost: its repetition must not fail its own condition."""
        taken = EntryRecord(
            "lock", "l", b"mine", "held", fence=1, expect=ABSENT, expect_lapsed=True, lease_s=3600
        )
        for _ in range(2):
            await probe.commit(entries=(taken,))
        assert [entry.body for entry in await probe.entries("lock")] == [b"mine"]
        with pytest.raises(EntryHeld):
            await probe.commit(entries=(EntryRecord("lock", "l", b"theirs", "held", fence=1, expect=ABSENT),))

    async def test_the_next_fence_was_never_given_before(self, probe: Probe) -> None:
        fences = []
        for number in range(4):
            body = b"%d" % number
            receipt = await probe.commit(entries=(EntryRecord("lock", f"{number % 2}", body, fence=NEXT),))
            fences.append(receipt.entries[0].fence)
            await probe.commit(entries=(EntryRecord("lock", f"{number % 2}", gone=True),))
        await probe.commit(removal=Removal(everything=True))
        fences.append((await probe.commit(entries=(EntryRecord("lock", "0", fence=NEXT),))).entries[0].fence)
        assert fences == sorted(set(fences))
        assert fences[0] > 0

    async def test_a_missing_body_keeps_the_stored_one_and_the_status(self, probe: Probe) -> None:
        await probe.commit(entries=(EntryRecord("run", "r", b"body", "running", fence=1),))
        await probe.commit(entries=(EntryRecord("run", "r", None, fence=1, revision=1, lease_s=3600),))
        (renewed,) = await probe.entries("run")
        assert (renewed.body, renewed.status, renewed.revision) == (b"body", "running", 1)
        await probe.commit(entries=(EntryRecord("run", "r", None, "completed", fence=1, revision=2),))
        (ended,) = await probe.entries("run")
        assert (ended.body, ended.status) == (b"body", "completed")

    # Leases

    async def test_a_lease_runs_by_the_clock_of_the_store(self, trial: Trial) -> None:
        probe = await trial.probe()
        taken = (
            await probe.commit(entries=(EntryRecord("lock", "l", b"a", fence=1, lease_s=3600),))
        ).entries[0]
        assert (taken.lease_s, taken.until > 0, taken.clock != "") == (None, True, True)
        take = EntryRecord("lock", "l", b"b", fence=2, expect=(0, 1, 0), expect_lapsed=True, lease_s=3600)
        with pytest.raises(EntryHeld) as refusal:
            await probe.commit(entries=(take,))
        assert refusal.value.stored == taken
        short = (await probe.commit(entries=(replace(taken, key="m", until=0, lease_s=0.05),))).entries[0]
        await trial.sleep(0.07)
        assert (await _keys(probe, "lock", lapsed=False), await _keys(probe, "lock", lapsed=True)) == (
            ["l"],
            ["m"],
        )
        receipt = await probe.commit(entries=(replace(take, key="m"),))
        assert receipt.entries[0].until - short.until > 3500 * 1_000_000
        assert await probe.entries("lock") == [taken, *receipt.entries]

    async def test_a_lease_by_another_clock_has_lapsed(self, probe: Probe) -> None:
        """A lease from before the machine booted was timed by a clock that no longer exists."""
        await probe.commit(
            entries=(EntryRecord("lock", "l", b"old", fence=1, until=1 << 62, clock="a former boot"),)
        )
        assert await _keys(probe, "lock", lapsed=True) == ["l"]
        await probe.commit(entries=(EntryRecord("lock", "l", b"new", fence=2, expect_lapsed=True),))
        assert [entry.body for entry in await probe.entries("lock")] == [b"new"]

    async def test_a_wall_time_is_stored_as_it_is_and_counts_by_the_clock_of_the_store(
        self, probe: Probe
    ) -> None:
        """A timer: due at a moment that does not depend on a boot of the machine."""
        past, future = EntryRecord("lock", "p", b"p", until=1, clock=WALL), 1 << 52
        later = EntryRecord("lock", "f", b"f", fence=1, until=future, clock=WALL)
        for merge in (False, True):
            sent = tuple(replace(entry, key=f"{entry.key}{int(merge)}") for entry in (past, later))
            assert (await probe.commit(entries=sent, merge=merge)).entries == sent
        assert await _keys(probe, "lock", lapsed=True) == ["p0", "p1"]
        assert await _keys(probe, "lock", lapsed=False) == ["f0", "f1"]
        for thread in (None, probe.thread):
            assert await _keys(probe, "lock", lapsed=False, thread=thread) == ["f0", "f1"]
        for taken in (EntryRecord("lock", "f0", b"x", fence=2), EntryRecord("lock", "f0", gone=True)):
            for metadata in (None, b"decided by the client"):
                with pytest.raises(EntryHeld):
                    await probe.commit(entries=(replace(taken, expect_lapsed=True),), metadata=metadata)
        await probe.commit(entries=(EntryRecord("lock", "p0", expect_lapsed=True, gone=True),))
        assert await _keys(probe, "lock") == ["f0", "f1", "p1"]

    async def test_a_lease_by_wall_time_ends_so_many_seconds_from_now(self, trial: Trial) -> None:
        probe = await trial.probe()
        (record,) = (await probe.commit(draft("a"))).checkpoints
        hour = EntryRecord("lock", "hour", b"a", lease_s=3600, clock=WALL)
        moment = EntryRecord("lock", "moment", b"a", lease_s=0.05, clock=WALL)
        for metadata in (None, b"decided by the client"):
            receipt = await probe.commit(entries=(hour, moment), metadata=metadata)
            assert [entry.clock for entry in receipt.entries] == [WALL, WALL]
            assert await probe.entries("lock") == list(receipt.entries)
            left_s = (receipt.entries[0].until - record.created_at) / 1e6
            assert 3600 <= left_s < 3600 + 10 * PATIENCE_S
            await trial.sleep(0.07)
            assert await _keys(probe, "lock", lapsed=True) == ["moment"]
            assert await _keys(probe, "lock", lapsed=False) == ["hour"]

    async def test_conditions_and_lease_are_not_stored(self, probe: Probe) -> None:
        await probe.commit(
            entries=(EntryRecord("lock", "l", fence=1, until=5, expect=ABSENT, expect_lapsed=True),)
        )
        assert await probe.entries("lock") == [EntryRecord("lock", "l", fence=1, until=5)]

    async def test_a_run_that_ended_or_was_taken_over_saves_nothing_more(self, probe: Probe) -> None:
        await probe.commit(entries=(EntryRecord("run", "r", status="running", fence=1),))
        await probe.commit(draft("a"), fence=Fence("run", "r", 0, 1))
        await probe.commit(entries=(EntryRecord("run", "r", status="running", fence=2),))
        with pytest.raises(LeaseLost):
            await probe.commit(draft("b"), fence=Fence("run", "r", 0, 1))
        await probe.commit(draft("b"), fence=Fence("run", "r", 0, 2))
        await probe.commit(
            entries=(EntryRecord("run", "r", status="completed", fence=2),), fence=Fence("run", "r", 0, 2)
        )
        with pytest.raises(LeaseLost):
            await probe.commit(draft("c"), fence=Fence("run", "r", 0, 2))
        assert await probe.ids() == ["b", "a"]

    # Listing

    async def test_entries_are_found_by_kind_status_and_prefix(self, probe: Probe) -> None:
        statuses = ("running", "completed", "failed")
        entries = [EntryRecord("run", f"{n}", status=statuses[n % 3]) for n in range(7)]
        await probe.commit(entries=(*reversed(entries), EntryRecord("step", "0"), EntryRecord("run", "x%")))
        answer = await probe.backend.entries(EntryQuery("", "run", thread=probe.thread))
        assert [entry for _, entry in answer[:-1]] == entries
        assert await _keys(probe, "run", statuses=["running"]) == ["0", "3", "6"]
        assert await _keys(probe, "run", statuses=["failed", "completed"]) == ["1", "2", "4", "5"]
        assert await _keys(probe, "run", statuses=[]) == await _keys(probe, "none") == []
        assert await _keys(probe, "run", prefix="x%") == ["x%"]
        assert await _keys(probe, "run", prefix="%") == []
        page = await probe.backend.entries(EntryQuery("", "run", limit=2), timeout_s=60.0)
        assert [entry.key for _, entry in page] == ["0", "1"]

    async def test_entries_of_many_threads_are_paged_without_loss(self, probe: Probe) -> None:
        """Many threads may use the same key: a page may end between two of them."""
        keys = ["", "a", "A", "a\0", "\\", "é", "\ud800", "\U0001f600"]
        for id in ("one", "two", "three"):
            await probe.of(id).commit(entries=tuple(EntryRecord("lock", key) for key in keys))
        seen: list[tuple[ThreadKey, str]] = []
        cursor: EntryCursor | None = None
        while page := await probe.backend.entries(EntryQuery("", "lock", after=cursor, limit=2)):
            seen += [(thread, entry.key) for thread, entry in page]
            cursor = (seen[-1][1], seen[-1][0].digest)
        assert seen == sorted(seen, key=lambda pair: (escape(pair[1]), pair[0].digest))
        assert len(set(seen)) == len(seen) == 3 * len(keys)

    async def test_entries_name_their_thread_and_keep_to_their_tenant(self, probe: Probe) -> None:
        threads = [probe.of("b"), probe.of("a"), probe.of("\0\ud800")]
        for number, other in enumerate(threads):
            await other.commit(entries=(EntryRecord("run", f"{number}"),))
        await probe.of("a", "tenant").commit(entries=(EntryRecord("run", "elsewhere"),))
        answer = await probe.backend.entries(EntryQuery("", "run"))
        assert [(key, entry.key) for key, entry in answer] == [
            (other.thread, f"{number}") for number, other in enumerate(threads)
        ]
        elsewhere = await probe.backend.entries(EntryQuery("tenant", "run"))
        assert [(key.tenant, entry.key) for key, entry in elsewhere] == [("tenant", "elsewhere")]
        assert await probe.backend.entries(EntryQuery("", "run", thread=probe.thread)) == []

    async def test_entries_go_with_their_thread(self, probe: Probe) -> None:
        await probe.commit(draft("a"), entries=(EntryRecord("run", "r"), EntryRecord("lock", "l")))
        await probe.commit(removal=Removal(everything=True))
        assert await _keys(probe, "run") == await _keys(probe, "lock") == []

    async def test_a_thread_of_entries_alone_is_listed_if_their_kind_says_so(self, probe: Probe) -> None:
        kinds = [kind for kind in KINDS.values() if kind.name != OUTBOX]  # a pair reads those itself
        for kind in kinds:
            other = probe.of(kind.name)
            await other.commit(entries=(EntryRecord(kind.name, "key", b"body", "open"),))
            row = await other.row()
            assert (row is not None) == kind.lists, kind.name
            if row is not None:
                assert (row.checkpoints, row.head, row.metadata) == (0, None, None)
            assert await probe.backend.audit(other.thread) == []
        listing = sorted(kind.name for kind in kinds if kind.lists)
        newest = ThreadQuery("", newest=True)
        assert [row.id for row in await probe.backend.threads(ThreadQuery(""))] == listing
        assert sorted(row.id for row in await probe.backend.threads(newest)) == listing
        assert (await probe.backend.totals("")).threads == len(listing)
        for name in listing[::2]:
            await probe.of(name).commit(entries=(EntryRecord(name, "key", gone=True),))
        assert [row.id for row in await probe.backend.threads(ThreadQuery(""))] == listing[1::2]
        for name in listing[1::2]:
            receipt = await probe.of(name).commit(removal=Removal(everything=True, leaves_tombstones=True))
            assert receipt.removed == 1
        assert await probe.backend.threads(ThreadQuery("")) == await probe.backend.threads(newest) == []
        assert await probe.backend.totals("") == Totals()
        assert await probe.backend.audit(None) == []
