"""Listing threads: by escaped id, by prefix, page by page, never another tenant's."""

from __future__ import annotations

from outlive.backend import EntryRecord, Removal, ThreadQuery, Totals, escape
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, draft, write
from outlive.testing.trial import Trial

ONE = chunk("one", 100)


class ThreadContract(Contract):
    async def test_threads_are_listed_in_order_of_their_escaped_ids(self, probe: Probe) -> None:
        ids = ["b", "a", "B", "é", "\U0001f600", "\uffff", "a\0", "a\\", "a ", "a0", "\ud800", "ab", "%"]
        for id in ids:
            await probe.of(id).save("x")
        assert [row.id for row in await probe.backend.threads(ThreadQuery(""))] == sorted(ids, key=escape)

    async def test_a_prefix_is_taken_literally(self, probe: Probe) -> None:
        ids = [
            "a",
            "ab",
            "A",
            "a%",
            "a_",
            "a%b",
            "a\\",
            "a\\b",
            "a\0",
            "a\0b",
            "a\ud800",
            "b",
            "a*",
            "a?",
            "[a]",
        ]
        for id in ids:
            await probe.of(id).save("x")
        for prefix in ("", "a", "A", "a%", "a_", "a\\", "a\0", "a\ud800", "a*", "[", "c", "a\\b"):
            listed = [row.id for row in await probe.backend.threads(ThreadQuery("", prefix=prefix))]
            assert listed == sorted((id for id in ids if id.startswith(prefix)), key=escape), repr(prefix)

    async def test_a_page_starts_after_an_id_that_may_be_gone(self, probe: Probe) -> None:
        for id in ("a", "b", "c", "d", "e"):
            await probe.of(id).save("x")
        assert [row.id for row in await probe.backend.threads(ThreadQuery("", limit=2))] == ["a", "b"]
        await probe.of("b").commit(removal=Removal(everything=True))
        assert [row.id for row in await probe.backend.threads(ThreadQuery("", after="b", limit=2))] == [
            "c",
            "d",
        ]
        assert [row.id for row in await probe.backend.threads(ThreadQuery("", after="bb", limit=9))] == [
            "c",
            "d",
            "e",
        ]
        assert await probe.backend.threads(ThreadQuery("", after="e")) == []

    async def test_the_newest_come_first_page_by_page(self, trial: Trial) -> None:
        probe = await trial.probe()
        for n in range(9):
            await probe.of(f"{n}").save("x", ONE)
        await probe.of("elsewhere", "tenant").save("x")
        await probe.of("unlisted").commit(entries=(EntryRecord("step", "s"),))
        await probe.of("3").commit(entries=(EntryRecord("run", "r"),))
        await probe.of("5").commit(removal=Removal(everything=True))
        await trial.sleep(1.1)  # an index may be by the second
        for id in ("7", "2", "7"):
            await probe.of(id).save(f"later {id}", (b"%16d" % len(id), b"data")) if id == "2" else None
            await probe.of(id).commit(metadata=b"later")
        expected_ids = ["7", "2", "3", "8", "6", "4", "1", "0"]
        rows = await probe.backend.threads(ThreadQuery("", newest=True))
        assert [row.id for row in rows] == expected_ids
        assert [row.updated_at for row in rows] == sorted((row.updated_at for row in rows), reverse=True)
        assert rows == [await probe.of(id).row() for id in expected_ids]
        for limit in (1, 3, 8):
            seen: list[str] = []
            before = None
            while page := await probe.backend.threads(
                ThreadQuery("", newest=True, before=before, limit=limit, heads=False)
            ):
                seen += [row.id for row in page]
                before = (page[-1].updated_at, page[-1].id)
            assert seen == expected_ids

    async def test_totals_add_up_what_is_listed(self, probe: Probe) -> None:
        assert await probe.backend.totals("") == Totals(0, 0, 0)
        for n in range(5):
            await probe.of(f"{n}").save("x", ONE)
        await probe.of("0").save("y")
        await probe.of("1").commit(removal=Removal(everything=True))
        await probe.of("written").commit(writes=(write("a", "task"),))
        await probe.of("submitted").commit(entries=(EntryRecord("run", "r"),))
        await probe.of("unlisted").commit(entries=(EntryRecord("step", "s"),))
        await probe.of("0", "tenant").save("x")
        rows = await probe.backend.threads(ThreadQuery(""))
        stored = sum(row.stored for row in rows)
        assert await probe.backend.totals("") == Totals(len(rows), 5, stored)
        assert (await probe.backend.totals("tenant")).threads == 1

    async def test_prefix_and_page_go_together(self, probe: Probe) -> None:
        for id in ("a", "b", "b1", "b2", "b3", "c"):
            await probe.of(id).save("x")
        for after, expected in (
            (None, ["b", "b1"]),
            ("a", ["b", "b1"]),
            ("b1", ["b2", "b3"]),
            ("b3", []),
            ("c", []),
        ):
            rows = await probe.backend.threads(ThreadQuery("", prefix="b", after=after, limit=2))
            assert [row.id for row in rows] == expected

    async def test_a_row_tells_what_the_thread_holds(self, probe: Probe) -> None:
        first = await probe.save("a", ONE, body=b"12345")
        await probe.commit(
            draft("b", body=b"123"), draft("s", namespace="sub", body=b"1"), metadata=b"metadata"
        )
        row = await probe.row()
        inventory = await probe.backend.inventory(probe.thread)
        assert row is not None and row.head is not None
        assert (row.id, row.checkpoints, row.stored, row.seq, row.epoch) == ("thread", 3, 109, 3, 0)
        assert (row.generation, row.revision) == (inventory.generation, inventory.revision)
        assert (row.metadata, row.metadata_version, row.head.id) == (b"metadata", 1, "b")
        assert abs(row.created_at - first.created_at) < 60_000_000
        assert row.updated_at >= row.created_at

    async def test_metadata_counts_its_versions_and_stays_until_it_is_changed(self, probe: Probe) -> None:
        await probe.commit(metadata=b"one", metadata_version=0)
        await probe.commit(draft("a"))
        await probe.commit(metadata=b"two", metadata_version=1)
        row = await probe.row()
        assert row is not None and (row.metadata, row.metadata_version) == (b"two", 2)

    async def test_one_thread_is_asked_for_by_its_id(self, probe: Probe) -> None:
        for id in ("a", "ab", "A", "a\0"):
            await probe.of(id).save(id)
        for id in ("a", "ab", "A", "a\0"):
            (row,) = await probe.backend.threads(ThreadQuery("", only=id))
            assert (row.id, row.head is not None and row.head.id) == (id, id)
        assert (
            await probe.backend.threads(ThreadQuery("", only="b"))
            == await probe.backend.threads(ThreadQuery("tenant", only="a"))
            == []
        )

    async def test_a_thread_is_listed_while_it_has_something_of_its_own(self, probe: Probe) -> None:
        async def listed() -> bool:
            assert bool(await probe.backend.threads(ThreadQuery(""))) == (await probe.row() is not None)
            return await probe.row() is not None

        await probe.commit(draft("a"), writes=(write("later", "task"),))
        assert await listed()
        await probe.commit(removal=Removal(checkpoints=(("", "a"),)))
        assert await listed()
        await probe.commit(removal=Removal(checkpoints=(("", "later"),)))
        assert not await listed()
        await probe.commit(metadata=b"metadata")
        assert await listed()
        await probe.commit(entries=(EntryRecord("run", "r"), EntryRecord("step", "s")))
        await probe.commit(removal=Removal(everything=True))
        assert not await listed()
        await probe.commit(entries=(EntryRecord("run", "r"), EntryRecord("step", "s")))
        assert await listed()
        await probe.commit(entries=(EntryRecord("run", "r", gone=True),))
        assert not await listed()

    async def test_chunks_alone_make_no_thread(self, probe: Probe) -> None:
        await probe.commit(chunks=(ONE,))
        assert await probe.backend.threads(ThreadQuery("")) == []

    async def test_tenants_never_see_each_other(self, probe: Probe) -> None:
        pairs = [
            ("", "t"),
            ("a", "t"),
            ("A", "t"),
            ("a\0", "t"),
            ("a", "\0t"),
            ("a\\0", "t"),
            ("\ud800", "t"),
        ]
        for number, (tenant, id) in enumerate(pairs):
            own = chunk(f"{number}")
            await probe.of(id, tenant).commit(
                draft(f"{number}", own[0]),
                chunks=(own,),
                writes=(write(f"{number}", "task"),),
                metadata=b"%d" % number,
            )
        for number, (tenant, id) in enumerate(pairs):
            handle = probe.of(id, tenant)
            assert await handle.ids() == [f"{number}"]
            assert list(await handle.data()) == [chunk(f"{number}")[0]]
            listed = [row.id for row in await probe.backend.threads(ThreadQuery(tenant))]
            assert listed == sorted((other for own, other in pairs if own == tenant), key=escape)
        await probe.of("t", "a").commit(removal=Removal(everything=True))
        assert [row.id for row in await probe.backend.threads(ThreadQuery("a"))] == ["\0t"]
        assert await probe.of("t").ids() == ["0"]

    async def test_threads_made_at_once_are_all_there(self, trial: Trial) -> None:
        probe = await trial.probe()
        works = [lambda n=n: probe.of(f"{n:02}").save("x") for n in range(20)]
        results = await trial.together(*works)
        assert [record.seq for record in results] == [1] * 20
        assert len(await probe.backend.threads(ThreadQuery(""))) == 20
