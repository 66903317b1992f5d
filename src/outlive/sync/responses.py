"""The sync API of a run's responses. Each method finishes the coroutine of `AsyncResponses`."""

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
        """Record that these models will be asked, by one commit, or continue with what is stored.

        Models that are stored already keep their responses, also those that are not named any more. Without
        `model_ids` it only reads. Raises BadArgument when `prompt` is not the one that was answered.
        """
        run_now(self._responses.open(model_ids, prompt=prompt, verbose=verbose))
        return self

    def all(self) -> list[ModelResponse]:
        """Return all responses as they are stored, in the order in which the models were named."""
        return run_now(self._responses.all())

    def get(self, model_id: str, ordinal: int = 0) -> ModelResponse:
        """Return the response of one model, as it is stored."""
        return run_now(self._responses.get(model_id, ordinal))

    def pending(self) -> list[ModelResponse]:
        """Return the responses that are not completed, also those that never began: ask these models."""
        return run_now(self._responses.pending())

    def completed(self) -> list[ModelResponse]:
        """Return the responses that are completed: these models need not be asked again."""
        return run_now(self._responses.completed())

    def usage(self) -> Usage:
        """Return the usage of all models together, in all attempts."""
        return run_now(self._responses.usage())

    def build(self) -> FanOut | None:
        """Return all responses as one value to continue with; None when nothing was interrupted."""
        return run_now(self._responses.build())

    def begin(self, model_id: str, ordinal: int = 0) -> ModelResponse:
        """Record that a model is asked now. Its first update does so too."""
        return run_now(self._responses.begin(model_id, ordinal))

    def update(
        self, model_id: str, partial: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        """Store the progress of a model: all of this attempt, in place of the update before.

        Returns the response with the usage of earlier attempts added.
        """
        return run_now(self._responses.update(model_id, partial, ordinal))

    def complete(
        self, model_id: str, response: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        """Store the whole response of a model. One with an error is recorded as failed, an interrupted one as interrupted."""
        return run_now(self._responses.complete(model_id, response, ordinal))

    def fail(
        self,
        model_id: str,
        error: BaseException | str,
        ordinal: int = 0,
        *,
        partial: PartialResponse | Mapping[str, Any] | None = None,
    ) -> ModelResponse:
        """Store that a model failed. What it had done is kept, or replaced by `partial`."""
        return run_now(self._responses.fail(model_id, error, ordinal, partial=partial))

    def interrupt(
        self,
        model_id: str,
        ordinal: int = 0,
        *,
        partial: PartialResponse | Mapping[str, Any] | None = None,
    ) -> ModelResponse:
        """Store that a model was stopped, for example by a timeout. What it had done is kept, or replaced by `partial`."""
        return run_now(self._responses.interrupt(model_id, ordinal, partial=partial))
