"""The contract of a backend, as tests. Whoever writes a backend runs them:

    from outlive.testing import BackendContract, Opener

    class TestMine(BackendContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return Opener.local(lambda: MyBackend(tmp_path))

The fixture gives an empty backend: a local one (plain functions, see `outlive.backends.local.Local`), which is
tested in both colours as it is, or an `Opener`, which tells how to open it, more than once, in each colour.

`BackendContract` has three parts, each of which can be run alone: `WaistContract` looks at the records
themselves, `StoreContract` at what a user sees, and `MachineContract` compares any sequence of
calls with a simple model. Contract tests cannot be overridden. They need pytest and Hypothesis; typed states are
tested as far as pydantic and msgspec are installed.
"""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("waist", "store", "machine")))

from .contract import Contract  # noqa: E402
from .interposed import Interposed  # noqa: E402
from .machine import MachineContract  # noqa: E402
from .store import StoreContract  # noqa: E402
from .trial import Opener, Trial  # noqa: E402
from .waist import WaistContract  # noqa: E402


class BackendContract(WaistContract, StoreContract, MachineContract):
    """Everything that a backend promises."""


__all__ = [
    "BackendContract",
    "Contract",
    "Interposed",
    "MachineContract",
    "Opener",
    "StoreContract",
    "Trial",
    "WaistContract",
]
