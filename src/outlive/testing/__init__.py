"""The contract of a backend, as tests. Run them on a backend that you write:

    from outlive.testing import BackendContract, Opener

    class TestMine(BackendContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return Opener.local(lambda: MyBackend(tmp_path))

The fixture gives an empty backend: a local one (plain functions, see `outlive.authoring.Local`),
which is tested sync and async as it is, or an `Opener`, which tells how to open it, more than once,
in each mode.

For tests of your own, `probe` is one thread of the backend without a store (`Probe`), and `draft`,
`chunk` and `write` make records.

`BackendContract` has three parts, each of which can be run alone: `RecordsContract` looks at the
records themselves, `StoreContract` at what a user sees, and `MachineContract` compares any sequence
of calls with a simple model. Contract tests cannot be overridden. They need pytest and Hypothesis;
typed states are tested as far as pydantic and msgspec are installed.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlive.testing.contract import Contract as Contract
    from outlive.testing.interposed import Interposed as Interposed
    from outlive.testing.machine import MachineContract as MachineContract
    from outlive.testing.records import RecordsContract as RecordsContract
    from outlive.testing.store import StoreContract as StoreContract
    from outlive.testing.suite import BackendContract as BackendContract
    from outlive.testing.thread_records import Probe as Probe
    from outlive.testing.thread_records import chunk as chunk
    from outlive.testing.thread_records import draft as draft
    from outlive.testing.thread_records import write as write
    from outlive.testing.trial import Opener as Opener
    from outlive.testing.trial import Trial as Trial
    from outlive.testing.tuning import tuned as tuned

if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite(
        *(f"{__name__}.{part}" for part in ("records", "store", "machine"))
    )

_HOMES = {
    "BackendContract": "suite",
    "Contract": "contract",
    "Interposed": "interposed",
    "MachineContract": "machine",
    "Opener": "trial",
    "Probe": "thread_records",
    "StoreContract": "store",
    "Trial": "trial",
    "RecordsContract": "records",
    "chunk": "thread_records",
    "draft": "thread_records",
    "tuned": "tuning",
    "write": "thread_records",
}


def __getattr__(name: str) -> Any:
    """Import the suite when it is asked for: a benchmark that wants a server has no pytest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
