"""The report of one run: `profiling_report.txt`, `profiling_analysis.png` and `.svg`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import write_text
from aorta.artefacts.layout import RunDir
from aorta.artefacts.page import RunPage
from aorta.diagnosis.findings import kind_name
from aorta.report import content, sections
from aorta.report.bare import bare_page
from aorta.report.blocks import Block, FactList, Heading, Paragraph
from aorta.report.glossary import glossary
from aorta.report.render import to_text

if TYPE_CHECKING:
    from aorta.readers.run import RunData


def write_run_report(run: RunDir, analysis: Analysis, page: RunPage, data: RunData) -> None:
    """Write the text report and the figure beside the run's data; the same inputs give the same bytes.

    `metrics.csv` of a run that has ended gets its utilisation columns, from the samples.
    """
    from aorta.report import style
    from aorta.report.epochs import fill_epochs
    from aorta.report.figure import run_figure

    write_text(run.report, run_text(analysis, page, str(run.root)))
    with style.styled():
        style.save(run_figure(analysis, page), run.plot_png, run.plot_svg)
    fill_epochs(run, analysis, data)


def verdict(analysis: Analysis) -> list[Block]:
    """The kind of the verdict and its sentence."""
    return [
        Heading(f"Verdict: {kind_name(analysis.verdict.kind)}", 3),
        Paragraph(analysis.verdict.statement),
    ]


def run_text(analysis: Analysis, page: RunPage | None = None, run: str | None = None) -> str:
    """The whole report in plain text, at most 100 columns where the data's own words allow it.

    Args:
        analysis: of the run, or of raw traces.
        page: what else is known of a run; None for raw traces.
        run: path of the run directory; None for raw traces.
    """
    page = page or bare_page(analysis)
    summary = sections.summary(analysis, page, run)
    blocks: list[Block] = [
        Heading("aorta profiling report", 1),
        Paragraph(content.heading(analysis)),
        *verdict(analysis),
        summary,
        *([FactList(tuple(said))] if (said := sections.provenance(analysis)) else []),
        *([Heading("Next"), *sections.next_block(run, summary)] if run is not None else []),
        *sections.details(analysis, page, charts=False),
        Heading("Terms"),
        glossary(),
    ]
    return to_text(blocks)
