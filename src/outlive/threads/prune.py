"""Deleting checkpoints and giving their space back.

When nothing was committed to the thread since it was looked at, deleting is one commit: it removes records by id and the
chunks that nobody else reads. Beside savers it is two. The first removes the records, and replaces the generation, so that a save
which still builds on what is going is refused and reads anew. The second, with the live set read at (generation,
revision), removes the chunks outside it that nobody stored again since. A crash between the two
leaves chunks without a reader, which the next deletion takes along.

A chunk of which less than half is still read is written again with its live ranges only, in the first
commit; with `erase=True` any chunk that holds a byte nobody reads.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from outlive.backend import (
    CheckpointKey,
    CheckpointRecord,
    Commit,
    Inventory,
    Removal,
    ThreadKey,
    WriteRecord,
)
from outlive.errors import UNOPENED, OutliveError, StaleBase
from outlive.format import chunk, manifest
from outlive.threads.engine import Engine, Located
from outlive.values import Pruned

_TRIES = 8
_PAGE = 100  # records read at once: savers of the same file wait no longer than that takes
Choose = Callable[[list[CheckpointRecord]], Awaitable[set[CheckpointKey]]]


async def prune(
    engine: Engine,
    key: ThreadKey,
    *,
    keep_last: int,
    keep_lineage: bool,
    erase: bool,
    dry_run: bool,
    namespace: str | None,
) -> Pruned:
    """Keep the newest `keep_last` of each namespace, and what is open; remove the rest."""

    async def choose(records: list[CheckpointRecord]) -> set[CheckpointKey]:
        pool = [record for record in records if namespace is None or record.namespace == namespace]
        kept = _newest(pool, keep_last) | await open_interrupts(engine, key, pool)
        kept |= _ancestors(pool, kept) if keep_lineage else required_ancestors(pool, kept)
        return {(record.namespace, record.id) for record in pool} - kept

    return await remove_chosen(engine, key, choose, erase=erase, dry_run=dry_run)


async def remove(
    engine: Engine,
    key: ThreadKey,
    *,
    pairs: Collection[CheckpointKey] = (),
    ids: Collection[str] = (),
    run: str | None = None,
    erase: bool = False,
) -> Pruned:
    """Remove checkpoints by (namespace, id), by id in whichever namespace, or all of one run."""

    async def choose(records: list[CheckpointRecord]) -> set[CheckpointKey]:
        known = {(one.namespace, one.id) for one in records}
        if ids:  # pending writes may be on an id that was never saved
            known |= {write.key[:2] for write in await engine.backend.writes(key, None)}
        of_run = {(one.namespace, one.id) for one in records if run is not None and one.run == run}
        return {*pairs, *of_run, *(pair for pair in known if pair[1] in ids)}

    return await remove_chosen(engine, key, choose, erase=erase)


@dataclass(frozen=True, slots=True)
class ThreadContents:
    """A thread as one look saw it."""

    inventory: Inventory
    records: list[CheckpointRecord]  # newest first
    writes: Sequence[WriteRecord]

    @property
    def dead(self) -> list[bytes]:
        """The chunks that nobody reads."""
        live = {name for record in self.records for name in record.chunks}
        live |= {name for write in self.writes for name in write.chunks}
        return [name for name in self.inventory.chunks if name not in live]


async def look_at(engine: Engine, key: ThreadKey) -> ThreadContents:
    """Look at a thread. What is committed meanwhile has a later revision than the inventory, which was read first."""
    inventory = await engine.backend.inventory(key)
    records = await engine.records(key, page=_PAGE)
    return ThreadContents(inventory, records, await engine.backend.writes(key, None))


async def remove_chosen(
    engine: Engine,
    key: ThreadKey,
    choose: Choose,
    *,
    erase: bool = False,
    dry_run: bool = False,
    look: ThreadContents | None = None,
) -> Pruned:
    """Remove what `choose` picks of all records, which are newest first; it is asked again when others delete too.

    `look` is what the caller has seen of the thread already; if anything was committed to it since, it is looked at again.
    """
    total = Pruned()
    given = look
    for _ in range(_TRIES):
        look, given, is_given = given or await look_at(engine, key), None, given is not None
        try:
            done = await _once(engine, key, look, choose, erase, dry_run, at_once=is_given)
        except StaleBase:  # somebody else deletes at the same time: look again
            continue
        total = Pruned(
            total.checkpoints + done.checkpoints,
            total.chunks + done.chunks,
            total.rewritten + done.rewritten,
            total.freed_bytes + done.freed_bytes,
            done.erased,
        )
        if not erase or dry_run or done.erased:
            return total
    if erase and not total.erased:
        return total
    raise StaleBase(key.id)


async def _once(
    engine: Engine,
    key: ThreadKey,
    look: ThreadContents,
    choose: Choose,
    erase: bool,
    dry_run: bool,
    at_once: bool,
) -> Pruned:
    known = {(record.namespace, record.id) for record in look.records} | {
        write.key[:2] for write in look.writes
    }
    doomed: set[CheckpointKey] = await choose(look.records) & known
    kept = [record for record in look.records if (record.namespace, record.id) not in doomed]
    live = _Live(engine, key, look.inventory.generation, look.writes, doomed)
    if dry_run:
        return live.estimate(look.inventory.chunks, look.records, kept)
    rewriting = await live.rewrite(look.records, kept, erase)
    commit = Commit(
        key,
        chunks=tuple(rewriting.chunks.items()),
        rewrites=tuple(rewriting.records),
        removal=Removal(checkpoints=tuple(sorted(doomed)), erase=erase),
        generation=look.inventory.generation,
    )
    dead = live.dead(look.inventory, kept, rewriting)
    removed, chunks, freed, is_swept = await _commit(engine, commit, look.inventory, dead, at_once)
    for record in look.records:
        if (record.namespace, record.id) in doomed:
            engine.cache.places.note(key.digest, record)
    whole = erase and is_swept and await _is_erased(engine, key)
    freed -= sum(map(len, rewriting.chunks.values()))
    return Pruned(removed, chunks, len(rewriting.chunks), max(0, freed), whole)


async def _commit(
    engine: Engine, commit: Commit, seen: Inventory, dead: Sequence[bytes], at_once: bool
) -> tuple[int, int, int, bool]:
    """Remove records and chunks: how many, bytes, and whether all of it. Unless it must be at once, one after the other beside savers."""
    key, removal = commit.thread, commit.removal or Removal()
    whole = replace(removal, chunks=tuple(dead), chunks_until=seen.revision)
    if not (removal.checkpoints or commit.rewrites or dead):
        await engine.confirm(key)  # it may be a repetition of what was refused
        return 0, 0, 0, True
    try:
        receipt = await engine.commit(replace(commit, removal=whole, revision=seen.revision))
    except StaleBase:
        if at_once:
            raise
        removed = 0
        if removal.checkpoints or commit.rewrites:
            removed = (await engine.commit(replace(commit, token=os.urandom(8)))).removed
            engine.cache.drop(key.digest)
        swept = await sweep(engine, key, removal.erase)
        return removed, *(swept or (0, 0)), swept is not None
    engine.cache.drop(key.digest)
    return receipt.removed, len(dead), receipt.freed, True


async def sweep(
    engine: Engine, key: ThreadKey, erase: bool = False, look: ThreadContents | None = None
) -> tuple[int, int] | None:
    """Remove the chunks that nobody reads: how many, and their bytes. None when someone else is deleting too."""
    look = look or await look_at(engine, key)
    dead = look.dead
    if not dead:
        return 0, 0
    removal = Removal(chunks=tuple(dead), chunks_until=look.inventory.revision, erase=erase)
    try:
        receipt = await engine.commit(Commit(key, removal=removal, generation=look.inventory.generation))
    except StaleBase:
        return None
    engine.cache.drop(key.digest)
    return len(dead), receipt.freed


def _newest(records: Iterable[CheckpointRecord], keep: int) -> set[CheckpointKey]:
    seen: dict[str, int] = {}
    kept = set()
    for record in records:  # newest first
        count = seen.get(record.namespace, 0)
        if count < keep:
            kept.add((record.namespace, record.id))
        seen[record.namespace] = count + 1
    return kept


async def open_interrupts(
    engine: Engine, key: ThreadKey, records: Sequence[CheckpointRecord]
) -> set[CheckpointKey]:
    """A question nobody answered and nobody went on from is kept, however old; also one that a framework asked by a write."""
    continued = {(record.namespace, record.parent) for record in records}
    tips = [record for record in records if (record.namespace, record.id) not in continued]
    pairs = [(record.namespace, record.id) for record in tips]
    writes = await engine.backend.writes(key, pairs) if pairs else []
    kept = {(write.namespace, write.checkpoint) for write in writes if write.channel == "__interrupt__"}
    for pair, record in zip(pairs, tips, strict=True):
        try:
            asked = manifest.decode(engine.codec, record.body, opaque=True).interrupts
        except OutliveError:  # nobody can tell: it stays until somebody removes it by its id
            kept.add(pair)
            continue
        answered = {
            write.task
            for write in writes
            if (write.namespace, write.checkpoint) == pair and write.channel == "__resume__"
        }
        if any(interrupt.id not in answered for interrupt in asked):
            kept.add(pair)
    return kept


def _ancestors(records: Sequence[CheckpointRecord], kept: set[CheckpointKey]) -> set[CheckpointKey]:
    parents = {(record.namespace, record.id): record.parent for record in records}
    found: set[CheckpointKey] = set()
    for namespace, id in kept:
        parent = parents.get((namespace, id))
        while parent is not None and (namespace, parent) in parents and (namespace, parent) not in found:
            found.add((namespace, parent))
            parent = parents[namespace, parent]
    return found


def required_ancestors(records: Sequence[CheckpointRecord], kept: set[CheckpointKey]) -> set[CheckpointKey]:
    """Return the ancestors without which what is kept is of no use: a framework stored only the difference to them."""
    by_pair = {(record.namespace, record.id): record for record in records}
    found: set[CheckpointKey] = set()
    for pair in kept:
        record = by_pair.get(pair)
        while record is not None and record.parent is not None and _leans(record):
            pair = (record.namespace, record.parent)
            record = by_pair.get(pair) if pair not in found else None
            found |= {pair} & by_pair.keys()
    return found


def _leans(record: CheckpointRecord) -> bool:
    try:
        return manifest.needs_parent(record.body)
    except OutliveError:  # damaged, sealed, or of a newer outlive
        return True  # nobody can tell


async def _is_erased(engine: Engine, key: ThreadKey) -> bool:
    """Tell whether every stored byte of a thread's chunks is read by somebody."""
    look = await look_at(engine, key)
    live = _Live(engine, key, look.inventory.generation, look.writes, set())
    rewriting = await live.rewrite(look.records, look.records, True)
    return not rewriting.records and not look.dead


@dataclass(slots=True)
class _Rewriting:
    chunks: dict[bytes, bytes]
    records: list[CheckpointRecord]


Ranges = dict[bytes, list[tuple[int, int]]]  # chunk → (start, stop)
Stored = Mapping[bytes, tuple[int, int]]  # chunk → (bytes, revision)


def wasted(engine: Engine, key: ThreadKey, look: ThreadContents, gone: set[CheckpointKey]) -> int:
    """Return about how many bytes are saved by writing chunks again when some checkpoints go."""
    kept = [record for record in look.records if (record.namespace, record.id) not in gone]
    live = _Live(engine, key, 0, look.writes, gone)
    return sum(live.wasted(look.inventory.chunks, look.records, kept).values())


class _Live:
    """Which bytes of which chunks are still read."""

    def __init__(
        self,
        engine: Engine,
        key: ThreadKey,
        generation: int,
        writes: Sequence[WriteRecord],
        doomed: set[CheckpointKey],
    ) -> None:
        self._engine = engine
        self._key = key
        self._generation = generation
        self._held = {
            name
            for write in writes
            if (write.namespace, write.checkpoint) not in doomed
            for name in write.chunks
        }

    def names(self, records: Iterable[CheckpointRecord]) -> set[bytes]:
        return self._held | {name for record in records for name in record.chunks}

    def dead(self, stored: Inventory, kept: Sequence[CheckpointRecord], rewriting: _Rewriting) -> list[bytes]:
        """Return the chunks that nobody reads when the rewritten records are in their places."""
        moved = {(record.namespace, record.id): record for record in rewriting.records}
        after = [moved.get((record.namespace, record.id), record) for record in kept]
        live = self.names(after) | rewriting.chunks.keys()
        return [name for name in stored.chunks if name not in live]

    def estimate(
        self, stored: Stored, records: list[CheckpointRecord], kept: list[CheckpointRecord]
    ) -> Pruned:
        live = self.names(kept)
        dead = [size for name, (size, _) in stored.items() if name not in live]
        wasted = self.wasted(stored, records, kept)
        gone = len(records) - len(kept)
        return Pruned(gone, len(dead) + len(wasted), len(wasted), sum(dead) + sum(wasted.values()))

    def wasted(
        self, stored: Stored, records: Sequence[CheckpointRecord], kept: Sequence[CheckpointRecord]
    ) -> dict[bytes, int]:
        """Return the chunks that would be written again, with about how many bytes that saves of each."""
        before, after = (self._ranges([one for one in rows if _is_readable(one)]) for rows in (records, kept))
        held = self.names([record for record in kept if not _is_readable(record)])
        found = {}
        for name, ranges in after.items():
            live, whole = _total(ranges), max(stop for _, stop in before[name])
            if name not in held and name in stored and live * 2 < whole:
                found[name] = stored[name][0] * (whole - live) // whole
        return found

    async def rewrite(
        self, records: Sequence[CheckpointRecord], kept: Sequence[CheckpointRecord], erase: bool
    ) -> _Rewriting:
        """Write chunks with too many dead bytes again, and the checkpoints that read them."""
        self._held |= {name for record in kept if not _is_readable(record) for name in record.chunks}
        records = [record for record in records if _is_readable(record)]
        kept = [record for record in kept if _is_readable(record)]
        wanted = await self._wasteful(self._ranges(records), self._ranges(kept), erase)
        moved: dict[bytes, tuple[bytes, list[tuple[int, int]]]] = {}
        chunks = {}
        for name, (raw, ranges) in wanted.items():
            data = chunk.encode(b"".join(raw[start:stop] for start, stop in ranges))
            new = self._engine.namer.name(data)
            chunks[new] = data
            moved[name] = (new, ranges)
        touched = [_moved(record, moved) for record in kept if moved.keys() & set(record.chunks)]
        return _Rewriting(chunks, touched)

    def _ranges(self, records: Iterable[CheckpointRecord]) -> Ranges:
        """Return the ranges that records read, joined where they touch."""
        spans: dict[bytes, set[tuple[int, int]]] = {}
        for record in records:
            with Located(self._key, record.id):
                layout = manifest.layout_of(record.body)
            for item in layout:
                if not isinstance(item, bytes):
                    spans.setdefault(record.chunks[item[0]], set()).add((item[1], item[1] + item[2]))
        return {name: _union(sorted(found)) for name, found in spans.items()}

    async def _wasteful(
        self, before: Ranges, after: Ranges, erase: bool
    ) -> dict[bytes, tuple[bytes, list[tuple[int, int]]]]:
        candidates = [
            name
            for name, ranges in after.items()
            if name not in self._held
            and (erase or _total(ranges) * 2 < max(stop for _, stop in before[name]))
        ]
        found = {}
        for at in range(0, len(candidates), 64):
            names = candidates[at : at + 64]
            data = await self._engine.backend.fetch(self._key, names)
            if len(data) < len(names) and await self._engine.has_moved(self._key, self._generation):
                raise StaleBase(self._key.id)  # gone with somebody else's deletion
            for name in names:
                with Located(self._key, None):
                    raw = self._engine.raw(name, data.get(name))
                if _total(after[name]) < len(raw) and (erase or _total(after[name]) * 2 < len(raw)):
                    found[name] = (raw, after[name])
        return found


def _is_readable(record: CheckpointRecord) -> bool:
    """Tell whether a layer could open a record, which else does not say what bytes it reads. It can go all the same."""
    return record.body[:1] != UNOPENED


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
    record: CheckpointRecord, moved: dict[bytes, tuple[bytes, list[tuple[int, int]]]]
) -> CheckpointRecord:
    """Return the record with its spans in the chunks that replace the old ones."""
    index: dict[bytes, int] = {}
    layout: chunk.Layout = []
    for item in manifest.layout_of(record.body):
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
