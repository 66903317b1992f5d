"""What the author of a backend needs beside `outlive.backend`: the rules of a commit, and how to open one.

`outlive docs writing-a-backend` explains how the parts fit together.

rules      `decide` judges a commit on a `View` of its thread and returns an `Effect`; `Wanted.of` says what
           of the thread it looks at, and a `Snapshot` is a `View` of what was read
in one process    `Local` is what such a backend implements, `Table` one thread in dicts
servers    `Attempts` repeats a call until its deadline, `AbandonedCommits` remembers what to make void
opening    `BackendFactory`, `local_factory` and `register_scheme`
"""

from outlive.backend.clock import Clock, clock, has_lapsed, lease_facts
from outlive.backend.entries import KINDS, RUN, check_kinds
from outlive.backends.local.memory import Table
from outlive.backends.local.protocol import Local
from outlive.backends.rules.decide import check_found, decide
from outlive.backends.rules.snapshot import Snapshot, Wanted, done_before
from outlive.backends.rules.view import Counters, Effect, View, fitting, write_order
from outlive.backends.server.attempts import AbandonedCommits, AttemptFailed, Attempts
from outlive.backends.server.urls import BackendFactory, Options, hide_secrets, take_options
from outlive.runtime.runtime import Deadline
from outlive.urls import local_factory, register_scheme

__all__ = [
    "KINDS",
    "RUN",
    "AbandonedCommits",
    "AttemptFailed",
    "Attempts",
    "BackendFactory",
    "Clock",
    "Counters",
    "Deadline",
    "Effect",
    "Local",
    "Options",
    "Snapshot",
    "Table",
    "View",
    "Wanted",
    "check_found",
    "check_kinds",
    "clock",
    "decide",
    "done_before",
    "fitting",
    "has_lapsed",
    "hide_secrets",
    "lease_facts",
    "local_factory",
    "register_scheme",
    "take_options",
    "write_order",
]
