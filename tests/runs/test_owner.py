"""A live owner is never taken for one that has ended: what cannot be seen from here is left to its lease."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import outlive
from outlive.backend.clock import clock
from outlive.runs.owner import Owner
from outlive.testing.patience import eventually

SOURCE = str(Path(outlive.__file__).parent.parent)
NOBODY = 65534


def run_python(code, *arguments, before=(), **options):
    command = [*before, sys.executable, "-c", code, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=120, check=True, **options
    ).stdout.strip()


def can(*command):
    """Tell whether this system lets us do that; only then can its effect be tested."""
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


IS_GONE = """
import sys, outlive.runs.owner
host, boot, pids, times, pid, started = sys.argv[1:]
print(outlive.runs.owner.Owner(host, boot, pids, times, int(pid), int(started)).is_gone())
"""


def seen_as_gone(owner, before=()):
    return run_python(IS_GONE, *owner.pack(), before=before) == "True"


def test_a_process_that_has_ended_is_gone_and_one_that_runs_is_not():
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = replace(Owner.me(), pid=ended.pid, started=int(stat_of(ended.pid)[19]))
    assert not other.is_gone()
    assert replace(other, started=other.started + 1).is_gone()  # its number was used again
    ended.communicate(b"\n")
    assert other.is_gone()
    assert not Owner.me().is_gone()
    assert not seen_as_gone(Owner.me())


def stat_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_a_process_that_nobody_has_waited_for_is_gone():
    child = os.fork()
    if child == 0:
        os._exit(0)
    owner = replace(Owner.me(), pid=child, started=int(stat_of(child)[19]))
    try:
        eventually(owner.is_gone)  # its main thread may end before the others
        assert stat_of(child)[0] == "Z"
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize("field", ["host", "boot", "pid_namespace", "time_namespace"])
def test_what_is_elsewhere_is_not_known_to_be_gone(field):
    nobody = replace(Owner.me(), pid=(1 << 22) + 1, started=1)
    assert nobody.is_gone()
    assert not replace(nobody, **{field: "another"}).is_gone()


@pytest.mark.parametrize(
    "fields",
    [
        None,
        5,
        [],
        ["h", "b", "p", "t", "1", 2],
        ["h", "b", "p", "t", -1, 2],
        ["h"] * 6,
        ["h", "b", "p", "t", 1 << 70, 2],
    ],
)
def test_an_owner_that_cannot_be_read_is_damage(fields):
    with pytest.raises(outlive.Corrupt):
        Owner.unpack(fields)


def test_a_process_of_another_user_behind_hidepid_is_not_gone():
    hidden = [
        "unshare",
        "-m",
        "sh",
        "-c",
        'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"',
        "sh",
    ]
    if not can(*hidden, "true"):
        pytest.skip("only root of the system can hide processes from others")
    assert run_python("import os; print(os.path.exists('/proc/1/stat'))", before=hidden) == "False"
    live = Owner.me()
    assert not seen_as_gone(live, before=hidden)
    assert not seen_as_gone(replace(live, pid=1), before=hidden)
    assert seen_as_gone(replace(live, pid=(1 << 22) + 1), before=hidden)  # there is no such process


def test_another_time_namespace_neither_kills_an_owner_nor_its_lease(tmp_path):
    later = ["unshare", "-T", "-f", "--boottime", "500000"]
    if not can(*later, "true"):
        pytest.skip("only root of the system can make time namespaces")
    assert not seen_as_gone(Owner.me(), before=later)
    url = f"sqlite:///{tmp_path}/store.db"
    look = """
import sys, outlive
from outlive.backends.local.memory import clock
with outlive.open(sys.argv[1]) as store:
    print([run.id for run in store.recoverable()], [run.id for run in store.recover({"*": lambda run: 1}).waiting], clock().lease)
"""
    with outlive.open(url) as store, store.run("t", run_id="r", lease_s=600):
        before = clock().lease
        found, _, lease = run_python(look, url, before=later).rpartition(" ")
        assert found == "[] ['r']"
        assert before <= int(lease) <= clock().lease  # leases are timed by one clock
