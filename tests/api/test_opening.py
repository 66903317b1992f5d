"""Opening a store: by a path, a URL, and only if it exists."""

import asyncio
from pathlib import Path

import pytest

import outlive
from outlive.errors import BadArgument, BadURL, StoreMissing


@pytest.mark.parametrize("as_path", [str, Path], ids=["str", "Path"])
def test_a_path_is_a_sqlite_file(tmp_path, as_path):
    path = tmp_path / "odd ?%41 name.db"
    with outlive.open(as_path(path), fsync="normal") as store:
        store.thread("t").save(1)
    assert path.read_bytes().startswith(b"SQLite format 3")
    with outlive.open(as_path(path), create=False) as store:
        assert store.thread("t").load() == 1


def test_a_relative_path_is_a_sqlite_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with outlive.open("agent.db") as store:
        store.thread("t").save(1)
    with outlive.open("sqlite:///agent.db", create=False) as store:
        assert store.thread("t").load() == 1


@pytest.mark.parametrize("where", ["", "/", "a\0b", 5, None, "mysql://host", "sqlit:///a.db"])
def test_what_is_no_store_is_refused_with_examples(where):
    with pytest.raises(BadURL, match=r"URL|scheme"):
        outlive.open(where)


def test_a_folder_is_named_by_a_file_url(tmp_path):
    with pytest.raises(BadURL, match="is a folder; for a store of files in it, write file:"):
        outlive.open(tmp_path)


def urls(folder):
    return [str(folder / "a.db"), f"sqlite:///{folder}/a.db", f"file:{folder}/files"]


def test_without_create_a_store_that_is_not_there_is_missing_and_stays_so(tmp_path):
    for url in urls(tmp_path):
        with pytest.raises(StoreMissing, match="there is no store at"):
            outlive.open(url, create=False)

        async def scenario(url=url):
            with pytest.raises(LookupError):
                await outlive.open_async(url, create=False)

        asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []
    for url in urls(tmp_path):
        outlive.open(url).close()
        outlive.open(url, create=False).close()


def test_without_create_an_empty_file_is_no_store(tmp_path):
    path = tmp_path / "a.db"
    path.touch()
    with pytest.raises(StoreMissing):
        outlive.open(path, create=False)
    assert path.read_bytes() == b""


def test_without_create_a_server_without_a_store_is_missing(valkey_server, postgres_store):
    mark = "&" if "?" in valkey_server.url else "?"
    for url in (f"{valkey_server.url}{mark}prefix=none:", postgres_store):
        with pytest.raises(StoreMissing):
            outlive.open(url, create=False)
        with pytest.raises(StoreMissing):  # the first call has made none
            outlive.open(url, create=False)
        outlive.open(url).close()
        outlive.open(url, create=False).close()


def test_without_create_both_stores_of_a_pair_must_be_there(tmp_path):
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    outlive.open(one).close()
    with pytest.raises(StoreMissing):
        outlive.open(one, replication=outlive.Replication(two), create=False)
    assert not two.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"create": 1},
        {"single": "yes"},
        {"cache_bytes": -1},
        {"tenant": 5},
        {"durability": "exit"},
        {"key": b"k"},
    ],
)
def test_a_wrong_option_is_refused(options):
    with pytest.raises(BadArgument, match=next(iter(options))):
        outlive.open("memory:", **options)


def test_an_option_is_given_once():
    with pytest.raises(BadURL, match="option 'tenant' is in the URL and beside it"):
        outlive.open("memory:?tenant=a", tenant="b")
    with pytest.raises(BadURL, match="option 'fsync' is in the URL and beside it"):
        outlive.open("sqlite:///a.db?fsync=normal", fsync="full")
    with outlive.open("memory:?tenant=a&timeout_s=5") as store:
        assert (store._store._settings.tenant, store._store._settings.timeout_s) == ("a", 5.0)
