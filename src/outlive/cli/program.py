"""The program: its commands, the options that all of them have, and how it ends.

Exit codes: 0 done; 1 something was found, or the person said no; 2 the call is to be changed (usage, `CallerError`); 3 the store is in
the way (`StoreError`); 130 interrupted; 141 the reader of the output, `head` perhaps, closed it. A traceback is shown with --debug only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from outlive.cli import completion
from outlive.cli.command import SHARED, Command
from outlive.cli.commands import checkpoints, demo, doctor, langgraph, runs, threads, transfer
from outlive.cli.commands import keys as new_key
from outlive.cli.commands import maintenance as care
from outlive.cli.commands import replication as pairs
from outlive.cli.commands import sweep as sweeping
from outlive.cli.context import FINDINGS, FORMAT, OK, STORE, USAGE, Declined, Unread
from outlive.cli.output.escape import shown, shown_json
from outlive.errors import CallerError, OutliveError

# The one place where commands are registered: what they are about → the commands, in the order of the help.
SECTIONS: dict[str, tuple[Command, ...]] = {
    "Threads": (
        threads.ls, checkpoints.show, checkpoints.history, checkpoints.heads, checkpoints.diff, checkpoints.writes,
        threads.fork, threads.copy_thread, transfer.export, transfer.import_, threads.rm, threads.prune,
    ),
    "Runs": (runs.runs, runs.run, runs.recover, runs.retry, runs.park, runs.cancel),
    "Care": (
        care.verify, doctor.doctor, care.stats, sweeping.sweep, transfer.copy, transfer.backup, new_key.new_key, care.rotate, langgraph.import_langgraph,
    ),
    "Two stores": (pairs.replication, pairs.promote, pairs.failback),
    "More": (demo.demo, completion.completion),
}  # fmt: skip


class Program(click.Group):
    """All commands, listed by what they are about."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(str(command.name), command.get_short_help_str(90)) for command in commands]
                )

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], list(self.commands), 1)
            hint = f"did you mean {close[0]}?" if close else "outlive --help lists all"
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx) from error


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from outlive import __version__

        print(f"outlive {__version__}")
        ctx.exit()


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        *SHARED,
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
        ),
    ],
    epilog="Options of every command may stand before or behind its name. Threads, runs and checkpoints are named by id or its beginning, "
    "checkpoints also by place: @7 has seq 7, @ is the head, @-1 the one before it. An id that begins with - goes behind --.",
)  # fmt: skip
@click.pass_context
def program(ctx: click.Context, /, **said: Any) -> None:
    """Look at and care for a store of outlive: threads, their checkpoints, and runs."""
    ctx.obj = said


for _commands in SECTIONS.values():
    for _command in _commands:
        program.add_command(_command)


UNREAD = 141  # as a shell says of a program that SIGPIPE ended


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; return the exit code."""
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show it all is no error
    try:
        ended = _run(list(arguments))
        sys.stdout.flush()
        return ended
    except (BrokenPipeError, Unread):  # the reader has seen enough
        _forget_output()
        return UNREAD
    except OSError as error:  # nothing but the output is left to fail here
        _forget_output()
        print(f"outlive: the output could not be written: {error.strerror}", file=sys.stderr)
        return STORE


def _open_closed() -> None:
    """Let streams that were closed lead nowhere: files that are opened later must not take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    try:
        ended = program.main(arguments, prog_name="outlive", standalone_mode=False)
        return ended if isinstance(ended, int) else OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        if error.__cause__ is None:  # else click has begun a new line already
            print(file=sys.stderr)
        return 130
    except Declined:
        print("Nothing was done.", file=sys.stderr)
        return FINDINGS
    except (BrokenPipeError, Unread):
        raise
    except Exception as error:  # noqa: BLE001  # told in a line below; --debug shows all of it
        if not arguments:  # then it is the help that click raises
            print(error, file=sys.stderr)
            return USAGE
        arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        return _tell(error, arguments)


def _tell(error: Exception, arguments: list[str]) -> int:
    """Say what went wrong, in one line, or as JSON; return the exit code."""
    code, message = _weigh(error)
    if "--json" in arguments:
        kind = type(error).__name__
        said = {"format": FORMAT, "error": kind, "message": message, "exit": code}
        print(shown_json(json.dumps(said)), file=sys.stderr)
    else:
        print(f"outlive: {shown(message)}", file=sys.stderr)
    return code


def _weigh(error: Exception) -> tuple[int, str]:
    if isinstance(error, click.ClickException):
        return USAGE, _usage(error)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    if isinstance(error, OutliveError):
        from outlive.cli.output.advice import mended

        return USAGE if isinstance(error, CallerError) else STORE, f"{mended(error)}{notes}"
    if isinstance(error, OSError):
        what = f" ({error.filename!r})" if error.filename is not None else ""
        return STORE, f"the system refused: {error.strerror or error}{what}; --debug shows where"
    return STORE, f"internal error: {type(error).__name__}: {error}; --debug shows where"


def _usage(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    hint = f" (outlive {ctx.info_name} --help)" if ctx is not None and ctx.parent is not None else ""
    said = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption) and not error.option_name.startswith("--"):
        said += "; an id that begins with - goes behind --"
    return f"{said}{hint}"
