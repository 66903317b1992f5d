"""Budgets on a backend: what is used is added up, and a run that has used too much is parked."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.errors import BadArgument, BudgetSpent, Unencodable
from outlive.runs.budget import Budget
from outlive.store import AsyncStore
from outlive.testing.contract import Contract


class BudgetContract(Contract):
    async def test_usage_is_added_over_saves_and_attempts(self, store: AsyncStore) -> None:
        for n in range(3):
            run = await store.run("t", run_id="r").start()
            await run.save({"n": n}, usage={"tokens": 10, "cost_usd": 0.25, "model": f"m{n}"})
            await run.save({"n": n}, usage={"tokens": 5})
            with pytest.raises(Unencodable):
                await run.save(object(), usage={"tokens": 1000})  # a save that fails adds nothing
            await run.release()
        info = await store.find_run("r")
        assert info is not None
        assert info.usage == {"tokens": 45, "cost_usd": 0.75, "model": "m2"}

    async def test_the_write_that_crosses_a_budget_is_stored_and_the_run_is_parked(
        self, store: AsyncStore
    ) -> None:
        budget = Budget(cost_usd=1, tokens=100)
        run: Any = store.run("t", run_id="r", budget=budget)
        with pytest.raises(BudgetSpent) as spent:
            async with run:
                await run.save({"n": 1}, usage={"input_tokens": 60, "output_tokens": 40, "cost_usd": 1})
                await run.save({"n": 2}, usage={"output_tokens": 1})
        assert (spent.value.what, spent.value.used, spent.value.limit) == ("tokens", 101, 100)
        assert await store.thread("t").load() == {"n": 2}
        info = await store.find_run("r")
        assert info is not None
        assert (info.status, info.failures, info.budget) == ("parked", 0, budget)
        assert info.error is not None and info.error.startswith(
            "BudgetSpent: run 'r' has used 101 of 100 tokens"
        )
        assert (await store.recover({"*": lambda run: None})).resumed == []
        await (await store.run("t").start()).complete()  # its place is free
        run = await store.retry("r")
        with pytest.raises(BudgetSpent):  # it has the budget that it had
            async with run:
                await run.save({"n": 3}, usage={"tokens": 0, "cost_usd": 0.5})
        async with await store.retry("r", budget=Budget(cost_usd=2)) as run:
            await run.save({"n": 4}, usage={"cost_usd": 0.5})
        assert (run.status, run.info.usage["cost_usd"], run.info.attempt) == ("completed", 2.0, 3)

    async def test_a_step_beyond_the_budget_is_not_called(self, store: AsyncStore) -> None:
        run: Any = await store.run("t", run_id="r", budget=Budget(steps=2)).start()
        assert [await run.step("s", int) for _ in range(2)] == [0, 0]
        await run.release()
        run = store.run("t", run_id="r")
        with pytest.raises(BudgetSpent, match="2 of 2 steps"):
            async with run:
                assert [await run.step("s", int) for _ in range(2)] == [
                    0,
                    0,
                ]  # those that it has are returned
                await run.step("s", lambda: pytest.fail("called"))
        assert run.status == "parked"

    async def test_what_children_use_counts_for_their_parents(self, store: AsyncStore) -> None:
        top: Any = store.run("t", run_id="top", budget=Budget(tokens=100))
        with pytest.raises(BudgetSpent) as spent:
            async with top:
                middle = await store.run("t", run_id="middle", parent="top").start()
                await top.save({"n": 1}, usage={"tokens": 50})
                child: Any = store.run("t", run_id="child", parent="middle")
                async with child:
                    await child.save({"n": 2}, usage={"tokens": 30})
                    assert (top.info.usage, middle.info.usage) == ({"tokens": 80}, {"tokens": 30})
                    await child.save({"n": 3}, usage={"tokens": 30})
        assert (spent.value.run, spent.value.used) == ("top", 110)
        await middle.complete()
        stored = [info async for info in store.runs()]
        assert {info.id: (info.status, info.usage) for info in stored} == {
            "top": ("parked", {"tokens": 110}),
            "middle": ("completed", {"tokens": 60}),
            "child": ("parked", {"tokens": 60}),
        }

    async def test_a_budget_is_checked(self, store: AsyncStore) -> None:
        for limits in (
            {"tokens": -1},
            {"tokens": 1.5},
            {"cost_usd": "2"},
            {"steps": True},
            {"cost_usd": float("nan")},
        ):
            with pytest.raises(BadArgument, match=next(iter(limits))):
                Budget(**limits)
        not_a_budget: Any = {"tokens": 5}
        with pytest.raises(BadArgument, match=r"outlive\.Budget"):
            store.run("t", budget=not_a_budget)
