"""Threads times ranks over the cores.

What it finds:
    The ranks of a node run more threads than the node has cores.
Why it costs time:
    Threads take turns on the cores: each launch and each loader waits for its turn.
What to do:
    Set `OMP_NUM_THREADS` to cores per rank, and count the loader's workers in.
"""

from __future__ import annotations

from aorta.diagnosis.mistake import MistakeSpec

SPEC = MistakeSpec(
    id="cpu_oversubscription",
    before="""\
torchrun --nproc_per_node 8 train.py  # each rank with 64 threads
""",
    after="""\
OMP_NUM_THREADS=8 torchrun --nproc_per_node 8 train.py
""",
    predicted_by="not predicted from traces: they do not hold the threads of the host",
    captures=(),
    look=None,
    shown_by="cores and load in the monitors' samples and the run's manifest",
)
