"""Servers for one figure, as durable as in production: both sides of a race use the same one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # the servers are those of the tests

from rig.servers import ClusterServers, PostgresServer, ValkeyServer
from rig.servers.binary import postgres_folder, valkey_program


def postgres() -> PostgresServer:
    """PostgreSQL that waits for its disk at every commit."""
    return PostgresServer(fsync=True, settings={"synchronous_commit": "on"})


def valkey() -> ValkeyServer:
    """Valkey that writes each command to its log, which reaches the disk once a second."""
    return ValkeyServer(appendonly=True, appendfsync="everysec")


def cluster() -> ClusterServers:
    """Three masters and three replicas, each such a Valkey."""
    return ClusterServers(appendonly=True)


def versions() -> list[str]:
    postgres, valkey = postgres_folder() / "postgres", valkey_program()
    # "postgres (PostgreSQL) 18.1", "Valkey server v=9.1.0 sha=..."
    said = [
        subprocess.check_output([program, "--version"], text=True).split() for program in (postgres, valkey)
    ]
    number = next(word for word in said[1] if word.startswith("v="))
    return [f"PostgreSQL {said[0][2]}", f"{said[1][0]} {number[2:]}"]
