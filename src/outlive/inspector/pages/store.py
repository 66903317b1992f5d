"""The store: sizes, settings, checks, verification with progress, a sweep as a dry run, and the pair."""

from __future__ import annotations

import itertools
import threading
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import BadArgument, OutliveError
from outlive.inspector.site import Site, command_line
from outlive.retention.policy import Retain
from outlive.view.units import parse_duration

_SAMPLE = 200


class Verification:
    """A check of every stored byte, in a thread of its own; one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done, self.total = 0, 0
        self.is_running = False
        self.result: dict[str, Any] | None = None

    def start(self, site: Site) -> None:
        with self._lock:
            if self.is_running:
                return
            self.is_running, self.done, self.result = True, 0, None
        threading.Thread(target=self._check, args=(site,), name="outlive-verify", daemon=True).start()

    def _check(self, site: Site) -> None:
        try:
            verified = site.store.verify(progress=self._count)
            problems = [str(problem) for problem in verified.problems]
            self.result = {**asdict(verified), "problems": problems, "ok": verified.ok}
        except OutliveError as error:
            self.result = {
                "ok": False,
                "problems": [str(error)],
                "threads": self.done,
                "checkpoints": 0,
                "chunks": 0,
            }
        finally:
            self.is_running = False

    def _count(self, done: int, total: int | None) -> None:
        self.done, self.total = done, total or 0


def store_item(site: Site) -> dict[str, Any]:
    size = site.store.size()
    facts = {
        name: value for name, value in site.store.facts().items() if isinstance(value, str | int | float)
    }
    return {
        "threads": size.threads,
        "checkpoints": size.checkpoints,
        "stored_bytes": size.stored_bytes,
        "facts": facts,
    }


def store(site: Site, request: Request, verification: Verification) -> Response:
    newest = list(itertools.islice(site.store.threads(order="updated"), _SAMPLE))
    largest = sorted(newest, key=lambda info: -info.stored_bytes)[:10]
    return site.page(
        request,
        "store",
        item=store_item(site),
        largest=[
            {"id": info.id, "stored_bytes": info.stored_bytes, "checkpoints": info.checkpoints}
            for info in largest
        ],
        sample=len(newest),
        verification=verification,
        sweep=_sweep(site, request),
        replication=_replication(site),
        command=command_line("doctor"),
        json_link="/store.json",
    )


def store_json(site: Site, request: Request) -> Response:
    return site.json("stats", [store_item(site)])


def _sweep(site: Site, request: Request) -> dict[str, Any]:
    params = request.query_params
    fields = {name: params.get(name, "") for name in ("keep_last", "max_age", "ttl")}
    if not any(fields.values()):
        return {"fields": fields, "swept": None, "command": ""}
    if fields["keep_last"] and not fields["keep_last"].isdecimal():
        raise BadArgument("the number of checkpoints to keep must be a number")
    retain = Retain(
        keep_last=int(fields["keep_last"]) if fields["keep_last"] else None,
        max_age_s=parse_duration("the age", fields["max_age"]) if fields["max_age"] else None,
        ttl_s=parse_duration("the time to live", fields["ttl"]) if fields["ttl"] else None,
    )
    swept = site.store.sweep(dry_run=True, retain=retain)
    given = {name: value or None for name, value in fields.items()}
    shown = {
        "checkpoints": swept.checkpoints,
        "freed_bytes": swept.freed_bytes,
        "threads": swept.threads,
        "kept": swept.kept,
    }
    return {"fields": fields, "swept": shown, "command": command_line("sweep", **given)}


def _replication(site: Site) -> dict[str, Any] | None:
    if site.store.pair is None:
        return None
    status = site.store.replication_status()
    return {name: str(value) for name, value in asdict(status).items()}
