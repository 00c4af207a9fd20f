"""Scores the analysis by the runs of a matrix. Pure arithmetic on `Trial`s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aorta.artefacts.analysis import Kind
from aorta.artefacts.validation import DiagnosedRun, Trial
from aorta.averages import median
from aorta.validation.matrix import CLEAN

EFFECT = 0.10
"""Share of the step time above which a fault counts."""
KIND_RIGHT, RANK_RIGHT = 0.95, 0.95
MEDIAN_ERROR, WORST_ERROR = 0.10, 0.20
NO_ANSWER = "no answer"
"""Row of the confusion matrix for runs without an analysis."""


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """A faulty run beside what the same step takes without the fault."""

    trial: Trial
    clean_ms: float | None
    """Step time of the clean runs around it, at its time. None if there is no clean run of its size."""

    @property
    def said(self) -> DiagnosedRun | None:
        """The answer of the analysis."""
        return self.trial.said

    @property
    def speedup(self) -> float | None:
        """Measured: step time with the fault over step time without."""
        if self.clean_ms is None or self.said is None or self.said.step_ms is None:
            return None
        return self.said.step_ms / self.clean_ms

    @property
    def effect(self) -> float | None:
        """Share of its step time that the fault takes."""
        return None if self.speedup is None else 1.0 - 1.0 / self.speedup

    @property
    def counts(self) -> bool:
        """It is scored: it shows in the step time, or cannot; a run without an answer is not let off."""
        return self.trial.truth.timeless or self.effect is None or self.effect > EFFECT

    @property
    def kind_right(self) -> bool:
        """True if the verdict is one of the right ones."""
        return kind_right(self.trial)

    @property
    def ranks_right(self) -> bool:
        """True if the verdict names the ranks that have the fault, and no others."""
        return ranks_right(self.trial)

    @property
    def error(self) -> float | None:
        """Error of the predicted speed-up, relative to the measured one. None where nothing can be compared:
        no prediction, or a prediction for another cause."""
        if not self.kind_right or self.said is None or self.said.speedup is None or self.speedup is None:
            return None
        return abs(self.said.speedup / self.speedup - 1.0)

    @property
    def within_interval(self) -> bool | None:
        """The measured speed-up lies in the predicted interval."""
        said = self.said
        if self.error is None or said is None or said.speedup_low is None or said.speedup_high is None:
            return None
        assert self.speedup is not None
        return said.speedup_low <= self.speedup <= said.speedup_high


@dataclass(frozen=True, slots=True)
class Target:
    """One target, its measured value, and the answer to it."""

    words: str
    value: str
    met: bool
    """False also where it was not measured."""


@dataclass(frozen=True, slots=True)
class Score:
    """Everything that the document shows."""

    faulty: tuple[MeasuredGain, ...]
    clean: tuple[Trial, ...]
    targets: tuple[Target, ...]

    @property
    def counted(self) -> list[MeasuredGain]:
        """Faulty runs that are scored."""
        return [item for item in self.faulty if item.counts]

    @property
    def inside(self) -> tuple[int, int]:
        """Scored runs whose measured speed-up lies in the predicted interval, and all that have one."""
        known = [item.within_interval for item in self.counted if item.within_interval is not None]
        return sum(known), len(known)

    @property
    def alarms(self) -> list[Trial]:
        """Clean runs in which a bottleneck was found."""
        return [trial for trial in self.clean if is_alarm(trial)]

    @property
    def met(self) -> bool:
        """True if no target is missed."""
        return all(target.met for target in self.targets)

    def confusion(self) -> dict[str, dict[str, int]]:
        """Runs by truth (the right kinds, `healthy` for clean runs) and verdict; only runs that count."""
        table: dict[str, dict[str, int]] = {}
        for trial in [*(item.trial for item in self.counted), *self.clean]:
            row = table.setdefault(" or ".join(trial.truth.kinds), {})
            verdict = trial.said.kind if trial.said is not None else NO_ANSWER
            row[verdict] = row.get(verdict, 0) + 1
        return table


def kind_right(trial: Trial) -> bool:
    """True if the verdict is one of the right ones."""
    return trial.said is not None and trial.said.kind in trial.truth.kinds


def ranks_right(trial: Trial) -> bool:
    """The verdict names the ranks that have the fault, and no others; all of them may also be not named."""
    everywhere = list(range(trial.world_size))
    right = [trial.truth.ranks] if trial.truth.ranks else [[], everywhere]
    return trial.said is not None and sorted(trial.said.ranks) in right


def is_alarm(trial: Trial) -> bool:
    """A bottleneck where none was put in; that the data does not suffice is no alarm."""
    quiet: tuple[Kind, ...] = ("healthy", "insufficient_data")
    return trial.said is not None and trial.said.kind not in quiet


def score(trials: Sequence[Trial]) -> Score:
    """The score of `trials`, in the order in which they ran."""
    clean = [trial for trial in trials if trial.truth.fault == CLEAN]
    faulty = tuple(
        MeasuredGain(trial, clean_step_ms(trial, clean)) for trial in trials if trial.truth.fault != CLEAN
    )
    plain = Score(faulty, tuple(clean), ())
    return Score(faulty, tuple(clean), tuple(_targets(plain)))


def clean_step_ms(trial: Trial, clean: Sequence[Trial]) -> float | None:
    """Step time of the clean runs of the size of `trial`, at its time.

    Between the clean runs before and after it, each weighted by how near it is, so that a steady drift of the
    machine cancels; where there is only one of them, that one.
    """
    points = sorted(
        (_middle(other), other.said.step_ms)
        for other in clean
        if (other.nodes, other.world_size) == (trial.nodes, trial.world_size)
        and other.said is not None
        and other.said.step_ms is not None
    )
    now = _middle(trial)
    before = [point for point in points if point[0] <= now][-1:]
    after = [point for point in points if point[0] > now][:1]
    if not before or not after:
        return next((step_ms for _, step_ms in [*before, *after]), None)
    (start, first), (end, last) = before[0], after[0]
    return first + (last - first) * (now - start) / (end - start)


def _middle(trial: Trial) -> float:
    return (trial.started_wall_ns + trial.ended_wall_ns) / 2


def _targets(score: Score) -> list[Target]:
    counted = score.counted
    single = [item for item in counted if item.trial.truth.ranks]
    errors = [item.error for item in counted if item.error is not None]
    alarms, runs = len(score.alarms), len(score.clean)
    silent = [trial for trial in score.clean if trial.said is None or trial.said.kind == "insufficient_data"]
    quiet = f"{alarms} in {runs}" + (f", and {len(silent)} of them without a verdict" if silent else "")
    return [
        _share(f"verdict kind right in at least {KIND_RIGHT:.0%}", counted, KIND_RIGHT, "kind_right"),
        _share(f"root rank right in at least {RANK_RIGHT:.0%} of single-rank faults", single, RANK_RIGHT,
               "ranks_right"),
        Target(
            "no false alarm in clean runs",
            quiet,
            not alarms and len(silent) < runs,
        ),
        _error(f"predicted speed-up within {MEDIAN_ERROR:.0%} of the measured one, median", errors,
               MEDIAN_ERROR, worst=False),
        _error(f"predicted speed-up within {WORST_ERROR:.0%} of the measured one, worst", errors,
               WORST_ERROR, worst=True),
    ]  # fmt: skip


def _share(words: str, items: Sequence[MeasuredGain], least: float, what: str) -> Target:
    if not items:
        return Target(words, "not measured", met=False)
    right = sum(bool(getattr(item, what)) for item in items)
    return Target(
        words, f"{right} of {len(items)} ({right / len(items):.1%})", met=right / len(items) >= least
    )


def _error(words: str, errors: Sequence[float], most: float, *, worst: bool) -> Target:
    if not errors:
        return Target(words, "not measured: no prediction", met=False)
    value = max(errors) if worst else median(errors)
    return Target(words, f"{value:.1%} of {len(errors)} predictions", met=value <= most)
