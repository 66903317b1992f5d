"""A commit that arrives twice is done once."""

from __future__ import annotations

import pytest

from outlive.backend import NEXT, Commit, EntryRecord, Removal
from outlive.backend import commit as commit_one
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, draft, write
from outlive.testing.trial import Trial

REMEMBERED = 8  # commits of a thread, of which the backend of a server knows the tokens
ONE = chunk("one")


class ResendingContract(Contract):
    """Rule 9. A backend of this process is called once for each commit, so it is exempt."""

    async def test_a_commit_that_arrives_twice_is_done_once(self, trial: Trial) -> None:
        probe = await _remote(trial)
        thread = probe.thread
        await probe.commit(draft("a"))
        claim = EntryRecord("run", "r", b"body", "running", fence=NEXT, lease_s=60)
        commits = {
            "a claim": Commit(thread, entries=(claim,)),
            "a control write": Commit(thread, writes=(write("a", "task", -1, b"value"),)),
            "metadata": Commit(thread, metadata=b"metadata", metadata_version=0),
            "chunks": Commit(thread, chunks=(ONE,)),
            "a checkpoint and a claim": Commit(thread, (draft("b"),), entries=(claim,)),
            "a removal": Commit(thread, removal=Removal(checkpoints=(("", "a"),))),
        }
        for what, commit in commits.items():
            first = await commit_one(probe.backend, commit)
            before = await probe.dump()
            again = await commit_one(probe.backend, commit)
            assert await probe.dump() == before, what
            assert again.entries in ((), first.entries), what
            assert again.revision == first.revision, what

    async def test_a_commit_is_remembered_while_others_follow_it(self, trial: Trial) -> None:
        probe = await _remote(trial)
        late = Commit(
            probe.thread, entries=(EntryRecord("run", "r", b"body", "running", fence=NEXT, lease_s=60),)
        )
        await commit_one(probe.backend, late)
        for number in range(REMEMBERED - 1):
            await probe.commit(draft(f"checkpoint {number}"))
        before = await probe.dump()
        await commit_one(probe.backend, late)
        assert await probe.dump() == before


async def _remote(trial: Trial) -> Probe:
    if not trial.opener.is_remote:
        pytest.skip("no network is between this backend and its store: each commit arrives once")
    return await trial.probe()
