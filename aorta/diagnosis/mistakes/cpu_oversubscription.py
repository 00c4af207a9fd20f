"""More threads than CPU cores.

What it finds:
    The ranks of a node run more threads for torch's CPU operators than the job has CPUs, and the job keeps
    these CPUs busy.
Why it costs time:
    Threads share the cores, so each launch and each loader has to wait for a core.
What to do:
    Set `OMP_NUM_THREADS` to the cores per rank, minus the loader's workers.
"""

from __future__ import annotations

from collections import defaultdict

from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign
from aorta.diagnosis.observation import Observation

_BUSY_PCT = 80.0
"""Busy share of the CPUs that the job may use."""


def _observe(seen: Observation) -> ObservedSign | None:
    threads: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for rank, record in seen.host.stacks.items():
        if record.threads is not None and rank in seen.job.hosts:
            threads[seen.job.hosts[rank]].append((rank, record.threads))
    crowded = {
        host: sum(count for _, count in ranks) / cpus
        for host, ranks in threads.items()
        if (cpus := _busy_cpus(seen, host)) is not None
    }
    crowded = {host: times for host, times in crowded.items() if times > 1}
    if not crowded or not seen.steps.breakdown.per_rank:
        return None
    ranks = [rank for host in crowded for rank, _ in threads[host]]
    step, most = seen.steps.step_ms, max(crowded.values())
    host_ms = max(
        row.host_ms + row.data_wait_ms for row in seen.steps.breakdown.per_rank if row.rank in ranks
    )
    spared = min(host_ms * (1 - 1 / most), 0.95 * step)
    return ObservedSign(
        # A thread that waits for its turn does so in the host's part of the step at most.
        Estimate(value=step / (step - spared), low=1.0, high=step / max(step - host_ms, 0.05 * step)),
        ranks=sorted(ranks) if len(ranks) < seen.job.world_size else (),
        evidence={"threads_per_cpu": {host: round(times, 1) for host, times in crowded.items()}},
    )


def _busy_cpus(seen: Observation, host: str) -> float | None:
    """CPUs that the job may use on a node, if it keeps them busy. None if it does not, or if unknown."""
    load = seen.around.loads.get(host)
    if load is None or load.job_cpu_pct is None or not load.cpus_usable:
        return None
    return load.cpus_usable if load.job_cpu_pct >= _BUSY_PCT * load.cpus_usable else None


SPEC = MistakeSpec(
    id="cpu_oversubscription",
    before="""\
torchrun --nproc_per_node 8 train.py  # each rank with 64 threads
""",
    after="""\
OMP_NUM_THREADS=8 torchrun --nproc_per_node 8 train.py
""",
    predicted_by="the step with its host work reduced by the ratio of CPUs to threads",
    captures=(),
    look=None,
    observe=_observe,
    shown_by="torch's thread counts, recorded by the hooks, and the job's CPU use in the monitors' samples",
    least_gain=1.05,
)
