"""Step records: `rank_<rank>_metrics.jsonl` to `Step`s, broken lines counted and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aorta.artefacts.analysis import Problem
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import MAX_RANKS
from aorta.artefacts.steps import Step

_MOST = 2**62
"""ns and counts from here on are no measurement; sums of two stay within 64 bits."""


@dataclass(frozen=True, slots=True)
class StepRecords:
    """The step records of one attempt of a run."""

    by_rank: Mapping[int, tuple[Step, ...]]
    """Steps of each rank by global step, which occurs once."""
    problems: tuple[Problem, ...]


def read_steps(run: RunDir, attempt: int | None = None) -> StepRecords:
    """The step records of every rank.

    Args:
        run: the run directory.
        attempt: the attempt to keep; None: the last one that any record is of.

    A line that is not a step record costs that line; the problems name the file, the first line, the number.
    """
    problems: list[Problem] = []
    raw = {rank: _read_file(path, rank, problems) for rank, path in run.all_records().items()}
    attempts = {step.attempt for steps in raw.values() for step in steps}
    if attempt is None and attempts:
        attempt = max(attempts)
    by_rank = {}
    for rank, steps in raw.items():
        name = run.records(rank).name
        kept = [step for step in steps if step.attempt == attempt]
        if len(kept) < len(steps):
            older = f"{len(steps) - len(kept)} records of another attempt than {attempt} left out"
            problems.append(Problem(file=name, reason=older))
        if kept:
            by_rank[rank] = _once_each(name, kept, problems)
    return StepRecords(by_rank=by_rank, problems=tuple(problems))


def _read_file(path: Path, rank: int, problems: list[Problem]) -> list[Step]:
    try:
        data = path.read_bytes()
    except OSError as error:
        problems.append(Problem(file=path.name, reason=f"cannot be read: {error.strerror}"))
        return []
    decoder = msgspec.json.Decoder(Step)
    steps: list[Step] = []
    broken: list[tuple[int, str]] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            step = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            broken.append((number, str(error)))
            continue
        except RecursionError:
            broken.append((number, "nested too deeply"))
            continue
        wrong = _contradiction(step, rank)
        if wrong:
            broken.append((number, wrong))
        else:
            steps.append(step)
    if broken:
        problems.append(Problem(file=path.name, reason=_broken_lines(broken)))
    elif not steps:
        problems.append(Problem(file=path.name, reason="holds no step record"))
    return steps


def _contradiction(step: Step, rank: int) -> str | None:
    """What makes a well-formed record unusable."""
    if step.rank != rank:
        return f"is of rank {step.rank}, not {rank}"
    if not rank < step.world_size <= MAX_RANKS:
        return f"is of rank {rank} in a world of {step.world_size}"
    times = (step.wall_start_ns, step.wall_end_ns, step.mono_start_ns, step.mono_end_ns)
    if (
        min(step.global_step, step.samples, *times) < 0
        or max(step.global_step, step.samples, *times) >= _MOST
    ):
        return f"step {step.global_step} has a time or count that cannot be"
    if step.duration_ns <= 0:
        return f"step {step.global_step} ends before it starts"
    return _breakdown_contradiction(step)


def _breakdown_contradiction(step: Step) -> str | None:
    parts = step.breakdown
    if parts is not None:
        copy = parts.exposed_copy_ns or 0
        each = (parts.compute_ns, parts.exposed_comm_ns, copy, parts.data_wait_ns, parts.host_ns)
        if min(*each, parts.comm_ns, parts.hidden_comm_ns) < 0:
            return f"a part of step {step.global_step} is negative"
        if parts.hidden_comm_ns > parts.comm_ns:
            hidden = f"{parts.hidden_comm_ns} ns of {parts.comm_ns} ns"
            return f"communication of step {step.global_step} contradicts itself: {hidden} are hidden"
        total = sum(each)
        if total != step.duration_ns:
            return f"parts of step {step.global_step} sum to {total} ns, the step is {step.duration_ns} ns"
    return None


def _broken_lines(broken: list[tuple[int, str]]) -> str:
    line, reason = broken[0]
    if len(broken) == 1:
        return f"line {line} is not usable: {reason}"
    return f"{len(broken)} lines are not usable; the first is line {line}: {reason}"


def _once_each(name: str, steps: list[Step], problems: list[Problem]) -> tuple[Step, ...]:
    """Steps by number; where one occurs twice, two runs wrote the file and the later one counts."""
    last = {step.global_step: step for step in steps}
    if len(last) < len(steps):
        twice = len(steps) - len(last)
        problems.append(
            Problem(file=name, reason=f"{twice} steps occur more than once; the last of each counts")
        )
    return tuple(last[number] for number in sorted(last))
