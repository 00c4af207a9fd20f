"""Stall: a rank stood still, and all other ranks waited for it.

What it finds:
    Steps, and gaps between steps, that take at least 10 times the median step. The value is their share of
    the time that the records cover. The first two steps do not count. Neither does anything that happens in
    more than one step of 20.
Why it costs time:
    Ranks depend on each other, so a single rank that stands still stops all of them. Averages over steady
    steps hide this.
What to do:
    Find out what happened on that node at that time: check its log, other programs, the file systems and the
    output of the rank. A process that was stopped or swapped out shows no work at all.
"""

from __future__ import annotations

from aorta.artefacts.analysis import Finding, Speedup
from aorta.diagnosis.finding import (
    MOST,
    FindingSpec,
    Found,
    RuleResult,
    found,
    measured,
    not_measured,
)
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.metrics.places import where
from aorta.units import rank_words

KIND = "stall"
UNIT = "% of the measured time"
_STATES = {
    "stopped": "stopped by a signal or a debugger",
    "blocked": "blocked in the kernel, usually waiting for a disk or for memory",
}


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    threshold, stall = policy.stall_pct, seen.stall
    if not seen.recorded_steps:
        return not_measured(KIND, threshold, UNIT, "not measured: too few steps were recorded")
    value = 100.0 * stall.share if stall is not None else 0.0
    made = measured(KIND, value, threshold, UNIT, fired=value > threshold)
    if stall is None or not made.fired:
        return RuleResult(made)
    ranks = list(stall.ranks)
    return found(
        made,
        _words(seen),
        {
            "step": stall.step,
            "between_steps": stall.where == "between",
            "seconds": stall.seconds,
            "stalls": stall.pieces,
            "process_state": stall.state,
            "files": list(seen.steps.files),
        },
        Speedup(low=1.0, high=1.0 / max(1.0 - stall.share, 0.01)),
        ranks=ranks,
        nodes=seen.job.nodes(ranks),
    )


def _words(seen: Observation) -> str:
    """Returns what happened, such as `step 92 took 20.0 s on rank 1: 80 % of the measured time`."""
    stall = seen.stall
    if stall is None:
        return ""
    who = "all ranks" if len(stall.ranks) == seen.job.world_size > 1 else rank_words(list(stall.ranks))
    what = f"step {stall.step} took" if stall.where == "step" else f"after step {stall.step} there were"
    took = f"{stall.seconds:.1f} s" if stall.seconds >= 0.1 else f"{1000 * stall.seconds:.3g} ms"
    text = f"{what} {took} on {who}"
    if stall.where == "between":
        text += " without a step"
    if stall.waiting:
        text += ", in communication; it is not known which rank stood still"
    if stall.state is not None:
        text += f", whose process was {_STATES[stall.state]}"
    if stall.pieces > 1:
        text += f", the longest of {stall.pieces} stalls"
    return f"{text}: {100 * stall.share:.0f} % of the measured time"


def _statement(finding: Finding, _: Observation) -> str:
    words = finding.cause
    return f"{words[:1].upper()}{words[1:]}."


def _cost(seen: Observation) -> float:
    return seen.stall.cost_ms if seen.stall is not None else 0.0


def _claims(spec: FindingSpec, _: Finding, __: Found, seen: Observation, ___: Policy) -> bool:
    """Returns True if another finding takes its time mostly from the stall: averages hold it too."""
    other = spec.cost(seen) if spec.cost is not None else 0.0
    return 0.0 < other * MOST <= _cost(seen)


def _parts(finding: Finding, seen: Observation) -> tuple[str, ...]:
    """Returns all parts of the step if one place explains most of the stall; otherwise no part."""
    from aorta.artefacts.instrument_record import PARTS  # traces have none

    share = seen.stall.share if seen.stall is not None else 0.0
    place = where(seen.host.stacks, finding.ranks, PARTS) if finding.ranks else None
    explains = place is not None and place.longer is not None and place.longer >= MOST * share
    return PARTS if explains else ()


def _actions(finding: Finding, _: Observation) -> list[str]:
    where = f" on {', '.join(finding.nodes)}" if finding.nodes else ""
    return [
        f"look at what happened{where} at that time: the system's log, other programs, file systems",
        "read the named rank's output around that step",
    ]


SPEC = FindingSpec(
    kind=KIND,
    name="stall",
    subject="a stall",
    value="steps and gaps between steps that each last at least 10 × the median step",
    value_of="",
    measured_from="all steps, including warm-up",
    order=5,
    thresholds=("stall_pct",),
    fires_below=False,
    measure=_measure,
    cost=_cost,
    waits_for=(),
    of_host_time=False,
    of_kernel_kinds=False,
    waits=None,
    symptom_of=None,
    claims=_claims,
    yields=False,
    may_wait_for_missing=True,
    sub_causes={},
    sub_cause=None,
    compares_ranks=(),
    removes=None,
    least_gain_pct=None,
    unsupported=None,
    needed=None,
    alike=None,
    parts=_parts,
    lowers={},
    actions=_actions,
    statement=_statement,
)
