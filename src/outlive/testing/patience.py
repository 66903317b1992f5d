"""How long a test waits for what must happen: in one place, and longer than any machine is slow.

A test that waits for something polls for it with `eventually`, and fails only when it has hung. It
never sleeps for as long as something "takes", and never asserts that something was quick: on a busy
machine a second is nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = 150.0  # what is not done by then hangs

_T = TypeVar("_T")
_LONGEST_PAUSE_S = 0.05


def eventually(condition: Callable[[], _T], complaint: str = "it did not happen") -> _T:
    """Call `condition` until it returns something true, and return that."""
    end, pause_s = time.monotonic() + PATIENCE_S, 0.001
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{complaint} within {PATIENCE_S:.0f} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    return result


async def eventually_async(
    condition: Callable[[], Awaitable[_T]],
    sleep: Callable[[float], Awaitable[None]],
    complaint: str = "it did not happen",
) -> _T:
    """Await `condition` until it returns something true; return that.

    `sleep` is the event loop's.
    """
    end, pause_s = time.monotonic() + PATIENCE_S, 0.001
    while not (result := await condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{complaint} within {PATIENCE_S:.0f} s")
        await sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    return result
