"""Communication: ranks exchange data while nothing is computed.

What it finds:
    The mean share of the step in communication that no compute hides. Waits for slower ranks are part of the
    value, and are charged to their cause where that is known.
Why it costs time:
    While data is exchanged in the open, no GPU computes. The share grows with the number of nodes, because
    the exchange gets slower and the work per rank does not.
What to do:
    Hide the exchange under the backward pass, exchange less often or less data, and check the link between
    the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

from aorta.artefacts.analysis import Finding, Kind
from aorta.config.schema import Config
from aorta.diagnosis.finding import (
    MOST,
    NOT_DETERMINED,
    STEP_SHARE,
    Answer,
    FindingSpec,
    Removal,
    SubCause,
    gain,
    measured,
    not_measured,
    removal_to_threshold,
    severity,
    unknown,
    value_words,
)
from aorta.diagnosis.findings import _mesh
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.metrics.trace_tops import bus_bandwidth
from aorta.metrics.whatif import Place, Replays
from aorta.units import NS_PER_MS, plural

KIND = "communication"
SMALL_BYTES = 256 * 1024
"""A collective of fewer bytes takes its latency more than its transfer."""
SLOW_GROUP = 2.0
"""A group whose calls carry this many times fewer bytes a second than another's is on a slow link."""
STEADY_LINK = 1.5
"""Mean over fastest transfer: below it the calls run at the rate that the link gives at its best."""
POOR_OVERLAP = 0.2
"""With a smaller share of the transfers under compute that could hide them, they are the cause."""
LARGE_BYTES = 1 << 20
"""A collective of as many bytes is bound by its link."""
SOCKET_GB_PER_S = 5.0
"""Sockets of 10 to 40 Gbit/s carry less; PCIe 3.0 with 16 lanes, the slowest link for GPUs, carries 12."""
_TRANSPORT = (
    "find the transport that NCCL chose: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET prints it; NET/Socket "
    "between GPUs of one node, or of nodes with InfiniBand, is a wrong setting",
    "unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_DISABLE; name the interface with "
    "NCCL_SOCKET_IFNAME and the adapter with NCCL_IB_HCA",
)
"""With a smaller share of the transfers under compute that could hide them, they are the cause."""
USUAL_BUCKET_MB = 25.0
"""DDP's default."""
FEW_CALLS = 2
"""Collectives per step: with no more there is nothing that a larger bucket could join."""


def _measure(seen: Observation, policy: Policy) -> Answer:
    threshold, steps = policy.exposed_comm_pct, seen.steps
    if seen.mesh is not None:
        return _mesh.answer(seen, KIND, policy.straggler_pct, (_mesh.LINK,))
    reason = steps.too_little(policy)
    if not reason and seen.job.world_size > 1 and not any(row.comm_ms for row in steps.breakdown.per_rank):
        reason = f"not measurable: {seen.job.world_size} ranks, but the {steps.source} hold no communication"
    if reason:
        return not_measured(KIND, threshold, STEP_SHARE, reason)
    rows, step = steps.breakdown.per_rank, steps.step_ms
    exposed = _exposed(seen)
    value = 100.0 * exposed / step
    answer = measured(KIND, value, threshold, STEP_SHARE, fired=value > threshold)
    if not answer.fired:
        return Answer(answer)
    hidden = fmean(row.comm_ms - row.exposed_comm_ms for row in rows)
    free = max(fmean(row.compute_ms for row in rows) - hidden, 0.0)
    low = min(removal_to_threshold(step, exposed, threshold), free)
    finding = Finding(
        kind=KIND,
        severity=severity(value / 100.0),
        cause=_cause(seen),
        ranks=[],
        nodes=[],
        value=value,
        threshold=threshold,
        unit=STEP_SHARE,
        evidence=_evidence(seen),
        # Where ranks are missing, an unknown part of it is waiting for them.
        estimated_speedup=None if seen.job.ranks_missing else gain(step, low, exposed),
        actions=[],
    )
    return Answer(answer, finding)


def _exposed(seen: Observation) -> float:
    return fmean(item.exposed_comm_ms for item in seen.steps.costs)


def _transfer(seen: Observation) -> float:
    """Returns the mean exposed communication that is no wait for another rank's work."""
    return fmean(item.transfer_ms for item in seen.steps.costs)


def _evidence(seen: Observation) -> dict[str, Any]:
    rows, steps = seen.steps.breakdown.per_rank, seen.steps
    exposed, transfer, total = _exposed(seen), _transfer(seen), sum(row.comm_ms for row in rows)
    evidence: dict[str, Any] = {
        "exposed_comm_ms": exposed,
        "transfer_and_late_exchanges_ms": transfer if steps.blame_absent is None else None,
        "waits_charged_to_ranks_ms": exposed - transfer if steps.blame_absent is None else None,
        "comm_ms": total / len(rows),
        "overlap_ratio": 1.0 - sum(row.exposed_comm_ms for row in rows) / total,
        "step_ms": steps.step_ms,
        "files": list(steps.files),
    }
    return evidence | ({"waits": steps.blame_absent} if steps.blame_absent else {})


def _cause(seen: Observation) -> str:
    if seen.steps.blame_absent:
        return f"ranks exchange data or wait while nothing is computed: {seen.steps.blame_absent}"
    if _transfer(seen) >= _exposed(seen) / 2:
        return "ranks exchange data while nothing is computed"
    return "ranks wait in collectives for the last one to arrive more than they exchange data"


def _symptom_of(waits: Mapping[Kind, float], seen: Observation) -> Kind | None:
    """Returns the finding that explains most waits, where waits are most of the exposed communication."""
    if seen.mesh is not None:
        return None
    if sum(waits.values()) > sum(item.transfer_ms for item in seen.steps.costs):
        return max(waits, key=lambda kind: waits[kind])
    return None


def _unsupported(_: Finding, seen: Observation, policy: Policy) -> str | None:
    """Returns why communication over its threshold is no cause: with waits for ranks that are late by turns
    taken from it, each of which is below its own threshold, it is not over it.
    """
    if seen.steps.blame_absent is not None:
        return None
    transfer = 100.0 * _transfer(seen) / seen.steps.step_ms
    if transfer > policy.exchange_pct:
        return None
    rest = "the rest is waiting, for different ranks in different steps"
    return f"{transfer:.1f} % of the step is exchange (threshold {policy.exchange_pct:g}), {rest}"


def _removes(_: Finding, seen: Observation, replays: Replays) -> Removal | None:
    """Returns the costliest collective, where it is most of what a network without cost would gain; else all
    transfers.
    """
    if seen.mesh is not None:
        return None  # the replay of the mesh has said what it gains
    ideal, costliest = replays.without_transfer(), replays.costliest_place()
    if costliest is None:
        return None
    place, found = costliest
    now = replays.modelled_ms
    if len(replays.places()) > 1 and now - found.step_ms >= (now - ideal.step_ms) / 2:
        size = f" of {place.bytes / 1e6:.1f} MB" if place.bytes else ""
        return Removal(f"the transfer of the costliest collective, {place.op}{size}", found, ideal)
    return Removal("every transfer (an ideal network)", ideal)


def _sub_cause(finding: Finding, seen: Observation, _: Policy) -> SubCause:
    if seen.mesh is not None:
        return _mesh.sub_cause(finding)
    # What calls take is measured, also where the replay may predict nothing from it.
    replays = seen.model.replays if seen.model else None
    places = replays.places() if replays else []
    total = sum(place.transfer_ms for place in places)
    sized = [place for place in places if place.bytes]
    if not total or sum(place.transfer_ms for place in sized) < MOST * total:
        return _overlap(seen) or unknown("the sizes of the collectives are not recorded")
    found = _small(sized, total) or _slow_group(sized, total) or _slow_transport(sized, seen)
    return found or _overlap(seen) or _bandwidth(sized)


def _small(places: list[Place], total: float) -> SubCause | None:
    small = [place for place in places if (place.bytes or 0) < SMALL_BYTES]
    taken = sum(place.transfer_ms for place in small)
    if taken < MOST * total:
        return None
    size = median(place.bytes or 0 for place in small)
    text = (
        f"{taken:.1f} of {total:.1f} ms of transfer per step go to {plural(len(small), 'collective')} of "
        f"{size / 1024:.0f} KiB: latency, not bandwidth"
    )
    return SubCause("latency_bound", text, {"small_collectives": len(small), "small_transfer_ms": taken})


def _slow_group(places: list[Place], total: float) -> SubCause | None:
    """Returns a group that carries far fewer bytes per second than another one of collectives as large."""
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


def _slow_transport(places: list[Place], seen: Observation) -> SubCause | None:
    """Returns large exchanges between GPUs at a rate that no link made for GPUs is as slow as."""
    taken = sum(place.transfer_ms for place in places)
    large = [place for place in places if (place.bytes or 0) >= LARGE_BYTES]
    if not seen.steps.traced or sum(place.transfer_ms for place in large) < MOST * taken:
        return None
    size, ranks = sum(place.bytes or 0 for place in large) / len(large), seen.job.world_size
    rates = [
        (place.transfer_ms, bus_bandwidth(place.op, place.bytes or 0, ranks, place.transfer_ms * NS_PER_MS))
        for place in large
    ]
    known = [(ms, rate) for ms, rate in rates if rate is not None]
    rate = sum(ms * rate for ms, rate in known) / sum(ms for ms, _ in known) if known else _rate(large)
    if rate >= SOCKET_GB_PER_S:
        return None
    text = (
        f"collectives of {size / 1e6:.1f} MB per call run at {rate:.2f} GB/s of bus bandwidth, as sockets "
        "do: PCIe, NVLink and InfiniBand give more than ten"
    )
    return SubCause("slow_transport", text, {"bus_gb_per_s": rate, "mean_bytes": size})


def _rate(places: list[Place]) -> float:
    """Returns GB/s of a member's bytes over its transfer."""
    taken = sum(place.transfer_ms for place in places)
    return sum(place.bytes or 0 for place in places) / 1e6 / taken if taken else float("inf")


def _overlap(seen: Observation) -> SubCause | None:
    """Returns communication that compute could hide and does not."""
    rows = seen.steps.breakdown.per_rank
    comm, exposed = (
        fmean(values) for values in zip(*((row.comm_ms, row.exposed_comm_ms) for row in rows), strict=True)
    )
    waits = fmean(item.exposed_comm_ms - item.transfer_ms for item in seen.steps.costs)
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
            f"the collectives carry {rate:.2f} GB/s per rank and take {mean / best:.2f} times what their "
            "fastest calls do: bandwidth"
        )
        return SubCause("bandwidth_bound", text, evidence)
    return SubCause(
        NOT_DETERMINED,
        f"collectives carry {rate:.2f} GB/s per rank, and more at times; what slows them was not measured",
        evidence,
    )


def _actions(finding: Finding, seen: Observation) -> list[str]:
    if seen.mesh is not None:
        return _mesh.actions(finding)
    config = seen.job.config
    actions: list[str] = []
    if seen.job.ranks_missing:
        return [
            "find out why ranks left no records, and run again: waiting for them is in this, or is all of it"
        ]
    if _sub_cause(finding, seen, Policy.of(None)).code == "slow_transport":
        actions += _TRANSPORT
    if config is not None:
        if not config.distributed.enable_overlap:
            actions.append(
                "distributed.enable_overlap is false: set it to true, so that backward hides the exchange"
            )
        actions += _sharding(config) if config.distributed.strategy == "fsdp" else _buckets(config, seen)
        actions.append(
            "synchronise less often: raise training.gradient_accumulation "
            f"(now {config.training.gradient_accumulation}) or training.batch_size "
            f"(now {config.training.batch_size}), if convergence allows"
        )
    if len(set(seen.job.machines.values() or seen.job.hosts.values())) > 1:
        actions.append(
            "check the link between the nodes: which interface and transport the backend chose, and its rate"
        )
    if config is None:
        actions.append(
            "give the exchange more compute to hide under: larger batches, gradient accumulation, overlap"
        )
    return actions


def _buckets(config: Config, seen: Observation) -> list[str]:
    """Returns the bucket sizes to try, in one direction, with the command; none where neither would help."""
    now = config.distributed.bucket_cap_mb
    larger = _larger_buckets(now, seen)
    if larger is None:
        return []
    up = (1, 2, 4, 8) if now >= USUAL_BUCKET_MB else (1, 5, 25, 125)
    factors = up if larger else (1, 1 / 2, 1 / 4, 1 / 10)
    sizes = ",".join(f"{now * factor:g}" for factor in factors)
    nodes = f" --nodes {seen.facts.nodes}" if seen.facts.nodes else ""
    return [
        f"try {'larger' if larger else 'smaller'} buckets (distributed.bucket_cap_mb, now {now:g}): "
        + ("fewer, larger messages" if larger else "the exchange starts earlier in the backward pass")
        + f"; test: `aorta sweep{nodes} --over distributed.bucket_cap_mb={sizes}`"
    ]


def _larger_buckets(now_mb: float, seen: Observation) -> bool | None:
    """Returns whether larger buckets may help, rather than smaller ones; None: neither.

    Calls that take their latency are too small; a single one has no other to join. One or two large calls
    per step start too late.
    """
    replays = seen.model.replays if seen.model else None
    places = [place for place in (replays.places() if replays else []) if place.bytes]
    total = sum(place.transfer_ms for place in places)
    if not places or not total:
        return now_mb < USUAL_BUCKET_MB
    if _small(places, total) is not None:
        return True if len(places) > 1 else None
    return False if len(places) <= FEW_CALLS else None


def _sharding(config: Config) -> list[str]:
    """Returns the knobs of sharded training that exchange less, or earlier."""
    fsdp, actions = config.fsdp, []
    if config.distributed.overlap_reduce_scatter is False:
        actions.append(
            "distributed.overlap_reduce_scatter is false: set it to true, so that backward hides gradients"
        )
    if fsdp.backward_prefetch != "BACKWARD_PRE" or not fsdp.forward_prefetch:
        actions.append(
            f"gather weights earlier: fsdp.backward_prefetch BACKWARD_PRE (now {fsdp.backward_prefetch}), "
            f"fsdp.forward_prefetch true (now {str(fsdp.forward_prefetch).lower()})"
        )
    less = {
        "full_shard": "shard_grad_op gathers the weights once per step, hybrid_shard within the nodes alone",
        "hybrid_shard": "shard_grad_op gathers the weights once per step",
        "shard_grad_op": "no_shard exchanges gradients alone",
    }.get(fsdp.sharding_strategy)
    if less is not None:
        actions.append(
            f"exchange less for more memory: fsdp.sharding_strategy is {fsdp.sharding_strategy}; {less}"
        )
    return actions


def _statement(finding: Finding, seen: Observation) -> str:
    if seen.mesh is not None:
        return _mesh.statement(finding)
    value, limit = value_words(finding)
    exposed = _exposed(seen)
    waits = exposed - _transfer(seen)
    part = f", {waits:.1f} of it waiting for a slower rank" if waits >= 0.05 else ""
    took = f"{exposed:.1f} of {seen.steps.step_ms:.1f} ms{part}"
    return f"Communication takes {value} % of the step ({limit}), {took}."


SPEC = FindingSpec(
    kind=KIND,
    name="communication",
    subject="communication",
    value="exposed communication",
    measured_from="collectives, less what compute hides, less what is waiting for a late rank",
    order=20,
    thresholds=("exposed_comm_pct", "exchange_pct"),
    fires_below=False,
    measure=_measure,
    cost=_transfer,
    waits_for=(),
    waits=None,
    symptom_of=_symptom_of,
    claims=None,
    yields=False,
    may_wait_for_missing=True,
    sub_causes={
        "latency_bound": "Most transfer goes to small collectives, which take their latency.",
        "slow_link": "One process group carries far fewer bytes per second than another.",
        "slow_transport": "Large collectives between GPUs run at the rate of sockets.",
        "poor_overlap": "Compute could hide the transfers and does not.",
        "bandwidth_bound": "The collectives run at the rate that the link gives at its best.",
    },
    sub_cause=_sub_cause,
    removes=_removes,
    least_gain_pct=None,
    unsupported=_unsupported,
    parts=None,
    lowers={"transfer": 1, "communication": 1},
    actions=_actions,
    statement=_statement,
    needed=lambda seen, _: seen.job.world_size > 1,
    alike=("straggler", "waits for ranks are not measurable, and would be a part of this"),
)
