"""The items of --json: threads, checkpoints, writes and runs. Fields are added, never changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlive.cli.output.values import to_json

if TYPE_CHECKING:
    from outlive.runs.attempts import Attempt
    from outlive.runs.lease import RunInfo
    from outlive.runs.step_record import StepInfo
    from outlive.values import CheckpointInfo, PendingWrite, ThreadInfo

USAGE_FIELDS = ("input_tokens", "output_tokens", "reasoning_tokens", "cost_usd")


def _iso(when: dt.datetime | None) -> str | None:
    return None if when is None else when.astimezone(dt.UTC).isoformat()


def checkpoint_item(checkpoint: CheckpointInfo) -> dict[str, Any]:
    return {
        "thread": checkpoint.thread,
        "namespace": checkpoint.namespace,
        "id": checkpoint.id,
        "seq": checkpoint.seq,
        "epoch": checkpoint.epoch,
        "parent": checkpoint.parent,
        "step": checkpoint.step,
        "source": checkpoint.source,
        "run": checkpoint.run,
        "created_at": _iso(checkpoint.created_at),
        "state_bytes": checkpoint.state_bytes,
        "new_bytes": checkpoint.new_bytes,
        "metadata": to_json(dict(checkpoint.metadata)),
        "next_nodes": list(checkpoint.next_nodes),
        "completed_tasks": list(checkpoint.completed_tasks),
        "interrupts": [
            {"id": interrupt.id, "node": interrupt.node, "payload": to_json(interrupt.payload)}
            for interrupt in checkpoint.interrupts
        ],
    }


def write_item(write: PendingWrite) -> dict[str, Any]:
    return {
        "task": write.task,
        "index": write.index,
        "channel": write.channel,
        "path": write.path,
        "value": to_json(write.value),
    }


def thread_item(info: ThreadInfo, run: dict[str, Any] | None) -> dict[str, Any]:
    """Return a thread; `run` is the run of its head, as an item."""
    origin = info.forked_from
    return {
        "id": info.id,
        "checkpoints": info.checkpoints,
        "stored_bytes": info.stored_bytes,
        "created_at": _iso(info.created_at),
        "updated_at": _iso(info.updated_at),
        "metadata": to_json(dict(info.metadata)),
        "forked_from": None if origin is None else {"thread": origin[0], "checkpoint": origin[1]},
        "head": None if info.head is None else checkpoint_item(info.head),
        "run": run,
    }


def attempt_item(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "owner": attempt.owner,
        "began_at": _iso(attempt.began_at),
        "ended_at": _iso(attempt.ended_at),
        "outcome": attempt.outcome,
        "error": attempt.error,
    }


def step_item(step: StepInfo) -> dict[str, Any]:
    return {
        "name": step.name,
        "key": step.key,
        "status": step.status,
        "value": to_json(step.value),
        "error": step.error,
        "began_at": _iso(step.began_at),
        "ended_at": _iso(step.ended_at),
        "attempt": step.attempt,
        "tries": step.tries,
        "effect_key": step.effect_key,
    }


def run_item(
    run: RunInfo, *, standing: str, lease_left_s: float | None, usage: Mapping[str, Any]
) -> dict[str, Any]:
    owner = run.owner
    return {
        "id": run.id,
        "thread": run.thread,
        "namespace": run.namespace,
        "status": run.status,
        "standing": standing,
        "attempt": run.attempt,
        "failures": run.failures,
        "max_attempts": run.max_attempts,
        "agent": run.agent,
        "parent": run.parent,
        "owner": None if owner is None else {"host": owner.host, "pid": owner.pid},
        "lease_left_s": None if lease_left_s is None else round(lease_left_s, 3),
        "iteration": run.iteration,
        "phase": run.phase,
        "step": run.step,
        "quiet_s": None if run.quiet_s is None else round(run.quiet_s, 3),
        "completed_phases": list(run.completed_phases),
        "code_version": run.code_version,
        "error": run.error,
        "started_at": _iso(run.started_at),
        "updated_at": _iso(run.updated_at),
        "ended_at": _iso(run.ended_at),
        "usage": to_json(dict(run.usage)),
        **{name: usage.get(name) for name in USAGE_FIELDS},
    }
