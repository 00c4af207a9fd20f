"""Parameters gathered in fp32.

What it finds:
    FSDP gathers parameters with four bytes per element, although the matrix products run on tensor
    cores.
Why it costs time:
    Each gather moves twice the bytes that the products need, and the parameters are cast afterwards.
What to do:
    Give `fully_shard` a `MixedPrecisionPolicy` with `param_dtype=torch.bfloat16`. The optimizer keeps its
    fp32 copy.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT
from aorta.artefacts.hostline import ComputeKind, Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_MOST = 0.9
"""Share of the gathers of known type that carry four bytes per element."""
_NARROWER = 0.5


def _look(program: Program) -> Sign | None:
    ranks = program.most(_wide)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=MistakePlace(function=f"fully_shard ({one.line.census.units[0]})"),
        evidence={
            "wide_gathers_per_step": round(one.line.census.counts["wide_gathers"], 1),
            "gathers_per_step": round(one.line.census.counts["gathers"], 1),
        },
    )


def _wide(item: RankProgram) -> bool:
    counts = item.line.census.counts
    known = counts.get("gathers", 0.0)
    wide = known > 0 and counts.get("wide_gathers", 0.0) >= _MOST * known
    return bool(wide and item.line.census.units and item.launched(ComputeKind.TENSOR_MATMUL).any())


def _fixed(item: RankProgram) -> ReplayChanges:
    gpu = item.table.gpu_ns.astype(np.float64)
    calls = (item.table.group != ABSENT) & item.has(Tag.COLLECTIVE)
    gpu[calls] *= _NARROWER
    return ReplayChanges(gpu_ns=gpu)


SPEC = MistakeSpec(
    id="fsdp_fp32",
    before="""\
fully_shard(block)
""",
    after="""\
fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
    predicted_by="replay in which FSDP's collectives take half the time",
    captures=("fsdp_fp32 (two H200, records and traces)",),
    look=_look,
    shown_by="traces that record the type of collectives, as torch.profiler does",
)
