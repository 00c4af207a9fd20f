"""Step records: `rank_<rank>_metrics.jsonl` to `DecodedStep`s, broken lines counted and named."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import line_blocks
from aorta.artefacts.layout import RunDir
from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.records import MAX_RANKS
from aorta.artefacts.step_columns import Label, StepColumns
from aorta.artefacts.steps import DecodedStep
from aorta.readers.parallel import Pool, side_by_side

_MOST_BROKEN, _MOST_LINES = 100_000, 20_000_000
"""Unusable lines of a file, and lines in all: no run writes as many."""
_MOST = 2**62
"""ns and counts from here on are no measurement; sums of two stay within 64 bits."""


@dataclass(frozen=True, slots=True)
class StepRecords:
    """The step records of one attempt of a run."""

    by_rank: Mapping[int, StepColumns]
    """Steps of each rank by global step, which occurs once."""
    problems: tuple[Problem, ...]


_File = tuple[int, Path]
_Found = tuple[int, StepColumns, list[Problem]]


def read_steps(
    run: RunDir, attempt: int | None = None, pool: Pool | None = None, job: str | None = None
) -> StepRecords:
    """The step records of every rank, read by as many processes as there are cores where they are many.

    Args:
        run: the run directory.
        attempt: the attempt to keep. None means the last one with a record.
        pool: processes to read with, where they are worth it. None means some of its own.
        job: id of the run's job; None, or an id that no record has: the job of most ranks.

    A line that is not a step record costs that line; the problems name the file, the first line, the number.
    """
    problems: list[Problem] = []
    raw: dict[int, StepColumns] = {}
    for rank, steps, found in side_by_side(_read_file, list(run.all_records().items()), pool):
        raw[rank] = steps
        problems += found
    job = _job(raw, job)
    attempts = {label.attempt for steps in raw.values() for label in steps.labels if label.job_id == job}
    if attempt is None and attempts:
        attempt = max(attempts)
    by_rank = {}
    for rank, steps in raw.items():
        name = run.records(rank).name
        own = _without(steps, [label for label in steps.labels if label.job_id != job])
        if len(own) < len(steps):
            other = next(label.job_id for label in steps.labels if label.job_id != job)
            reason = f"{len(steps) - len(own)} records of job {other}, not of {job}, left out"
            problems.append(Problem(file=name, reason=reason))
        kept = _without(own, [label for label in own.labels if label.attempt != attempt])
        if len(kept) < len(own):
            older = f"{len(own) - len(kept)} records of attempts other than {attempt} left out"
            problems.append(Problem(file=name, reason=older))
        if len(kept):
            by_rank[rank] = _once_each(name, kept, problems)
            problems += _went_back(name, kept)
    return StepRecords(by_rank=by_rank, problems=tuple(problems))


def _job(raw: Mapping[int, StepColumns], wanted: str | None) -> str | None:
    """Returns the job that the run's records are of: a folder that was used twice holds those of two."""
    seen = Counter(label.job_id for steps in raw.values() for label in steps.labels[-1:])
    everything = {label.job_id for steps in raw.values() for label in steps.labels}
    if wanted in everything or not seen:
        return wanted
    return seen.most_common(1)[0][0]


def _without(steps: StepColumns, labels: Sequence[Label]) -> StepColumns:
    for label in labels:
        steps = steps.where(~steps.labelled(label))
    return steps


def _went_back(name: str, steps: StepColumns) -> list[Problem]:
    """Returns that steps begin long before the one that was written ahead of them ended.

    Their clock cannot be believed.
    """
    early = steps.column("mono_end_ns")[:-1] - steps.column("mono_start_ns")[1:]
    count = int((early > np.median(steps.duration_ns) / 2).sum()) if len(steps) > 1 else 0
    if not count:
        return []
    which = "a step begins" if count == 1 else f"{count} steps begin"
    return [Problem(file=name, reason=f"{which} before the previous step ended, because its clock went back")]


def _read_file(item: _File) -> _Found:
    rank, path = item
    parts: list[StepColumns] = []
    broken = _Broken()
    reason = None
    try:
        for block in line_blocks(path):
            whole = _whole_block(block, rank)
            if whole is None:
                whole = StepColumns.of(_line_by_line(block, rank, broken))
            if len(whole):
                parts.append(whole)
            broken.line += block.count(b"\n")
            if broken.count > _MOST_BROKEN or broken.line > _MOST_LINES:
                reason = f"{broken.count:,} of {broken.line:,} lines are not usable, so the rest is not read"
                break
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    reason = reason or broken.reason or (None if parts else "contains no step record")
    steps = StepColumns.joined(parts)
    return rank, steps, [Problem(file=path.name, reason=reason)] if reason else []


@dataclass(slots=True)
class _Broken:
    """Lines of a file that are no usable record."""

    line: int = 0
    """Lines before the block that is read."""
    count: int = 0
    first: tuple[int, str] | None = None

    def add(self, line: int, reason: str) -> None:
        """Count a line of the block, from 1."""
        self.count += 1
        self.first = self.first or (self.line + line, reason)

    @property
    def reason(self) -> str | None:
        """Returns how many lines are not usable, and why the first is not; None without any."""
        if self.first is None:
            return None
        line, reason = self.first
        if self.count == 1:
            return f"line {line} is not usable: {reason}"
        return f"{self.count} lines are not usable; the first is line {line}: {reason}"


def _whole_block(data: bytes, rank: int) -> StepColumns | None:
    """The records of whole lines at once; None where a line is none, or contradicts itself."""
    try:
        found = StepColumns.of(msgspec.json.Decoder(DecodedStep).decode_lines(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return None
    return found if len(found) and _consistent(found, rank) else None


def _consistent(found: StepColumns, rank: int) -> bool:
    """True if `_contradiction` has nothing to say of any of the steps."""
    if any(label.rank != rank or not rank < label.world_size <= MAX_RANKS for label in found.labels):
        return False
    counted = found.column("samples")
    if ((counted < 0) & (counted != ABSENT)).any() or (counted >= _MOST).any():
        return False
    names = ("global_step", "wall_start_ns", "wall_end_ns", "mono_start_ns", "mono_end_ns")
    if any(((column := found.column(name)) < 0).any() or (column >= _MOST).any() for name in names):
        return False
    if not found.fits or (found.duration_ns <= 0).any():
        return False
    known = found.where(found.column("compute_ns") != ABSENT)
    copies = known.column("exposed_copy_ns")
    each = [known.column(name) for name in ("compute_ns", "exposed_comm_ns", "data_wait_ns", "host_ns")]
    each.append(np.where(copies == ABSENT, 0, copies))
    comm, hidden = known.column("comm_ns"), known.column("hidden_comm_ns")
    if any((part < 0).any() or (part >= _MOST).any() for part in (*each, comm, hidden)):
        return False
    return bool((hidden <= comm).all() and (np.sum(each, axis=0) == known.duration_ns).all())


def _line_by_line(data: bytes, rank: int, broken: _Broken) -> list[DecodedStep]:
    """The usable records; what is wrong with the others goes to `broken`."""
    decoder = msgspec.json.Decoder(DecodedStep)
    steps: list[DecodedStep] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        try:
            step = _decoded(decoder, line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            broken.add(number, str(error))
            continue
        except RecursionError:
            broken.add(number, "nested too deeply")
            continue
        wrong = _contradiction(step, rank)
        if wrong:
            broken.add(number, wrong)
        else:
            steps.append(step)
    return steps


def _decoded(decoder: msgspec.json.Decoder[DecodedStep], line: bytes) -> DecodedStep:
    """Returns the record of a line; NaN and Infinity, which are no JSON, count as not measured."""
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        try:
            found = json.loads(line, parse_constant=lambda _: None)
        except ValueError:
            raise error from None
        return msgspec.convert(found, DecodedStep)


def _contradiction(step: DecodedStep, rank: int) -> str | None:
    """Returns what makes a well-formed record unusable."""
    if step.rank != rank:
        return f"is of rank {step.rank}, not {rank}"
    if not rank < step.world_size <= MAX_RANKS:
        return f"is of rank {rank} in a world of {step.world_size}"
    times = (step.wall_start_ns, step.wall_end_ns, step.mono_start_ns, step.mono_end_ns)
    if (
        min(step.global_step, step.samples or 0, *times) < 0
        or max(step.global_step, step.samples or 0, *times) >= _MOST
        or _beyond_64_bits(step)
    ):
        return f"step {step.global_step} has an impossible time or count"
    if step.duration_ns <= 0:
        return f"step {step.global_step} ends before it starts"
    return _breakdown_contradiction(step)


def _beyond_64_bits(step: DecodedStep) -> bool:
    """True if a number is so large that no column holds it."""
    named = [item.metadata for item in step.profile.ranges if item.metadata] if step.profile else []
    parts = step.breakdown
    numbers = [step.memory_peak_bytes, step.memory_total_bytes, step.epoch]
    numbers += [step.memory_reserved_bytes, step.alloc_retries]
    numbers += [number for meta in named for number in (meta.seq, meta.bytes)]
    numbers += [getattr(parts, name) for name in parts.__struct_fields__] if parts is not None else []
    return any(abs(number) >= _MOST for number in numbers if number is not None)


def _breakdown_contradiction(step: DecodedStep) -> str | None:
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
            return (
                f"parts of step {step.global_step} add up to {total} ns, but the step takes "
                f"{step.duration_ns} ns"
            )
    return None


def _once_each(name: str, steps: StepColumns, problems: list[Problem]) -> StepColumns:
    """Steps by number; where one occurs twice, two runs wrote the file and the later one counts."""
    numbers = steps.column("global_step")
    if (np.diff(numbers) > 0).all():
        return steps
    # Of equal numbers the first one of the reversed order is the last one written.
    kept, last = np.unique(numbers[::-1], return_index=True)
    if len(kept) < len(numbers):
        twice = len(numbers) - len(kept)
        problems.append(
            Problem(
                file=name,
                reason="1 step occurs more than once; its last record is used"
                if twice == 1
                else f"{twice:,} steps occur more than once; the last record of each is used",
            )
        )
    return steps.at(len(numbers) - 1 - last)
