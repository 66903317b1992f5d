"""State that outlives the process: checkpoints for AI agents."""

from .checkpoint import Change, Checkpoint, Interrupt, PendingWrite, Pruned, Sizes, ThreadInfo, Verified
from .errors import (
    BadArgument,
    BadURL,
    CallerError,
    CheckpointExists,
    CheckpointMissing,
    Corrupt,
    DelayedSaveFailed,
    HeadMoved,
    LeaseLost,
    MetadataMoved,
    MissingExtra,
    NeedsUpgrade,
    NewerFormat,
    NotReplicated,
    OutcomeUnknown,
    OutliveError,
    StaleBase,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    ThreadNotEmpty,
    TypeChanged,
    Unencodable,
    UnknownTag,
)
from .extension import Opaque
from .opening import open, open_async
from .registry import register
from .store import AsyncStore
from .sync import Store, Thread
from .thread import AsyncThread

__version__ = "0.1.0"

__all__ = [
    "AsyncStore",
    "AsyncThread",
    "BadArgument",
    "BadURL",
    "CallerError",
    "Change",
    "Checkpoint",
    "CheckpointExists",
    "CheckpointMissing",
    "Corrupt",
    "DelayedSaveFailed",
    "HeadMoved",
    "Interrupt",
    "LeaseLost",
    "MetadataMoved",
    "MissingExtra",
    "NeedsUpgrade",
    "NewerFormat",
    "NotReplicated",
    "Opaque",
    "OutcomeUnknown",
    "OutliveError",
    "PendingWrite",
    "Pruned",
    "Sizes",
    "StaleBase",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Thread",
    "ThreadInfo",
    "ThreadNotEmpty",
    "TypeChanged",
    "Unencodable",
    "UnknownTag",
    "Verified",
    "open",
    "open_async",
    "register",
]
