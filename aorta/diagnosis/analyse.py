"""Turns raw traces into an `Analysis`: an adapter makes one observation, and `judge` judges it.

Runs, flight recorders and timelines of operations have modules of their own, which traces need not import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from aorta.artefacts.analysis import Analysis, Problem, ThresholdChange, Verdict
from aorta.artefacts.reduction import TraceSummary
from aorta.config.thresholds import Thresholds
from aorta.diagnosis.findings import INSUFFICIENT
from aorta.diagnosis.from_traces import from_traces
from aorta.diagnosis.judge import judge
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.metrics.trace_capture import captures
from aorta.units import rank_words

if TYPE_CHECKING:
    from aorta.readers.sample_files import SampleFile


class AppliedThresholds(Struct, frozen=True):
    """The thresholds of an analysis, before and after what was changed for it."""

    before: Thresholds
    now: Thresholds

    @classmethod
    def of(cls, before: Thresholds, overrides: Sequence[str]) -> AppliedThresholds:
        """Returns the thresholds with `overrides` applied."""
        if not overrides:
            return cls(before, before)
        from aorta.config.load import override_thresholds

        return cls(before, override_thresholds(before, overrides))

    def policy(self, *, traced: bool) -> Policy:
        """Returns the policy in force."""
        return Policy.of(self.now, traced=traced)

    def judged(self, seen: Observation) -> Analysis:
        """Returns the analysis, which says what was changed."""
        policy = self.policy(traced=seen.steps.traced)
        made = judge(seen, policy)
        before = Policy.of(self.before, traced=seen.steps.traced).as_dict()
        changed = {
            key: ThresholdChange(before=before[key], now=value)
            for key, value in policy.as_dict().items()
            if value != before[key]
        }
        found: Analysis = msgspec.structs.replace(made, thresholds_changed=changed)
        return found


def analyse_traces(
    summaries: Sequence[TraceSummary],
    samples: Sequence[SampleFile] = (),
    problems: Sequence[Problem] = (),
    overrides: Sequence[str] = (),
) -> Analysis:
    """Returns metrics, findings and verdict of the ranks' traces.

    Args:
        summaries: of each format and rank one.
        samples: of GPUs and hosts while they were made.
        problems: what was wrong with other traces and with the samples.
        overrides: of thresholds, `thresholds.KEY=VALUE`.

    Traces of several formats come from several runs of one job. The format with the most ranks is analysed,
    then the one with sizes of collectives, then the one with the most steps. If another format leads to a
    different verdict, a note says so.
    """
    found, limits = captures(summaries), AppliedThresholds.of(Thresholds(), overrides)
    every = list(dict.fromkeys([*(item for summary in summaries for item in summary.problems), *problems]))
    chosen, *others = [limits.judged(from_traces(item, samples, every)) for item in found]
    notes, against = [], []
    for item, other in zip(found[1:], others, strict=True):
        note = f"the breakdown uses {found[0].words()}, not {item.words()}, because these are different runs"
        whose = contradiction(chosen.verdict, other.verdict)
        if whose:
            against.append(f"{item.format} alone gives {whose}")
            note += f"; they contradict each other: {against[-1]}"
        notes.append(note)
    return with_notes(chosen, [*notes, *chosen.data_quality.notes], against)


def contradiction(mine: Verdict, other: Verdict) -> str | None:
    """Returns another source's verdict in words where it is a different one; None where it is not."""
    if other.kind == INSUFFICIENT or (mine.kind, mine.ranks) == (other.kind, other.ranks):
        return None
    return other.kind + (f" on {rank_words(other.ranks)}" if other.ranks else "")


def with_notes(made: Analysis, notes: Sequence[str], against: Sequence[str]) -> Analysis:
    """Returns the analysis with these notes, and the sources that contradict its own."""
    quality = msgspec.structs.replace(made.data_quality, notes=list(notes), contradictions=list(against))
    return msgspec.structs.replace(made, data_quality=quality)
