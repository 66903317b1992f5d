"""Ids are any text. No id reaches, hides or is taken for another, on any backend."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.backend import EntryQuery, EntryRecord, HistoryQuery, Removal, ThreadQuery, escape
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, draft, write

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
    async def test_any_text_names_a_thread_of_its_own(self, probe: Probe) -> None:
        for number, id in _numbered():
            await probe.of(id).save("x", chunk(f"{number}"), step=number)
        for number, id in _numbered():
            records = await probe.of(id).records()
            assert [record.step for record in records] == [number], repr(id)
            assert list((await probe.of(id).data()).values()) == [chunk(f"{number}")[1]], repr(id)
        rows = await probe.backend.threads(ThreadQuery("", limit=1000))
        assert sorted(row.id for row in rows) == sorted(IDS)
        await probe.of("a").commit(removal=Removal(everything=True))
        assert len(await probe.backend.threads(ThreadQuery("", limit=1000))) == len(IDS) - 1

    async def test_any_text_names_a_checkpoint_of_its_own(self, probe: Probe) -> None:
        await probe.commit(*(draft(id, parent=id, run=id, step=number) for number, id in _numbered()))
        for number, id in _numbered():
            record = (await probe.backend.read(probe.thread, "", id)).record
            assert record is not None and record.step == number, repr(id)
            assert (record.id, record.parent, record.run) == (id, id, id)
            assert (await probe.commit(draft(id))).existing == record
            assert [
                listed.id
                for listed in (await probe.backend.history(HistoryQuery(probe.thread, "", run=id)))[1]
            ] == [id]
        await probe.commit(removal=Removal(checkpoints=(("", "a"), ("", "\0"), ("", "\\0"))))
        assert len(await probe.records()) == len(IDS) - 3

    async def test_any_text_names_a_namespace_of_its_own(self, probe: Probe) -> None:
        drafts = (draft("x", namespace=id, step=number) for number, id in _numbered())
        await probe.commit(*drafts, draft("x", step=-1))
        await probe.commit(*(draft("y", namespace=id) for id in IDS))
        for number, id in _numbered():
            newest, first = await probe.records(id)
            assert (first.namespace, first.step, newest.parent) == (id, number, "x"), repr(id)
        assert [record.step for record in await probe.records("")] == [-1]

    async def test_any_text_names_a_task_a_channel_and_a_path(self, probe: Probe) -> None:
        sent = [write(id, id, namespace=id, channel=id, path=id, body=b"%d" % n) for n, id in _numbered()]
        tasks = [write("x", id, body=b"%d" % n) for n, id in _numbered()]
        await probe.commit(writes=(*sent, *tasks))
        for number, id in _numbered():
            assert await probe.backend.writes(probe.thread, [(id, id)]) == [sent[number]], repr(id)
        writes = await probe.backend.writes(probe.thread, [("", "x")])
        assert sorted(writes, key=lambda record: int(record.body)) == tasks

    async def test_any_text_names_an_entry(self, probe: Probe) -> None:
        await probe.commit(
            entries=tuple(EntryRecord("step", id, b"%d" % number) for number, id in _numbered())
        )
        for number, id in _numbered():
            entries = await probe.backend.entries(
                EntryQuery("", "step", thread=probe.thread, prefix=id, limit=len(IDS))
            )
            assert [entry.body for _, entry in entries if entry.key == id] == [b"%d" % number], repr(id)
            entries = await probe.backend.entries(EntryQuery("", "step", prefix=id))
            assert [entry.key for _, entry in entries] == [key for key in ORDERED if key.startswith(id)], (
                repr(id)
            )
        assert [entry.key for entry in await probe.entries("step")] == ORDERED

    async def test_any_text_is_found_again_by_another_handle_and_by_prefix(self, probe: Probe) -> None:
        for id in IDS:
            await probe.of(id).commit(metadata=id.encode("utf-8", "surrogatepass"))
        for id in IDS:
            rows = await probe.backend.threads(ThreadQuery("", prefix=id, limit=1))
            assert [row.id for row in rows] == [id]
            assert rows[0].metadata == id.encode("utf-8", "surrogatepass")
