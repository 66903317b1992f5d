"""Whatever a thread is begun with, every index that is kept beside it shows it as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from outlive.backend import EntryQuery, EntryRecord, ReencryptedBodies, Removal, ThreadQuery
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Waist, chunk, copied, draft, write
from outlive.testing.trial import Trial

FirstCall = Callable[[Waist], Awaitable[Any]]
ONE = chunk("one", 100)
STATUSES = ("", "running", "completed")

# The first call that a thread ever gets, and with it whatever a backend keeps for a few threads together.
FIRST_CALLS: dict[str, FirstCall] = {
    "delete": lambda waist: waist.commit(removal=Removal(everything=True)),
    "nothing": lambda waist: waist.commit(),
    "delete and erase": lambda waist: waist.commit(removal=Removal(everything=True, erase=True)),
    "delete and bury": lambda waist: waist.commit(removal=Removal(everything=True, leaves_tombstones=True)),
    "remove": lambda waist: waist.commit(removal=Removal(checkpoints=(("", "a"),))),
    "remove and bury": lambda waist: waist.commit(
        removal=Removal(checkpoints=(("", "a"),), leaves_tombstones=True)
    ),
    "sweep": lambda waist: waist.commit(removal=Removal(chunks=(ONE[0],), chunks_until=9)),
    "reseal": lambda waist: waist.commit(reencrypted=ReencryptedBodies()),
    "checkpoint": lambda waist: waist.commit(draft("a", ONE[0]), chunks=(ONE,)),
    "replace": lambda waist: waist.commit(draft("a"), replace=True),
    "write": lambda waist: waist.commit(writes=(write("a", "task"),)),
    "control write": lambda waist: waist.commit(writes=(write("a", "task", -1),)),
    "metadata": lambda waist: waist.commit(info=b"info"),
    "entry": lambda waist: waist.commit(entries=(EntryRecord("run", "r", b"body", "running", lease_s=60),)),
    "entry without status": lambda waist: waist.commit(entries=(EntryRecord("lock", "l", b"body"),)),
    "entry that goes": lambda waist: waist.commit(entries=(EntryRecord("run", "r", gone=True),)),
    "chunks": lambda waist: waist.commit(chunks=(ONE,)),
    "shared chunks": lambda waist: waist.backend.share(waist.of("elsewhere").thread, waist.thread, [ONE[0]]),
    "copied checkpoint": lambda waist: waist.commit(draft("a", seq=5), expect_empty=True),
    "merge": lambda waist: waist.commit(copied(draft("a"), seq=7), merge=True),
    "merged entry": lambda waist: waist.commit(
        entries=(EntryRecord("run", "r", b"b", "completed"),), merge=True
    ),
    "merged metadata": lambda waist: waist.commit(info=b"info", info_version=3, merge=True),
    "read": lambda waist: waist.dump(),
    "list": lambda waist: waist.backend.threads(ThreadQuery(waist.thread.tenant)),
}

# What may come next. The last of them takes everything away again.
NEXT_CALLS: dict[str, FirstCall] = {
    "checkpoint": lambda waist: waist.commit(draft("b")),
    "entry": lambda waist: waist.commit(entries=(EntryRecord("run", "q", b"body", "running"),)),
    "other status": lambda waist: waist.commit(
        entries=(EntryRecord("run", "q", b"body", "completed", revision=1),)
    ),
    "metadata": lambda waist: waist.commit(info=b"other"),
    "remove": lambda waist: waist.commit(removal=Removal(checkpoints=(("", "b"), ("", "a")))),
    "delete": lambda waist: waist.commit(removal=Removal(everything=True)),
}


# After these the listings are compared after every next call; after the others, after the first and the last but one.
_THOROUGH = ("delete", "checkpoint", "write", "entry", "metadata", "merge")


class FirstCallContract(Contract):
    async def test_whatever_came_first_a_listing_shows_what_is_there(self, trial: Trial) -> None:
        one = await trial.waist()
        for first, call in FIRST_CALLS.items():
            waist = one.of("begun", tenant=first)
            await call(waist)
            await agrees(waist, first)
            for name, next_call in NEXT_CALLS.items():
                await next_call(waist)
                if first in _THOROUGH or name == "remove":
                    await agrees(waist, f"{first}, then {name}")
        assert await one.backend.audit(None) == []


async def agrees(waist: Waist, after: str) -> None:
    """Compare every listing of the tenant with what its only thread holds, and let the backend check that."""
    row = await waist.row()
    holds = bool(await waist.records() or await waist.backend.writes(waist.thread, None))
    assert (row is not None) == (holds or (row is not None and row.info is not None)), (
        f"asked by id after {after}"
    )
    listed = await waist.backend.threads(ThreadQuery(waist.thread.tenant))
    assert listed == ([] if row is None else [row]), f"listed after {after}"
    for kind in ("run", "lock"):
        own = await waist.entries(kind)
        everywhere = await waist.backend.entries(EntryQuery(waist.thread.tenant, kind))
        assert everywhere == [(waist.thread, entry) for entry in own], f"{kind} after {after}"
        for status in STATUSES:
            found = await waist.backend.entries(EntryQuery(waist.thread.tenant, kind, statuses=[status]))
            expected = [(waist.thread, entry) for entry in own if entry.status == status]
            assert found == expected, f"{kind} {status!r} after {after}"
    assert await waist.backend.audit(waist.thread) == [], f"after {after}"
