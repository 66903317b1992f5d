"""What an argument means: a thread, a checkpoint or a run by its id, by the beginning of it, or by its place.

A checkpoint is also `@` (the head), `@7` (that with seq 7) and `@-1` (the one before the head). An id that has this very spelling
always comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from outlive.backend import EntryQuery, ThreadQuery
from outlive.cli.output.escape import as_argument, meant, shown
from outlive.errors import AmbiguousRun, BadArgument, Corrupt, KeyMissing
from outlive.runtime.runtime import run_now

if TYPE_CHECKING:
    from outlive.backend import CheckpointRecord, ThreadKey, ThreadRow
    from outlive.layers.replication.pair import PairRecord
    from outlive.runs.lease import RunInfo
    from outlive.sync.facades import Store, Thread
    from outlive.threads.engine import Engine
    from outlive.values import ThreadInfo

_MANY = 6
_UUID = 36
_MADE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def engine_of(store: Store) -> Engine:
    return store._store._engine


def backend_of(store: Store) -> Any:
    """Return the backend below all layers: of a pair, the active one."""
    backend: Any = engine_of(store).backend
    pair = store._store._pair
    if pair is not None:
        return pair.stores.active
    return getattr(backend, "inner", backend)


def side_of(store: Store) -> PairRecord | None:
    """Return what a store that was opened alone says of its pair; None when it is in none, or goes on without the other."""
    from outlive.layers.replication.pair import ALONE, read_pair_record

    if store._store._pair is not None:
        return None
    settings = store._store._settings
    side = run_now(read_pair_record(backend_of(store), settings.tenant, settings.timeout_s))
    return None if side is None or side.ended == ALONE else side


def check_keys(store: Store) -> None:
    """Refuse to decide what may go without the keys: all would be kept, and be said to be needed."""
    from outlive.layers.encryption.layer import Encrypted

    backend = engine_of(store).backend
    if isinstance(backend, Encrypted) and not backend.has_key:
        raise KeyMissing(None)


def key_of(store: Store, thread: str) -> ThreadKey:
    return store._store._key(thread)


def find_thread(store: Store, said: str, *, is_exact: bool = False) -> str:
    """Return the id of the one thread that is meant."""
    backend, tenant = engine_of(store).backend, store._store._settings.tenant

    def look(id: str) -> list[str]:
        if run_now(backend.threads(ThreadQuery(tenant, only=id, heads=False))):
            return [id]
        if is_exact:
            return []
        rows: list[ThreadRow] = run_now(
            backend.threads(ThreadQuery(tenant, prefix=id, limit=_MANY, heads=False))
        )
        return [row.id for row in rows]

    return _the_one("thread", said, look, "outlive ls lists them", is_exact)


def list_threads(store: Store, damaged: list[Corrupt], **chosen: Any) -> Iterator[ThreadInfo]:
    """List threads; those that are damaged go into the list that is given, and are passed over."""
    from outlive.sync.facades import each
    from outlive.threads.listing import Threads

    return each(Threads(engine_of(store), store._store._settings.tenant, damaged=damaged, **chosen))


def find_prefix(store: Store, said: str) -> str:
    """Return the beginning of ids that is meant: as it was written, unless only its shown form undone finds threads."""
    if "\\" not in said or next(iter(store.threads(prefix=said, limit=1)), None) is not None:
        return said
    return meant(said)


def find_checkpoint(
    store: Store, thread: Thread, said: str | None, *, is_exact: bool = False, is_anywhere: bool = False
) -> CheckpointRecord:
    """Return the record of the one checkpoint that is meant; the head when nothing is said. `is_anywhere`: in any namespace."""
    engine, key = engine_of(store), key_of(store, thread.id)
    if said != "":
        reading = run_now(engine.backend.read(key, thread.namespace, said, chunks=False))
        if reading.record is not None:
            return reading.record
    records = run_now(
        engine.records(key, None if is_anywhere else thread.namespace)
    )  # by a place or a part of an id: all are looked at
    if not records:
        where = f" in namespace {thread.namespace!r}" if thread.namespace else " in its root namespace"
        lists = f"outlive history --all-namespaces {as_argument(thread.id)}"
        raise BadArgument(f"thread {thread.id!r} has no checkpoint{where}; {lists} lists those that it has")
    if (found := _by_place(records, said or "")) is not None:
        return found
    by_id = {record.id: record for record in records}

    def look(id: str) -> list[str]:
        return [one for one in by_id if one == id or (one.startswith(id) and not is_exact)]

    command = f"outlive history {as_argument(thread.id)}"
    lists = f"{command} lists them"
    return by_id[_the_one("checkpoint", said or "", look, lists, is_exact, f" of thread {thread.id!r}")]


def _by_place(records: list[CheckpointRecord], said: str) -> CheckpointRecord | None:
    place = re.fullmatch(r"@(-?\d*)", said)
    if place is None or place[1] == "-":
        return None
    number = int(place[1] or 0)
    if number > 0:
        found = [record for record in records if record.seq == number]
        if len(found) > 1:
            raise BadArgument(f"{said} is not one checkpoint but {_list(record.id for record in found)}")
    else:
        found = records[-number : 1 - number]
    if not found:
        raise BadArgument(
            f"there is no checkpoint {said}; the newest is @{records[0].seq}, {len(records):,} in all"
        )
    return found[0]


def find_run(store: Store, said: str, *, thread: str | None = None, is_exact: bool = False) -> RunInfo:
    """Return the one run that is meant; of several threads, that of the given one."""
    from outlive.runs.lease import RUN, find_all, unpack_run

    engine, tenant = engine_of(store), store._store._settings.tenant
    place = None if thread is None else key_of(store, find_thread(store, thread))

    def look(id: str) -> list[str]:
        found = run_now(engine.backend.entries(EntryQuery(tenant, RUN, thread=place, prefix=id, limit=_MANY)))
        ids = list(dict.fromkeys(entry.key for _, entry in found))
        return [id] if id in ids else [] if is_exact else ids

    id = _the_one("run", said, look, "outlive runs --all lists them", is_exact)
    matches = [one for one in run_now(find_all(engine, tenant, id)) if place in (None, one[0])]
    if len(matches) > 1:
        raise AmbiguousRun(id, [key.id for key, _ in matches])
    if not matches:
        raise BadArgument(f"there is no run '{shown(id)}' any more")
    return unpack_run(engine.codec, *matches[0])


def _the_one(
    what: str, said: str, look: Callable[[str], list[str]], lists: str, is_exact: bool, where: str = ""
) -> str:
    found = look(said) if said else []
    if not found and "\\" in said:
        found = look(meant(said))
    if len(found) == 1:
        return found[0]
    if not found:
        how = "with --yes the id must be written out; " if is_exact else ""
        raise BadArgument(f"there is no {what} '{shown(said)}'{where}; {how}{lists}")
    raise BadArgument(f"'{shown(said)}' is the beginning of several: {_list(found)}; give more of it")


def _list(ids: Iterable[str]) -> str:
    names = [shown(id) for id in ids]
    return ", ".join(names[: _MANY - 1]) + (", …" if len(names) >= _MANY else "")


def shortened(ids: Iterable[str], least: int = 18) -> dict[str, str]:
    """Return ids for a terminal: of those that were made up by outlive, as much as tells them apart.

    That is at least their moment: others of the thread, which are not shown, begin alike.
    """
    from outlive.cli.output.table import is_terminal

    known = set(ids)
    length = least
    if not is_terminal():
        return {id: id for id in known}
    while length < _UUID and len({id[:length] for id in known}) < len(known):
        length += 1
    return {id: id[:length] if _MADE.fullmatch(id) else id for id in known}


def run_of_head(store: Store, info: Any) -> RunInfo | None:
    """Return the run that saved the newest checkpoint of a thread."""
    from outlive.runs.lease import RUN, find, unpack_run

    if info.head is None or info.head.run is None:
        return None
    engine, key = engine_of(store), key_of(store, info.id)
    entry = run_now(find(engine, key, RUN, info.head.run))
    return None if entry is None else unpack_run(engine.codec, key, entry)
