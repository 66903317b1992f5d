"""Tells open pages that something changed, by server-sent events. One look serves all pages that watch the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from outlive.errors import OutliveError
from outlive.inspector.pages.now import group_runs, open_questions

if TYPE_CHECKING:
    from starlette.requests import Request

    from outlive.inspector.site import Site
    from outlive.runs.lease import RunInfo

INTERVAL_S = 1.0
_MOST = 100  # open pages
_VOLATILE = ("lease_left_s", "quiet_s", "updated_at", "usage")
Topic = tuple[str, ...]


class Live:
    """What each topic looked like at the last look."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._seen: dict[Topic, tuple[float, dict[str, Any]]] = {}
        self._locks: dict[Topic, asyncio.Lock] = {}
        self._listeners: Counter[Topic] = Counter()

    async def endpoint(self, request: Request) -> Response:
        if self._listeners.total() >= _MOST:
            return Response(status_code=503)
        params = request.query_params
        topic = (
            params.get("topic", "now"),
            params.get("id", ""),
            params.get("ns", ""),
            params.get("thread", ""),
        )
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._events(topic), media_type="text/event-stream", headers=headers)

    async def _events(self, topic: Topic) -> AsyncIterator[str]:
        self._listeners[topic] += 1
        last = None
        try:
            while True:
                look = await self._look(topic)
                if look != last:
                    yield f"data: {json.dumps(look)}\n\n"
                    last = look
                else:
                    yield ": still here\n\n"  # a closed page is noticed by writing to it
                await asyncio.sleep(INTERVAL_S)
        finally:
            self._listeners[topic] -= 1
            if not self._listeners[topic]:
                for known in (self._listeners, self._seen, self._locks):
                    known.pop(topic, None)

    async def _look(self, topic: Topic) -> dict[str, Any]:
        async with self._locks.setdefault(topic, asyncio.Lock()):
            at, look = self._seen.get(topic, (0.0, {}))
            if time.monotonic() - at >= INTERVAL_S * 0.9:
                try:
                    look = await run_in_threadpool(self._read, topic)
                except OutliveError:
                    look = {"error": "the store cannot be read"}
                self._seen[topic] = (time.monotonic(), look)
            return look

    def _read(self, topic: Topic) -> dict[str, Any]:
        kind, id, namespace, thread = topic
        store = self._site.store
        if kind == "thread" and id:
            head = next(iter(store.thread(id, namespace=namespace).history(limit=1)), None)
            return {"mark": "" if head is None else head.cursor}
        if kind == "run" and id:
            run = store.find_run(id, thread=thread or None)
            return {"mark": "" if run is None else _digest(self._run_marks(run))}
        if kind == "threads":
            newest = next(iter(store.threads(order="updated", limit=1)), None)
            return {"mark": "" if newest is None else newest.cursor}
        clean = self._site.access.redaction.clean  # or marks would tell of hidden values to who guesses them
        groups, questions = clean(group_runs(self._site, [])), clean(open_questions(self._site, []))
        settled = [
            {key: value for key, value in item.items() if key not in _VOLATILE}
            for items in groups.values()
            for item in items
        ]
        counts = {"questions": len(questions), **{name: len(items) for name, items in groups.items()}}
        return {"counts": counts, "mark": _digest([settled, questions])}

    def _run_marks(self, run: RunInfo) -> list[Any]:
        """Return what the page of a run shows changes of, without what a heartbeat changes."""
        store = self._site.store
        steps = [(step.key, step.status, step.tries) for step in store.steps(run.id, thread=run.thread)]
        asked = store.questions(status=None, thread=run.thread, events=True)
        questions = [(question.name, question.status) for question in asked if question.run == run.id]
        return [run.status, run.attempt, run.iteration, run.phase, steps, questions]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]
