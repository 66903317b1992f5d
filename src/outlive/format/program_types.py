"""Data classes of the program, stored without being registered.

At save, an object of any data class (`anatomy.py`) is stored under the name of its class:
`module:qualified.name`. The program itself hands the object over, so there is nothing to trust.

At load, the name comes from stored bytes, which are hostile. It is only compared with classes that
the program has made, in this order:

1. types that were registered or named,
2. the class that stands under that very name in a module that the program has imported; a class
   that is defined again, as in a notebook, replaces the one before,
3. the class of that name of which this process has saved an object last,
4. the only living class of that module and name: one inside a function, `Box[int]` of a generic
   model, one that its module binds to another name,
5. for `Box[int]`, which this process may not have made yet, the class `Box`. An object of it is
   equal to one of `Box[int]`. Making `Box[int]` would run code of the program.

The class must call itself by that name, so nothing is reached through a module that only imports
it, and it must be a data class: no function, no module, no class of another kind, none with a
`__del__`, which would run later. Nothing is imported and nothing is called: modules and classes are
read by their `__dict__`, past any `__getattr__`, and objects are restored without running code of
their class. So stored bytes can at most make an object of another data class of the program than
was saved, with fields of their choice. A program that treats some class as a proof of something
should not load what others can write; `strict` stores refuse all but registered types.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from outlive.errors import UnknownTag
from outlive.format.anatomy import anatomy_of, has_finalizer, is_data_class
from outlive.format.registry import NATIVE, RegisteredType, Registry, tag_of

_MOST = 10_000  # classes that are remembered: a program that makes classes in a loop must not grow


class _Place(NamedTuple):
    """Where a class stands in its module."""

    name: str
    module: types.ModuleType
    inside: dict[str, Any]
    attribute: str

    def has(self, cls: type) -> bool:
        """Tell whether the class still stands here: it may have been defined again, or its module made again."""
        return sys.modules.get(self.name) is self.module and self.inside.get(self.attribute) is cls


class ProgramTypes(Registry):
    """A registry, and behind it the data classes of the program.

    `drop=True`: fields that a class no longer has are left out when an old object is loaded.
    """

    def __init__(self, registry: Registry, *, drop: bool = False) -> None:
        super().__init__()
        self._registered = registry
        self._drop = drop
        self._places: dict[str, _Place] = {}  # of classes that stand in a module, by tag

    def of(self, cls: type) -> RegisteredType | None:
        """Return how objects of a class are taken apart; None: it is no data class."""
        if (entry := self._registered.of(cls)) is not None:
            return entry
        if (entry := self._by_type.get(cls)) is None:
            return self._learn(cls)
        self._by_tag[entry.tag] = entry  # a function that is called again makes a class of the same name
        return entry

    def tagged(self, tag: str, version: int) -> RegisteredType:
        """Return how what is stored under a tag is put together, or raise UnknownTag."""
        if self._registered.has(tag) or ":" not in tag:
            return self._registered.tagged(tag, version)
        entry, place = self._by_tag.get(tag), self._places.get(tag)
        if entry is not None and place is not None and place.has(entry.cls):
            return entry
        standing = _standing(*_parts(tag))
        if entry is None or not (standing is None or standing is entry.cls or not _is_of(standing, tag)):
            entry = self._learn(_find(tag, version))
            assert entry is not None
            self._by_tag[tag] = entry  # `Box[int]` may be read as `Box`
        if entry.cls is standing and (place := _place(*_parts(tag))) is not None:
            self._places[tag] = place
        return entry

    def has(self, tag: str) -> bool:
        """Tell whether a type is registered, or was seen, under `tag`."""
        return self._registered.has(tag) or super().has(tag)

    def advice(self, cls: type) -> str:
        """Say what to do so that objects of a class can be stored."""
        if is_data_class(cls) and has_finalizer(cls):
            return (
                f"{cls.__module__}.{cls.__qualname__} has a __del__, which would run for whatever stored data names it; "
                f"if that is harmless, call outlive.register({cls.__name__})"
            )
        return (
            f"{cls.__module__}.{cls.__qualname__} is no data class (dataclass, pydantic model, namedtuple, Enum, ...); "
            f"convert it, or call outlive.register({cls.__name__}, encode=..., decode=...)"
        )

    def _learn(self, cls: type) -> RegisteredType | None:
        if cls in NATIVE or cls.__module__ in ("builtins", "numpy") or has_finalizer(cls):
            return None
        anatomy = anatomy_of(cls, drop=self._drop)
        if anatomy is None:
            return None
        if max(len(self._by_type), len(self._by_tag)) >= _MOST:
            self._by_type.clear()
            self._by_tag.clear()
            self._places.clear()
        entry = RegisteredType(cls, tag_of(cls), 1, anatomy.encode, anatomy.decode, {})
        self._by_type[cls] = self._by_tag[entry.tag] = entry
        return entry


@functools.lru_cache(_MOST)
def _parts(tag: str) -> tuple[str, tuple[str, ...]]:
    """Return the module and the path that a tag names; no path for what a module cannot have."""
    module, _, name = tag.partition(":")
    return module, tuple(name.split(".")) if _is_path(name) else ()


def _is_path(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _find(tag: str, version: int) -> type:
    """Return the class of the program that has this name, or raise UnknownTag."""
    module, path = _parts(tag)
    if module not in sys.modules:
        raise UnknownTag(tag, version, f"import {module} before loading" if _is_path(module) else None)
    if (standing := _standing(module, path)) is not None and _is_of(standing, tag):
        return standing
    classes = [cls for cls in _living() if _is_of(cls, tag)]
    if (
        len(classes) > 1
    ):  # one that was defined again may still be alive, and only its module has forgotten it
        classes = [cls for cls in classes if _is_bound(cls, module)] or classes
    if len(classes) > 1:
        ambiguous = f"{len(classes)} classes have this name: register the one that is meant with tag={tag!r}"
        raise UnknownTag(tag, version, ambiguous)
    if classes:
        return classes[0]
    if (generic := _generic_of(tag)) is not None:
        return generic
    name = tag.partition(":")[2]
    moved = f"{module} has no data class {name}: did it move? Register it with tag={tag!r}"
    not_yet = f"the code that defines {name} has not run yet in this process: run it before loading"
    raise UnknownTag(tag, version, moved if path else not_yet)


def _generic_of(tag: str) -> type | None:
    """Return the class `Box` of a tag of `Box[int]`."""
    name, bracket, _ = tag.partition("[")
    if not bracket:
        return None
    standing = _standing(*_parts(name))
    is_generic = standing is not None and _is_of(standing, name) and _own(standing, _GENERIC) is not None
    return standing if is_generic else None


_GENERIC = "__pydantic_generic_metadata__"


def _standing(module: str, path: tuple[str, ...]) -> type | None:
    """Return the class that stands in a module under a name, whatever it calls itself."""
    # Past a __getattr__ of the module, and past one of a lazy module, which would import.
    part: Any = sys.modules.get(module)
    if not path or not issubclass(type(part), types.ModuleType):
        return None
    inside = types.ModuleType.__getattribute__(part, "__dict__")
    for name in path:
        part = inside.get(name)
        if not issubclass(type(part), type):
            return None
        inside = type.__getattribute__(part, "__dict__")
    return cast(type, part)


def _place(module: str, path: tuple[str, ...]) -> _Place | None:
    """Return the place of a class at the top of a module; None for one inside a class, which is looked for each time."""
    if len(path) != 1:
        return None
    home = sys.modules[module]
    return _Place(module, home, types.ModuleType.__getattribute__(home, "__dict__"), path[0])


def _is_of(cls: type, tag: str) -> bool:
    """Tell whether a class is a data class, and calls itself by the name in a tag."""
    is_ours = _own(cls, "__module__") == tag.partition(":")[0]
    return is_ours and tag_of(cls) == tag and is_data_class(cls) and not has_finalizer(cls)


def _own(cls: type, name: str) -> Any:
    return type.__getattribute__(cls, "__dict__").get(name)


def _is_bound(cls: type, module: str) -> bool:
    """Tell whether a module has a class, under any name."""
    home = sys.modules[module]
    if not issubclass(type(home), types.ModuleType):
        return False
    bound = types.ModuleType.__getattribute__(home, "__dict__")
    return any(part is cls for part in [*bound.values()])


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
