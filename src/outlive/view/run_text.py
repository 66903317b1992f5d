"""What is said of a run in words: its lease, its failures, and what it waits for or is doing now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlive.view.escape import quote_argument
from outlive.view.units import format_age, format_count, format_duration, parse_iso

QUIET_S = 60.0  # without a write, before a list says so


def describe_failures(item: Mapping[str, Any]) -> str:
    """Return how many attempts failed, of those after which the run is parked; a released attempt did not fail."""
    count = count_failures(item)
    return f"{count}/{item['max_attempts']}" if count else ""


def count_failures(item: Mapping[str, Any]) -> int:
    """Return how many attempts failed, with the one whose process has just died."""
    return int(item["failures"]) + bool(item["standing"] == "dead")


def describe_lease(item: Mapping[str, Any]) -> str:
    left = item["lease_left_s"]
    if left is None:
        return ""
    return f"{format_duration(left)} left" if left > 0 else "expired"


def describe_progress(item: Mapping[str, Any]) -> str:
    parts = [f"#{item['iteration']}" if item["iteration"] else "", item["phase"] or ""]
    return " ".join(part for part in parts if part)


def describe_now(item: Mapping[str, Any]) -> str:
    """Return what the run waits for, or the step in which it has been quiet."""
    if item["waits"] is not None:
        return describe_waiting(item["waits"])
    step = "" if item["step"] is None else f" in step {item['step']!r}"
    died = f"died{step}" if item["standing"] == "dead" and step else ""
    if item["standing"] == "dead" and count_failures(item) >= item["max_attempts"]:
        resumes = f"outlive retry {quote_argument(item['id'])} resumes it"
        return "; ".join(
            filter(
                None,
                (died, f"recovery parks it after {format_count(item['max_attempts'], 'failure')}", resumes),
            )
        )
    if item["has_worker"] is False:
        return "; ".join(filter(None, (died, f"no living worker has a handler for {agent_name(item)}")))
    if item["standing"] == "dead":
        return died
    quiet_s = item["quiet_s"]
    return f"quiet for {format_duration(quiet_s)}{step}" if quiet_s is not None and quiet_s >= QUIET_S else ""


def agent_name(item: Mapping[str, Any]) -> str:
    """Return the agent of a run and, if it has one, the version of its code."""
    name = "runs without an agent" if item["agent"] is None else repr(item["agent"])
    return name if item["code_version"] is None else f"{name} in version {item['code_version']!r}"


def describe_waiting(waits: Mapping[str, Any]) -> str:
    """Return what a run waits for, since when and until when."""
    since, until = parse_iso(waits["since"]), parse_iso(waits["until"])
    due = "" if until is None else f", due {format_age(until)}"
    return f"waits {describe_reason(waits)}, since {format_age(since)}{due}"


def describe_reason(waits: Mapping[str, Any]) -> str:
    """Return what a run waits for, after the word "waits"."""
    reasons = {"backoff": "to try again after a failure", "start": "for its time to start"}
    return reasons.get(waits["reason"]) or f"for {_groups(waits)}"


def _groups(waits: Mapping[str, Any]) -> str:
    texts = [f"run {id}" for id in waits["runs"]]
    for group in waits["groups"]:
        names = ", ".join(map(repr, group["names"]))
        texts.append(f"any of {names}" if group["mode"] == "any" and len(group["names"]) > 1 else names)
    return " or ".join(texts)


def format_tokens(item: Mapping[str, Any]) -> str:
    tokens = item.get("input_tokens"), item.get("output_tokens")
    return "" if tokens == (None, None) else f"{tokens[0] or 0:,} → {tokens[1] or 0:,}"


def format_cost(dollars: float | None) -> str:
    return "" if dollars is None else f"${dollars:.4f}"
