"""Runs a script or a module under a simulated system."""

import runpy
import sys

from rig.simulated.systems import ALL, CONTRACT, CORE, simulate

if __name__ == "__main__":
    _, name, *rest = sys.argv
    if rest[0] == "-m":
        simulate(name, CONTRACT)
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        simulate(name, ALL if rest[1] == "import" else CORE)
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")
