"""Utilisation by epoch: the columns of `metrics.csv` that only the monitors' samples can fill."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.files import read_regular
from aorta.artefacts.io import write_text
from aorta.artefacts.layout import RunDir
from aorta.artefacts.step_columns import StepColumns
from aorta.metrics.utilization import Window, sampled, utilization
from aorta.readers.run import RunData

if TYPE_CHECKING:
    import pandas as pd


_COLUMNS = {"gpu_util_avg": "gpu_util_pct", "cpu_util_avg": "cpu_pct"}
"""Column of `metrics.csv` to field of `Utilization`."""


def fill_epochs(run: RunDir, analysis: Analysis, data: RunData) -> None:
    """Write `gpu_util_avg` and `cpu_util_avg` (%, means over GPUs and nodes) of each epoch into the file.

    Only of a run that has ended, as its trainer appends to the file; a cell stays empty where no sample fell
    into the epoch. A file that is missing or is not of this form is left alone.
    """
    if analysis.data_quality.state in (None, "running") or (data.gpu is None and data.cpu is None):
        return
    try:
        text = read_regular(run.metrics_csv).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {"epoch", *_COLUMNS} <= rows[0].keys() or any(None in row for row in rows):
        return
    windows = _windows(data.records.by_rank)
    for row in rows:
        found = _utilization(windows.get(str(row["epoch"]), {}), data.gpu, data.cpu)
        row.update({column: "" if value is None else f"{value:.2f}" for column, value in found.items()})
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if out.getvalue() != text:
        write_text(run.metrics_csv, out.getvalue())


def _windows(by_rank: Mapping[int, StepColumns]) -> dict[str, dict[str, Window]]:
    """Epoch to each host's first step's start and last step's end in it, wall-clock ns."""
    windows: dict[str, dict[str, Window]] = {}
    for steps in by_rank.values():
        for label in steps.labels:
            if label.epoch is None:
                continue
            those = steps.where(steps.labelled(label))
            first, last = int(those.column("wall_start_ns").min()), int(those.column("wall_end_ns").max())
            hosts = windows.setdefault(str(label.epoch), {})
            start, end = hosts.get(label.host, (first, last))
            hosts[label.host] = min(start, first), max(end, last)
    return windows


def _utilization(
    windows: Mapping[str, Window], gpu: pd.DataFrame | None, cpu: pd.DataFrame | None
) -> dict[str, float | None]:
    if not windows:
        return dict.fromkeys(_COLUMNS)
    found = utilization(sampled(windows, gpu, cpu), None)
    return {column: getattr(found, field) for column, field in _COLUMNS.items()}
