"""Budgets on a backend: what is used is added up, and a run that has used too much is parked."""

from __future__ import annotations

from decimal import Decimal
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

    async def test_steps_in_flight_count(self, store: AsyncStore) -> None:
        called: list[str] = []
        run: Any = await store.run("t", run_id="r", budget=Budget(steps=2)).start()

        def outer(depth: int) -> Any:
            called.append(f"s{depth}")
            return run.step(f"s{depth + 1}", outer, depth + 1)

        with pytest.raises(BudgetSpent, match="2 of 2 steps"):
            await run.step("s1", outer, 1)
        assert called == ["s1", "s2"]
        await run.complete()

    async def test_a_run_whose_process_died_after_it_crossed_its_budget_is_parked(
        self, store: AsyncStore
    ) -> None:
        run: Any = await store.run("t", run_id="r", agent="a", budget=Budget(cost_usd=1)).start()
        assert await run.step("before", int) == 0
        with pytest.raises(BudgetSpent):
            await run.save({"n": 1}, usage={"cost_usd": 2})
        with pytest.raises(BudgetSpent, match="2 of 1 cost_usd"):  # in the same process too
            await run.step("after", lambda: pytest.fail("called"))
        await run.release()
        with pytest.raises(BudgetSpent):
            await store.run("t", run_id="r").start()
        info = await store.find_run("r")
        assert info is not None
        assert (info.status, info.attempt) == ("parked", 2)
        assert info.error is not None and info.error.startswith("BudgetSpent: run 'r' has used 2 of 1")
        run = await (await store.retry("r")).start()  # which may be to look, or to end it
        assert await run.step("before", int) == 0
        with pytest.raises(BudgetSpent):
            await run.step("after", lambda: pytest.fail("called"))
        await run.cancel()

    async def test_a_child_of_a_run_without_budget_left_calls_no_step(self, store: AsyncStore) -> None:
        top: Any = await store.run("t", run_id="top", budget=Budget(tokens=1)).start()
        with pytest.raises(BudgetSpent):
            await top.save({"n": 1}, usage={"tokens": 2})
        child: Any = await store.run("t", run_id="child", parent="top").start()
        with pytest.raises(BudgetSpent, match="'top'"):
            await child.step("s", lambda: pytest.fail("called"))
        await child.cancel()
        await top.cancel()

    async def test_a_run_that_leaves_its_block_with_a_group_of_errors_is_parked(
        self, store: AsyncStore
    ) -> None:
        run: Any = store.run("t", run_id="r", budget=Budget(tokens=1), backoff_s=1)
        with pytest.raises(ExceptionGroup):
            async with run:
                try:
                    await run.save({"n": 1}, usage={"tokens": 2})
                except BudgetSpent as spent:
                    inner = ExceptionGroup("tasks", [ValueError("another"), spent])
                    raise ExceptionGroup("tasks", [inner]) from None
        info = await store.find_run("r")
        assert info is not None
        assert (info.status, info.failures) == ("parked", 0)
        assert info.error is not None and info.error.startswith("BudgetSpent: run 'r' has used 2 of 1 tokens")

    async def test_usage_that_cannot_be_counted_is_refused(self, store: AsyncStore) -> None:
        run: Any = await store.run("t", run_id="r").start()
        await run.save({"n": 1}, usage={"cost_usd": 0.5, "seconds": 1.5, "model": None})
        wrong: list[Any] = [None, float("nan"), float("inf"), "n/a", -1, True, Decimal("NaN"), Decimal(-1)]
        for name in ("cost_usd", "tokens", "input_tokens", "output_tokens"):
            for value in wrong:
                with pytest.raises(BadArgument, match=rf"usage\['{name}'\] must be .*; leave out"):
                    await run.save({"n": 2}, usage={name: value})
        for value in (float("nan"), float("-inf"), Decimal("Infinity")):
            with pytest.raises(BadArgument, match=r"usage\['seconds'\] must be finite"):
                await run.save({"n": 2}, usage={"seconds": value})
        assert run.info.usage == {"cost_usd": 0.5, "seconds": 1.5, "model": None}
        assert await run.load() == {"n": 1}
        await run.complete()

    async def test_decimals_are_added(self, store: AsyncStore) -> None:
        run: Any = await store.run("t", run_id="r", budget=Budget(cost_usd=1)).start()
        await run.save({"n": 1}, usage={"cost_usd": Decimal("0.1")})
        await run.save({"n": 2}, usage={"cost_usd": Decimal("0.2")})
        assert run.info.usage == {"cost_usd": Decimal("0.3")}
        await run.save({"n": 3}, usage={"cost_usd": 0.5})
        assert run.info.usage == {"cost_usd": 0.8}
        with pytest.raises(BudgetSpent, match=r"1\.1 of 1 cost_usd"):
            await run.save({"n": 4}, usage={"cost_usd": Decimal("0.3")})
        await run.complete()

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
