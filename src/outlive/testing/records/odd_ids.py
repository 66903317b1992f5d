"""Ids are any text. None may reach, hide or be taken for another, whatever stands behind them."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.backend import EntryQuery, EntryRecord, HistoryQuery, Removal, ThreadQuery, escape
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Waist, chunk, draft, write

IDS = [
    "a", "A", "a/b", "a\\b", "..", ".", "../a", "/", "~", "\0", "a\0", "\0a", "\ud800", "\udfff", "\ud83d\ude00",
    "\U0001f600", "漢" * 1000, "漢" * 999 + "字", "é", "e\u0301", "lock:a", "a.writes", "a:writes", "line\nbreak", "\r",
    "CON", "con", "nul.txt", "a%", "a_", "%61", "a%2Fb", "\\", "\\\\", "\\0", "\\u0000", "\\ud800", " ", " a", "a ", "a.",
    "{a}", "*", "'", '"', "a;b", "?a=b", "#a", "\x7f", "\x1b[31m", "\u202e", "\uffff", "\ufeffa", "-", "--", "0", "None", "null",
]  # fmt: skip
ORDERED = sorted(IDS, key=escape)


def _numbered() -> Iterator[tuple[int, str]]:
    return enumerate(IDS)


class IdContract(Contract):
    async def test_any_text_names_a_thread_of_its_own(self, waist: Waist) -> None:
        for number, id in _numbered():
            await waist.of(id).save("x", chunk(f"{number}"), step=number)
        for number, id in _numbered():
            records = await waist.of(id).records()
            assert [record.step for record in records] == [number], repr(id)
            assert list((await waist.of(id).data()).values()) == [chunk(f"{number}")[1]], repr(id)
        rows = await waist.backend.threads(ThreadQuery("", limit=1000))
        assert sorted(row.id for row in rows) == sorted(IDS)
        await waist.of("a").commit(removal=Removal(everything=True))
        assert len(await waist.backend.threads(ThreadQuery("", limit=1000))) == len(IDS) - 1

    async def test_any_text_names_a_checkpoint_of_its_own(self, waist: Waist) -> None:
        await waist.commit(*(draft(id, parent=id, run=id, step=number) for number, id in _numbered()))
        for number, id in _numbered():
            record = (await waist.backend.read(waist.thread, "", id)).record
            assert record is not None and record.step == number, repr(id)
            assert (record.id, record.parent, record.run) == (id, id, id)
            assert (await waist.commit(draft(id))).existing == record
            assert [
                held.id for held in (await waist.backend.history(HistoryQuery(waist.thread, "", run=id)))[1]
            ] == [id]
        await waist.commit(removal=Removal(checkpoints=(("", "a"), ("", "\0"), ("", "\\0"))))
        assert len(await waist.records()) == len(IDS) - 3

    async def test_any_text_names_a_namespace_of_its_own(self, waist: Waist) -> None:
        drafts = (draft("x", namespace=id, step=number) for number, id in _numbered())
        await waist.commit(*drafts, draft("x", step=-1))
        await waist.commit(*(draft("y", namespace=id) for id in IDS))
        for number, id in _numbered():
            newest, first = await waist.records(id)
            assert (first.namespace, first.step, newest.parent) == (id, number, "x"), repr(id)
        assert [record.step for record in await waist.records("")] == [-1]

    async def test_any_text_names_a_task_a_channel_and_a_path(self, waist: Waist) -> None:
        sent = [write(id, id, namespace=id, channel=id, path=id, body=b"%d" % n) for n, id in _numbered()]
        tasks = [write("x", id, body=b"%d" % n) for n, id in _numbered()]
        await waist.commit(writes=(*sent, *tasks))
        for number, id in _numbered():
            assert await waist.backend.writes(waist.thread, [(id, id)]) == [sent[number]], repr(id)
        found = await waist.backend.writes(waist.thread, [("", "x")])
        assert sorted(found, key=lambda held: int(held.body)) == tasks

    async def test_any_text_names_an_entry(self, waist: Waist) -> None:
        await waist.commit(
            entries=tuple(EntryRecord("step", id, b"%d" % number) for number, id in _numbered())
        )
        for number, id in _numbered():
            found = await waist.backend.entries(
                EntryQuery("", "step", thread=waist.thread, prefix=id, limit=len(IDS))
            )
            assert [entry.body for _, entry in found if entry.key == id] == [b"%d" % number], repr(id)
            found = await waist.backend.entries(EntryQuery("", "step", prefix=id))
            assert [entry.key for _, entry in found] == [key for key in ORDERED if key.startswith(id)], repr(
                id
            )
        assert [entry.key for entry in await waist.entries("step")] == ORDERED

    async def test_any_text_is_found_again_by_another_handle_and_by_prefix(self, waist: Waist) -> None:
        for id in IDS:
            await waist.of(id).commit(info=id.encode("utf-8", "surrogatepass"))
        for id in IDS:
            rows = await waist.backend.threads(ThreadQuery("", prefix=id, limit=1))
            assert [row.id for row in rows] == [id]
            assert rows[0].info == id.encode("utf-8", "surrogatepass")
