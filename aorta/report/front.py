"""The first screen over all scenarios, for every kind of document."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from aorta.artefacts.aggregate import Aggregate, Scaling
from aorta.artefacts.clean import plain
from aorta.report import content, sections
from aorta.report.aggregate import ScenarioReport, decisive
from aorta.report.blocks import Block, FactList, Heading, Line, Link, Paragraph, Picture, Strong
from aorta.units import plural

NAME = "BOTTLENECK_ANALYSIS"
FOLDER = "bottleneck_analysis"
"""The folder of the plots and the glossary, beside the document."""


def front(aggregate: Aggregate, reports: Sequence[ScenarioReport], docs: Path | None) -> Iterator[Block]:
    """The first screen: the verdict, the picture, what to do, scaling, trust, and where to read on.

    Args:
        aggregate: all scenarios.
        reports: of each scenario.
        docs: the folder of a document that shows pictures and links; None for a terminal.
    """
    main = decisive(reports)
    yield Heading("Bottleneck analysis", 1)
    yield Paragraph(Strong(aggregate.verdict.statement))
    if docs is not None and reports:
        yield Paragraph(content.headings([report.analysis for report in reports]))
    if docs is not None and reports:
        each = ", all scenarios side by side" if len(reports) > 1 else ""
        yield Picture(f"Where the time in a step goes{each}", f"{FOLDER}/overview")
    pairs: list[tuple[str, Line]] = []
    if main is not None:
        pairs += sections.summary(main.analysis, main.page, str(main.run.root)).pairs
    scaling = [(scaling_name(item), _scaling_words(item, reports)) for item in aggregate.scaling]
    trust = next((at for at, (name, _) in enumerate(pairs) if name.startswith("Confidence")), len(pairs))
    pairs[trust:trust] = [(name, said) for name, said in scaling if said]
    pairs += [("Missing", problem.reason) for problem in aggregate.missing[:2]]
    if len(aggregate.missing) > 2:
        pairs.append(("Missing", f"{len(aggregate.missing) - 2} more, listed under data quality"))
    yield (first := FactList(tuple(pairs)))
    if main is not None:
        # Two lists in a row would be one in Markdown, with its items far apart.
        yield Paragraph(Strong("Next"))
        yield from sections.next_block(str(main.run.root), first)
    if docs is not None:
        links: list[Link] = [
            Link("interactive report", f"{NAME}.html"),
            Link("JSON", f"{NAME}.json"),
            Link("terms", f"{FOLDER}/glossary.md"),
        ]
        if main is not None:
            links.append(Link(f"text report of {main.scenario.name}", relative(main.run.report, docs)))
        yield Paragraph(tuple(piece for link in links for piece in (link, " · "))[:-1])
    if main is not None and (said := sections.provenance(main.analysis)):
        yield FactList(tuple(said))


def scaling_name(scaling: Scaling) -> str:
    """The title of a family of scenarios."""
    return f"Scaling ({plain(scaling.family)})" if scaling.family else "Scaling"


def _scaling_words(scaling: Scaling, reports: Sequence[ScenarioReport]) -> str:
    """`4 nodes do the work of 1.9`; empty with fewer than two points."""
    if len(scaling.points) < 2:
        return ""
    first = next(
        (point for point in scaling.points if point.scenario == scaling.reference), scaling.points[0]
    )
    last = scaling.points[-1]
    said = f"{plural(last.nodes, 'node')} do the work of {first.nodes * last.speedup:.2g}"
    said += f" ({100 * last.efficiency:.0f} % efficiency)"
    machine = "; the nodes share one machine, so this is the scaling of that machine"
    return said + (machine if shares_machine(scaling, reports) else "")


def shares_machine(scaling: Scaling, reports: Sequence[ScenarioReport]) -> bool:
    """True if nodes of the family were one machine."""
    return any(
        content.spreads_one_machine(report.analysis)
        for report in reports
        if report.scenario.family == scaling.family
    )


def relative(path: Path, docs: Path) -> str:
    """`path` as a link in a document of the folder `docs`."""
    return Path(os.path.relpath(path.resolve(), docs.resolve())).as_posix()
