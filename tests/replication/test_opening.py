"""Opening a pair of which one store is out of reach, asking both whether they are there, and how long all of that may take."""

import contextlib
import datetime as dt
import os
import shutil
import time

import pytest

import outlive
from rig.proxy import FaultProxy
from rig.replicas import Client, hasty, memories, open_pair, pair_options

QUEUEING = [{"on_secondary_down": "queue"}, {"mode": "async"}]
MODES = [{}, *QUEUEING]
KEY = outlive.KeyRing({"k": outlive.KeyRing.new_key()})


def local_url(scheme, folder):
    return f"sqlite:///{folder}/p.db" if scheme == "sqlite" else f"file://{folder}/p"


def take_away(folder, how):
    """Let a disk be gone: nothing is mounted there, or something else is in its place."""
    os.rename(folder, f"{folder}.away")
    if how == "a file is there":
        folder.touch()
    elif how == "a broken link":
        folder.symlink_to("/nowhere")


@pytest.mark.parametrize("options", MODES, ids=lambda one: " ".join(one.values()) or "strict")
@pytest.mark.parametrize("how", ["nothing is there", "a file is there", "a broken link"])
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_pair_opens_while_the_disk_of_its_local_primary_is_gone(tmp_path, scheme, how, options):
    disk = tmp_path / "disk"
    disk.mkdir()
    urls = local_url(scheme, disk), f"sqlite:///{tmp_path}/s.db"
    with open_pair(urls[0], urls[1], key=KEY, **options) as store:
        store.thread("t").save("saved", id="a")
    take_away(disk, how)
    with open_pair(urls[0], urls[1], key=KEY, **options) as store:
        if options:
            with pytest.raises(outlive.errors.StoreUnavailable):
                store.thread("t").load()
            assert not store.replication_status().primary_healthy
        with pytest.raises(outlive.errors.StoreUnavailable, match="the primary does not answer"):
            store.ping()
        assert store.promote().epoch == 1
        assert store.thread("t").load() == "saved"
        store.thread("t").save("later", id="b")
        if disk.exists() or disk.is_symlink():
            disk.unlink()
        os.rename(f"{disk}.away", disk)
        assert store.failback().epoch == 2
    with outlive.open(urls[0], key=KEY) as alone:
        assert alone.thread("t").load() == "later"


def test_a_wrong_path_in_a_new_pair_is_a_bad_url_and_leaves_the_secondary_as_it_is(tmp_path):
    urls = f"sqlite:///{tmp_path}/typo/p.db", f"sqlite:///{tmp_path}/s.db"
    with pytest.raises(outlive.errors.BadURL, match="does not exist"):
        open_pair(urls[0], urls[1])
    with open_pair(f"sqlite:///{tmp_path}/p.db", urls[1]) as store:
        store.thread("t").save(1)


@pytest.mark.parametrize("options", QUEUEING, ids=lambda one: " ".join(one.values()))
def test_a_pair_opens_in_a_queueing_mode_while_its_primary_is_unreachable(valkey_server, tmp_path, options):
    with FaultProxy(valkey_server.host, valkey_server.port) as network:
        url = hasty(network.through(f"{valkey_server.url}?prefix={tmp_path.name}:"))
        pair = pair_options(f"sqlite:///{tmp_path}/s.db", {"timeout_s": 5.0, **options})
        with outlive.open(url, **pair) as store:
            store.thread("t").save("saved")
        with network.refusing():
            with outlive.open(url, **pair) as store:
                status = store.replication_status()
                assert (status.active, status.primary_healthy) == ("primary", False)
                with pytest.raises(outlive.errors.StoreUnavailable):
                    store.thread("t").load()
                assert store.promote().epoch == 1
                assert store.thread("t").load() == "saved"
            with outlive.open(url, **pair) as store:  # the next process finds it so
                assert store.thread("t").load() == "saved"
        with outlive.open(url, **pair) as store:
            assert store.failback().epoch == 2


def test_the_status_says_since_when_the_secondary_is_active(tmp_path):
    urls = f"sqlite:///{tmp_path}/p.db", f"sqlite:///{tmp_path}/s.db"
    with open_pair(urls[0], urls[1]) as store:
        assert store.replication_status().failed_over_at is None
        before = dt.datetime.now(dt.UTC)
        store.promote()
        at = store.replication_status().failed_over_at
        assert before <= at <= dt.datetime.now(dt.UTC)
        store.promote()  # it is so already
        with open_pair(urls[0], urls[1]) as other:
            assert other.replication_status().failed_over_at == at
        store.failback()
        assert store.replication_status().failed_over_at is None


@pytest.mark.parametrize("url", ["memory:", "null:", "sqlite", "file"])
def test_ping_says_how_long_a_store_took(tmp_path, url):
    url = local_url(url, tmp_path) if url in ("sqlite", "file") else url
    with outlive.open(url) as store:
        (name, took_s), *others = store.ping().items()
        assert (name, others) == ("store", [])
        assert 0 <= took_s < 60
        with pytest.raises(outlive.errors.BadArgument):
            store.ping(timeout_s=0)
    with pytest.raises(outlive.errors.StoreClosed):
        store.ping()


def test_ping_asks_every_store_of_a_pair_and_names_the_one_that_does_not_answer(valkey_server, tmp_path):
    with FaultProxy(valkey_server.host, valkey_server.port) as network:
        near, far = (
            f"sqlite:///{tmp_path}/p.db",
            network.through(f"{valkey_server.url}?prefix={tmp_path.name}:"),
        )
        with outlive.open(far) as store:
            assert list(store.ping()) == ["store"]
            network.mode = "blackhole"
            with pytest.raises(outlive.errors.StoreUnavailable):
                store.ping(timeout_s=0.2)
        network.mode = "pass"
        with open_pair(near, f"{far}x", health_check_interval_s=1000) as store:
            assert list(store.ping()) == ["primary", "secondary"]
            network.mode = "blackhole"
            with pytest.raises(outlive.errors.StoreUnavailable, match="the secondary does not answer"):
                store.ping(timeout_s=0.5)
            assert not store.replication_status().is_failed_over
            network.mode = "pass"
            assert list(store.ping()) == ["primary", "secondary"]


class Slow:
    """A store whose every call without an answer takes as long as it may: what each call was given is added up instead of waited for."""

    def __init__(self, inner, timeout_s):
        self.inner, self.name, self.given_s, self._timeout_s = inner, inner.name, 0.0, timeout_s
        self.is_down = False

    def __getattr__(self, name):
        method = getattr(self.inner, name)

        async def call(*args, **options):
            if not self.is_down or name == "close":
                return await method(*args, **options)
            if name == "commit_all":
                options["timeout_s"] = args[0][0].timeout_s
            given_s = options.get("timeout_s") or self._timeout_s
            self.given_s += given_s
            time.sleep(given_s)
            raise outlive.errors.StoreUnavailable("no answer")

        return call


@pytest.mark.parametrize("options", MODES, ids=lambda one: " ".join(one.values()) or "strict")
@pytest.mark.parametrize("down", [(0,), (1,), (0, 1)], ids=["primary", "secondary", "both"])
def test_opening_a_pair_takes_no_longer_than_one_call_whichever_store_is_down(options, down):
    """Whatever is asked of a store that does not answer shares one deadline."""
    timeout_s = 0.4
    backends = memories()
    Client(backends, **options)
    slow = [Slow(backend, timeout_s) for backend in backends]
    for role in down:
        slow[role].is_down = True
    start = time.monotonic()
    try:
        Client(slow, timeout_s=timeout_s, **{"auto_failover": True, **options})
    except outlive.errors.StoreUnavailable:
        assert down == (0, 1)
    assert sum(one.given_s for one in slow) <= timeout_s
    assert time.monotonic() - start < 60


class Fading:
    """A store that answers so many calls, and none after them."""

    def __init__(self, inner, left):
        self.inner, self.name, self.left = inner, inner.name, left

    def __getattr__(self, name):
        method = getattr(self.inner, name)

        async def call(*args, **options):
            self.left -= 1
            if self.left < 0 and name != "close":
                raise outlive.errors.StoreUnavailable("gone")
            return await method(*args, **options)

        return call


@pytest.mark.parametrize("role", [0, 1], ids=["primary", "secondary"])
@pytest.mark.parametrize("lost", [None, 0], ids=["new", "the primary has lost all it had"])
def test_a_store_that_goes_away_while_a_pair_is_opened_leaves_no_other_key_behind(role, lost):
    """A store adopts the key of its partner, or none: else they could never be opened together."""
    for number in range(12):
        backends = memories()
        if lost is not None:
            Client(backends, key=b"f" * 32)
            backends[lost] = memories()[lost]
        fading = [Fading(one, number if at == role else 1000) for at, one in enumerate(backends)]
        with contextlib.suppress(outlive.errors.StoreUnavailable):
            Client(fading, auto_failover=True, key=b"s" * 32)
        client = Client(backends, key=b"t" * 32)
        client.store.thread("t").save(1)
        assert client.store.thread("t").load() == 1


class Hesitant:
    """A store that does not answer some calls."""

    def __init__(self, inner):
        self.inner, self.name, self.left = inner, inner.name, 0

    def __getattr__(self, name):
        method = getattr(self.inner, name)

        async def call(*args, **options):
            if self.left and name == "entries":
                self.left -= 1
                raise outlive.errors.StoreUnavailable("no answer in time")
            return await method(*args, **options)

        return call


def test_one_slow_answer_of_the_primary_right_after_a_failback_does_not_undo_it():
    """A process that learns of the failback from the secondary has not asked the primary before: it asks twice before it leaves it."""
    backends = memories()
    other = Client(backends)
    hesitant = Hesitant(backends[0])
    client = Client([hesitant, backends[1]], auto_failover=True)
    client.store.thread("t").save(1)
    other.store.promote()
    assert client.store.replication_status().epoch == 1
    client.store.thread("t").save(2)
    assert other.store.failback().epoch == 2
    hesitant.left = 1
    client.store.thread("t").save(3)
    assert client.store.replication_status().epoch == 2
    assert other.store.thread("t").load() == 3


def test_a_slow_answer_to_the_health_check_does_not_move_the_pair():
    backends = memories()
    hesitant = Hesitant(backends[0])
    client = Client([hesitant, backends[1]], auto_failover=True, health_check_interval_s=0.01)
    hesitant.left = 1
    client.beat()
    assert hesitant.left == 0
    assert client.pair.stores.epoch == 0
    hesitant.left = 2
    client.beat()
    assert client.pair.stores.epoch == 1


def test_a_primary_that_is_gone_is_left_at_once_when_a_pair_is_opened(tmp_path):
    """With automatic failover nobody has to promote by hand."""
    shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    (tmp_path / "disk").mkdir()
    urls = f"sqlite:///{tmp_path}/disk/p.db", f"sqlite:///{tmp_path}/s.db"
    with open_pair(urls[0], urls[1]) as store:
        store.thread("t").save("saved")
    shutil.rmtree(tmp_path / "disk")
    with open_pair(urls[0], urls[1]) as store:
        assert store.thread("t").load() == "saved"
        assert store.replication_status().active == "secondary"
