"""GPU under-utilisation: compute kernels run too little of the time.

What it finds:
    The share of the step in which a compute kernel ran. Step records only give windows, which contain gaps
    between kernels. The driver's counter is therefore used if it is lower, because it is never below the true
    share.
Why it costs time:
    Training makes no progress while no compute kernel runs.
What to do:
    If the report names a cause, fix it first: this finding is then its symptom. Otherwise profile the host
    work of a step.
"""

from __future__ import annotations

from aorta.artefacts.analysis import Finding
from aorta.averages import fmean
from aorta.diagnosis.finding import FindingSpec, RuleResult, found, gain, measured, not_measured, value_words
from aorta.diagnosis.findings._mesh import ideal_bubble
from aorta.diagnosis.host_time import driver_busy_pct, windows_alone
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy

KIND = "gpu_underutilization"


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    threshold, unit, steps = policy.effective_gpu_utilization_pct, "% of time", seen.steps
    use = seen.monitored.utilization
    driver = use.gpu_util_pct if use else None
    effective = use.effective_gpu_util_pct if use else None
    reason = None
    if not seen.job.cuda:
        reason = "not measured: no GPU"
    elif not steps.enough(policy):
        reason = steps.too_little(policy)
    elif effective is None and driver is None:
        reason = f"not measured: no breakdown in the {steps.source}, and the driver reports no utilisation"
    counter = driver_busy_pct(seen)
    value = effective if effective is not None else driver
    if value is not None and counter is not None and counter < value:
        value = counter
    if reason or value is None:
        return not_measured(KIND, threshold, unit, reason or "not measured")
    bound = None
    if effective is None or value == counter:
        bound = "an upper bound: the driver's counter"
    elif counter is None and windows_alone(seen):
        bound = "an upper bound: compute windows include the gaps between kernels"
    most = 100.0 * (1.0 - ideal_bubble(seen))
    fired = value < threshold * most / 100.0
    if value < threshold and not fired:
        bound = (
            f"ok: the pipeline's own bubble leaves at most {most:.0f} % of the time, and kernels run for "
            f"{100.0 * value / most:.0f} % of that"
        )
    answer = measured(KIND, value, threshold, unit, fired=fired, reason=bound)
    if not answer.fired:
        return RuleResult(answer)
    step = steps.step_ms if steps.costs else 100.0
    idle = step * (1.0 - value / most)
    to_threshold = step * (1.0 - value / (threshold * most / 100.0))
    return found(
        answer,
        _cause(seen),
        {
            "effective_gpu_utilization_pct": effective,
            "driver_utilization_pct": driver,
            "step_ms": steps.step_ms if steps.costs else None,
            "files": [*steps.files, *seen.monitored.sample_files],
        },
        gain(step, to_threshold, idle),
        critical=value < threshold / 2,
    )


def _cause(seen: Observation) -> str:
    """Returns the largest part of the step in which no compute kernel runs; waits go to what makes them."""
    costs, missed = seen.steps.costs, seen.steps.replay_missed
    if not costs:
        return "no kernel runs for much of the time"
    if missed is not None:
        return (
            f"no compute kernel runs for much of the step; {missed}, and GPUs wait for host work for the rest"
        )
    parts = {
        "the host prepares work or waits": fmean(item.host_ms + item.own_host_wait_ms for item in costs),
        "data is loaded": fmean(item.loading_ms for item in costs),
        "data is exchanged between ranks": fmean(item.transfer_ms for item in costs),
        "ranks wait for slower ones": fmean(item.lateness_ms for item in costs),
        "data is copied": fmean(item.copy_ms for item in costs),
    }
    largest = max(parts, key=lambda name: parts[name])
    return f"no compute kernel runs for much of the step; most of that time {largest}"


def _cost(seen: Observation) -> float:
    costs = seen.steps.costs
    return fmean(item.step_ms - item.compute_ms for item in costs) if costs else 0.0


def _actions(_: Finding, seen: Observation) -> list[str]:
    config, actions = seen.job.config, []
    if config is not None:
        actions.append(
            f"raise training.batch_size (now {config.training.batch_size}): more work per kernel launch"
        )
        if not config.compile.enabled:
            actions.append("set compile.enabled to true: fused kernels need fewer launches")
        if not config.dataloader.pin_memory:
            actions.append(
                "set dataloader.pin_memory to true, so that copies to the GPU overlap with compute"
            )
    actions.append("profile the host work of a step: launches, Python between kernels, .item() and .cpu()")
    return actions


def _statement(finding: Finding, _: Observation) -> str:
    run = f"compute kernels run for {value_words(finding)} % of the time"
    return f"GPU under-utilisation: {run}: {finding.cause}."


SPEC = FindingSpec(
    kind=KIND,
    name="GPU under-utilisation",
    subject="GPU under-utilisation",
    value="time in which compute kernels run",
    value_of="",
    measured_from=(
        "compute time ÷ step time, or the driver's utilisation counter if that is lower (usually it is "
        "higher, because it counts waiting in NCCL as busy)"
    ),
    order=50,
    thresholds=("effective_gpu_utilization_pct",),
    fires_below=True,
    measure=_measure,
    cost=_cost,
    waits_for=(),
    of_host_time=False,
    of_kernel_kinds=True,
    waits=None,
    symptom_of=None,
    claims=None,
    yields=True,
    may_wait_for_missing=False,
    sub_causes={},
    sub_cause=None,
    compares_ranks=(),
    removes=None,
    least_gain_pct=None,
    unsupported=None,
    parts=None,
    lowers={"computation_scalability": 1},
    actions=_actions,
    statement=_statement,
    needed=lambda seen, _: seen.job.cuda,
    alike=None,
)
