"""All scenarios together: whose verdict is the whole's, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aorta.artefacts.analysis import Aggregate, Analysis, Finding, Problem, Scaling, Verdict
from aorta.artefacts.layout import RunDir, Scenario
from aorta.report import content
from aorta.report.text import KIND_NAMES, gain, plain

NO_CAUSE = frozenset({"healthy", "insufficient_data"})
"""Verdicts that name no cause."""


@dataclass(frozen=True, slots=True)
class ScenarioReport:
    """A scenario, the run that stands for it, and what was found.

    Attributes:
        note: why this run was taken, where that is not obvious; else empty.
    """

    scenario: Scenario
    run: RunDir
    analysis: Analysis
    note: str = ""


def rank_time_ms(analysis: Analysis, finding: Finding | None) -> float:
    """What a cause costs over all ranks: its ms a step × ranks; 0 where no gain was predicted."""
    price = content.cost(analysis, finding) if finding is not None else None
    return price[0] * len(analysis.breakdown.per_rank) if price is not None else 0.0


def decisive(reports: Sequence[ScenarioReport]) -> ScenarioReport | None:
    """The scenario whose verdict is that of the whole.

    Of the scenarios with a cause, the one whose cause costs most rank-time a step (`rank_time_ms`), which
    normally is the largest; without a cause anywhere, the largest healthy one; else the largest. None without
    reports.
    """

    def size(report: ScenarioReport) -> tuple[int, int, str]:
        return report.analysis.world_size or 0, report.scenario.nodes, report.scenario.name

    def lost(report: ScenarioReport) -> float:
        return rank_time_ms(report.analysis, content.main_finding(report.analysis))

    causes = [report for report in reports if report.analysis.verdict.kind not in NO_CAUSE]
    if causes:
        return max(causes, key=lambda report: (lost(report), size(report)))
    healthy = [report for report in reports if report.analysis.verdict.kind == "healthy"]
    return max(healthy or reports, key=size, default=None)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do about one kind of cause, over all scenarios that show it."""

    kind: str
    scenarios: list[str]
    best: Finding
    best_scenario: str
    actions: list[str]

    def sentence(self) -> str:
        """The recommendation as one line."""
        predicted = f"predicted {gain(self.best.estimated_speedup)} in {self.best_scenario}"
        if self.best.estimated_speedup is None:
            predicted = "gain not predicted"
        return f"{self.kind} ({', '.join(self.scenarios)}; {predicted}): " + " ".join(
            plain(action).rstrip(".") + "." for action in self.actions
        )


def recommendations(reports: Sequence[ScenarioReport]) -> list[Recommendation]:
    """One a kind of cause (symptoms have none), the largest predicted gain first."""
    by_kind: dict[str, list[tuple[ScenarioReport, Finding]]] = {}
    for report in reports:
        for finding in report.analysis.findings:
            if finding.symptom_of is None and finding.kind not in NO_CAUSE:
                by_kind.setdefault(KIND_NAMES[finding.kind], []).append((report, finding))
    found = []
    for kind, pairs in by_kind.items():
        report, best = max(pairs, key=lambda pair: _predicted(pair[1]))
        ordered = [best, *[finding for _, finding in pairs if finding is not best]]
        actions = list(dict.fromkeys(action for finding in ordered for action in finding.actions))
        names = list(dict.fromkeys(pair[0].scenario.name for pair in pairs))
        found.append(Recommendation(kind, names, best, report.scenario.name, actions))
    return sorted(found, key=lambda item: (-_predicted(item.best), item.kind))


def _predicted(finding: Finding) -> float:
    return finding.estimated_speedup.high if finding.estimated_speedup is not None else 0.0


def build(
    reports: Sequence[ScenarioReport],
    scaling: Sequence[Scaling],
    missing: Sequence[Problem],
    generated_wall_ns: int,
) -> Aggregate:
    """The record behind the document.

    Args:
        reports: one a scenario, in the order of the document.
        scaling: one a family.
        missing: scenarios that gave nothing.
        generated_wall_ns: the newest input's time, so that the same inputs give the same document.
    """
    main = decisive(reports)
    if main is None:
        verdict = Verdict(kind="insufficient_data", statement="No scenario could be analysed.", ranks=[])
    else:
        said = main.analysis.verdict
        verdict = Verdict(
            kind=said.kind, statement=f"{main.scenario.name}: {said.statement}", ranks=said.ranks
        )
    return Aggregate(
        generated_wall_ns=generated_wall_ns,
        verdict=verdict,
        scenarios=[report.analysis for report in reports],
        scaling=list(scaling),
        missing=list(missing),
        recommendations=[item.sentence() for item in recommendations(reports)],
    )
