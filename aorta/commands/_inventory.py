"""Describes what lies below a results folder: runs and reports, each with its time and its verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from aorta.artefacts.files import changed_ns, walk
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario, runs
from aorta.artefacts.records import Manifest, RunStatus
from aorta.commands._reports import FAMILIES, KeptReport, kept_reports, report_in
from aorta.errors import ArtefactError


class _Verdict(msgspec.Struct):
    kind: str
    statement: str


class _Analysed(msgspec.Struct):
    """Says what a list shows of an analysis, or of a report over several."""

    verdict: _Verdict | None = None
    statement: str | None = None
    """Statement of a sweep, which has no verdict."""


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    """A run or a report; None is what its files do not say.

    Attributes:
        what: a run, the report that was written last, or an earlier one.
        name: the scenario of a run, the document of a report.
        wall_ns: when the run started, or when the newest input of the report was written.
    """

    what: Literal["run", "report", "earlier report"]
    name: str
    wall_ns: int | None
    job_id: str | None
    state: str | None
    verdict: str | None
    path: Path

    def as_object(self) -> dict[str, object]:
        """The entry for `--json`."""
        return {
            "what": self.what,
            "name": self.name,
            "wall_ns": self.wall_ns,
            "job_id": self.job_id,
            "state": self.state,
            "verdict": self.verdict,
            "path": str(self.path),
        }


def inventory(results: Path, docs: Path) -> list[InventoryEntry]:
    """Every run and report, the newest first; what says no time comes last."""
    found = [*(_run(scenario, run) for scenario, run in runs(results)), *_reports(results, docs)]
    return sorted(found, key=lambda entry: entry.wall_ns or 0, reverse=True)


def _run(scenario: Scenario, run: RunDir) -> InventoryEntry:
    manifest = own_manifest(run)
    try:
        state: str | None = read_json(run.status, RunStatus).state
    except ArtefactError:
        state = None
    return InventoryEntry(
        what="run",
        name=scenario.name,
        wall_ns=manifest.started_wall_ns if manifest is not None else None,
        job_id=run.root.name.removeprefix("run_"),
        state=state,
        verdict=_verdict(run.analysis),
        path=run.root,
    )


def own_manifest(run: RunDir) -> Manifest | None:
    """The manifest of a run, if it is of this very folder: the mark of a folder that aorta made."""
    try:
        manifest = read_json(run.manifest, Manifest)
    except ArtefactError:
        return None
    return manifest if run.root.name == f"run_{manifest.job_id}" else None


def _reports(results: Path, docs: Path) -> Iterator[InventoryEntry]:
    newest = [report for name in FAMILIES if (report := report_in(docs, name)) is not None]
    for report in newest:
        yield _report("report", report)
    for report in kept_reports(results):
        yield _report("earlier report", report)


def _report(what: Literal["report", "earlier report"], report: KeptReport) -> InventoryEntry:
    verdict = _verdict(report.json)
    return InventoryEntry(what, report.name, report.generated_wall_ns, None, None, verdict, report.markdown)


def _verdict(path: Path) -> str | None:
    try:
        found = read_json(path, _Analysed)
    except ArtefactError:
        return None
    return found.verdict.statement if found.verdict is not None else found.statement


def last_change_ns(folder: Path) -> int:
    """The newest change of anything in `folder`."""
    return max([changed_ns(folder), *(changed_ns(path) for path in walk(folder))])
