"""Facts of a run that the analysis repeats without judging them, and the other runs that repeat that run."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.artefacts.analysis import Analysis, RunFacts
from aorta.artefacts.measured import DetailCost, Throughput
from aorta.diagnosis.capture_window import overhead_of
from aorta.diagnosis.program import program, settings
from aorta.metrics.another_run import Repeat
from aorta.metrics.repeats import Ran, batches, is_local, repeats_of, undisturbed
from aorta.readers.run import RunData
from aorta.readers.run_identity import job_id, knobs, scenario, uses_cuda


def facts_of(data: RunData, rate: Throughput | None, detail: DetailCost | None) -> RunFacts:
    """Returns the facts of a run."""
    manifest = data.account.manifest
    device = ("cuda" if uses_cuda(data) else "cpu") if data.records.by_rank else None
    return RunFacts(
        scenario=scenario(data.run, manifest.scenario if manifest else None),
        job_id=manifest.job_id if manifest else job_id(data.run),
        nodes=data.account.nodes_expected,
        world_size=data.ranks_expected,
        shared_machine=manifest.shared_machine if manifest else False,
        device=device,
        started_wall_ns=manifest.started_wall_ns if manifest else None,
        program=program(manifest),
        settings=settings(manifest, knobs(data), device),
        throughput=rate,
        profiler_overhead=overhead_of(data),
        detail_cost=detail,
    )


def repeats_beside(facts: RunFacts, detailed: bool, others: Sequence[Analysis]) -> tuple[Repeat, ...]:
    """Returns what other runs of the same thing took without their costliest cause."""
    ran = Ran(
        scenario=facts.scenario,
        world_size=facts.world_size,
        program=facts.program,
        settings=facts.settings,
        batches=batches(facts.throughput),
        profiled=facts.profiler_overhead is not None,
        detailed=detailed,
        local=is_local(facts.job_id),
    )
    found = [undisturbed(item) for item in repeats_of(ran, facts.job_id, others)]
    return tuple(item for item in found if item is not None)
