"""The `aorta` command. Each subcommand lives in `aorta.commands` and is imported when it is called."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import io
import os
import sys

import click

from aorta import __version__
from aorta.artefacts.masking import remember
from aorta.errors import AortaError

COMMANDS = {
    "profile": "Run the scenarios on this machine, wait, aggregate.",
    "submit": "Submit the scenarios to Slurm.",
    "sweep": "Vary keys or node counts, in job arrays or on this machine.",
    "wait": "Wait until every job of a submission has ended.",
    "status": "Show the jobs of a submission once.",
    "cancel": "Cancel the jobs of a submission.",
    "configure": "Write scripts/profiling_config.sh for this cluster.",
    "analyze": "Analyse one run, or any traces.",
    "aggregate": "Analyse every scenario and write docs/BOTTLENECK_ANALYSIS.md.",
    "runs": "List runs, submissions and earlier reports.",
    "clean": "Remove old runs and reports.",
    "staff": "Write one line per job for Slurm, and metrics for Prometheus.",
    "export": "Export a run to MLflow or W&B, or the schemas of all files.",
    "timeline": "Write one timeline of all ranks, for Perfetto.",
    "compare": "Compare before and after a change, or several runs side by side.",
    "gate": "Test if B is slower than A, with an exit status for CI.",
    "explain": "Explain a finding, mistake or threshold.",
    "attach": "Show where a running job spends its time, without a restart.",
    "monitor": "Sample this node's GPUs and CPUs to CSV.",
    "doctor": "Check this machine, and say how to fix what does not work.",
    "validate": "Inject known faults into real runs, and score the diagnosis.",
    "run-node": "Run the node agent, once per node inside a job.",
    "reduce": "Reduce a run's traces to one summary per rank, once per node inside a job.",
    "export-traces": "Export a profiler's reports to SQLite without secrets, once per node.",
    "attach-node": "Look at one node's ranks for attach, once per node inside a job.",
    "cluster": "Run a real four-node Slurm cluster on this machine.",
}
"""Name to one-line help; the module is `aorta.commands.<name with _>` and its command is called `command`."""

PRESET = ("submit", "sweep")
"""Subcommands whose options a site may preset."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class LazyGroup(click.Group):
    """Imports a subcommand only when it is used, so that the node agent starts without plotting libraries."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and mask the secrets among them in all that this process writes and prints."""
        remember(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order of the workflow."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the subcommand's module."""
        if cmd_name not in COMMANDS:
            from aorta.commands._groups import suggest

            suggest(ctx, cmd_name, COMMANDS)
            return None
        module = importlib.import_module(f"aorta.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aorta")
@click.pass_context
def group(context: click.Context) -> None:
    """Why does this training job not scale, and what do I change?"""
    if context.invoked_subcommand in PRESET:
        from aorta.config.site import preset_options

        context.default_map = preset_options()


def main() -> None:
    """Entry point: errors of ours become one message and an exit code; anything else is a bug."""
    if "_AORTA_COMPLETE" in os.environ:
        from aorta.commands._completion import add_bash

        add_bash()
    from aorta.commands._say import flush, say, unwritten

    try:
        outcome = group(standalone_mode=False, prog_name="aorta")
        flush()
        # The system frees everything at once: the interpreter need not look for cycles at its end.
        gc.freeze()
    except AortaError as error:
        say(f"aorta: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        with contextlib.suppress(AortaError):
            flush()
        sys.exit(1)
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        say(told.getvalue().rstrip(), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("aorta: interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        from aorta.commands._crash import fault

        full = isinstance(error, OSError) and error.errno in _FULL and error.filename is None
        problem = unwritten(error) if full else fault(error)
        say(f"aorta: {problem}", err=True)
        sys.exit(problem.exit_code)
    sys.exit(outcome if isinstance(outcome, int) else 0)


if __name__ == "__main__":
    main()
