"""One connection to PostgreSQL, in either io_mode, that never waits past a deadline.

It uses libpq's connection object directly: everything is sent and received in binary, nothing is
adapted, and psycopg generators say when to wait for the socket. Only that waiting differs between
sync and async. A connection that missed a deadline or was cancelled still expects an answer: it is
closed, never used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Any, TypeVar

from psycopg import OperationalError, conninfo, generators, pq

from outlive.backends.server.attempts import AttemptFailed, lock_ms
from outlive.backends.server.sockets import Wait, look_up
from outlive.backends.server.urls import hide_secrets
from outlive.errors import (
    BadArgument,
    Corrupt,
    OutliveError,
    SchemaMissing,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from outlive.runtime.platform import READ, system
from outlive.runtime.runtime import Deadline

T = TypeVar("T")
Parameter = bytes | None
IDLE_MS = 20_000  # between two statements of a transaction; longer means that its client is gone
_OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Connection:
    """A connection. Used by one call at a time."""

    def __init__(self, connection: pq.abc.PGconn, wait: Wait, *, prepares: bool) -> None:
        self._connection = connection
        self._wait = wait
        self._prepares = prepares
        self._names: dict[str, bytes] = {}
        self._is_broken = False

    @property
    def is_usable(self) -> bool:
        """Tell whether the next call can start on it: open, and in no transaction."""
        return (
            not self._is_broken
            and self._connection.status == pq.ConnStatus.OK
            and self._connection.transaction_status == pq.TransactionStatus.IDLE
        )

    def has_ended(self) -> bool:
        """Tell whether the server closed an idle connection, without a round trip."""
        return bool(system.wait_for_socket(self._connection.socket, READ, 0))

    @property
    def is_in_transaction(self) -> bool:
        """Tell whether a transaction waits to be ended, on a connection that can still be used."""
        return (
            not self._is_broken
            and self._connection.status == pq.ConnStatus.OK
            and self._connection.transaction_status
            in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
        )

    @property
    def is_broken(self) -> bool:
        """Tell whether the other side went away, or did not answer."""
        return self._is_broken or self._connection.status != pq.ConnStatus.OK

    def close(self) -> None:
        self._connection.finish()

    async def prepare(self, statement: str, deadline: Deadline) -> None:
        """Have the server parse a statement, once for this connection."""
        if self._prepares and statement not in self._names:
            # Named by content: a pooler that shares connections can confuse it only with itself.
            name = b"outlive_" + hashlib.blake2b(statement.encode(), digest_size=8).hexdigest().encode()
            await self._ask(lambda: self._connection.send_prepare(name, statement.encode()), deadline)
            self._names[statement] = name

    async def prepare_all(self, statements: Sequence[str], deadline: Deadline) -> None:
        """Prepare the statements of the common calls, if their tables are there."""
        try:
            for statement in statements:
                await self.prepare(statement, deadline)
        except SchemaMissing:
            pass  # the store is being opened for the first time
        except BaseException:
            self.close()
            raise

    async def query(
        self, statement: str, parameters: Sequence[Parameter], deadline: Deadline
    ) -> pq.abc.PGresult:
        """Do one statement and return its rows, in binary."""
        await self.prepare(statement, deadline)
        return (await self._ask(lambda: self._send(statement, parameters), deadline))[-1]

    def _send(self, statement: str, parameters: Sequence[Parameter]) -> None:
        values, formats = list(parameters), [1] * len(parameters)  # psycopg 3.2 takes lists only
        if (name := self._names.get(statement)) is not None:
            self._connection.send_query_prepared(name, values, formats, 1)
        else:
            self._connection.send_query_params(statement.encode(), values, None, formats, 1)

    async def exchange(
        self, *calls: tuple[str, Sequence[Parameter]], deadline: Deadline
    ) -> list[pq.abc.PGresult]:
        """Do several statements in one round trip, up to the first that fails; return their rows."""
        for statement, parameters in calls:
            if parameters:
                await self.prepare(statement, deadline)

        def send() -> None:
            self._connection.enter_pipeline_mode()
            for statement, parameters in calls:
                self._send(statement, parameters)
            self._connection.pipeline_sync()

        return await self._ask(send, deadline, calls=len(calls))

    async def notified(self, deadline: Deadline) -> bool:
        """Wait for a notification; return False when the time is over."""
        while True:
            try:
                self._connection.consume_input()
            except OperationalError as error:
                self._is_broken = True
                raise AttemptFailed(_first_line(str(error)), sent=False) from None
            is_notified = False
            while self._connection.notifies() is not None:
                is_notified = True
            if is_notified or not await self._wait(self._connection.socket, READ, deadline):
                return is_notified

    @contextlib.asynccontextmanager
    async def transaction(self, deadline: Deadline) -> AsyncIterator[None]:
        """Do what is inside in one transaction, which the server ends if its client is gone."""
        limits = f"set local lock_timeout = {lock_ms(deadline)}; set local idle_in_transaction_session_timeout = {IDLE_MS}"
        await self.run(f"begin; {limits}", deadline)
        try:
            yield
        except BaseException:
            if self.is_in_transaction:
                await self.run("rollback", deadline)
            raise
        await self.run("commit", deadline)

    async def run(self, script: str, deadline: Deadline) -> None:
        """Do a text of several statements."""
        await self._ask(lambda: self._connection.send_query(script.encode()), deadline)

    def _answers(self, calls: int) -> Generator[Any, Any, list[pq.abc.PGresult]]:
        """Receive the answers to statements that were sent together, and to the end of that."""
        yield from generators.send(self._connection)
        results: list[pq.abc.PGresult] = []
        for _ in range(calls + 1):
            results += yield from generators.fetch_many(self._connection)
        self._connection.exit_pipeline_mode()
        return results[:calls]

    async def _ask(
        self, send: Callable[[], None], deadline: Deadline, calls: int | None = None
    ) -> list[pq.abc.PGresult]:
        try:
            send()
            steps = generators.execute(self._connection) if calls is None else self._answers(calls)
            results: list[pq.abc.PGresult] = await self._drive(steps, deadline)
        except OperationalError as error:
            self._is_broken = True
            raise AttemptFailed(_first_line(str(error)), sent=True) from None
        except AttemptFailed:
            self._is_broken = True
            raise
        except BaseException:  # a cancellation: the answer may still come
            self.close()
            raise
        for result in results:
            if result.status not in _OK:
                refused = refusal(result)
                self._is_broken = self._is_broken or (isinstance(refused, AttemptFailed) and refused.is_over)
                raise refused
        return results

    async def _drive(self, steps: Generator[Any, Any, T], deadline: Deadline) -> T:
        """Run a psycopg generator to its end, waiting where it asks to."""
        fileno = self._connection.socket
        try:
            want = next(steps)
            while True:
                ready = await self._wait(fileno, want, deadline)
                if not ready:
                    raise AttemptFailed(f"no answer within {deadline.timeout_s:.3g} s", sent=True)
                deadline.note_progress()
                want = steps.send(ready)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


# Connecting --------------------------------------------------------------------------------------


async def connect(
    hosts: Sequence[dict[str, Any]],
    wait: Wait,
    deadline: Deadline,
    *,
    prepares: bool,
    secrets: tuple[str, ...],
) -> Connection:
    """Connect to the first host that accepts, at any of its addresses."""
    reasons = []
    for place, host in enumerate(hosts):
        share = Deadline(deadline.remaining_s() / (len(hosts) - place))
        try:
            addresses = await _resolve(host, wait, share)
            for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
                try:
                    connection = await _open(address, wait, Deadline(share.remaining_s() / left))
                    return Connection(connection, wait, prepares=prepares)
                except OperationalError as error:
                    reasons.append(_first_line(str(error)))
        except AttemptFailed as lost:
            reasons.append(lost.reason)
    text = hide_secrets("; ".join(dict.fromkeys(reasons)), secrets)
    if final := next((why for mark, why in _FINAL.items() if re.search(mark, text)), None):
        raise StoreUnavailable(f"PostgreSQL refused the connection: {text}; {final}")
    raise AttemptFailed(text, sent=False)


# Errors not worth another attempt, by their text: libpq has no error codes while connecting.
_FINAL = {
    "password authentication failed": "check user and password of the URL",
    "no password supplied": "give a password in the URL or in PGPASSWORD",
    "no pg_hba.conf entry": "allow this host in the server's pg_hba.conf",
    'role ".*" does not exist|is not permitted to log in': "check the user of the URL",
    'database ".*" does not exist': "create it with createdb, or check the URL",
    "certificate": "check the sslmode and sslrootcert of the URL",
    "does not support SSL": "check the sslmode of the URL",
}


async def _open(host: dict[str, Any], wait: Wait, deadline: Deadline) -> pq.abc.PGconn:
    steps = generators.connect(conninfo.make_conninfo("", **host))
    try:
        fileno, want = next(steps)
        while True:
            ready = await wait(fileno, want, deadline)
            if not ready:
                raise OperationalError(f"no connection within {deadline.timeout_s:.3g} s")
            fileno, want = steps.send(ready)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def _resolve(host: dict[str, Any], wait: Wait, deadline: Deadline) -> list[dict[str, Any]]:
    """Return the host at each of its addresses. libpq would resolve names without a deadline."""
    name = host.get("host") or ""
    if not name or name.startswith(("/", "@")) or host.get("hostaddr"):
        return [host]
    addresses = await look_up(name, wait, deadline)
    if not addresses:
        raise AttemptFailed(f"host {name!r} cannot be found", sent=False)
    return [{**host, "hostaddr": address} for address in addresses]


def split_hosts(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one set of parameters per host of a URL that names several."""
    names = str(parameters.get("host") or "").split(",")
    ports = str(parameters.get("port") or "").split(",")
    addresses = str(parameters.get("hostaddr") or "").split(",")
    count = max(len(names), len(addresses))
    return [
        {
            **parameters,
            "host": names[place] if place < len(names) else "",
            "port": ports[place] if place < len(ports) else ports[-1],
            "hostaddr": addresses[place] if place < len(addresses) else "",
        }
        for place in range(count)
    ]


# Errors of the server ----------------------------------------------------------------------------

_LATER = {
    "57P01", "57P02", "57P03", "57P05",  # it stops, crashed, starts; we were idle for too long
    # A transaction took too long between two statements or as a whole, and was rolled back.
    "25P03", "25P04",
    "25006",  # it is read-only: a standby, or demoted
    "53300",  # too many connections
    "40001", "40P01",  # serialization, deadlock: nothing was done
    "0A000",  # a cached plan was overtaken by a migration
}  # fmt: skip


def refusal(result: pq.abc.PGresult) -> Exception:
    """Turn an error of the server into ours."""
    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"unknown error").decode(
        errors="replace"
    )
    if code in _LATER or code.startswith("08"):
        is_usable = code in ("40001", "40P01")  # a conflict of transactions: the connection is fine
        # A server that shuts down may have committed before it could answer.
        return AttemptFailed(text, sent=code.startswith("57P0"), is_over=not is_usable)
    if code == "55P03":
        return AttemptFailed("others held the thread's lock", sent=False, busy=True)
    return _final(code, text)


def _cancelled(text: str) -> str:
    if "timeout" not in text:
        return f"{text}; nothing was stored: try again"
    return (
        f"{text}: nothing was stored; raise statement_timeout of the role or database, or save less at once"
    )


def _final(code: str, text: str) -> OutliveError:
    if code == "OL001":  # raised by our own functions
        return Corrupt(text)
    # The statement ended before its transaction could commit, so nothing was stored. Another try
    # would wait as long again.
    if code == "57014":
        return StoreBusy(f"PostgreSQL ended the statement: {_cancelled(text)}")
    if code in ("53100", "53200"):
        return StoreFull(f"PostgreSQL has no room left: {text}")
    if code.startswith("54"):
        return BadArgument(f"PostgreSQL cannot take this much in one save: {text}")
    if code == "42501":
        return StoreUnavailable(
            f"PostgreSQL: {text}; grant the role CREATE on the database or USAGE on the schema"
        )
    if code in ("42P05", "26000"):
        return StoreUnavailable(
            f"PostgreSQL: {text}; with a pooler in transaction mode open the store with prepared_statements=False"
        )
    if code in ("42P01", "42883", "3F000"):
        return SchemaMissing(f"outlive's tables are not in the database: {text}; open the store again")
    return StoreError(f"PostgreSQL refused ({code}): {text}")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
