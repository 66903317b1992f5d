"""The command mcp: the store as tools of a coding agent."""

from __future__ import annotations

from outlive.cli.command import command, flag, option
from outlive.cli.context import Call


@command(
    "mcp",
    flag("--write", help="Allow acts: answer a question, and retry, park or cancel a run."),
    option("--redact", metavar="NAMES", help="Hide the values of these keys, such as api_key,user.email."),
)
def mcp(call: Call, write: bool, redact: str | None) -> None:
    """Serve the store to a coding agent, as tools of the Model Context Protocol over standard input and output.

    It only reads, unless you give --write, and creates no store. It ends when its client does.

    \b
    claude mcp add outlive -- outlive mcp --store sqlite:///agent.db
    """  # noqa: D301  # click reads the backspace as: do not wrap
    from outlive.errors import ExtraMissing, StoreError

    try:
        from outlive.cli.mcp.server import serve
    except ImportError:
        raise ExtraMissing("the MCP server", "mcp") from None
    from outlive.cli.mcp.desk import Desk
    from outlive.view.advice import message_with_advice
    from outlive.view.redaction import Redaction

    desk = Desk(call, write=write, redaction=Redaction.of(redact))
    try:
        try:
            desk.open()  # a wrong URL or key ends the server at once
        except StoreError as error:
            call.note(f"{message_with_advice(error)}; each tool tries again")
        serve(call, desk)
    finally:
        desk.close()
