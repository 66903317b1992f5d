"""A backend of another package is opened by a factory, a registered scheme or an entry point."""

import asyncio
import sys

import pytest

import outlive
from outlive import urls
from outlive.authoring import BackendFactory, Options, local_factory, register_scheme, take_options
from outlive.backends.local.memory import MemoryBackend
from outlive.errors import BadArgument, BadURL, StoreMissing


class Unfinished:
    """A backend whose author has just begun."""

    name = "unfinished"

    def identity(self, offered):
        return offered


@pytest.fixture
def schemes(monkeypatch):
    monkeypatch.setattr(urls, "_SCHEMES", dict(urls._SCHEMES))


def parse(url, options):
    url, options = take_options(url, options, ("size",))
    Options("drawer", options).count("size", 1)
    return local_factory(url, lambda timeout_s: MemoryBackend())


def test_a_factory_is_opened_as_it_is():
    backend = MemoryBackend()
    factory = local_factory("mine:", lambda timeout_s: backend)
    with outlive.open(factory, tenant="acme") as store:
        store.thread("t").save(1)
        assert "mine:" in repr(store)

    async def scenario():
        async with outlive.open_async(factory, tenant="acme") as store:
            return await store.thread("t").load()

    assert asyncio.run(scenario()) == 1


def test_a_factory_gets_the_timeout_and_tells_whether_a_store_is_missing():
    timeouts = []

    def make(timeout_s):
        timeouts.append(timeout_s)
        return MemoryBackend()

    outlive.open(local_factory("mine:", make), timeout_s=7).close()
    assert timeouts == [7]
    with pytest.raises(StoreMissing, match="mine:"):
        outlive.open(local_factory("mine:", make, lambda: True), create=False)
    assert timeouts == [7]


def test_a_factory_takes_no_option_of_a_backend():
    factory = local_factory("mine:", lambda timeout_s: MemoryBackend())
    with pytest.raises(BadURL, match="mine: has no option 'fsync'"):
        outlive.open(factory, fsync="full")


def test_an_incomplete_backend_is_refused_with_all_that_it_lacks():
    factory = local_factory("mine:", lambda timeout_s: Unfinished())
    missing = r"Unfinished is not a complete backend: it has no lock, commit_all, .*roll_back, close \(outlive.authoring.Local"
    with pytest.raises(BadArgument, match=missing):
        outlive.open(factory)

    async def scenario():
        async with outlive.open_async(factory):
            pass

    with pytest.raises(BadArgument, match=missing):
        asyncio.run(scenario())


def test_a_backend_in_place_of_what_opens_it_is_refused_with_advice(schemes):
    with pytest.raises(BadURL, match=r"outlive.authoring.local_factory\), not by MemoryBackend"):
        outlive.open(MemoryBackend())
    with pytest.raises(BadArgument, match=r"make must be a function \(timeout_s\)"):
        local_factory("mine:", MemoryBackend())
    register_scheme("drawer", lambda url, options: MemoryBackend())
    with pytest.raises(
        BadArgument, match=r"drawer: its parser must return a BackendFactory.*not MemoryBackend"
    ):
        outlive.open("drawer:here")


def test_all_options_of_a_url_are_taken_if_none_are_named():
    assert take_options("drawer:here?a=1&b=2", {"c": 3}) == ("drawer:here", {"a": "1", "b": "2", "c": 3})
    assert take_options("drawer:here?a=1&b=2", {}, ("a",)) == ("drawer:here?b=2", {"a": "1"})
    with pytest.raises(BadURL, match="option 'a' is in the URL and beside it"):
        take_options("drawer:here?a=1", {"a": 2})


def test_a_registered_scheme_is_opened_by_its_url(schemes):
    register_scheme("drawer", parse)
    register_scheme("drawer", parse)  # a module that is imported twice
    with outlive.open("drawer://here?size=3&tenant=acme") as store:
        assert store.thread("t").save(1).seq == 1
        assert store._store._settings.tenant == "acme"
    with pytest.raises(BadURL, match="drawer: size must be"):
        outlive.open("drawer://here?size=many")


def test_a_scheme_of_two_backends_is_refused(schemes):
    register_scheme("drawer", parse)
    for scheme in ("drawer", "sqlite", "redis"):
        with pytest.raises(BadArgument, match="is taken"):
            register_scheme(scheme, lambda url, options: None)
    for scheme in ("", "Drawer", "a b", "1a", 5):
        with pytest.raises(BadArgument, match="lower-case"):
            register_scheme(scheme, parse)
    with pytest.raises(BadArgument, match="must be a function"):
        register_scheme("other", "parse")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package which declares a scheme."""

    def install(package, code, target="parse"):
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[outlive.backends]\ndrawer = {package}:{target}\n")
        (tmp_path / f"{package}.py").write_text(code)
        monkeypatch.delitem(sys.modules, package, raising=False)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    for package in ("drawer_one", "drawer_two"):
        sys.modules.pop(package, None)


WORKING = """
from outlive.authoring import local_factory
from outlive.backends.local.memory import MemoryBackend

def parse(url, options):
    return local_factory(url, lambda timeout_s: MemoryBackend())
"""


def test_an_installed_package_declares_a_scheme(installed):
    with pytest.raises(BadURL, match=r"has no scheme that outlive knows.*another package is known once"):
        outlive.open("drawer://here")
    installed("drawer_one", WORKING)
    with outlive.open("drawer://here") as store:
        assert store.thread("t").save(1).seq == 1


def test_a_package_that_cannot_be_imported_is_named(installed):
    installed("drawer_one", "import no_such_driver")
    with pytest.raises(
        BadURL, match=r"drawer: its backend drawer_one:parse cannot be imported: .*no_such_driver"
    ):
        outlive.open("drawer://here")
    installed("drawer_two", WORKING)
    with pytest.raises(BadURL, match="several packages declare the scheme 'drawer:'"):
        outlive.open("drawer://here")


def test_a_pair_may_have_a_store_of_another_package():
    backend = MemoryBackend()
    factory = local_factory("mine:", lambda timeout_s: backend)
    with outlive.open("memory:", replication=outlive.Replication(factory)) as store:
        store.thread("t").save(1)
    with outlive.open(factory) as store:
        assert store.thread("t").load() == 1
    assert isinstance(factory, BackendFactory)
