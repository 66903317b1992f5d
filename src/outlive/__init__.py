"""State that outlives the process: checkpoints for AI agents."""

from .checkpoint import Change, Checkpoint, Interrupt, PendingWrite, Pruned, Sizes, ThreadInfo, Verified
from .errors import (
    AmbiguousStep,
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
    RunBusy,
    RunEnded,
    StaleBase,
    StepMismatch,
    StepUnfinished,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    ThreadBusy,
    ThreadNotEmpty,
    TypeChanged,
    Unencodable,
    UnknownTag,
)
from .event import Event
from .extension import Opaque
from .lease import RunInfo
from .ledger import Step
from .lock import AsyncLock
from .opening import open, open_async
from .recovery import Recovered, Refused
from .registry import register
from .run import AsyncRun
from .store import AsyncStore
from .sync import Lock, Run, Store, Thread, Worker
from .thread import AsyncThread
from .worker import AsyncWorker

__version__ = "0.1.0"

__all__ = [
    "AmbiguousStep",
    "AsyncLock",
    "AsyncRun",
    "AsyncStore",
    "AsyncThread",
    "AsyncWorker",
    "BadArgument",
    "BadURL",
    "CallerError",
    "Change",
    "Checkpoint",
    "CheckpointExists",
    "CheckpointMissing",
    "Corrupt",
    "DelayedSaveFailed",
    "Event",
    "HeadMoved",
    "Interrupt",
    "LeaseLost",
    "Lock",
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
    "Recovered",
    "Refused",
    "Run",
    "RunBusy",
    "RunEnded",
    "RunInfo",
    "Sizes",
    "StaleBase",
    "Step",
    "StepMismatch",
    "StepUnfinished",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Thread",
    "ThreadBusy",
    "ThreadInfo",
    "ThreadNotEmpty",
    "TypeChanged",
    "Unencodable",
    "UnknownTag",
    "Verified",
    "Worker",
    "open",
    "open_async",
    "register",
]
