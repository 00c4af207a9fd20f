"""Turns what was read into an `Analysis`: an adapter makes one observation, and `judge` judges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from aorta.artefacts.analysis import Analysis, DataQuality, Problem, RunFacts, ThresholdChange, Verdict
from aorta.artefacts.flight import Recording
from aorta.artefacts.operations import Operations
from aorta.artefacts.reduction import TraceSummary
from aorta.config.thresholds import Thresholds
from aorta.diagnosis.findings import INSUFFICIENT
from aorta.diagnosis.from_operations import from_operations
from aorta.diagnosis.from_records import from_records
from aorta.diagnosis.from_traces import from_traces, with_traces
from aorta.diagnosis.hang import hang_of_recordings
from aorta.diagnosis.judge import judge
from aorta.diagnosis.observation import Observation, ObservedJob, ObservedSteps
from aorta.diagnosis.policy import Policy
from aorta.metrics.standstill import why_none
from aorta.metrics.trace_capture import captures
from aorta.readers.run import RunData
from aorta.readers.run_traces import RunTraces
from aorta.readers.sample_files import SampleFile
from aorta.units import rank_words


@dataclass(frozen=True, slots=True)
class AppliedThresholds:
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


def analyse(
    data: RunData,
    traces: RunTraces | None = None,
    others: Sequence[Analysis] = (),
    overrides: Sequence[str] = (),
) -> Analysis:
    """Returns metrics, findings and verdict of one run; whatever is missing, there is an answer.

    Args:
        data: what the run directory holds.
        traces: of the run's ranks. Where they cover all of them, breakdown, waits and verdict are theirs;
            throughput is always the records'.
        others: analyses of other runs; those that repeat this one say by how much runs of it differ.
        overrides: of thresholds, `thresholds.KEY=VALUE`, for this analysis alone.
    """
    config = data.account.config
    limits = AppliedThresholds.of(config.thresholds if config is not None else Thresholds(), overrides)
    seen = from_records(data, others)
    if traces is None:
        return limits.judged(seen)
    joined = with_traces(seen, traces, data, limits.policy(traced=True))
    if joined.steps is seen.steps:
        return limits.judged(joined)
    made, alone = limits.judged(joined), limits.judged(seen).verdict
    whose = _contradiction(made.verdict, alone)
    against = [f"the step records alone give {whose}"] if whose else []
    said = [f"sources contradict each other: {text}" for text in against]
    return _with_notes(made, [*made.data_quality.notes, *said], against)


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

    Traces of several formats are of several runs of one job: the format with the most ranks, then the one
    with sizes of collectives, then the most steps, is analysed; if another one leads to a different verdict,
    a note says so.
    """
    found, limits = captures(summaries), AppliedThresholds.of(Thresholds(), overrides)
    every = list(dict.fromkeys([*(item for summary in summaries for item in summary.problems), *problems]))
    chosen, *others = [limits.judged(from_traces(item, samples, every)) for item in found]
    notes, against = [], []
    for item, other in zip(found[1:], others, strict=True):
        note = f"the breakdown is of {found[0].words()}, not of {item.words()}: they are different runs"
        whose = _contradiction(chosen.verdict, other.verdict)
        if whose:
            against.append(f"{item.format} alone gives {whose}")
            note += f"; they contradict each other: {against[-1]}"
        notes.append(note)
    return _with_notes(chosen, [*notes, *chosen.data_quality.notes], against)


def analyse_recordings(recordings: Sequence[Recording], problems: Sequence[Problem] = ()) -> Analysis:
    """Returns the ranks that hold up the job of these flight recorders; the recorders' ranks must be known.

    Args:
        recordings: one per rank.
        problems: what was wrong with other files.
    """
    members = {rank for item in recordings for group in item.groups.values() for rank in group.ranks}
    size = max(members, default=-1) + 1 or None
    seen = Observation(
        job=ObservedJob(world_size=size or len(recordings), known=False),
        steps=ObservedSteps(source="flight recorders"),
        facts=RunFacts(world_size=size, hang=hang_of_recordings(recordings)),
        quality=DataQuality(
            ranks_expected=size,
            ranks_seen=len(recordings),
            sources=["flight recorders"],
            problems=list(problems),
        ),
    )
    made = judge(seen, Policy.of(traced=True))
    if seen.facts.hang is not None:
        return made
    why = f"{why_none(recordings)} Speed is not measured by flight recorders."
    return msgspec.structs.replace(made, verdict=msgspec.structs.replace(made.verdict, statement=why))


def analyse_operations(job: Operations, name: str, problems: Sequence[Problem] = ()) -> Analysis:
    """Returns metrics, findings and verdict of a timeline of operations.

    Args:
        job: its operations.
        name: of the file.
        problems: what was wrong with other files.
    """
    return judge(from_operations(job, name, problems), Policy.of(traced=True))


def _contradiction(mine: Verdict, other: Verdict) -> str | None:
    """Returns another source's verdict in words where it is a different one; None where it is not."""
    if other.kind == INSUFFICIENT or (mine.kind, mine.ranks) == (other.kind, other.ranks):
        return None
    return other.kind + (f" on {rank_words(other.ranks)}" if other.ranks else "")


def _with_notes(made: Analysis, notes: Sequence[str], against: Sequence[str]) -> Analysis:
    quality = msgspec.structs.replace(made.data_quality, notes=list(notes), contradictions=list(against))
    return msgspec.structs.replace(made, data_quality=quality)
