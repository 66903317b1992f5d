"""Comparing savers: every checkpoint that one returns, the other returns as it is."""

from __future__ import annotations

import contextlib
import sqlite3

from langgraph.checkpoint.sqlite import SqliteSaver

from outlive.adapters.langgraph import OutliveSaver

from .graphs import Ticket


def everything(saver, thread):
    """Return what a saver says of a thread, newest first."""
    return [
        (one.config["configurable"], one.checkpoint, one.metadata, one.parent_config and one.parent_config["configurable"], one.pending_writes)
        for one in saver.list({"configurable": {"thread_id": thread}})
    ]  # fmt: skip


def assert_same(source, target, threads):
    """Compare listings, single reads, heads of every namespace and the history of DeltaChannels."""
    for thread in threads:
        expected = everything(source, thread)
        assert expected, f"there is nothing in {thread}"
        found = everything(target, thread)
        assert [one[0] for one in found] == [one[0] for one in expected]
        assert found == expected
        for place in {one[0]["checkpoint_ns"] for one in expected}:
            config = {"configurable": {"thread_id": thread, "checkpoint_ns": place}}
            assert target.get_tuple(config)[:5] == source.get_tuple(config)[:5]
        for place, *_ in expected:
            one = {"configurable": place}
            assert target.get_tuple(one)[1:] == source.get_tuple(one)[1:]
    if "delta" in threads:
        config = source.get_tuple({"configurable": {"thread_id": "delta"}}).config
        asked = {"config": config, "channels": ["log"]}
        assert target.get_delta_channel_history(**asked) == source.get_delta_channel_history(**asked)


def saver_on(url, **options):
    return OutliveSaver(url, types=[Ticket], **options)


@contextlib.contextmanager
def sqlite_saver(path):
    """A SqliteSaver that does not wait for the disk."""
    with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as db:
        db.execute("pragma synchronous = off")
        yield SqliteSaver(db)
