"""State that outlives the process: checkpoints for AI agents.

The names in `__all__` are the public API, with `outlive.errors`, `outlive.adapters`,
`outlive.otel`, and for authors of backends `outlive.backend`, `outlive.authoring` and
`outlive.testing`. Every other module is private and may change in any release.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from outlive.errors import CallerError as CallerError
    from outlive.errors import CheckpointExists as CheckpointExists
    from outlive.errors import Conflict as Conflict
    from outlive.errors import Corrupt as Corrupt
    from outlive.errors import HeadMoved as HeadMoved
    from outlive.errors import LeaseLost as LeaseLost
    from outlive.errors import NotReplicated as NotReplicated
    from outlive.errors import OutcomeUnknown as OutcomeUnknown
    from outlive.errors import OutliveError as OutliveError
    from outlive.errors import RunBusy as RunBusy
    from outlive.errors import RunEnded as RunEnded
    from outlive.errors import RunSuspended as RunSuspended
    from outlive.errors import StoreError as StoreError
    from outlive.errors import ThreadBusy as ThreadBusy
    from outlive.events import Event as Event
    from outlive.factory import open as open
    from outlive.factory import open_async as open_async
    from outlive.format.extensions import Opaque as Opaque
    from outlive.format.registry import register as register
    from outlive.layers.encryption.keyring import KeyRing as KeyRing
    from outlive.layers.encryption.rotation import Rotated as Rotated
    from outlive.layers.replication.options import Replication as Replication
    from outlive.layers.replication.options import ReplicationStatus as ReplicationStatus
    from outlive.layers.replication.options import RoleChange as RoleChange
    from outlive.retention.policy import DeletionCount as DeletionCount
    from outlive.retention.policy import Retain as Retain
    from outlive.retention.policy import Swept as Swept
    from outlive.runs.attempts import Attempt as Attempt
    from outlive.runs.budget import Budget as Budget
    from outlive.runs.effect_keys import EffectKey as EffectKey
    from outlive.runs.lease import RunInfo as RunInfo
    from outlive.runs.lock import AsyncLock as AsyncLock
    from outlive.runs.questions import QuestionInfo as QuestionInfo
    from outlive.runs.recovery import FailedRun as FailedRun
    from outlive.runs.recovery import Recovered as Recovered
    from outlive.runs.recovery import SkippedRun as SkippedRun
    from outlive.runs.response_values import FanOut as FanOut
    from outlive.runs.response_values import ModelResponse as ModelResponse
    from outlive.runs.response_values import PartialResponse as PartialResponse
    from outlive.runs.response_values import Usage as Usage
    from outlive.runs.response_values import WriteProposal as WriteProposal
    from outlive.runs.responses import AsyncResponses as AsyncResponses
    from outlive.runs.run import AsyncRun as AsyncRun
    from outlive.runs.step_record import FailedTry as FailedTry
    from outlive.runs.step_record import StepInfo as StepInfo
    from outlive.runs.stream_entry import StreamChunk as StreamChunk
    from outlive.runs.waiting import Waiting as Waiting
    from outlive.runs.waits import Question as Question
    from outlive.runs.worker import AsyncWorker as AsyncWorker
    from outlive.runs.worker_record import WorkerInfo as WorkerInfo
    from outlive.single_file import CheckpointFile as CheckpointFile
    from outlive.single_file import checkpoint_file as checkpoint_file
    from outlive.store import AsyncStore as AsyncStore
    from outlive.sync.responses import Responses as Responses
    from outlive.sync.run import Lock as Lock
    from outlive.sync.run import Run as Run
    from outlive.sync.store import Store as Store
    from outlive.sync.thread import Thread as Thread
    from outlive.sync.worker import Worker as Worker
    from outlive.threads.thread import AsyncThread as AsyncThread
    from outlive.values import NEW as NEW
    from outlive.values import Change as Change
    from outlive.values import Checkpoint as Checkpoint
    from outlive.values import CheckpointInfo as CheckpointInfo
    from outlive.values import Interrupt as Interrupt
    from outlive.values import PendingWrite as PendingWrite
    from outlive.values import Problem as Problem
    from outlive.values import Pruned as Pruned
    from outlive.values import Sizes as Sizes
    from outlive.values import StoreSize as StoreSize
    from outlive.values import ThreadInfo as ThreadInfo
    from outlive.values import Verified as Verified

# Where each public name is defined. It is imported when it is first used: `outlive --help` needs
# none, and starts at once.
_MODULES = {
    "errors": "CallerError CheckpointExists Conflict Corrupt HeadMoved LeaseLost NotReplicated OutcomeUnknown OutliveError RunBusy RunEnded RunSuspended StoreError ThreadBusy",
    "events": "Event",
    "factory": "open open_async",
    "format.extensions": "Opaque",
    "format.registry": "register",
    "layers.encryption.keyring": "KeyRing",
    "layers.encryption.rotation": "Rotated",
    "layers.replication.options": "Replication ReplicationStatus RoleChange",
    "retention.policy": "Retain Swept DeletionCount",
    "runs.attempts": "Attempt",
    "runs.budget": "Budget",
    "runs.effect_keys": "EffectKey",
    "runs.lease": "RunInfo",
    "runs.lock": "AsyncLock",
    "runs.questions": "QuestionInfo",
    "runs.recovery": "FailedRun Recovered SkippedRun",
    "runs.response_values": "FanOut ModelResponse PartialResponse Usage WriteProposal",
    "runs.responses": "AsyncResponses",
    "runs.run": "AsyncRun",
    "runs.step_record": "FailedTry StepInfo",
    "runs.stream_entry": "StreamChunk",
    "runs.waiting": "Waiting",
    "runs.waits": "Question",
    "runs.worker": "AsyncWorker",
    "runs.worker_record": "WorkerInfo",
    "single_file": "CheckpointFile checkpoint_file",
    "store": "AsyncStore",
    "sync.responses": "Responses",
    "sync.run": "Lock Run",
    "sync.store": "Store",
    "sync.thread": "Thread",
    "sync.worker": "Worker",
    "threads.thread": "AsyncThread",
    "values": "NEW Change Checkpoint CheckpointInfo Interrupt PendingWrite Problem Pruned Sizes StoreSize ThreadInfo Verified",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_SUBMODULES = ("adapters", "authoring", "backend", "errors", "otel", "testing")

__all__ = [
    "NEW",
    "AsyncLock",
    "AsyncResponses",
    "AsyncRun",
    "AsyncStore",
    "AsyncThread",
    "AsyncWorker",
    "Attempt",
    "Budget",
    "CallerError",
    "Change",
    "Checkpoint",
    "CheckpointExists",
    "CheckpointFile",
    "CheckpointInfo",
    "Conflict",
    "Corrupt",
    "DeletionCount",
    "EffectKey",
    "Event",
    "FailedRun",
    "FailedTry",
    "FanOut",
    "HeadMoved",
    "Interrupt",
    "KeyRing",
    "LeaseLost",
    "Lock",
    "ModelResponse",
    "NotReplicated",
    "Opaque",
    "OutcomeUnknown",
    "OutliveError",
    "PartialResponse",
    "PendingWrite",
    "Problem",
    "Pruned",
    "Question",
    "QuestionInfo",
    "Recovered",
    "Replication",
    "ReplicationStatus",
    "Responses",
    "Retain",
    "RoleChange",
    "Rotated",
    "Run",
    "RunBusy",
    "RunEnded",
    "RunInfo",
    "RunSuspended",
    "Sizes",
    "SkippedRun",
    "StepInfo",
    "Store",
    "StoreError",
    "StoreSize",
    "StreamChunk",
    "Swept",
    "Thread",
    "ThreadBusy",
    "ThreadInfo",
    "Usage",
    "Verified",
    "Waiting",
    "Worker",
    "WorkerInfo",
    "WriteProposal",
    "checkpoint_file",
    "open",
    "open_async",
    "register",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        is_error = hasattr(importlib.import_module(f"{__name__}.errors"), name)
        where = f"; it is {__name__}.errors.{name}" if is_error and name[:1].isupper() else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
