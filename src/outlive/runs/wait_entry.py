"""What a run waits for, as the backend stores it: a question, an event or a sleep.

It is an entry of kind "wait" under (run, name). Two sides write it, the run that asks and the
process that answers, and each write expects the rank that was read. So of an ask and an answer at
the same moment one comes first, and the other one sees it:

- A run is suspended by one commit that writes its own record and every open wait that it waits for.
  An answer that came in between changed the rank of the wait, and refuses the commit.
- An answer reads the waits before the run. If the run is suspended in between, the wait has
  another rank, and the answer is refused and tried again. The other way round, it could see the run "running",
  then the open wait, and leave a run that sleeps with its answer.
- An answer to a waiting run writes the run's record too, even if it does not wake it yet. And it
  reads the run a first time before the waits: if its rank is the same afterwards, no other answer
  came in between. So of several answers at once the last sees all others, and wakes the run.

An answer that comes before its question is stored like any other, without a digest of what was
asked. The first ask of that name takes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from outlive.backend import ABSENT, NEXT, EntryQuery, EntryRecord, ThreadKey
from outlive.backend.entries import WAIT
from outlive.backend.paging import all_entries
from outlive.dataclass import dataclass
from outlive.errors import BadArgument, TypeChanged, UnknownTag, well_formed
from outlive.format.codec import Codec
from outlive.runs.lease import RUN, find
from outlive.runs.waiting import INNER_PREFIX, Mode
from outlive.threads.engine import Engine
from outlive.values import moment

OPEN, ANSWERED, EXPIRED, WITHDRAWN = "open", "answered", "expired", "withdrawn"
QUESTION, EVENT, SLEEP, INNER = "question", "event", "sleep", "run"  # INNER: a run in the block of this one
STATUSES = (OPEN, ANSWERED, EXPIRED, WITHDRAWN)
MAX_BODY = 1 << 20  # bytes
_ROOM = 1 << 16  # bytes that a question leaves for its answer
_PAGE = 200


@dataclass(frozen=True, slots=True)
class Wait:
    """A question, an event or a sleep. Times are microseconds since 1970; 0: none."""

    name: str
    type: str = ""  # "": an answer that came before its question
    status: str = OPEN
    payload: Any = None
    schema: Mapping[str, Any] | None = None
    digest: bytes | None = None  # of what was asked
    agent: str | None = None
    asked_at: int = 0
    due_at: int = 0
    value: Any = None
    by: str | None = None
    answered_at: int = 0
    token: bytes | None = None  # of the call that answered
    attempt: int = 0
    order: int = 0  # among the steps of the run
    group: tuple[str, ...] = ()  # the names that are waited for together
    mode: Mode = "all"
    refused: str | None = None  # why the last answer was, and it is asked again
    asks_again: bool = False  # it expired, and the run failed by that: the next attempt asks again
    entry: EntryRecord | None = field(default=None, compare=False, repr=False)

    @property
    def is_settled(self) -> bool:
        """Tell whether it is answered, or its time is over."""
        return self.status in (ANSWERED, EXPIRED)

    def is_overdue(self, now: int) -> bool:
        """Tell whether its deadline has passed, and no process has noted that yet."""
        return self.status == OPEN and 0 < self.due_at <= now

    @property
    def inner_run(self) -> str | None:
        """The id of the run in the block of this one that it waits for."""
        payload = self.payload
        is_inner = self.type == INNER and isinstance(payload, list) and payload
        return payload[0] if is_inner and isinstance(payload[0], str) else None

    @property
    def rank(self) -> tuple[int, int, int]:
        return ABSENT if self.entry is None else self.entry.rank


_TYPES: dict[str, Any] = {
    "type": str, "schema": Mapping | None, "agent": str | None, "asked_at": int, "due_at": int, "by": str | None,
    "answered_at": int, "refused": str | None,
}  # fmt: skip
_FIELDS = (
    "type", "payload", "schema", "digest", "agent", "asked_at", "due_at", "value", "by", "answered_at", "token",
    "attempt", "order", "group", "mode", "refused", "asks_again",
)  # fmt: skip


def check_asked_name(name: object) -> str:
    """Return the name of something that can be answered: not that of a sleep or an inner run. Raises BadArgument."""
    if isinstance(name, str) and is_unasked_name(name):
        raise BadArgument(
            "names that begin with 'sleep#' or 'sleep=' are those of sleeps, and with 'run=' those of runs inside a "
            f"run, not {name!r:.100}"
        )
    return check_name(name)


def is_unasked_name(name: str) -> bool:
    """Tell whether a name is that of a sleep or an inner run."""
    return name.startswith(("sleep#", "sleep=", INNER_PREFIX))


def check_name(name: object) -> str:
    """Return the name of a question or event. Raises BadArgument."""
    if not isinstance(name, str) or not name or "\n" in name or len(name) > 200:
        raise BadArgument(f"the name of a wait must be one line of 1 to 200 characters, not {name!r:.100}")
    return name


def digest_of(codec: Codec, name: str, *asked: Any) -> bytes:
    """Return a digest of what is asked; dicts that are equal have the same. Raises Unencodable."""
    where = f"question {name!r}"
    codec.pack(list(asked), where)  # refuses what refers to itself
    packed = codec.pack(_in_order(list(asked)), where)
    return hashlib.blake2b(packed, digest_size=8, person=b"outlive.wait").digest()


def _in_order(value: Any) -> Any:
    if type(value) is dict:
        items = sorted(value.items(), key=lambda item: (type(item[0]).__name__, repr(item[0])))
        return {key: _in_order(item) for key, item in items}
    return [_in_order(item) for item in value] if type(value) is list else value


def put(codec: Codec, run_id: str, wait: Wait, rank: tuple[int, int, int] | None = None) -> EntryRecord:
    """Return the entry that stores a wait in place of the one that was read.

    `rank` is the one that the run writes with. Without it the store gives the next fence.
    """
    body = codec.pack({name: getattr(wait, name) for name in _FIELDS}, f"wait {wait.name!r}")
    limit = MAX_BODY - _ROOM if wait.status == OPEN else MAX_BODY
    if len(body) > limit:
        raise BadArgument(
            f"{wait.name!r} has {len(body):,} bytes with its payload, schema and answer, and at most "
            f"{limit:,} can be stored; save large values in the state instead"
        )
    epoch, fence, revision = (wait.rank[0], NEXT, 0) if rank is None else rank
    return EntryRecord(
        WAIT, f"{run_id}\n{wait.name}", body, wait.status,
        epoch=epoch, fence=fence, revision=revision, expect=wait.rank,
    )  # fmt: skip


def next_rank(wait: Wait, epoch: int, fence: int) -> tuple[int, int, int]:
    """Return the rank with which a run writes a wait: greater than that of any answer to it."""
    stored = wait.rank
    return max((epoch, fence, 1), (stored[0], stored[1], stored[2] + 1))


def unpack_wait(codec: Codec, thread: str, entry: EntryRecord, *, opaque: bool = False) -> Wait:
    """Return a stored wait. With `opaque`, values of registered types stay packed."""
    with well_formed(f"wait {entry.key!r}", thread):
        fields = codec.unpack(entry.body or b"", opaque=opaque)
        name = entry.key.rsplit("\n", 1)[1]
        known = {key: fields[key] for key in _FIELDS}
        known["group"] = tuple(known["group"])
        for field_name, type in _TYPES.items():
            if not isinstance(known[field_name], type):
                raise TypeError(field_name)
        for at in (known["asked_at"], known["due_at"], known["answered_at"]):
            moment(at)  # raises if it is no date
        return Wait(name, status=entry.status, entry=entry, **known)


def unpack_known(codec: Codec, body: bytes | None) -> Any:
    """Return a stored value; if it has types that this process does not know, those of all registered types stay packed."""
    try:
        return codec.unpack(body or b"")
    except (UnknownTag, TypeChanged):
        return codec.unpack(body or b"", opaque=True)


async def read_waits(engine: Engine, key: ThreadKey, run_id: str, *, opaque: bool = False) -> dict[str, Wait]:
    """Return all waits of a run by name."""
    query = EntryQuery(key.tenant, WAIT, thread=key, prefix=f"{run_id}\n", limit=_PAGE)
    waits: dict[str, Wait] = {}
    for _, entry in await all_entries(engine.backend, query):
        # An id may contain a line break: then the prefix also matches waits of other runs.
        if "\n" not in entry.key[len(run_id) + 1 :]:
            wait = unpack_wait(engine.codec, key.id, entry, opaque=opaque)
            waits[wait.name] = wait
    return waits


async def read_run(engine: Engine, key: ThreadKey, run_id: str) -> tuple[EntryRecord | None, dict[str, Wait]]:
    """Return a run and its waits as they were at one moment, with values of registered types packed."""
    # An answer to a waiting run changes its rank, and so does all that suspends or claims it. So
    # the same rank before and after the waits were read means that nothing came in between.
    run = await find(engine, key, RUN, run_id)
    while True:
        waits = await read_waits(engine, key, run_id, opaque=True)
        before, run = run, await find(engine, key, RUN, run_id)
        if run is None or (before is not None and before.rank == run.rank):
            return run, waits


def withdrawn(wait: Wait) -> Wait:
    return replace(wait, status=WITHDRAWN)
