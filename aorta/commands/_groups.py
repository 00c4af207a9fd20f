"""Groups of commands that name the likeliest one where a name is mistyped."""

from __future__ import annotations

from collections.abc import Collection

import click


class SuggestingGroup(click.Group):
    """A group that answers a mistyped name with the likeliest one."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command; None where nothing is similar."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            suggest(ctx, cmd_name, self.commands)
        return found


def suggest(context: click.Context, name: str, known: Collection[str]) -> None:
    """Raise an error that names the likeliest of the known commands, unless none is similar."""
    import difflib

    likely = difflib.get_close_matches(name, known, n=1)
    if likely and not context.resilient_parsing:
        raise click.UsageError(f"No such command {name!r}. Did you mean {likely[0]!r}?", context)
