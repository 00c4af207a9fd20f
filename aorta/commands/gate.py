"""`aorta gate`: is B slower than A? Interleaved runs, and an exit status for CI."""

from __future__ import annotations

import re
import shlex
import signal
import time
from pathlib import Path

import click

from aorta.commands._say import say
from aorta.errors import ArtefactError, ConfigError

SLOWER = 1


@click.command()
@click.option("--a", "first", required=True, metavar="COMMAND", help="The program before the change.")
@click.option("--b", "second", required=True, metavar="COMMAND", help="The program after the change.")
@click.option(
    "--limit",
    type=click.FloatRange(0.1, 100.0),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="The slowdown that must be found.",
)
@click.option(
    "--blocks",
    type=click.IntRange(min=6),
    default=120,
    show_default=True,
    help="Maximum number of blocks of four runs.",
)
@click.option("--metric", metavar="REGEX", help="Pattern of the number in a run's output; smaller is better.")
@click.option(
    "--cpu-time", is_flag=True, help="Measure the CPU time of the command, which suits shared machines."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Time limit of one run, in seconds.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/gate"),
    show_default=True,
    help="Folder for gate.json, gate.md, gate.xml (JUnit) and the runs.",
)
def command(
    *,
    first: str,
    second: str,
    limit: float,
    blocks: int,
    metric: str | None,
    cpu_time: bool,
    timeout: float,
    output: Path,
) -> int:
    """Run A and B in blocks (A B B A, B A A B) until it is clear if B is slower by the limit.

    Exit status 0: B is not slower; 1: B is slower; 4: a run failed. The gate compares the number that
    --metric finds. Without --metric, it compares steps from the step records of PyTorch programs, or the
    wall time of the whole command if there are none. To run Slurm jobs, use `srun ...` or `sbatch --wait
    ...` as commands.
    """
    if metric is not None and cpu_time:
        raise ConfigError("--metric and --cpu-time cannot be used together", "use one of them")
    from aorta.artefacts.io import write_json, write_text
    from aorta.commands._gate import Runner, decide
    from aorta.commands._signals import EndingSignals
    from aorta.metrics.gate import GatePlan, SequentialTest
    from aorta.report.gate import junit, markdown, sentence, unfinished

    folder = output / time.strftime("run_%Y%m%dT%H%M%SZ", time.gmtime())
    for name, typed in (("--a", first), ("--b", second)):
        _check(name, typed)
    runner = Runner({"A": first, "B": second}, folder / "runs", _pattern(metric), cpu_time, timeout, say)
    try:
        try:
            with EndingSignals() as signals:
                result = decide(SequentialTest(GatePlan(limit=limit / 100.0, most_blocks=blocks)), runner)
        except KeyboardInterrupt:
            say("interrupted: the current run was ended, and B was not judged", err=True)
            return 128 + (signals.number or signal.SIGINT)
        except Exception as error:
            write_text(folder / "gate.xml", unfinished(first, second, str(error)))
            raise
        write_json(folder / "gate.json", result)
        write_text(folder / "gate.md", markdown(result))
        write_text(folder / "gate.xml", junit(result))
    except OSError as error:
        raise ArtefactError(f"{error.filename or folder}: {error.strerror}") from error
    say(sentence(result))
    say(f"report: {folder / 'gate.md'}, {folder / 'gate.xml'}")
    return SLOWER if result.slower else 0


def _check(name: str, typed: str) -> None:
    """Raises an error where a command cannot be split into words."""
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise ConfigError(f"{name} {typed!r}: {str(error).lower()}", "close each quotation mark") from error
    if not words:
        raise ConfigError(f"{name} is empty", "give the command that starts the program")


def _pattern(metric: str | None) -> re.Pattern[str] | None:
    if metric is None:
        return None
    try:
        pattern = re.compile(metric)
    except re.error as error:
        raise ConfigError(f"--metric {metric!r}: {error}", "a regular expression with one group") from error
    if pattern.groups != 1:
        raise ConfigError(
            f"--metric {metric!r} has {pattern.groups} groups", "put parentheses around only the number"
        )
    return pattern
