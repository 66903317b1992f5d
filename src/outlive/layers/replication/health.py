"""Whether a store can be reached."""

from __future__ import annotations

from dataclasses import dataclass

from outlive.errors import (
    MissingSchema,
    NotReplicated,
    OutcomeUnknown,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
)


def is_unreachable(error: object) -> bool:
    """Tell whether an error says that a store cannot be reached, or that nobody knows what it did.

    Nothing else is a reason to leave it: not what is missing or damaged, not a lock, not a full disk, not a wrong call.
    """
    if isinstance(error, StoreUnavailable):
        return not isinstance(error, StoreBusy | StoreFull)
    return isinstance(error, OutcomeUnknown) and not isinstance(error, NotReplicated)


def has_no_answer(error: object) -> bool:
    """Tell whether a store that may be new did not answer: that it has no tables yet is an answer."""
    return is_unreachable(error) and not isinstance(error, MissingSchema)


@dataclass(slots=True)
class Health:
    """What is known of one store."""

    is_healthy: bool = True
    since: int = 0  # microseconds
