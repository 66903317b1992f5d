"""Completion in the shell: of commands and options by click, of ids by asking the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
)

from outlive.cli.command import Command
from outlive.cli.context import Call
from outlive.cli.output.escape import shown

_MANY = 100
_PATIENCE = "2s"  # nobody waits longer behind the tabulator for a server that does not answer


class Bash(BashComplete):
    """Click's completion for bash breaks words at colons, as bash does, and there are colons in every URL and in many ids."""

    source_template = """\
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" kind value quoted word before=""
    word="${line##*[[:space:]]}"
    # Bash replaces only what stands behind the last colon, so what stands before it is taken off.
    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && before="${word%%"${word##*:}"}"
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                printf -v quoted %%q "$value"
                COMPREPLY+=("${quoted#"$before"}")
                ;;
        esac
    done < <(COMP_WORDS="$line" %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Read the line up to the cursor; the word that is being written is the last one."""
        from click.shell_completion import split_arg_string

        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], incomplete


add_completion_class(Bash)
_SHELLS = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}


def _call_of(ctx: click.Context) -> Call:
    """Return the call of a command line that is still being written."""
    before = ctx.parent.params if ctx.parent is not None else {}
    store, tenant, secondary, key_file = (
        ctx.params.get(name) or before.get(name) for name in ("store", "tenant", "secondary", "key_file")
    )
    patience = None if "timeout_s=" in (store or os.environ.get("OUTLIVE_STORE") or "") else _PATIENCE
    return Call(
        "completion",
        store,
        tenant,
        is_quiet=True,
        secondary_url=secondary,
        key_file=key_file,
        timeout=patience,
    )


def _completing(look: Callable[[Any, click.Context, str], Iterable[str]]) -> Any:
    """Make a completer; whatever is in the way, there is nothing to complete then."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            with _call_of(ctx).open() as store:
                return [CompletionItem(shown(id)) for id in look(store, ctx, incomplete)]
        except Exception:  # noqa: BLE001  # a half-written line is no place for errors
            return []

    return complete


def _threads(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    return (info.id for info in store.threads(prefix=incomplete, limit=_MANY))


def _runs(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    return [run.id for run in store.runs() if run.id.startswith(incomplete)][:_MANY]


def _checkpoints(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    from outlive.cli.lookup import find_thread

    said = ctx.params.get("thread") or "".join(
        ctx.args[:1]
    )  # behind an option without its value, click has not read on
    thread = store.thread(find_thread(store, said), namespace=ctx.params.get("namespace") or "")
    seqs = [f"@{one.seq}" for one in thread.history(limit=_MANY)]
    return [seq for seq in seqs if seq.startswith(incomplete)]


COMPLETERS = {
    "THREAD": _completing(_threads),
    "PREFIX": _completing(_threads),
    "RUN": _completing(_runs),
    "CHECKPOINT": _completing(_checkpoints),
    "OLD": _completing(_checkpoints),
    "NEW": _completing(_checkpoints),
}


_HELP = """Print what a shell needs to complete commands, options and ids.

\b
bash:  eval "$(outlive completion bash)"      in ~/.bashrc
zsh:   eval "$(outlive completion zsh)"       in ~/.zshrc
fish:  outlive completion fish > ~/.config/fish/completions/outlive.fish
"""


def _completion(call: Call, shell: str) -> None:
    from outlive.cli.program import program

    print(_SHELLS[shell](program, {}, "outlive", "_OUTLIVE_COMPLETE").source())


completion = Command(
    "completion",
    callback=_completion,
    params=[click.Argument(["shell"], metavar="SHELL", type=click.Choice(sorted(_SHELLS)))],
    help=_HELP,
    short_help="Print the completion script of a shell.",
)
