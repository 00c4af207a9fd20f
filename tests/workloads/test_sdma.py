"""The SDMA prototype: its arithmetic here, its streams where there is a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from aorta.workloads import sdma
from aorta.workloads.sdma import COPIES, Result, Times, main, result, spread, table


def times(ms: float) -> Times:
    return Times(ms, ms, ms)


def test_the_spread_of_some_times() -> None:
    found = spread([float(value) for value in range(21)])
    assert (found.low_ms, found.median_ms, found.high_ms) == (1.0, 10.0, 19.0)
    assert spread([3.0]) == times(3.0)


def test_savings_are_a_share_of_what_could_be_saved() -> None:
    both = {"serial": times(10), "overlapped": times(7), "chunked": times(8)}
    found = result("h2d", 1 << 30, (times(6), times(4)), both)
    assert found.ideal_ms == 6
    assert found.savings_ms == 10 - 7
    assert found.savings_ratio == (10 - 7) / (10 - 6)
    assert found.variants == {"chunked": times(8)}
    assert found.copy_gib_per_s == pytest.approx(1 / 0.004)
    assert "75% of the possible" in table([found])[-1]


def test_where_nothing_can_be_saved_there_is_no_share() -> None:
    found = result("d2d", 1, (times(6), times(4)), {"serial": times(6), "overlapped": times(6)})
    assert found.savings_ratio is None
    assert "nothing to save" in table([found])[-1]


def test_without_such_a_gpu_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "77"]) == 2
    assert "--device 77:" in capsys.readouterr().err


class MeasuredElsewhere:
    """Stands in for the streams of a GPU."""

    def __init__(self, *given: object) -> None:
        assert given == (torch.device("cuda", 0), 512, 4, 5)

    def measure(self, copy: str) -> Result:
        return result(copy, 4 << 20, (times(6), times(4)), {"serial": times(10), "overlapped": times(7)})


def test_the_results_are_written_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(sdma, "Bench", MeasuredElsewhere)
    path = tmp_path / "sdma.json"
    assert main(["--matrix-size", "512", "--copy-mb", "4", "--iterations", "5", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert (found["device"], found["torch"]) == ("GPU 0", str(torch.__version__))
    assert [(item["copy"], item["savings_ms"]) for item in found["results"]] == [(name, 3) for name in COPIES]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "sdma.json"
    assert main(["--matrix-size", "512", "--copy-mb", "4", "--iterations", "5", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert [item["copy"] for item in found["results"]] == list(COPIES)
    for item in found["results"]:
        assert set(item["variants"]) == {"chunked", "late_wait", "normal_priority"}
        assert item["ideal_ms"] > 0
