"""Makes a list of the options in a docstring, which are aligned there for those who read it in a terminal."""

from __future__ import annotations

import re

import griffe

_OPTION = re.compile(r"(\w+):  +(\S.*)")
_MORE = re.compile(r"  +(\S.*)")


class OptionLists(griffe.Extension):
    """Changes the docstring of each object that is read."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text):
    """Return a docstring with each line `name:  what it does`, and those that continue it, as an item of a list."""
    lines, is_option = [], False
    for line in text.splitlines():
        if found := _OPTION.fullmatch(line):
            line, is_option = f"- `{found[1]}`: {found[2]}", True
        elif is_option and (more := _MORE.fullmatch(line)):
            line = f"  {more[1]}"
        else:
            is_option = False
        lines.append(line)
    return "\n".join(lines)
