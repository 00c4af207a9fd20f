"""A run's data to its `Analysis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from aorta.artefacts.analysis import Analysis, DataQuality, DetailCost, Throughput
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.step_columns import StepColumns
from aorta.config.schema import Config
from aorta.diagnosis.capture_window import detail_note, overhead_note, overhead_of
from aorta.diagnosis.context import Context
from aorta.diagnosis.evidence import evidence_of, steady_windows
from aorta.diagnosis.model import modelled
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.program import program, settings
from aorta.diagnosis.quality import data_quality
from aorta.diagnosis.rank import blame_list, rank_costs
from aorta.diagnosis.rules import RULES
from aorta.diagnosis.run_traces import RunTraces
from aorta.diagnosis.traced_run import Recorded, joined, traced_run
from aorta.diagnosis.verdict import conclude
from aorta.errors import ArtefactError
from aorta.metrics.allocator import allocator_use
from aorta.metrics.blame import BlameTable, blame
from aorta.metrics.breakdown import breakdown_table
from aorta.metrics.collectives import Collectives, match_collectives
from aorta.metrics.detail_cost import detail_cost
from aorta.metrics.repeats import Ran, batches, is_local, repeats_of, undisturbed
from aorta.metrics.steady import Steady, steady_steps
from aorta.metrics.throughput import between_steps_share, throughput
from aorta.metrics.utilization import effective_gpu_utilization, sampled, utilization
from aorta.readers.run import RunData
from aorta.units import NS_PER_S, plural

# Who of the others was last says nothing: a rank without records may have been later.
_MISSING = "records of ranks are missing, and waiting for those cannot be told from transfer"


_MINUTE_NS = 60 * NS_PER_S


def analyse(data: RunData, traces: RunTraces | None = None, others: Sequence[Analysis] = ()) -> Analysis:
    """Metrics, findings and verdict of one run; whatever is missing, there is an answer.

    Args:
        data: what the run directory holds.
        traces: of the run's ranks. Where they cover all of them, breakdown, waits and verdict are theirs;
            throughput is always the records'.
        others: analyses of other runs; those that repeat this one say by how much runs of it differ.
    """
    manifest, expected = data.account.manifest, data.ranks_expected
    by_rank = data.records.by_rank
    policy = Policy.of(data.account.config)
    steady = steady_steps(by_rank)
    detailed = steady.detailed()
    missing = expected is None or len(by_rank) < expected
    collectives = _MISSING if missing else _collectives(data, steady)
    charged = _blame(collectives, detailed)
    waits = charged if isinstance(charged, BlameTable) else None
    breakdown = breakdown_table(detailed, waits.wait_ns if waits else None)
    cuda = any(steps.labels[0].device.startswith("cuda") for steps in by_rank.values())
    # A rate without some ranks would be too low by an unknown share.
    complete = bool(by_rank) and len(by_rank) == expected
    rate = throughput(steady) if complete else None
    seen = sampled(steady_windows(steady), data.gpu, data.cpu)
    effective = effective_gpu_utilization(breakdown.per_rank if cuda else [])
    context = Context(
        policy=policy,
        config=_knobs(data),
        cuda=cuda,
        world_size=expected or len(by_rank),
        breakdown=breakdown,
        steady_steps=len(steady),
        costs=rank_costs(breakdown.per_rank, waits),
        blame_absent=charged if isinstance(charged, str) else None,
        utilization=utilization(seen, effective) if len(steady) else None,
        allocator=allocator_use(detailed),
        memory_estimate=data.accounting.memory,
        hosts={rank: steps[-1:].labels[0].host for rank, steps in by_rank.items()},
        cpus_usable=min((info.cpus_usable for info in data.account.infos.values()), default=None),
        ranks_missing=missing,
        between_steps=between_steps_share(steady),
        evidence=evidence_of(data, steady, seen),
        model=modelled(
            collectives, detailed.numbers, [row.step_ms for row in breakdown.per_rank], nodes_of(data)
        ),
        job_known=manifest is not None or data.account.status is not None or bool(data.accounting.attempts),
    )
    quality = data_quality(data, policy, steady, rate, _notes(charged, expected))
    measured = _Measured(rate, detail_cost(steady))
    by_records = _analysis(data, context, quality, measured, waits=waits, others=others)
    recorded = Recorded(by_rank, expected, nodes_of(data), boot_epochs(data))
    run = traced_run(traces, context, recorded) if traces is not None else None
    if run is None:
        return by_records
    made = by_records
    if run.stands is not None:
        quality = data_quality(data, policy, steady, rate, [])
        context, waits = run.stands.context, run.stands.waits
        made = _analysis(data, context, quality, measured, waits=waits, others=others)
    return joined(made, by_records, run)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Of the steady steps as the records have them, whatever the breakdown is of."""

    rate: Throughput | None
    detail: DetailCost | None


def _analysis(
    data: RunData,
    context: Context,
    quality: DataQuality,
    measured: _Measured,
    *,
    waits: BlameTable | None,
    others: Sequence[Analysis],
) -> Analysis:
    """What the rules make of a context."""
    manifest = data.account.manifest
    overhead = overhead_of(data)
    device = ("cuda" if context.cuda else "cpu") if data.records.by_rank else None
    job_id = manifest.job_id if manifest else _job_id(data.run)
    ran = Ran(
        scenario=_scenario(data.run, manifest.scenario if manifest else None),
        world_size=data.ranks_expected,
        program=program(manifest),
        settings=settings(manifest, context.config, device),
        batches=batches(measured.rate),
        profiled=overhead is not None,
        detailed=quality.detailed_steps is None,
        local=is_local(job_id),
    )
    repeats = [undisturbed(item) for item in repeats_of(ran, job_id, others)]
    context = replace(context, repeats=tuple(item for item in repeats if item is not None))
    # Traces are exact whatever the records cost.
    said = [*overhead_note(overhead), *(detail_note(measured.detail) if context.steady_steps else [])]
    if measured.rate is None:
        said.append("throughput is not measurable: it needs steady steps of every rank")
    quality = msgspec.structs.replace(quality, notes=[*quality.notes, *said])
    found, model = conclude(RULES, context, quality), context.model
    return Analysis(
        scenario=ran.scenario,
        job_id=job_id,
        nodes=data.account.nodes_expected,
        world_size=ran.world_size,
        verdict=found.verdict,
        findings=found.findings,
        measured=found.measured,
        breakdown=context.breakdown,
        blame=blame_list(waits),
        throughput=measured.rate,
        utilization=context.utilization,
        data_quality=quality,
        thresholds=context.policy.as_dict(),
        shared_machine=manifest.shared_machine if manifest else False,
        device=device,
        started_wall_ns=manifest.started_wall_ns if manifest else None,
        program=ran.program,
        settings=ran.settings,
        replay=model.record(found.predictions) if model else None,
        pop=model.pop(context.breakdown.per_rank, cuda=context.cuda) if model else None,
        lateness=model.lateness if model else None,
        clocks=list(model.clocks) if model else [],
        profiler_overhead=overhead,
        detail_cost=measured.detail,
    )


def _collectives(data: RunData, steady: Steady) -> Collectives | str:
    """All ranks on one clock with their collectives, or why they cannot be."""
    by_rank, detailed = data.records.by_rank, steady.detailed()
    if not len(detailed):
        return "no steady step was timed part by part" if len(steady) else "there are no steady steps"
    # One step more than counts: what ranks did since they were last together begins there.
    first, last = detailed.numbers[0] - 1, detailed.numbers[-1]
    used = {
        rank: steps.where((steps.column("global_step") >= first) & (steps.column("global_step") <= last))
        for rank, steps in by_rank.items()
    }
    return match_collectives(used, clocks(data, used))


def _blame(collectives: Collectives | str, detailed: Steady) -> BlameTable | str:
    """Waits charged to ranks, or why they cannot be."""
    if isinstance(collectives, str):
        return collectives
    if len(collectives.timelines) < 2:
        return "fewer than two ranks left steady steps"
    return blame(collectives, detailed.numbers)


def nodes_of(data: RunData) -> dict[int, str]:
    """Each rank's node: its host name, with the node's number where hosts of several nodes share one."""
    manifest = data.account.manifest
    hosts = {rank: steps[-1:].labels[0].host for rank, steps in data.records.by_rank.items()}
    if manifest is None:
        return hosts
    names = [node.host for node in manifest.nodes]
    found, first = {}, 0
    for node in sorted(manifest.nodes, key=lambda node: node.node_index):
        unique = names.count(node.host) == 1
        name = node.host if unique else f"{node.host} (node {node.node_index})"
        found.update(dict.fromkeys(range(first, first + node.processes), name))
        first += node.processes
    return {rank: found.get(rank, host) for rank, host in hosts.items()}


def boot_epochs(data: RunData) -> dict[int, int]:
    """The wall-clock ns of each rank's boot, by which rocprofv3 counts, as its node read both clocks."""
    found: dict[int, int] = {}
    for _, info in sorted(data.account.infos.items()):
        ranks = range(len(found), len(found) + info.processes)
        found.update(dict.fromkeys(ranks, info.clock.realtime_ns - info.clock.boottime_ns))
    return found


def clocks(data: RunData, by_rank: Mapping[int, StepColumns]) -> dict[int, str]:
    """Each rank's clock, by its machine: the boot id that its node reported, otherwise its host name.

    Ranks make their steps together. Those of one machine that begin minutes apart by their own clocks are in
    time namespaces (time_namespaces(7)), which show one boot id and each another time.
    """
    machines = {info.host: info.machine or info.host for info in data.account.infos.values()}
    hosts = {rank: steps.labels[0].host for rank, steps in by_rank.items() if len(steps)}
    starts = {rank: int(by_rank[rank].column("mono_start_ns")[0]) for rank in hosts}
    first: dict[str, int] = {}
    found = {}
    for rank, host in hosts.items():
        machine = machines.get(host, host)
        minutes = round((starts[rank] - first.setdefault(machine, starts[rank])) / _MINUTE_NS)
        found[rank] = f"{machine} {minutes:+} min" if minutes else machine
    return found


def _notes(charged: BlameTable | str, expected: int | None) -> list[str]:
    notes = []
    if isinstance(charged, BlameTable):
        if charged.unmatched:
            calls = plural(charged.unmatched, "call of a collective", "calls of collectives")
            notes.append(f"{calls} without a partner on another rank: not blamed")
    elif expected != 1:
        notes.append(f"waits are not charged to ranks: {charged}")
    return notes


def _knobs(data: RunData) -> Config | None:
    """The configuration, unless the job ran a program that does not read it."""
    manifest = data.account.manifest
    if manifest is not None and manifest.plan.workload is None:
        return None
    return data.account.config


def _scenario(run: RunDir, recorded: str | None) -> str | None:
    """The manifest's scenario, otherwise the folder's exact name."""
    if recorded is not None:
        return recorded
    try:
        return Scenario(run.root.parent.name).name
    except ArtefactError:
        return None


def _job_id(run: RunDir) -> str | None:
    name = run.root.name
    return name.removeprefix("run_") if name.startswith("run_") else None
