"""`aorta compare`: two runs before and after a change, or step records of several runs side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aorta.artefacts.analysis import Problem
from aorta.artefacts.comparison import DatasetComparison, LoggedDataset, OverlapSummary
from aorta.artefacts.files import is_folder
from aorta.commands._say import say
from aorta.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from aorta.artefacts.step_columns import StepColumns
    from aorta.metrics.compare import Values

SAME_RUN = (
    "Intervals cover the noise within each run. Two runs of the same program can differ by more: repeat "
    "them before you trust a small difference."
)
WINDOWS = (
    "Times of event_window run from ready to done, including launch and queueing; compare them only with "
    "other windows."
)

DETAIL = (
    "Some runs time every step in detail, which takes extra time; other runs time only some steps. step_ms "
    "includes that difference."
)


@click.command()
@click.argument("sides", nargs=-1, type=click.Path(path_type=Path), metavar="[BEFORE AFTER]")
@click.option("--json", "json_path", metavar="FILE", help="Write the comparison of BEFORE and AFTER as JSON.")
@click.option(
    "--log-dir",
    "log_dirs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Folder with rank_<rank>_metrics.jsonl; one for each --label.",
)
@click.option("--label", "labels", multiple=True, help="Name of the preceding --log-dir.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder to write into.")
@click.option("--reference", help="Label that the others are compared with. Default: the first label.")
@click.option(
    "--candidate", "candidates", multiple=True, help="Labels to compare. Default: all other labels."
)
def command(sides: tuple[Path, ...], json_path: str | None, **options: Any) -> None:
    """Compare BEFORE with AFTER: step time, efficiency, verdict and parts.

    Each of the two is a submission (results/profiling/run_<timestamp>), a run directory, a report's JSON or
    traces. The answer is faster, slower or cannot be told apart. comparison.md and its picture are written
    to --output.

    With --log-dir and --label, the step records of any number of runs are compared instead, and summary.json
    and <label>_timeline.png are written to --output.
    """
    if options["log_dirs"]:
        if sides:
            raise ConfigError("BEFORE AFTER and --log-dir cannot be used together", "use one of them")
        _compare_records(**options)
        return
    if len(sides) != 2:
        raise ConfigError(
            f"a comparison takes two paths, not {len(sides)}",
            "name two submissions, runs, report JSON files or traces",
        )
    _before_after(sides[0], sides[1], options["output"], json_path)


def _before_after(before: Path, after: Path, output: Path | None, json_path: str | None) -> None:
    from aorta.artefacts.io import write_json, write_text
    from aorta.commands._before_after import compare
    from aorta.report.before_after import blocks
    from aorta.report.blocks import Picture
    from aorta.report.markdown import to_markdown
    from aorta.report.render import to_text

    found, drawn = compare(before, after)
    say(to_text(blocks(found)).rstrip("\n"))
    try:
        if json_path is not None:
            write_json(Path(json_path), found)
        if output is not None:
            from aorta.report import overview, style
            from aorta.report.parts import step_parts

            with style.styled():
                figure = overview.parts_figure(
                    [(name, step_parts(item)) for name, item in drawn],
                    max(len(item.breakdown.per_rank) for _, item in drawn),
                )
                style.save(figure, output / "comparison.png", output / "comparison.svg")
            title, *rest = blocks(found)
            picture = Picture("Where the time in a step goes, before and after", "comparison")
            write_text(output / "comparison.md", to_markdown([title, picture, *rest]))
            say(f"written: {output / 'comparison.md'}")
    except OSError as error:
        raise ArtefactError(f"{error.filename or output}: {error.strerror}") from error


def _compare_records(
    log_dirs: tuple[Path, ...],
    labels: tuple[str, ...],
    output: Path | None,
    reference: str | None,
    candidates: tuple[str, ...],
) -> None:
    if output is None:
        raise ConfigError("--log-dir needs --output", "name the folder to write into with --output DIR")
    reference, candidates = _chosen(log_dirs, labels, reference, candidates)
    try:
        summary = _compare(dict(zip(labels, log_dirs, strict=True)), output, reference, candidates)
    except OSError as error:
        raise ArtefactError(f"{error.filename or output}: {error.strerror}") from error
    from aorta.report.compare import lines

    for line in lines(summary):
        say(line)
    say(f"written: {output / 'summary.json'}")


def _chosen(
    log_dirs: tuple[Path, ...], labels: tuple[str, ...], reference: str | None, candidates: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    if len(log_dirs) != len(labels):
        raise ConfigError(
            f"{len(log_dirs)} --log-dir and {len(labels)} --label", "give each --log-dir a --label"
        )
    for label in labels:
        if not re.fullmatch(r"[\w.+-]+", label) or labels.count(label) > 1:
            raise ConfigError(
                f"--label {label!r} cannot be used as a file name", "use letters, digits, . _ + -, each once"
            )
    for option, wanted in (("--reference", (reference,) if reference else ()), ("--candidate", candidates)):
        for label in wanted:
            if label not in labels:
                raise ConfigError(f"{option} {label} is not a --label", f"one of {', '.join(labels)}")
    reference = reference or labels[0]
    return reference, candidates or tuple(label for label in labels if label != reference)


def _compare(
    log_dirs: dict[str, Path], output: Path, reference: str, candidates: tuple[str, ...]
) -> OverlapSummary:
    from aorta.artefacts.comparison import METRICS
    from aorta.artefacts.io import write_json
    from aorta.metrics.compare import differ
    from aorta.report.compare import draw

    datasets: dict[str, LoggedDataset] = {}
    values: dict[str, dict[str, Values]] = {}
    for label, folder in log_dirs.items():
        datasets[label], values[label], steps = _dataset(folder)
        if steps:
            draw(output, label, steps, values[label])
    comparisons = [
        DatasetComparison(
            reference=reference,
            candidate=candidate,
            metrics={name: differ(values[reference][name], values[candidate][name]) for name in METRICS},
        )
        for candidate in candidates
        if candidate != reference
    ]
    notes = [SAME_RUN]
    if any("event_window" in data.timing for data in datasets.values()):
        notes.append(WINDOWS)
    if len({data.detailed_steps is None for data in datasets.values()}) > 1:
        notes.append(DETAIL)
    summary = OverlapSummary(datasets=datasets, comparisons=comparisons, notes=notes)
    write_json(output / "summary.json", summary)
    return summary


def _dataset(folder: Path) -> tuple[LoggedDataset, dict[str, Values], list[int]]:
    from aorta.artefacts.layout import RunDir
    from aorta.metrics.compare import over_ranks, overlap, spread
    from aorta.metrics.steady import steady_steps
    from aorta.readers.steps import read_steps

    if not is_folder(folder):
        raise ArtefactError(
            f"{folder}: no such folder", "name the training.output_dir or run directory of a run"
        )
    records = read_steps(RunDir(folder))
    if not records.by_rank:
        raise ArtefactError(
            f"{folder}: no step records", "expected rank_<rank>_metrics.jsonl, as train.py writes them"
        )
    steady = steady_steps(records.by_rank)
    values = over_ranks(steady.by_rank)
    data = LoggedDataset(
        path=str(folder),
        ranks=sorted(records.by_rank),
        steps=len(steady),
        detailed_steps=steady.detailed_steps,
        timing=sorted({label.timing for steps in steady.by_rank.values() for label in steps.labels}),
        metrics={name: spread(column) for name, column in values.items()},
        overlap_ratio=overlap(values),
        problems=[*records.problems, *([] if len(steady) else [_none_steady(records.by_rank)])],
    )
    return data, values, list(steady.numbers)


def _none_steady(by_rank: Mapping[int, StepColumns]) -> Problem:
    phases: Counter[str] = Counter()
    for steps in by_rank.values():
        for label in steps.labels:
            phases[label.phase] += int(steps.labelled(label).sum())
    told = ", ".join(f"{count} {phase}" for phase, count in phases.most_common())
    return Problem(
        file="rank_*_metrics.jsonl",
        reason=f"no step is steady on every rank; records by phase: {told}. Steps count after "
        f"capture.warmup_steps: run more steps (training.max_steps)",
    )
