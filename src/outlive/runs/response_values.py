"""The response of one model, as far as it got: plain values without I/O.

There are three forms. A `PartialResponse` is what a model has done so far in the current attempt. A
`ModelResponse` adds the name of the model, its status, and the usage of all attempts. A snapshot is
the same as a dict of plain values, for JSON. A `FanOut` is one prompt with the responses of all
models.

A response with an error, or an interrupted one, is never completed, even if the caller says so. A
completed response does not change.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

from outlive.dataclass import dataclass
from outlive.errors import BadArgument
from outlive.format.registry import default_registry
from outlive.runs import response_json

NOT_STARTED, RUNNING, COMPLETED, INTERRUPTED, FAILED = (
    "not_started", "running", "completed", "interrupted", "failed",
)  # fmt: skip
STATUSES = (NOT_STARTED, RUNNING, COMPLETED, INTERRUPTED, FAILED)
MAX_ID = 500
MAX_MODELS = 1000
ModelKey = tuple[str, int]  # (model id, ordinal)
_COUNTS = ("input_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class WriteProposal:
    """A file that a model wants to write, with its whole new content, or to delete."""

    path: str
    content: str | bytes = ""
    delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens, time and cost of one model, or of several together."""

    latency_ms: float = 0
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    tool_calls: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Usage) -> Usage:
        calls = dict(self.tool_calls)
        for name, count in other.tool_calls.items():
            calls[name] = calls.get(name, 0) + count
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMMED}
        return Usage(**sums, tool_calls=calls)


_SUMMED = ("latency_ms", *_COUNTS, "cost_usd")
_USED = (*_SUMMED, "tool_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialResponse:
    """All that a model has done so far in one attempt; it replaces the one before."""

    text: str = ""
    latency_ms: float = 0
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    tool_calls: Mapping[str, int] = field(default_factory=dict)
    proposed_writes: tuple[WriteProposal, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def usage(self) -> Usage:
        """Return the tokens and the cost so far."""
        return Usage(**{name: getattr(self, name) for name in _USED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse(PartialResponse):
    """The response of one model. Usage counts all `attempts`, the rest is of the last one."""

    model_id: str = field(kw_only=False)
    ordinal: int = 0  # numbers the responses of one model id, from 0
    status: str = COMPLETED
    error: str | None = None
    attempts: int = 1

    def __post_init__(self) -> None:
        _check(self)
        check_model(self.model_id, self.ordinal)
        if self.status not in STATUSES:
            raise BadArgument(f"status must be one of {', '.join(STATUSES)}, not {self.status!r}")
        if self.error is not None and self.status == COMPLETED:
            object.__setattr__(self, "status", FAILED)

    @property
    def is_completed(self) -> bool:
        """Tell whether the model has answered."""
        return self.status == COMPLETED

    @classmethod
    def from_partial(
        cls, model_id: str, partial: PartialResponse | Mapping[str, Any], *, ordinal: int = 0
    ) -> ModelResponse:
        """Return the interrupted response of a model that got as far as `partial`."""
        values = _partial_fields(as_partial(partial))
        return ModelResponse(model_id, ordinal=ordinal, status=INTERRUPTED, **values)

    def to_partial(self) -> PartialResponse:
        """Return what the model has done, without its name and status."""
        return PartialResponse(**_partial_fields(self))

    def to_snapshot(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        snapshot: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        snapshot["tool_calls"] = dict(self.tool_calls)
        snapshot["proposed_writes"] = [
            {"path": write.path, "content": write.content, "delete": write.delete}
            for write in self.proposed_writes
        ]
        return {
            **snapshot,
            "interrupted": self.status in (INTERRUPTED, RUNNING),
            "completed": self.is_completed,
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> ModelResponse:
        """Return the response of a snapshot; fields that are left out have their defaults.

        Without a status, `interrupted`, `error` and `completed` decide, in this order: an
        interrupted response is not completed, even if the snapshot says so.
        """
        values = dict(snapshot)
        interrupted, completed = values.pop("interrupted", False), values.pop("completed", False)
        values["error"] = values.get("error") or None
        if "status" not in values:
            values["status"] = _status_of(interrupted, values["error"], completed)
        return cls(**_known(cls, values))


def _status_of(interrupted: object, error: object, completed: object) -> str:
    if interrupted:
        return INTERRUPTED
    if error:
        return FAILED
    return COMPLETED if completed else INTERRUPTED


@dataclass(frozen=True, slots=True)
class FanOut:
    """One prompt and the response of each model, in the order in which the models were named."""

    responses: tuple[ModelResponse, ...]
    prompt: Any = None
    verbose: bool = False
    created_at: dt.datetime | None = None

    @property
    def model_ids(self) -> tuple[str, ...]:
        """The models, in the order in which they were named."""
        return tuple(response.model_id for response in self.responses)

    def pending(self) -> list[ModelResponse]:
        """Return the responses that are not completed, including those that never began."""
        return [response for response in self.responses if not response.is_completed]

    def completed(self) -> list[ModelResponse]:
        """Return the responses that are completed."""
        return [response for response in self.responses if response.is_completed]

    @property
    def usage(self) -> Usage:
        """The usage of all models together."""
        return sum((response.usage for response in self.responses), Usage())

    @classmethod
    def start(cls, model_ids: Sequence[str], *, prompt: Any = None, verbose: bool = False) -> FanOut:
        """Return a fan-out in which nothing has begun."""
        begun = [not_started(*model_key) for model_key in numbered(model_ids)]
        return cls(tuple(begun), prompt, verbose, dt.datetime.now(dt.UTC))

    @classmethod
    def build(
        cls, responses: Iterable[ModelResponse], *, prompt: Any = None, verbose: bool = False
    ) -> FanOut | None:
        """Return a fan-out to continue later; None if nothing was interrupted.

        A response that is running or never began counts as interrupted; one with an error does not.
        """
        collected = tuple(responses)
        if all(response.status in (COMPLETED, FAILED) for response in collected):
            return None
        return cls(collected, prompt, verbose, dt.datetime.now(dt.UTC))

    def to_json(self) -> str:
        """Return it as JSON, in the `checkpoint.json` format of errata.

        Raises BadArgument for a prompt that is not text.
        """
        snapshots = [response.to_snapshot() for response in self.responses]
        return response_json.write(
            response_json.Document(self.prompt, self.created_at, self.model_ids, snapshots, self.verbose)
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> FanOut:
        """Return the fan-out that `to_json`, or errata, wrote. Raises BadArgument.

        A model without a response has not started.
        """
        document = response_json.read(text)
        counts: dict[str, int] = {}
        responses: dict[ModelKey, ModelResponse] = {}
        for snapshot in document.snapshots:
            model_id = snapshot["model_id"]
            model_key = (model_id, snapshot.setdefault("ordinal", counts.get(model_id, 0)))
            counts[model_id] = counts.get(model_id, 0) + 1
            if model_key in responses:
                raise BadArgument(f"there are two responses of {name_of(*model_key)}; remove one of them")
            responses[model_key] = ModelResponse.from_snapshot(snapshot)
        model_keys = [*numbered(document.model_ids), *responses]
        ordered = [
            responses.get(model_key) or not_started(*model_key) for model_key in dict.fromkeys(model_keys)
        ]
        return cls(tuple(ordered), document.prompt, document.verbose, document.created_at)


# The states of one response -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """A response and the usage of its earlier attempts. Each method returns the next record."""

    response: ModelResponse
    earlier: Usage = field(default_factory=Usage)
    is_open: bool = False  # this process is working on an attempt

    def begin(self) -> Record:
        """Begin an attempt unless one is open. The result of the last one stays until an update."""
        if self.is_open:
            return self
        response = self.response
        if response.is_completed:
            raise BadArgument(
                f"the response of {name_of(response.model_id, response.ordinal)} is completed and cannot change"
            )
        begun = replace(response, status=RUNNING, error=None, attempts=response.attempts + 1)
        return Record(begun, response.usage, is_open=True)

    def update(self, partial: PartialResponse) -> Record:
        """Record how far the attempt has got."""
        return self.begin()._with(partial)

    def _with(self, partial: PartialResponse) -> Record:
        usage = self.earlier + partial.usage
        used = {name: getattr(usage, name) for name in _USED}
        response = replace(self.response, text=partial.text, proposed_writes=partial.proposed_writes, **used)
        return replace(self, response=response)

    def end(self, status: str, partial: PartialResponse | None = None, error: str | None = None) -> Record:
        """End the attempt. Repeating the stored end is not a new attempt."""
        if self.response.is_completed and partial is not None:
            again = replace(self, is_open=True)._ended(status, partial, error)
            if again == self:
                return self
        return self.begin()._ended(status, partial, error)

    def _ended(self, status: str, partial: PartialResponse | None, error: str | None) -> Record:
        record = self if partial is None else self._with(partial)
        return Record(replace(record.response, status=status, error=error), self.earlier)


def ending(response: ModelResponse) -> tuple[str, str | None]:
    """Return the status and error of an answer: one with an error is failed, not completed."""
    if response.status in (FAILED, INTERRUPTED):
        return response.status, response.error
    return (COMPLETED, None) if response.error is None else (FAILED, response.error)


def not_started(model_id: str, ordinal: int = 0) -> ModelResponse:
    return ModelResponse(model_id, ordinal=ordinal, status=NOT_STARTED, attempts=0)


# Arguments ----------------------------------------------------------------------------------------


def as_partial(value: object) -> PartialResponse:
    """Return the argument as a PartialResponse. Raises BadArgument."""
    if isinstance(value, PartialResponse):
        return value
    if isinstance(value, Mapping):
        return PartialResponse(**_known(PartialResponse, dict(value)))
    raise BadArgument(f"pass a PartialResponse or a mapping of its fields, not {type(value).__name__}")


def as_response(model_id: str, ordinal: int, value: object) -> ModelResponse:
    """Return the argument as a ModelResponse. Raises BadArgument."""
    if isinstance(value, ModelResponse):
        return value
    if isinstance(value, PartialResponse):
        return ModelResponse(model_id, ordinal=ordinal, **_partial_fields(value))
    if isinstance(value, Mapping):
        values = {**value, "model_id": model_id, "ordinal": ordinal}
        return ModelResponse(**_known(ModelResponse, values))
    raise BadArgument(f"pass a ModelResponse or a mapping of its fields, not {type(value).__name__}")


def as_error(error: BaseException | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"


def check_model(model_id: object, ordinal: object = 0) -> ModelKey:
    """Return a valid model id and ordinal.

    An id is one line, because keys of entries use newlines.
    """
    if not isinstance(model_id, str) or not 0 < len(model_id) <= MAX_ID or "\n" in model_id:
        raise BadArgument(f"a model id must be one line of 1 to {MAX_ID} characters, not {model_id!r:.100}")
    if not isinstance(ordinal, int) or isinstance(ordinal, bool) or not 0 <= ordinal < MAX_MODELS:
        raise BadArgument(f"ordinal must be a whole number from 0 to {MAX_MODELS - 1}, not {ordinal!r:.100}")
    return model_id, ordinal


def numbered(model_ids: Sequence[str]) -> list[ModelKey]:
    """Number the models that have the same id."""
    if isinstance(model_ids, str | bytes) or not isinstance(model_ids, Sequence):
        raise BadArgument(f"model_ids must be a list of ids, not {model_ids!r:.100}")
    if len(model_ids) > MAX_MODELS:
        raise BadArgument(f"a fan-out has at most {MAX_MODELS:,} models, not {len(model_ids):,}")
    counts: dict[str, int] = {}
    model_keys = []
    for model_id in model_ids:
        check_model(model_id)
        ordinal = counts.get(model_id, 0)
        model_keys.append((model_id, ordinal))
        counts[model_id] = ordinal + 1
    return model_keys


def name_of(model_id: str, ordinal: int) -> str:
    return f"model {model_id!r}" if not ordinal else f"model {model_id!r} (ordinal {ordinal})"


def _partial_fields(response: PartialResponse) -> dict[str, Any]:
    return {item.name: getattr(response, item.name) for item in fields(PartialResponse)}


def _known(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    known = {item.name for item in fields(cls)}
    if odd := sorted(set(values) - known, key=str):
        raise BadArgument(f"a {cls.__name__} has no field {odd[0]!r}; it has {', '.join(sorted(known))}")
    return values


def _check(response: PartialResponse) -> None:
    """Refuse values out of range; copy what the caller may change."""
    if not isinstance(response.text, str):
        raise BadArgument(f"text must be a str, not {type(response.text).__name__}")
    for name in _COUNTS:
        _check_number(name, getattr(response, name), int)
    for name in ("latency_ms", "cost_usd"):
        _check_number(name, getattr(response, name), (int, float))
    calls = dict(response.tool_calls or {})
    for tool, count in calls.items():
        _check_number(f"tool_calls[{tool!r}]", count, int)
    object.__setattr__(response, "tool_calls", calls)
    writes = tuple(_as_write(write) for write in response.proposed_writes or ())
    object.__setattr__(response, "proposed_writes", writes)


def _check_number(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise BadArgument(f"{name} must be a finite number, 0 or more, not {value!r:.100}")


def _as_write(value: object) -> WriteProposal:
    try:
        if isinstance(value, Mapping):
            value = WriteProposal(**value)
        elif isinstance(value, tuple | list):
            value = WriteProposal(*value)
    except TypeError:
        pass  # the check below refuses it
    if not isinstance(value, WriteProposal) or not isinstance(value.path, str):
        raise BadArgument(
            f"a proposed write must be a WriteProposal(path, content, delete), not {value!r:.100}"
        )
    return value


for _cls in (WriteProposal, Usage, PartialResponse, ModelResponse, FanOut):
    default_registry.add(_cls, f"outlive.{_cls.__name__}")
