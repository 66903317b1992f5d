"""What `rm` and `prune` say before they delete, and what they delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from outlive.cli.context import Call
from outlive.cli.lease_clock import LeaseClock
from outlive.cli.lookup import backend_of, find_checkpoint, find_run, key_of
from outlive.cli.output.escape import shown, shown_lines
from outlive.cli.output.table import progress
from outlive.cli.output.units import counted, size
from outlive.errors import Corrupt, KeyMissing
from outlive.runs.lease import RUN
from outlive.runtime.runtime import run_now
from outlive.values import Pruned

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.sync.facades import Store, Thread
    from outlive.values import Sizes


_LEFT = "others saved so fast that bytes of it may be left; repeat it"


def remove_thread(call: Call, store: Store, place: Thread, erase: bool) -> None:
    """Delete a thread after saying what goes with it."""
    sizes = _sizes(place)
    count, live = _runs(store, place)
    if sizes is None:
        what, done = f"{shown(place.id)}, which is damaged", ""
    else:
        checkpoints, bytes = counted(sizes.checkpoints, "checkpoint"), size(sizes.stored_bytes)
        what, done = f"{shown(place.id)} with its {checkpoints} ({bytes})", f": {checkpoints}, {bytes}"
    if count:
        what += f" and {counted(count, 'run')}"
    if live is not None:
        what += f"; {shown(live.id)} is live in {live.owner}, and its next write will be refused"
    call.confirm(f"delete thread {what}")
    place.delete(erase=erase)
    call.did(
        f"deleted thread {shown(place.id)}{done}",
        thread=place.id,
        checkpoints=None if sizes is None else sizes.checkpoints,
        freed_bytes=None if sizes is None else sizes.stored_bytes,
        runs=count,
    )


def _sizes(place: Thread) -> Sizes | None:
    """Measure a thread; one that is damaged can be deleted all the same."""
    try:
        return place.size()
    except Corrupt:
        return None


def _runs(store: Store, place: Thread) -> tuple[int, RunInfo | None]:
    """Count the runs of a thread, and return one that is live; without keys nobody can tell which are."""
    try:
        runs = list(store.runs(thread=place.id))
    except (Corrupt, KeyMissing):
        key = key_of(store, place.id)
        return len(run_now(backend_of(store).entries(key.tenant, RUN, thread=key, limit=1_000_000))), None
    clock = LeaseClock.of(store)
    return len(runs), next((run for run in runs if clock.standing(run) == "live"), None)


def remove_checkpoints(
    call: Call, store: Store, place: Thread, said: tuple[str, ...], run: str | None, erase: bool
) -> None:
    """Delete some checkpoints after saying which."""
    records = [find_checkpoint(store, place, one, is_exact=call.is_yes) for one in said]
    ids = [record.id for record in records]
    run_id = None if run is None else find_run(store, run, is_exact=call.is_yes).id
    count = len(records)
    if run_id is not None:
        count += sum(1 for one in place.history(run=run_id, all_namespaces=True) if one.id not in ids)
    names = ", ".join(f"@{record.seq}" for record in records)
    of_run = f"those of run {shown(run_id)}" if run_id else ""
    what = f"delete {counted(count, 'checkpoint')} of thread {shown(place.id)}: {' and '.join(filter(None, (names, of_run)))}"
    call.confirm(what)
    done = place.delete_checkpoints(ids, run=run_id, erase=erase)
    is_ok = done.erased or not erase
    sentence = f"deleted {_told(done)}" + ("" if is_ok else f"; {_LEFT}")
    call.answer([{"thread": place.id, **asdict(done)}], lambda: print(shown_lines(sentence)), is_ok=is_ok)


class Pruning:
    """A prune of some threads, first as a dry run."""

    def __init__(
        self, call: Call, store: Store, names: list[str], options: dict[str, Any], erase: bool
    ) -> None:
        self._call = call
        self._store = store
        self._names = names
        self._options = options
        self._erase = erase

    def go(self, is_dry: bool) -> None:
        planned = [(name, done) for name, done in self._each(dry_run=True) if done.checkpoints]
        total = _sum(done for _, done in planned)
        where = (
            f"thread {shown(self._names[0])}" if len(self._names) == 1 else counted(len(planned), "thread")
        )
        if is_dry or not planned:
            self._tell(planned, f"would delete {_told(total)} of {where}" if planned else "nothing to delete")
            return
        self._call.confirm(f"delete {_told(total)} of {where}")
        self._names = [name for name, _ in planned]
        found = self._each(dry_run=False)
        is_ok = not self._erase or all(done.erased for _, done in found)
        sentence = f"deleted {_told(_sum(done for _, done in found))} of {where}"
        self._tell(found, sentence + ("" if is_ok else f"; {_LEFT}"), is_ok=is_ok)

    def _each(self, *, dry_run: bool) -> list[tuple[str, Pruned]]:
        found = []
        word = "looking" if dry_run else "pruning"
        with progress(word, len(self._names), is_quiet=self._call.is_quiet or len(self._names) < 2) as tell:
            for number, name in enumerate(self._names, 1):
                done = self._store.thread(name).prune(**self._options, erase=self._erase, dry_run=dry_run)
                found.append((name, done))
                tell(number)
        return found

    def _tell(self, found: list[tuple[str, Pruned]], sentence: str, *, is_ok: bool = True) -> None:
        items = [{"thread": name, **asdict(done)} for name, done in found]
        self._call.answer(items, lambda: print(shown_lines(sentence)), is_ok=is_ok)


def _sum(found: Any) -> Pruned:
    total = Pruned()
    for one in found:
        total = Pruned(
            total.checkpoints + one.checkpoints,
            total.chunks + one.chunks,
            total.rewritten + one.rewritten,
            total.freed_bytes + one.freed_bytes,
        )
    return total


def _told(done: Pruned) -> str:
    return f"{counted(done.checkpoints, 'checkpoint')} ({size(done.freed_bytes)})"
