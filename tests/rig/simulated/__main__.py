"""Runs a script or a module under a simulated system."""

import runpy
import sys

from rig.simulated.systems import simulate

if __name__ == "__main__":
    _, name, *rest = sys.argv
    simulate(name)
    if rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")
