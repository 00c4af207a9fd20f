"""The score as a document: every target with met or not met, and every run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Manifest
from aorta.artefacts.validation import Trial
from aorta.averages import median
from aorta.diagnosis.findings import NAMES, kind_name
from aorta.errors import ArtefactError
from aorta.report.markdown import md, md_table
from aorta.report.tables import Table, text_table
from aorta.report.text import ABSENT, listing
from aorta.units import plural
from aorta.validation.matrix import Matrix
from aorta.validation.scoring import (
    EFFECT,
    NO_ANSWER,
    MeasuredGain,
    Score,
    is_alarm,
    kind_right,
    ranks_right,
)

_READING = f"""\
The trainer's `faults` block injects a fault into a real run. With --stripped, arguments of a trainer without
instrumentation inject it. The run uses the same submission, node agents and analysis as any other run. The
analysis does not see the block or `injected.json`. The cost of a fault is measured by comparing runs with
and without it. *Clean* is the step time of the clean runs of the same size before and after, weighted by
their distance in time. *Measured* is the step time with the fault ÷ the clean step time. A fault counts if
it takes more than {EFFECT:.0%} of its step. Other faults are listed but not scored.

*Predicted* is the gain that the replay predicts without the verdict's cause, with the 95% interval for
another run. The interval includes differences between stretches of the run, and the error of the replay on
steps with other transfer times. If there are at least four earlier runs of the same size, it also includes
the differences between such runs, without the causes that were found in them. With fewer runs, the interval
reflects only this run. It does not cover what remains after a cause is removed."""


def document(matrix: Matrix, score: Score, *, made_by: str) -> str:
    """The Markdown document of a matrix.

    Args:
        matrix: what was to run.
        score: of what ran.
        made_by: the command line.
    """
    ran = len(score.faulty) + len(score.clean)
    missing = len(matrix.cells) - ran
    parts = [
        f"# Validation {matrix.title}",
        f"Made by `{made_by}`, {_span(score)}; {_machine(score)}.",
        *([f"**Incomplete: {missing} of {len(matrix.cells)} runs are missing.**"] if missing else []),
        _READING,
        "## Targets",
        md_table(targets_table(score)),
        "## Verdicts by fault",
        "Rows: the right verdict. Columns: the verdict of the analysis. The table covers the faults that "
        "count, and the clean runs.",
        md_table(confusion_table(score)),
        "## Runs with a fault",
        md_table(_faulty_table(score.faulty)),
        *_replays(score),
        *_wrong(score),
        "## Clean runs",
        md_table(_clean_table(score.clean)),
        "## Not run",
        md_table(Table(("fault", "why"), matrix.skipped)),
    ]
    return "\n\n".join(str(part).strip() for part in parts) + "\n"


def targets_text(score: Score) -> str:
    """The targets for a terminal."""
    return text_table(targets_table(score))


def targets_table(score: Score) -> Table:
    """Each target, its value, and whether it is met; and how often the intervals hold, which is no target."""
    rows = [(target.words, target.value, "met" if target.met else "not met") for target in score.targets]
    inside, known = score.inside
    if known:
        words = "measured speed-up inside the predicted 95% interval"
        rows.append((words, f"{inside} of {known} ({inside / known:.1%})", "no target"))
    return Table(("target", "measured", ""), tuple(rows))


def confusion_table(score: Score) -> Table:
    """Runs by truth and verdict."""
    found = score.confusion()
    said: list[str] = [*NAMES, NO_ANSWER]
    columns = [kind for kind in said if any(kind in row for row in found.values())]
    rows = tuple(
        (_kinds(truth.split(" or ")), *(str(row[kind]) if kind in row else "" for kind in columns))
        for truth, row in found.items()
    )
    return Table(("right verdict", *(f">{_kinds([kind])}" for kind in columns)), rows)


def told(trial: Trial) -> str:
    """Returns one line about a run as it ends."""
    if trial.said is None:
        return f"  {trial.problem or 'no analysis'}"
    step = f"{trial.said.step_ms:.1f} ms" if trial.said.step_ms is not None else "no step time"
    right = "right" if kind_right(trial) and ranks_right(trial) else "wrong"
    return f"  {step}; {_verdict(trial)}: {right}"


def _faulty_table(faulty: Sequence[MeasuredGain]) -> Table:
    header = (
        "run",
        ">step ms",
        ">clean ms",
        ">effect",
        "verdict",
        "right",
        ">measured",
        ">predicted",
        ">error",
    )
    return Table(header, tuple(_faulty_row(item) for item in faulty))


def _faulty_row(item: MeasuredGain) -> tuple[str, ...]:
    said = item.said
    step = said.step_ms if said is not None else None
    right = "not scored" if not item.counts else "yes" if item.kind_right and item.ranks_right else "no"
    if right == "no" and item.kind_right:
        right = "kind, not ranks"
    predicted = ABSENT
    if said is not None and said.speedup is not None:
        spread = (said.speedup_low, said.speedup_high)
        between = f" ({spread[0]:.2f} to {spread[1]:.2f})" if None not in spread else ""
        predicted = f"{said.speedup:.2f}{between}"
    return (
        item.trial.cell,
        _number(step, ".1f"),
        _number(item.clean_ms, ".1f"),
        _number(item.effect, ".0%"),
        _verdict(item.trial),
        right,
        _number(item.speedup, ".2f"),
        predicted,
        _number(item.error, ".1%"),
    )


def _replays(score: Score) -> list[str]:
    """Lines on the quality of the replay's model."""
    errors = [
        trial.said.replay_error_pct
        for trial in [*score.clean, *(item.trial for item in score.faulty)]
        if trial.said is not None and trial.said.replay_error_pct is not None
    ]
    if not errors:
        return []
    checked = (
        "As a check, each half of the steps was replayed unchanged with the other half's transfer times."
    )
    found = f"The median error is {median(errors):.2f}% and the largest {max(errors):.2f}%"
    return [f"{checked} {found}, in {len(errors)} runs."]


def _wrong(score: Score) -> list[str]:
    """Sentences of the wrong answers, and reasons why predictions are missing."""
    lines = []
    for item in score.counted:
        trial = item.trial
        if not (item.kind_right and item.ranks_right):
            lines.append(f"- {md(trial.cell)}: {md(_sentence(trial))}")
        elif trial.said is not None and trial.said.speedup is None and not trial.truth.timeless:
            lines.append(
                f"- {md(trial.cell)}: no prediction: {md(trial.said.withheld or 'only bounds are known')}"
            )
    return ["### Wrong verdicts, or no prediction", "\n".join(lines)] if lines else []


def _sentence(trial: Trial) -> str:
    return trial.said.statement if trial.said is not None else trial.problem or "no analysis"


def _clean_table(clean: Sequence[Trial]) -> Table:
    rows = tuple(
        (
            trial.cell,
            _number(trial.said.step_ms if trial.said is not None else None, ".1f"),
            _verdict(trial),
            f"false alarm: {_sentence(trial)}" if is_alarm(trial) else "",
        )
        for trial in clean
    )
    return Table(("run", ">step ms", "verdict", ""), rows)


def _verdict(trial: Trial) -> str:
    if trial.said is None:
        return NO_ANSWER
    on = f" on rank {listing(trial.said.ranks)}" if trial.said.ranks else ""
    cause = f" ({trial.said.cause.replace('_', ' ')})" if trial.said.cause else ""
    return f"{kind_name(trial.said.kind)}{on}{cause}"


def _kinds(kinds: Sequence[str]) -> str:
    names: dict[str, str] = dict(NAMES)
    return " or ".join(names.get(kind, kind) for kind in kinds)


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form)


def _span(score: Score) -> str:
    """Returns when the runs ran, and how long all of it took."""
    trials = [*score.clean, *(item.trial for item in score.faulty)]
    if not trials:
        return "nothing ran"
    begun = min(trial.started_wall_ns for trial in trials)
    took = sum(trial.ended_wall_ns - trial.started_wall_ns for trial in trials) / 60e9
    day = time.strftime("%Y-%m-%d", time.gmtime(begun / 1e9))
    return f"{day}, {len(trials)} runs in {took:.1f} minutes"


def _machine(score: Score) -> str:
    """The machine of the runs, by the first one that names it."""
    for trial in [*score.clean, *(item.trial for item in score.faulty)]:
        try:
            node = read_json(RunDir(Path(trial.run_dir)).manifest, Manifest).nodes[0]
        except (ArtefactError, IndexError):
            continue
        cards = Counter(gpu.name for gpu in node.gpus)
        names = [("Python", "python"), ("torch", "torch")]
        words = [
            plural(node.cpus_usable, "core"),
            *(f"{count} x {name}" for name, count in cards.items()),
            *(f"{word} {node.packages[name]}" for word, name in names if node.packages.get(name)),
        ]
        return ", ".join(words)
    return "a machine that no run describes"
