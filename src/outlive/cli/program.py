"""The program: its commands, the options that all of them have, and its exit codes.

Exit codes: 0 success; 1 findings, or the user declined; 2 wrong usage (`CallerError`); 3 the store
failed (`StoreError`); 130 interrupted; 141 the reader of the output closed it, as `head` does.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from outlive.cli.command import HELP, SHARED
from outlive.cli.context import FINDINGS, FORMAT, OK, STORE, USAGE, Declined, OutputClosed, SharedOptions
from outlive.errors import CallerError, OutliveError
from outlive.view.escape import escape_json, escape_terminal

# All commands in the order of the help: name → module (imported when the command is called) and
# help.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Threads": {
        "ls": ("threads", "List threads."),
        "show": ("checkpoints", "Show a checkpoint and its state."),
        "history": ("checkpoints", "List the checkpoints of a thread as a tree."),
        "tips": ("checkpoints", "List the newest checkpoint of each branch."),
        "diff": ("checkpoints", "Compare two checkpoints."),
        "writes": ("checkpoints", "List the pending writes of a checkpoint."),
        "fork": ("threads", "Start a new thread from a checkpoint."),
        "copy-thread": ("threads", "Copy a thread with its whole history."),
        "export": ("transfer", "Write a thread as JSON."),
        "import": ("transfer", "Create a thread from exported JSON."),
        "rm": ("threads", "Delete a thread or some of its checkpoints."),
        "prune": ("threads", "Delete all but the newest checkpoints."),
    },
    "Runs": {
        "runs": ("runs", "List runs; runs show RUN shows one."),
        "submit": ("workers", "Submit a run for workers."),
        "worker": ("workers", "Work on submitted, woken and dead runs, until it is stopped."),
        "workers": ("workers", "List living workers."),
        "recover": ("recover", "Resume all dead and released runs."),
        "retry": ("recover", "Resume a run that has ended."),
        "park": ("runs", "Exclude a run from recovery."),
        "cancel": ("runs", "Cancel a run."),
        "questions": ("questions", "List what runs ask people."),
        "answer": ("questions", "Answer a question of a run."),
    },
    "Maintenance": {
        "verify": ("maintenance", "Check every stored byte."),
        "doctor": ("doctor", "Check the installation and the store, and suggest fixes."),
        "stats": ("maintenance", "Show the size of threads."),
        "sweep": ("maintenance", "Delete old checkpoints from all threads."),
        "copy": ("transfer", "Copy the store into another, also as a backup."),
        "new-key": ("keys", "Create a key for an encrypted store."),
        "rotate": ("maintenance", "Re-encrypt everything under the newest key."),
        "import-langgraph": ("langgraph", "Import a LangGraph database."),
    },
    "Replication": {
        "replication": ("replication", "Show the state of a pair of stores, or change it."),
        "promote": ("replication", "Make the secondary the active store."),
        "failback": ("replication", "Make the primary the active store again."),
    },
    "More": {
        "ui": ("ui", "Show the store in a browser."),
        "mcp": ("mcp", "Serve the store to a coding agent, as tools."),
        "demo": ("demo", "Kill an agent and watch another process resume its run."),
        "docs": ("docs", "Print a page of the documentation, or list all pages."),
        "completion": ("completion", "Print the completion script of a shell."),
    },
}
_MODULES = {name: module for section in SECTIONS.values() for name, (module, _) in section.items()}


class Program(click.Group):
    """All commands, listed by topic. Only the module of the called command is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        module = importlib.import_module(f"outlive.cli.commands.{_MODULES[cmd_name]}")
        attribute = "import_" if cmd_name == "import" else cmd_name.replace("-", "_")
        command: click.Command = getattr(module, attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, help) for name, (_, help) in commands.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], list(_MODULES), 1)
            hint = f"did you mean {close[0]}?" if close else "outlive --help lists all commands"
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx) from error


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from outlive import __version__

        print(f"outlive {__version__}")
        ctx.exit()


@click.group(
    cls=Program,
    context_settings=HELP,
    params=[
        *SHARED,
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
        ),
    ],
    epilog="Options of every command may come before or after its name. Threads, runs and checkpoints are named by id or "
    "the beginning of it, checkpoints also by position: @7 has seq 7, @ is the head, @-1 the one before it. Put -- before "
    "an id that begins with -.",
)  # fmt: skip
@click.pass_context
def program(ctx: click.Context, /, **params: Any) -> None:
    """Inspect and maintain an outlive store: threads, their checkpoints, and runs."""
    ctx.obj = SharedOptions.take(params, None)


OUTPUT_CLOSED = 141  # as a shell reports a program that SIGPIPE ended


def run(arguments: Sequence[str]) -> int:
    """Run the program; return the exit code."""
    _reopen_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no error
    if "_OUTLIVE_COMPLETE" in os.environ:
        from outlive.cli.commands import completion  # noqa: F401  # registers itself with click
    try:
        code = _run(list(arguments))
        sys.stdout.flush()
        return code
    except (BrokenPipeError, OutputClosed):
        _discard_output()
        return OUTPUT_CLOSED
    except OSError as error:  # only the output can still fail here
        _discard_output()
        print(f"outlive: cannot write the output: {error.strerror}", file=sys.stderr)
        return STORE


def _reopen_streams() -> None:
    """Connect closed standard streams to /dev/null: a file that is opened later must not take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    try:
        code = program.main(arguments, prog_name="outlive", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        if error.__cause__ is None:  # otherwise click has begun a new line already
            print(file=sys.stderr)
        return 130
    except Declined:
        print("Nothing was changed.", file=sys.stderr)
        return FINDINGS
    except (BrokenPipeError, OutputClosed):
        raise
    except Exception as error:  # noqa: BLE001  # reported in one line; --debug prints the traceback
        if not arguments:  # click raises the help
            print(error, file=sys.stderr)
            return USAGE
        arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        return _report(error, arguments)


def _report(error: Exception, arguments: list[str]) -> int:
    """Print an error in one line, or as JSON; return the exit code."""
    code, message = _describe(error)
    if "--json" in arguments:
        item = {"format": FORMAT, "error": type(error).__name__, "message": message, "exit": code}
        print(escape_json(json.dumps(item)), file=sys.stderr)
    else:
        print(f"outlive: {escape_terminal(message)}", file=sys.stderr)
    return code


def _describe(error: Exception) -> tuple[int, str]:
    if isinstance(error, click.ClickException):
        return USAGE, _usage(error)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    if isinstance(error, OutliveError):
        from outlive.view.advice import message_with_advice

        code = USAGE if isinstance(error, CallerError) else STORE
        return code, f"{message_with_advice(error)}{notes}"
    if isinstance(error, OSError):
        file = f" ({error.filename!r})" if error.filename is not None else ""
        return STORE, f"the system reports: {error.strerror or error}{file}; --debug prints the traceback"
    return STORE, f"internal error: {type(error).__name__}: {error}; --debug prints the traceback"


def _usage(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    hint = f" ({ctx.command_path} --help)" if ctx is not None and ctx.parent is not None else ""
    message = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption) and not error.option_name.startswith("--"):
        message += "; put -- before an id that begins with -"
    return f"{message}{hint}"
