"""The key of an effect: the same in every attempt of its run, another one for every other effect.

A step with `effect=True` may be called more than once: its process can die after the effect and
before the result is stored. A service that takes an idempotency key does the effect once for each
key. The key of an effect is a digest of the name and key of its step and of a random seed. The seed
is made when the run starts and is part of its record, so it comes along with a failover or a copy,
and a later run with the same id has other keys.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from outlive.errors import NoEffect

_NAMES = ("EffectKey", "outlive.EffectKey")  # with postponed evaluation an annotation is a str


class EffectKey(str):
    """The idempotency key of an effect, in the form of a UUID.

    A parameter with this annotation gets the key: `def charge(cents: int, key: EffectKey)`.
    """

    __slots__ = ()


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


def with_key(function: Callable[..., Any], kwargs: dict[str, Any], key: EffectKey) -> dict[str, Any]:
    """Return the keyword arguments of a call, with the key for a parameter that is annotated as one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return kwargs
    names = [
        parameter.name
        for parameter in parameters
        if (parameter.annotation is EffectKey or parameter.annotation in _NAMES)
        and parameter.kind is not parameter.POSITIONAL_ONLY
    ]
    return {**kwargs, **{name: key for name in names if name not in kwargs}}
