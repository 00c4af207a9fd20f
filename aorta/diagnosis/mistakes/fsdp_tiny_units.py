"""FSDP units too small.

What it finds:
    FSDP gathers parameters in more than 40 units per step, with several units per block of the model.
Why it costs time:
    Each unit has its own all-gather and reduce-scatter. For small units, latency and host work take longer
    than moving the data.
What to do:
    Shard whole blocks: call `fully_shard` on each transformer block, and once on the model.
"""

from __future__ import annotations

import re

import numpy as np

from aorta.artefacts.events import ABSENT
from aorta.artefacts.hostline import Item, Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_LEAST_UNITS = 40
_LARGE_BYTES = 8e6
_SMALL_PCT = 10
_BLOCK = re.compile(r"^(.*?[.]\d+)(?:[.]|$)")


def _look(program: Program) -> Sign | None:
    one = next(iter(program.ranks.values()))
    units = one.line.census.units
    blocks = {found[1] if (found := _BLOCK.match(name)) else "" for name in units}
    if len(units) < _LEAST_UNITS or len(units) < 2 * len(blocks) or _large(one):
        return None
    share = (len(blocks) + 1) / len(units)
    return Sign(
        {rank: _fixed(item, share) for rank, item in program.ranks.items()},
        where=MistakePlace(function=f"fully_shard ({units[0]})"),
        evidence={"units": len(units), "blocks": len(blocks)},
    )


def _large(item: RankProgram) -> bool:
    """True if even small units hold much, as experts do; False where sizes are not recorded."""
    sizes = item.table.bytes[(item.table.group != ABSENT) & (item.table.bytes > 0)]
    return len(sizes) > 0 and float(np.percentile(sizes, _SMALL_PCT)) >= _LARGE_BYTES


def _fixed(item: RankProgram, share: float) -> ReplayChanges:
    """Every n-th collective and what prepares it stays; it carries the others' data."""
    table = item.table
    calls = table.group != ABSENT
    every = max(round(1 / share), 1)
    kept = calls & (table.order % every == every - 1)
    of_fsdp = item.has(Tag.COLLECTIVE) & (table.item == Item.LAUNCH) & ~kept
    work = item.work_ns - item.tag_ns(Tag.COLLECTIVE) * (1 - share)
    return ReplayChanges(work_ns=np.maximum(work, 0.0), dropped=(calls & ~kept) | of_fsdp)


SPEC = MistakeSpec(
    id="fsdp_tiny_units",
    before="""\
for module in model.modules():
    if isinstance(module, (nn.Linear, nn.LayerNorm)):
        fully_shard(module)
fully_shard(model)
""",
    after="""\
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
""",
    predicted_by="replay with the collectives and their preparation for only one unit per block",
    captures=("fsdp_tiny_units",),
    look=_look,
    shown_by="traces",
)
