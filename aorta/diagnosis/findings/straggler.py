"""Straggler: ranks wait for the compute or host work of a slower rank.

What it finds:
    The share of the step that the worst-affected rank waits in collectives because other ranks take longer
    for compute or host work. Late ranks are named if they stand out.
Why it costs time:
    A collective cannot end before its last rank arrives, so one slow rank sets the step time of all ranks.
What to do:
    Compare the late rank's node with the others: clocks, temperature, other programs, CPU pinning. Give every
    rank the same work per step.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from aorta.artefacts.analysis import Finding
from aorta.averages import fmean
from aorta.diagnosis.finding import (
    MOST,
    STEP_SHARE,
    FindingSpec,
    Found,
    PredictedRemoval,
    RuleResult,
    SubCause,
    cost_sentence,
    found,
    gain,
    measured,
    not_measured,
    unknown,
    value_words,
)
from aorta.diagnosis.findings import _experts, _hidden, _mesh, _mesh_hosts
from aorta.diagnosis.findings._late import compute_words, host_words
from aorta.diagnosis.findings._other_load import explains_late_ranks, neighbour
from aorta.diagnosis.host_time import GAPS_INSIDE, LESS_GARBAGE, waits_of_own_hosts, window_evidence
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import late_by_host
from aorta.metrics.replay_model import Part
from aorta.metrics.whatif import Replays
from aorta.units import rank_list, rank_words

KIND = "straggler"
_NAMED = 4
"""Waiting ranks up to which the verdict names each."""
THROTTLED = 0.5
"""A GPU is throttled if the driver slows it down in at least this share of the samples."""
_PARTS: tuple[Part, ...] = ("compute", "host")


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    """Returns the ranks that the others wait for. Waits that a rank's own host needs anyway are not charged
    to another rank: they are the hosts' part.
    """
    threshold, steps = policy.straggler_pct, seen.steps
    if seen.mesh is not None:
        return _mesh_hosts.answer(_mesh.answer(seen, KIND, threshold, tuple(_mesh.CODES)), seen, policy)
    reason = steps.too_little(policy)
    if not reason and seen.job.world_size == 1:
        reason = "not measured: a single rank has no other rank to wait for"
    if not reason and steps.blame_absent:
        reason = f"not measured: {steps.blame_absent}"
    if reason:
        return not_measured(KIND, threshold, STEP_SHARE, reason)
    value = max(100.0 * item.lateness_ms / item.step_ms for item in steps.costs)
    answer = measured(KIND, value, threshold, STEP_SHARE, fired=value > threshold)
    if not answer.fired:
        untimed = steps.untimed(value)
        if untimed is not None:
            return not_measured(KIND, threshold, STEP_SHARE, untimed)
        return _hidden.answer(answer, seen)
    ranks = seen.last_ranks()
    waiting = [item for item in steps.costs if item.rank not in ranks]
    lost = [item.lateness_ms for item in waiting]
    compute = fmean(item.charged("compute") for item in waiting)
    host = fmean(item.charged("host") for item in waiting)
    hosts = late_by_host(steps.costs, ranks)
    compute_late, host_late = _late_by(ranks, hosts, compute, host)
    return found(
        answer,
        f"the other ranks wait for {_who(ranks, hosts, compute=compute_late, host=host_late)}",
        {
            "waits_for_compute_ms": compute,
            "waits_for_host_ms": host,
            **({"ranks_late_by_host": hosts} if compute_late and host_late else {}),
            **waits_of_own_hosts(seen),
            **window_evidence(seen),
            "step_ms": steps.step_ms,
            "files": list(steps.files),
        },
        gain(steps.step_ms, min(lost), fmean(lost)),
        ranks=ranks,
        nodes=seen.job.nodes(ranks),
    )


def _late_by(ranks: list[int], hosts: list[int], compute: float, host: float) -> tuple[bool, bool]:
    """Returns two flags: ranks are late because of compute, and because of host work."""
    return (len(hosts) < len(ranks), bool(hosts)) if ranks else (compute >= host, host > compute)


def _who(ranks: list[int], hosts: list[int], *, compute: bool, host: bool) -> str:
    if compute != host:
        return _who_is_late(ranks, host=host)
    others = [rank for rank in ranks if rank not in hosts]
    return f"{_who_is_late(others, host=False)}, and for {_who_is_late(hosts, host=True)}"


def _who_is_late(ranks: list[int], *, host: bool) -> str:
    who, several = rank_words(ranks) if ranks else "whichever rank is last", len(ranks) > 1
    if host:
        return f"{who}, which {'spend' if several else 'spends'} more time on host work"
    return f"{who}, which {'compute' if several else 'computes'} for longer"


def _cost(seen: Observation) -> float:
    if seen.mesh is not None:
        return max([_mesh.cost_ms(seen, tuple(_mesh.CODES)), *_mesh_hosts.late_hosts(seen).values()])
    return fmean(item.lateness_ms for item in seen.steps.costs)


def _waits(_: Found, seen: Observation, taken: float) -> float:
    """Returns what neither the waiting ranks' own hosts take anyway nor another finding explains."""
    charged = sum(item.charged("compute", "host") for item in seen.steps.costs)
    own = sum(item.own_host_wait_ms for item in seen.steps.costs)
    return charged - max(taken, own)


def _unsupported(finding: Finding, seen: Observation, _: Policy) -> str | None:
    """Returns why lateness that moves from rank to rank is no cause: it belongs to no single rank."""
    if seen.mesh is not None:
        return None
    if finding.ranks:
        compute, host = (finding.evidence.get(f"waits_for_{part}_ms", 0.0) for part in ("compute", "host"))
        # What the waiting ranks' own hosts take anyway is no lateness.
        late = max(item.lateness_ms for item in seen.steps.costs)
        if seen.steps.replay_missed is not None and compute < host:
            return f"{seen.steps.replay_missed}, so the rest is not charged to any rank's host work"
        if compute < host and min(host, late) < seen.host.uncertain_ms:
            least = f"{seen.host.uncertain_ms:.1f} ms per step"
            return (
                f"the profiler's share of host work is only known to within {least}, which is more than this"
            )
        return explains_late_ranks(seen, finding.ranks, by_host=host > compute)
    shared = seen.around.cores_shared
    return f"different ranks are late in different steps; {shared or 'none stands out'}"


def _removes(finding: Finding, seen: Observation, replays: Replays) -> PredictedRemoval | None:
    if seen.mesh is not None or _hidden.speaks(finding):
        # The replay of the mesh has said what it gains, or the hosts that hide the ranks limit it.
        return None
    if _experts.times(finding.ranks, seen) is not None:
        # Tokens that leave the busy expert go to the others: every rank takes the mean.
        even = replays.as_the_others(_PARTS, ())
        return PredictedRemoval("the uneven load of the experts", even, parts=_PARTS)
    found, who = replays.as_the_others(_PARTS, finding.ranks), rank_words(finding.ranks)
    if GAPS_INSIDE in finding.evidence:
        # Nothing tells what the other ranks' hosts need.
        found = replace(found, bound=True)
    words = f"the longer compute and host work of {who}"
    if not finding.ranks:
        words = "the differences between ranks in each step's compute and host work"
    return PredictedRemoval(words, found, parts=_PARTS, hidden_behind="loader waits")


def _sub_cause(finding: Finding, seen: Observation, _: Policy) -> SubCause:
    if _mesh.speaks(finding):
        return _mesh.sub_cause(finding)
    if not finding.ranks:
        shared = seen.around.cores_shared
        return (
            SubCause("shared_cpus", shared) if shared else unknown("the late rank changes from step to step")
        )
    compute, host = finding.evidence["waits_for_compute_ms"], finding.evidence["waits_for_host_ms"]
    hosts = finding.evidence.get("ranks_late_by_host", [])
    late = [rank for rank in finding.ranks if (rank in hosts) == (host > compute)] or finding.ranks
    tokens = _experts.times(finding.ranks, seen)
    if tokens is not None:
        return SubCause(_experts.CODE, _experts.words(finding.ranks, tokens), {"exchanged_times": tokens})
    loss = _clock_loss(late, finding, seen) if compute >= host else None
    found = _throttled(late, loss, finding, seen) if compute >= host else None
    found = found or _collector(late, finding, seen) or neighbour(finding, seen) or _slow_node(seen)
    if found is not None:
        return found
    if compute < host:
        return SubCause("host_work", host_words(late, finding, seen))
    text = compute_words(late, finding, seen)
    if GAPS_INSIDE in finding.evidence:
        text += ", or its host launches later: compute windows include the gaps between kernels"
    if loss is not None:
        text += f", at {100 * (1 - loss):.0f} % of the others' clock"
    elif seen.around.loads:
        text += "; no throttling or other load was seen"
    return SubCause("compute", text, _measured_loss(loss))


def _collector(late: Sequence[int], finding: Finding, seen: Observation) -> SubCause | None:
    """Returns that the collector pauses the late ranks for most of what the others wait for them. On a CPU a
    pause in the forward or backward pass is part of their compute.
    """
    pauses = {rank: item.ms for rank, item in seen.host.collector.items()}
    mine = fmean(pauses.get(rank, 0.0) for rank in late)
    others = [pauses.get(item.rank, 0.0) for item in seen.steps.costs if item.rank not in finding.ranks]
    its = fmean(others) if others else 0.0
    waits = max(finding.evidence["waits_for_compute_ms"], finding.evidence["waits_for_host_ms"])
    if not mine or mine - its < MOST * waits:
        return None
    who = rank_words(list(late))
    text = (
        f"Python's garbage collector pauses {who} for {mine:.1f} ms per step, the other ranks for {its:.1f} "
        "ms"
    )
    return SubCause("gc_pauses", text, {"collector_ms": mine, "collector_ms_others": its})


def _measured_loss(loss: float | None) -> dict[str, float]:
    return {} if loss is None else {"clock_loss": loss}


def _clock_loss(late: Sequence[int], finding: Finding, seen: Observation) -> float | None:
    """Returns the share, 0 to 1, by which the GPU clock of the ranks in `late` is below that of other ranks;
    None if no clock was sampled.
    """
    clocks = {rank: item.clock_mhz for rank, item in seen.around.throttling.items() if item.clock_mhz}
    own = [clock for rank, clock in clocks.items() if rank in late]
    others = [clock for rank, clock in clocks.items() if rank not in finding.ranks]
    return max(1 - min(own) / max(others), 0.0) if own and others else None


def _throttled(
    late: Sequence[int], loss: float | None, finding: Finding, seen: Observation
) -> SubCause | None:
    """Returns the reason why a GPU is slowed down, if only this GPU is, and by as much as its rank is late.
    At full load, many GPUs always report their power limit, and lose a hundredth of their clock to it.
    """
    waits = finding.evidence["waits_for_compute_ms"]
    if loss is not None and loss * finding.evidence["step_ms"] < MOST * waits:
        return None
    throttling = seen.around.throttling
    own = [throttling[rank] for rank in late if rank in throttling]
    others = [item for rank, item in throttling.items() if rank not in finding.ranks]
    for name, code, word in (
        ("thermal", "thermal_throttling", "heat"),
        ("power", "power_throttling", "power"),
    ):
        mine = max((getattr(item, name) for item in own), default=0.0)
        its = max((getattr(item, name) for item in others), default=0.0)
        if mine >= THROTTLED and its < mine / 2:
            text = (
                f"its GPU was slowed down because of {word} in {100 * mine:.0f} % of the samples, the other "
                f"GPUs in {100 * its:.0f} %"
            )
            if loss is not None:
                text += f"; its clock is {100 * loss:.0f} % lower"
            evidence = {f"{name}_share": mine, f"{name}_share_others": its}
            return SubCause(code, text, evidence | _measured_loss(loss))
    return None


def _slow_node(seen: Observation) -> SubCause | None:
    late = seen.model.lateness if seen.model else None
    if late is None or late.scope != "node":
        return None
    hosts = [item.host for item in late.nodes]
    text = (
        f"all ranks of {', '.join(hosts)} are late together, and no other rank is late: the node is slow, "
        "not one rank"
    )
    return SubCause("slow_node", text, {"late_nodes": hosts})


def _actions(finding: Finding, seen: Observation) -> list[str]:
    if _mesh.speaks(finding):
        return _mesh.actions(finding)
    ranks, job, actions = finding.ranks, seen.job, []
    waiting = [item for item in seen.steps.costs if item.rank not in ranks]
    work = [fmean(item.charged(cause) for item in waiting) for cause in _PARTS]
    compute, host = _late_by(ranks, late_by_host(seen.steps.costs, ranks), *work)
    where = ", ".join(job.nodes(ranks)) if len(set(job.hosts.values())) > 1 else ""
    if ranks and where:
        actions.append(
            f"compare the clocks, temperature and other processes of {where} with those of the other nodes"
        )
    if finding.sub_cause == "uneven_experts" or _experts.times(finding.ranks, seen) is not None:
        actions.append(_experts.ACTION)
    elif compute:
        actions.append("give every rank the same work per step: equal batches and sequence lengths")
    if host:
        threads = f", training.cpu_threads (now {job.config.training.cpu_threads})" if job.config else ""
        if any(
            seen.host.collector[rank].ms >= MOST * max(work) for rank in seen.host.collector.keys() & ranks
        ):
            actions.append(LESS_GARBAGE)
        actions.append(f"check the CPU side of these ranks: CPU pinning, threads{threads}, other processes")
    if not ranks:
        actions.append(
            "the late rank changes from step to step: reduce what ranks share, such as CPUs of one machine"
        )
    elif _hidden.speaks(finding):
        actions += _hidden.actions(seen)
    elif where:
        actions.append(f"run once without {where} (sbatch --exclude) to see what it costs")
    return actions


def _statement(finding: Finding, seen: Observation) -> str:
    if _mesh.speaks(finding):
        return _mesh.statement(finding)
    if _hidden.speaks(finding):
        return _hidden.statement(finding, seen)
    cost = cost_sentence(finding, _cost(seen), seen)
    waiting = [item for item in seen.steps.costs if item.rank not in finding.ranks]
    if not finding.ranks or not waiting:
        late = "whichever rank is last; the last rank changes from step to step"
        return f"Ranks spend up to {value_words(finding)} % of each step waiting for {late}. {cost}"
    most = max(100.0 * item.lateness_ms / item.step_ms for item in waiting)
    who = rank_list([item.rank for item in waiting]) if len(waiting) <= _NAMED else "the other ranks"
    spend = "spends" if len(waiting) == 1 else "spend up to"
    return (
        f"{who[0].upper()}{who[1:]} {spend} {most:.0f} % of each step waiting for "
        f"{rank_list(finding.ranks)}. {cost}"
    )


def _late_parts(finding: Finding, seen: Observation) -> tuple[str, ...]:
    """Returns the parts of the step that the late ranks take longer for."""
    hosts = late_by_host(seen.steps.costs, finding.ranks)
    if finding.ranks and len(hosts) == len(finding.ranks):
        return ("other", "optimizer")  # a closure runs inside the optimizer's update, and is host work
    compute = ("forward", "backward", "optimizer")
    return ("other", *compute) if hosts else compute


SPEC = FindingSpec(
    kind=KIND,
    parts=_late_parts,
    name="straggler",
    subject="waiting for a slower rank",
    value="waiting for another rank's compute or host work",
    value_of="the step of the rank that waits longest",
    measured_from="collectives matched across ranks",
    order=30,
    thresholds=("straggler_pct",),
    fires_below=False,
    measure=_measure,
    cost=_cost,
    waits_for=_PARTS,
    of_host_time=False,
    of_kernel_kinds=True,
    waits=_waits,
    symptom_of=None,
    claims=None,
    yields=False,
    may_wait_for_missing=False,
    sub_causes={
        "shared_cpus": "Ranks need more CPUs than they have.",
        "thermal_throttling": "The late rank's GPU is slowed down because it is too hot.",
        "power_throttling": "The late rank's GPU is slowed down by its power limit.",
        "noisy_neighbour": "Other programs use the late rank's node.",
        "slow_node": "All ranks of a node are late together.",
        "gc_pauses": "Python's garbage collector pauses the late rank.",
        "uneven_experts": "One expert receives most of the tokens, so its rank computes for longer.",
        "host_work": "The late rank takes longer for host work.",
        "compute": "The late rank computes for longer.",
        **_mesh.CODES,
    },
    sub_cause=_sub_cause,
    compares_ranks=(
        "thermal_throttling",
        "power_throttling",
        "noisy_neighbour",
        "slow_node",
        "gc_pauses",
        "uneven_experts",
        "stage_work",
    ),
    removes=_removes,
    # Somebody is always the last, and on a busy machine often the same one for a while.
    least_gain_pct=lambda policy: policy.straggler_pct / 2,
    unsupported=_unsupported,
    lowers={"load_balance": 1, "serialisation": 1, "communication": 3},
    actions=_actions,
    statement=_statement,
    needed=lambda seen, _: seen.job.world_size > 1,
    alike=None,
)
