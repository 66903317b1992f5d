"""No module but outlive.runtime.platform asks which system this is, or uses what only some systems have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import outlive

ROOT = Path(outlive.__file__).parent
PLATFORM = ROOT / "runtime" / "platform"
MODULES = {
    "fcntl",
    "msvcrt",
    "termios",
    "tty",
    "pty",
    "resource",
    "pwd",
    "grp",
    "winreg",
    "_winapi",
    "ctypes.wintypes",
}
NAMES = {
    "sys": {"platform", "getwindowsversion"},
    "os": {
        "name", "uname", "kill", "killpg", "register_at_fork", "fdatasync", "fsync", "pread", "pwrite", "preadv", "pwritev", "fchmod",
        "statvfs", "fstatvfs", "getuid", "geteuid", "setsid", "waitpid", "readlink", "replace", "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC",
        "O_NONBLOCK", "O_BINARY", "sync", "posix_fallocate", "sched_getaffinity", "startfile", "mkfifo",
    },
    "platform": {"system"},
    "select": {"poll", "epoll", "kqueue"},
    "signal": {"SIGKILL", "SIGTERM", "SIGBREAK", "SIGSTOP", "CTRL_BREAK_EVENT", "alarm", "pthread_kill"},
    "time": {"clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME"},
}  # fmt: skip
# Where the call is guarded by an attribute of `system`, or is the subject: the stop signal of the demo, a fork on purpose.
ALLOWED = {
    ("cli/demo_agent.py", "os.kill"),
    ("testing/records/forking.py", "os.kill"),
    ("testing/records/forking.py", "os.waitpid"),
    ("testing/records/forking.py", "signal.SIGKILL"),
}  # fmt: skip
FILES = sorted(path for path in ROOT.rglob("*.py") if PLATFORM not in path.parents)


def problems(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} & MODULES if node.module else set()
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if alias.name in NAMES.get(node.module or "", ())
            }
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NAMES.get(node.value.id, ()):
                found.add(f"{node.value.id}.{node.attr}")
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("/proc")
        ):
            found.add("/proc")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("hasattr", "getattr")
        ):
            owner = node.args[0]
            if isinstance(owner, ast.Name) and owner.id in ("os", "select", "time"):
                found.add(f"{node.func.id}({owner.id}, ...)")
    return found


def test_no_module_but_platform_asks_which_system_this_is() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), problem)
        for path in FILES
        for problem in problems(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "code",
    [
        "import fcntl",
        "import sys\nsys.platform",
        "from os import fork, kill",
        "hasattr(os, 'x')",
        "'/proc/x'",
    ],
)
def test_the_search_finds_what_it_looks_for(code: str) -> None:
    assert problems(ast.parse(code))
