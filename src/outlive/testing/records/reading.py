"""Reading one checkpoint, pages of history, chunks, and sharing chunks with another thread."""

from __future__ import annotations

from outlive.backend import CachedHead, Cursor, HistoryQuery, Removal, ThreadQuery
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, draft, write
from outlive.testing.trial import Trial

ONE, TWO, THREE = chunk("one", 100), chunk("two", 200), chunk("three", 300)


async def _pages(probe: Probe, limit: int, namespace: str | None = "") -> list[list[str]]:
    pages: list[list[str]] = []
    cursor: Cursor | None = None
    while True:
        _, page = await probe.backend.history(
            HistoryQuery(probe.thread, namespace, before=cursor, limit=limit)
        )
        if not page:
            return pages
        pages.append([record.id for record in page])
        cursor = page[-1].order


class ReadingContract(Contract):
    # Pages with chunks

    async def test_a_page_brings_the_chunks_of_its_records_once(self, probe: Probe) -> None:
        assert (await probe.backend.states(HistoryQuery(probe.thread, None), max_bytes=1000)).records == []
        await probe.commit(draft("a", ONE[0]), chunks=(ONE,), writes=(write("a", "t", chunks=(ONE[0],)),))
        await probe.commit(draft("b", ONE[0], TWO[0], run="r", namespace="sub"), chunks=(TWO,))
        await probe.commit(draft("c", TWO[0], THREE[0], THREE[0]), chunks=(THREE,))
        await probe.commit(draft("d"))
        generation = await probe.generation()
        for namespace, options, ids, chunks in (
            (None, {}, ["d", "c", "b", "a"], (ONE, TWO, THREE)),
            ("", {}, ["d", "c", "a"], (ONE, TWO, THREE)),
            ("sub", {}, ["b"], (ONE, TWO)),
            (None, {"run": "r"}, ["b"], (ONE, TWO)),
            (None, {"limit": 2}, ["d", "c"], (TWO, THREE)),
            ("none", {}, [], ()),
        ):
            page = await probe.backend.states(
                HistoryQuery(probe.thread, namespace, **options), max_bytes=1000
            )
            assert ([record.id for record in page.records], page.is_cut) == (ids, False)
            assert page.chunks == dict(chunks)
            assert page.generation == generation
            _, same = await probe.backend.history(HistoryQuery(probe.thread, namespace, **options))
            assert page.records == same

    async def test_a_page_ends_before_its_chunks_are_too_much(self, probe: Probe) -> None:
        for id, chunks in (("a", (ONE,)), ("b", (ONE, TWO)), ("c", (THREE, TWO)), ("d", (THREE,))):
            await probe.commit(draft(id, *(name for name, _ in chunks)), chunks=chunks)
        for max_bytes, expected in (
            (0, ["d", "c", "b", "a"]),
            (300, ["d", "c", "ba"]),
            (499, ["d", "c", "ba"]),
            (500, ["dc", "ba"]),
            (600, ["dcba"]),
        ):
            pages, cursor = [], None
            while True:
                page = await probe.backend.states(
                    HistoryQuery(probe.thread, "", before=cursor), max_bytes=max_bytes
                )
                pages.append("".join(record.id for record in page.records))
                named = {name for record in page.records for name in record.chunks}
                assert page.chunks.keys() == named
                if not page.is_cut:
                    break
                cursor = page.records[-1].order
            assert pages == expected, max_bytes

    # One checkpoint

    async def test_a_checkpoint_is_found_by_id_in_its_namespace(self, probe: Probe) -> None:
        await probe.commit(draft("a", ONE[0]), draft("b", TWO[0], namespace="sub"), chunks=(ONE, TWO))
        for namespace, id, stored in (("", "a", ONE), ("sub", "b", TWO)):
            assert (await probe.backend.read(probe.thread, namespace, id)).chunks == dict((stored,))
            assert (await probe.backend.read(probe.thread, namespace)).chunks == dict((stored,))
        assert (await probe.backend.read(probe.thread, "sub", "a")).record is None
        assert (await probe.backend.read(probe.thread, "", "b")).record is None
        assert (await probe.backend.read(probe.thread, "none")).record is None

    async def test_a_reading_holds_record_chunks_writes_and_generation_of_one_moment(
        self, probe: Probe
    ) -> None:
        own, other = write("a", "t", chunks=(TWO[0],)), write("b", "t", chunks=(THREE[0],))
        receipt = await probe.commit(draft("a", ONE[0]), chunks=(ONE, TWO, THREE), writes=(own, other))
        reading = await probe.backend.read(probe.thread, "")
        assert reading.record == receipt.checkpoints[0]
        assert (reading.chunks, reading.writes) == (dict((ONE, TWO)), (own,))
        assert reading.generation == receipt.generation

    async def test_what_the_reader_knows_is_not_sent_again(self, probe: Probe) -> None:
        sent = write("a", "t", chunks=(THREE[0],))
        await probe.commit(draft("a", ONE[0], TWO[0]), chunks=(ONE, TWO, THREE), writes=(sent,))
        known = CachedHead("a", (ONE[0], TWO[0]))
        for id in (None, "a"):
            reading = await probe.backend.read(probe.thread, "", id, known=known)
            assert (reading.record is not None, reading.chunks) == (True, dict((THREE,)))
            assert reading.writes == (sent,)

    async def test_what_the_reader_knows_of_another_time_does_not_count(self, probe: Probe) -> None:
        await probe.save("a", ONE, TWO)
        stale = (
            CachedHead("b", (ONE[0], TWO[0])),
            CachedHead("a", (ONE[0],)),
            CachedHead("a", (TWO[0], ONE[0])),
        )
        for known in stale:
            assert (await probe.backend.read(probe.thread, "", known=known)).chunks == dict((ONE, TWO))

    async def test_chunks_are_left_out_on_request(self, probe: Probe) -> None:
        await probe.commit(draft("a", ONE[0]), chunks=(ONE,), writes=(write("a", "t", chunks=(ONE[0],)),))
        reading = await probe.backend.read(probe.thread, "", chunks=False)
        assert (reading.chunks, len(reading.writes)) == ({}, 1)

    async def test_the_head_as_of_a_moment_is_the_newest_that_was_made_by_then(self, probe: Probe) -> None:
        for id, created_at in (("a", 100), ("b", 200), ("late clock", 150), ("c", 300)):
            await probe.save(id, created_at=created_at)
        await probe.save("s", namespace="sub", created_at=50)

        async def at(moment: int) -> str | None:
            record = (await probe.backend.read(probe.thread, "", at=moment)).record
            return record.id if record else None

        moments = (99, 100, 149, 150, 200, 299, 300, 10**15)
        assert [await at(moment) for moment in moments] == [
            None, "a", "a", "late clock", "late clock", "late clock", "c", "c",
        ]  # fmt: skip

    async def test_every_read_takes_a_timeout(self, probe: Probe) -> None:
        await probe.save("a", ONE)
        backend, thread = probe.backend, probe.thread
        assert (await backend.read(thread, "", timeout_s=60.0)).record is not None
        assert len((await backend.history(HistoryQuery(thread, ""), timeout_s=60.0))[1]) == 1
        assert await backend.writes(thread, None, timeout_s=60.0) == []
        assert len(await backend.threads(ThreadQuery(""), timeout_s=60.0)) == 1
        assert len((await backend.inventory(thread, timeout_s=60.0)).chunks) == 1
        assert len(await backend.fetch(thread, [ONE[0]], timeout_s=60.0)) == 1
        assert (await probe.commit(draft("b"), timeout_s=60.0)).existing is None

    # History

    async def test_history_is_newest_first_and_cut_into_pages(self, probe: Probe) -> None:
        await probe.commit(*(draft(f"{number}") for number in range(7)), draft("s", namespace="sub"))
        assert await _pages(probe, 3) == [["6", "5", "4"], ["3", "2", "1"], ["0"]]
        assert await _pages(probe, 3, None) == [["s", "6", "5"], ["4", "3", "2"], ["1", "0"]]
        assert await _pages(probe, 3, "sub") == [["s"]]
        assert await _pages(probe, 3, "none") == []

    async def test_a_page_continues_at_its_cursor_even_when_that_is_gone(self, probe: Probe) -> None:
        await probe.commit(*(draft(f"{number}") for number in range(6)))
        page = (await probe.backend.history(HistoryQuery(probe.thread, "", limit=2)))[1]
        cursor: Cursor = page[-1].order
        await probe.commit(removal=Removal(checkpoints=(("", "4"), ("", "2"))))
        rest = (await probe.backend.history(HistoryQuery(probe.thread, "", before=cursor, limit=9)))[1]
        assert [record.id for record in rest] == ["3", "1", "0"]

    async def test_pages_pass_equal_places_without_loss(self, probe: Probe) -> None:
        ids = ["a", "A", "b\\", "\0", "é", "\ud800"]
        await probe.commit(*(draft(id, seq=seq) for seq in (1, 2) for id in (f"{seq}{id}" for id in ids)))
        pages = await _pages(probe, 1)
        assert sorted(id for page in pages for id in page) == sorted(
            f"{seq}{id}" for seq in (1, 2) for id in ids
        )

    async def test_history_of_a_run_counts_only_its_own(self, probe: Probe) -> None:
        await probe.commit(
            *(draft(f"{number}", run="even" if number % 2 == 0 else "odd") for number in range(9))
        )
        page = (await probe.backend.history(HistoryQuery(probe.thread, "", run="even", limit=3)))[1]
        assert [record.id for record in page] == ["8", "6", "4"]
        rest = (
            await probe.backend.history(
                HistoryQuery(probe.thread, "", run="even", limit=3, before=page[-1].order)
            )
        )[1]
        assert [record.id for record in rest] == ["2", "0"]
        assert (await probe.backend.history(HistoryQuery(probe.thread, "", run="none")))[1] == []

    async def test_history_tells_the_generation(self, probe: Probe) -> None:
        receipt = await probe.commit(draft("a"))
        assert (await probe.backend.history(HistoryQuery(probe.thread, "")))[0] == receipt.generation

    # Chunks

    async def test_chunks_that_are_missing_are_left_out(self, probe: Probe) -> None:
        await probe.commit(chunks=(ONE, TWO))
        chunks = await probe.backend.fetch(probe.thread, [TWO[0], b"x" * 16, ONE[0], TWO[0]])
        assert chunks == dict((ONE, TWO))
        assert await probe.backend.fetch(probe.thread, []) == {}

    async def test_a_chunk_belongs_to_its_thread_alone(self, probe: Probe) -> None:
        other = probe.of("other")
        await probe.commit(chunks=(ONE,))
        await other.commit(chunks=(ONE, TWO))
        await probe.commit(removal=Removal(chunks=(ONE[0],), chunks_until=9))
        assert await probe.backend.fetch(probe.thread, [ONE[0], TWO[0]]) == {}
        assert await other.data() == dict((ONE, TWO))

    # Sharing

    async def test_shared_chunks_are_there_as_if_they_had_been_stored(self, probe: Probe) -> None:
        target = probe.of("target")
        await probe.save("a", ONE, TWO)
        before = await probe.dump()
        generation = await probe.backend.share(probe.thread, target.thread, [ONE[0], TWO[0], b"x" * 16])
        assert await target.data() == dict((ONE, TWO))
        assert generation == await target.generation()
        inventory = await target.backend.inventory(target.thread)
        assert {stamp for _, stamp in inventory.chunks.values()} == {inventory.revision}
        assert await probe.dump() == before
        await probe.commit(removal=Removal(everything=True))
        assert await target.data() == dict((ONE, TWO))

    async def test_a_target_that_is_being_filled_is_not_listed(self, probe: Probe) -> None:
        target = probe.of("target")
        await probe.save("a", ONE)
        generation = await probe.backend.share(probe.thread, target.thread, [ONE[0]])
        assert [row.id for row in await probe.backend.threads(ThreadQuery(""))] == ["thread"]
        await target.commit(draft("a", ONE[0], body=b"12345"), expect_empty=True, generation=generation)
        row = await target.row()
        assert row is not None and (row.checkpoints, row.stored) == (1, 105)

    async def test_sharing_with_a_thread_that_has_content_leaves_that_alone(self, probe: Probe) -> None:
        target = probe.of("target")
        await probe.save("a", ONE)
        await target.commit(draft("x", TWO[0], body=b"12345"), chunks=(TWO,), metadata=b"metadata")
        records = await target.records()
        for _ in range(2):
            await probe.backend.share(probe.thread, target.thread, [ONE[0]])
        row = await target.row()
        assert row is not None and (row.checkpoints, row.metadata, row.stored) == (1, b"metadata", 305)
        assert await target.records() == records
        assert await target.backend.audit(target.thread) == []

    async def test_a_sweep_between_sharing_and_the_records_is_noticed(self, probe: Probe) -> None:
        target = probe.of("target")
        await probe.save("a", ONE)
        generation = await probe.backend.share(probe.thread, target.thread, [ONE[0]])
        await target.commit(removal=Removal(chunks=(ONE[0],), chunks_until=1 << 40))
        assert await target.generation() != generation

    async def test_a_second_handle_reads_while_the_first_saves(self, trial: Trial) -> None:
        first, second = await trial.probe(), await trial.probe()
        await first.save("0", ONE)

        async def saver() -> None:
            for number in range(1, 15):
                await first.commit(draft(f"{number}", ONE[0]), chunks=(chunk(f"{number}"),))

        async def reader() -> list[int]:
            seen = []
            for _ in range(15):
                reading = await second.backend.read(second.thread, "")
                assert reading.record is not None and reading.chunks == dict((ONE,))
                seen.append(reading.record.seq)
            return seen

        errors, seen = await trial.together(saver, reader)
        assert errors is None and seen == sorted(seen)
