"""The warm process itself: `python -m rig.crash FD`, where FD is its end of a socket pair."""

import faulthandler
import importlib
import signal
import socket
import sys

from rig.crash import BACKENDS
from rig.crash.server import serve

MODULES = (
    *(f"backends.{name}.backend" for name in (*BACKENDS, "postgres", "redis")),
    *("backends.local.memory", "backends.local.async_local", "backends.postgres.urls"),
    *("backends.redis.connection", "backends.redis.tls", "backends.redis.urls"),
    *("runtime.loop", "threads.keep_policy", "threads.prune", "threads.verify", "threads.copy"),
)

for module in MODULES:  # here, so that no worker has to
    importlib.import_module(f"outlive.{module}")
faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; when they end, so does this
serve(socket.socket(fileno=int(sys.argv[1])))
