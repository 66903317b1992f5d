"""A process that forks with a backend open: parent and child both use it."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from outlive.runtime.platform import system
from outlive.testing.contract import Contract
from outlive.testing.patience import PATIENCE_S
from outlive.testing.thread_records import draft
from outlive.testing.trial import Opener, SyncDriver, Trial


class ForkContract(Contract):
    """Only sync: a child cannot use the event loop of its parent."""

    def test_a_forked_child_and_its_parent_both_commit(self, backend: Any) -> None:
        if not system.can_fork:
            pytest.skip(f"{system.name} does not fork processes")
        opener, driver = Opener.of(backend), SyncDriver()
        trial = Trial(opener, driver)
        probe = driver.run(trial.probe())
        driver.run(probe.save("before"))
        _in_child(lambda: driver.run(probe.save("child")))
        driver.run(probe.save("parent"))
        _in_child(lambda: driver.run(probe.commit(draft("second child"))))
        # A store in memory is copied: what a child saves stays there.
        saved = ["before", "child", "parent", "second child"] if opener.survives else ["before", "parent"]
        assert driver.run(probe.ids()) == saved[::-1]
        driver.run(trial.close())


def _in_child(work: Callable[[], object]) -> None:
    """Do something in a forked child, and wait for it. The child prints what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # that other threads of the parent are not in the child
        child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001  # the parent sees the status
            traceback.print_exc()
        finally:
            os._exit(status)
    end = time.monotonic() + PATIENCE_S
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"a forked child did not finish within {PATIENCE_S:.0f} s")
        time.sleep(0.002)
    assert done[1] == 0, "a forked child failed; its output has the traceback"
