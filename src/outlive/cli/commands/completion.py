"""Shell completion: click completes commands and options, the store ids."""

from __future__ import annotations

import json
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
    split_arg_string,
)

from outlive.cli.command import COMPLETERS, command
from outlive.cli.context import Call, SharedOptions
from outlive.cli.lookup import find_run, find_thread
from outlive.view.escape import escape_terminal

_LIMIT = 100
_TIMEOUT = "2s"  # pressing Tab must not hang for longer


class Bash(BashComplete):
    """Completion for bash that handles colons, which click breaks words at: URLs and many ids have them."""

    source_template = """\
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" kind value quoted word before=""
    word="${line##*[[:space:]]}"
    # Bash replaces only the part after the last colon, so the part before it is removed.
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
        """Read the line up to the cursor; the incomplete word is the last one."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], incomplete


add_completion_class(Bash)
_SHELLS = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}


def _call_of(ctx: click.Context) -> Call:
    """Return the call of a command line that is not complete yet."""
    before = ctx.find_root().params
    given: Any = {
        name: ctx.params.get(name) or before.get(name)
        for name in ("store", "tenant", "secondary", "key_file")
    }
    has_timeout = "timeout_s=" in (given["store"] or os.environ.get("OUTLIVE_STORE") or "")
    options = SharedOptions(**given, quiet=True, timeout=None if has_timeout else _TIMEOUT)
    return Call("completion", options)


def _completer(list_ids: Callable[[Any, click.Context, str], Iterable[str]]) -> Any:
    """Make a completer; when the store cannot be read there is nothing to complete."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            with _call_of(ctx).open() as store:
                return [CompletionItem(escape_terminal(id)) for id in list_ids(store, ctx, incomplete)]
        except Exception:  # noqa: BLE001  # errors must not appear in the line that is being typed
            return []

    return complete


def _threads(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    return (info.id for info in store.threads(prefix=incomplete, limit=_LIMIT))


def _runs(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    return [run.id for run in store.runs() if run.id.startswith(incomplete)][:_LIMIT]


def _checkpoints(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    # After an option without its value click has not parsed the arguments.
    name = ctx.params.get("thread") or "".join(ctx.args[:1])
    thread = store.thread(find_thread(store, name), namespace=ctx.params.get("namespace") or "")
    seqs = [f"@{checkpoint.seq}" for checkpoint in thread.history(limit=_LIMIT)]
    return [seq for seq in seqs if seq.startswith(incomplete)]


def _agents(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    names = {run.agent for run in store.runs() if run.agent is not None}
    return sorted(name for name in names if name.startswith(incomplete))[:_LIMIT]


def _questions(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    return [question.name for question in _asked(store, ctx) if question.name.startswith(incomplete)]


def _values(store: Any, ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Complete an answer of which the schema of the question lists all."""
    from outlive.view.answers import choices_of

    name = ctx.params.get("question")
    schemas = [question.schema for question in _asked(store, ctx) if question.name == name]
    choices = [choice for schema in schemas for choice in choices_of(schema) or ()]
    texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
    return [text for text in texts if text.startswith(incomplete)]


def _asked(store: Any, ctx: click.Context) -> list[Any]:
    """Return what the run of an unfinished command line asks."""
    run = find_run(store, ctx.params.get("run") or "".join(ctx.args[:1]))
    questions = store.questions(thread=run.thread, events=True)
    return [question for question in questions if question.run == run.id]


COMPLETERS |= {
    "AGENT": _completer(_agents),
    "QUESTION": _completer(_questions),
    "VALUE": _completer(_values),
    "THREAD": _completer(_threads),
    "PREFIX": _completer(_threads),
    "RUN": _completer(_runs),
    "CHECKPOINT": _completer(_checkpoints),
    "OLD": _completer(_checkpoints),
    "NEW": _completer(_checkpoints),
}


@command("completion", click.Argument(["shell"], metavar="SHELL", type=click.Choice(sorted(_SHELLS))))
def completion(call: Call, shell: str) -> None:
    """Print the script with which a shell completes commands, options and ids.

    \b
    bash:  eval "$(outlive completion bash)"      in ~/.bashrc
    zsh:   eval "$(outlive completion zsh)"       in ~/.zshrc
    fish:  outlive completion fish > ~/.config/fish/completions/outlive.fish
    """  # noqa: D301  # click reads the backspace as: do not wrap
    program = click.get_current_context().find_root().command
    print(_SHELLS[shell](program, {}, "outlive", "_OUTLIVE_COMPLETE").source())
