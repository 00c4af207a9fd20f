"""job_metadata.txt as a golden text."""

from __future__ import annotations

import msgspec

from aorta.artefacts.records import GpuInfo
from aorta.runner.metadata import job_metadata
from tests.runner.test_command import manifest
from tests.runner.test_network import node


def test_readable_lines_without_what_is_not_known(monkeypatch):
    gpu = GpuInfo(index=0, uuid="GPU-1", name="H100")
    own = msgspec.structs.replace(
        node(0, host="h0", slurm_node="n0"),
        gpus=[gpu],
        memory_limit_bytes=3 << 30,
        packages={"torch": "2.13.0"},
    )
    record = msgspec.structs.replace(
        manifest([own, node(1, host="h1")]), submitted_wall_ns=None, started_wall_ns=0, nodes_missing=[1]
    )
    lines = job_metadata(record, {"SLURM_JOB_PARTITION": "gpu"}).splitlines()
    started = next(line for line in lines if line.startswith("started:"))
    assert "19" in started
    lines.remove(started)
    assert "\n".join(lines) == (
        "job:         j7 (local), attempt 3\n"
        "scenario:    cpu_2node: nodes 2, ranks 2\n"
        "partition:   gpu\n"
        "profiler:    none (asked for: none; )\n"
        "monitors:    every 1 s\n"
        "aorta:       0\n"
        "missing:     node 1\n"
        "note:        nodes share one machine\n"
        "\n"
        "node 0: h0 (n0)\n"
        "  ranks 1, usable CPUs 2, memory limit 3.0 GiB\n"
        "  GPU 0: H100 GPU-1\n"
        "  torch 2.13.0\n"
        "\n"
        "node 1: h1\n"
        "  ranks 1, usable CPUs 2\n"
        "  "
    )
