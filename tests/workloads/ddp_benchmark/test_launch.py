"""Who starts the ranks, and on which device each of them is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from aorta.errors import ConfigError
from aorta.workloads.ddp_benchmark import launch, main
from aorta.workloads.ddp_benchmark.options import BenchmarkOptions, parse


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Four GPUs that are not there; what was chosen."""
    chosen: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.update(device=device))
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **more: chosen.update(backend=backend, **more)
    )
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    return chosen


def test_the_device_is_that_of_the_local_rank(monkeypatch: pytest.MonkeyPatch, gpus: dict[str, Any]) -> None:
    for name, value in {"RANK": 5, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "GROUP_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    with launch.joined("auto", 7.0) as world:
        assert (world.rank, world.local_rank, world.size, world.node_index) == (5, 1, 8, 1)
        assert world.device == torch.device("cuda", 1)
    assert (gpus["device"], gpus["device_id"], gpus["backend"]) == (*[torch.device("cuda", 1)] * 2, "nccl")
    assert gpus["timeout"].total_seconds() == 7.0


def test_alone_it_takes_every_gpu_or_two_ranks(gpus: dict[str, Any]) -> None:
    assert launch.ranks_to_start("auto", None) == 4
    assert launch.ranks_to_start("auto", 3) == 3
    assert launch.ranks_to_start("cpu", None) == 2
    assert launch.ranks_to_start("cpu", 5) == 5
    with pytest.raises(ConfigError, match=r"--nproc is 5, but 4 GPU"):
        launch.ranks_to_start("auto", 5)


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device is 'cuda'"):
        launch.ranks_to_start("cuda", None)
    assert launch.ranks_to_start("auto", None) == 2


def test_a_launcher_is_known_by_its_variables() -> None:
    assert launch.launched({"RANK": "0", "WORLD_SIZE": "1"})
    assert not launch.launched({"PATH": "/bin"})


def test_nproc_is_not_for_launchers(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    options = parse(["--nproc", "2", "--output-dir", str(tmp_path)])
    with pytest.raises(ConfigError, match="--nproc is given"):
        main.run(options)


def test_a_folder_that_cannot_be_made_is_refused_before_the_start(tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--profile-output-dir .*file/x"):
        main.run(parse(["--profile", "--profile-output-dir", str(tmp_path / "file" / "x")]))


def test_a_large_model_on_a_cpu_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main.announce(BenchmarkOptions(), 2)
    said = capsys.readouterr().out
    assert "2 rank(s) on CPU, 16,384 tokens per rank and step" in said  # 32 × 512
    assert "--preset small" in said
    main.announce(parse(["--preset", "small"]), 2)
    assert "--preset small" not in capsys.readouterr().out


def test_a_large_model_is_not_trained_on_a_cpu_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ConfigError, match=r"there is no GPU, and this would take about [\d,]+ minutes"
    ) as refused:
        main.agree(BenchmarkOptions(), 2, ask=None)
    assert refused.value.hint.startswith("add --cpu")
    asked: list[str] = []

    def answer(question: str) -> bool:
        asked.append(question)
        return len(asked) > 1

    with pytest.raises(ConfigError):
        main.agree(BenchmarkOptions(), 2, ask=answer)
    main.agree(BenchmarkOptions(), 2, ask=answer)
    assert len(asked) == 2


@pytest.mark.parametrize("words", [["--cpu"], ["--device", "cpu"], ["--preset", "small"]])
def test_consent_and_small_models_are_not_asked_about(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main.agree(parse(words), 2, ask=None)


def test_on_a_gpu_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    main.agree(BenchmarkOptions(), 2, ask=None)
    main.agree(parse(["--device", "cuda"]), 2, ask=None)
