"""How long a run has no owner when its process is killed (kill -9): from the kill until another process owns it.

The survivor calls `store.recover` with pauses of 50 ms; its clock stops when the handler is called, which comes after the
claim. On the same machine the dead process is seen to be gone. For an owner of another machine, here a process
that was told another host name, the lease must run out first. The slowest of the kills counts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import ours
import servers
from scale import Scale
from table import Row, milliseconds, within

_PAUSE_S = 0.05
_PATIENCE_S = 30.0
_SHORT_S = 2.0  # the lease of an owner elsewhere
_VICTIM = """
import socket, sys, time
url, name, lease_s, host = sys.argv[1:]
if host:
    socket.gethostname = lambda: host
import outlive
with outlive.open(url) as store, store.run(name, run_id=name, agent="victim", lease_s=float(lease_s)) as run:
    run.step("first", lambda: "done")
    print("ready", flush=True)
    time.sleep(60)
"""


def run(scale: Scale, room: Path) -> Iterator[Row]:
    yield _here("SQLite", ours.url(room / "claim.db"), scale.kills)
    with servers.postgres() as server:
        yield _here("PostgreSQL", server.url, scale.kills)
        yield _elsewhere("PostgreSQL", server.url, max(scale.kills // 2, 1))
    with servers.valkey() as server:
        yield _here("Valkey", server.url, scale.kills)


def _here(name: str, url: str, kills: int) -> Row:
    took_s = [_kill(url, f"here-{n}", 30.0) for n in range(kills)]
    note = f"median {milliseconds(median(took_s))}, {kills} kills"
    return within(f"{name}: a killed process's run is claimed", max(took_s), 0.5, note)


def _elsewhere(name: str, url: str, kills: int) -> Row:
    took_s = [_kill(url, f"elsewhere-{n}", _SHORT_S, "elsewhere") for n in range(kills)]
    note = f"lease {_SHORT_S:g} s, median {milliseconds(median(took_s))}, {kills} kills"
    bar_s = _SHORT_S + 1
    measured = f"{milliseconds(max(took_s))} ({note})"
    return Row(f"{name}: the same, of another host", measured, "<= lease + 1 s", max(took_s) <= bar_s)


def _kill(url: str, name: str, lease_s: float, host: str = "") -> float:
    """Kill an owner and tell how long its run had none."""
    command = [sys.executable, "-c", _VICTIM, url, name, str(lease_s), host]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim,
        ours.open_store(url) as store,
    ):
        assert victim.stdout is not None
        if victim.stdout.readline() != "ready\n":
            raise AssertionError("the process that is to be killed did not start")
        owned: list[float] = []
        report = store.recover({"victim": lambda _: owned.append(time.perf_counter())})
        if report.resumed or owned:
            raise AssertionError("a run was taken from a process that lives")
        victim.kill()
        start = time.perf_counter()
        while not owned and time.perf_counter() - start < _PATIENCE_S:
            time.sleep(_PAUSE_S)
            store.recover({"victim": lambda _: owned.append(time.perf_counter())})
        if len(owned) != 1:
            raise AssertionError(f"the run of a killed process was claimed {len(owned)} times")
    return owned[0] - start
