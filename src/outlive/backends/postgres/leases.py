"""The renewal of many leases by one statement, which changes the rows of the leases and no others.

It locks no thread. A row that another transaction has locked is passed over, so it waits for nobody
and nobody can deadlock with it. A claim that expects a lease to have expired locks the row of the
lease first (functions.sql): it sees a renewal that was there before, and a renewal that comes later
finds another fence. What was not renewed is left to an ordinary commit, which tells why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from outlive.backend import WALL, Commit, EntryRecord, Receipt
from outlive.backends.postgres.connection import Parameter
from outlive.backends.postgres.rows import CLOCK, Cells, blobs, entry_name, lease_us, numbers, to_number
from outlive.backends.postgres.save import is_light

RUNNING = "running"  # the status of what a fence names


def is_renewal(commit: Commit) -> bool:
    """Tell whether a commit renews leases and does nothing else.

    A member of a pair raises the revision of the thread by a renewal too: so not in an epoch.
    """
    fence = commit.fence
    if commit.epoch is not None or fence is None or not is_light(commit):
        return False
    is_fenced = any((entry.kind, entry.key, entry.epoch, entry.fence) == fence for entry in commit.entries)
    return is_fenced and all(map(_is_lease, commit.entries))


def _is_lease(entry: EntryRecord) -> bool:
    has_lease = entry.body is None and entry.lease_s is not None and entry.status == RUNNING
    return (
        has_lease
        and entry.clock != WALL
        and entry.expect is None
        and not entry.expect_lapsed
        and not entry.gone
    )


def renewal_parameters(commits: Sequence[Commit]) -> list[Parameter]:
    """Return the parameters of the statement: one element for each lease."""
    leases = [(place, commit, entry) for place, commit in enumerate(commits) for entry in commit.entries]
    entries = [entry for _, _, entry in leases]
    return [
        blobs([commit.thread.digest for _, commit, _ in leases]),
        blobs([entry_name(entry.kind, entry.key) for entry in entries]),
        numbers([entry.epoch for entry in entries]),
        numbers([entry.fence for entry in entries]),
        numbers([entry.revision for entry in entries]),
        numbers([lease_us(entry.lease_s or 0) for entry in entries]),
        numbers([place for place, _, _ in leases]),
        numbers([len(commit.entries) for _, commit, _ in leases]),
    ]


def renewal_receipts(commits: Sequence[Commit], answer: Iterable[Cells]) -> list[Receipt | None]:
    """Return a receipt for each commit whose leases are all renewed."""
    renewed = {to_number(cells[0]): cells for cells in answer}
    places = itertools.count(1)
    return [_receipt(commit, [renewed.get(next(places)) for _ in commit.entries]) for commit in commits]


def _receipt(commit: Commit, answer: Sequence[Cells | None]) -> Receipt | None:
    leases = [cells for cells in answer if cells is not None]
    if len(leases) < len(answer):
        return None
    entries = [
        EntryRecord(
            entry.kind,
            entry.key,
            cells[4] or b"",
            RUNNING,
            entry.epoch,
            entry.fence,
            entry.revision,
            to_number(cells[3]),
            CLOCK,
        )
        for entry, cells in zip(commit.entries, leases, strict=True)
    ]
    return Receipt(to_number(leases[0][1]), to_number(leases[0][2]), entries=tuple(entries))
