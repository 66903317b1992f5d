"""What stands in `items` of --json: threads, checkpoints, writes and runs as plain objects. Fields are added, never changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlive.cli.output.values import to_json

if TYPE_CHECKING:
    from outlive.cli.lease_clock import LeaseClock
    from outlive.runs.lease import RunInfo
    from outlive.values import CheckpointInfo, PendingWrite, ThreadInfo

_TOKENS = ("input_tokens", "output_tokens", "reasoning_tokens")


def moment(when: dt.datetime | None) -> str | None:
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
        "created_at": moment(checkpoint.created_at),
        "size": checkpoint.state_bytes,
        "added": checkpoint.new_bytes,
        "metadata": to_json(dict(checkpoint.metadata)),
        "next_nodes": list(checkpoint.next_nodes),
        "completed_tasks": list(checkpoint.completed_tasks),
        "interrupts": [
            {"id": one.id, "node": one.node, "payload": to_json(one.payload)} for one in checkpoint.interrupts
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


def thread_item(info: ThreadInfo, run: RunInfo | None, clock: LeaseClock) -> dict[str, Any]:
    origin = info.forked_from
    return {
        "id": info.id,
        "checkpoints": info.checkpoints,
        "stored_bytes": info.stored_bytes,
        "created_at": moment(info.created_at),
        "updated_at": moment(info.updated_at),
        "metadata": to_json(dict(info.metadata)),
        "forked_from": None if origin is None else {"thread": origin[0], "checkpoint": origin[1]},
        "head": None if info.head is None else checkpoint_item(info.head),
        "run": None if run is None else {"id": run.id, "status": run.status, "standing": clock.standing(run)},
    }


def run_item(run: RunInfo, clock: LeaseClock, used: Mapping[str, Any]) -> dict[str, Any]:
    left_s = clock.left_s(run) if run.status == "running" else None
    owner = run.owner
    return {
        "id": run.id,
        "thread": run.thread,
        "namespace": run.namespace,
        "status": run.status,
        "standing": clock.standing(run),
        "attempt": run.attempt,
        "failures": run.failures,
        "max_attempts": run.max_attempts,
        "agent": run.agent,
        "parent": run.parent,
        "owner": None if owner is None else {"host": owner.host, "pid": owner.pid},
        "lease_left_s": None if left_s is None else round(left_s, 3),
        "iteration": run.iteration,
        "phase": run.phase,
        "completed_phases": list(run.completed_phases),
        "code_version": run.code_version,
        "error": run.error,
        "started_at": moment(run.started_at),
        "updated_at": moment(run.updated_at),
        "ended_at": moment(run.ended_at),
        "usage": to_json(dict(run.usage)),
        **{name: used.get(name) for name in (*_TOKENS, "cost_usd")},
    }
