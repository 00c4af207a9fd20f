"""Runs that repeat one another: the same scenario and size, program, settings and batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.measured import Throughput
from aorta.artefacts.names import LOCAL
from aorta.metrics.another_run import Repeat, doubt_of


@dataclass(frozen=True, slots=True)
class Ran:
    """The properties of a run that its repeats must agree in."""

    scenario: str | None
    world_size: int | None
    program: str | None
    settings: dict[str, str | int | float | bool | None] | None
    batches: tuple[int, int] | None
    """Samples per step of all ranks, and of one; None without a rate."""
    profiled: bool
    """Steps of it were recorded by a profiler, which costs time."""
    detailed: bool
    """All of its steps were timed part by part, which does, too."""
    local: bool
    """Processes of one machine, and no cluster's job."""

    @classmethod
    def of(cls, analysis: Analysis) -> Ran:
        """Properties of an analysed run."""
        return cls(
            scenario=analysis.scenario,
            world_size=analysis.world_size,
            program=analysis.program,
            settings=analysis.settings,
            batches=batches(analysis.throughput),
            profiled=analysis.profiler_overhead is not None,
            detailed=analysis.data_quality.detailed_steps is None,
            local=is_local(analysis.job_id),
        )

    @property
    def known(self) -> bool:
        """Nothing that must agree is missing: what is not known is the same as nothing else."""
        return None not in (self.scenario, self.world_size, self.program, self.settings, self.batches)


def is_local(job_id: str | None) -> bool:
    """True if no cluster ran the job of that id."""
    return job_id is not None and job_id.startswith(LOCAL)


def batches(rate: Throughput | None) -> tuple[int, int] | None:
    """Samples of a step: of all ranks, and of one; None without a rate."""
    return None if rate is None else (rate.global_batch, rate.per_rank_batch)


def is_valid(analysis: Analysis) -> bool:
    """True if a run may stand beside others: it completed, and its throughput was measured on all ranks."""
    return (
        analysis.scenario is not None
        and analysis.throughput is not None
        and analysis.data_quality.state == "completed"
        and analysis.world_size is not None
        and analysis.data_quality.ranks_seen == analysis.world_size
        and analysis.verdict.kind != "insufficient_data"
    )


def repeats_of(ran: Ran, job_id: str | None, others: Iterable[Analysis]) -> list[Analysis]:
    """The valid ones of `others` that are the same again; not the job itself."""
    return [
        item
        for item in others
        if ran.known and item.job_id != job_id and is_valid(item) and Ran.of(item) == ran
    ]


def undisturbed(analysis: Analysis) -> Repeat | None:
    """A run without the costliest cause that was found in it. None if there is no rate, or if the
    uncertainty of the removed part is not known.

    A cause that was found says why the run was slow, so that what it took is nothing that varies by chance.
    """
    rate = analysis.throughput
    if rate is None:
        return None
    step = rate.step_ms_median if rate.step_ms_mean is None else rate.step_ms_mean
    predictions = analysis.replay.predictions if analysis.replay else []
    most = max(predictions, key=lambda item: item.speedup, default=None)
    if most is None or most.speedup <= 1.0:
        return Repeat(step)
    interval = most.alone_interval or most.speedup_interval
    if interval is None or most.bound:
        return None
    return Repeat(step / most.speedup, doubt_of(interval, most.speedup))
