"""Names that one process sets and another one reads: environment variables, NVTX ranges, and how runs
are called.
"""

from __future__ import annotations

from pathlib import Path

RESULTS = Path("results/profiling")
"""Place where runs go, below the project folder."""
LOCAL = "local-"
"""Beginning of the ids of jobs that no cluster ran."""

RUN_DIR = "AORTA_RUN_DIR"
JOB_ID = "AORTA_JOB_ID"
RUN_ID = "AORTA_RUN_ID"
ATTEMPT = "AORTA_ATTEMPT"
SCENARIO = "AORTA_SCENARIO"
NODE_INDEX = "AORTA_NODE_INDEX"
PROFILER = "AORTA_PROFILER"
"""The profiler that wraps a rank: `nsys`, `rocprofv3` or `none`."""
CAPTURE = "AORTA_CAPTURE"
"""The job's `capture` block as JSON: a rank may have no reader of YAML."""
INSTRUMENT = "AORTA_INSTRUMENT"
"""`auto` where own programs are instrumented by `aorta.inject`."""
STEPS = "AORTA_STEPS"
"""Optimizer steps after which the hooks end the program."""
REGIONS = "AORTA_ROCTX_REGIONS"
"""`1` where rocprofv3 waits to be told by a rank when to record."""
OF_A_RANK = (
    RUN_DIR, JOB_ID, RUN_ID, ATTEMPT, SCENARIO, NODE_INDEX, PROFILER, CAPTURE, INSTRUMENT, STEPS, REGIONS,
)  # fmt: skip
"""Variables that the node agent sets for each rank."""

SHARED_NODES = "AORTA_SHARED_NODES"
"""Number of a job's nodes that are processes of this machine."""
CONFIG = "AORTA_CONFIG"
SITE_CONFIG = "AORTA_SITE_CONFIG"
"""File with the defaults of a site. Empty if there are none, not even the usual one."""
GPUS_PER_NODE = "AORTA_GPUS_PER_NODE"
NSYS = "AORTA_NSYS"
SECRET_VALUES = "AORTA_SECRET_VALUES"  # noqa: S105 (a name)
"""JSON list of what a child masks beside its own secret variables, such as secrets of a command."""

STEP_RANGE = "aorta.step"
LOADER_RANGE = "aorta.data"
COPY_RANGE = "aorta.copy"
CAPTURE_RANGE = "aorta.capture"
"""Range of a process without a GPU, around which nsys records."""


def part_range(tag: str) -> str:
    """The name of the NVTX range of one part of a step: `forward`, `backward` or `optimizer`."""
    return f"aorta.{tag}"
