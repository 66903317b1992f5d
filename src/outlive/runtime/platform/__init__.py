"""What differs between operating systems. No other module asks which one this is, a test makes sure.

`system` is the one of this process. Each has a class with the methods of `System`; what a system
does not have at all is an attribute, such as `can_fork`.
"""

from __future__ import annotations

import sys

from outlive.runtime.platform.system import READ, WRITE, System

__all__ = ["READ", "WRITE", "System", "choose", "system"]


def choose(platform: str) -> System:
    """Return the system with this `sys.platform`."""
    if platform == "win32":
        from outlive.runtime.platform.windows import Windows

        return Windows()
    if platform == "darwin":
        from outlive.runtime.platform.macos import MacOS

        return MacOS()
    if platform == "linux":
        from outlive.runtime.platform.linux import Linux

        return Linux()
    from outlive.runtime.platform.posix import Posix

    return Posix()


system = choose(sys.platform)
