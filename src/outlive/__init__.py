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
from .layers.status import ReplicationStatus, Switched
from .lease import RunInfo
from .ledger import Step
from .lock import AsyncLock
from .opening import open, open_async
from .recovery import Recovered, Refused
from .registry import register
from .response import FanOut, ModelResponse, PartialResponse, Usage, WriteProposal
from .responses import AsyncResponses
from .run import AsyncRun
from .single_file import CheckpointFile, checkpoint_file
from .store import AsyncStore
from .sync import Lock, Run, Store, Thread, Worker
from .sync_responses import Responses
from .thread import AsyncThread
from .worker import AsyncWorker

__version__ = "0.1.0"

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
    "LeaseLost",
    "Lock",
    "MetadataMoved",
    "MissingExtra",
    "ModelResponse",
    "NeedsUpgrade",
    "NewerFormat",
    "NotReplicated",
    "Opaque",
    "OutcomeUnknown",
    "OutliveError",
    "PartialResponse",
    "PendingWrite",
    "Pruned",
    "Recovered",
    "Refused",
    "ReplicationStatus",
    "Responses",
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
    "Switched",
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
    "checkpoint_file",
    "open",
    "open_async",
    "register",
]
