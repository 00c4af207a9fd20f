"""What stands before a rank's program, with stand-ins for nsys."""

from __future__ import annotations

import pytest

from aorta.artefacts.records import GpuInfo, ProfilerChoice
from aorta.config.load import load_config
from aorta.monitors.gpu import Gpus
from aorta.runner.profiler import wrapper

OFFER = "Possible values are:\n\t0: H100 PCI[0]\n\t1: H100 PCI[1]\n\tall: Select all\n\tcuda-visible: those\n"


@pytest.mark.parametrize("known", ["--gpu-metrics-devices", "--gpu-metrics-device", None])
def test_gpu_metrics_are_asked_for_by_the_name_that_this_nsys_knows(tmp_path, known):
    (tmp_path / "offer").write_text(OFFER)
    program = tmp_path / "nsys"
    program.write_text(
        f'#!/bin/sh\nif [ "$2" = "{known}=help" ]; then cat {tmp_path}/offer; exit 0; fi\n'
        "echo \"unrecognised option '$2'\" >&2; exit 1\n"
    )
    program.chmod(0o755)
    version = "NVIDIA Nsight Systems version 2025.3.1"
    choice = ProfilerChoice(
        requested="nsys", resolved="nsys", reason="", program=str(program), version=version
    )
    made = wrapper(
        choice,
        load_config(None, ["capture.gpu_metrics=true"]).capture,
        Gpus("nvidia", [GpuInfo(index=i, uuid=f"u{i}", name="H100") for i in (0, 1)], "nvml"),
        environ={},
        output=tmp_path,
        stem="x",
        whole=False,
    )
    assert made.first == ([f"{known}=cuda-visible"] if known else [])
    said = (
        "sampled: of the GPUs of the job" if known else "left out: nsys offers no GPU for them: unrecognised"
    )
    assert any(f"GPU metrics {said}" in note for note in made.notes)
    assert made.around(["python", "t.py"])[-2:] == ["python", "t.py"]
