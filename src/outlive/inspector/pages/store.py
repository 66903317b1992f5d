"""The store: sizes, growth, doctor, verification with progress, a sweep as a dry run, and the pair."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.backend import escape
from outlive.errors import BadArgument, Corrupt, OutliveError
from outlive.inspector.site import Site, command_line
from outlive.retention.policy import Retain
from outlive.view.advice import message_with_advice
from outlive.view.checkup import check_installation, check_store
from outlive.view.items import sizes_item, sweep_reasons, swept_item, verified_item
from outlive.view.units import parse_duration

if TYPE_CHECKING:
    from outlive.retention.policy import Swept
    from outlive.values import ThreadInfo

_SAMPLE, _LARGEST, _DAYS = 200, 10, 14


class _Stopped(Exception):
    """Somebody stopped the verification."""


class Verification:
    """A check of every stored byte, in a thread of its own; one at a time. It can be stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_stopping = False
        self.done, self.total = 0, 0
        self.is_running = False
        self.result: dict[str, Any] | None = None

    def start(self, site: Site) -> None:
        with self._lock:
            if self.is_running:
                return
            self.is_running, self._is_stopping, self.done, self.result = True, False, 0, None
        threading.Thread(target=self._check, args=(site,), name="outlive-verify", daemon=True).start()

    def stop(self) -> None:
        """End it after the thread that is being checked."""
        self._is_stopping = True

    def _check(self, site: Site) -> None:
        unknown: dict[str, Any] = {"checkpoints": 0, "chunks": 0, "problems": [], "stopped": False}
        try:
            self.total = site.store.size().threads
            verified = site.store.verify(progress=self._count)
            self.result = {**verified_item(verified), "ok": verified.ok, "stopped": False}
        except _Stopped:
            self.result = {**unknown, "threads": self.done, "ok": True, "stopped": True}
        except OutliveError as error:
            problem = message_with_advice(error)
            self.result = {**unknown, "threads": self.done, "ok": False, "problems": [problem]}
        finally:
            self.is_running = False

    def _count(self, done: int, total: int | None) -> None:
        self.done, self.total = done, max(total or self.total, done)
        if self._is_stopping:
            raise _Stopped


def store(site: Site, request: Request, verification: Verification) -> Response:
    damaged: list[Corrupt] = []
    newest = list(itertools.islice(site.store.list_threads(damaged, newest=True), _SAMPLE))
    largest = sorted(newest, key=lambda info: -info.stored_bytes)[:_LARGEST]
    size = site.store.size()
    facts = site.store.facts()
    return site.page(
        request,
        "store",
        item={
            "threads": size.threads,
            "checkpoints": size.checkpoints,
            "stored_bytes": size.stored_bytes,
            "facts": {name: value for name, value in facts.items() if isinstance(value, str | int | float)},
        },
        largest=[
            {"id": info.id, "stored_bytes": info.stored_bytes, "checkpoints": info.checkpoints}
            for info in largest
        ],
        sample=len(newest),
        damaged=[message_with_advice(error) for error in damaged],
        ratio=_ratio(site, largest),
        growth=_growth(newest),
        findings=_findings(site),
        verification=verification,
        sweep=_sweep(site, request),
        replication=_replication(site),
        command=command_line("doctor"),
        json_link="/doctor.json",
    )


def _ratio(site: Site, infos: Sequence[ThreadInfo]) -> str:
    """Return how many times smaller the store is than whole states, of the largest threads that are quick to measure."""
    sizes = []
    for info in infos:
        with contextlib.suppress(Corrupt):  # what verify is for
            sizes += [site.store.thread(info.id).size()] if info.checkpoints <= 1_000 else []
    stored, whole = sum(size.stored_bytes for size in sizes), sum(size.state_bytes for size in sizes)
    return f"{whole / stored:.1f}" if stored and whole > stored else ""


def _growth(infos: Sequence[ThreadInfo]) -> list[dict[str, Any]]:
    """Return how much of the sample each day changed last, the newest first."""
    days: dict[str, list[int]] = {}
    for info in infos:
        day = days.setdefault(f"{info.updated_at.astimezone():%Y-%m-%d}", [0, 0])
        day[0] += 1
        day[1] += info.stored_bytes
    most = max((stored for _, stored in days.values()), default=0) or 1
    newest = sorted(days.items(), reverse=True)[:_DAYS]
    return [
        {"day": day, "threads": threads, "stored_bytes": stored, "share": round(100 * stored / most, 1)}
        for day, (threads, stored) in newest
    ]


def _findings(site: Site) -> list[dict[str, Any]]:
    found = check_store(site.store, site.store.url, is_alone=site.store.pair is None)
    return [asdict(finding) for finding in (*check_installation(), *found)]


# JSON


def doctor_json(site: Site, request: Request) -> Response:
    findings = _findings(site)
    is_ok = not any(finding["level"] in ("warning", "problem") for finding in findings)
    return site.json("doctor", findings, is_ok=is_ok)


def stats_json(site: Site, request: Request) -> Response:
    """Answer as `outlive stats`, for the threads that changed last; one that is damaged is left out."""
    damaged: list[Corrupt] = []
    newest = list(itertools.islice(site.store.list_threads(damaged, newest=True), _SAMPLE))
    items = []
    for info in sorted(newest, key=lambda info: escape(info.id)):
        with contextlib.suppress(Corrupt):
            items.append(sizes_item(info.id, site.store.thread(info.id).size()))
    items.sort(key=lambda item: -int(item["stored_bytes"]))
    return site.json("stats", items, is_ok=not damaged and len(items) == len(newest))


def sweep_json(site: Site, request: Request) -> Response:
    swept = _dry_run(site, _fields(request))
    if swept is None:
        raise BadArgument("give a rule: keep_last, max_age or ttl")
    return site.json("sweep", [swept_item(swept)])


# A sweep


def _fields(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in ("keep_last", "max_age", "ttl")}


def _dry_run(site: Site, fields: Mapping[str, str]) -> Swept | None:
    if not any(fields.values()):
        return None
    keep = fields["keep_last"]
    if keep and not (keep.isascii() and keep.isdigit() and 0 < len(keep) < 10 and int(keep)):
        raise BadArgument(f"the number of checkpoints to keep must be at least 1, not {keep!r}")
    retain = Retain(
        keep_last=int(keep) if keep else None,
        max_age_s=parse_duration("the age", fields["max_age"]) if fields["max_age"] else None,
        ttl_s=parse_duration("the time to live", fields["ttl"]) if fields["ttl"] else None,
    )
    with site.access.turn():
        return site.store.sweep(dry_run=True, retain=retain)


def _sweep(site: Site, request: Request) -> dict[str, Any]:
    fields = _fields(request)
    swept = _dry_run(site, fields)
    if swept is None:
        return {"fields": fields, "swept": None, "command": ""}
    shown = {
        "checkpoints": swept.checkpoints,
        "freed_bytes": swept.freed_bytes,
        "threads": swept.threads,
        "kept": swept.kept,
        "reasons": sweep_reasons(swept),
    }
    given = {name: value or None for name, value in fields.items()}
    return {"fields": fields, "swept": shown, "command": command_line("sweep", **given)}


def _replication(site: Site) -> dict[str, Any] | None:
    if site.store.pair is None:
        return None
    status = site.store.replication_status()
    return {name.replace("_", " "): str(value) for name, value in asdict(status).items()}
