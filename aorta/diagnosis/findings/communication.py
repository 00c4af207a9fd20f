"""Communication: ranks exchange data while no compute runs.

What it finds:
    The mean share of the step spent in communication that is not overlapped with compute. The value includes
    waits for slower ranks. Each wait is charged to its cause, if the cause is known.
Why it costs time:
    GPUs do not compute during exposed communication. Its share grows with the number of nodes, because the
    exchange gets slower while the work per rank stays the same.
What to do:
    Overlap the exchange with the backward pass, exchange less data or less often, and check the link between
    the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from aorta.artefacts.analysis import Finding, Kind, RunFacts, Speedup
from aorta.averages import fmean
from aorta.config.schema import Config
from aorta.diagnosis.finding import (
    STEP_SHARE,
    FindingSpec,
    PredictedRemoval,
    RuleResult,
    SubCause,
    found,
    gain,
    measured,
    not_measured,
    removal_to_threshold,
    value_words,
)
from aorta.diagnosis.findings import _mesh
from aorta.diagnosis.findings._other_load import explains_exchange
from aorta.diagnosis.findings._transfers import (
    NVLINK_GB_PER_S,
    PCIE_GB_PER_S,
    behind_transfers,
    mostly_small,
)
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.metrics.mesh_groups import slow_group
from aorta.metrics.repeats import is_local
from aorta.metrics.whatif import Replays
from aorta.units import rank_words

KIND = "communication"
_TRANSPORT = (
    "find out which transport NCCL chose: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET prints it; NET/Socket "
    "between GPUs of one node, or between nodes with InfiniBand, means that a setting is wrong",
    "unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_DISABLE; set the interface with "
    "NCCL_SOCKET_IFNAME and the adapter with NCCL_IB_HCA",
)
USUAL_BUCKET_MB = 25.0
"""DDP's default."""
WAIT = "wait for the result of each asynchronous call within the step that made the call"
"""The change that lets the recorder time a call."""
FEW_CALLS = 2
"""A larger bucket has nothing to join if there are at most this many collectives per step."""


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    threshold, steps = policy.exposed_comm_pct, seen.steps
    if seen.mesh is not None:
        return _mesh.answer(seen, KIND, policy.straggler_pct, (_mesh.LINK,))
    reason = steps.too_little(policy)
    if not reason and seen.job.world_size > 1 and not any(row.comm_ms for row in steps.breakdown.per_rank):
        reason = f"not measured: {seen.job.world_size} ranks, but the {steps.source} contain no communication"
    if reason:
        return not_measured(KIND, threshold, STEP_SHARE, reason)
    rows, step = steps.breakdown.per_rank, steps.step_ms
    exposed = _exposed(seen)
    value = 100.0 * exposed / step
    answer = measured(KIND, value, threshold, STEP_SHARE, fired=value > threshold)
    if not answer.fired:
        untimed = steps.untimed(value)
        if untimed is not None:
            return not_measured(KIND, threshold, STEP_SHARE, untimed, remedy=WAIT)
        return RuleResult(answer)
    hidden = fmean(row.comm_ms - row.exposed_comm_ms for row in rows)
    free = max(fmean(row.compute_ms for row in rows) - hidden, 0.0)
    low = min(removal_to_threshold(step, exposed, threshold), free)
    # Where ranks are missing, an unknown part of it is waiting for them.
    slow = slow_group(seen.groups)
    ranks = slow[0].ranks if slow is not None else []
    return found(
        answer,
        _cause(seen),
        _evidence(seen),
        None if seen.job.ranks_missing else _gain(seen, low, exposed),
        ranks=ranks,
        nodes=seen.job.nodes(ranks) if ranks else [],
    )


def _exposed(seen: Observation) -> float:
    return fmean(item.exposed_comm_ms for item in seen.steps.costs)


def _transfer(seen: Observation) -> float:
    """Returns the mean exposed communication that is no wait for another rank's work."""
    return fmean(item.transfer_ms for item in seen.steps.costs)


def _machines(seen: Observation) -> set[str]:
    return set(seen.job.machines.values() or seen.job.hosts.values())


def _socket_rate(seen: Observation) -> float | None:
    """Returns the GB/s at which GPUs exchange, where that is as slow as sockets; None elsewhere."""
    if seen.mesh is not None or slow_group(seen.groups) is not None:
        return None
    cause = behind_transfers(seen)
    return float(cause.evidence["bus_gb_per_s"]) if cause.code == "slow_transport" else None


def _gain(seen: Observation, low_ms: float, exposed_ms: float) -> Speedup | None:
    """Returns the gain without `low_ms` to all exposed communication; with a transport for GPUs at its rates.

    Ranks of several nodes may have no faster link: the least gain is not known then.
    """
    step, rate = seen.steps.step_ms, _socket_rate(seen)
    if rate is None:
        return gain(step, low_ms, exposed_ms)
    transfer = _transfer(seen)
    found = gain(
        step, transfer * (1.0 - rate / PCIE_GB_PER_S), exposed_ms - transfer * rate / NVLINK_GB_PER_S
    )
    if found is None or len(_machines(seen)) > 1:
        return found and structs.replace(found, low=1.0)
    return structs.replace(found, expected=found.low, step_ms=step / found.low)


def _cost(seen: Observation) -> float:
    """Returns the mean ms per step of transfers, or of a slow link between stages."""
    return _transfer(seen) if seen.mesh is None else _mesh.cost_ms(seen, (_mesh.LINK,))


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
        return f"ranks transfer data or wait while no compute runs: {seen.steps.blame_absent}"
    if _transfer(seen) >= _exposed(seen) / 2:
        return "ranks transfer data while no compute runs"
    return "in collectives, ranks spend more time waiting for the last rank than transferring data"


def _symptom_of(waits: Mapping[Kind, float], seen: Observation) -> Kind | None:
    """Returns the finding that explains most waits, where waits are most of the exposed communication."""
    if seen.mesh is not None:
        return None
    if sum(waits.values()) > sum(item.transfer_ms for item in seen.steps.costs):
        return max(waits, key=lambda kind: waits[kind])
    return None


def _unsupported(_: Finding, seen: Observation, policy: Policy) -> str | None:
    """Returns why communication over its threshold is no cause, or None. Waits for ranks that are late in
    turn are subtracted if each rank is below its own threshold. The rest is then below the threshold.
    """
    missed = seen.steps.replay_missed
    if seen.steps.blame_absent is not None:
        return missed and f"{missed}, so the rest cannot be split into transfer and waiting"
    transfer = 100.0 * _transfer(seen) / seen.steps.step_ms
    if transfer > policy.exchange_pct:
        return explains_exchange(transfer, seen, policy)
    rest = "the rest is waiting for different ranks in different steps"
    return f"{transfer:.1f} % of the step is transfer (threshold {policy.exchange_pct:g}), {rest}"


def _removes(_: Finding, seen: Observation, replays: Replays) -> PredictedRemoval | None:
    """Returns the costliest collective, where it is most of what a network without cost would gain; else all
    transfers.
    """
    if seen.mesh is not None or _socket_rate(seen) is not None:
        return None  # the mesh's replay has said what it gains; a faster transport is no ideal one
    ideal, costliest = replays.without_transfer(), replays.costliest_place()
    if costliest is None:
        return None
    place, found = costliest
    now = replays.modelled_ms
    if len(replays.places()) > 1 and now - found.step_ms >= (now - ideal.step_ms) / 2:
        size = f" of {place.bytes / 1e6:.1f} MB" if place.bytes else ""
        return PredictedRemoval(f"the transfer of the costliest collective, {place.op}{size}", found, ideal)
    return PredictedRemoval("every transfer (an ideal network)", ideal)


def _sub_cause(finding: Finding, seen: Observation, _: Policy) -> SubCause:
    if _mesh.speaks(finding):
        return _mesh.sub_cause(finding)
    slow = slow_group(seen.groups)
    if slow is not None:
        group, ratio = slow
        text = (
            f"the {group.dimension} group of {rank_words(group.ranks)} takes {ratio:.1f} times as long as "
            "the other groups of its kind for the same bytes: a slow link between its ranks"
        )
        return SubCause("slow_link", text, {"group": group.name, "times": ratio})
    return behind_transfers(seen)


def _actions(finding: Finding, seen: Observation) -> list[str]:
    if _mesh.speaks(finding):
        return _mesh.actions(finding)
    config = seen.job.config
    actions: list[str] = []
    if seen.job.ranks_missing:
        return [
            "find out why some ranks left no records, then run again: some or all of this time may be spent "
            "waiting for them"
        ]
    if _sub_cause(finding, seen, Policy.of(None)).code == "slow_transport":
        actions += _TRANSPORT
    if config is not None:
        if not config.distributed.enable_overlap:
            actions.append(
                "set distributed.enable_overlap to true (now false), so that the exchange overlaps with the "
                "backward pass"
            )
        actions += _sharding(config) if config.distributed.strategy == "fsdp" else _buckets(config, seen)
        actions.append(
            "synchronise less often: raise training.gradient_accumulation "
            f"(now {config.training.gradient_accumulation}) or training.batch_size "
            f"(now {config.training.batch_size}), if convergence allows"
        )
    if len(_machines(seen)) > 1:
        actions.append(
            "check the link between the nodes: the interface and transport that the backend chose, and their "
            "rate"
        )
    if config is None:
        actions.append(
            "give the exchange more compute to overlap with: larger batches, gradient accumulation"
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
    return [
        f"try {'larger' if larger else 'smaller'} buckets (distributed.bucket_cap_mb, now {now:g}): "
        + ("fewer, larger messages" if larger else "the exchange starts earlier in the backward pass")
        + f"; test: `aorta sweep{_shape(seen.facts)} --over distributed.bucket_cap_mb={sizes}`"
    ]


def _shape(facts: RunFacts) -> str:
    """Returns the options of a sweep that runs as this run did."""
    said = " --executor local" if is_local(facts.job_id) else ""
    if facts.nodes:
        said += f" --nodes {facts.nodes}"
        each = (facts.world_size or 0) // facts.nodes
        said += f" --procs-per-node {each}" if each > 1 else ""
    return said


def _larger_buckets(now_mb: float, seen: Observation) -> bool | None:
    """Returns True if larger buckets may help, and False if smaller ones may. None if neither may.

    Calls that take their latency are too small; a single one has no other to join. One or two large calls
    per step start too late.
    """
    replays = seen.model.replays if seen.model else None
    places = [place for place in (replays.places() if replays else []) if place.bytes]
    total = sum(place.transfer_ms for place in places)
    if not places or not total:
        return now_mb < USUAL_BUCKET_MB
    if mostly_small(places, total) is not None:
        return True if len(places) > 1 else None
    return False if len(places) <= FEW_CALLS else None


def _sharding(config: Config) -> list[str]:
    """Returns the knobs of sharded training that exchange less, or earlier."""
    fsdp, actions = config.fsdp, []
    if config.distributed.overlap_reduce_scatter is False:
        actions.append(
            "set distributed.overlap_reduce_scatter to true (now false), so that gradients are exchanged "
            "during the backward pass"
        )
    if fsdp.backward_prefetch != "BACKWARD_PRE" or not fsdp.forward_prefetch:
        actions.append(
            f"gather weights earlier: fsdp.backward_prefetch BACKWARD_PRE (now {fsdp.backward_prefetch}), "
            f"fsdp.forward_prefetch true (now {str(fsdp.forward_prefetch).lower()})"
        )
    less = {
        "full_shard": "shard_grad_op gathers the weights once per step, hybrid_shard only within nodes",
        "hybrid_shard": "shard_grad_op gathers the weights once per step",
        "shard_grad_op": "no_shard exchanges only gradients",
    }.get(fsdp.sharding_strategy)
    if less is not None:
        actions.append(
            "exchange less data in return for more memory: fsdp.sharding_strategy is "
            f"{fsdp.sharding_strategy}; {less}"
        )
    return actions


def _statement(finding: Finding, seen: Observation) -> str:
    if _mesh.speaks(finding):
        return _mesh.statement(finding)
    exposed = _exposed(seen)
    waits = exposed - _transfer(seen)
    part = f", of which {waits:.1f} is waiting for a slower rank" if waits >= 0.05 else ""
    took = f"{exposed:.1f} of {seen.steps.step_ms:.1f} ms{part}"
    return f"Communication takes {value_words(finding)} % of the step, {took}."


SPEC = FindingSpec(
    kind=KIND,
    name="communication",
    subject="communication",
    value="exposed communication",
    value_of="the mean step",
    measured_from=(
        "time in collectives, minus overlap with compute. Communication is a symptom if other findings "
        "explain waits that take more time than transferring data. Otherwise, it is reported only if "
        "transferring data alone passes the threshold"
    ),
    order=20,
    thresholds=("exposed_comm_pct", "exchange_pct"),
    fires_below=False,
    measure=_measure,
    cost=_cost,
    waits_for=(),
    of_host_time=False,
    of_kernel_kinds=True,
    waits=None,
    symptom_of=_symptom_of,
    claims=None,
    yields=False,
    may_wait_for_missing=True,
    sub_causes={
        "latency_bound": "Most transfer time is the latency of small collectives.",
        "slow_link": "One process group transfers far fewer bytes per second than another.",
        "slow_transport": "Large collectives between GPUs are as slow as sockets.",
        "poor_overlap": "Transfers could overlap with compute, but do not.",
        "bandwidth_bound": "The collectives run at the best rate of the link.",
    },
    sub_cause=_sub_cause,
    compares_ranks=(),
    removes=_removes,
    least_gain_pct=None,
    unsupported=_unsupported,
    parts=None,
    lowers={"transfer": 1, "communication": 1},
    actions=_actions,
    statement=_statement,
    needed=lambda seen, _: seen.job.world_size > 1,
    alike=("straggler", "this may include waiting for other ranks, which cannot be measured"),
)
