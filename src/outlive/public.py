"""The public names, from the modules that define them. `outlive` takes them from here when the first of them is used."""

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
    KeyMissing,
    LeaseLost,
    MetadataMoved,
    MissingExtra,
    NeedsUpgrade,
    NewerFormat,
    NotReplicated,
    NotSealed,
    OpenedAlone,
    OutcomeUnknown,
    OutliveError,
    RunBusy,
    RunEnded,
    SealBroken,
    StaleBase,
    StepMismatch,
    StepUnfinished,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    SweepBusy,
    ThreadBusy,
    ThreadNotEmpty,
    TypeChanged,
    Unencodable,
    UnknownTag,
    WrongKey,
)
from .event import Event
from .extension import Opaque
from .layers.keyring import KeyRing
from .layers.rotation import Rotated
from .layers.status import ReplicationStatus, Switched
from .lease import RunInfo
from .ledger import Step
from .lock import AsyncLock
from .opening import open, open_async
from .recovery import Recovered, Refused
from .registry import register
from .response import FanOut, ModelResponse, PartialResponse, Usage, WriteProposal
from .responses import AsyncResponses
from .retain import Retain, Swept, Taken
from .run import AsyncRun
from .single_file import CheckpointFile, checkpoint_file
from .store import AsyncStore
from .sync import Lock, Run, Store, Thread, Worker
from .sync_responses import Responses
from .thread import AsyncThread
from .worker import AsyncWorker

__all__ = [
    "AmbiguousStep",
    "AsyncLock",
    "AsyncResponses",
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
    "CheckpointFile",
    "CheckpointMissing",
    "Corrupt",
    "DelayedSaveFailed",
    "Event",
    "FanOut",
    "HeadMoved",
    "Interrupt",
    "KeyMissing",
    "KeyRing",
    "LeaseLost",
    "Lock",
    "MetadataMoved",
    "MissingExtra",
    "ModelResponse",
    "NeedsUpgrade",
    "NewerFormat",
    "NotReplicated",
    "NotSealed",
    "Opaque",
    "OpenedAlone",
    "OutcomeUnknown",
    "OutliveError",
    "PartialResponse",
    "PendingWrite",
    "Pruned",
    "Recovered",
    "Refused",
    "ReplicationStatus",
    "Responses",
    "Retain",
    "Rotated",
    "Run",
    "RunBusy",
    "RunEnded",
    "RunInfo",
    "SealBroken",
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
    "SweepBusy",
    "Swept",
    "Switched",
    "Taken",
    "Thread",
    "ThreadBusy",
    "ThreadInfo",
    "ThreadNotEmpty",
    "TypeChanged",
    "Unencodable",
    "UnknownTag",
    "Usage",
    "Verified",
    "Worker",
    "WriteProposal",
    "WrongKey",
    "checkpoint_file",
    "open",
    "open_async",
    "register",
]
