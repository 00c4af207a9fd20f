"""Another process uses a rank's GPU.

What it finds:
    One rank runs the same kernels as the others, with the same launch shapes. In every step, each kernel
    takes longer on this rank.
Why it costs time:
    Another process uses part of the GPU, or the GPU is limited. All ranks wait for this rank.
What to do:
    Look at `nvidia-smi` on this node for other processes, then at clocks and temperature. Ask the
    scheduler for exclusive GPUs.
"""

from __future__ import annotations

from aorta.diagnosis.mistake import MistakeSpec, Program, Sign
from aorta.diagnosis.mistakes._compute import longer_computing

_SLOWER = 1.25
"""Compute time over the typical rank's. On an equal GPU, kernels take up to a fifth longer beside a
collective in which this rank waits for another.
"""


def _look(program: Program) -> Sign | None:
    return longer_computing(program, alike=True, times=_SLOWER)


SPEC = MistakeSpec(
    id="slow_gpu",
    before="""\
sbatch --gpus-per-node=8 train.sbatch
""",
    after="""\
sbatch --gpus-per-node=8 --exclusive train.sbatch
""",
    predicted_by="replay in which these ranks' kernels take as long in total as those of the typical rank",
    captures=("slow_gpu (two H200, records and traces)",),
    look=_look,
    shown_by="traces",
    least_gain=1.05,
    # A stage with more layers runs the same kernels, more of them.
    of_equal_ranks=True,
    of_ranks=True,
)
