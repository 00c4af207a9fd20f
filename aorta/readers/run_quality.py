"""Describes what the findings stand on: how the job ended, what was read, what is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aorta.artefacts.analysis import DataQuality, Problem
from aorta.artefacts.files import is_file
from aorta.artefacts.launchers import keeps_hooks_out
from aorta.artefacts.measured import Throughput
from aorta.artefacts.records import FIRST_FAILURE, Manifest, NodeInfo, blames_peer
from aorta.readers.instruments import instrument_notes
from aorta.readers.run import RunData
from aorta.units import NS_PER_S, plural, rank_words

_STANDSTILL_S = 30
_STANDSTILL_STEPS = 20
"""Steps of the median length; together with the seconds more than saving results takes."""


def data_quality(
    data: RunData,
    rate: Throughput | None,
    notes: Sequence[str],
    *,
    steady: int,
    detailed: int | None,
    tolerance: float,
) -> DataQuality:
    """Returns everything that a reader must know before the findings.

    Args:
        data: what was read.
        rate: measured throughput, if any.
        notes: what the caller has to say, such as why no wait could be charged.
        steady: steps that are steady on all ranks.
        detailed: of these, the ones timed part by part. None means all.
        tolerance: how far throughput and mean or median step may differ before a note says so.
    """
    account = data.account
    state, disagreement = _state(data)
    seen = sorted(data.records.by_rank)
    problems = [
        *data.problems,
        *_missing_ranks(data),
        *_missing_steps(data),
        *_lost(data),
        *_missing_samples(data),
    ]
    said = [*data.accounting.notes, *disagreement, *notes, *_memory(data), *_batches(data, rate)]
    if rate is not None:
        said += _rates(rate, tolerance)
    if account.manifest is not None and account.manifest.shared_machine and len(account.manifest.nodes) > 1:
        said.append("the nodes of this run share one machine, so the run only shows how that machine scales")
    said += cores_shared(data)
    said += _hooks(data)
    said += _profilers(data)
    return DataQuality(
        ranks_expected=data.ranks_expected,
        ranks_seen=len(seen),
        sources=_sources(data),
        problems=problems,
        nodes_expected=account.nodes_expected,
        nodes_seen=len({node.node_index for node in account.status.nodes}) if account.status else 0,
        steady_steps=steady,
        detailed_steps=detailed,
        state=state,
        last_step=_last_step(data),
        standstill_s=_standstill_s(data),
        notes=said,
        failure=_failure(data),
    )


def _hooks(data: RunData) -> list[str]:
    """Returns where hooks were put into a program and did not take, or did not see everything."""
    plan = data.account.manifest.plan if data.account.manifest else None
    asked = plan is not None and plan.instrument == "auto"
    option = keeps_hooks_out(plan.command) if plan is not None else None
    return instrument_notes(data.instruments, data.ranks_expected if asked else None, option)


def _last_step(data: RunData) -> int | None:
    """The last step that every rank with records completed."""
    last = [int(steps.column("global_step")[-1]) for steps in data.records.by_rank.values() if len(steps)]
    return min(last, default=None)


def _standstill_s(data: RunData) -> float | None:
    """Returns how long the job went on after its last step, where that is far more than a step takes."""
    nodes = data.account.status.nodes if data.account.status else []
    ended = max((node.ended_wall_ns for node in nodes if node.ended_wall_ns), default=None)
    records = [steps for steps in data.records.by_rank.values() if len(steps)]
    if ended is None or not records:
        return None
    last = min(int(steps.column("wall_end_ns")[-1]) for steps in records)
    step = float(np.median(np.concatenate([steps.duration_ns for steps in records])))
    stood = ended - last
    return stood / NS_PER_S if stood > max(_STANDSTILL_S * NS_PER_S, _STANDSTILL_STEPS * step) else None


def _failure(data: RunData) -> str | None:
    """Returns what the agent of the node that ended first says of its first rank that failed.

    A rank whose error says that another one was gone comes last. Where no agent says anything, Slurm's word
    counts, such as OUT_OF_MEMORY.
    """
    nodes = data.account.status.nodes if data.account.status else []
    told = [
        (blames_peer(text), node.ended_wall_ns or 0, text.removeprefix(FIRST_FAILURE))
        for node in nodes
        for text in node.lost
        if text.startswith(FIRST_FAILURE)
    ]
    if told:
        return min(told)[-1]
    word, state = data.accounting.state_text, data.accounting.state
    plain = word is None or word.casefold() == state
    return None if plain or state in (None, "completed") else f"Slurm's accounting says {word}"


def _profilers(data: RunData) -> list[str]:
    """Returns what there is to know about the profiler on each node, each once."""
    nodes = data.account.manifest.nodes if data.account.manifest is not None else []
    told = (f"{node.profiler.resolved}: {note}" for node in nodes for note in node.profiler.notes)
    return list(dict.fromkeys(told))


def _state(data: RunData) -> tuple[str | None, list[str]]:
    """Accounting's word if it has a last one, otherwise the markers'.

    FAILED says no more than that the exit code was not 0. So it is after a job was told to end, before its
    time limit for example, and its agents know why.
    """
    markers = data.account.status.state if data.account.status else None
    accounting = data.accounting.state
    aborted = _aborted_after_the_end(data)
    if aborted and "failed" in (markers, accounting):
        return "completed", [
            f"{rank_words(aborted)} had completed all steps and was aborted while the interpreter shut down"
        ]
    if accounting is None:
        return markers, []
    notes = []
    said = data.accounting.state_text
    if said == "FAILED" and markers in ("timeout", "cancelled"):
        why = "it was told to end before its time limit" if markers == "timeout" else "it was told to end"
        return markers, [
            f"accounting says FAILED because of the exit code: {why}, according to the run's own markers"
        ]
    if markers is not None and markers != accounting:
        notes.append(f"accounting says {said}, but the run's own markers say {markers}; accounting is used")
    elif said == "OUT_OF_MEMORY":
        notes.append("accounting says OUT_OF_MEMORY: the kernel ended processes of the job")
    return accounting, notes


def _aborted_after_the_end(data: RunData) -> list[int]:
    """Returns the ranks that were aborted when the program of every rank had come to its end. Empty if there
    are none.

    torch on gloo now and then aborts while the interpreter shuts down, in plain programs too.
    """
    nodes = data.account.status.nodes if data.account.status else []
    exits = [rank for node in nodes for rank in node.ranks if rank.exit_code != 0]
    everyone = range(data.ranks_expected or 0)
    ended = all(rank in data.instruments and data.instruments[rank].ended for rank in everyone)
    aborted = [one.rank for one in exits if one.signal == "SIGABRT"]
    told = all(one.signal in ("SIGABRT", "SIGTERM") for one in exits)
    return sorted(aborted) if ended and told and everyone else []


def _missing_ranks(data: RunData) -> list[Problem]:
    expected = data.ranks_expected or 0
    missing = [rank for rank in range(expected) if rank not in data.records.by_rank]
    if not missing:
        return []
    if len(missing) == expected:
        return [Problem(file=None, reason="no rank left step records")]
    return [Problem(file=None, reason=f"{rank_words(missing)} left no step records")]


def _missing_steps(data: RunData) -> list[Problem]:
    """Steps between a rank's first and last record that have none, where the file does not say why."""
    said = {problem.file for problem in data.problems}
    most, where, ranks = 0, "", []
    for rank, steps in sorted(data.records.by_rank.items()):
        numbers = steps.column("global_step")
        missing = int(numbers[-1] - numbers[0]) + 1 - len(numbers)
        if missing and data.run.records(rank).name not in said:
            ranks.append(rank)
            at = int(np.argmax(np.diff(numbers)))
            if missing > most:
                most, where = missing, f"after step {numbers[at]} of rank {rank}"
    if not ranks:
        return []
    steps_lost = f"up to {most} steps, most of them {where}"
    reason = f"records of {rank_words(ranks)} are missing ({steps_lost}), because they could not be written"
    return [Problem(file=None, reason=reason)]


def _lost(data: RunData) -> list[Problem]:
    """Nodes and ranks that ended badly, and what their agents say is lost."""
    problems = []
    manifest, status = data.account.manifest, data.account.status
    if manifest is not None:
        problems += [
            Problem(file=None, reason=f"node {index} never reported") for index in manifest.nodes_missing
        ]
    if status is None:
        return problems
    answered = {node.node_index for node in manifest.nodes} if manifest else set()
    for index in status.nodes_missing:
        if index in answered:
            problems.append(
                Problem(
                    file=f"nodes/node{index}/status.json",
                    reason="missing, so it is not known how the job ended",
                )
            )
    for node in status.nodes:
        name = f"nodes/node{node.node_index}/status.json"
        if node.state == "running":
            problems.append(
                Problem(file=name, reason=f"{node.host} was running and never reported how it ended")
            )
        for rank in node.ranks:
            ended = f"by {rank.signal}" if rank.signal else f"with exit code {rank.exit_code}"
            if rank.signal or rank.exit_code:
                error = f": {rank.error}" if rank.error else ""
                problems.append(Problem(file=name, reason=f"rank {rank.rank} ended {ended}{error}"))
        problems += [Problem(file=name, reason=f"{node.host}: {lost}") for lost in node.lost]
    return problems


def _missing_samples(data: RunData) -> list[Problem]:
    """Nodes of the running job whose monitors left nothing where they should have."""
    problems = []
    config = data.account.config
    sampled = {
        kind: set() if table is None else set(table["node_index"].unique().tolist())
        for kind, table in (("cpu", data.cpu), ("gpu", data.gpu))
    }
    for index, info in sorted(data.account.infos.items()):
        monitor = data.account.monitors.get(index)
        for wanted, kind in (
            (config is None or config.monitor.cpu, "cpu"),
            ((config is None or config.monitor.gpu) and bool(info.gpus), "gpu"),
        ):
            if wanted and index not in sampled[kind]:
                reason = f"no samples of {info.host}"
                if kind == "gpu" and monitor is not None and monitor.gpu_reason:
                    reason += f": {monitor.gpu_reason}"
                problems.append(Problem(file=f"nodes/node{index}/{kind}_monitor.csv", reason=reason))
        if monitor is not None and monitor.missed:
            taken = monitor.samples + monitor.missed
            reason = f"{monitor.missed} of {taken} samples of {info.host} were missed"
            problems.append(Problem(file=f"nodes/node{index}/monitor_status.json", reason=reason))
    return problems


def cores_shared(data: RunData) -> list[str]:
    """Ranks that want more CPUs than they may use wait for a core in the middle of whatever is timed."""
    manifest, notes = data.account.manifest, []
    # Where a GPU computes, one thread of a rank is busy.
    gpus = any(steps[-1:].labels[0].device != "cpu" for steps in data.records.by_rank.values())
    for nodes in _sharing_cpus(manifest) if manifest is not None else ():
        ranks = sum(node.processes for node in nodes)
        threads = 1 if gpus else max(_threads(data, node) for node in nodes)
        cpus = min(node.cpus_usable for node in nodes)
        if ranks > 1 and ranks * threads > cpus:
            each = f" with {threads} threads each" if threads > 1 else ""
            shared = plural(cpus, "CPU")
            notes.append(
                f"{ranks} ranks{each} share {shared}: times include waiting for a core, and so does "
                "exposed communication"
            )
    return list(dict.fromkeys(notes))


def _sharing_cpus(manifest: Manifest) -> list[list[NodeInfo]]:
    """The nodes in groups that run on the same CPUs.

    Nodes of one machine do unless the scheduler gave each a part of it; the local executor never does.
    """
    groups: dict[object, list[NodeInfo]] = {}
    for node in manifest.nodes:
        parted = node.cpus_machine is not None and node.cpus_usable < node.cpus_machine
        alone = node.machine is None or (parted and manifest.executor != "local")
        groups.setdefault(node.node_index if alone else node.machine, []).append(node)
    return list(groups.values())


def _threads(data: RunData, node: NodeInfo) -> int:
    """Busy threads of a rank of `node` without a GPU: one where the agent divided the CPUs."""
    config, manifest = data.account.config, data.account.manifest
    ours = manifest is not None and manifest.plan.workload is not None
    if ours and config is not None and config.training.cpu_threads:
        return config.training.cpu_threads
    outermost = node.environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(outermost) if outermost.isdigit() and int(outermost) > 0 else 1


def _memory(data: RunData) -> list[str]:
    estimate = data.accounting.memory
    if estimate is None:
        return []
    return [
        f"host memory by accounting: about {estimate.used_pct:.0f} % of the request, an upper estimate "
        f"({estimate.tasks} tasks × the largest task's MaxRSS)"
    ]


def _batches(data: RunData, rate: Throughput | None) -> list[str]:
    """Records must count samples of their own rank; then they agree with the configured batch."""
    config, manifest = data.account.config, data.account.manifest
    if rate is None or config is None or manifest is None or manifest.plan.workload is None:
        return []
    configured = config.training.batch_size * config.training.gradient_accumulation
    if rate.per_rank_batch == configured:
        return []
    return [
        f"a step record counts {rate.per_rank_batch} samples of a rank, although training.batch_size × "
        f"gradient_accumulation is {configured}: throughput is only as accurate as that count"
    ]


def _rates(rate: Throughput, tolerance: float) -> list[str]:
    """Doubts on the measured rate: does it fit the steps, and does the median step stand for them?"""
    notes = []
    if rate.step_ms_mean and rate.global_batch:
        of_mean = rate.samples_per_s * rate.step_ms_mean / 1000.0 / rate.global_batch
        if abs(of_mean - 1.0) > tolerance:
            share = 100.0 * (1.0 - of_mean)
            notes.append(
                f"throughput is {of_mean:.2f} times global batch / mean step: {share:.0f} % of the time is "
                "between steps"
            )
        if rate.step_ms_mean > (1.0 + tolerance) * rate.step_ms_median:
            notes.append(
                f"some steps are far slower than the rest: the mean step takes {rate.step_ms_mean:.1f} ms, "
                f"the median step {rate.step_ms_median:.1f} ms"
            )
    return notes


def _sources(data: RunData) -> list[str]:
    run, count = data.run, len(data.records.by_rank)
    found = [path.name for path in (run.manifest, run.config, run.sacct_summary) if is_file(path)]
    if data.account.status is not None and data.account.status.nodes:
        found.append("nodes/*/status.json")
    if count:
        found.append(f"rank_*_metrics.jsonl ({plural(count, 'rank')})")
    for table, name in ((data.gpu, run.gpu_csv.name), (data.cpu, run.cpu_csv.name)):
        if table is not None:
            found.append(f"{name} ({plural(len(table), 'sample')})")
    return found
