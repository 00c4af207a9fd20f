"""Raw traces analysed: what `analyze` does with anything that is no run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aorta.artefacts.analysis import Analysis


def analyze_traces(paths: Sequence[Path]) -> Analysis:
    """Read and analyse the traces and samples among files and folders.

    Raises:
        ArtefactError: nothing of it is a usable trace.
    """
    from aorta.diagnosis.traces import analyse_traces
    from aorta.metrics.trace_summary import summarise
    from aorta.readers.sample_files import find_samples
    from aorta.readers.traces import read_traces

    found = read_traces(paths)
    samples, problems = find_samples(paths)
    summaries = [summarise(trace) for trace in found.traces]
    return analyse_traces(summaries, samples, [*found.problems, *problems])
