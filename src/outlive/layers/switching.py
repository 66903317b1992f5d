"""The two stores of a pair and how they change places: joining, catching up, promotion, failback.

Every step leaves something from which any process can go on. A promotion is one commit in the secondary. A failback is announced
there by one commit, after which the secondary acknowledges nothing; then what is left is carried over; then one commit in the
primary opens it. Whoever finds a failback that was announced and not finished finishes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ..backend import Backend, ThreadKey
from ..errors import (
    BadURL,
    EntryHeld,
    OutliveError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from ..event import FAILBACK, FAILOVER, Event, Watched
from ..runtime import Runtime
from .backlog import Backlog
from .carrying import Carrier, IsNamed, lineage
from .health import Health, is_unreachable
from .loss import has_lost
from .note import Pair
from .pair import PRIMARY, ROLES, SECONDARY, Side, check_match, new_pair, read_side, write_side
from .queue import Queue
from .status import Replication, Switched

_RACES = 10
_PATIENCE_S = 5.0  # for one call that nobody asked for

Errors = Sequence[StoreError | None]  # of the primary and the secondary


class Stores:
    """A primary and a secondary, and which of them is active."""

    def __init__(
        self,
        primary: Backend,
        secondary: Backend,
        *,
        tenant: str,
        runtime: Runtime,
        watched: Watched,
        timeout_s: float | None,
    ) -> None:
        self.both = (primary, secondary)
        self.tenant = tenant
        self.runtime = runtime
        self.is_named: IsNamed = lambda name, data: True
        self.epoch = 0
        self.is_whole = True  # the store that is not active
        self.failovers = 0
        self.is_by_hand = False  # the secondary was promoted by somebody
        self.automatic = 0  # failovers since the primary was last stable
        self.health = (Health(), Health())
        self.last_error: str | None = None
        self.branched: set[str] = set()  # threads that both stores had gone on with
        self.patience_s = min(_PATIENCE_S, timeout_s or _PATIENCE_S)
        self._watched = watched
        self._key: bytes | None = None  # the naming key
        self._met = [False, False]
        self._switching = runtime.mutex()

    def after_fork(self) -> None:
        """A child has its parent's locks, which nobody of its own would release."""
        self._switching = self.runtime.mutex()

    # Which is which

    @property
    def active(self) -> Backend:
        return self.both[self.epoch % 2]

    @property
    def other(self) -> Backend:
        return self.both[1 - self.epoch % 2]

    @property
    def is_failed_over(self) -> bool:
        return self.epoch % 2 == SECONDARY

    def carrier(self, source: int) -> Carrier:
        return Carrier(
            self.both[source], self.both[1 - source], self.is_named, self.runtime.now, self.patience_s
        )

    def note_health(self, role: int, error: BaseException | None) -> None:
        """Remember whether a store answered."""
        health = self.health[role]
        is_healthy = error is None
        if health.is_healthy != is_healthy or not health.since:
            health.is_healthy, health.since = is_healthy, self.runtime.now()
        if error is not None:
            self.last_error = f"{ROLES[role]}: {error}"

    async def meet(self, role: int) -> None:
        """Make sure that a store is open and has the naming key of the pair."""
        if self._met[role]:
            return
        key = await self.both[role].identity(self._key or b"")
        if self._key is not None and key != self._key:
            raise other_key()
        self._met[role] = True

    async def side(self, role: int, timeout_s: float = _PATIENCE_S) -> Side | None:
        """Ask a store what it says of the pair; raise when it cannot be reached."""
        try:
            await self.meet(role)
            found = await read_side(self.both[role], self.tenant, min(timeout_s, self.patience_s))
        except StoreError as error:
            self.note_health(role, error)
            raise
        self.note_health(role, None)
        return found

    async def _sides(
        self, timeout_s: float = _PATIENCE_S, absent: Errors = (None, None)
    ) -> tuple[list[Side | None], Errors]:
        """Ask both stores, but for one that is known not to answer."""
        sides: list[Side | None] = [None, None]
        errors = list(absent)
        for role in (PRIMARY, SECONDARY):
            if absent[role] is None:
                try:
                    sides[role] = await self.side(role, timeout_s)
                except StoreError as error:
                    errors[role] = error
        return sides, errors

    async def _write(self, role: int, old: Side | None, new: Side) -> Side:
        return await write_side(self.both[role], self.tenant, old, new, self.patience_s)

    # Joining

    async def join(self, offered: bytes, queue: Queue, options: Replication) -> bytes:
        """Open the pair, or make one; return the naming key."""
        absent = await self._agree_on_key(offered)
        for _ in range(_RACES):
            with contextlib.suppress(EntryHeld):  # somebody else opens it at the same moment
                await self._join(absent, queue, options)
                break
        assert self._key is not None
        return self._key

    async def _agree_on_key(self, offered: bytes) -> Errors:
        """Let both have one naming key; return why one of them did not answer. When none does, raise."""
        errors: list[StoreError | None] = [None, None]
        for role in (SECONDARY, PRIMARY) if await self._knows_pair(SECONDARY) else (PRIMARY, SECONDARY):
            try:
                key = await self.both[role].identity(self._key or offered)
            except StoreError as error:
                if not is_unreachable(error) or any(errors):
                    raise
                errors[role] = error
                self.note_health(role, error)
                continue
            if self._key is not None and key != self._key:
                raise other_key()
            self._key, self._met[role] = key, True
        return errors

    async def _knows_pair(self, role: int) -> bool:
        """Tell whether a store has been one of a pair: then it has the key, and a primary that has lost everything adopts it."""
        try:
            return await read_side(self.both[role], self.tenant, self.patience_s) is not None
        except OutliveError:  # a server without a schema, or none at all
            return False

    async def _join(self, absent: Errors, queue: Queue, options: Replication) -> None:
        (primary, secondary), (no_primary, no_secondary) = await self._sides(absent=absent)
        if no_primary is not None:
            await self._join_without_primary(secondary, no_primary, queue, options)
        elif no_secondary is not None:
            self._join_without_secondary(primary, no_secondary)
        elif primary is not None and secondary is not None:
            check_match(primary, secondary)
            if primary.is_paused != (not options.is_enabled):
                primary, secondary = await self._pause(primary, secondary, not options.is_enabled)
            await self._adopt(primary, secondary)
        elif secondary is not None:  # the primary has lost what it had
            await self._replace_primary(secondary)
        else:
            await self._add_secondary(primary)

    async def _pause(self, primary: Side, secondary: Side, is_paused: bool) -> tuple[Side, Side]:
        """While replication is switched off the secondary is left behind: afterwards it gets everything."""
        primary = await self._write(PRIMARY, primary, replace(primary, is_paused=is_paused))
        return primary, await self._write(SECONDARY, secondary, replace(secondary, is_whole=False))

    async def _join_without_primary(
        self, secondary: Side | None, error: StoreError, queue: Queue, options: Replication
    ) -> None:
        if secondary is None:
            raise error
        self.epoch, self.is_whole = secondary.epoch, True
        if self.epoch % 2 == PRIMARY:
            if not (options.auto_failover and options.is_enabled and secondary.is_whole):
                raise error
            await self.promote(queue, automatic=True)

    def _join_without_secondary(self, primary: Side | None, error: StoreError) -> None:
        if primary is None or primary.epoch % 2 == SECONDARY:
            raise error
        self.epoch = primary.epoch

    async def _add_secondary(self, primary: Side | None) -> None:
        """The secondary is new, or has lost what it had: it gets all that the primary has."""
        if primary is None:
            primary = await self._write(PRIMARY, None, Side(new_pair(), PRIMARY))
        epoch = (
            primary.epoch + primary.epoch % 2
        )  # in an odd epoch the secondary was active: what it had is gone
        if epoch != primary.epoch:
            primary = await self._write(PRIMARY, primary, replace(primary, epoch=epoch, is_whole=True))
        is_empty = not await self.both[PRIMARY].threads(self.tenant, limit=1, heads=False)
        secondary = Side(primary.pair, SECONDARY, epoch, is_whole=is_empty)
        secondary = await self._write(SECONDARY, None, secondary)
        self._enter(epoch, is_whole=is_empty)

    async def _replace_primary(self, secondary: Side) -> None:
        """An empty primary does not serve: the secondary has everything."""
        epoch = secondary.epoch + 1 - secondary.epoch % 2
        if epoch != secondary.epoch:
            await self._write(
                SECONDARY, secondary, replace(secondary, epoch=epoch, is_whole=True, is_by_hand=False)
            )
        await self._write(PRIMARY, None, Side(secondary.pair, PRIMARY, epoch, is_whole=False))
        self._enter(epoch, is_whole=False)

    # In which epoch we are

    async def refresh(self, timeout_s: float = _PATIENCE_S) -> bool:
        """Look where the pair is by now; tell whether that is another epoch than we thought."""
        before = self.epoch
        with contextlib.suppress(EntryHeld):  # somebody else is at it: the next look tells
            await self._look(timeout_s)
        return self.epoch != before

    async def _look(self, timeout_s: float) -> None:
        (primary, secondary), errors = await self._sides(timeout_s)
        if primary is not None and secondary is not None:
            await self._adopt(primary, secondary)
        elif secondary is not None and errors[PRIMARY] is None:
            await self._replace_primary(secondary)
        elif primary is not None and errors[SECONDARY] is None:
            await self._add_secondary(primary)
        elif secondary is not None and secondary.epoch % 2 == SECONDARY and secondary.epoch > self.epoch:
            self._enter(secondary.epoch, is_whole=self.is_whole)
        elif primary is not None and primary.epoch % 2 == PRIMARY and primary.epoch > self.epoch:
            self._enter(primary.epoch, is_whole=self.is_whole)

    async def _adopt(self, primary: Side, secondary: Side) -> None:
        epoch = max(primary.epoch, secondary.epoch)
        if epoch % 2 == PRIMARY and primary.epoch < epoch:
            await self._finish_failback(primary, epoch)
        elif epoch % 2 == SECONDARY and secondary.epoch < epoch:
            raise StoreUnavailable(
                "the secondary is behind the epoch in which it is active: it has lost commits"
            )
        self.is_by_hand = secondary.is_by_hand
        self._enter(epoch, is_whole=(secondary if epoch % 2 == PRIMARY else primary).is_whole)

    async def rise(self, least: int) -> bool:
        """Go to an epoch of the same store that is not below that of a thread which came from elsewhere; tell whether we did."""
        async with self._switching:
            now = self.epoch
            (primary, secondary), _ = await self._sides()
            if primary is None or secondary is None or least <= now:
                return False
            if max(primary.epoch, secondary.epoch) != now or (primary, secondary)[now % 2].epoch != now:
                return False  # others are changing places
            sides = [(PRIMARY, primary), (SECONDARY, secondary)]
            for role, side in (
                reversed(sides) if now % 2 == SECONDARY else sides
            ):  # the active one says it first
                await self._write(role, side, replace(side, epoch=least + (least - now) % 2))
            self._enter(least + (least - now) % 2, is_whole=self.is_whole)
            return True

    async def has_lost(self, key: ThreadKey) -> bool:
        """Tell whether the primary has lost commits. It is left then, whatever was said about leaving it: what was acknowledged
        is in the secondary alone.
        """
        if not await has_lost(*self.both, key, self.patience_s):
            return False
        async with self._switching:
            await self._leave_primary()
        return True

    async def _leave_primary(self) -> None:
        (primary, secondary), _ = await self._sides()
        if primary is None or secondary is None or max(primary.epoch, secondary.epoch) % 2 == SECONDARY:
            return  # somebody else has done it
        epoch = max(primary.epoch, secondary.epoch) + 1
        self.last_error = "the primary has lost commits: the secondary has them"
        await self._write(
            SECONDARY, secondary, replace(secondary, epoch=epoch, is_whole=True, is_by_hand=False)
        )
        await self._write(PRIMARY, primary, replace(primary, epoch=epoch, is_whole=False))
        self._enter(epoch, is_whole=False)

    def _enter(self, epoch: int, *, is_whole: bool) -> None:
        if epoch > self.epoch:
            name = FAILOVER if epoch % 2 == SECONDARY else FAILBACK
            self.failovers += name == FAILOVER
            self._watched.tell(Event(name, "", status=f"epoch {epoch}"))
        self.epoch, self.is_whole = max(epoch, self.epoch), is_whole

    # Changing places

    async def promote(self, queue: Queue, *, automatic: bool = False) -> Switched:
        """Make the secondary the active store. What the primary has queued is carried over first when it can be reached."""
        return await self._insist(lambda: self._promote(queue, automatic))

    async def _insist(self, switch: Callable[[], Awaitable[Switched]]) -> Switched:
        """Change places, one at a time in this process; when another process is faster, look again."""
        async with self._switching:
            for _ in range(_RACES):
                with contextlib.suppress(EntryHeld):
                    return await switch()
                await self.refresh()
        raise StoreBusy(
            "other processes keep changing the roles of this pair; look at store.replication_status()"
        )

    async def _promote(self, queue: Queue, automatic: bool) -> Switched:
        if not automatic:  # else we have just looked
            await self.refresh()
        if self.is_failed_over:
            return Switched(self.epoch, 0)
        carried = 0 if automatic else await self._carry_if_reachable(queue)
        secondary = await self.side(SECONDARY)
        if secondary is None or not secondary.is_whole:
            raise StoreUnavailable(
                "the secondary does not have everything yet; store.replication_status() tells what is missing"
            )
        epoch = max(self.epoch, secondary.epoch) + 1
        epoch += epoch % 2 == PRIMARY
        promoted = replace(secondary, epoch=epoch, is_by_hand=not automatic)
        await self._write(SECONDARY, secondary, promoted)
        self.automatic += automatic
        self.is_by_hand = not automatic
        self._enter(epoch, is_whole=True)
        await self._tell_primary(epoch)
        return Switched(epoch, carried)

    async def _carry_if_reachable(self, queue: Queue) -> int:
        try:
            return await self.drain(PRIMARY, queue)
        except StoreError as error:
            if not is_unreachable(error):
                raise
            return 0

    async def _tell_primary(self, epoch: int) -> None:
        """Let those who can still reach the primary know, if we can; the secondary's word is what counts."""
        with contextlib.suppress(StoreError, EntryHeld):
            if self.health[PRIMARY].is_healthy and (primary := await self.side(PRIMARY)) is not None:
                await self._write(PRIMARY, primary, replace(primary, epoch=epoch))

    async def failback(self, queue: Queue) -> Switched:
        """Make the primary the active store again, after it got everything; raise when it cannot."""
        return await self._insist(lambda: self._failback(queue))

    async def _failback(self, queue: Queue) -> Switched:
        await self.refresh()
        if not self.is_failed_over:
            return Switched(self.epoch, 0)
        primary, secondary = await self.side(PRIMARY), await self.side(SECONDARY)
        if secondary is None:
            raise StoreUnavailable("the secondary has lost what it had, and there is nothing to go back with")
        if primary is None or not primary.is_whole:
            await self.copy_all(SECONDARY)
            primary = await self.side(PRIMARY)
        carried = await self.drain(SECONDARY, queue) + await self.drain(PRIMARY, queue)
        epoch = secondary.epoch + 1
        await self._write(
            SECONDARY, secondary, replace(secondary, epoch=epoch, is_whole=True, is_by_hand=False)
        )
        # From here on nobody's commit to the secondary is acknowledged. A crash leaves an announced failback.
        assert primary is not None
        carried += await self._finish_failback(primary, epoch)
        self._enter(epoch, is_whole=True)
        branched, self.branched = self.branched, set()
        return Switched(epoch, carried, tuple(sorted(branched)))

    async def _finish_failback(self, primary: Side, epoch: int) -> int:
        carried = await self.drain(SECONDARY, None)
        with contextlib.suppress(EntryHeld):  # somebody else has finished it
            await self._write(PRIMARY, primary, replace(primary, epoch=epoch, is_whole=True))
        return carried

    # Catching up

    async def drain(self, source: int, queue: Queue | None, *, mine: str | None = None) -> int:
        """Carry over what a store has queued; return how many commits. See `Backlog.drain`."""
        await self.meet(1 - source)
        backlog = self.backlog(source)
        try:
            return await backlog.drain(queue, mine)
        except StoreError as error:
            if is_unreachable(error):
                self.note_health(1 - source, error)
            raise
        finally:
            if source != self.epoch % 2:  # news of a store that was left
                await self._note_branches(backlog.carried)

    async def _note_branches(self, carried: dict[ThreadKey, set[Pair]]) -> None:
        """Remember the threads that both stores had gone on with."""
        for key, pairs in carried.items():
            for namespace in {namespace for namespace, _ in pairs}:
                line = await lineage(self.active, key, namespace, self.patience_s)
                if any(id not in line for other, id in pairs if other == namespace):
                    self.branched.add(key.id)

    async def copy_all(self, source: int) -> None:
        """Carry over everything that a store has; then the other one is whole."""
        target = 1 - source
        await self.meet(target)
        await self.backlog(source).carry_everything()
        old = await self.side(target)
        if old is None:
            mine = await self.side(source)
            assert mine is not None
            old = await self._write(target, None, Side(mine.pair, target, mine.epoch, is_whole=False))
        await self._write(target, old, replace(old, is_whole=True))
        self.is_whole = True

    def backlog(self, role: int) -> Backlog:
        """Return what a store has queued for the other one."""
        return Backlog(self.both[role], self.carrier(role), self.tenant, self.runtime, self.patience_s)


def other_key() -> BadURL:
    return BadURL(
        "the secondary holds a store of its own, with another naming key; give an empty one: "
        "it becomes a copy of the primary by itself"
    )
