"""One rank always has more work.

What it finds:
    One rank computes for longer than the others in every step. It has more kernels, other kernels or other
    launch shapes, so its share of the work is larger.
Why it costs time:
    All ranks meet in the all-reduce of the gradients, so the rank with the longest sequences sets the pace.
What to do:
    Give each rank the same number of tokens: sort or bucket samples by length before you distribute them.
"""

from __future__ import annotations

from aorta.diagnosis.mistake import MistakeSpec, Program, Sign
from aorta.diagnosis.mistakes._compute import longer_computing


def _look(program: Program) -> Sign | None:
    return longer_computing(program, alike=False)


SPEC = MistakeSpec(
    id="seq_skew",
    before="""\
sampler = DistributedSampler(dataset, shuffle=False)  # sorted by length
""",
    after="""\
sampler = LengthGroupedSampler(lengths, batch_size, world_size)
""",
    predicted_by="replay in which these ranks' kernels take as long in total as those of the typical rank",
    captures=("seq_skew (two H200, records and traces)",),
    look=_look,
    shown_by="traces",
    least_gain=1.05,
    of_equal_ranks=True,
    of_ranks=True,
)
