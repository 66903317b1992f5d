"""A free port of the loopback interface, for servers and proxies that may go away and come back."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"

# Below the ports that systems give to outgoing connections, and so is the bus of a cluster, 10,000 further up.
# Such a port could be taken while its server is down; and a client that tries again and again to reach a port of
# that kind in vain may end up connected to itself, because TCP allows two ends to open at the same moment.
_RANGE = range(11_000, 22_700)
_BUS = 10_000

_random = random.SystemRandom()  # a test may have seeded the common one, and so may its neighbour
_taken: set[int] = set()


def free_port() -> int:
    """Return a port that nobody uses, and that no test process was given before that still runs; nor is its bus port."""
    for _ in range(1_000):
        port = _random.choice(_RANGE)
        if port not in _taken and _is_free(port) and _is_free(port + _BUS) and _reserve(port):
            _taken.add(port)
            return port
    raise OSError(f"no free port between {_RANGE.start} and {_RANGE.stop} on {HOST}")


def _reserve(port: int) -> bool:
    """Keep a port from other processes that use this module: its server may not have bound it yet, or be down.

    The UDP port of the same number says so, for as long as this process lives.
    """
    marker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        marker.bind((HOST, port))
    except OSError:
        marker.close()
        return False
    marker.detach()
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger are no obstacle
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
