"""What changed between two checkpoints, path by path."""

from __future__ import annotations

import pytest

from outlive.errors import CheckpointMissing
from outlive.store import AsyncStore
from outlive.testing.contract import Contract


class DiffContract(Contract):
    async def test_a_difference_is_told_path_by_path(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        old = await thread.save(
            {"messages": ["a", "b"], "plan": {"city": "Lisbon", "days": 3}, "gone": 1, 5: "x"}
        )
        new = await thread.save(
            {"messages": ["a", "b", "c"], "plan": {"city": "Porto", "days": 3}, 5: "y", "new": 2}
        )
        changes = {
            change.path: (change.kind, change.old, change.new) for change in await thread.diff(old.id, new.id)
        }
        assert changes == {
            "messages[2]": ("added", None, "c"),
            "plan.city": ("changed", "Lisbon", "Porto"),
            "gone": ("removed", 1, None),
            "new": ("added", None, 2),
            "[5]": ("changed", "x", "y"),
        }

    async def test_equal_states_do_not_differ(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        state = {"nan": float("nan"), "list": [1, (2, {3})], "text": "x" * 5000}
        old, new = await thread.save(state), await thread.save(state)
        assert await thread.diff(old.id, new.id) == await thread.diff(old.id, old.id) == []

    async def test_a_changed_type_is_a_change(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        old = await thread.save({"a": 1, "b": [1], "c": True})
        await thread.save({"a": 1.0, "b": (1,), "c": 1})
        assert [change.path for change in await thread.diff(old.id)] == ["a", "b", "c"]

    async def test_a_difference_goes_both_ways_and_across_branches(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        base = await thread.save({"n": 0})
        left = await thread.save({"n": 1}, parent=base.id)
        right = await thread.save({"n": 2}, parent=base.id)
        (forth,), (back,) = await thread.diff(left.id, right.id), await thread.diff(right.id, left.id)
        assert (forth.old, forth.new, back.old, back.new) == (1, 2, 2, 1)
        assert str(forth) == "~ n: 1 → 2"

    async def test_only_what_is_there_can_be_compared(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        with pytest.raises(CheckpointMissing):
            await thread.diff("never there")
        saved = await thread.save(1)
        with pytest.raises(CheckpointMissing):
            await thread.diff(saved.id, "never there")
