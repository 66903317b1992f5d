"""The items of --json: threads, checkpoints, writes, runs, steps, attempts, questions and workers.

All that the program tells of these as JSON is made here, from what the API returns and nothing
else: no options, no terminal. Fields are added, never changed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from outlive.view.opaque import read_packed
from outlive.view.values import to_json

if TYPE_CHECKING:
    from outlive.retention.policy import DeletionCount, Swept
    from outlive.runs.attempts import Attempt
    from outlive.runs.budget import Budget
    from outlive.runs.lease import RunInfo
    from outlive.runs.questions import QuestionInfo
    from outlive.runs.step_record import FailedTry, StepInfo
    from outlive.runs.waiting import Waiting
    from outlive.runs.worker_record import WorkerInfo
    from outlive.values import CheckpointInfo, Interrupt, PendingWrite, Sizes, ThreadInfo, Verified

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
        "interrupts": [interrupt_item(interrupt) for interrupt in checkpoint.interrupts],
    }


def interrupt_item(interrupt: Interrupt) -> dict[str, Any]:
    return {"id": interrupt.id, "node": interrupt.node, "payload": to_json(interrupt.payload)}


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


def run_item(
    run: RunInfo,
    *,
    standing: str,
    lease_left_s: float | None,
    usage: Mapping[str, Any],
    has_worker: bool | None,
) -> dict[str, Any]:
    """Return a run; `has_worker` tells whether a living worker would claim it, None if there is nothing to claim."""
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
        "completed_phases": list(run.completed_phases),
        "step": run.step,
        "quiet_s": None if run.quiet_s is None else round(run.quiet_s, 3),
        "waits": wait_item(run.waits) if run.waits is not None and run.status == "waiting" else None,
        "priority": run.priority,
        "has_worker": has_worker,
        "code_version": run.code_version,
        "error": run.error,
        "started_at": _iso(run.started_at),
        "updated_at": _iso(run.updated_at),
        "ended_at": _iso(run.ended_at),
        "usage": to_json(dict(run.usage)),
        "budget": None if run.budget is None else budget_item(run.budget),
        **{name: usage.get(name) for name in USAGE_FIELDS},
    }


def changed_run_item(run: RunInfo, *, was: str, status: str, error: str | None = None) -> dict[str, Any]:
    """Return what became of a run that a command changed; `was` is how it stood before."""
    return {"id": run.id, "thread": run.thread, "was": was, "status": status, "error": error}


def recovered_item(run: RunInfo, *, outcome: str, code: str | None, reason: str) -> dict[str, Any]:
    """Return what became of a run that recovery or a worker found."""
    return {
        "outcome": outcome,
        "id": run.id,
        "thread": run.thread,
        "agent": run.agent,
        "attempt": run.attempt,
        "code": code,
        "reason": reason,
    }


def budget_item(budget: Budget) -> dict[str, Any]:
    return {"cost_usd": budget.cost_usd, "tokens": budget.tokens, "steps": budget.steps}


def run_details(
    run: RunInfo, steps: Iterable[StepInfo], questions: Iterable[QuestionInfo], responses: Iterable[Any]
) -> dict[str, Any]:
    """Return what the item of a run has in addition when it is shown alone."""
    return {
        "prompt": to_json(read_packed(run.prompt)),
        "result": to_json(run.result),
        "attributes": to_json(dict(run.attributes)),
        "exclusive": run.exclusive,
        "lease_s": run.lease_s,
        "progress_s": run.progress_s,
        "backoff_s": run.backoff_s,
        "attempts": [attempt_item(attempt) for attempt in run.attempts],
        "steps": [step_item(step) for step in steps],
        "questions": [question_item(question) for question in questions],
        "responses": [to_json(response) for response in responses],
    }


def wait_item(waits: Waiting) -> dict[str, Any]:
    """Return what a run waits for: it continues when one of the groups is met, or at `until`."""
    return {
        "reason": waits.reason,
        "since": _iso(waits.since),
        "until": _iso(waits.until),
        "names": list(waits.names),
        "groups": [
            {"names": list(group.names), "mode": group.mode}
            for group in waits.groups
            if set(group.names) <= set(waits.names)
        ],
        "runs": list(waits.runs),
    }


def attempt_item(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "owner": attempt.owner,
        "host": attempt.host,
        "began_at": _iso(attempt.began_at),
        "ended_at": _iso(attempt.ended_at),
        "outcome": attempt.outcome,
        "error": attempt.error,
    }


def step_item(step: StepInfo) -> dict[str, Any]:
    return {
        "name": step.name,
        "key": step.key,
        "kind": step.kind,
        "status": step.status,
        "value": to_json(step.value),
        "error": step.error,
        "attempt": step.attempt,
        "began_at": _iso(step.began_at),
        "ended_at": _iso(step.ended_at),
        "tries": step.tries,
        "failures": [_failure_item(failed) for failed in step.failures],
        "effect_key": step.effect_key,
    }


def _failure_item(failed: FailedTry) -> dict[str, Any]:
    return {
        "attempt": failed.attempt,
        "began_at": _iso(failed.began_at),
        "ended_at": _iso(failed.ended_at),
        "error": failed.error,
    }


def question_item(question: QuestionInfo) -> dict[str, Any]:
    return {
        "run": question.run,
        "thread": question.thread,
        "name": question.name,
        "type": question.type,
        "status": question.status,
        "agent": question.agent,
        "payload": to_json(question.payload),
        "schema": None if question.schema is None else to_json(dict(question.schema)),
        "asked_at": _iso(question.asked_at),
        "due_at": _iso(question.due_at),
        "value": to_json(read_packed(question.value)),
        "by": question.by,
        "answered_at": _iso(question.answered_at),
        "refused": question.refused,
        "error": question.error,
    }


def worker_item(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "id": worker.id,
        "agents": list(worker.agents),
        "code_version": worker.code_version,
        "policy": worker.policy,
        "host": worker.host,
        "pid": worker.pid,
        "capacity": worker.capacity,
        "busy": worker.busy,
        "is_draining": worker.is_draining,
        "started_at": _iso(worker.started_at),
        "lease_expires_at": _iso(worker.lease_expires_at),
    }


# The store


def sizes_item(thread: str, sizes: Sizes) -> dict[str, Any]:
    return {
        "thread": thread,
        "checkpoints": sizes.checkpoints,
        "stored_bytes": sizes.stored_bytes,
        "state_bytes": sizes.state_bytes,
    }


def verified_item(verified: Verified) -> dict[str, Any]:
    return {
        "threads": verified.threads,
        "checkpoints": verified.checkpoints,
        "chunks": verified.chunks,
        "problems": [str(problem) for problem in verified.problems],
    }


def swept_item(swept: Swept) -> dict[str, Any]:
    return {**asdict(swept), "checkpoints": swept.checkpoints, "freed_bytes": swept.freed_bytes}


def sweep_reasons(swept: Swept) -> list[tuple[str, DeletionCount]]:
    """Return why a sweep deletes what it does, with counts; empty if it deletes nothing."""
    reasons = [
        ("unchanged for --ttl", swept.ttl),
        ("older than --max-age", swept.max_age),
        ("beyond --keep-last", swept.keep_last),
        ("left by a crash", swept.orphans),
        ("streams of ended runs", swept.streams),
    ]
    return [
        (reason, count)
        for reason, count in reasons
        if count.threads or count.checkpoints or count.freed_bytes
    ]
