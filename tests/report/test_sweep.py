"""The document over a sweep: what it shows of what was measured, and of what was not."""

from __future__ import annotations

from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from aorta.artefacts.study_layout import SweepDocs
from aorta.artefacts.sweep import RepeatedMean, Sensitivity, SettingResult, Sweep, SweepAnalysis, SweepSeries
from aorta.report import style
from aorta.report.sweep import write_sweep
from aorta.report.sweep_plots import key_figure
from aorta.report.text import ABSENT

KNOB = "distributed.enable_overlap"


def setting(value: str, exposed: RepeatedMean | None, overlap: RepeatedMean | None) -> SettingResult:
    return SettingResult(
        scenario="2node",
        nodes=2,
        values={KNOB: value},
        repeats_planned=3,
        repeats_valid=3,
        world_size=4,
        global_batch=32,
        per_rank_batch=8,
        job_ids=[],
        samples_per_s=RepeatedMean(mean=320.0, low=310.0, high=330.0, repeats=3),
        step_ms=RepeatedMean(mean=100.0, low=98.0, high=102.0, repeats=3),
        exposed_comm_ms=exposed,
        exposed_comm_pct=None if exposed is None else RepeatedMean(mean=exposed.mean, repeats=3),
        overlap_ratio=overlap,
    )


def knobs() -> SweepAnalysis:
    """Overlap on: all hidden, a measured zero is exposed. Off: nobody could say."""
    measured = RepeatedMean(mean=0.0, low=0.0, high=0.0, repeats=3)
    return SweepAnalysis(
        generated_wall_ns=1,
        statement="overlap is worth something",
        sweep=Sweep(
            keys={KNOB: ["true", "false"]},
            repeats=3,
            scaling=None,
            global_batch=None,
            executor="slurm",
            points=[],
        ),
        settings=[
            setting("true", measured, RepeatedMean(mean=1.0, low=1.0, high=1.0, repeats=3)),
            setting("false", None, None),
        ],
        curves=[],
        sensitivities=[
            Sensitivity(
                key=KNOB,
                values=["true", "false"],
                series=[SweepSeries(scenario="2node", held={}, settings=[0, 1])],
            )
        ],
        failed=[],
    )


def row(text: str, value: str) -> list[str]:
    (line,) = [
        line for line in text.splitlines() if line.startswith("| 2node") and f"enable_overlap={value}" in line
    ]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_absent_is_a_dash_and_a_measured_zero_is_zero(tmp_path: Path) -> None:
    docs = SweepDocs(tmp_path)
    write_sweep(docs, knobs())
    text = docs.markdown.read_text(encoding="utf-8")
    assert row(text, "true")[-3:] == ["0 ± 0", "0 %", "100 % ± 0"]
    assert row(text, "false")[-3:] == [ABSENT] * 3
    assert row(text, "true")[5:7] == ["320 ± 10.0", "100 ± 2.00"]
    assert all(path.stat().st_size > 1000 for path in docs.plot(KNOB))


def panels(figure: Figure) -> dict[str, list[tuple[list[float], list[float]]]]:
    return {
        axes.get_title(loc="left").splitlines()[0]: [
            (list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))  # type: ignore[arg-type]
            for line in axes.lines
            if line.get_marker() == "o"  # means, not the ends of their bands
        ]
        for axes in figure.axes
    }


def test_the_values_of_an_overlap_knob_stand_side_by_side() -> None:
    analysis = knobs()
    with style.styled():
        figure = key_figure(analysis, analysis.sensitivities[0])
    assert figure is not None
    shown = panels(figure)
    assert list(shown) == ["Step time", "Throughput", "Exposed communication", "Overlap"]
    assert shown["Step time"] == [([0.0, 1.0], [100.0, 100.0])]
    assert shown["Overlap"] == [([0.0], [100.0])]  # in percent; nothing where nothing was measured
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == ["true", "false"]


def test_a_panel_of_nothing_is_left_out_and_a_figure_of_nothing_is_one_sentence(tmp_path: Path) -> None:
    analysis = knobs()
    without = [msgspec.structs.replace(item, overlap_ratio=None) for item in analysis.settings]
    bare = [
        msgspec.structs.replace(
            item, step_ms=None, samples_per_s=None, exposed_comm_ms=None, overlap_ratio=None
        )
        for item in analysis.settings
    ]
    with style.styled():
        some, none = (
            key_figure(msgspec.structs.replace(analysis, settings=settings), analysis.sensitivities[0])
            for settings in (without, bare)
        )
    assert some is not None
    titles = [axes.get_title(loc="left").strip() for axes in some.axes if axes.axison]
    assert titles == ["Step time", "Throughput", "Exposed communication"]
    assert none is None
    docs, key = SweepDocs(tmp_path), analysis.sensitivities[0].key
    write_sweep(docs, msgspec.structs.replace(analysis, settings=bare))
    assert f"## {key}\n\nNot measured in any valid run.\n" in docs.markdown.read_text()
    assert not any(path.exists() for path in docs.plot(key))
    write_sweep(docs, analysis)
    assert all(path.exists() for path in docs.plot(key))
    assert "Not measured in any valid run" not in docs.markdown.read_text()


def test_a_range_of_two_repeats_is_not_written_as_a_band(tmp_path: Path) -> None:
    whole = knobs()
    two = [
        msgspec.structs.replace(
            item,
            repeats_valid=2,
            step_ms=RepeatedMean(mean=100.0, low=98.0, high=102.0, repeats=2, basis="range"),
        )
        for item in whole.settings
    ]
    docs = SweepDocs(tmp_path)
    write_sweep(docs, msgspec.structs.replace(whole, settings=two))
    text = docs.markdown.read_text(encoding="utf-8")
    assert row(text, "true")[6] == "100, seen 98.0 to 102"
    assert "not a confidence band" in text
    assert "Student" not in text
    assert "single run" not in text
    write_sweep(docs, whole)
    text = docs.markdown.read_text(encoding="utf-8")
    assert "Student" in text
    assert "Seen is" not in text
