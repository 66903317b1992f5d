"""Whichever call begins a thread, every index of the backend shows that thread correctly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from outlive.backend import EntryQuery, EntryRecord, ReencryptedBodies, Removal, ThreadQuery
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, copied, draft, write
from outlive.testing.trial import Trial

FirstCall = Callable[[Probe], Awaitable[Any]]
ONE = chunk("one", 100)
STATUSES = ("", "running", "completed")

# The first call that a thread ever gets, and with it whatever a backend keeps for a few threads
# together.
FIRST_CALLS: dict[str, FirstCall] = {
    "delete": lambda probe: probe.commit(removal=Removal(everything=True)),
    "nothing": lambda probe: probe.commit(),
    "delete and erase": lambda probe: probe.commit(removal=Removal(everything=True, erase=True)),
    "delete and bury": lambda probe: probe.commit(removal=Removal(everything=True, leaves_tombstones=True)),
    "remove": lambda probe: probe.commit(removal=Removal(checkpoints=(("", "a"),))),
    "remove and bury": lambda probe: probe.commit(
        removal=Removal(checkpoints=(("", "a"),), leaves_tombstones=True)
    ),
    "sweep": lambda probe: probe.commit(removal=Removal(chunks=(ONE[0],), chunks_until=9)),
    "reencrypt": lambda probe: probe.commit(reencrypted=ReencryptedBodies()),
    "checkpoint": lambda probe: probe.commit(draft("a", ONE[0]), chunks=(ONE,)),
    "replace": lambda probe: probe.commit(draft("a"), replace=True),
    "write": lambda probe: probe.commit(writes=(write("a", "task"),)),
    "control write": lambda probe: probe.commit(writes=(write("a", "task", -1),)),
    "metadata": lambda probe: probe.commit(metadata=b"metadata"),
    "entry": lambda probe: probe.commit(entries=(EntryRecord("run", "r", b"body", "running", lease_s=60),)),
    "entry without status": lambda probe: probe.commit(entries=(EntryRecord("lock", "l", b"body"),)),
    "entry that goes": lambda probe: probe.commit(entries=(EntryRecord("run", "r", gone=True),)),
    "chunks": lambda probe: probe.commit(chunks=(ONE,)),
    "shared chunks": lambda probe: probe.backend.share(probe.of("elsewhere").thread, probe.thread, [ONE[0]]),
    "copied checkpoint": lambda probe: probe.commit(draft("a", seq=5), expect_empty=True),
    "merge": lambda probe: probe.commit(copied(draft("a"), seq=7), merge=True),
    "merged entry": lambda probe: probe.commit(
        entries=(EntryRecord("run", "r", b"b", "completed"),), merge=True
    ),
    "merged metadata": lambda probe: probe.commit(metadata=b"metadata", metadata_version=3, merge=True),
    "read": lambda probe: probe.dump(),
    "list": lambda probe: probe.backend.threads(ThreadQuery(probe.thread.tenant)),
}

# What may come next. The last of them takes everything away again.
NEXT_CALLS: dict[str, FirstCall] = {
    "checkpoint": lambda probe: probe.commit(draft("b")),
    "entry": lambda probe: probe.commit(entries=(EntryRecord("run", "q", b"body", "running"),)),
    "other status": lambda probe: probe.commit(
        entries=(EntryRecord("run", "q", b"body", "completed", revision=1),)
    ),
    "metadata": lambda probe: probe.commit(metadata=b"other"),
    "remove": lambda probe: probe.commit(removal=Removal(checkpoints=(("", "b"), ("", "a")))),
    "delete": lambda probe: probe.commit(removal=Removal(everything=True)),
}


# After these the listings are compared after every next call; after the others, after the first and
# the last but one.
_THOROUGH = ("delete", "checkpoint", "write", "entry", "metadata", "merge")


class FirstCallContract(Contract):
    async def test_whatever_came_first_a_listing_shows_what_is_there(self, trial: Trial) -> None:
        handle = await trial.probe()
        for first, call in FIRST_CALLS.items():
            probe = handle.of("begun", tenant=first)
            await call(probe)
            await agrees(probe, first)
            for name, next_call in NEXT_CALLS.items():
                await next_call(probe)
                if first in _THOROUGH or name == "remove":
                    await agrees(probe, f"{first}, then {name}")
        assert await handle.backend.audit(None) == []


async def agrees(probe: Probe, after: str) -> None:
    """Compare every listing of the tenant with its only thread, and let the backend audit it."""
    row = await probe.row()
    kept = [await probe.entries(kind) for kind in ("run", "lock")]
    holds = bool(await probe.records() or await probe.backend.writes(probe.thread, None) or any(kept))
    assert (row is not None) == (holds or (row is not None and row.metadata is not None)), (
        f"asked by id after {after}"
    )
    listed = await probe.backend.threads(ThreadQuery(probe.thread.tenant))
    assert listed == ([] if row is None else [row]), f"listed after {after}"
    for kind, own in zip(("run", "lock"), kept, strict=True):
        everywhere = await probe.backend.entries(EntryQuery(probe.thread.tenant, kind))
        assert everywhere == [(probe.thread, entry) for entry in own], f"{kind} after {after}"
        for status in STATUSES:
            answer = await probe.backend.entries(EntryQuery(probe.thread.tenant, kind, statuses=[status]))
            expected = [(probe.thread, entry) for entry in own if entry.status == status]
            assert answer == expected, f"{kind} {status!r} after {after}"
    assert await probe.backend.audit(probe.thread) == [], f"after {after}"
