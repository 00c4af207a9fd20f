"""All scenarios together: whose verdict is the whole's, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from aorta.artefacts.aggregate import Aggregate, Scaling
from aorta.artefacts.analysis import Analysis, Finding, Problem, Speedup, Verdict
from aorta.artefacts.clean import plain
from aorta.artefacts.page import Excerpt, Recommendation, ReportSummary, RunPage
from aorta.artefacts.records import SubmittedJob
from aorta.diagnosis.findings import kind_name
from aorta.report import content
from aorta.report.text import ABSENT, gain, short

if TYPE_CHECKING:
    from aorta.artefacts.layout import RunDir, Scenario

NO_CAUSE = frozenset({"healthy", "insufficient_data"})
"""Verdicts that name no cause."""
_LONGEST_NAME = 60


class ScenarioReport(Struct, frozen=True):
    """A scenario, the run that stands for it, and what was found.

    Attributes:
        page: what the report shows of the run.
        note: why this run was taken, where that is not obvious; else empty.
        timelines: the longest step of all ranks and a typical one, as far as they are known.
        asked: False: older than the newest submission; listed, and never the verdict of the whole.
        program: what the submission says that the run's job runs. None if not known.
    """

    scenario: Scenario
    run: RunDir
    analysis: Analysis
    page: RunPage
    note: str = ""
    timelines: tuple[Excerpt, ...] = ()
    asked: bool = True
    program: str | None = None


def rank_time_ms(analysis: Analysis, finding: Finding | None) -> float:
    """Cost of a cause over all ranks: its ms per step × ranks; 0 where no gain was predicted."""
    price = content.cost(analysis, finding) if finding is not None else None
    return price[0] * len(analysis.breakdown.per_rank) if price is not None else 0.0


def decisive(reports: Sequence[ScenarioReport]) -> ScenarioReport | None:
    """The scenario whose verdict is that of the whole.

    Only runs that were asked for count (`ScenarioReport.asked`). This is the scenario whose cause costs the
    most rank-time per step (`rank_time_ms`), which is usually the largest scenario. Without any cause, it is
    the largest healthy scenario, otherwise the largest. None where no run that was asked for has a report.
    """
    reports = [report for report in reports if report.asked]

    def size(report: ScenarioReport) -> tuple[int, int, str]:
        return report.analysis.world_size or 0, report.scenario.nodes, report.scenario.name

    def lost(report: ScenarioReport) -> float:
        return rank_time_ms(report.analysis, content.main_finding(report.analysis))

    causes = [report for report in reports if report.analysis.verdict.kind not in NO_CAUSE]
    if causes:
        return max(causes, key=lambda report: (lost(report), size(report)))
    healthy = [report for report in reports if report.analysis.verdict.kind == "healthy"]
    return max(healthy or reports, key=size, default=None)


def recommendations(reports: Sequence[ScenarioReport]) -> list[Recommendation]:
    """Returns one entry per kind of cause (symptoms have none), the largest predicted gain first."""
    by_kind: dict[str, list[tuple[ScenarioReport, Finding]]] = {}
    for report in reports:
        for finding in report.analysis.findings:
            if finding.symptom_of is None and finding.kind not in NO_CAUSE:
                by_kind.setdefault(kind_name(finding.kind), []).append((report, finding))
    found = []
    for kind, pairs in by_kind.items():
        report, best = max(pairs, key=lambda pair: predicted(pair[1]))
        ordered = [best, *[finding for _, finding in pairs if finding is not best]]
        gained = best.estimated_speedup
        found.append(
            Recommendation(
                kind=kind,
                scenarios=list(dict.fromkeys(pair[0].scenario.name for pair in pairs)),
                best_scenario=report.scenario.name,
                speedup=gained.expected if gained is not None else None,
                speedup_low=gained.low if gained is not None else None,
                speedup_high=gained.high if gained is not None else None,
                actions=list(dict.fromkeys(action for finding in ordered for action in finding.actions)),
            )
        )
    return sorted(found, key=lambda item: (-(item.speedup or item.speedup_high or 0.0), item.kind))


def predicted(finding: Finding) -> float:
    """The speed-up by which findings are ordered; 0 without one."""
    gained = finding.estimated_speedup
    return 0.0 if gained is None else gained.expected or gained.high


def gain_words(item: Recommendation) -> str:
    """`1.35× (1.22× to 1.48×) in 4node`, `at most 1.50× in 4node`, or `—`."""
    if item.speedup_low is None or item.speedup_high is None:
        return ABSENT
    gained = Speedup(low=item.speedup_low, high=item.speedup_high, expected=item.speedup)
    where = "" if item.scenarios == [item.best_scenario] else f" in {item.best_scenario}"
    return f"{gain(gained)}{where}"


def sentence(item: Recommendation) -> str:
    """The recommendation as one line."""
    said = gain_words(item)
    said = "gain not predicted" if said == ABSENT else f"predicted gain {said}"
    actions = " ".join(plain(action).rstrip(".") + "." for action in item.actions)
    return f"{item.kind} ({', '.join(item.scenarios)}; {said}): {actions}"


def build(
    reports: Sequence[ScenarioReport],
    scaling: Sequence[Scaling],
    missing: Sequence[Problem],
    generated_wall_ns: int,
    silent: Sequence[SubmittedJob] = (),
) -> Aggregate:
    """The record behind the document.

    Args:
        reports: one per scenario, in the order of the document.
        scaling: one per family.
        missing: scenarios that gave nothing.
        generated_wall_ns: the newest input's time, so that the same inputs give the same document.
        silent: jobs of the submission that wrote nothing.
    """
    main = decisive(reports)
    if main is None:
        verdict = Verdict(kind="insufficient_data", statement=_nothing(reports, silent), ranks=[])
    else:
        said = main.analysis.verdict
        verdict = Verdict(
            kind=said.kind,
            statement=_headline(main, said.statement, alone=len(reports) == 1 and not missing),
            ranks=said.ranks,
        )
    todo = recommendations(reports)
    return Aggregate(
        generated_wall_ns=generated_wall_ns,
        verdict=verdict,
        scenarios=[report.analysis for report in reports],
        scaling=list(scaling),
        missing=list(missing),
        recommendations=[sentence(item) for item in todo],
        summary=_summary(main, missing) if main is not None else None,
        pages=[report.page for report in reports],
        recommended=todo,
    )


def _headline(main: ScenarioReport, statement: str, *, alone: bool) -> str:
    """The statement, with its scenario unless it is the only one, and with a program of the user's own."""
    if not alone:
        return f"{_named(main.scenario.name, main.program)}: {statement}"
    return f"{short(main.program, _LONGEST_NAME)}: {statement}" if main.program else statement


def _named(scenario: str, program: str | None) -> str:
    """`4node`, or `4node (my_train.py)` for a program of the user's own."""
    return f"{scenario} ({short(program, _LONGEST_NAME)})" if program else scenario


def _nothing(reports: Sequence[ScenarioReport], silent: Sequence[SubmittedJob]) -> str:
    """The statement where no run that was asked for could be analysed."""
    jobs = ", ".join(_named(job.scenario, job.program) for job in silent)
    said = f"The newest submission has written nothing: {jobs}." if jobs else "No scenario could be analysed."
    return f"{said} The runs below are older." if reports else said


def _summary(main: ScenarioReport, missing: Sequence[Problem]) -> ReportSummary:
    """The first screen; runs that gave nothing lower the confidence in what the others say of the whole."""
    finding, found = content.main_finding(main.analysis), main.page.confidence
    if missing:
        found = msgspec.structs.replace(
            found,
            level="medium" if found.level == "high" else found.level,
            doubts=[
                *found.doubts,
                f"{len(missing)} run{'s' if len(missing) > 1 else ''} missing, listed below",
            ],
        )
    return ReportSummary(
        scenario=main.scenario.name,
        step_ms=main.page.step_ms,
        cost_ms=main.page.cost_ms,
        cost_pct=main.page.cost_pct,
        actions=list(finding.actions) if finding is not None else [],
        confidence=found,
    )
