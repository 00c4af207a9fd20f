"""The blocks of one run: the first screen, and the details behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aorta.artefacts.analysis import Analysis, Finding
from aorta.artefacts.page import RunPage
from aorta.config.thresholds import rows as threshold_rows
from aorta.diagnosis.finding import NOT_DETERMINED
from aorta.diagnosis.findings import FINDINGS, kind_name
from aorta.diagnosis.symptoms import NO_FIX
from aorta.diagnosis.where import LOOK
from aorta.report import content, evidence
from aorta.report.advice import likely_reasons, profiler_weight, remedy
from aorta.report.blocks import (
    Block,
    Bullet,
    Bullets,
    Code,
    FactList,
    Heading,
    Line,
    Paragraph,
    Strong,
    bullets,
    coded,
    words,
)
from aorta.report.compute import compute_blocks
from aorta.report.labels import SPLIT_BY_PARTS
from aorta.report.mesh import mesh_blocks
from aorta.report.next_steps import compare_command, experiment, next_commands
from aorta.report.parts import charged, shown_parts
from aorta.report.place import data_waits, place_pairs
from aorta.report.resources import next_time, resource_table
from aorta.report.tables import Table
from aorta.report.text import evidence as facts_of
from aorta.report.text import gain, quantity
from aorta.units import plural

_SEARCH = (LOOK, "compare ", "run once ")
"""First words of actions that only search for the place, which is known if a line of code is."""
BEST_CASE = "Best-case speed-up"
"""Name of the fact that says how much faster a step is without the cause."""
CHECK = "Check the fix"
"""Name of the fact that compares a run with one after the change."""
MAX_PROBLEMS = 40
"""Problems that are listed; each of a thousand nodes may have one."""


def summary(analysis: Analysis, page: RunPage, run: str | None) -> FactList:
    """Cost, place in the program, evidence, fix, the command that tries it, speed-up and confidence.

    Args:
        analysis: of the run whose verdict is reported.
        page: of the same run.
        run: path of the run directory; None for raw traces, which have no configuration to vary.
    """
    finding, pairs = content.main_finding(analysis), list[tuple[str, Line]]()
    if finding is None and analysis.verdict.kind == "healthy":
        pairs.append(("Cost", "none: nothing passes its threshold"))
    elif finding is not None and finding.kind == "insufficient_data":
        pairs += [("Fix", "; ".join(finding.actions[:2]))] if finding.actions else []
    elif finding is not None:
        if finding.value is not None or finding.estimated_speedup is not None:
            pairs.append(("Cost", content.cost_words(analysis, finding)))
        pairs += (told := list(place_pairs(analysis, finding)))
        if finding.sub_cause_text and all(line != finding.sub_cause_text for _, line in told):
            name, said = _reason(finding, finding.sub_cause_text)
            pairs.append((name, data_waits(analysis, finding) + said if name == "Evidence" else said))
        action, command = _action(analysis, finding, run)
        pairs += likely_reasons(analysis, finding, told=action)
        pairs += _fix(analysis, action, command, run)
        if finding.estimated_speedup is not None:
            pairs.append((BEST_CASE, content.gain_words(finding)))
    if finding is None or finding.kind == "insufficient_data":
        pairs += likely_reasons(analysis, finding)
    trusted = "cause" if finding is not None else "verdict"
    pairs.append((f"Confidence in the {trusted}", content.confidence_words(page.confidence)))
    if page.confidence.gain != "none":
        pairs.append(("Confidence in the gain", content.gain_confidence_words(page.confidence, analysis)))
    pairs += profiler_weight(analysis)
    if analysis.thresholds_changed:
        pairs.append(("Thresholds changed", content.changed_thresholds(analysis)))
    return FactList(tuple(pairs))


def _reason(finding: Finding, words: str) -> tuple[str, str]:
    """The cause behind the cause, or why it is not determined: a lack of evidence is no evidence."""
    if finding.sub_cause == NOT_DETERMINED:
        return "Reason", f"not determined: {words}"
    return "Evidence", words


def _action(analysis: Analysis, finding: Finding, run: str | None) -> tuple[str | None, str | None]:
    """Returns the first action that a command can try, and the command.

    Otherwise, returns the remedy of the mistake that was found. Otherwise, returns the first action that says
    more than where to look, because the place has its own line.
    """
    if run is not None:
        for action in finding.actions:
            if command := experiment(analysis, action, run):
                return action, command
    others = [action for action in finding.actions if finding.where is None or not action.startswith(_SEARCH)]
    return remedy(analysis, finding) or next(iter(others or finding.actions), None), None


def _fix(
    analysis: Analysis, action: str | None, command: str | None, run: str | None
) -> Iterator[tuple[str, Line]]:
    if action:
        yield "Fix", coded(action)
    if command:
        yield "Try it", Code(command)
    elif run and analysis.submitted and analysis.submitted.command:
        purpose, command = compare_command(run)
        yield CHECK, (f"{purpose}: ", Code(command))


def provenance(analysis: Analysis) -> list[tuple[str, Line]]:
    """Program, command, commit and submission of the run, so far as they are known."""
    said = analysis.submitted
    pairs: list[tuple[str, str | None]] = [("Program", analysis.program)]
    if said is not None:
        pairs += [
            ("Command", said.command),
            ("Commit of the program", said.commit),
            ("Submission", said.submission),
        ]
    return [(name, Code(value)) for name, value in pairs if value]


def details(analysis: Analysis, page: RunPage, *, charts: bool) -> list[Block]:
    """Everything that is known of a run, in blocks under headings of level 4.

    Args:
        analysis: of the run.
        page: what charts show of it.
        charts: the document shows the charts, so that tables do not repeat them.
    """
    found: list[Block] = []
    for title, blocks in (
        ("Findings", _findings(analysis, page)),
        (
            "Measurements and thresholds",
            [*_one(content.measured_table(analysis)), *_thresholds(analysis)],
        ),
        ("Where the time in a step goes", [] if charts else _one(evidence.parts_table(page))),
        (
            "Predicted gain",
            [*_said(evidence.replay_words(analysis)), *_one(evidence.what_if_table(analysis))],
        ),
        ("Mesh", mesh_blocks(analysis, charts=charts and page.workers is not None)),
        (
            "Ranks that the others wait for" if charged(analysis) else "Ranks with the longest own time",
            _noted(evidence.worst_table(page, analysis)),
        ),
        ("Late ranks", _noted(evidence.lateness_table(analysis, page))),
        (
            f"Time per rank: mean of {content.counted_steps(analysis)}, in % of the rank's step unless noted",
            _ranks(analysis),
        ),
        ("Traces", _traces(analysis)),
        ("What the GPUs compute", compute_blocks(analysis)),
        ("Throughput and utilisation", [*_one(_use(analysis)), *_said(content.unmeasured_words(analysis))]),
        ("Requested against used", _resources(analysis)),
        ("Data quality", _quality(analysis)),
    ):
        if blocks:
            found += [Heading(title, 4), *blocks]
    return found


def _one(table: Table | None) -> list[Block]:
    return [] if table is None or not table.rows else [table]


def _said(words: str) -> list[Block]:
    return [Paragraph(words)] if words else []


def _noted(found: tuple[Table | None, str]) -> list[Block]:
    table, note = found
    return [] if table is None else [table, *_said(note)]


def _use(analysis: Analysis) -> Table:
    return Table(("quantity", "value"), tuple(content.utilization_rows(analysis)))


def _resources(analysis: Analysis) -> list[Block]:
    if (found := analysis.resources) is None:
        return []
    return [*_one(resource_table(found)), *_said(next_time(found))]


def _findings(analysis: Analysis, page: RunPage) -> list[Block]:
    if not analysis.findings:
        return [Paragraph("No findings.")]
    items = tuple(_finding(analysis, page, finding) for finding in analysis.findings)
    return [Bullets(items, numbered=True)]


def _facts(analysis: Analysis, page: RunPage, finding: Finding) -> list[str]:
    """The evidence; communication is split into the parts that the charts show, under their names."""
    two = len(analysis.breakdown.per_rank) == 2
    split = finding.kind == "communication" and any(part.key.startswith("wait_") for part in page.parts)
    if not split:
        return facts_of(finding.evidence, two=two)
    kept = {name: value for name, value in finding.evidence.items() if name not in SPLIT_BY_PARTS}
    said = facts_of(kept, two=two)
    shown = [part for part in shown_parts(page.parts) if part.key == "exposed_comm" or "wait_" in part.key]
    whole = sum(part.ms or 0.0 for part in page.parts if part.key == "exposed_comm" or "wait_" in part.key)
    rest = whole - sum(part.ms or 0.0 for part in shown)
    parts = [f"{part.name} {quantity(part.ms, 'ms')}" for part in shown]
    parts += [f"other waits {quantity(rest, 'ms')}"] if rest > 0 else []
    return [*said[:1], f"made up of: {', '.join(parts)}", *said[1:]]


def _finding(analysis: Analysis, page: RunPage, finding: Finding) -> Bullet:
    symptom = f", a symptom of {kind_name(finding.symptom_of)}" if finding.symptom_of else ""
    limits = []
    if finding.value is not None:
        spec = FINDINGS.get(finding.kind)
        about = f" ({spec.value})" if spec is not None else ""
        limits.append(f"measured: {content.measured_words(analysis, finding)}{about}")
        limits.append(f"threshold: {quantity(finding.threshold, finding.unit)}")
    if not finding.symptom_of and finding.estimated_speedup is not None:
        limits.append(f"best-case speed-up: {gain(finding.estimated_speedup)}")
    below: list[Line] = []
    if finding.sub_cause_text:
        name, words = _reason(finding, finding.sub_cause_text)
        below.append(f"{name.lower()}: {words}")
    below += [
        *(["; ".join(limits)] if limits else []),
        *_facts(analysis, page, finding),
        *advice(finding.actions),
    ]
    title = (Strong(kind_name(finding.kind)), f" ({finding.severity}; {content.scope(finding)})")
    return Bullet((*title, f"{symptom}: {finding.cause}"), tuple(below))


def advice(actions: Sequence[str]) -> Iterator[Line]:
    """Yields each action as a line: a place to look at, a comparison, or a fix; fixes after the first are
    other ones.
    """
    name = "fix: "
    for action in actions:
        if action.startswith(LOOK):
            yield ("where: ", *coded(action.removeprefix(LOOK)))
        elif action.startswith("compare "):
            yield ("to find out why: ", *coded(action))
        elif action.startswith(NO_FIX):
            yield coded(action)
        else:
            yield (name, *coded(action))
            name = "another fix: "


def _thresholds(analysis: Analysis) -> list[Block]:
    if not analysis.thresholds:
        return []
    meaning = {row.key: row.sentence for row in threshold_rows()}
    lines: list[Line] = [
        (Code(name), f" {value:g}: {meaning.get(name, '')}") for name, value in analysis.thresholds.items()
    ]
    said: list[Block] = [Paragraph("Thresholds used in this analysis:"), bullets(lines)]
    if analysis.thresholds_changed:
        said.insert(0, Paragraph(f"Changed only for this analysis: {content.changed_thresholds(analysis)}."))
    return said


def _ranks(analysis: Analysis) -> list[Block]:
    table, note = content.breakdown_table(analysis)
    if table is None:
        return [Paragraph("Not measured: no rank has a steady step with a breakdown.")]
    timing = content.TIMINGS.get(analysis.breakdown.timing or "", "")
    found: list[Block] = [table, Paragraph(" ".join(part for part in (note, timing) if part))]
    if content.is_cut(analysis):
        found += [evidence.spread_table(analysis.breakdown.per_rank), Paragraph("Quantiles over all ranks.")]
    return found


def _traces(analysis: Analysis) -> list[Block]:
    found: list[Block] = []
    for title, table in evidence.trace_tables(analysis):
        found += [Paragraph(title), table]
    return found + _said(evidence.overhead_words(analysis))


def _quality(analysis: Analysis) -> list[Block]:
    quality = analysis.data_quality
    lines: list[Line] = [f"note: {note}" for note in quality.notes]
    for problem in quality.problems[:MAX_PROBLEMS]:
        where: tuple[Line, ...] = (Code(problem.file), ": ") if problem.file else ()
        reason = problem.reason.removeprefix(f"{problem.file}: ")
        lines.append(("problem: ", *where, reason))  # type: ignore[arg-type]
    if (more := len(quality.problems) - MAX_PROBLEMS) > 0:
        lines.append(f"and {plural(more, 'more problem')}, all in profiling_analysis.json")
    return [content.quality_table(analysis), *([bullets(lines)] if lines else [])]


def next_block(run: str, summary: FactList) -> list[Block]:
    """The commands to type next, as a list, without those that the summary has."""
    told = {words(line) for _, line in summary.pairs}
    items = [
        Bullet((f"{purpose}: ", Code(command)))
        for purpose, command in next_commands(run)
        if not any(said.endswith(command) for said in told)
    ]
    return [Bullets(tuple(items))]
