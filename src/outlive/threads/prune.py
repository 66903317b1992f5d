"""Deleting checkpoints and freeing their space.

When nothing was committed to the thread since it was read, deleting is one commit: it removes
records by id and the chunks that nothing else reads. While others save, it is two commits. The
first removes the records and replaces the generation, so that a save which still builds on what is
deleted is refused and reads again. The second removes the chunks outside the live set, which it
read at (generation, revision), unless they were stored again since. A crash between the two leaves
chunks without a reader, which the next deletion removes.

A chunk of which less than half is still read is written again with its live ranges only, in the
first commit; with `erase=True` any chunk with an unread byte.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

from outlive.arguments import check_id, check_namespace
from outlive.backend import (
    CheckpointKey,
    CheckpointRecord,
    Commit,
    Inventory,
    Removal,
    ThreadKey,
    WriteRecord,
)
from outlive.backend.undecrypted import is_undecrypted
from outlive.dataclass import dataclass
from outlive.errors import BadArgument, StaleBase
from outlive.format import chunk, manifest
from outlive.format.layout import Layout, expand, has_composite
from outlive.threads.engine import Engine, Located
from outlive.threads.keep_policy import KeepPolicy, keys_of, still_needed
from outlive.values import CheckpointInfo, Pruned

_ATTEMPTS = 8  # that may lose against deletions by others
_PAGE = 100  # records read at once: savers of the same file wait no longer than that takes
_BATCH = 64  # chunks read at once
Choose = Callable[[list[CheckpointRecord]], Awaitable[set[CheckpointKey]]]


async def prune(
    engine: Engine,
    key: ThreadKey,
    policy: KeepPolicy,
    *,
    keep_lineage: bool = False,
    erase: bool = False,
    dry_run: bool = False,
    namespace: str | None = None,
) -> Pruned:
    """Delete what is due by a policy and not needed, in one namespace or in all."""

    async def choose(records: list[CheckpointRecord]) -> set[CheckpointKey]:
        pool = [record for record in records if namespace is None or record.namespace == namespace]
        due = policy.due(pool, time.time())
        needed = await still_needed(engine, key, pool, due, keep_lineage=keep_lineage)
        return set().union(*due.values()).difference(*needed.values())

    return await remove_chosen(engine, key, choose, erase=erase, dry_run=dry_run)


async def remove(
    engine: Engine,
    key: ThreadKey,
    *,
    keys: Collection[CheckpointKey] = (),
    ids: Collection[str] = (),
    run: str | None = None,
    namespace: str | None = None,
    erase: bool = False,
) -> Pruned:
    """Remove checkpoints by (namespace, id), by id in every namespace, or all of one run or namespace."""

    async def choose(records: list[CheckpointRecord]) -> set[CheckpointKey]:
        known = keys_of(records)
        if ids or namespace is not None:  # pending writes may belong to an id that was never saved
            known |= {write.checkpoint_key for write in await engine.backend.writes(key, None)}
        of_run = keys_of([record for record in records if run is not None and record.run == run])
        chosen = {place for place in known if place[1] in ids or place[0] == namespace}
        return {*keys, *of_run, *chosen}

    return await remove_chosen(engine, key, choose, erase=erase)


def check_selection(
    thread: str, namespace: str, ids: object, all_namespaces: bool
) -> tuple[set[CheckpointKey], set[str]]:
    """Return the checkpoints that a caller means: by (namespace, id), and by id in every namespace."""
    if not isinstance(ids, str | CheckpointInfo | Iterable):
        raise BadArgument(f"ids must be ids of checkpoints, not {ids!r}")
    keys: set[CheckpointKey] = set()
    anywhere: set[str] = set()
    for item in [ids] if isinstance(ids, str | CheckpointInfo) else ids:
        if isinstance(item, CheckpointInfo):
            if item.thread != thread:
                raise BadArgument(
                    f"checkpoint {item.id!r} belongs to thread {item.thread!r}, not to {thread!r}"
                )
            keys.add((item.namespace, item.id))
        elif isinstance(item, tuple) and len(item) == 2:
            keys.add((check_namespace(item[0]), check_id("id", item[1])))
        elif all_namespaces:
            anywhere.add(check_id("id", item))
        else:
            keys.add((namespace, check_id("id", item)))
    return keys, anywhere


@dataclass(frozen=True, slots=True)
class ThreadContents:
    """What a thread contained when it was read."""

    inventory: Inventory
    records: list[CheckpointRecord]  # newest first
    writes: Sequence[WriteRecord]
    composites: Mapping[bytes, bytes] = field(default_factory=dict)

    def live(self, removed: Collection[CheckpointKey] = ()) -> set[bytes]:
        """Return the chunks that are still read when some checkpoints are removed."""
        records = [record for record in self.records if record.key not in removed]
        writes = [write for write in self.writes if write.checkpoint_key not in removed]
        return _named(records, writes)

    def dead(self, removed: Collection[CheckpointKey] = ()) -> dict[bytes, int]:
        """Return the chunks that are not read, with their stored bytes."""
        live = self.live(removed)
        return {name: size for name, (size, _) in self.inventory.chunks.items() if name not in live}


def _named(records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]) -> set[bytes]:
    """Return the chunks that records and writes read."""
    lists = [*(record.chunks for record in records), *(write.chunks for write in writes)]
    return {name for names in lists for name in names}


async def read_contents(engine: Engine, key: ThreadKey) -> ThreadContents:
    """Read a thread. The inventory comes first: a later commit has a later revision."""
    inventory = await engine.backend.inventory(key)
    records = await engine.records(key, page=_PAGE)
    composites = await engine.composites(key, filter(_is_readable, records))
    return ThreadContents(inventory, records, await engine.backend.writes(key, None), composites)


async def remove_chosen(
    engine: Engine,
    key: ThreadKey,
    choose: Choose,
    *,
    erase: bool = False,
    dry_run: bool = False,
    contents: ThreadContents | None = None,
) -> Pruned:
    """Remove the records that `choose` picks, newest first.

    It is called again if others delete too.

    `contents` is what the caller has read of the thread already. It is used for the first attempt
    only.
    """
    total = Pruned()
    for _ in range(_ATTEMPTS):
        is_given, seen, contents = contents is not None, contents or await read_contents(engine, key), None
        try:
            done = await _remove_once(engine, key, seen, choose, erase, dry_run, at_once=is_given)
        except StaleBase:  # others delete at the same time: read again
            continue
        total = Pruned(
            total.checkpoints + done.checkpoints,
            total.chunks + done.chunks,
            total.rewritten + done.rewritten,
            total.freed_bytes + done.freed_bytes,
            done.erased,
        )
        # An erasure is repeated until every byte is read: savers may have added unread ones.
        if not erase or dry_run or done.erased:
            return total
    if erase and not total.erased:
        return total
    raise StaleBase(key.id)


async def _remove_once(
    engine: Engine,
    key: ThreadKey,
    contents: ThreadContents,
    choose: Choose,
    erase: bool,
    dry_run: bool,
    at_once: bool,
) -> Pruned:
    """Remove what `choose` picks from what was read. Raises StaleBase if others delete meanwhile."""
    # 1. Choose. Only what is there can go; pending writes may be there without their checkpoint.
    known = keys_of(contents.records) | {write.checkpoint_key for write in contents.writes}
    removed = await choose(contents.records) & known
    compaction = _Compaction(engine, key, contents, removed)
    if dry_run:
        return compaction.estimate()
    # 2. Write the live ranges of chunks that are mostly dead into new chunks, in memory only.
    rewritten = await compaction.rewrite(erase)
    # 3. Commit. A crash before it leaves the thread as it was.
    commit = Commit(
        key,
        chunks=tuple(rewritten.chunks.items()),
        rewrites=tuple(rewritten.records),
        removal=Removal(checkpoints=tuple(sorted(removed)), erase=erase),
        generation=contents.inventory.generation,
    )
    dead = compaction.dead_after(rewritten)
    count, chunks, freed, is_swept = await _commit(engine, commit, contents.inventory, dead, at_once)
    # 4. A listing that has shown one of them can continue where it was.
    for record in contents.records:
        if record.key in removed:
            engine.cache.cursors.note(key.digest, record)
    is_erased = erase and is_swept and await _is_erased(engine, key)
    freed -= sum(map(len, rewritten.chunks.values()))
    return Pruned(count, chunks, len(rewritten.chunks), max(0, freed), is_erased)


async def _commit(
    engine: Engine, commit: Commit, seen: Inventory, dead: Sequence[bytes], at_once: bool
) -> tuple[int, int, int, bool]:
    """Remove records and chunks; return (records, chunks, bytes, whether all of it was done)."""
    key, removal = commit.thread, commit.removal or Removal()
    whole = replace(removal, chunks=tuple(dead), chunks_until=seen.revision)
    if not (removal.checkpoints or commit.rewrites or dead):
        await engine.confirm_deletion(key)  # it may repeat a deletion that was refused
        return 0, 0, 0, True
    try:
        receipt = await engine.commit(replace(commit, removal=whole, revision=seen.revision))
    except StaleBase:
        if at_once:
            raise
        # Another process saved since. Records first: a crash after this commit leaves chunks
        # without a reader.
        count = 0
        if removal.checkpoints or commit.rewrites:
            count = (await engine.commit(replace(commit, token=os.urandom(8)))).removed
            engine.cache.drop(key.digest)
        swept = await sweep_chunks(engine, key, removal.erase)
        return count, *(swept or (0, 0)), swept is not None
    engine.cache.drop(key.digest)
    return receipt.removed, len(dead), receipt.freed, True


async def sweep_chunks(
    engine: Engine, key: ThreadKey, erase: bool = False, contents: ThreadContents | None = None
) -> tuple[int, int] | None:
    """Remove unread chunks; return how many and their bytes, None if others delete too."""
    contents = contents or await read_contents(engine, key)
    dead = contents.dead()
    if not dead:
        return 0, 0
    removal = Removal(chunks=tuple(dead), chunks_until=contents.inventory.revision, erase=erase)
    try:
        receipt = await engine.commit(Commit(key, removal=removal, generation=contents.inventory.generation))
    except StaleBase:
        return None
    engine.cache.drop(key.digest)
    return len(dead), receipt.freed


async def _is_erased(engine: Engine, key: ThreadKey) -> bool:
    """Tell whether every stored byte of the chunks of a thread is read."""
    contents = await read_contents(engine, key)
    rewritten = await _Compaction(engine, key, contents, set()).rewrite(erase=True)
    return not rewritten.records and not contents.dead()


@dataclass(slots=True)
class _Rewritten:
    chunks: dict[bytes, bytes]
    records: list[CheckpointRecord]


Ranges = dict[bytes, list[tuple[int, int]]]  # chunk → (start, stop)


def rewritable_bytes(
    engine: Engine, key: ThreadKey, contents: ThreadContents, removed: set[CheckpointKey]
) -> int:
    """Estimate how many bytes a removal frees by writing chunks again."""
    return sum(_Compaction(engine, key, contents, removed).wasted().values())


class _Compaction:
    """Which bytes of which chunks are still read when some checkpoints are removed."""

    def __init__(
        self, engine: Engine, key: ThreadKey, contents: ThreadContents, removed: set[CheckpointKey]
    ) -> None:
        self._engine = engine
        self._key = key
        self._contents = contents
        self._removed = removed
        self._kept = [record for record in contents.records if record.key not in removed]
        # A chunk stays as it is when a write reads it, or a record that does not say which bytes it
        # reads.
        unreadable = [record for record in self._kept if self._layout(record) is None]
        writes = [write for write in contents.writes if write.checkpoint_key not in removed]
        self._fixed = _named(unreadable, writes)
        self._before = self._ranges(contents.records)
        self._after = self._ranges(self._kept)

    def _ranges(self, records: Iterable[CheckpointRecord]) -> Ranges:
        """Return the ranges that records read, joined where they touch."""
        spans: dict[bytes, set[tuple[int, int]]] = {}
        for record in records:
            for item in self._layout(record) or ():
                if not isinstance(item, bytes):
                    spans.setdefault(record.chunks[item[0]], set()).add((item[1], item[1] + item[2]))
        return {name: _union(sorted(ranges)) for name, ranges in spans.items()}

    def dead_after(self, rewritten: _Rewritten) -> list[bytes]:
        """Return the chunks that are unread after the rewritten records replace the old ones."""
        moved = {record.key: record for record in rewritten.records}
        kept = [moved.get(record.key, record) for record in self._kept]
        writes = [write for write in self._contents.writes if write.checkpoint_key not in self._removed]
        live = _named(kept, writes) | rewritten.chunks.keys()
        return [name for name in self._contents.inventory.chunks if name not in live]

    def estimate(self) -> Pruned:
        """Return what a deletion would do."""
        dead, wasted = self._contents.dead(self._removed), self.wasted()
        freed = sum(dead.values()) + sum(wasted.values())
        count = len(self._contents.records) - len(self._kept)
        return Pruned(count, len(dead) + len(wasted), len(wasted), freed)

    def wasted(self) -> dict[bytes, int]:
        """Return the chunks to write again, and about how many bytes that frees of each."""
        stored, wasted = self._contents.inventory.chunks, {}
        for name, ranges in self._after.items():
            live, whole = _total(ranges), max(stop for _, stop in self._before[name])
            if name not in self._fixed and name in stored and live * 2 < whole:
                wasted[name] = stored[name][0] * (whole - live) // whole
        return wasted

    async def rewrite(self, erase: bool) -> _Rewritten:
        """Write chunks with too many dead bytes again, and the checkpoints that read them."""
        moved: dict[bytes, tuple[bytes, list[tuple[int, int]]]] = {}
        chunks = {}
        for name, raw in (await self._read_wasteful(erase)).items():
            ranges = self._after[name]
            data = chunk.encode(b"".join(raw[start:stop] for start, stop in ranges))
            new = self._engine.namer.name(data)
            chunks[new] = data
            moved[name] = (new, ranges)
        readers = [record for record in self._kept if moved.keys() & set(record.chunks)]
        return _Rewritten(
            chunks, [_moved(record, layout, moved) for record in readers if (layout := self._layout(record))]
        )

    def _layout(self, record: CheckpointRecord) -> Layout | None:
        """Return the spans of a record without a composite; None if it does not say what it reads."""
        if not _is_readable(record):
            return None
        with Located(self._key, record.id):
            layout = manifest.layout_of(record.body)
            if not has_composite(layout):
                return layout
            raw = self._contents.composites.get(record.chunks[0]) if record.chunks else None
            return None if raw is None else expand(layout, raw)

    async def _read_wasteful(self, erase: bool) -> dict[bytes, bytes]:
        """Read the chunks that have too many dead bytes."""
        candidates = [
            name
            for name, ranges in self._after.items()
            if name not in self._fixed
            and (erase or _total(ranges) * 2 < max(stop for _, stop in self._before[name]))
        ]
        raws = {}
        for at in range(0, len(candidates), _BATCH):
            names = candidates[at : at + _BATCH]
            data = await self._engine.backend.fetch(self._key, names)
            if len(data) < len(names):
                generation = self._contents.inventory.generation
                if await self._engine.has_moved(self._key, generation):
                    raise StaleBase(self._key.id)  # deleted by others
            for name in names:
                with Located(self._key, None):
                    raw = self._engine.raw(name, data.get(name))
                live = _total(self._after[name])
                if live < len(raw) and (erase or live * 2 < len(raw)):
                    raws[name] = raw
        return raws


def _is_readable(record: CheckpointRecord) -> bool:
    """Tell whether the encryption layer could open a record.

    Otherwise it is unknown which bytes it reads.
    """
    return not is_undecrypted(record.body)


def _union(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def _total(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _moved(
    record: CheckpointRecord, spans: Layout, moved: dict[bytes, tuple[bytes, list[tuple[int, int]]]]
) -> CheckpointRecord:
    """Return the record with its spans in the chunks that replace the old ones, without a composite."""
    index: dict[bytes, int] = {}
    layout: Layout = []
    for item in spans:
        if isinstance(item, bytes):
            layout.append(item)
            continue
        name, offset = record.chunks[item[0]], item[1]
        if name in moved:
            name, ranges = moved[name]
            offset = _new_offset(ranges, offset)
        layout.append((index.setdefault(name, len(index)), offset, item[2]))
    return replace(record, chunks=tuple(index), body=manifest.with_layout(record.body, layout))


def _new_offset(ranges: list[tuple[int, int]], offset: int) -> int:
    at = 0
    for start, stop in ranges:
        if start <= offset < stop:
            return at + offset - start
        at += stop - start
    return at
