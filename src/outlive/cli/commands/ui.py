"""The command ui: the inspector in a browser."""

from __future__ import annotations

import click

from outlive.cli.command import command, flag, option
from outlive.cli.context import Call


@command(
    "ui",
    flag("--write", help="Allow acts: answer, give back, park, cancel, fork, edit, delete and prune."),
    option("--port", type=click.IntRange(0, 65535), default=7788, show_default=True, help="The port; 0 chooses a free one."),
    flag("--open", help="Open the page in your browser."),
    option("--redact", metavar="NAMES", help="Hide the values of these keys, such as api_key,user.email."),
    option("--host", default="127.0.0.1", show_default=True, help="The address to listen on. There is no TLS."),
    option("--allow-host", multiple=True, metavar="NAME", help="Another name under which browsers may reach it; can be repeated."),
    flag("--no-token", help="Let every user of this machine in."),
)  # fmt: skip
def ui(
    call: Call,
    write: bool,
    port: int,
    open: bool,
    redact: str | None,
    host: str,
    allow_host: tuple[str, ...],
    no_token: bool,
) -> None:
    """Show the store in a browser: what waits or died and why, every state, and what changed. Ctrl-C ends it.

    It only reads, unless you give --write. The address has a token that works once.

    \b
    outlive ui --open
    outlive ui --write --redact api_key
    """  # noqa: D301  # click reads the backspace as: do not wrap
    from outlive.errors import ExtraMissing

    try:
        from outlive.inspector.server import serve
    except ImportError:
        raise ExtraMissing("the inspector", "ui") from None

    from outlive.view.redaction import Redaction

    def ready(address: str) -> None:
        print(address, flush=True)
        call.note(f"{'reading and writing' if write else 'read-only'}; Ctrl-C ends")
        if open:
            import webbrowser

            webbrowser.open(address)

    with call.open(writes=write) as store:
        names = Redaction.of(redact).patterns
        serve(
            store, host=host, port=port, write=write, redact=names, allow_hosts=allow_host, needs_token=not no_token, on_ready=ready
        )  # fmt: skip
