"""An import that is killed leaves whole threads and nothing else; repeated, it imports the rest."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

import outlive
from adapters.langgraph_importer import graphs
from adapters.langgraph_importer.comparing import assert_same, saver_on, sqlite_saver
from adapters.langgraph_importer.graphs import THREADS, Ticket
from conftest import LONG
from outlive.adapters.langgraph.importer import batch
from outlive.adapters.langgraph.importer.importer import import_langgraph


def import_and_die(source, target, last):
    """Import in a process that is killed when it has read so many checkpoints; return how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            batch._CHUNK_BYTES = 2_000  # so that chunks go ahead of their records
            import_langgraph(
                source, target, types=[Ticket], progress=lambda done, total: done >= last and die()
            )
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "old.db"
    with sqlite_saver(path) as saver:
        graphs.fill(saver)
    return path


def check_whole(source, store):
    """Make sure that the threads of a store are all there, or not at all; return them."""
    threads = [info.id for info in store.threads()]
    assert_same(source, saver_on(store), threads)
    assert store.verify().ok
    return threads


@pytest.mark.parametrize("backend", ["sqlite", "file", "postgresql", "redis"])
def test_killed_in_the_middle_it_leaves_whole_threads(backend, old, tmp_path, url_for):
    url, arrived = url_for(backend, tmp_path), [[]]
    with sqlite_saver(old) as source:
        # asked has 2 checkpoints, chat a dozen: in the middle of it, at its end before it is stored, and later
        for last in range(1, 40) if LONG else (9, 25):
            assert import_and_die(f"sqlite:///{old}", url, last) in (-signal.SIGKILL, 0)
            with outlive.open(url) as store:
                arrived.append(check_whole(source, store))
        assert arrived == sorted(arrived, key=len)
        assert arrived[1] == ["asked"] or LONG
        with outlive.open(url) as store:
            import_langgraph(f"sqlite:///{old}", store, types=[Ticket])
            assert check_whole(source, store) == list(THREADS)
            assert import_langgraph(f"sqlite:///{old}", store, types=[Ticket]).checkpoints == 0


@pytest.mark.parametrize("backend", ["sqlite", "file", "postgresql", "redis"])
def test_killed_while_it_replaces_a_thread_it_leaves_the_old_one_the_new_one_or_none(
    backend, old, tmp_path, url_for
):
    """The last moment is between the deletion of a thread and its import."""
    grown = shutil.copy(old, tmp_path / "grown.db")
    url = url_for(backend, tmp_path)
    with sqlite_saver(old) as source, outlive.open(url) as store:
        import_langgraph(f"sqlite:///{old}", store, types=[Ticket], threads=["chat"])
        store.thread("chat").set_metadata({"title": "Lisbon"})
        queued = store.submit("chat", agent="chat", run_id="r-1").status
        assert_same(source, saver_on(store), ["chat"])
    with sqlite_saver(grown) as source:
        graphs.chat().compile(checkpointer=source).invoke({"messages": ["more"]}, graphs.on("chat"))
        for moment in ("_send_chunks", "_delete", "_store"):
            die_at(f"sqlite:///{grown}", url, moment)
            with sqlite_saver(old) as before, outlive.open(url) as store:
                if store.thread("chat").size().checkpoints:
                    assert moment != "_store"
                    assert_same(before, saver_on(store), ["chat"])
                assert store.verify().ok
        with outlive.open(url) as store:
            import_langgraph(f"sqlite:///{grown}", store, types=[Ticket], threads=["chat"])
            assert_same(source, saver_on(store), ["chat"])
            assert store.thread("chat").metadata() == {"title": "Lisbon"}
            assert store.find_run("r-1").status == queued
            assert store.verify().ok


def die_at(source, target, moment):
    """Import the chat in a process that is killed when it is about to do something."""
    pid = os.fork()
    if pid == 0:
        try:
            batch._CHUNK_BYTES = 2_000
            setattr(batch.Batch, moment, lambda *arguments: die())
            import_langgraph(source, target, types=[Ticket], threads=["chat"])
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
