"""The command line: `outlive`, also as `python -m outlive`. For people at a terminal and for scripts."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program with the arguments of this process, and end the process."""
    try:
        try:
            import click  # noqa: F401
        except ImportError:
            from outlive.errors import ExtraMissing

            print(f"outlive: {ExtraMissing('the command line', 'cli')}", file=sys.stderr)
            sys.exit(2)
        from outlive.cli.program import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # while Python is still importing
        sys.exit(130)
