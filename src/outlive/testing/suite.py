"""The whole contract of a backend."""

from outlive.testing.machine import MachineContract
from outlive.testing.records import RecordsContract
from outlive.testing.store import StoreContract


class BackendContract(RecordsContract, StoreContract, MachineContract):
    """Everything that a backend promises."""
