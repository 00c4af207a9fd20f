"""What was read to an `Analysis`: an adapter makes one observation, `judge` judges it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aorta.artefacts.analysis import Analysis, DataQuality, Problem, Verdict
from aorta.artefacts.flight import Recording
from aorta.artefacts.reduction import TraceSummary
from aorta.diagnosis.findings import INSUFFICIENT
from aorta.diagnosis.from_records import from_records
from aorta.diagnosis.from_traces import Recorded, from_traces, with_traces
from aorta.diagnosis.hang import hang_of_recordings
from aorta.diagnosis.judge import judge
from aorta.diagnosis.observation import Facts, Job, Observation, Steps
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.run_traces import RunTraces
from aorta.metrics.trace_capture import captures
from aorta.readers.run import RunData
from aorta.readers.run_identity import boot_epochs, nodes_of
from aorta.readers.sample_files import SampleFile
from aorta.units import rank_words


def analyse(data: RunData, traces: RunTraces | None = None, others: Sequence[Analysis] = ()) -> Analysis:
    """Returns metrics, findings and verdict of one run; whatever is missing, there is an answer.

    Args:
        data: what the run directory holds.
        traces: of the run's ranks. Where they cover all of them, breakdown, waits and verdict are theirs;
            throughput is always the records'.
        others: analyses of other runs; those that repeat this one say by how much runs of it differ.
    """
    seen, policy = from_records(data, others), Policy.of(data.account.config)
    if traces is None:
        return judge(seen, policy)
    recorded = Recorded(data.records.by_rank, data.ranks_expected, nodes_of(data), boot_epochs(data))
    joined = with_traces(seen, traces, recorded, policy.for_traces())
    if joined.steps is seen.steps:
        return judge(joined, policy)
    made, alone = judge(joined, policy.for_traces()), judge(seen, policy).verdict
    whose = _contradiction(made.verdict, alone)
    said = f"sources contradict each other: the step records alone give {whose}"
    return _with_notes(made, [*made.data_quality.notes, *([said] if whose else [])])


def analyse_traces(
    summaries: Sequence[TraceSummary],
    samples: Sequence[SampleFile] = (),
    problems: Sequence[Problem] = (),
) -> Analysis:
    """Returns metrics, findings and verdict of the ranks' traces.

    Args:
        summaries: of each format and rank one.
        samples: of GPUs and hosts while they were made.
        problems: what was wrong with other traces and with the samples.

    Traces of several formats are of several runs of one job: the format with the most ranks, then the most
    steps, is analysed; if another one leads to a different verdict, a note says so.
    """
    found, policy = captures(summaries), Policy.of(None).for_traces()
    every = [*(problem for summary in summaries for problem in summary.problems), *problems]
    chosen, *others = [judge(from_traces(item, samples, every), policy) for item in found]
    notes = []
    for item, other in zip(found[1:], others, strict=True):
        note = f"the breakdown is of {found[0].words()}, not of {item.words()}: they are different runs"
        whose = _contradiction(chosen.verdict, other.verdict)
        also = f"; they contradict each other: {item.format} alone gives {whose}"
        notes.append(note + (also if whose else ""))
    return _with_notes(chosen, [*notes, *chosen.data_quality.notes])


def analyse_recordings(recordings: Sequence[Recording], problems: Sequence[Problem] = ()) -> Analysis:
    """Returns who holds the job of these flight recorders up; their ranks must be known.

    Args:
        recordings: one per rank.
        problems: what was wrong with other files.
    """
    members = {rank for item in recordings for group in item.groups.values() for rank in group.ranks}
    size = max(members, default=-1) + 1 or None
    seen = Observation(
        job=Job(world_size=size or len(recordings), known=False),
        steps=Steps(source="flight recorders"),
        facts=Facts(world_size=size, hang=hang_of_recordings(recordings)),
        quality=DataQuality(
            ranks_expected=size,
            ranks_seen=len(recordings),
            sources=["flight recorders"],
            problems=list(problems),
        ),
    )
    return judge(seen, Policy.of(None).for_traces())


def _contradiction(mine: Verdict, other: Verdict) -> str | None:
    """Returns another source's verdict in words where it is a different one; None where it is not."""
    if other.kind == INSUFFICIENT or (mine.kind, mine.ranks) == (other.kind, other.ranks):
        return None
    return other.kind + (f" on {rank_words(other.ranks)}" if other.ranks else "")


def _with_notes(made: Analysis, notes: Sequence[str]) -> Analysis:
    quality = msgspec.structs.replace(made.data_quality, notes=list(notes))
    return msgspec.structs.replace(made, data_quality=quality)
