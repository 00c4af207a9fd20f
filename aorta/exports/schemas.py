"""JSON schemas of the files that aorta writes, from the types that write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.analysis import Analysis
from aorta.artefacts.attached import NodeStandstill
from aorta.artefacts.instrument_record import InstrumentRecord
from aorta.artefacts.io import write_exact
from aorta.artefacts.records import Manifest, MonitorStatus, NodeInfo, NodeStatus, RunStatus, SubmittedJob
from aorta.artefacts.reduction import TraceSummary
from aorta.artefacts.step_record import StepRecord
from aorta.artefacts.sweep import Sweep, SweepAnalysis

FILES: dict[str, tuple[type, str]] = {
    "profiling_analysis": (Analysis, "`profiling_analysis.json` of a run."),
    "BOTTLENECK_ANALYSIS": (Aggregate, "`BOTTLENECK_ANALYSIS.json`."),
    "SWEEP_ANALYSIS": (SweepAnalysis, "`SWEEP_ANALYSIS.json`."),
    "sweep": (Sweep, "`sweep.json` of a submission."),
    "jobs": (SubmittedJob, "One line of `jobs.jsonl` of a submission."),
    "manifest": (Manifest, "`manifest.json` of a run."),
    "status": (RunStatus, "`status.json` of a run."),
    "node": (NodeInfo, "`node.json` of a node."),
    "node_status": (NodeStatus, "`status.json` of a node."),
    "monitor_status": (MonitorStatus, "`monitor_status.json` of a node."),
    "standstill": (NodeStandstill, "`standstill.json` of a node."),
    "rank_metrics": (StepRecord, "One line of `rank_<rank>_metrics.jsonl`."),
    "rank_instrument": (InstrumentRecord, "`rank_<rank>_instrument.json`."),
    "trace_summary": (TraceSummary, "The summary of a rank's trace."),
}
"""Name of a schema to the type of its file and what it is."""


def schema(name: str) -> dict[str, Any]:
    """Returns the JSON schema (2020-12) of one of `FILES`."""
    kind, about = FILES[name]
    made = msgspec.json.schema(kind)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "description": about,
        **made,
    }


def text(name: str) -> str:
    """Returns `schema` as it is published."""
    return json.dumps(schema(name), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def write_schemas(folder: Path) -> list[Path]:
    """Write every schema into `folder`, and return the files."""
    paths = [folder / f"{name}.schema.json" for name in FILES]
    for name, path in zip(FILES, paths, strict=True):
        write_exact(path, text(name))
    return paths
