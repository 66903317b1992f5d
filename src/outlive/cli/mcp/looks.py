"""The tools that read: threads, states, changes, runs, steps and questions."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlive.cli.lookup import find_checkpoint, find_prefix, find_run, find_thread, open_thread
from outlive.cli.mcp.desk import Answer, Desk, page_from
from outlive.cli.mcp.size import ANSWER, VALUE, count_fitting, fit, length
from outlive.cli.page import deleted_error, find_pair, select_checkpoints, thread_items
from outlive.errors import BadArgument, Corrupt
from outlive.view.advice import message_with_advice, question_damage
from outlive.view.checkpoints import CheckpointContent, read_changes, read_content
from outlive.view.history import read_history
from outlive.view.items import question_item, run_details, step_item
from outlive.view.opaque import OpaqueCodec, unwrap
from outlive.view.runs import RunView, Usages, list_runs
from outlive.view.values import count_of, kind_of, one_line

if TYPE_CHECKING:
    from outlive.runs.questions import QuestionInfo
    from outlive.sync.thread import Thread
    from outlive.values import Checkpoint, ThreadInfo

LISTED = ("live", "dead", "waiting", "released", "parked", "failed")
STATUSES = (*LISTED, "running", "completed", "cancelled")
QUESTION_STATUSES = ("open", "answered", "expired", "withdrawn", "all")
_PREVIEW = 200  # characters of a part of a state
_TEXT = ANSWER // 2  # characters of a long text


# Threads


def threads(
    desk: Desk, *, prefix: str, filter: dict[str, Any], newest: bool, after: str | None, limit: int
) -> Answer:
    store, damaged = desk.store, list[Corrupt]()
    if newest and (after is not None or prefix):
        raise BadArgument("newest lists all threads from the newest; leave out prefix and after")
    infos = store.list_threads(
        damaged, newest=newest, prefix=find_prefix(store, prefix), filter=filter, after=after
    )
    page: list[ThreadInfo] = list(itertools.islice(infos, limit + 1))
    damage: list[str] = []
    items = [fit(desk.clean(item), depth=2) for item in thread_items(store, page[:limit], damage)]
    items = items[: count_fitting(items)]
    has_more = len(page) > len(items) and not newest
    return Answer(
        items, page[len(items) - 1].id if has_more else None, [*map(message_with_advice, damaged), *damage]
    )


# Checkpoints


def history(
    desk: Desk, *, thread: str, namespace: str, all_namespaces: bool, run: str | None, before: str | None, raw: bool, limit: int
) -> Answer:  # fmt: skip
    store = desk.store
    handle = open_thread(store, thread, namespace)
    selection = select_checkpoints(
        store, handle, before=before, run=run, filter={}, all_namespaces=all_namespaces
    )
    page = read_history(store, handle, selection, limit, is_raw=raw)
    items = [fit(desk.clean(item)) for item in page.items()]
    count = count_fitting(items)
    return Answer(items[:count], page.next if count == len(items) else page.checkpoints[count - 1].cursor)


def state(
    desk: Desk, *, thread: str, checkpoint: str | None, namespace: str, path: str | None, raw: bool, start: int, limit: int
) -> Answer:  # fmt: skip
    store = desk.store
    handle = open_thread(store, thread, namespace)
    head, record = find_checkpoint(store, handle, None), find_checkpoint(store, handle, checkpoint)
    loaded = desk.load(handle, record)
    if loaded is None:
        raise BadArgument(f"checkpoint {record.id!r} of thread {handle.id!r} was deleted")
    content = read_content(loaded, path or None, is_head=record.id == head.id, is_raw=raw)
    if not start and len(OpaqueCodec().pack(content.value)) <= ANSWER:
        item = desk.clean(content.item())
        if length(item) <= ANSWER:
            return Answer([item])
    return _large_state(desk, content, start, limit)


def _large_state(desk: Desk, content: CheckpointContent, start: int, limit: int) -> Answer:
    """Return a page of what is directly below a path, or of a long text."""
    item = {**fit(desk.clean(content.head_item())), "is_cut": True}
    text = unwrap(content.value)
    if isinstance(text, str):
        end = start + _TEXT
        shown = {**item, "characters": len(text), "from": start, "text": text[start:end]}
        return Answer([shown], str(end) if end < len(text) else None)
    parts = content.parts()
    page = [_part(path, value) for path, value in parts[start : start + limit]]
    count = count_fitting(page)
    end = start + count
    return Answer([{**item, "parts": page[:count]}], str(end) if end < len(parts) else None)


def _part(path: str, value: Any) -> dict[str, Any]:
    packed = len(OpaqueCodec().pack(value))
    part = {"path": path, "type": kind_of(value), "count": count_of(value), "bytes": packed}
    return {**fit(part), "preview": one_line(value, _PREVIEW)}


def diff(
    desk: Desk, *, thread: str, old: str | None, new: str | None, namespace: str, to: str | None, raw: bool, start: int, limit: int
) -> Answer:  # fmt: skip
    store = desk.store
    first = open_thread(store, thread, namespace)
    second = first if to is None else open_thread(store, to, namespace)
    records = find_pair(store, first, old, second, new)
    before, after = _loaded(desk, first, records[0]), _loaded(desk, second, records[1])
    changes = read_changes(before, after, is_raw=raw)
    total = len(changes.changes)
    page = [fit(desk.clean(item)) for item in changes.items(start, start + limit)]
    return page_from(page, start, total)


def _loaded(desk: Desk, thread: Thread, record: Any) -> Checkpoint:
    checkpoint = desk.load(thread, record)
    if checkpoint is None:
        raise deleted_error(thread, record.id)
    return checkpoint


# Runs


def runs(
    desk: Desk, *, status: list[str], agent: str | None, thread: str | None, after: str | None, limit: int
) -> Answer:
    store = desk.store
    thread_id = None if thread is None else find_thread(store, thread)
    damage: list[str] = []
    views, next = list_runs(store, set(status or LISTED), agent, thread_id, limit, after, Usages(), damage)
    items = [fit(desk.clean(view.item())) for view in views]
    count = count_fitting(items)
    return Answer(items[:count], next if count == len(items) else views[count - 1].info.id, damage)


def run(desk: Desk, *, run: str, thread: str | None) -> Answer:
    store = desk.store
    view = RunView.of(store, find_run(store, run, thread=thread))
    details = run_details(view.info, (), view.questions(), view.responses())
    item = desk.clean({**view.item(), **details, "steps": len(view.steps())})
    rooms = (fit(item, room, depth) for room, depth in ((VALUE, 3), (VALUE // 10, 3), (VALUE, 1)))
    return Answer([next(shown for shown in rooms if length(shown) <= ANSWER)])


def steps(desk: Desk, *, run: str, thread: str | None, start: int, limit: int) -> Answer:
    store = desk.store
    info = find_run(store, run, thread=thread)
    listed = store.steps(info.id, thread=info.thread)
    page = [fit(desk.clean(step_item(step)), depth=2) for step in listed[start : start + limit]]
    return page_from(page, start, len(listed))


def questions(
    desk: Desk, *, status: str, agent: str | None, thread: str | None, events: bool, start: int, limit: int
) -> Answer:
    store = desk.store
    listed = store.questions(
        status=None if status == "all" else status,
        agent=agent,
        thread=None if thread is None else find_thread(store, thread),
        events=events,
    )
    oldest = heapq.nsmallest(start + limit + 1, listed, key=_asked)
    shown = oldest[start : start + limit]
    page = [fit(desk.clean(question_item(question))) for question in shown]
    return replace(page_from(page, start, len(oldest)), notes=question_damage(shown))


def _asked(question: QuestionInfo) -> tuple[float, str, str]:
    return (question.asked_at.timestamp() if question.asked_at else 0.0, question.run, question.name)


def known_thread(desk: Desk, after: str | None) -> str | None:
    """Return the id of a thread after which a list continues; it may have been deleted."""
    with contextlib.suppress(BadArgument):
        return None if after is None else find_thread(desk.store, after, is_exact=True)
    return after
