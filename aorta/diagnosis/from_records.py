"""A run's step records, monitors and accounting to an observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from statistics import fmean
from typing import Any

import msgspec

from aorta.artefacts.analysis import Analysis, DataQuality, RankBreakdown, Throughput
from aorta.artefacts.unseen import BetweenSteps
from aorta.diagnosis.capture_window import detail_note, overhead_note
from aorta.diagnosis.facts import facts_of, repeats_beside
from aorta.diagnosis.findings.between_steps import culprits
from aorta.diagnosis.hang import hang_of_run
from aorta.diagnosis.model import modelled
from aorta.diagnosis.observation import (
    Observation,
    ObservedDevices,
    ObservedHost,
    ObservedJob,
    ObservedNodes,
    ObservedSteps,
    RunFacts,
)
from aorta.diagnosis.policy import CROSS_CHECK_TOLERANCE
from aorta.diagnosis.rank import rank_costs
from aorta.metrics.allocator import allocator_use
from aorta.metrics.blame import BlameTable, blame
from aorta.metrics.breakdown import breakdown_table
from aorta.metrics.collectives import MatchedCollectives, match_collectives
from aorta.metrics.collector_pauses import collector_pauses
from aorta.metrics.detail_cost import detail_cost
from aorta.metrics.host_gaps import host_gaps
from aorta.metrics.launches import recorded_launches
from aorta.metrics.mesh import mesh_of
from aorta.metrics.node_load import crowded, driver_busy, node_loads, throttling
from aorta.metrics.places import where
from aorta.metrics.recorded_mesh import recorded_operations
from aorta.metrics.stalls import FEWEST, longest_stall
from aorta.metrics.steady import Steady, steady_steps
from aorta.metrics.throughput import between_steps_share, between_steps_shares, counted, throughput
from aorta.metrics.utilization import (
    Sampled,
    effective_gpu_utilization,
    sampled,
    steady_windows,
    utilization,
)
from aorta.readers.run import RunData
from aorta.readers.run_identity import clocks, knobs, nodes_of
from aorta.readers.run_quality import cores_shared, data_quality
from aorta.units import plural

# Who of the others was last says nothing: a rank without records may have been later.
_MISSING = "records of ranks are missing, and waiting for those cannot be told from transfer"


def from_records(data: RunData, others: Sequence[Analysis] = ()) -> Observation:
    """Returns what a run directory holds without its traces, as an observation.

    Args:
        data: what was read.
        others: analyses of other runs; those that repeat this one say by how much runs of it differ.
    """
    by_rank, account = data.records.by_rank, data.account
    steady = steady_steps(by_rank)
    detailed = steady.detailed()
    missing = data.ranks_expected is None or len(by_rank) < data.ranks_expected
    collectives = _MISSING if missing else _collectives(data, steady)
    # A rate without some ranks would be too low by an unknown share.
    complete = bool(by_rank) and len(by_rank) == data.ranks_expected
    rate = throughput(steady) if complete else None
    cuda = any(steps.labels[0].device.startswith("cuda") for steps in by_rank.values())
    facts = facts_of(data, rate, detail_cost(steady), cuda=cuda)
    steps = _steps(data, steady, collectives, facts)
    rows = steps.breakdown.per_rank
    quality = _quality(data, steady, steps, facts)
    last = {rank: int(column.column("global_step")[-1]) for rank, column in by_rank.items() if len(column)}
    lines = collectives.lines if isinstance(collectives, MatchedCollectives) else {}
    pipeline = None if missing else recorded_operations(by_rank, detailed.numbers, lines)
    mesh = mesh_of(pipeline) if pipeline is not None else None
    facts = replace(
        facts,
        hang=hang_of_run(data.standstills, state=quality.state, last_steps=last),
        between_steps=_between(steps),
        mesh=mesh.mesh if mesh is not None else None,
        slowdown=mesh.slowdown if mesh is not None else None,
    )
    sampled_parts = _sampled(data, steady, rows if cuda else [], rate)
    return Observation(
        job=ObservedJob(
            config=knobs(data),
            cuda=cuda,
            world_size=data.ranks_expected or len(by_rank),
            hosts={rank: column[-1:].labels[0].host for rank, column in by_rank.items()},
            machines=_machines(data),
            cpus_usable=min((info.cpus_usable for info in account.infos.values()), default=None),
            ranks_missing=missing,
            known=bool(account.manifest or account.status or data.accounting.attempts),
        ),
        steps=steps,
        **sampled_parts,
        mesh=mesh,
        stall=longest_stall(by_rank, data.stops),
        recorded_steps=any(len(column) >= FEWEST for column in by_rank.values()),
        model=modelled(collectives, detailed.numbers, [row.step_ms for row in rows], nodes_of(data)),
        repeats=repeats_beside(facts, quality.detailed_steps is None, others),
        facts=facts,
        quality=quality if facts.shared_machine else _beside_others(quality, sampled_parts["around"]),
    )


def _steps(
    data: RunData, steady: Steady, collectives: MatchedCollectives | str, facts: RunFacts
) -> ObservedSteps:
    """Returns where the step goes by the records, and whom ranks wait for."""
    detailed = steady.detailed()
    charged = _charged(collectives, detailed)
    waits = charged if isinstance(charged, BlameTable) else None
    breakdown = breakdown_table(detailed, waits.wait_ns if waits else None)
    of_detail = detail_note(facts.detail_cost) if len(steady) else []
    return ObservedSteps(
        breakdown=breakdown,
        costs=rank_costs(breakdown.per_rank, waits),
        waits=waits,
        blame_absent=charged if isinstance(charged, str) else None,
        steady=len(steady),
        between_share=between_steps_share(steady),
        between_shares=between_steps_shares(steady),
        **_loader(data),
        notes=(*_notes(charged, data.ranks_expected), *of_detail),
    )


def _between(steps: ObservedSteps) -> list[BetweenSteps]:
    """Returns the time between steps, of which no record says what it was."""
    share = steps.between_share
    if not share or not steps.costs or share >= 1.0:
        return []
    lost = steps.step_ms * share / (1.0 - share)
    return [BetweenSteps(phase="not recorded", ms=lost, ranks=culprits(steps.between_shares))]


def _quality(data: RunData, steady: Steady, steps: ObservedSteps, facts: RunFacts) -> DataQuality:
    """Returns what a reader must know before the findings."""
    of_detail = detail_note(facts.detail_cost) if len(steady) else []
    blamed = steps.notes[: len(steps.notes) - len(of_detail)]
    said = [*overhead_note(facts.profiler_overhead), *of_detail]
    if facts.throughput is None:
        lacks = "it needs steady steps of every rank" if counted(steady) else "no samples were counted"
        said.append(f"throughput is not measurable: {lacks}")
    quality = data_quality(
        data,
        facts.throughput,
        blamed,
        steady=len(steady),
        detailed=steady.detailed_steps,
        tolerance=CROSS_CHECK_TOLERANCE,
    )
    made: DataQuality = msgspec.structs.replace(quality, notes=[*quality.notes, *said])
    return made


def _beside_others(quality: DataQuality, around: ObservedNodes) -> DataQuality:
    """Returns the quality with the load of other programs first, where it kept CPUs from the job."""
    full = crowded(around.loads, around.cpus_machine)
    if not full:
        return quality
    host = max(full, key=full.__getitem__)
    note = (
        f"other programs used {full[host]:.1f} of {around.cpus_machine[host]} CPUs of {host}, and hardly one "
        "was free: times contain waiting for a core, and every interval is of this run alone"
    )
    made: DataQuality = msgspec.structs.replace(quality, others_cpus=full[host], notes=[note, *quality.notes])
    return made


def _sampled(
    data: RunData, steady: Steady, rows: list[RankBreakdown], rate: Throughput | None
) -> dict[str, Any]:
    """Returns the parts of the observation that stand on monitor samples."""
    seen = sampled(steady_windows(steady), data.gpu, data.cpu)
    effective, per_second = effective_gpu_utilization(rows), rate.samples_per_s if rate else None
    return {
        "host": _host(data, steady, seen),
        "monitored": ObservedDevices(
            utilization=utilization(seen, effective, per_second) if len(steady) else None,
            allocator=allocator_use(steady.detailed()),
            memory_estimate=data.accounting.memory,
        ),
        "around": _surroundings(data, steady, seen),
    }


def _machines(data: RunData) -> dict[int, str]:
    """Returns each rank's machine; empty where a node does not say which machine it is."""
    known = {info.host: info.machine for info in data.account.infos.values() if info.machine}
    hosts = {rank: steps[-1:].labels[0].host for rank, steps in data.records.by_rank.items()}
    return {rank: known[host] for rank, host in hosts.items()} if known.keys() >= set(hosts.values()) else {}


def _collectives(data: RunData, steady: Steady) -> MatchedCollectives | str:
    """Returns all ranks on one clock with their collectives, or why they cannot be."""
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


def _charged(collectives: MatchedCollectives | str, detailed: Steady) -> BlameTable | str:
    """Returns waits charged to ranks, or why they cannot be."""
    if isinstance(collectives, str):
        return collectives
    if len(collectives.timelines) < 2:
        return "fewer than two ranks left steady steps"
    return blame(collectives, detailed.numbers)


def _notes(charged: BlameTable | str, expected: int | None) -> list[str]:
    if isinstance(charged, str):
        return [f"waits are not charged to ranks: {charged}"] if expected != 1 else []
    if not charged.unmatched:
        return []
    calls = plural(charged.unmatched, "call of a collective", "calls of collectives")
    return [f"{calls} without a partner on another rank: not blamed"]


def _loader(data: RunData) -> dict[str, Any]:
    """Returns whether hooks saw a loader, and where it may be if they did not; empty without hooks."""
    hooked = [one for one in data.instruments.values() if one.note is None]
    if not hooked or any("loader" in one.seen for one in hooked):
        return {}
    place = where(data.instruments, (), ("other",))
    most = f", most of it in {place.function}, {PurePath(place.file).name} line {place.line}" if place else ""
    return {
        "loader_marked": False,
        "loader_absent": f"the program uses no DataLoader: loading, if any, is part of host work{most}",
        "loader_remedy": "load with torch.utils.data.DataLoader, or record with StepRecorder's data()",
    }


def _host(data: RunData, steady: Steady, seen: Sampled) -> ObservedHost:
    """Returns what the records and the monitors tell of the host's part; parts are of the detailed steps."""
    detailed, busy = steady.detailed(), driver_busy(seen.gpus)
    counters = [None if uuid is None else busy.get(uuid) for uuid in _uuids(steady).values()]
    known = [pct for pct in counters if pct is not None]
    gaps = host_gaps(detailed.by_rank)
    return ObservedHost(
        gap=gaps[0] if gaps else None,
        launches=recorded_launches(data.records.by_rank, detailed),
        stacks=data.instruments,
        collector=collector_pauses(detailed.by_rank),
        driver_busy_pct=fmean(known) if known and len(known) == len(counters) else None,
    )


def _surroundings(data: RunData, steady: Steady, seen: Sampled) -> ObservedNodes:
    """Returns what the monitors saw on the nodes within the steady window."""
    infos, slowed, shared = data.account.infos.values(), throttling(seen.gpus), cores_shared(data)
    return ObservedNodes(
        loads=node_loads(seen.hosts),
        throttling={
            rank: slowed[uuid] for rank, uuid in _uuids(steady).items() if uuid is not None and uuid in slowed
        },
        cpus_machine={info.host: info.cpus_machine for info in infos if info.cpus_machine},
        cores_shared=shared[0] if shared else None,
    )


def _uuids(steady: Steady) -> dict[int, str | None]:
    """Returns each rank's GPU."""
    return {rank: steps[-1:].labels[0].device_uuid for rank, steps in steady.by_rank.items() if len(steps)}
