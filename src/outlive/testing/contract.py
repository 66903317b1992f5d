"""What every contract class is: tests written once, run sync and async, and never overridden.

A test is an `async def`. Its arguments `trial`, `probe` and `store` are opened for it; any other is
a fixture of pytest's. A class outside this package may add tests and must bring the fixture
`backend`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from outlive.testing.trial import IO_MODES, Opener, Trial

Body = Callable[..., Coroutine[Any, Any, None]]
_OPENED: dict[str, Callable[[Trial], Coroutine[Any, Any, Any]]] = {
    "probe": lambda trial: trial.probe(),
    "store": lambda trial: trial.store(),
}


class Contract:
    """A set of tests that a backend joins with one class and the fixture `backend`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, body in list(vars(cls).items()):
            if name.startswith("test") and inspect.iscoroutinefunction(body):
                setattr(cls, name, _in_io_mode(body))
        _refuse_overrides(cls)

    @pytest.fixture
    def backend(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} needs a fixture `backend` that returns an empty backend or an outlive.testing.Opener"
        )

    @pytest.fixture(params=list(IO_MODES))
    def io_mode(self, request: pytest.FixtureRequest) -> Any:
        return request.param


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".testing")[0] == "outlive"


def _refuse_overrides(cls: type) -> None:
    """Refuse subclasses that override a test: a contract that can be weakened in silence is none."""
    if "__test__" in vars(cls):
        raise TypeError(f"{cls.__qualname__} may not set __test__: a contract is run as a whole")
    for contract in (base for base in cls.__mro__ if issubclass(base, Contract) and _is_ours(base)):
        for name, defined in vars(contract).items():
            own = name.startswith("__") and name != "__init_subclass__"
            if own or name == "backend" or inspect.getattr_static(cls, name) is defined:
                continue
            raise TypeError(
                f"{cls.__qualname__} may not override {contract.__name__}.{name}: "
                "fix the backend, or give the test another name"
            )


def _in_io_mode(body: Body) -> Callable[..., None]:
    """Turn an `async def` into a pytest test that runs it in one I/O mode."""
    names = list(inspect.signature(body).parameters)[1:]
    fixtures = [name for name in names if name not in _OPENED and name != "trial"]

    def test(self: Any, backend: Any, io_mode: str, **values: Any) -> None:
        __tracebackhide__ = True
        with IO_MODES[io_mode]() as driver:
            trial = Trial(Opener.of(backend), driver)
            driver.run(_run(trial, functools.partial(body, self), names, values))

    functools.update_wrapper(test, body)
    del test.__wrapped__  # type: ignore[attr-defined]  # pytest would find the coroutine function
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in ("self", "backend", "io_mode", *fixtures)
    ]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return test


async def _run(trial: Trial, body: Body, names: list[str], fixtures: dict[str, Any]) -> None:
    __tracebackhide__ = True
    try:
        opened = {name: await _OPENED[name](trial) for name in names if name in _OPENED}
        if "trial" in names:
            opened["trial"] = trial
        await body(**opened, **fixtures)
    finally:
        await trial.close()
