"""What changed between two states, path by path. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from outlive.format.extensions import Opaque
from outlive.values import Change


def diff(old: Any, new: Any, path: str = "") -> list[Change]:
    """Return the differences in the order of the states.

    Registered objects are compared field by field.
    """
    return list(_compare(old, new, path))


def _compare(old: Any, new: Any, path: str) -> Iterator[Change]:
    if type(old) is not type(new):
        yield Change(path or "state", "changed", old, new)
    elif isinstance(old, dict):
        yield from _compare_dicts(old, new, path)
    elif isinstance(old, list | tuple):
        yield from _compare_lists(old, new, path)
    elif isinstance(old, set | frozenset):
        yield from _compare_sets(old, new, path)
    elif isinstance(old, Opaque) and (old.tag, old.version) == (new.tag, new.version):
        yield from _compare(old.value, new.value, path)
    elif not _equal(old, new):
        yield Change(path or "state", "changed", old, new)


def _compare_dicts(old: dict[Any, Any], new: dict[Any, Any], path: str) -> Iterator[Change]:
    for key, value in old.items():
        if key in new:
            yield from _compare(value, new[key], join_path(path, key))
        else:
            yield Change(join_path(path, key), "removed", old=value)
    for key, value in new.items():
        if key not in old:
            yield Change(join_path(path, key), "added", new=value)


def _compare_lists(old: Any, new: Any, path: str) -> Iterator[Change]:
    """Leave the common start and end alone; compare what is between, place by place."""
    head, shorter = 0, min(len(old), len(new))
    while head < shorter and _equal(old[head], new[head]):
        head += 1
    tail = 0
    while tail < shorter - head and _equal(old[-1 - tail], new[-1 - tail]):
        tail += 1
    both = min(len(old), len(new)) - head - tail
    for index in range(head, head + both):
        yield from _compare(old[index], new[index], f"{path}[{index}]")
    for index in range(head + both, len(old) - tail):
        yield Change(f"{path}[{index}]", "removed", old=old[index])
    for index in range(head + both, len(new) - tail):
        yield Change(f"{path}[{index}]", "added", new=new[index])


def _compare_sets(old: Any, new: Any, path: str) -> Iterator[Change]:
    for item in sorted(old - new, key=repr):
        yield Change(f"{path}{{{item!r}}}", "removed", old=item)
    for item in sorted(new - old, key=repr):
        yield Change(f"{path}{{{item!r}}}", "added", new=item)


def _equal(old: Any, new: Any) -> bool:
    """Equal and of the same type all the way down; NaN is equal to itself here."""
    if type(old) is not type(new):
        return False
    if isinstance(old, float | Decimal):  # by their text: a signalling NaN cannot even be compared
        return repr(old) == repr(new)
    if isinstance(old, dict):
        return list(old) == list(new) and all(map(_equal, old.values(), new.values()))
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(_equal, old, new))
    if isinstance(old, Opaque):
        return (old.tag, old.version) == (new.tag, new.version) and _equal(old.value, new.value)
    same = old == new
    return bool(same.all()) if hasattr(same, "all") else bool(same)


def join_path(path: str, key: Any) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"
