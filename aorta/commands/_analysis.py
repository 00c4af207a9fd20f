"""One run analysed: what `analyze` and `aggregate` share."""

from __future__ import annotations

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import RunDir
from aorta.diagnosis.analyse import analyse
from aorta.readers.run import RunData, read_run


def analyze_run(run: RunDir, *, query_accounting: bool = True) -> tuple[Analysis, RunData]:
    """Read and analyse a run; nothing that is missing or broken in it is fatal.

    Args:
        run: the run directory, which gets its merged monitor files and `sacct_summary.txt`.
        query_accounting: ask Slurm about the job.
    """
    data = read_run(run, query_accounting=query_accounting)
    return analyse(data), data
