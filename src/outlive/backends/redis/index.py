"""The lines of the indexes of a store, and what they name.

A thread's bucket is one of 1,024, by its digest. Each bucket has an index of threads and one of
entries, in the slot of its threads. A listing asks the buckets in use for a few lines each, by one
exchange with each node, merges them, and reads what the lines name. The index by time is one for
all buckets of a single server. The indexes are derived: one that does not have the lines that it
should have is rebuilt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from outlive.backend import ThreadKey
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.keys import (
    entries_key,
    identity_key,
    recent_key,
    roster_key,
    threads_key,
    to_text,
)
from outlive.backends.redis.merge import Ask, Range
from outlive.backends.redis.repair import IndexRepair
from outlive.backends.redis.rows import pack_args
from outlive.backends.redis.scripts import script
from outlive.backends.redis.session import Session
from outlive.backends.server.attempts import Deadline
from outlive.dataclass import dataclass
from outlive.errors import Corrupt

T = TypeVar("T")


class TornIndex(Exception):
    """Indexes of some buckets do not have the lines that they should have; None: that of all by time."""

    def __init__(self, buckets: set[int] | None) -> None:
        super().__init__(buckets)
        self.buckets = buckets


@dataclass(frozen=True, slots=True)
class Index:
    """Where the lines of an index are, and where they are counted."""

    key_of: Callable[[str, int], str]
    count_field: str
    mark: str = "threads"  # the field without which the count was lost
    count_key_of: Callable[[str, int], str] = roster_key


THREADS = Index(threads_key, "threads")
ENTRIES = Index(entries_key, "entries")
TIMES_OF_BUCKET = Index(recent_key, "listed", "listed")
TIMES_OF_STORE = Index(
    lambda prefix, _: recent_key(prefix, None), "listed", "listed", lambda prefix, _: identity_key(prefix)
)


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of a script on a thread that a line names."""

    digest: bytes
    bucket: int  # of the line
    args: bytes
    thread: ThreadKey | None = None


class IndexReader:
    """Reads indexes, and runs scripts on the threads that their lines name."""

    def __init__(self, session: Session, repair: IndexRepair) -> None:
        self._session = session
        self._repair = repair

    async def repeat(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work; after a repair all of it again: lines read before may be incomplete."""
        try:
            return await work()
        except TornIndex as torn:
            await self._repair.rebuild(torn.buckets)
        try:
            return await work()
        except TornIndex:
            raise Corrupt("an index of this store does not have the lines that it should have") from None

    async def ask_each(self, name: str, questions: Sequence[Question], deadline: Deadline) -> list[Any]:
        """Run a script on each of some threads. When one fails, find out which."""
        keys = [self._session.keys_of(question.digest) for question in questions]
        asked = list(zip(questions, keys, strict=True))
        if torn := {question.bucket for question, key in asked if question.bucket != key.bucket}:
            raise TornIndex(torn)  # a line is in the wrong bucket
        calls = [self._session.script_call(key, name, question.args) for question, key in asked]
        try:
            replies = await self._session.ask_all(calls, deadline.as_timeout_s())
        except Corrupt:
            replies = [
                await self._ask_one(call, question, deadline)
                for call, question in zip(calls, questions, strict=True)
            ]
        answered = zip(questions, replies, strict=True)
        if torn := {question.bucket for question, reply in answered if rows.is_torn_reply(reply)}:
            raise TornIndex(torn)
        return replies

    async def _ask_one(self, call: Call, question: Question, deadline: Deadline) -> Any:
        try:
            return await self._session.ask(call, deadline.as_timeout_s())
        except Corrupt as error:
            thread_id = None if question.thread is None else question.thread.id
            raise Corrupt(error.what, thread=thread_id) from error

    def asking(
        self, index: Index, args: tuple[Any, Any], deadline: Deadline, *, must_exist: bool | None = None
    ) -> Ask:
        """Return what reads lines of some ranges of an index."""
        session = self._session
        is_expected = not session.is_sharded if must_exist is None else must_exist

        async def ask(asked: Sequence[Range], page_size: int) -> list[list[bytes]]:
            # A single server is asked for all at once. In a Cluster each index has its own slot.
            groups = [[part] for part in asked] if session.is_sharded else [asked]
            calls = [
                Call.of(
                    session.slot(group[0].bucket),
                    script("index"),
                    [
                        of(session.prefix, part.bucket)
                        for of in (index.key_of, index.count_key_of)
                        for part in group
                    ],
                    pack_args((page_size, *args, index.mark, index.count_field, is_expected)),
                    *(arg for part in group for arg in (part.low, part.high, len(part.start) + 1)),
                )
                for group in groups
                if group
            ]
            replies = await session.ask_all(calls, deadline.as_timeout_s())
            pages = [page for reply in replies for page in reply]
            if torn := {part.bucket for part, page in zip(asked, pages, strict=True) if page is None}:
                raise TornIndex(None if index is TIMES_OF_STORE else torn)
            return pages

        return ask


def to_digest(hex: bytes, bucket: int) -> bytes:
    """Return the digest in a line of a bucket."""
    try:
        digest = bytes.fromhex(hex.decode())
    except ValueError:
        raise TornIndex({bucket}) from None
    if len(digest) != 16:
        raise TornIndex({bucket})
    return digest


def to_id(encoded: bytes, bucket: int) -> str:
    """Return the id in a line of a bucket."""
    try:
        return to_text(encoded)
    except Corrupt:
        raise TornIndex({bucket}) from None
