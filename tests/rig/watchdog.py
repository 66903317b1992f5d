"""End a run that hangs, with the stacks of all threads, instead of leaving it until someone looks.

pytest's own watchdog starts and joins a thread for each test, which takes as long as a short test does. This one is set
again only after a tenth of its time.
"""

from __future__ import annotations

import faulthandler
import os
import time

import pytest

from .crash import LONG

_PATIENCE_S = 3600 if LONG else 600


class Watchdog:
    def __init__(self):
        self._stderr = os.dup(2)  # a test's own is captured
        self._set_again_at = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self):
        if time.monotonic() >= self._set_again_at:
            faulthandler.dump_traceback_later(_PATIENCE_S, exit=True, file=self._stderr)
            self._set_again_at = time.monotonic() + _PATIENCE_S / 10

    def pytest_enter_pdb(self):
        faulthandler.cancel_dump_traceback_later()
        self._set_again_at = 0.0

    def pytest_unconfigure(self):
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)
