"""A real browser, and an inspector that it can reach."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading

import uvicorn
from playwright.sync_api import sync_playwright

from outlive.inspector import app
from outlive.inspector.guard import LOOPBACK
from outlive.testing.patience import PATIENCE_S

MISSING = "there is no Chromium; install it with: apt-get install --no-install-recommends chromium"


@contextlib.contextmanager
def browser():
    """Start the Chromium of this machine; raise with the command that installs it if there is none."""
    place = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if place is None:
        raise RuntimeError(MISSING)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=place)
        try:
            yield chromium
        finally:
            chromium.close()


@contextlib.contextmanager
def served(store, **options):
    """Serve the inspector of a store on a free port; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app(store, hosts=LOOPBACK, **options),
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
        assert not thread.is_alive()
