#!/usr/bin/env python3
"""Draw an example report again from its kept JSON, whose run is not kept.

    python scripts/redraw_example.py docs/examples/h200

The numbers, findings and timelines are those of the JSON. Labels, tables and pictures are of this version.
Figures go through `results/examples/`, which is not in the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from msgspec.structs import replace

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.report import style
from aorta.report.aggregate import ScenarioReport
from aorta.report.bare import bare_page
from aorta.report.document import write_documents
from aorta.report.figure import run_figure
from aorta.report.front import FOLDER, NAME


def main() -> int:
    """Draw the report of one folder."""
    folder = Path(sys.argv[1])
    kept = read_json(folder / f"{NAME}.json", Aggregate)
    reports, pages = [], []
    for analysis, old in zip(kept.scenarios, kept.pages, strict=True):
        page = replace(
            bare_page(analysis),
            confidence=old.confidence,
            excerpt=old.excerpt,
            excerpt_absent=old.excerpt_absent,
            steps=old.steps,
            utilization=old.utilization,
        )
        name = analysis.scenario or "run"
        run = RunDir(Path(f"results/examples/{folder.name}/{name}/run_{analysis.job_id}"))
        timelines = (page.excerpt,) if page.excerpt is not None else ()
        scenario = Scenario(name)
        reports.append(ScenarioReport(scenario, run, analysis, page, timelines=timelines))
        pages.append(page)
        with style.styled():
            style.save(run_figure(analysis, page), run.plot_png, run.plot_svg)
    write_documents(folder, replace(kept, pages=pages), reports)
    for vector in (folder / FOLDER).glob("*.svg"):
        vector.unlink()
    document = folder / f"{NAME}.md"
    text = re.sub(
        r" · \[text report of [^]]*\]\([^)]*\)| ?\(\[as SVG\]\([^)]*\)\)",
        "",
        document.read_text(encoding="utf-8"),
    )
    document.write_text(re.sub(r"\[([^]]*)\]\(\.\./[^)]*\)", r"\1", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
