"""The whole contract of a backend."""

from .machine import MachineContract
from .store import StoreContract
from .waist import WaistContract


class BackendContract(WaistContract, StoreContract, MachineContract):
    """Everything that a backend promises."""
