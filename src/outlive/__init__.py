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
from .response import FanOut, ModelResponse, PartialResponse, Usage, WriteProposal
from .responses import AsyncResponses
from .single_file import CheckpointFile, checkpoint_file
from .store import AsyncStore
from .sync import Store, Thread
from .sync_responses import Responses
from .thread import AsyncThread

__version__ = "0.1.0"

__all__ = [
    "AsyncResponses",
    "AsyncStore",
    "AsyncThread",
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
    "FanOut",
    "HeadMoved",
    "Interrupt",
    "LeaseLost",
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
    "Responses",
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
    "Usage",
    "Verified",
    "WriteProposal",
    "checkpoint_file",
    "open",
    "open_async",
    "register",
]
