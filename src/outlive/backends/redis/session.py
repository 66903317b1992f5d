"""What all parts of the Redis backend share: options, the places of keys, calls with retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from outlive.backend import Commit, ThreadKey
from outlive.backends.redis.client import Call, Client
from outlive.backends.redis.connection import Command, Reply
from outlive.backends.redis.keys import BUCKET_KEYS, Keys, threads_key
from outlive.backends.redis.scripts import script
from outlive.backends.redis.topology import slot_of
from outlive.backends.server.attempts import Attempts, Deadline
from outlive.dataclass import dataclass
from outlive.errors import StoreClosed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What the options of a store say about its records and calls."""

    prefix: str = "outlive:"
    ttl_ms: int = 0
    refreshes_on_read: bool = False
    wait_replicas: int = 0
    max_retries: int | None = None
    idle_connections: int = 0
    allow_eviction: bool = False
    timeout_s: float | None = 30.0  # of a call that names none


class Session:
    """Calls to the servers of one store, each tried again until it succeeds or its time is over."""

    def __init__(self, client: Client, options: RecordOptions, shown: str) -> None:
        self.client = client
        self.options = options
        self.shown = shown
        self.prefix = options.prefix
        self.is_sharded = client.nodes.is_sharded
        self._is_closed = False
        self._slots: dict[int, int] = {}  # by bucket

    def close(self) -> None:
        self._is_closed = True
        self.client.close()

    # Where keys are

    def keys(self, thread: ThreadKey) -> Keys:
        return self.keys_of(thread.digest)

    def keys_of(self, digest: bytes) -> Keys:
        return Keys.of(self.prefix, digest, is_single=not self.is_sharded)

    def bucket_keys(self, bucket: int) -> list[str]:
        """Return the keys of a bucket: its index of threads, its index of entries, its roster."""
        return [key_of(self.prefix, bucket) for key_of in BUCKET_KEYS]

    def slot(self, bucket: int) -> int:
        if bucket not in self._slots:
            self._slots[bucket] = slot_of(threads_key(self.prefix, bucket))
        return self._slots[bucket]

    # Calling

    def deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self.options.timeout_s if timeout_s is None else timeout_s)

    async def attempt(
        self,
        work: Callable[[Deadline], Awaitable[T]],
        timeout_s: float | None = None,
        commit: Commit | None = None,
    ) -> T:
        """Try some work until it succeeds or the time is over."""
        if self._is_closed:
            raise StoreClosed
        deadline, pause = self.deadline(timeout_s), self.client.io_mode.pause
        return await Attempts(self.shown, deadline, self.options.max_retries, pause).run(work, commit)

    def script_call(self, keys: Keys, name: str, *args: Any) -> Call:
        """Return the call of a script on one thread."""
        return Call.of(self.slot(keys.bucket), script(name), keys.all, *args)

    async def ask(self, call: Call, timeout_s: float | None = None) -> Reply:
        return await self.attempt(lambda deadline: self.client.send(call, deadline), timeout_s)

    async def ask_all(self, calls: Sequence[Call], timeout_s: float | None = None) -> list[Reply]:
        """Return the replies of many calls, by one exchange with each node."""
        if not calls:
            return []
        return await self.attempt(lambda deadline: self.client.send_all(calls, deadline), timeout_s)

    async def ask_each_node(self, command: Command) -> list[Reply]:
        """Return the reply of every node to a command; an error is a reply."""
        return await self.attempt(lambda deadline: self.client.send_to_each_node(command, deadline))

    async def scan(self, pattern: str) -> list[bytes]:
        """Return all keys of all nodes that match a pattern."""
        return await self.attempt(lambda deadline: self.client.scan(pattern, deadline))
