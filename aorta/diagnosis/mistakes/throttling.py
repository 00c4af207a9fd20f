"""A GPU limited by heat or power.

What it finds:
    A GPU clocks down for heat or power while others do not.
Why it costs time:
    All ranks wait for the GPU that is slower.
What to do:
    Check cooling and the power limit of this node (`nvidia-smi -q -d PERFORMANCE`), and take it out of
    the job.
"""

from __future__ import annotations

from aorta.diagnosis.mistake import MistakeSpec

SPEC = MistakeSpec(
    id="throttling",
    before="""\
sbatch --nodes=4 train.sbatch
""",
    after="""\
sbatch --nodes=4 --exclude=node7 train.sbatch
""",
    predicted_by="as slow_gpu; the monitors' samples say that it is heat or power",
    captures=(),
    look=None,
    shown_by="clock limits in the monitors' samples, with slow_gpu in the traces",
)
