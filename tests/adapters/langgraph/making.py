"""Checkpoints, configs and metadata made by hand, for tests that call a saver as LangGraph does."""

from __future__ import annotations

import asyncio


def at(thread="t", id=None, ns=""):
    """Return the config that names a place."""
    said = {"thread_id": thread, "checkpoint_ns": ns}
    if id is not None:
        said["checkpoint_id"] = id
    return {"configurable": said}


def checkpoint(id, values=None, versions=None):
    values = values or {}
    return {
        "v": 4,
        "id": id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions if versions is not None else dict.fromkeys(values, 1),
        "versions_seen": {},
        "updated_channels": None,
    }


def meta(step=0, source="loop", **more):
    return {"source": source, "step": step, "parents": {}, **more}


def put(saver, id, parent=None, values=None, thread="t", ns="", versions=None, **more):
    """Put a checkpoint; return its config."""
    made = checkpoint(id, values, versions)
    return saver.put(at(thread, parent, ns), made, meta(**more), made["channel_versions"])


def ids(tuples):
    return [found.config["configurable"]["checkpoint_id"] for found in tuples]


class Sync:
    """A saver by its sync methods."""

    def __init__(self, saver):
        self.saver = saver

    def __getattr__(self, name):
        return getattr(self.saver, name)


class Async:
    """The same methods, each done by its async twin in an event loop."""

    def __init__(self, saver, loop):
        self.saver = saver
        self._loop = loop

    def list(self, *arguments, **options):
        async def gather():
            return [found async for found in self.saver.alist(*arguments, **options)]

        return iter(self._loop.run_until_complete(gather()))

    def get_next_version(self, *arguments):
        return self.saver.get_next_version(*arguments)

    def __getattr__(self, name):
        method = getattr(self.saver, "a" + name)
        return lambda *arguments, **options: self._loop.run_until_complete(method(*arguments, **options))


def new_loop():
    return asyncio.new_event_loop()
