"""The sync mode of a run's responses: the same methods with the same arguments, for threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from outlive.runs.response_values import FanOut, ModelResponse, PartialResponse, Usage
from outlive.runs.responses import AsyncResponses
from outlive.runtime.runtime import run_now


class Responses:
    """What the models of one run answered: `run.responses`. Open it before the models are asked."""

    def __init__(self, responses: AsyncResponses) -> None:
        self._responses = responses

    def __repr__(self) -> str:
        return repr(self._responses).replace("<AsyncResponses", "<Responses", 1)

    @property
    def prompt(self) -> Any:
        """What the models were asked."""
        return self._responses.prompt

    @property
    def verbose(self) -> bool:
        """Tell whether the application asked for verbose output."""
        return self._responses.verbose

    def open(
        self, model_ids: Sequence[str] | None = None, *, prompt: Any = None, verbose: bool = False
    ) -> Self:
        run_now(self._responses.open(model_ids, prompt=prompt, verbose=verbose))
        return self

    def all(self) -> list[ModelResponse]:
        return run_now(self._responses.all())

    def get(self, model_id: str, ordinal: int = 0) -> ModelResponse:
        return run_now(self._responses.get(model_id, ordinal))

    def pending(self) -> list[ModelResponse]:
        return run_now(self._responses.pending())

    def completed(self) -> list[ModelResponse]:
        return run_now(self._responses.completed())

    def usage(self) -> Usage:
        return run_now(self._responses.usage())

    def build(self) -> FanOut | None:
        return run_now(self._responses.build())

    def begin(self, model_id: str, ordinal: int = 0) -> ModelResponse:
        return run_now(self._responses.begin(model_id, ordinal))

    def update(
        self, model_id: str, partial: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        return run_now(self._responses.update(model_id, partial, ordinal))

    def complete(
        self, model_id: str, response: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        return run_now(self._responses.complete(model_id, response, ordinal))

    def fail(
        self,
        model_id: str,
        error: BaseException | str,
        ordinal: int = 0,
        *,
        partial: PartialResponse | Mapping[str, Any] | None = None,
    ) -> ModelResponse:
        return run_now(self._responses.fail(model_id, error, ordinal, partial=partial))

    def interrupt(
        self,
        model_id: str,
        ordinal: int = 0,
        *,
        partial: PartialResponse | Mapping[str, Any] | None = None,
    ) -> ModelResponse:
        return run_now(self._responses.interrupt(model_id, ordinal, partial=partial))


for _name, _method in vars(Responses).items():
    if callable(_method) and not _name.startswith("_"):
        _method.__doc__ = getattr(AsyncResponses, _name).__doc__
