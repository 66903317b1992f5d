"""Data classes of the program, stored without being registered.

At save, an object of any data class (`anatomy.py`) is stored under the name of its class:
`module:qualified.name`. The program itself hands the object over, so there is nothing to trust.

At load, the name comes from stored bytes, which are hostile. It is only compared with classes that
the program has made, in this order:

1. types that were registered or named,
2. classes of which this process has saved an object,
3. the class that stands under that very name in a module that the program has imported,
4. where a module cannot have it (a class inside a function, `Box[int]` of a generic model): the
   only living class of that module and name.

The class must call itself by that name, so nothing is reached through a module that only imports
it, and it must be a data class: no function, no module, no class of another kind. Nothing is
imported and nothing is called: modules and classes are read by their `__dict__`, past any
`__getattr__`, and objects are restored without running code of their class. So stored bytes can at
most make an object of another data class of the program than was saved, with fields of their
choice. A program that treats some class as a proof of something should not load what others can
write; `strict` stores refuse all but registered types.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from outlive.errors import UnknownTag
from outlive.format.anatomy import anatomy_of, is_data_class
from outlive.format.registry import NATIVE, RegisteredType, Registry, tag_of

_MOST = 10_000  # classes that are remembered: a program that makes classes in a loop must not grow


class ProgramTypes(Registry):
    """A registry, and behind it the data classes of the program.

    `drop=True`: fields that a class no longer has are left out when an old object is loaded.
    """

    def __init__(self, registry: Registry, *, drop: bool = False) -> None:
        super().__init__()
        self._registered = registry
        self._drop = drop

    def of(self, cls: type) -> RegisteredType | None:
        """Return how objects of a class are taken apart; None: it is no data class."""
        entry = self._registered.of(cls) or self._by_type.get(cls)
        return self._learn(cls) if entry is None else entry

    def tagged(self, tag: str, version: int) -> RegisteredType:
        """Return how what is stored under a tag is put together, or raise UnknownTag."""
        if self._registered.has(tag) or ":" not in tag:
            return self._registered.tagged(tag, version)
        entry = self._by_tag.get(tag)
        if entry is None:
            entry = self._learn(_find(tag, version))
        assert entry is not None
        return entry

    def has(self, tag: str) -> bool:
        """Tell whether a type is registered, or was seen, under `tag`."""
        return self._registered.has(tag) or super().has(tag)

    def advice(self, cls: type) -> str:
        """Say what to do so that objects of a class can be stored."""
        return (
            f"{cls.__module__}.{cls.__qualname__} is no data class (dataclass, pydantic model, namedtuple, Enum, ...); "
            f"convert it, or call outlive.register({cls.__name__}, encode=..., decode=...)"
        )

    def _learn(self, cls: type) -> RegisteredType | None:
        if cls in NATIVE or cls.__module__ in ("builtins", "numpy"):
            return None
        anatomy = anatomy_of(cls, drop=self._drop)
        if anatomy is None:
            return None
        if len(self._by_type) >= _MOST:
            self._by_type.clear()
            self._by_tag.clear()
        entry = RegisteredType(cls, tag_of(cls), 1, anatomy.encode, anatomy.decode, {})
        # The class that was seen last has the name: a function that is called again makes its own.
        self._by_type[cls] = self._by_tag[entry.tag] = entry
        return entry


def _find(tag: str, version: int) -> type:
    """Return the class of the program that has this name, or raise UnknownTag."""
    module, _, name = tag.partition(":")
    if module not in sys.modules:
        raise UnknownTag(tag, version, f"import {module} before loading" if _is_path(module) else None)
    if _is_path(name):
        classes = [cls] if (cls := _standing(module, name)) is not None else []
        missing = f"{module} has no data class {name}: did it move? Register it with tag={tag!r}"
    else:
        classes = [cls for cls in _living() if _is_tagged(cls, tag, module)]
        missing = f"the code that defines {name} has not run yet in this process: run it before loading"
    if len(classes) > 1:
        missing = f"{len(classes)} classes have this name: register the one that is meant with tag={tag!r}"
    if len(classes) != 1:
        raise UnknownTag(tag, version, missing)
    return classes[0]


def _is_path(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _standing(module: str, path: str) -> type | None:
    """Return the data class that stands in a module under a name, and calls itself by it."""
    # Past a __getattr__ of the module, and past one of a lazy module, which would import.
    found: Any = sys.modules[module]
    if not isinstance(found, types.ModuleType):
        return None
    inside = types.ModuleType.__getattribute__(found, "__dict__")
    for part in path.split("."):
        found = inside.get(part)
        if not issubclass(type(found), type):
            return None
        inside = type.__getattribute__(found, "__dict__")
    return found if _is_named(found, module, path) else None


def _is_named(cls: type, module: str, name: str) -> bool:
    own = type.__getattribute__(cls, "__dict__").get("__module__")
    return own == module and type.__getattribute__(cls, "__qualname__") == name and is_data_class(cls)


def _is_tagged(cls: type, tag: str, module: str) -> bool:
    is_ours = type.__getattribute__(cls, "__dict__").get("__module__") == module
    return is_ours and tag_of(cls) == tag and is_data_class(cls)


def _living() -> Iterator[type]:
    """Return every class of the process."""
    seen: set[int] = set()  # ids: a metaclass may define what equal means
    todo: list[type] = [object]
    while todo:
        classes: list[type] = type.__subclasses__(todo.pop())
        for cls in classes:
            if id(cls) not in seen:
                seen.add(id(cls))
                todo.append(cls)
                yield cls
