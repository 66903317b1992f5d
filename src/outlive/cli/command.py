"""What a command is: a function of a call, with the options that every command has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from outlive.cli.context import Call, Unread
from outlive.errors import BadArgument

_SHARED = ("store", "secondary", "replication", "key_file", "tenant", "timeout", "json", "quiet", "debug")
_WAYS = ("sync", "queue", "async", "none")


def shared_options() -> list[click.Parameter]:
    """Return the options of every command."""
    return [
        click.Option(
            ["--store"], metavar="URL", help="The store; else OUTLIVE_STORE, else the SQLite file of outlive's in this folder."
        ),
        click.Option(["--secondary"], metavar="URL", help="The second store, if there are two; else OUTLIVE_SECONDARY."),
        click.Option(["--replication"], metavar="HOW", type=click.Choice(_WAYS), help="How a pair is written: sync (default), queue, async; none: its first store alone."),
        click.Option(["--key-file"], metavar="PATH", type=click.Path(), help="The keys of an encrypted store; else OUTLIVE_KEYS."),
        click.Option(["--tenant"], metavar="NAME", help="Whose threads; default: the tenant without a name."),
        click.Option(["--timeout"], metavar="TIME", help="How long the store may take for one call, such as 5s or 2min; default: 30s."),
        click.Option(["--json"], is_flag=True, help="Print JSON: one object, whose items are listed in docs/cli.md."),
        click.Option(["--quiet", "-q"], is_flag=True, help="Print only ids, or what was found; no notes, no headings."),
        click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
    ]  # fmt: skip


SHARED = shared_options()


class Command(click.Command):
    """A command whose function gets the call first, then its own arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *SHARED]

    def invoke(self, ctx: click.Context) -> Any:
        here = {name: ctx.params.pop(name) for name in _SHARED}
        before = ctx.obj or {}
        said = {name: here[name] if here[name] not in (None, False) else before.get(name) for name in _SHARED}
        call = Call(
            str(self.name),
            said["store"],
            said["tenant"],
            bool(said["json"]),
            bool(said["quiet"]),
            bool(said["debug"]),
            bool(ctx.params.pop("yes", False)),
            said["secondary"],
            said["key_file"],
            said["timeout"],
            said["replication"],
        )
        assert self.callback is not None
        try:
            ctx.invoke(self.callback, call, **ctx.params)
        except BrokenPipeError:
            raise Unread from None  # click would end with 1, which means findings
        return call.code

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, wanted in (("Options", False), ("Options of every command", True)):
            records = [
                record
                for param in self.get_params(ctx)
                if (param in SHARED) == wanted
                and isinstance(param, click.Option)  # arguments stand in the line of usage
                and (record := param.get_help_record(ctx)) is not None
            ]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def command(name: str, short: str, *params: click.Parameter) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function; its docstring is the help, `short` its line in the list."""
    settings = {"help_option_names": ["-h", "--help"]}
    return lambda function: Command(
        name, callback=function, params=list(params), help=function.__doc__, short_help=short, context_settings=settings
    )  # fmt: skip


# Arguments and options that several commands have


def argument(name: str, **attributes: Any) -> click.Argument:
    """Return an argument; ids of what it names are completed in the shell."""
    from outlive.cli.completion import COMPLETERS

    is_needed, many = attributes.get("required", True), "..." if attributes.get("nargs") == -1 else ""
    said = name if is_needed and not many else f"[{name}]{many}"
    return click.Argument([name], metavar=said, shell_complete=COMPLETERS.get(name), **attributes)


def option(*names: str, **attributes: Any) -> click.Option:
    """Return an option; ids are completed as those of an argument are."""
    from outlive.cli.completion import COMPLETERS

    complete = COMPLETERS.get(attributes.get("metavar", ""))
    return click.Option(list(names), shell_complete=complete, **attributes)


def flag(*names: str, help: str) -> click.Option:
    return click.Option(list(names), is_flag=True, help=help)


def thread_argument() -> click.Argument:
    return argument("THREAD")


def namespace_option() -> click.Option:
    return option(
        "--namespace", "-n", default="", metavar="NAME", help="A namespace of the thread; default: its root."
    )


def yes_option() -> click.Option:
    return flag("--yes", "-y", help="Do it without asking.")


def limit_option(default: int | None, what: str) -> click.Option:
    return option(
        "--limit", type=click.IntRange(min=1), default=default, show_default=default is not None, help=f"How many {what} at most."
    )  # fmt: skip


def filter_option() -> click.Option:
    return option(
        "--filter", "filters", multiple=True, metavar="KEY=VALUE", help="Only those with this in their metadata; VALUE is JSON, or else text."
    )  # fmt: skip


def read_filters(said: tuple[str, ...]) -> dict[str, Any]:
    """Return what metadata is to be compared with."""
    import json

    found: dict[str, Any] = {}
    for one in said:
        key, equals, text = one.partition("=")
        if not equals or not key:
            raise BadArgument(f"--filter takes KEY=VALUE, not {one!r}")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found
