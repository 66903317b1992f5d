"""The key of an effect: the same in every attempt of its run, another one for every other effect.

A step with `effect=True` may be called more than once: its process can die after the effect and
before the result is stored. A service that takes an idempotency key does the effect once for each
key. The key of an effect is a digest of the name and key of its step and of a random seed. The seed
is made when the run starts and is part of its record, so it comes along with a failover or a copy,
and a later run with the same id has other keys.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import UnionType
from typing import Annotated, Any, Self, Union, cast, get_args, get_origin

from outlive.errors import BadArgument, NoEffect

_CHOICES = ("Optional", "Union", "Annotated")


class EffectKey(str):
    """The idempotency key of an effect, in the form of a UUID.

    A parameter with this annotation gets the key: `def charge(cents: int, key: EffectKey)`. The key
    itself is a plain `str`, which can be part of a state and of the result of a step.
    """

    __slots__ = ()

    def __new__(cls, key: str = "") -> Self:
        return cast(Self, str(key))


def new_seed() -> bytes:
    """Return the seed of a new run."""
    return os.urandom(16)


def effect_key(seed: bytes, name: str, key: str) -> EffectKey:
    """Return the key of the effect of a step."""
    text = f"{name}\n{key}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=16, key=seed, person=b"outlive.effect").digest()
    value = int.from_bytes(digest, "big") & ~(0xF << 76 | 0x3 << 62)
    hexed = f"{value | 0x8 << 76 | 0b10 << 62:032x}"  # a UUID of version 8: its bits mean nothing to others
    return EffectKey(f"{hexed[:8]}-{hexed[8:12]}-{hexed[12:16]}-{hexed[16:20]}-{hexed[20:]}")


# The effects that this task or thread is in, by the ledger of their run.
_current: ContextVar[Mapping[object, EffectKey]] = ContextVar("outlive_effects")


@contextmanager
def inside_effect(ledger: object, key: EffectKey) -> Iterator[None]:
    """Make `run.effect_key` this key."""
    token = _current.set({**_current.get({}), ledger: key})
    try:
        yield
    finally:
        _current.reset(token)


def current_key(ledger: object, run: str) -> EffectKey:
    """Return the key of the effect that the caller is in. Raises NoEffect."""
    key = _current.get({}).get(ledger)
    if key is None:
        raise NoEffect(run)
    return key


def with_key(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: EffectKey
) -> dict[str, Any]:
    """Return the keyword arguments of a call, with the key for a parameter that is annotated as one."""
    return {**kwargs, **dict.fromkeys(_open_keys(function, args, kwargs), key)}


def check_needs_no_key(
    step: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise BadArgument if a function that is no effect has a parameter for the key, which would stay empty."""
    try:
        hints = getattr(function, "__annotations__", None)
    except NameError:  # of names that exist only for type checkers
        return
    if hints is None:  # an object with a signature that only `inspect` finds, such as a partial
        hints = {} if isinstance(function, type) else {"?": EffectKey}
    if not any(map(_is_key, hints.values())):  # quick: this is done for every step
        return
    for name in _open_keys(function, args, kwargs):
        raise BadArgument(
            f"the parameter {name!r} of step {step!r} takes the key of an effect, and only a step with effect=True "
            f"has one: run.step({step!r}, effect=True)(function)(...)"
        )


def _open_keys(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the parameters that are annotated as a key and that the call leaves open."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind_partial(*args, **kwargs).arguments
    except (
        TypeError,
        ValueError,
    ):  # a builtin that does not tell, or arguments that do not fit: the call says so
        return []
    return [
        parameter.name
        for parameter in signature.parameters.values()
        if _is_key(parameter.annotation)
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in bound
    ]


def _is_key(annotation: Any) -> bool:
    """Tell whether an annotation is EffectKey, or that or something else, such as None."""
    if isinstance(annotation, str):  # with postponed evaluation
        return "EffectKey" in annotation and _names_key(annotation)
    if isinstance(annotation, type):
        return annotation is EffectKey
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_key(get_args(annotation)[0])
    return origin in (Union, UnionType) and any(map(_is_key, get_args(annotation)))


@functools.lru_cache(maxsize=100)
def _names_key(annotation: str) -> bool:
    try:
        return _is_key_expression(ast.parse(annotation.strip(), mode="eval").body)
    except SyntaxError:
        return False


def _is_key_expression(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "EffectKey"
        case ast.Constant(value=str(text)):
            return _names_key(text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_key_expression(left) or _is_key_expression(right)
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inside):
            parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            return name in _CHOICES and any(
                map(_is_key_expression, parts[:1] if name == "Annotated" else parts)
            )
    return False
