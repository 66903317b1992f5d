"""The fault proxy does to a connection what its mode says, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import socketserver
import threading
import time

import psycopg
import pytest
import redis
import redis.asyncio

from outlive.testing.patience import PATIENCE_S, eventually
from rig.proxy import FaultProxy

SOON_S = 0.2  # what has not come by then is taken not to come


class Echo(socketserver.ThreadingTCPServer):
    """Sends back what it receives, and remembers it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        self.received = b""
        self.ends = 0
        super().__init__(("127.0.0.1", 0), self._Handler)

    class _Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                while data := self.request.recv(65_536):
                    self.server.received += data
                    self.request.sendall(data)
            self.server.ends += 1


@pytest.fixture
def echo():
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo):
    with FaultProxy(*echo.server_address) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy):
    """A function that connects to the proxy; what it opened is closed in the end."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection((proxy.host, proxy.port), PATIENCE_S))


def ask(client, data=b"hello"):
    client.sendall(data)
    return receive(client, len(data))


def receive(client, size):
    """Receive so many bytes, or as many as come before the end."""
    answer = b""
    while len(answer) < size and (chunk := client.recv(65_536)):
        answer += chunk
    return answer


def is_silent(client):
    client.settimeout(SOON_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(PATIENCE_S)
    return False


def is_reset(client):
    """Tell whether a connection was ended by RST, not by FIN."""
    try:
        client.recv(1)
    except ConnectionResetError:
        return True
    return False


# Each mode ------------------------------------------------------------------------------------------------------


def test_everything_passes_and_is_counted(proxy, connect, echo):
    first, second = connect(), connect()
    assert [ask(first, b"one"), ask(first, b"three"), ask(second, b"two")] == [b"one", b"three", b"two"]
    assert (proxy.connections, proxy.request_bytes, proxy.reply_bytes) == (2, 11, 11)
    assert proxy.round_trips == 3
    assert proxy.open_connections == 2


def test_a_large_message_passes_unchanged_in_both_directions(connect, echo):
    client, data = connect(), bytes(range(256)) * 8_192
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()


def test_a_request_in_pieces_is_one_round_trip():
    with socket.create_server(("127.0.0.1", 0)) as silent, FaultProxy(*silent.getsockname()) as proxy:
        with socket.create_connection((proxy.host, proxy.port)) as client:
            for count in (1, 2, 3):
                client.sendall(b"piece")
                eventually(lambda count=count: proxy.request_bytes == 5 * count)
            assert proxy.round_trips == 1


def test_the_end_of_a_client_reaches_the_server_and_back(connect, echo):
    client = connect()
    assert ask(client) == b"hello"
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert echo.ends == 1


def test_a_stalled_network_delivers_late_and_loses_nothing(proxy, connect, echo):
    client = connect()
    ask(client)
    proxy.mode = "stall"
    client.sendall(b"late")
    newcomer = connect()
    newcomer.sendall(b"very late")
    assert is_silent(client)
    assert echo.received == b"hello"
    proxy.mode = "pass"
    assert client.recv(100) == b"late"
    assert newcomer.recv(100) == b"very late"


def test_a_blackhole_swallows_both_ways_and_accepts_newcomers(proxy, connect, echo):
    client = connect()
    ask(client)
    proxy.mode = "blackhole"
    newcomer = connect()
    for one in (client, newcomer):
        one.sendall(b"lost")
        assert is_silent(one)
    assert echo.received == b"hello"
    proxy.mode = "pass"
    assert is_reset(client)
    assert is_reset(newcomer)
    assert ask(connect()) == b"hello"


def test_a_server_behind_a_blackhole_does_not_hear_that_its_client_is_gone(proxy, connect, echo):
    client = connect()
    ask(client)
    proxy.mode = "blackhole"
    client.close()
    time.sleep(SOON_S)
    assert echo.ends == 0
    proxy.mode = "pass"
    eventually(lambda: proxy.open_connections == 0)


def test_requests_arrive_whose_replies_are_lost(proxy, connect, echo):
    client = connect()
    proxy.mode = "lose_replies"
    client.sendall(b"done")
    eventually(lambda: echo.received == b"done")
    assert is_silent(client)
    proxy.mode = "pass"
    assert is_reset(client)


def test_connections_are_reset_old_and_new(proxy, connect, echo):
    client = connect()
    ask(client)
    proxy.mode = "reset"
    assert is_reset(client)
    with pytest.raises(ConnectionResetError):
        connect().recv(1)  # sometimes it has come before connect returns
    proxy.mode = "pass"
    assert ask(connect()) == b"hello"


def test_new_connections_are_refused_and_old_ones_go_on(proxy, connect, echo):
    client = connect()
    ask(client)
    port = proxy.port
    proxy.mode = "refuse"
    with pytest.raises(ConnectionRefusedError):
        connect()
    assert ask(client) == b"hello"
    proxy.mode = "pass"
    assert proxy.port == port
    assert ask(connect()) == b"hello"


def test_no_connection_is_left_open_by_a_proxy_that_begins_to_refuse_while_it_is_made(proxy):
    """What was accepted at that moment belongs to somebody, who ends it; a socket that is forgotten is an error here."""
    clients = []

    def call():
        while len(clients) < 400:
            client = socket.socket()
            client.settimeout(PATIENCE_S)
            clients.append(client)
            with contextlib.suppress(OSError):
                client.connect((proxy.host, proxy.port))

    caller = threading.Thread(target=call)
    caller.start()
    while caller.is_alive():
        proxy.mode = "refuse"
        proxy.drop_connections()
        assert proxy.open_connections == 0
        proxy.mode = "pass"
    caller.join()
    proxy.mode = "refuse"
    proxy.drop_connections()
    for client in clients:
        with client, contextlib.suppress(ConnectionError):
            assert client.recv(1) == b""  # never a timeout: it was ended
    gc.collect()


def test_dropped_connections_are_reset_and_new_ones_pass(proxy, connect, echo):
    client = connect()
    ask(client)
    proxy.drop_connections()
    assert is_reset(client)
    assert proxy.open_connections == 0
    assert ask(connect()) == b"hello"


def test_a_slow_network_delays_each_way(proxy, connect, echo):
    client = connect()
    proxy.slow(delay_s=0.1)
    start = time.monotonic()
    assert ask(client) == b"hello"
    assert time.monotonic() - start >= 0.2


def test_a_narrow_network_takes_its_time(proxy, connect, echo):
    client = connect()
    proxy.slow(delay_s=0, bytes_per_s=20_000)
    start = time.monotonic()
    assert ask(client, b"x" * 4_000) == b"x" * 4_000
    assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize("passed", [0, 1, 4, 5])
def test_a_request_is_cut_after_exactly_so_many_bytes(passed, proxy, connect, echo):
    client = connect()
    ask(client, b"before")
    proxy.cut(passed)
    with contextlib.suppress(ConnectionError):
        client.sendall(b"hello")
        while client.recv(100):
            pass
    eventually(lambda: echo.received == b"before" + b"hello"[:passed])
    eventually(lambda: echo.ends == 1)
    assert proxy.cuts == 1
    assert ask(connect()) == b"hello"


@pytest.mark.parametrize("passed", [0, 1, 4, 5])
def test_a_reply_is_cut_after_exactly_so_many_bytes(passed, proxy, connect, echo):
    client = connect()
    proxy.cut(passed, of="reply")
    assert ask(client) == b"hello"[:passed]
    assert client.recv(1) == b""
    assert echo.received == b"hello"
    assert ask(connect()) == b"hello"


def test_a_cut_counts_the_bytes_of_several_messages(proxy, connect, echo):
    client = connect()
    proxy.cut(7, of="reply")
    assert ask(client) == b"hello"
    assert ask(client) == b"he"
    assert client.recv(1) == b""


@pytest.mark.parametrize("skip", [0, 2])
def test_exactly_one_reply_is_lost(skip, proxy, connect, echo):
    client, other = connect(), connect()
    ask(client)
    proxy.lose_reply(skip=skip)
    for _ in range(skip):
        assert ask(other) == b"hello"
    client.sendall(b"done")
    assert is_reset(client)
    assert echo.received.endswith(b"done")
    assert proxy.replies_lost == 1
    assert ask(other) == b"hello"


def test_a_server_that_is_down_resets_the_client():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but not listening
        with FaultProxy(*nobody.getsockname()) as proxy:
            with pytest.raises(ConnectionResetError):
                with socket.create_connection((proxy.host, proxy.port)) as client:
                    client.recv(1)


def test_an_unknown_mode_is_refused(proxy):
    with pytest.raises(ValueError, match="one of pass, stall"):
        proxy.mode = "flaky"


def test_a_closed_proxy_leaves_nothing_behind(echo):
    threads = threading.active_count()
    proxy = FaultProxy(*echo.server_address)
    with proxy, socket.create_connection((proxy.host, proxy.port)) as client:
        ask(client)
        proxy.close()
        assert is_reset(client)
    eventually(lambda: threading.active_count() == threads)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((proxy.host, proxy.port))
    with pytest.raises(RuntimeError, match="does not run"):
        proxy.drop_connections()


# With real servers and plain drivers ------------------------------------------------------------------------------


@pytest.fixture
def postgres(postgres_server, postgres_url):
    """A proxy in front of PostgreSQL, a URL through it and one past it."""
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        yield proxy, proxy.through(postgres_url), postgres_url


@pytest.fixture
def valkey(valkey_server):
    with FaultProxy(valkey_server.host, valkey_server.port) as proxy:
        yield proxy, proxy.through(valkey_server.url), valkey_server.url


def test_a_statement_of_postgres_is_one_round_trip(postgres):
    proxy, url, _ = postgres
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table t(n int)")
        for count in (1, 3):
            before = proxy.round_trips
            for n in range(count):
                connection.execute("insert into t values (%s)", (n,))
            assert proxy.round_trips - before == count
        before = proxy.round_trips
        with connection.pipeline():
            for n in range(5):
                connection.execute("insert into t values (%s)", (n,))
        assert proxy.round_trips - before < 5


def test_a_row_of_postgres_whose_reply_was_lost_is_there(postgres):
    proxy, url, direct = postgres
    with (
        psycopg.connect(direct, autocommit=True) as other,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        other.execute("create table t(n int)")
        proxy.lose_reply()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("insert into t values (1)")
        assert other.execute("select n from t").fetchall() == [(1,)]
        assert connection.closed


def test_a_statement_of_postgres_that_was_cut_short_never_runs(postgres):
    proxy, url, direct = postgres
    with (
        psycopg.connect(direct, autocommit=True) as other,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        other.execute("create table t(n int)")
        proxy.cut(20)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("insert into t values (1)")
        assert other.execute("select n from t").fetchall() == []


def test_a_client_of_postgres_in_a_blackhole_waits_until_it_opens(postgres):
    proxy, url, _ = postgres
    with psycopg.connect(url, autocommit=True) as connection:
        proxy.mode = "blackhole"
        opening = threading.Timer(SOON_S, setattr, (proxy, "mode", "pass"))
        opening.start()
        start = time.monotonic()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        assert time.monotonic() - start >= SOON_S * 0.9
        opening.join()


def test_a_command_of_valkey_is_one_round_trip(valkey):
    proxy, url, _ = valkey
    with redis.Redis.from_url(url) as client:
        client.ping()
        before = proxy.round_trips
        client.set("a", 1)
        client.incr("a")
        client.pipeline().incr("a").incr("a").execute()
        assert proxy.round_trips - before == 3


def test_a_key_of_valkey_whose_reply_was_lost_is_there(valkey):
    proxy, url, direct = valkey
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    with redis.Redis.from_url(url, retry=retry) as client, redis.Redis.from_url(direct) as other:
        client.ping()
        proxy.lose_reply()
        with pytest.raises(redis.ConnectionError):
            client.incr("a")
        assert other.get("a") == b"1"


def test_an_async_client_of_valkey_in_a_blackhole_times_out_and_comes_back(valkey):
    proxy, url, _ = valkey

    async def scenario():
        retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
        async with redis.asyncio.Redis.from_url(url, socket_timeout=1.5, retry=retry) as client:
            await client.set("a", 1)
            proxy.mode = "blackhole"
            with pytest.raises(redis.TimeoutError):
                await client.get("a")
            proxy.mode = "pass"
            assert await client.get("a") == b"1"

    asyncio.run(scenario())
