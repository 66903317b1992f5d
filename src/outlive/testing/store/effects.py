"""Steps that meet the outside: keys of effects, retries, timeouts, and runs that hang."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Union

import pytest

from outlive.errors import BadArgument, LeaseLost, NoEffect, StepMismatch, StepTimeout, StepUnfinished
from outlive.runs.effect_keys import EffectKey
from outlive.runs.step_record import StepInfo
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.patience import PATIENCE_S
from outlive.testing.trial import AsyncDriver, Trial

_QUICK: dict[str, Any] = {"backoff_s": 0.0}


class _Service:
    def pay(self, cents: int, key: EffectKey | None = None) -> str:
        return f"{cents} {key}"


class _Died(BaseException):
    """Ends a call as the death of its process does: nothing of it is stored."""


def _die() -> None:
    raise _Died


class _Flaky:
    """A service that fails a few times."""

    def __init__(self, failures: int, error: Callable[[str], Exception] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"call {self.calls}")
        return self.calls


def _hanging(trial: Trial, release: threading.Event) -> list[Callable[[], Any]]:
    """Return functions that do not return in time, of each kind that a step takes."""
    coroutine = functools.partial(asyncio.sleep, PATIENCE_S)
    return [lambda: release.wait(PATIENCE_S), *([coroutine] if isinstance(trial.driver, AsyncDriver) else [])]


class EffectContract(Contract):
    async def test_the_key_of_an_effect_is_the_same_in_every_attempt(self, store: AsyncStore) -> None:
        keys: list[str] = []

        def charge(cents: int, key: EffectKey = EffectKey()) -> str:  # noqa: B008
            keys.append(key)
            assert run.effect_key == key
            if len(keys) == 1:
                _die()
            return f"charged {cents}"

        run: Any = await store.run("t", run_id="r").start()
        with pytest.raises(_Died):
            await run.step("pay", effect=True)(charge)(42)
        with pytest.raises(NoEffect, match=r"effect=True"):
            _ = run.effect_key
        await run.release()
        run = await store.run("t", run_id="r").start()
        told: list[StepInfo] = []

        def ask_outside(step: StepInfo) -> str:
            told.append(step)
            return "retry"

        result = await run.step("pay", effect=True, on_unfinished=ask_outside)(charge)(42)
        assert result == "charged 42"
        assert keys == [told[0].effect_key] * 2
        (step,) = await store.steps("r")
        assert (step.effect_key, step.tries, step.attempt) == (keys[0], 2, 2)
        assert [(failed.attempt, failed.ended_at) for failed in step.failures] == [(1, None)]
        kept = await run.step("keep", effect=True)(lambda: run.effect_key)()  # it can be stored
        assert (type(kept), kept) == (str, (await store.steps("r"))[1].effect_key)
        await run.complete()

    async def test_every_effect_has_another_key(self, store: AsyncStore) -> None:
        keys: list[str] = []

        def pay(key: EffectKey) -> None:
            keys.append(key)

        for thread in ("a", "b", "a"):  # the third has the id of the first, which is deleted by then
            if len(keys) > 5:
                await store.delete("a")
            run: Any = await store.run(thread, run_id=f"run of {thread}").start()
            await run.step("pay", effect=True)(pay)()
            await run.step("pay", effect=True)(pay)()
            await run.step("pay", effect=True, key="#1")(pay)()
            await run.step("refund", effect=True)(pay)()
            await run.complete()
        assert len(set(keys)) == len(keys) == 12
        assert all(len(key) == 36 and key[14] == "8" for key in keys)

    async def test_every_way_to_annotate_a_key_gets_it(self, store: AsyncStore) -> None:
        def evaluated(annotation: Any) -> Callable[..., Any]:
            def pay(cents: int, key: Any = None) -> str:
                return f"{cents} {key}"

            pay.__annotations__["key"] = annotation
            return pay

        run: Any = await store.run("t", run_id="r").start()
        annotations = [
            EffectKey, EffectKey | None, Union[EffectKey, str, None],  # noqa: UP007  # as older code writes it
            Annotated[EffectKey, "x"], Annotated[EffectKey | None, 1],
            "EffectKey", "outlive.EffectKey | None", "None | EffectKey", "Optional[EffectKey]",
            "t.Annotated[EffectKey, list[int]]", "'EffectKey'", "typing.Union[str, EffectKey]",
        ]  # fmt: skip
        functions = [*map(evaluated, annotations), _Service().pay, functools.partial(_Service().pay)]
        for n, pay in enumerate(functions):
            step = run.step("pay", effect=True)
            assert await step(pay)(n) == f"{n} {(await store.steps('r'))[-1].effect_key}"
            with pytest.raises(BadArgument, match=r"'key' of step 'charge' .*effect=True"):
                await run.step("charge", pay, n)
            with pytest.raises(BadArgument, match="effect=True"):
                await run.step("charge", retries=1)(pay)(n)
            assert await run.step("own key", pay, n, "mine") == f"{n} mine"
            assert await run.step("own key", effect=True)(pay)(n, "mine") == f"{n} mine"
        for other in (
            str,
            str | None,
            list[EffectKey],
            "list[EffectKey]",
            "NoEffectKey",
            "Callable[[EffectKey], None]",
        ):
            assert await run.step("other", effect=True)(evaluated(other))(1) == "1 None"
            assert await run.step("other", evaluated(other), 1) == "1 None"
        await run.complete()

    async def test_equal_dicts_are_equal_arguments(self, store: AsyncStore) -> None:
        run: Any = await store.run("t", run_id="r").start()
        assert await run.step("s", str, [{"a": {"x": 1, 2: (3, {"m": 1, "n": 2})}, "b": 2}]) is not None
        await run.release()
        run = await store.run("t", run_id="r").start()
        reordered = [{"b": 2, "a": {2: (3, {"n": 2, "m": 1}), "x": 1}}]
        assert await run.step("s", lambda value: pytest.fail("called"), reordered) is not None
        await run.release()
        run = await store.run("t", run_id="r").start()
        with pytest.raises(StepMismatch):
            await run.step("s", str, [{"a": {"x": 1, 2: (3, {"m": 2, "n": 1})}, "b": 2}])
        await run.complete()

    async def test_a_run_that_succeeds_after_a_failure_has_no_error(self, store: AsyncStore) -> None:
        run: Any = await store.run("t", run_id="r", backoff_s=0.01).start()
        await run.fail("no luck")
        info = await store.find_run("r")
        assert info is not None and (info.status, info.error) == ("waiting", "no luck")
        run = await store.run("t", run_id="r").start()
        assert run.info.error is None
        await run.complete()
        info = await store.find_run("r")
        assert info is not None and (info.status, info.error) == ("completed", None)
        assert [one.error for one in await store.attempts("r")] == ["no luck", None]

    async def test_a_step_is_retried_and_each_try_is_stored(self, store: AsyncStore) -> None:
        run: Any = await store.run("t", run_id="r").start()
        flaky = _Flaky(2)
        assert await run.step("call", retries=2, **_QUICK)(flaky)() == 3
        beyond = _Flaky(9)
        with pytest.raises(ConnectionError, match="call 3"):
            await run.step("beyond", retries=2, **_QUICK)(beyond)()
        other = _Flaky(1, ValueError)
        with pytest.raises(ValueError, match="call 1"):
            await run.step("other", retries=5, retry_on=(ConnectionError, TimeoutError), **_QUICK)(other)()
        assert (flaky.calls, beyond.calls, other.calls) == (3, 3, 1)
        call, failed, once = await store.steps("r")
        assert (call.status, call.value, call.tries) == ("done", 3, 3)
        assert [one.error for one in call.failures] == ["ConnectionError: call 1", "ConnectionError: call 2"]
        assert (failed.status, failed.error, failed.tries) == ("raised", "ConnectionError: call 3", 3)
        assert (once.status, once.tries, once.failures) == ("raised", 1, ())
        await run.release()
        run = await store.run("t", run_id="r").start()
        assert await run.step("beyond", retries=20, **_QUICK)(beyond)() == 10
        (failed,) = [one for one in await store.steps("r") if one.name == "beyond"]
        assert (failed.tries, failed.attempt, len(failed.failures)) == (10, 2, 9)
        await run.complete()

    async def test_a_step_that_takes_too_long_raises(self, trial: Trial) -> None:
        store, release = await trial.store(), threading.Event()
        run: Any = await store.run("t", run_id="r").start()
        try:
            for function in _hanging(trial, release):
                for name in ("plain", "effect"):
                    step = run.step(name, timeout_s=0.05, effect=name == "effect")(function)
                    with pytest.raises(StepTimeout) as late:
                        await step()
                    assert (late.value.name, late.value.timeout_s) == (name, 0.05)
                    assert isinstance(late.value, TimeoutError)
        finally:
            release.set()
        with pytest.raises(TimeoutError, match="its own"):
            await run.step("own", timeout_s=PATIENCE_S)(
                _Flaky(1, lambda text: TimeoutError(f"its own {text}"))
            )()
        assert await run.step("in time", timeout_s=PATIENCE_S)(lambda n: n + 1)(1) == 2
        steps = {step.name: step for step in await store.steps("r") if step.key == "#1"}
        assert (steps["plain"].status, steps["effect"].status) == ("raised", "started")
        await run.release()
        run = await store.run("t", run_id="r").start()
        with pytest.raises(StepUnfinished, match=r"did not finish \(StepTimeout: .*\), so its effect may"):
            await run.step("effect", effect=True, on_unfinished="ask")(int)()
        await run.release()
        run = await store.run("t", run_id="r").start()
        policy: dict[str, Any] = {"effect": True, "on_unfinished": ("value", "it happened")}
        assert await run.step("effect", **policy)(int)() == "it happened"  # in doubt: the policy decides
        assert await run.step("plain", int) == 0
        await run.complete()

    async def test_the_options_of_a_step_are_checked(self, store: AsyncStore) -> None:
        run: Any = await store.run("t").start()
        for options in (
            {"retries": -1}, {"retries": True}, {"backoff_s": -1}, {"backoff_s": "1"}, {"timeout_s": 0},
            {"retry_on": "ValueError"}, {"retry_on": ()}, {"retry_on": KeyboardInterrupt}, {"tries": 1},
            {"on_unfinished": "aks", "effect": True}, {"on_unfinished": None, "effect": True},
            {"on_unfinished": ("value",), "effect": True}, {"on_unfinished": ["value", 1], "effect": True},
            {"on_unfinished": "ask"}, {"on_unfinished": print}, {"on_unfinished": "retry", "effect": False},
        ):  # fmt: skip
            with pytest.raises(BadArgument, match=next(iter(options))):
                await run.step("s", **options)(int)()
        with pytest.raises(BadArgument, match="progress_s"):
            store.run("t", progress_s=0)
        await run.complete()

    async def test_a_run_without_progress_is_handed_over(self, trial: Trial) -> None:
        told: list[Any] = []
        store, other = await trial.store(), await trial.store()
        store._engine.events._watchers = (told.append,)
        run: Any = await store.run("t", run_id="r", lease_s=0.3, progress_s=0.5).start()
        end = time.monotonic() + PATIENCE_S

        async def handle(run: Any) -> None:
            await run.step("s", int)

        resumed: list[Any] = []
        while not resumed and time.monotonic() < end:
            await trial.sleep(0.1)
            resumed = (await other.recover({"*": trial.handler(handle)})).resumed
        assert [info.id for info in resumed] == ["r"]
        assert [event.run for event in told if event.name == "stall"] == ["r"]
        with pytest.raises(LeaseLost):
            await run.save({"late": 1})
        assert [one.outcome for one in await other.attempts("r")] == ["lapsed", "completed"]
