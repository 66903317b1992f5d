"""What one run uses while it works, and what it does when its budget is spent (`budget.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlive.errors import BudgetSpent
from outlive.runs import budget

if TYPE_CHECKING:
    from outlive.runs.run import AsyncRun

_QUESTION = "budget"


class Spending:
    """The usage of one run and of the runs that it is the parent of."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run
        self._by_children: budget.Usage = {}  # since this start
        self._lock = run._engine.runtime.lock()  # children may be in other threads
        self.used: budget.Usage = {}  # in all attempts

    def begin(self) -> None:
        """Continue from what the record says, and from what persons have answered since."""
        self.used, self._by_children = self._run.info.usage, {}
        for more in self._run._waits.answers(_QUESTION):
            limits = self._run.info.budget
            if limits is not None and limits.asks and more is not None:
                self._run.info.budget = limits.raised(more)

    def set_used(self, used: budget.Usage, by_children: budget.Usage | None = None) -> None:
        """Note what was used."""
        with self._lock:
            if by_children:
                self._by_children = budget.add(self._by_children, by_children)
            self.used = used
            self._run.info.usage = budget.add(used, self._by_children)

    async def spend(self, used: budget.Usage) -> None:
        """Count what a save has used, which is stored, and ask for more if need be. Raises BudgetSpent."""
        try:
            self._count(used)
        except BudgetSpent as spent:
            # Inside a step it must not wait: the step would be called again, and use the same
            # again.
            is_in_step = bool(self._run._ledger.around())
            await self.ask_for_more(spent, self.check, may_wait=not is_in_step)

    def _count(self, used: budget.Usage) -> None:
        """Count towards the budgets of this run and of its parents. Raises BudgetSpent."""
        parent = self._run._live_parent()
        try:
            self.check_own()
        finally:
            if parent is not None:
                parent._spending.set_used(parent._spending.used, used)
                parent._progress.moved()
                parent._spending._count(used)

    def check_own(self) -> None:
        """Raise BudgetSpent if this run has used more than its budget."""
        if self._run.info.budget is not None:
            self._run.info.budget.check(self._run.id, self._run.info.usage)

    def check(self) -> None:
        """Raise BudgetSpent if this run or one of its parents has used more than its budget."""
        self.check_own()
        parent = self._run._live_parent()
        if parent is not None:
            parent._spending.check()

    async def ask_for_more(
        self, spent: BudgetSpent, check: Callable[[], None], *, may_wait: bool = True
    ) -> None:
        """Ask for a larger budget until a check passes, if the budget says so. Raises BudgetSpent.

        Where nothing may wait, such as inside an effect, the next step asks.
        """
        is_spent = True
        while is_spent:
            run: AsyncRun | None = self._run
            while run is not None and run.id != spent.run:  # the budget of a parent
                run = run._live_parent()
            limits = None if run is None else run.info.budget
            if run is None or limits is None or not limits.asks:
                raise spent
            if not may_wait or self._run._waits.is_in_effect():
                return
            await run._spending._ask(spent, limits)
            try:
                check()
                is_spent = False
            except BudgetSpent as again:
                spent = again

    async def _ask(self, spent: BudgetSpent, limits: budget.Budget) -> None:
        usage = budget.numbers(self._run.info.usage)
        payload = {"limits": limits.limits, "usage": usage, "spent": spent.what}
        more = await self._run._waits.ask_next(_QUESTION, payload, limits.schema)
        if more is None:
            raise spent
        self._run.info.budget = limits.raised(more)
