"""Reads `--override a=1 b=2`, and completes its keys in a shell."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=.*", re.DOTALL)


def spread_overrides(words: list[str]) -> list[str]:
    """`--override a=1 b=2` written as `--override a=1 --override b=2`; what follows `--` stays as it is."""
    spread: list[str] = []
    inside = False
    for index, word in enumerate(words):
        if word == "--":
            return spread + words[index:]
        if inside and spread[-1] != "--override" and _ASSIGNMENT.fullmatch(word):
            spread.append("--override")
        elif not (inside and _ASSIGNMENT.fullmatch(word)):
            inside = word == "--override" or word.startswith("--override=")
        spread.append(word)
    return spread


class OverrideCommand(click.Command):
    """A command whose `--override` takes several values at once, and may be repeated; all of them count.
    `--keep-environment` and `--container`, where it has them, are short for one each.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        ctx.meta["aorta.words"] = list(args)
        rest = super().parse_args(ctx, spread_overrides(args))
        if ctx.params.pop("keep_environment", False):
            ctx.params["overrides"] += ("capture.keep_environment=true",)
        image = ctx.params.pop("container", None)
        if image is not None:
            import json

            from aorta.launch.container import folder_of

            here = Path(image).is_file() or folder_of(image) is not None
            named = str(Path(image).absolute()) if here else image
            ctx.params["overrides"] += (f"container.image={json.dumps(named)}",)
        return rest


def complete_override(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Keys of the configuration for the shell's completion."""
    from aorta.commands._completion import complete_key

    return complete_key(context, parameter, incomplete)


def _complete_threshold(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from aorta.commands._completion import complete_threshold

    return complete_threshold(context, parameter, incomplete)


def threshold_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--override` of an analysis: thresholds alone, since what ran cannot be changed any more."""
    return click.option(
        "--override",
        "overrides",
        multiple=True,
        metavar="thresholds.KEY=VALUE ...",
        callback=_checked,
        help="Analyse with other thresholds; `aorta explain` lists them.",
        shell_complete=_complete_threshold,
    )(function)


def _checked(_: click.Context, __: click.Parameter, overrides: tuple[str, ...]) -> tuple[str, ...]:
    if overrides:
        from aorta.config.load import override_thresholds
        from aorta.config.thresholds import Thresholds

        override_thresholds(Thresholds(), overrides)
    return overrides
