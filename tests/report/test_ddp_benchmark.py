"""The DDP benchmark's tables and chart."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from aorta.artefacts.ddp_benchmark import DdpBenchmark, ImplementationResult, PeakPoint, TimeSpread
from aorta.artefacts.study_layout import DdpBenchmarkDir
from aorta.report.ddp_benchmark import draw, show


def spread(median: float) -> TimeSpread:
    return TimeSpread(median_ms=median, p95_ms=2 * median, iqr_ms=median / 4)


def result(name: str, **given: Any) -> ImplementationResult:
    values: dict[str, Any] = {
        "name": name,
        "steps": 7,
        "total": spread(40.0),
        "forward": spread(11.0),
        "backward": spread(22.0),
        "exposed_sync": spread(5.0),
        "optimizer": spread(2.0),
        "tokens_per_s": 123_456.0,
        "samples_per_s": 241.0,
        "throughput_over_torch_ddp": 0.987,
        "comm_ms": 12.0,
        "hidden_comm_ms": 9.0,
        "exposed_comm_ms": 3.0,
        "overlap_ratio": 0.75,
        "collectives_per_step": 6,
        "bytes_per_step": 516_000_000,
        "bus_bytes_per_s": 43e9,
        "bus_over_peak_ratio": 0.5,
        "communication_from": "same_steps",
        "final_loss": 5.4321,
        "weights_equal_on_all_ranks": True,
    }
    return ImplementationResult(**values | given)


def document(*results: ImplementationResult, **given: Any) -> DdpBenchmark:
    values: dict[str, Any] = {
        "wall_ns": 0,
        "hosts": ["a"],
        "device": "GPU of a kind",
        "backend": "nccl",
        "world_size": 2,
        "torch_version": "2",
        "timing": "event_window",
        "options": {},
        "parameters": 129_000_000,
        "gradient_bytes": 516_000_000,
        "tokens_per_step": 32_768,
        "peak": [PeakPoint(bytes=4, time_ms=1.0, bus_bytes_per_s=86e9)],
        "implementations": list(results),
    }
    return DdpBenchmark(**values | given)


def printed(content: DdpBenchmark, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show(content, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [" ".join(line.split()) for line in text.splitlines()]


def test_every_number_is_in_its_table() -> None:
    lines = printed(document(result("ddp_individual_v2")))
    rows = [line.removeprefix("ddp_individual_v2 ") for line in lines if line.startswith("ddp_individual_v2")]
    assert rows == [
        "11.0 22.0 5.00 2.00 40.0 80.0 10.0",
        "123,456 241 0.987 5.4321 equal",
        "12.0 9.00 3.00 75.0% 6 516 43.0 50.0%",
    ]
    assert "2 × GPU of a kind, nccl: ms per step, medians; sync is exposed" in lines
    assert "peak: 86.0 GB/s bus bandwidth of a plain all-reduce" in lines


def test_absent_is_a_dash_and_zero_is_zero() -> None:
    absent = {
        "throughput_over_torch_ddp": None,
        "overlap_ratio": None,
        "bus_bytes_per_s": None,
        "bus_over_peak_ratio": None,
        "final_loss": None,
    }
    lines = printed(document(result("ddp", comm_ms=0.0, **absent), peak=[]))
    assert "ddp 123,456 241 — — equal" in lines
    assert "ddp 0 9.00 3.00 — 6 516 — —" in lines
    assert "one rank, so no data crosses a bus" in lines
    lines = printed(document(result("ddp", overlap_ratio=0.0)))
    assert "ddp 12.0 9.00 3.00 0.0% 6 516 43.0 50.0%" in lines


def test_weights_that_differ_are_called_out() -> None:
    assert "DIFFER" in "\n".join(printed(document(result("ddp", weights_equal_on_all_ranks=False))))


def test_numbers_from_another_run_are_said_to_be() -> None:
    note = "torch_ddp: total and speed come from plain steps; parts and communication"
    assert note in printed(document(result("torch_ddp", communication_from="extra_steps")))
    assert note not in printed(document(result("torch_ddp")))


def test_tables_fit_a_narrow_terminal() -> None:
    names = ("ddp_individual_v2", "torch_ddp")
    large = {name: spread(12_345.0) for name in ("forward", "backward", "exposed_sync", "optimizer", "total")}
    for line in printed(document(*(result(name, **large) for name in names))):
        assert "…" not in line


def test_the_chart_is_written_the_same_each_time(tmp_path: Path) -> None:
    content = document(result("ddp"), result("torch_ddp"))
    first, second = DdpBenchmarkDir(tmp_path / "a"), DdpBenchmarkDir(tmp_path / "b")
    for folder in (first, second):
        draw(content, folder)
    assert first.plot_svg.read_bytes() == second.plot_svg.read_bytes()
    assert first.plot_png.read_bytes().startswith(b"\x89PNG")


def test_the_document_survives_a_round_trip() -> None:
    content = document(result("ddp", bus_bytes_per_s=None))
    assert msgspec.json.decode(msgspec.json.encode(content), type=DdpBenchmark) == content
