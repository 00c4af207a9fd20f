"""From a synthetic run to its analysis, and what of it a test asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aorta.artefacts.analysis import Analysis, Finding, Kind, RuleMeasurement
from aorta.artefacts.layout import RunDir
from aorta.diagnosis.analyse_run import analyse
from aorta.readers.run import read_run
from tests.support.synthetic import RunSpec, write_run


def analysed(run: RunDir) -> Analysis:
    return analyse(read_run(run, query_accounting=False))


def made(tmp_path: Path, **spec: Any) -> Analysis:
    return analysed(write_run(tmp_path, RunSpec(**spec)))


def finding(analysis: Analysis, kind: Kind) -> Finding | None:
    return next((item for item in analysis.findings if item.kind == kind), None)


def measured(analysis: Analysis, kind: Kind) -> RuleMeasurement:
    return next(item for item in analysis.measured if item.kind == kind)


def change_records(run: RunDir, rank: int, **fields: Any) -> None:
    lines = [
        json.dumps({**json.loads(line), **fields}) for line in run.records(rank).read_text().splitlines()
    ]
    run.records(rank).write_text("\n".join(lines) + "\n")


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def reasons(analysis: Analysis) -> list[str]:
    """Why there is no verdict."""
    assert analysis.verdict.kind in ("insufficient_data", "incomplete")
    (only,) = analysis.findings
    found: list[str] = only.evidence["reasons"]
    return found
