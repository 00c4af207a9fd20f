"""Runs A and B in blocks, and measures each run."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aorta.artefacts import names
from aorta.artefacts.gate import GateCause, GateResult, GateRun
from aorta.artefacts.layout import RunDir
from aorta.averages import median
from aorta.errors import ArtefactError
from aorta.metrics.gate import SequentialTest
from aorta.readers.steps import read_steps
from aorta.report.series import step_times
from aorta.runner.command import HOOKS

Side = Literal["A", "B"]
_GRACE_S = 5.0
"""Time that a command has to end by itself."""
STEP, PRINTED, WALL, CPU = "step time, ms", "printed number", "wall time, s", "CPU time, s"


@dataclass(slots=True)
class Runner:
    """Runs the two commands, each run in a folder of its own.

    Attributes:
        commands: of each side, as they are typed.
        folder: of the whole gate.
        pattern: finds the number in what a run prints; None: step records, otherwise the wall time.
        cpu_time: measure the CPU time of the whole command.
        timeout_s: of one run.
        say: is told each run's value.
    """

    commands: dict[Side, str]
    folder: Path
    pattern: re.Pattern[str] | None
    cpu_time: bool
    timeout_s: float
    say: Callable[[str], object]
    runs: list[GateRun] = field(default_factory=list)
    measured: str = ""

    def run(self, side: Side, block: int) -> float:
        """Run one side and measure it.

        Raises:
            ArtefactError: the run failed, or gave no number.
        """
        folder = self.folder / f"{len(self.runs):03}_{side}"
        folder.mkdir(parents=True)
        began, before = time.monotonic(), _children_cpu_s()
        output = self._execute(self.commands[side], folder)
        wall_s, cpu_s = time.monotonic() - began, _children_cpu_s() - before
        value, what = (cpu_s, CPU) if self.cpu_time else self._value(folder, output, wall_s)
        if self.measured not in ("", what):
            raise ArtefactError(
                f"{folder}: this run gave the {what}, but earlier runs gave the {self.measured}",
                "both commands must leave step records, or neither",
            )
        self.measured = what
        self.runs.append(GateRun(side=side, block=block, value=value, folder=str(folder)))
        self.say(f"{'before' if not block else f'block {block}'}  {side}  {value:.6g}")
        return value

    def _execute(self, command: str, folder: Path) -> Path:
        output = folder / "output.txt"
        hooks = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
        environment = {
            **os.environ,
            names.RUN_DIR: str(folder.resolve()),
            names.INSTRUMENT: "auto",
            "PYTHONPATH": hooks,
        }
        with output.open("wb") as stream:
            process = subprocess.Popen(
                shlex.split(command),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                code = process.wait(self.timeout_s)
            except BaseException as error:
                _end(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise ArtefactError(
                        f"{command}: did not end within {self.timeout_s:g} s", "allow more with --timeout"
                    ) from None
                raise
        if code != 0:
            raise ArtefactError(f"{command}: ended with exit status {code}", f"see its output in {output}")
        return output

    def _value(self, folder: Path, output: Path, wall_s: float) -> tuple[float, str]:
        if self.pattern is not None:
            found = self.pattern.findall(output.read_text(encoding="utf-8", errors="replace"))
            try:
                value = float(found[-1])
            except (IndexError, TypeError, ValueError):
                value = 0.0
            if value <= 0:
                raise ArtefactError(
                    f"{output}: {self.pattern.pattern!r} matches no positive number",
                    "the pattern needs one group, such as --metric 'step_ms=([0-9.]+)'",
                )
            return value, PRINTED
        times = step_times(read_steps(RunDir(folder)).by_rank)
        steady = [ms for ms, kept in zip(times.ms, times.steady, strict=True) if kept] if times else []
        return (median(steady), STEP) if steady else (wall_s, WALL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all that it started: `srun` that is asked to end cancels its job."""
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):  # what the command itself left behind
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _children_cpu_s() -> float:
    """The CPU time of all processes that this one started and that ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def decide(gate: SequentialTest, runner: Runner) -> GateResult:
    """Run blocks until the gate has decided; the first run of each side only warms caches up."""
    for side in ("A", "B"):
        runner.run(side, 0)
    while not gate.decided:
        measured: dict[str, list[float]] = {"A": [], "B": []}
        for name in gate.order():
            measured[name].append(runner.run("A" if name == "A" else "B", gate.blocks + 1))
        gate.add(measured["A"], measured["B"])
    return GateResult(
        a=runner.commands["A"],
        b=runner.commands["B"],
        measured=runner.measured,
        limit=gate.plan.limit,
        slower=gate.slower,
        decided=gate.sure,
        ratio=gate.ratio,
        log_ratios=gate.values,
        evidence=gate.evidence,
        runs=runner.runs,
        cause=_cause(runner) if gate.slower and runner.measured == STEP else None,
    )


def _cause(runner: Runner) -> GateCause | None:
    """Returns what grew most between the middle runs of both sides; None where the records do not tell."""
    from aorta.commands._before_after import compare, read_side

    before, after = (_middle(runner.runs, side) for side in ("A", "B"))
    found, _ = compare(before, after)
    parts = [
        part for part in found.pairs[0].parts if part.before_ms is not None and part.after_ms is not None
    ]
    if not parts:
        return None
    most = max(parts, key=lambda part: (part.after_ms or 0.0) - (part.before_ms or 0.0))
    (side,) = read_side(after).values()
    wheres = [finding.where for finding in side.analysis.findings if finding.where is not None]
    return GateCause(
        part=most.name,
        before_ms=most.before_ms or 0.0,
        after_ms=most.after_ms or 0.0,
        verdict=found.pairs[0].after_verdict,
        ranks=side.analysis.verdict.ranks,
        where=f"{wheres[0].function} ({wheres[0].file}:{wheres[0].line})" if wheres else None,
    )


def _middle(runs: list[GateRun], side: str) -> Path:
    own = sorted((run for run in runs if run.side == side and run.block), key=lambda run: run.value)
    return Path(own[len(own) // 2].folder)
