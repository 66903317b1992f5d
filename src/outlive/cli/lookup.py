"""Finds threads, checkpoints and runs by id, by the beginning of an id, or by position.

A checkpoint is also `@` (the head), `@7` (the one with seq 7) and `@-1` (the one before the head).
An exact id always comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from outlive.backend import EntryQuery, ThreadQuery
from outlive.errors import BadArgument
from outlive.runtime.runtime import run_now
from outlive.view.escape import escape_terminal, quote_argument, unescape

if TYPE_CHECKING:
    from outlive.backend import CheckpointRecord, ThreadRecord
    from outlive.runs.lease import RunInfo
    from outlive.sync.thread import Thread
    from outlive.view.opened_store import OpenedStore

_MATCHES = 6  # that an error lists


def find_thread(store: OpenedStore, text: str, *, is_exact: bool = False) -> str:
    """Return the id of the only thread that matches."""
    backend, tenant = store.engine.backend, store.tenant

    def match(id: str) -> list[str]:
        if run_now(backend.threads(ThreadQuery(tenant, only=id, heads=False))):
            return [id]
        if is_exact:
            return []
        rows: list[ThreadRecord] = run_now(
            backend.threads(ThreadQuery(tenant, prefix=id, limit=_MATCHES, heads=False))
        )
        return [row.id for row in rows]

    return _only_match("thread", text, match, "outlive ls lists all threads", is_exact)


def open_thread(store: OpenedStore, text: str, namespace: str) -> Thread:
    """Return the only thread that matches, in the only namespace that matches."""
    id = find_thread(store, text)
    thread = store.thread(id, namespace=namespace)
    if not namespace or thread.exists():
        return thread
    names = {record.namespace for record in run_now(store.engine.records(store.key(id), None))}

    def match(prefix: str) -> list[str]:
        return sorted(name for name in names if name.startswith(prefix))[:_MATCHES]

    hint = f"outlive history --all-namespaces {quote_argument(id)} lists all its checkpoints"
    return store.thread(
        id, namespace=_only_match("namespace", namespace, match, hint, False, f" in thread {id!r}")
    )


def find_prefix(store: OpenedStore, text: str) -> str:
    """Return a prefix of ids as given, unless only its unescaped form matches threads."""
    if "\\" not in text or next(iter(store.threads(prefix=text, limit=1)), None) is not None:
        return text
    return unescape(text)


def find_checkpoint(
    store: OpenedStore, thread: Thread, text: str | None, *, is_exact: bool = False, is_anywhere: bool = False
) -> CheckpointRecord:
    """Return the only checkpoint that matches; None means the head. `is_anywhere`: in any namespace."""
    engine, key = store.engine, store.key(thread.id)
    if text != "":
        result = run_now(engine.backend.read(key, thread.namespace, text, chunks=False))
        if result.record is not None:
            return result.record
    # A position or the beginning of an id: read all records.
    records = run_now(engine.records(key, None if is_anywhere else thread.namespace))
    quoted = quote_argument(thread.id)
    if not records:
        where = f"namespace {thread.namespace!r}" if thread.namespace else "the root namespace"
        hint = f"outlive history --all-namespaces {quoted} lists all its checkpoints"
        raise BadArgument(f"thread {thread.id!r} has no checkpoint in {where}; {hint}")
    if (record := _at_position(records, text or "")) is not None:
        return record
    by_id = {record.id: record for record in records}

    def match(prefix: str) -> list[str]:
        return [id for id in by_id if id == prefix or (id.startswith(prefix) and not is_exact)]

    hint = f"outlive history {quoted} lists all checkpoints"
    return by_id[_only_match("checkpoint", text or "", match, hint, is_exact, f" in thread {thread.id!r}")]


def _at_position(records: list[CheckpointRecord], text: str) -> CheckpointRecord | None:
    position = re.fullmatch(r"@(-?\d*)", text)
    if position is None or position[1] == "-":
        return None
    number = int(position[1] or 0)
    if number > 0:
        matches = [record for record in records if record.seq == number]
        if len(matches) > 1:
            raise BadArgument(f"{text} matches several checkpoints: {_list(record.id for record in matches)}")
    else:
        matches = records[-number : 1 - number]
    if not matches:
        raise BadArgument(f"no checkpoint {text}; the newest of {len(records):,} is @{records[0].seq}")
    return matches[0]


def find_run(store: OpenedStore, text: str, *, thread: str | None = None, is_exact: bool = False) -> RunInfo:
    """Return the only run that matches, in one thread if that is given."""
    from outlive.runs.lease import RUN

    key = None if thread is None else store.key(find_thread(store, thread))

    def find_ids(id: str) -> list[str]:
        entries = run_now(
            store.engine.backend.entries(EntryQuery(store.tenant, RUN, thread=key, prefix=id, limit=_MATCHES))
        )
        ids = list(dict.fromkeys(entry.key for _, entry in entries))
        return [id] if id in ids else [] if is_exact else ids

    id = _only_match("run", text, find_ids, "outlive runs --all lists all runs", is_exact)
    run = store.find_run(id, thread=None if key is None else key.id)
    if run is None:
        raise BadArgument(f"run '{escape_terminal(id)}' was deleted")
    return run


def _only_match(
    noun: str, text: str, match: Callable[[str], list[str]], hint: str, is_exact: bool, where: str = ""
) -> str:
    matches = match(text) if text else []
    if not matches and "\\" in text:
        matches = match(unescape(text))
    if len(matches) == 1:
        return matches[0]
    if not matches:
        how = "with --yes the id must be complete; " if is_exact else ""
        raise BadArgument(f"no {noun} '{escape_terminal(text)}'{where}; {how}{hint}")
    raise BadArgument(
        f"'{escape_terminal(text)}' matches several {noun}s: {_list(matches)}; give more of the id"
    )


def _list(ids: Iterable[str]) -> str:
    names = [escape_terminal(id) for id in ids]
    return ", ".join(names[: _MATCHES - 1]) + (", …" if len(names) >= _MATCHES else "")
