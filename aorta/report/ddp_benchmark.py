"""The DDP benchmark's table and chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from rich import box
from rich.console import Console
from rich.table import Table

from aorta.artefacts.ddp_benchmark import DdpBenchmark, ImplementationResult
from aorta.artefacts.study_layout import DdpBenchmarkDir
from aorta.report import palette, style
from aorta.report.text import ABSENT, number

PARTS = (
    ("forward", "forward", "#56B4E9"),
    ("backward", "backward", palette.COMPUTE),
    ("exposed sync", "exposed_sync", palette.EXPOSED_COMM),
    ("optimizer", "optimizer", palette.HOST),
)
"""Stacked parts: name, field of `ImplementationResult`, colour."""


def show(document: DdpBenchmark, console: Console | None = None) -> None:
    """Print the tables, each at most 80 columns wide, and what a reader must know beside them."""
    console = console or Console()
    results = document.implementations
    ranks = f"{document.world_size} × {document.device}, {document.backend}"
    tables = (
        (f"{ranks}: ms per step, medians; sync is exposed", _TIMES, _times),
        ("\nspeed, all ranks together", _SPEED, _speed),
        (
            "\ncommunication per step: medians in ms, share hidden, bus bandwidth",
            _COMMUNICATION,
            _communication,
        ),
    )
    for title, names, row in tables:
        console.print(_table(title, names, {result.name: row(result) for result in results}))
    if document.missing:
        console.print(f"not measured, because the run ended before that: {', '.join(document.missing)}")
    peak = max((point.bus_bytes_per_s for point in document.peak), default=None)
    if peak is None:
        console.print("one rank, so no data crosses a bus")
    else:
        console.print(f"peak: {number(peak / 1e9)} GB/s bus bandwidth of a plain all-reduce")
    if any(result.communication_from == "extra_steps" for result in results):
        console.print(
            "torch_ddp: total and speed come from plain steps; parts and communication\n"
            "come from extra steps in which its all-reduces are timed"
        )


_TIMES = ("forward", "backward", "sync", "update", "total", "p95", "IQR")
_SPEED = ("tokens/s", "samples/s", "over torch_ddp", "final loss", "weights")
_COMMUNICATION = ("all", "hidden", "exposed", "share", "calls", "MB", "GB/s", "of peak")


def _table(title: str, names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    table.add_column("implementation", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _times(result: ImplementationResult) -> list[str]:
    total = result.total
    parts = [number(getattr(result, field).median_ms) for _, field, _ in PARTS]
    return [*parts, number(total.median_ms), number(total.p95_ms), number(total.iqr_ms)]


def _speed(result: ImplementationResult) -> list[str]:
    ratio, loss = result.throughput_over_torch_ddp, result.final_loss
    return [
        number(result.tokens_per_s),
        number(result.samples_per_s),
        ABSENT if ratio is None else f"{ratio:.3f}",
        ABSENT if loss is None else f"{loss:.4f}",
        "equal" if result.weights_equal_on_all_ranks else "[bold red]DIFFER[/]",
    ]


def _communication(result: ImplementationResult) -> list[str]:
    bus = result.bus_bytes_per_s
    return [
        number(result.comm_ms),
        number(result.hidden_comm_ms),
        number(result.exposed_comm_ms),
        _share(result.overlap_ratio),
        str(result.collectives_per_step),
        number(result.bytes_per_step / 1e6),
        number(None if bus is None else bus / 1e9),
        _share(result.bus_over_peak_ratio),
    ]


def _share(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{100 * ratio:.1f}%"


def draw(document: DdpBenchmark, folder: DdpBenchmarkDir) -> None:
    """Write the chart: parts of a step on the left, hidden and exposed communication on the right."""
    with style.styled():
        figure = style.new_figure(11, 1.6 + 0.5 * len(document.implementations))
        left, right = figure.subplots(1, 2, sharey=True)
        results = document.implementations[::-1]
        _stack(left, results)
        _communication_bars(right, results)
        left.set_yticks(range(len(results)), [result.name for result in results])
        style.save(figure, folder.plot_png, folder.plot_svg)


def _stack(axes: Axes, results: list[ImplementationResult]) -> None:
    ends = [0.0] * len(results)
    for name, field, colour in PARTS:
        widths = [getattr(result, field).median_ms for result in results]
        axes.barh(range(len(results)), widths, left=ends, color=colour, label=name, height=0.62)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    totals = [result.total for result in results]
    axes.errorbar(
        [total.median_ms for total in totals],
        range(len(results)),
        xerr=[[0.0] * len(totals), [max(total.p95_ms - total.median_ms, 0.0) for total in totals]],
        fmt="|",
        color=palette.INK,
        capsize=3,
        label="total, to p95",
    )
    style.title(axes, "Time per step, ms")
    _finish(axes)


def _communication_bars(axes: Axes, results: list[ImplementationResult]) -> None:
    hidden = [result.hidden_comm_ms for result in results]
    exposed = [result.exposed_comm_ms for result in results]
    rows = range(len(results))
    axes.barh(rows, hidden, color=palette.HIDDEN_COMM, label="hidden", height=0.62)
    axes.barh(rows, exposed, left=hidden, color=palette.EXPOSED_COMM, label="exposed", height=0.62)
    style.title(axes, "Communication per step, ms")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.grid(axis="x")
    axes.set_xlim(left=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=5)
