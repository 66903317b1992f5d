"""Takes away what a system lacks, and lets outlive choose that system."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import errno
import importlib
import multiprocessing
import os
import select
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import types
import webbrowser
from pathlib import Path
from typing import Any

from rig.simulated.libraries import Kernel, Ntdll, SystemLibrary

# Loaded by the real system, because they ask for it themselves.
_LOADED_BEFORE = (
    asyncio,
    concurrent.futures,
    multiprocessing,
    shutil,
    ssl,
    subprocess,
    tempfile,
    threading,
    webbrowser,
)
# Dependencies that are imported by the real system. ALL takes ten times as long as CORE.
CORE = ("apsw",)
CONTRACT = (*CORE, "numpy", "pytest", "hypothesis", "hypothesis.stateful", "anyio")
ALL = (
    *CONTRACT, "click", "rich.console", "rich.table", "psycopg", "hiredis", "redis", "redis.asyncio", "cryptography.fernet",
    "starlette.applications", "uvicorn", "jinja2", "opentelemetry.trace", "opentelemetry.metrics", "langgraph.checkpoint.base",
    "langgraph.graph", "pydantic", "msgspec",
)  # fmt: skip
_NO_WINDOWS_MODULES = ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty", "curses")
_NO_WINDOWS_NAMES: dict[Any, tuple[str, ...]] = {
    os: (
        "fork", "register_at_fork", "fdatasync", "pread", "pwrite", "fchmod", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK",
        "O_CLOEXEC", "getppid", "setsid", "killpg", "WNOHANG",
    ),
    select: ("poll", "epoll"),
    signal: ("SIGSTOP", "SIGCONT", "SIGHUP", "SIGQUIT"),
}  # fmt: skip


def simulate(name: str, dependencies: tuple[str, ...]) -> None:
    """Make this process one of that system, as far as outlive can tell, once its dependencies are imported."""
    for dependency in dependencies:
        with contextlib.suppress(ImportError):
            importlib.import_module(dependency)
    {"windows": _windows, "macos": _macos}[name]()


def _choose(platform: str) -> None:
    real, sys.platform = sys.platform, platform
    try:
        importlib.import_module("outlive.runtime.platform")
    finally:
        sys.platform = real


def _macos() -> None:
    for name in ("fdatasync", "posix_fallocate", "sched_getaffinity"):
        delattr(os, name)
    library, real = SystemLibrary(), ctypes.CDLL
    ctypes.CDLL = lambda *_, **__: library  # type: ignore[assignment,misc]
    try:
        _choose("darwin")
    finally:
        ctypes.CDLL = real  # type: ignore[misc]


def _windows() -> None:
    kernel, ntdll = Kernel(), Ntdll()
    ctypes.WinDLL = lambda name, **_: {"kernel32": kernel, "ntdll": ntdll}[name]  # type: ignore[attr-defined]
    ctypes.get_last_error = lambda: kernel.last_error  # type: ignore[attr-defined]
    msvcrt = types.ModuleType("msvcrt")
    msvcrt.get_osfhandle = lambda fd: fd  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = msvcrt
    _refuse_signal_zero()
    _keep_open_files()
    for module in _NO_WINDOWS_MODULES:
        sys.modules[module] = None  # type: ignore[assignment]
    for owner, names in _NO_WINDOWS_NAMES.items():
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    _choose("win32")


def _refuse_signal_zero() -> None:
    """Fail where Windows would end the process."""
    real = os.kill

    def kill(pid: int, number: int) -> None:
        assert number != 0, "os.kill(pid, 0) ends a process on Windows"
        real(pid, number)

    os.kill = kill


def _keep_open_files() -> None:
    """Refuse to rename or remove a file that this process has open, as Windows does."""
    readlink = os.readlink

    def is_open(path: Any) -> bool:
        real = os.path.realpath(path)
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if readlink(f"/proc/self/fd/{fd}") == real:
                    return True
        return False

    def guarded(call: Any) -> Any:
        def checked(path: Any, *more: Any, **options: Any) -> Any:
            if not options and isinstance(path, str | Path) and any(map(is_open, (path, *more))):
                raise PermissionError(errno.EACCES, "the file is open", str(path))
            return call(path, *more, **options)

        return checked

    for name in ("unlink", "remove", "rename", "replace"):
        setattr(os, name, guarded(getattr(os, name)))
