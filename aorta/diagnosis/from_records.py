"""A run's step records, monitors and accounting to an observation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import structs
from msgspec.structs import replace

from aorta.artefacts.analysis import Analysis, DataQuality, RunFacts
from aorta.averages import fmean
from aorta.diagnosis.capture_window import detail_note, overhead_note, window_note
from aorta.diagnosis.facts import facts_of, repeats_beside
from aorta.diagnosis.findings.between_steps import recorded_gaps
from aorta.diagnosis.hang import hang_of_run
from aorta.diagnosis.model import modelled
from aorta.diagnosis.observation import (
    Observation,
    ObservedDevices,
    ObservedHost,
    ObservedJob,
    ObservedNodes,
    ObservedSteps,
)
from aorta.diagnosis.policy import CROSS_CHECK_TOLERANCE
from aorta.diagnosis.rank import rank_costs
from aorta.diagnosis.records_alone import records_alone
from aorta.diagnosis.unseen import with_unseen_passes
from aorta.metrics.allocator import allocator_use
from aorta.metrics.between_steps import Gaps, gaps_between
from aorta.metrics.blame import BlameTable, charge_notes, charged
from aorta.metrics.breakdown import breakdown_table, untimed_calls, untimed_note
from aorta.metrics.collectives import MatchedCollectives, match_steady
from aorta.metrics.collector_pauses import collector_pauses
from aorta.metrics.detail_cost import detail_cost
from aorta.metrics.expert_load import recorded_load
from aorta.metrics.host_gaps import host_gaps
from aorta.metrics.launches import recorded_launches
from aorta.metrics.mesh import mesh_of
from aorta.metrics.mesh_groups import groups_in
from aorta.metrics.node_load import crowded_note, driver_busy, node_loads, on_one_machine, throttling
from aorta.metrics.places import no_loader
from aorta.metrics.recorded_mesh import recorded_operations
from aorta.metrics.stalls import FEWEST, longest_stall
from aorta.metrics.steady import Steady, steady_steps
from aorta.metrics.throughput import counted, throughput
from aorta.metrics.utilization import effective_gpu_utilization, sampled, steady_windows, utilization
from aorta.readers.run import RunData
from aorta.readers.run_identity import clocks, hosts_of, knobs, machines_of, nodes_of, uses_cuda
from aorta.readers.run_quality import cores_shared, data_quality

# Who of the others was last says nothing: a rank without records may have been later.
_MISSING = "records of some ranks are missing, so waiting for these ranks cannot be told from transfer"


def from_records(data: RunData, others: Sequence[Analysis] = ()) -> Observation:
    """Returns what a run directory holds without its traces, as an observation.

    Args:
        data: what was read.
        others: analyses of other runs; those that repeat this one say by how much runs of it differ.
    """
    by_rank, account, expected = data.records.by_rank, data.account, data.ranks_expected
    steady = steady_steps(by_rank)
    detailed, cuda = steady.detailed(), uses_cuda(data)
    missing = expected is None or len(by_rank) < expected
    collectives = _MISSING if missing else match_steady(steady, by_rank, partial(clocks, data))
    # A rate without some ranks would be too low by an unknown share.
    rate = throughput(steady) if by_rank and len(by_rank) == expected else None
    facts = facts_of(data, rate, detail_cost(steady))
    steps = _steps(data, steady, collectives, facts)
    rows = steps.breakdown.per_rank
    lines = collectives.lines if isinstance(collectives, MatchedCollectives) else {}
    pipeline = None if missing else recorded_operations(by_rank, detailed.numbers, lines)
    devices, host, around = _monitored(data, steady, effective_gpu_utilization(rows if cuda else []), facts)
    steps = replace(steps, notes=(*window_note(host, cuda=cuda and bool(rows)), *steps.notes))
    quality = _quality(data, steady, steps, facts, around)
    model = modelled(collectives, detailed.numbers, [row.step_ms for row in rows], nodes_of(data))
    last = {rank: int(column.column("global_step")[-1]) for rank, column in by_rank.items() if len(column)}
    return Observation(
        job=ObservedJob(
            config=knobs(data),
            cuda=cuda,
            world_size=expected or len(by_rank),
            hosts=hosts_of(data),
            machines=machines_of(data),
            cpus_usable=min((info.cpus_usable for info in account.infos.values()), default=None),
            ranks_missing=missing,
            known=bool(account.manifest or account.status or data.accounting.attempts),
        ),
        steps=steps,
        host=host,
        monitored=devices,
        around=around,
        mesh=mesh_of(pipeline) if pipeline is not None else None,
        groups=groups_in(collectives, len(detailed)),
        stall=longest_stall(by_rank, data.stops),
        recorded_steps=any(len(column) >= FEWEST for column in by_rank.values()),
        model=model,
        recorded=records_alone(by_rank, steady, rows, model),
        repeats=repeats_beside(facts, quality.detailed_steps is None, others),
        facts=structs.replace(
            facts,
            hang=hang_of_run(
                data.standstills,
                data.flights,
                nodes=data.nodes_expected,
                state=quality.state,
                last_steps=last,
            ),
            between_steps=recorded_gaps(steps),
        ),
        quality=quality,
    )


def _steps(
    data: RunData, steady: Steady, collectives: MatchedCollectives | str, facts: RunFacts
) -> ObservedSteps:
    """Returns where the step goes by the records, and whom ranks wait for."""
    detailed = steady.detailed()
    charges = charged(collectives, detailed.numbers, "fewer than two ranks left steady steps")
    waits = charges if isinstance(charges, BlameTable) else None
    breakdown, unseen = with_unseen_passes(
        breakdown_table(detailed, waits.wait_ns if waits else None), data.instruments
    )
    last = steady.numbers[-1] if len(steady) else 0
    gaps = gaps_between(data.records.by_rank, steady.numbers[0], last) if len(steady) else Gaps()
    blamed = charge_notes(charges, data.ranks_expected, "call of a collective", "calls of collectives")
    return ObservedSteps(
        exchanged=recorded_load(detailed.by_rank),
        breakdown=breakdown,
        costs=rank_costs(breakdown.per_rank, waits),
        waits=waits,
        blame_absent=charges if isinstance(charges, str) else None,
        steady=len(steady),
        between_shares=gaps.shares,
        between_ms=gaps.by_phase,
        loader_absent=no_loader(data.instruments),
        unseen=unseen,
        untimed_calls=(untimed := untimed_calls(detailed)),
        notes=(*untimed_note(untimed, breakdown), *blamed, *detail_note(facts.detail_cost)),
    )


def _monitored(
    data: RunData, steady: Steady, effective_pct: float | None, facts: RunFacts
) -> tuple[ObservedDevices, ObservedHost, ObservedNodes]:
    """Returns what monitors saw in the steady window, with what the records tell of hosts and memory."""
    seen, detailed = sampled(steady_windows(steady), data.gpu, data.cpu), steady.detailed()
    rate, shared = facts.throughput, cores_shared(data)
    uuids = {r: steps[-1:].labels[0].device_uuid or "" for r, steps in steady.by_rank.items() if len(steps)}
    busy, slowed = driver_busy(seen.gpus), throttling(seen.gpus)
    counters = [busy[uuid] for uuid in uuids.values() if uuid in busy]
    use = utilization(seen, effective_pct, rate.samples_per_s if rate else None)
    devices = ObservedDevices(
        utilization=structs.replace(use, node_cores=_cores(data)) if len(steady) else None,
        allocator=allocator_use(detailed),
        memory_estimate=data.accounting.memory,
    )
    host = ObservedHost(
        gap=next(iter(host_gaps(detailed.by_rank)), None),
        launches=recorded_launches(data.records.by_rank, detailed),
        stacks=data.instruments,
        collector=collector_pauses(detailed.by_rank),
        driver_busy_pct=fmean(counters) if counters and len(counters) == len(uuids) else None,
    )
    infos = data.account.infos.values()
    loads = node_loads(seen.hosts)
    nodes = ObservedNodes(
        loads=on_one_machine(loads) if facts.shared_machine else loads,
        throttling={rank: slowed[uuid] for rank, uuid in uuids.items() if uuid in slowed},
        cpus_machine={info.host: info.cpus_machine for info in infos if info.cpus_machine},
        cores_shared=shared[0] if shared else None,
    )
    return devices, host, nodes


def _cores(data: RunData) -> float | None:
    """Returns the mean number of CPU cores per node; None where a node did not record it."""
    known = [info.cpus_machine for info in data.account.infos.values()]
    cores = [count for count in known if count]
    return fmean(cores) if cores and len(cores) == len(known) else None


def _quality(
    data: RunData, steady: Steady, steps: ObservedSteps, facts: RunFacts, around: ObservedNodes
) -> DataQuality:
    """Returns what a reader must know before the findings; load of other programs comes first."""
    timed, rate = detail_note(facts.detail_cost), facts.throughput
    said = [*overhead_note(facts.profiler_overhead), *timed]
    if rate is None:
        lacks = "it needs steady steps of every rank" if counted(steady) else "no samples were counted"
        said.append(f"throughput could not be measured: {lacks}")
    quality = data_quality(
        data,
        rate,
        steps.notes[: len(steps.notes) - len(timed)],
        steady=len(steady),
        detailed=steady.detailed_steps,
        tolerance=CROSS_CHECK_TOLERANCE,
    )
    full = crowded_note(around.loads, around.cpus_machine)
    cpus, first = (full[0], [full[1]]) if full else (None, [])
    made: DataQuality = structs.replace(quality, notes=[*first, *quality.notes, *said], others_cpus=cpus)
    return made
