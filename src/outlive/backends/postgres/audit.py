"""Checking what PostgreSQL stores: counters, sums and checksums of a thread, and orphaned rows."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from outlive.backend import Backend, HistoryQuery, ThreadKey, all_records
from outlive.backends.postgres.connection import Parameter
from outlive.backends.postgres.rows import digest, entry_name, space, to_entry, to_number, to_text
from outlive.backends.postgres.statements import BAD_ROW, PROBLEMS, Statements
from outlive.errors import Corrupt

_COUNTED = (
    "{} checkpoints",
    "checkpoints that add up to {:x}",
    "{} checkpoints of the root namespace",
    "a newest checkpoint with the row checksum {:x}",
    "{} writes",
    "runs and locks that add up to {:x}",
    "steps and responses that add up to {:x}",
    "{} bytes",
)
_CHECKED = (
    PROBLEMS[BAD_ROW],
    "the list of all threads says something else than its row",
    "its metadata is not what was stored last",
    "its rows are newer than its own row says",
    "a checkpoint has other pending writes than were stored",
    "a namespace has other checkpoints than were stored",
)


class Ask(Protocol):
    """How a statement is sent."""

    def __call__(self, statement: str, *parameters: Parameter) -> Awaitable[list[list[bytes | None]]]: ...


async def audit_thread(backend: Backend, sql: Statements, ask: Ask, thread: ThreadKey) -> list[Corrupt]:
    """Compare all of a thread's rows with what its own row says, and with their checksums."""
    problems: list[Corrupt] = []
    count = len(_COUNTED)
    for cells in await ask(sql.totals, thread.digest):
        for text, stored, counted in zip(_COUNTED, cells, cells[count:], strict=False):
            if stored != counted:
                expected, seen = (text.format(to_number(cell)) for cell in (stored, counted))
                problems.append(Corrupt(f"it should have {expected}, and has {seen}", thread=thread.id))
        problems += [
            Corrupt(text, thread=thread.id)
            for text, cell in zip(_CHECKED, cells[2 * count :], strict=True)
            if cell != b"\1"
        ]
    every_record = all_records(backend, HistoryQuery(thread, None, limit=500))
    for reading in (every_record, backend.writes(thread, None)):
        try:
            await reading  # checks every checkpoint, or every write
        except Corrupt as error:
            problems.append(error)
    problems += await _audit_names(sql, ask, thread)
    return problems + await _audit_entries(sql, ask, thread)


async def _audit_names(sql: Statements, ask: Ask, thread: ThreadKey) -> list[Corrupt]:
    """Compare the digests by which checkpoints are found with what they stand for."""
    problems = []
    for namespace, id, name, place in await ask(sql.names, thread.digest):
        try:
            pair = to_text(namespace), to_text(id)
            if name != digest(*pair) or place != space(pair[0]):
                problems.append(Corrupt("its row cannot be found", thread=thread.id, checkpoint=pair[1]))
        except Corrupt as error:
            problems.append(Corrupt(error.what, thread=thread.id))
    return problems


async def _audit_entries(sql: Statements, ask: Ask, thread: ThreadKey) -> list[Corrupt]:
    problems = []
    for name, *cells in await ask(sql.entry_rows, thread.digest):
        try:
            entry = to_entry(cells, thread)
            if name != entry_name(entry.kind, entry.key):
                problems.append(Corrupt(f"{entry.kind} {entry.key!r} cannot be found", thread=thread.id))
        except Corrupt as error:
            problems.append(error if error.thread else Corrupt(error.what, thread=thread.id))
    return problems


async def audit_store(sql: Statements, ask: Ask) -> list[Corrupt]:
    """Look for rows that belong to no thread."""
    problems = []
    for table, key, count, id in await ask(sql.strays):
        rows = f"{to_number(count)} rows of table {to_text(table)!r} belong to thread number {to_number(key)}"
        problem = f"{rows}, which has no row"
        if id is not None:
            problem = "its row is gone" if table == b"roster" else "it is missing in the list of all threads"
        problems.append(Corrupt(problem, thread=None if id is None else _readable(id)))
    return problems


def _readable(id: bytes) -> str:
    try:
        return to_text(id)
    except Corrupt:
        return id.decode()
