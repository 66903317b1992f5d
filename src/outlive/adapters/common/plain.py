"""Typed values of a framework as plain ones, and back."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar, cast

from outlive.errors import Unencodable

T = TypeVar("T")


class Plain(Generic[T]):
    """Makes plain values of a type that pydantic knows: `Plain(ModelResponse)`.

    Mode "json" has what JSON has. Mode "python" keeps bytes and datetimes, which a store holds as
    they are. `dump` loads what it has made and compares: a type that loses something is refused.
    `is_sparse` leaves out fields that were not set, for models that tell these from others. Not for
    types whose defaults differ from time to time.
    """

    def __init__(
        self, kind: Any, mode: Literal["json", "python"] = "json", *, is_sparse: bool = False
    ) -> None:
        from pydantic import TypeAdapter  # every framework that has typed values brings it

        self._adapter: Any = TypeAdapter(kind)
        self._kind = kind
        self._options = {"mode": mode, "by_alias": True, "round_trip": True, "exclude_unset": is_sparse}

    def dump(self, value: T) -> Any:
        """Return the plain form of a value. Raises Unencodable when it cannot be loaded from that."""
        try:
            plain = self._dumped(value)
            is_same = self._dumped(self.load(plain)) == plain
        except (ValueError, TypeError) as error:  # pydantic's errors are ValueErrors
            raise Unencodable(self._name, f"pydantic cannot store it: {error}") from error
        if not is_same:
            raise Unencodable(self._name, "it is another value when it is loaded")
        return plain

    def load(self, plain: Any) -> T:
        """Return the value of a plain form."""
        return cast(T, self._adapter.validate_python(plain))

    def _dumped(self, value: Any) -> Any:
        return self._adapter.dump_python(value, **self._options)

    @property
    def _name(self) -> str:
        return getattr(self._kind, "__qualname__", None) or repr(self._kind)


def jsonable(value: Any) -> Any:
    """Return a value for people to read: models and dataclasses as dicts, what is no data by its type."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(
            value, bytes_mode="base64", fallback=lambda part: f"<{type(part).__qualname__}>"
        )
    except PydanticSerializationError:  # of code of the program
        return f"<{type(value).__qualname__}>"
