"""The routes of the inspector, and what its pages answer when something is wrong."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from outlive.errors import BadArgument, CallerError, OutliveError
from outlive.inspector import acts, asks
from outlive.inspector.access import Access
from outlive.inspector.guard import Guard
from outlive.inspector.live import Live
from outlive.inspector.pages import detail, now, runs, search, store, thread, threads
from outlive.inspector.site import Site, json_response
from outlive.sync.store import Store
from outlive.view.advice import message_with_advice
from outlive.view.opened_store import OpenedStore

_STATIC = (
    "style.css", "mark.svg", "inspector.js", "dom.js", "keys.js", "live.js", "scrubber.js", "state.js", "thread.js", "tree.js",
)  # fmt: skip
mimetypes.add_type("text/javascript", ".js")  # a machine may have another entry, and browsers refuse that

Page = Callable[[Site, Request], Response]
_PAGES: dict[str, Page] = {
    "/": now.now,
    "/now.json": now.now_json,
    "/questions.json": now.questions_json,
    "/threads": threads.threads,
    "/threads.json": threads.threads_json,
    "/thread": thread.thread,
    "/detail": detail.detail,
    "/tree.json": thread.tree_json,
    "/history.json": thread.history_json,
    "/show.json": thread.show_json,
    "/state.json": thread.state_json,
    "/diff.json": thread.diff_json,
    "/export": thread.export,
    "/runs": runs.runs,
    "/runs.json": runs.runs_json,
    "/run": runs.run,
    "/run.json": runs.run_json,
    "/doctor.json": store.doctor_json,
    "/stats.json": store.stats_json,
    "/sweep.json": store.sweep_json,
    "/search": search.search,
    "/search.json": search.search_json,
}


def app(
    store: Store,
    *,
    write: bool = False,
    redact: Sequence[str] = (),
    hosts: Sequence[str] | None = None,
    token: str | None = None,
) -> Guard:
    """Return the inspector of a store as an ASGI app: `application.mount("/outlive", app(store))`.

    write:   allow acts: answer, give back, park, cancel, fork, edit, delete and prune
    redact:  names of keys whose values are hidden everywhere: `["api_key", "user.email"]`
    hosts:   the names that `Host` may have (default: the program that mounts it checks them)
    token:   a secret that must be in the address of the first request, `?token=...`; it becomes a cookie

    The store stays open when the app ends, and is not changed unless `write`. Mounted without a
    token, everybody who reaches the app sees the store: put it after your own login. Raises
    BadArgument for an async store.
    """
    if not isinstance(store, Store):
        raise BadArgument(
            "the inspector needs a store of outlive.open(url); an async program can open one beside its own"
        )
    opened = store if isinstance(store, OpenedStore) else OpenedStore.beside(store)
    site = Site(Access.of(opened, write=write, redact=redact))
    return Guard(_routes(site), hosts=hosts, token=token)


def _routes(site: Site) -> Starlette:
    verification, live = store.Verification(), Live(site)
    routes = [Route(path, _endpoint(site, page), methods=["GET"]) for path, page in _PAGES.items()]
    routes += [
        Route("/store", _endpoint(site, partial(store.store, verification=verification)), methods=["GET"]),
        Route(
            "/verify",
            _guarded(site, acts.endpoint(site, partial(_verify, verification), needs_write=False)),
            methods=["POST"],
        ),
        Route(
            "/verify/stop",
            _guarded(site, acts.endpoint(site, partial(_stop_verifying, verification), needs_write=False)),
            methods=["POST"],
        ),
        Route("/live", live.endpoint, methods=["GET"]),
        Route("/static/{name}", _static, methods=["GET"]),
        Route("/healthz", _health, methods=["GET"]),
        Route("/ask/{act}", _endpoint(site, asks.ask), methods=["GET"]),
        Route("/preview/edit", _guarded(site, acts.preview_endpoint(site)), methods=["POST"]),
        Route(
            "/act/{act}",
            _guarded(site, acts.endpoint(site, acts.perform, needs_write=True)),
            methods=["POST"],
        ),
    ]
    handlers: dict[Any, Any] = {
        OutliveError: partial(_explain, site),
        HTTPException: partial(_explain_http, site),
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _endpoint(site: Site, page: Callable[..., Response]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:  # not async: Starlette calls it in a thread
        try:
            return page(site, request)
        except (OutliveError, HTTPException):
            raise
        except Exception as error:  # noqa: BLE001  # servers log tracebacks, which may have parts of a state
            return _explain_bug(site, request, error)

    return endpoint


def _guarded(site: Site, act: acts.Endpoint) -> acts.Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return await act(request)
        except (OutliveError, HTTPException):
            raise
        except Exception as error:  # noqa: BLE001  # as above
            return _explain_bug(site, request, error)

    return endpoint


def _verify(verification: store.Verification, site: Site, request: Request, form: dict[str, str]) -> str:
    verification.start(site)
    return "/store#verify"


def _stop_verifying(
    verification: store.Verification, site: Site, request: Request, form: dict[str, str]
) -> str:
    verification.stop()
    return "/store#verify"


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404)
    data = (resources.files("outlive.inspector") / "static" / name).read_bytes()
    return Response(data, media_type=mimetypes.guess_type(name)[0])


def _health(request: Request) -> Response:
    return PlainTextResponse("ok\n")


# What went wrong. Messages of errors go to the page, never to a log: they may have parts of a
# state.


def _explain(site: Site, request: Request, error: Exception) -> Response:
    assert isinstance(error, OutliveError)
    status = 400 if isinstance(error, CallerError) else 503
    if isinstance(error, LookupError):
        status = 404
    return _error(site, request, status, message_with_advice(error))


def _explain_http(site: Site, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "This page does not exist." if error.status_code == 404 else str(error.detail)
    return _error(site, request, error.status_code, text)


def _explain_bug(site: Site, request: Request, error: Exception) -> Response:
    return _error(site, request, 500, f"internal error: {type(error).__name__}")


def _error(site: Site, request: Request, status: int, text: str) -> Response:
    if request.url.path.endswith(".json"):
        return json_response({"format": 1, "error": status, "message": text}, status)
    return site.page(request, "error", status=status, message=text, code=status, command="outlive doctor")
