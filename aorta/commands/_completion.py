"""Tab completion: keys of the configuration, and a bash script that leaves no blank behind `key=`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

_SCRIPT = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local response completion type value
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete $1)
    for completion in $response; do
        IFS=',' read type value <<< "$completion"
        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=($value)
            [[ $value == *= ]] && compopt -o nospace
        fi
    done
    return 0
}
%(complete_func)s_setup() {
    complete -o nosort -F %(complete_func)s %(prog_name)s
}
%(complete_func)s_setup;
"""


class _Bash(BashComplete):
    """click's, with no blank behind a word that ends in `=`."""

    source_template = _SCRIPT


def add_bash() -> None:
    """Use the script above where bash asks for completion."""
    add_completion_class(_Bash, "bash")


def config_keys() -> Iterator[str]:
    """The dotted keys of the configuration, in its order."""
    import msgspec

    from aorta.config.schema import Config

    def below(value: Any, prefix: str) -> Iterator[str]:
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if isinstance(inner, msgspec.Struct):
                yield from below(inner, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    return below(Config(), "")


def complete_key(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`key=` for each key that begins as what was typed, or whose last part does."""
    return _fitting(list(config_keys()), incomplete)


def complete_threshold(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`key=` for each threshold that begins as what was typed, or whose last part does."""
    return _fitting([key for key in config_keys() if key.startswith("thresholds.")], incomplete)


def _fitting(keys: list[str], incomplete: str) -> list[CompletionItem]:
    found = [key for key in keys if key.startswith(incomplete)]
    found = found or [key for key in keys if key.rpartition(".")[2].startswith(incomplete)]
    return [CompletionItem(f"{key}=") for key in found]


def complete_word(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """A key behind `--override a=1`, which takes several values; elsewhere a file: the user's program."""
    words: list[str] = context.meta.get(WORDS, [])
    options = [word for word in words if word.startswith("-")]
    if options and options[-1] == "--override":
        return complete_key(context, parameter, incomplete)
    return [CompletionItem(incomplete, type="file")]


WORDS = "aorta.words"
"""Place where a command keeps the words that it was given, for completion."""
