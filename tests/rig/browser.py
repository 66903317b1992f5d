"""A real browser, and an inspector that it can reach."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from outlive.inspector import app
from outlive.inspector.guard import LOOPBACK
from outlive.testing.patience import PATIENCE_S

INSTALL = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
MISSING = f"there is no Chromium; install it with: {' '.join(INSTALL)}"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium():
    """Return the Chromium of this machine; install Debian's if this process may. Raises with the command otherwise."""
    place = _which()
    if place is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with (Path(tempfile.gettempdir()) / "outlive-chromium.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes one installs it
            place = _which() or _install()
    if place is None:
        raise RuntimeError(MISSING)
    return place


def _which():
    return next(filter(None, map(shutil.which, _NAMES)), None)


def _install():
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (INSTALL, ["apt-get", "update"], INSTALL):
        done = subprocess.run(command, env=quiet, capture_output=True, check=False, text=True)
        if command is INSTALL and done.returncode == 0:
            return _which()
    raise RuntimeError(f"{MISSING}\n{done.stderr[-2000:]}")


@contextlib.contextmanager
def browser():
    """Start the Chromium of this machine."""
    place = find_chromium()
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


class Visitor:
    """Opens pages, and keeps what went wrong in them: errors, dialogs, requests to another host."""

    def __init__(self, chromium, address):
        self._chromium, self._address = chromium, address
        self._contexts = []
        self.problems = []

    def open(self, **options):
        context = self._chromium.new_context(base_url=self._address, **options)
        context.set_default_timeout(PATIENCE_S * 1000)
        self._contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._hear)
        page.on("request", self._see)
        page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        return page

    def _hear(self, message):
        if message.type == "error" and "404" not in message.text:
            self.problems.append(message.text)

    def _see(self, request):
        if not request.url.startswith(self._address):
            self.problems.append(request.url)

    def close(self):
        for context in self._contexts:
            context.close()


@contextlib.contextmanager
def visiting(chromium, address):
    """Yield a Visitor; fail when a page that it opened reported an error or asked another host."""
    visitor = Visitor(chromium, address)
    yield visitor
    visitor.close()
    assert visitor.problems == []


def expect_accessible(page, path):
    """Fail when axe finds a violation on a page, or when the page is wider than the screen."""
    found = Axe().run(page)
    assert found.violations_count == 0, f"{path}: {found.generate_report()}"
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, path
