"""Defines commands: a function of a call, with the options that every command has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from outlive.cli.context import Call, OutputClosed, SharedOptions
from outlive.errors import BadArgument

# The name of an argument → its shell completion. `completion` fills it before commands are defined.
COMPLETERS: dict[str, Any] = {}

LISTED = 100  # items of a list, unless --limit says otherwise

SHARED: list[click.Parameter] = [
    click.Option(["--store"], metavar="URL", help="The store. Default: OUTLIVE_STORE, else the SQLite store in this folder."),
    click.Option(["--secondary"], metavar="URL", help="The second store of a pair. Default: OUTLIVE_SECONDARY."),
    click.Option(["--replication"], metavar="MODE", type=click.Choice(("sync", "queue", "async")), help="How to write to a pair: sync (default), queue or async."),
    click.Option(["--single"], is_flag=True, help="Use one store of a pair alone."),
    click.Option(["--key-file"], metavar="PATH", type=click.Path(), help="The keys of an encrypted store. Default: OUTLIVE_KEYS."),
    click.Option(["--tenant"], metavar="NAME", help="The tenant. Default: the tenant without a name."),
    click.Option(["--timeout"], metavar="TIME", help="The time limit of each call to the store, such as 5s or 2min. Default: 30s."),
    click.Option(["--json"], is_flag=True, help="Print JSON; outlive docs cli lists the fields."),
    click.Option(["--quiet", "-q"], is_flag=True, help="Print only ids or problems, without notes and headings."),
    click.Option(["--debug"], is_flag=True, help="Print the traceback of an error."),
]  # fmt: skip


class Command(click.Command):
    """A command whose function takes the call first, then its own arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *SHARED]

    def invoke(self, ctx: click.Context) -> Any:
        options = SharedOptions.take(ctx.params, ctx.obj)
        if ctx.invoked_subcommand is not None:
            _refuse_given(ctx)
            ctx.obj = options
            return None
        path = ctx.command_path.partition(" ")[2]
        call = Call(path, options, is_confirmed=ctx.params.pop("yes", False))
        assert self.callback is not None
        try:
            ctx.invoke(self.callback, call, **ctx.params)
        except BrokenPipeError:
            raise OutputClosed from None  # click would exit with 1, which means findings
        return call.code

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, is_shared in (("Options", False), ("Options of every command", True)):
            records = [
                record
                for param in self.get_params(ctx)
                if (param in SHARED) == is_shared
                and isinstance(param, click.Option)  # arguments are in the usage line
                and (record := param.get_help_record(ctx)) is not None
            ]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _refuse_given(ctx: click.Context) -> None:
    """Refuse options of a command before its subcommand, which would ignore them."""
    for name in ctx.params:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            taken = next(param.opts[0] for param in ctx.command.params if param.name == name)
            command = f"outlive {ctx.command_path.partition(' ')[2]} {ctx.invoked_subcommand}"
            raise BadArgument(f"{command} does not take {taken}")


class CommandGroup(click.Group, Command):
    """A command that has subcommands, and does something without one."""


def command(
    name: str, *params: click.Parameter, cls: type[Command] = Command, **attributes: Any
) -> Callable[[Callable[..., None]], Any]:
    """Make a command of a function; its docstring is the help."""
    return lambda function: cls(
        name, callback=function, params=list(params), help=function.__doc__, context_settings=HELP, **attributes
    )  # fmt: skip


HELP = {"help_option_names": ["-h", "--help"]}


# Arguments and options of several commands


def argument(name: str, **attributes: Any) -> click.Argument:
    """Return an argument; its name says which ids the shell completes."""
    is_required, dots = attributes.get("required", True), "..." if attributes.get("nargs") == -1 else ""
    metavar = name if is_required and not dots else f"[{name}]{dots}"
    return click.Argument([name], metavar=metavar, shell_complete=COMPLETERS.get(name), **attributes)


def option(*names: str, **attributes: Any) -> click.Option:
    """Return an option; its metavar says which ids the shell completes."""
    completer = COMPLETERS.get(attributes.get("metavar", ""))
    return click.Option(list(names), shell_complete=completer, **attributes)


def flag(*names: str, help: str) -> click.Option:
    return click.Option(list(names), is_flag=True, help=help)


def thread_argument() -> click.Argument:
    return argument("THREAD")


def namespace_option() -> click.Option:
    return option(
        "--namespace", "-n", default="", metavar="NAME", help="A namespace of the thread. Default: the root."
    )


def raw_option() -> click.Option:
    return flag("--raw", help="Of a LangGraph thread, show what is stored instead of what the graph holds.")


def yes_option() -> click.Option:
    return flag("--yes", "-y", help="Do not ask for confirmation.")


def limit_option(default: int | None, what: str) -> click.Option:
    return option(
        "--limit", type=click.IntRange(min=1), default=default, show_default=default is not None, help=f"The maximum number of {what}."
    )  # fmt: skip


def watched_limit_option(what: str) -> click.Option:
    """Return the limit of a list that can be watched: what is not in the list could not be seen to change."""
    help = f"The maximum number of {what}. Default: {LISTED}; with --watch, all."
    return option("--limit", type=click.IntRange(min=1), help=help)


def limit_of(limit: int | None, *, watches: bool) -> int | None:
    """Return the limit of a list that can be watched; None: all."""
    return limit if limit is not None or watches else LISTED


def filter_option() -> click.Option:
    return option(
        "--filter", "filters", multiple=True, metavar="KEY=VALUE", help="Only those with this metadata; VALUE is JSON, or else text."
    )  # fmt: skip


def parse_filters(texts: tuple[str, ...], name: str = "--filter") -> dict[str, Any]:
    """Return the values by key of an option that takes KEY=VALUE."""
    filters: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadArgument(f"{name} takes KEY=VALUE, not {text!r}")
        try:
            filters[key] = json.loads(value)
        except ValueError:
            filters[key] = value
    return filters
