"""What one model answered, as far as it got: plain values without I/O.

Three forms, each of which becomes the next: a `PartialResponse` is what a model has done so far in the attempt that is going
on; a `ModelResponse` is that with the model's name, what became of it, and the usage of all its attempts; a snapshot is the
same as a dict of plain values, for JSON. A `FanOut` is one prompt with the responses of all models that it went to.

An error or an interruption is never a completed response, whoever says so. A completed one stays as it is.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from outlive.errors import BadArgument
from outlive.format.registry import default_registry
from outlive.runs import response_json

NOT_STARTED, RUNNING, COMPLETED, INTERRUPTED, FAILED = (
    "not_started", "running", "completed", "interrupted", "failed",
)  # fmt: skip
STATUSES = (NOT_STARTED, RUNNING, COMPLETED, INTERRUPTED, FAILED)
MAX_ID = 500
MAX_MODELS = 1000
_COUNTS = ("input_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class WriteProposal:
    """A file that a model wants to write, with its whole new content, or to delete."""

    path: str
    content: str | bytes = ""
    delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a model took, or several together."""

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
    """What a model has done so far in one attempt, all of it: it takes the place of the one before."""

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
    """What one model answered. Usage is that of all `attempts`, the rest that of the last one."""

    model_id: str = field(kw_only=False)
    ordinal: int = 0  # counts those of the same model id
    status: str = COMPLETED
    error: str | None = None
    attempts: int = 1

    def __post_init__(self) -> None:
        _check(self)
        check_model(self.model_id, self.ordinal)
        if self.status not in STATUSES:
            raise BadArgument(f"a response is {', '.join(STATUSES)}; there is no status {self.status!r}")
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
        """Return what is left of a model that got as far as `partial` and no further."""
        said = _said(as_partial(partial))
        return ModelResponse(model_id, ordinal=ordinal, status=INTERRUPTED, **said)

    def to_partial(self) -> PartialResponse:
        """Return what the model has done, without its name and what became of it."""
        return PartialResponse(**_said(self))

    def to_snapshot(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        found: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        found["tool_calls"] = dict(self.tool_calls)
        found["proposed_writes"] = [
            {"path": write.path, "content": write.content, "delete": write.delete}
            for write in self.proposed_writes
        ]
        return {
            **found,
            "interrupted": self.status in (INTERRUPTED, RUNNING),
            "completed": self.is_completed,
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> ModelResponse:
        """Return the response of a snapshot; what is left out has its default.

        Without a status, `interrupted`, `error` and `completed` tell it, in this order: one that was interrupted is not
        completed, even if the snapshot says so.
        """
        found = dict(snapshot)
        interrupted, completed = found.pop("interrupted", False), found.pop("completed", False)
        found["error"] = found.get("error") or None
        if "status" not in found:
            found["status"] = _status_of(interrupted, found["error"], completed)
        return cls(**_known(cls, found))


def _status_of(interrupted: object, error: object, completed: object) -> str:
    if interrupted:
        return INTERRUPTED
    if error:
        return FAILED
    return COMPLETED if completed else INTERRUPTED


@dataclass(frozen=True, slots=True)
class FanOut:
    """One prompt and what each model made of it, in the order in which the models were named."""

    responses: tuple[ModelResponse, ...]
    prompt: Any = None
    verbose: bool = False
    created_at: dt.datetime | None = None

    @property
    def model_ids(self) -> tuple[str, ...]:
        """The models, in the order in which they were named."""
        return tuple(one.model_id for one in self.responses)

    def pending(self) -> list[ModelResponse]:
        """Return what is not completed, also what never began."""
        return [one for one in self.responses if not one.is_completed]

    def completed(self) -> list[ModelResponse]:
        """The responses that are completed."""
        return [one for one in self.responses if one.is_completed]

    @property
    def usage(self) -> Usage:
        """What all models took together."""
        return sum((one.usage for one in self.responses), Usage())

    @classmethod
    def start(cls, model_ids: Sequence[str], *, prompt: Any = None, verbose: bool = False) -> FanOut:
        """Return a fan-out in which nothing has begun."""
        begun = [not_started(*place) for place in numbered(model_ids)]
        return cls(tuple(begun), prompt, verbose, dt.datetime.now(dt.UTC))

    @classmethod
    def build(
        cls, responses: Iterable[ModelResponse], *, prompt: Any = None, verbose: bool = False
    ) -> FanOut | None:
        """Return what there is to go on with later; None when nothing was interrupted.

        What runs or never began counts as interrupted; an error alone does not.
        """
        found = tuple(responses)
        if all(one.status in (COMPLETED, FAILED) for one in found):
            return None
        return cls(found, prompt, verbose, dt.datetime.now(dt.UTC))

    def to_json(self) -> str:
        """Return it as JSON, in the format of errata's `checkpoint.json`. Raises BadArgument for a prompt that is not text."""
        snapshots = [one.to_snapshot() for one in self.responses]
        return response_json.write(
            response_json.Document(self.prompt, self.created_at, self.model_ids, snapshots, self.verbose)
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> FanOut:
        """Return what `to_json`, or errata, wrote. A model without a response has not started. Raises BadArgument."""
        document = response_json.read(text)
        counts: dict[str, int] = {}
        found: dict[tuple[str, int], ModelResponse] = {}
        for snapshot in document.snapshots:
            model_id = snapshot["model_id"]
            place = (model_id, snapshot.setdefault("ordinal", counts.get(model_id, 0)))
            counts[model_id] = counts.get(model_id, 0) + 1
            if place in found:
                raise BadArgument(f"there are two responses of {name_of(*place)}")
            found[place] = ModelResponse.from_snapshot(snapshot)
        places = [*numbered(document.model_ids), *found]
        responses = [found.get(place) or not_started(*place) for place in dict.fromkeys(places)]
        return cls(tuple(responses), document.prompt, document.verbose, document.created_at)


# The life of one response ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """A response with what its earlier attempts took. Each method returns the next record."""

    response: ModelResponse
    earlier: Usage = field(default_factory=Usage)
    is_open: bool = False  # an attempt of this process is going on

    def begin(self) -> Record:
        """Begin an attempt unless one is going on. What the one before left stays until there is something new."""
        if self.is_open:
            return self
        now = self.response
        if now.is_completed:
            raise BadArgument(
                f"the response of {name_of(now.model_id, now.ordinal)} is completed and stays as it is"
            )
        begun = replace(now, status=RUNNING, error=None, attempts=now.attempts + 1)
        return Record(begun, now.usage, is_open=True)

    def update(self, partial: PartialResponse) -> Record:
        """Take note of how far the attempt has got."""
        return self.begin()._said(partial)

    def _said(self, partial: PartialResponse) -> Record:
        usage = self.earlier + partial.usage
        used = {name: getattr(usage, name) for name in _USED}
        now = replace(self.response, text=partial.text, proposed_writes=partial.proposed_writes, **used)
        return replace(self, response=now)

    def end(self, status: str, partial: PartialResponse | None = None, error: str | None = None) -> Record:
        """End the attempt. To say again what is stored is no new attempt."""
        if self.response.is_completed and partial is not None:
            again = replace(self, is_open=True)._ended(status, partial, error)
            if again == self:
                return self
        return self.begin()._ended(status, partial, error)

    def _ended(self, status: str, partial: PartialResponse | None, error: str | None) -> Record:
        said = self if partial is None else self._said(partial)
        return Record(replace(said.response, status=status, error=error), self.earlier)


def ending(response: ModelResponse) -> tuple[str, str | None]:
    """Return what a model's answer counts as: an error or an interruption is not completed."""
    if response.status in (FAILED, INTERRUPTED):
        return response.status, response.error
    return (COMPLETED, None) if response.error is None else (FAILED, response.error)


def not_started(model_id: str, ordinal: int = 0) -> ModelResponse:
    return ModelResponse(model_id, ordinal=ordinal, status=NOT_STARTED, attempts=0)


# Arguments ------------------------------------------------------------------------------------------------


def as_partial(value: object) -> PartialResponse:
    """Return what a caller says of an attempt, or raise BadArgument."""
    if isinstance(value, PartialResponse):
        return value
    if isinstance(value, Mapping):
        return PartialResponse(**_known(PartialResponse, dict(value)))
    raise BadArgument(f"give a PartialResponse or a mapping of its fields, not {type(value).__name__}")


def as_response(model_id: str, ordinal: int, value: object) -> ModelResponse:
    """Return a model's answer as its caller says it, or raise BadArgument."""
    if isinstance(value, ModelResponse):
        return value
    if isinstance(value, PartialResponse):
        return ModelResponse(model_id, ordinal=ordinal, **_said(value))
    if isinstance(value, Mapping):
        found = {**value, "model_id": model_id, "ordinal": ordinal}
        return ModelResponse(**_known(ModelResponse, found))
    raise BadArgument(f"give a ModelResponse or a mapping of its fields, not {type(value).__name__}")


def as_error(error: BaseException | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"


def check_model(model_id: object, ordinal: object = 0) -> tuple[str, int]:
    """Return a valid place of a response: it stands on a line of its own."""
    if not isinstance(model_id, str) or not 0 < len(model_id) <= MAX_ID or "\n" in model_id:
        raise BadArgument(f"a model id is a line of 1 to {MAX_ID} characters, not {model_id!r:.100}")
    if not isinstance(ordinal, int) or isinstance(ordinal, bool) or not 0 <= ordinal < MAX_MODELS:
        raise BadArgument(f"ordinal counts from 0 to {MAX_MODELS - 1}, not {ordinal!r:.100}")
    return model_id, ordinal


def numbered(model_ids: Sequence[str]) -> list[tuple[str, int]]:
    """Tell the models of one id apart by counting them."""
    if isinstance(model_ids, str | bytes) or not isinstance(model_ids, Sequence):
        raise BadArgument(f"model_ids must be a list of ids, not {model_ids!r:.100}")
    if len(model_ids) > MAX_MODELS:
        raise BadArgument(f"a fan-out has at most {MAX_MODELS:,} models, not {len(model_ids):,}")
    counts: dict[str, int] = {}
    places = []
    for model_id in model_ids:
        check_model(model_id)
        ordinal = counts.get(model_id, 0)
        places.append((model_id, ordinal))
        counts[model_id] = ordinal + 1
    return places


def name_of(model_id: str, ordinal: int) -> str:
    return f"model {model_id!r}" if not ordinal else f"model {model_id!r} (ordinal {ordinal})"


def _said(response: PartialResponse) -> dict[str, Any]:
    return {one.name: getattr(response, one.name) for one in fields(PartialResponse)}


def _known(cls: type, found: dict[str, Any]) -> dict[str, Any]:
    known = {one.name for one in fields(cls)}
    if odd := sorted(set(found) - known, key=str):
        raise BadArgument(f"a {cls.__name__} has no field {odd[0]!r}; it has {', '.join(sorted(known))}")
    return found


def _check(response: PartialResponse) -> None:
    """Refuse what cannot be; keep copies of what the caller may change."""
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
        raise BadArgument(f"{name} must be a finite number from 0 on, not {value!r:.100}")


def _as_write(value: object) -> WriteProposal:
    try:
        if isinstance(value, Mapping):
            value = WriteProposal(**value)
        elif isinstance(value, tuple | list):
            value = WriteProposal(*value)
    except TypeError:
        pass  # said below
    if not isinstance(value, WriteProposal) or not isinstance(value.path, str):
        raise BadArgument(f"a proposed write is a WriteProposal(path, content, delete), not {value!r:.100}")
    return value


for _cls in (WriteProposal, Usage, PartialResponse, ModelResponse, FanOut):
    default_registry.add(_cls, f"outlive.{_cls.__name__}")
