"""The cause behind a finding's cause, where something measured tells; `not_determined` where nothing does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean, median

import msgspec

from aorta.artefacts.analysis import Finding, Kind
from aorta.diagnosis.context import Context
from aorta.diagnosis.late_ranks import straggler
from aorta.diagnosis.memory import HOST, MACHINE, is_retrying, swapping
from aorta.diagnosis.sub_cause import MOST, NOT_DETERMINED, SubCause, unknown
from aorta.metrics.node_load import NodeLoad
from aorta.metrics.whatif import Place
from aorta.units import BYTES_PER_GIB, plural

CPU_FULL = 0.9
"""Of the CPUs that the job may use: above it they are the limit."""
READING_MB_PER_S = 20.0
"""Below it no disk is the limit."""
SMALL_BYTES = 256 * 1024
"""A collective of fewer bytes takes its latency more than its transfer."""
SLOW_GROUP = 2.0
"""A group whose calls carry this many times fewer bytes a second than another's is on a slow link."""
STEADY_LINK = 1.5
"""Mean over fastest transfer: below it the calls run at the rate that the link gives at its best."""
POOR_OVERLAP = 0.2
OUTSIDE_PCT = 20.0
"""Points of a GPU's memory that are in use and in no tensor, from which on they are the cause."""


def with_sub_cause(finding: Finding, context: Context) -> Finding:
    """The finding with the cause behind it; a symptom and a kind that has none stay as they are."""
    rule = _RULES.get(finding.kind)
    if rule is None or finding.symptom_of is not None:
        return finding
    found = rule(finding, context)
    return msgspec.structs.replace(
        finding,
        sub_cause=found.code,
        sub_cause_text=found.text,
        evidence={**finding.evidence, **found.evidence},
    )


def _loading(finding: Finding, context: Context) -> SubCause:
    loads = _loads(finding, context)
    full = _full_cpus(loads)
    if full is not None:
        return full
    config = context.config
    if config is not None and config.dataloader.num_workers == 0:
        return SubCause("no_workers", "the training process makes its batches itself, between the steps")
    reading = max((item.read_mb_per_s or 0.0 for item in loads.values()), default=0.0)
    busy = _busy_share(loads)
    if reading >= READING_MB_PER_S and busy is not None and busy < MOST:
        text = f"disks read {reading:.0f} MB/s while the job uses {100 * busy:.0f} % of its CPUs: storage"
        return SubCause("storage", text, {"disk_read_mb_per_s": reading, "cpu_busy_share": busy})
    if config is None:
        return unknown("how many workers load is not known")
    workers = config.dataloader.num_workers
    if busy is None:
        return unknown(f"{_workers(workers)} not keep up; whether CPUs limit them was not sampled")
    text = f"{_workers(workers)} not keep up, and {100 * (1 - busy):.0f} % of the job's CPUs are free"
    return SubCause("workers_saturated", text, {"workers": workers, "cpu_busy_share": busy})


def _workers(count: int) -> str:
    return f"{plural(count, 'worker')} a rank {'does' if count == 1 else 'do'}"


def _full_cpus(loads: Mapping[str, NodeLoad]) -> SubCause | None:
    for host, item in sorted(loads.items()):
        if item.job_cpu_pct is None or not item.cpus_usable:
            continue
        share = item.job_cpu_pct / (100.0 * item.cpus_usable)
        if share >= CPU_FULL:
            text = f"the job uses {100 * share:.0f} % of the CPUs that it has on {host}, {item.cpus_usable:g}"
            return SubCause("host_cpu_limit", text, {"cpu_busy_share": share, "cpus": item.cpus_usable})
    return None


def _busy_share(loads: Mapping[str, NodeLoad]) -> float | None:
    shares = [
        item.job_cpu_pct / (100.0 * item.cpus_usable)
        for item in loads.values()
        if item.job_cpu_pct is not None and item.cpus_usable
    ]
    return max(shares, default=None)


def _loads(finding: Finding, context: Context) -> dict[str, NodeLoad]:
    """Of the finding's nodes; of all where it names none."""
    return {
        host: item
        for host, item in context.evidence.loads.items()
        if not finding.nodes or host in finding.nodes
    }


def _communication(_: Finding, context: Context) -> SubCause:
    # What calls take is measured, also where the replay may predict nothing from it.
    replays = context.model.replays if context.model else None
    places = replays.places() if replays else []
    total = sum(place.transfer_ms for place in places)
    sized = [place for place in places if place.bytes]
    if not total or sum(place.transfer_ms for place in sized) < MOST * total:
        return _overlap(context) or unknown("the sizes of the collectives are not recorded")
    for rule in (_small, _slow_group):
        found = rule(sized, total)
        if found is not None:
            return found
    return _overlap(context) or _bandwidth(sized)


def _small(places: list[Place], total: float) -> SubCause | None:
    small = [place for place in places if (place.bytes or 0) < SMALL_BYTES]
    taken = sum(place.transfer_ms for place in small)
    if taken < MOST * total:
        return None
    size = median(place.bytes or 0 for place in small)
    text = (
        f"{taken:.1f} of {total:.1f} ms of transfer a step go to {plural(len(small), 'collective')} of "
        f"{size / 1024:.0f} KiB: latency, not bandwidth"
    )
    return SubCause("latency_bound", text, {"small_collectives": len(small), "small_transfer_ms": taken})


def _slow_group(places: list[Place], total: float) -> SubCause | None:
    """A group that carries far fewer bytes a second than another one of collectives as large."""
    rates = {
        group: _rate([place for place in places if place.group == group])
        for group in {place.group for place in places}
    }
    if len(rates) < 2:
        return None
    slow, fast = min(rates, key=lambda name: rates[name]), max(rates, key=lambda name: rates[name])
    taken = sum(place.transfer_ms for place in places if place.group == slow)
    if rates[slow] * SLOW_GROUP > rates[fast] or taken < MOST * total:
        return None
    text = (
        f"group {slow} carries {rates[slow]:.2f} GB/s, group {fast} {rates[fast]:.2f} GB/s: its link is slow"
    )
    return SubCause(
        "slow_link", text, {"slow_group_gb_per_s": rates[slow], "fast_group_gb_per_s": rates[fast]}
    )


def _rate(places: list[Place]) -> float:
    """GB/s of a member's bytes over its transfer."""
    taken = sum(place.transfer_ms for place in places)
    return sum(place.bytes or 0 for place in places) / 1e6 / taken if taken else float("inf")


def _overlap(context: Context) -> SubCause | None:
    """Communication that compute could hide and does not."""
    rows = context.breakdown.per_rank
    comm, exposed = (
        fmean(values) for values in zip(*((row.comm_ms, row.exposed_comm_ms) for row in rows), strict=True)
    )
    waits = fmean(item.exposed_comm_ms - item.transfer_ms for item in context.costs)
    hidden, transfer = comm - exposed, comm - waits
    if transfer <= 0.0 or hidden / transfer >= POOR_OVERLAP:
        return None
    compute = fmean(row.compute_ms for row in rows)
    if compute < transfer:
        return None
    text = (
        f"{hidden:.1f} of {transfer:.1f} ms of transfer run under compute, of which there are "
        f"{compute:.1f} ms: hardly any overlap"
    )
    return SubCause("poor_overlap", text, {"hidden_transfer_ms": hidden, "transfer_ms": transfer})


def _bandwidth(places: list[Place]) -> SubCause:
    mean, best = sum(p.transfer_ms for p in places), sum(p.fastest_ms for p in places)
    rate = _rate(places)
    evidence = {"gb_per_s": rate, "mean_over_fastest": mean / best if best else None}
    if best and mean / best < STEADY_LINK:
        text = (
            f"the collectives carry {rate:.2f} GB/s a rank and take {mean / best:.2f} times what their "
            "fastest calls do: bandwidth"
        )
        return SubCause("bandwidth_bound", text, evidence)
    return SubCause(
        NOT_DETERMINED,
        f"the collectives carry {rate:.2f} GB/s a rank, at times far more: what slows them was not measured",
        evidence,
    )


def _host(_: Finding, context: Context) -> SubCause:
    launches = context.launches
    if launches is not None and context.launch_bound:
        each = 1000 * launches.kernels_ms / launches.kernels
        kernels = plural(round(launches.kernels), "kernel")
        text = f"{kernels} a step of {each:.0f} us each: the GPU waits for launches"
        return SubCause(
            "launch_bound", text, {"kernels": launches.kernels, "kernels_ms": launches.kernels_ms}
        )
    if context.idle is not None:
        return _traced_host(context)
    if context.driver_busy_pct is not None and context.idle_inside_ms > MOST * context.host_ms:
        busy = f"by the driver's counter kernels ran in {context.driver_busy_pct:.0f} % of the time"
        return unknown(
            f"{busy}, and compute's windows are longer: launches come late. Whether kernels are too short, or"
            " Python or synchronisation lies between them, a trace or capture.kernel_interval tells"
        )
    gap = context.evidence.host_gap
    if gap is not None and gap.share >= MOST:
        share = f"{100 * gap.share:.0f} % of the host's part"
        text = f"{gap.ms:.1f} ms a step lie between {gap.after} and {gap.before}: {share}"
        return SubCause("host_work", text, {"largest_gap_ms": gap.ms, "largest_gap_share": gap.share})
    return unknown("the host's part lies in many places between what was timed")


def _traced_host(context: Context) -> SubCause:
    idle = context.idle
    assert idle is not None
    gaps = idle.gaps_ms
    if context.launch_bound:
        text = f"{plural(round(idle.launches), 'launch', 'launches')} a step"
        if idle.empty_share is not None:
            text += f", {100 * idle.empty_share:.0f} % of those of idle GPUs on an empty queue"
        short = f"{idle.short_gaps_ms:.1f} of {gaps:.1f} ms in which GPUs idle openly lie in short gaps"
        return SubCause("launch_bound", f"{text}, and {short}")
    if idle.synchronised:
        return SubCause(
            "synchronisation", f"for {idle.sync_ms:.1f} of {gaps:.1f} ms idle, the host waits for the GPU"
        )
    return SubCause(
        "host_work", f"{idle.long_gaps_ms:.1f} of {gaps:.1f} ms idle lie in long gaps: Python, CPU work"
    )


def _swapping(nodes: list[str], context: Context) -> SubCause:
    rates = swapping(context)
    host = max(nodes, key=lambda name: rates[name])
    load = context.evidence.loads[host]
    measured = {
        "swap_in_mb_per_s": load.swap_in_mb_per_s,
        "swap_out_mb_per_s": load.swap_out_mb_per_s,
        "swap_used_bytes": load.swap_used_bytes,
        "job_swap_bytes": load.job_swap_bytes,
        "memory_stall_share": load.stall_share,
    }
    ways = (("read back", load.swap_in_mb_per_s), ("written out", load.swap_out_mb_per_s))
    moved = " and ".join(f"{rate:.1f} MB/s are {way}" for way, rate in ways if rate is not None)
    text = f"on {host} {moved}"
    if load.job_swap_bytes is None:
        text += "; whether the job's own pages are among them was not measured"
    else:
        text += f"; up to {load.job_swap_bytes / BYTES_PER_GIB:.2f} GiB of the job are in swap"
    if load.stall_share is not None:
        text += f"; some process waited for memory in {100 * load.stall_share:.0f} % of the time"
    return SubCause("swapping", text, {name: value for name, value in measured.items() if value is not None})


def _host_limit(context: Context) -> SubCause:
    hits = [item.limit_hits for item in context.evidence.loads.values() if item.limit_hits is not None]
    text = "the job's memory is near the limit of its cgroup"
    if not hits:
        return SubCause("host_limit", text)
    return SubCause(
        "host_limit", f"{text}, and hit it {max(hits):.0f} times during the steps", {"limit_hits": max(hits)}
    )


def _memory(finding: Finding, context: Context) -> SubCause:
    if finding.nodes:
        return _swapping(finding.nodes, context)
    limits = {
        HOST: _host_limit(context),
        MACHINE: SubCause("host_memory", "the machine is nearly full, and the job has no limit of its own"),
    }
    of = finding.evidence.get("of")
    if of in limits:
        return limits[of]
    if is_retrying(context):
        text = (
            "allocations fail: the allocator gives its cache back, and the host waits until the GPU is done"
        )
        return SubCause("allocator_retries", text)
    use, allocator = context.utilization, context.allocator
    full, held = use.gpu_memory_used_pct if use else None, allocator.tensors_pct if allocator else None
    if full is None or held is None:
        return unknown("only one of the driver's and the allocator's readings is there")
    evidence = {"driver_pct": full, "allocator_peak_pct": held}
    if full - held >= OUTSIDE_PCT:
        reserved = allocator.reserved_pct if allocator else None
        what = "cached or fragmented blocks, or other programs"
        if reserved is not None:
            cached = reserved - held >= full - reserved
            what = "blocks that the allocator keeps" if cached else "other programs, or libraries"
        text = f"{full:.0f} % are in use, tensors hold {held:.0f} % at their peak: {what}"
        return SubCause("outside_tensors", text, evidence)
    return SubCause("tensors", f"the program's own tensors hold {held:.0f} % at their peak", evidence)


_RULES: dict[Kind, Callable[[Finding, Context], SubCause]] = {
    "data_loading": _loading,
    "communication": _communication,
    "straggler": straggler,
    "host_bound": _host,
    "memory_pressure": _memory,
}
