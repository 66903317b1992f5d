"""The message of an error, and what to do about it at a terminal."""

from __future__ import annotations

from outlive.errors import OutliveError


def message_with_advice(error: OutliveError) -> str:
    """Return what went wrong, and what to do."""
    return "; ".join(filter(None, split_advice(error)))


def split_advice(error: OutliveError) -> tuple[str, str]:
    """Return what went wrong, and what to do, or "" if nothing is known."""
    return error.summary.replace("\n", " "), error.advice or ""
