"""DDP buckets far too small.

What it finds:
    DDP exchanges gradients in more than 20 all-reduces per pass. Buckets of 25 MB would need at most a third
    as many.
Why it costs time:
    Each all-reduce costs a launch on the host and the latency of the link. Small all-reduces do not reach
    the link's bandwidth.
What to do:
    Leave `bucket_cap_mb` at 25, or raise it if the network is slow.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT
from aorta.artefacts.hostline import Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_LEAST_CALLS = 20.0
_TIMES = 3.0
"""All-reduces over those that DDP's usual buckets would need."""
_BUCKET = 25e6


def _look(program: Program) -> Sign | None:
    ranks = program.most(_small)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    size = one.table.bytes[_calls(one)]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=MistakePlace(function="DistributedDataParallel"),
        evidence={
            "all_reduces_per_step": round(one.count(_calls(one)), 1),
            "mean_kb": round(float(size.mean()) / 1e3, 1),
        },
    )


def _calls(item: RankProgram) -> Mask:
    """Collectives of a recorded size, single numbers left out."""
    return np.asarray((item.table.group != ABSENT) & (item.table.bytes > 1024), dtype=np.bool_)


def _small(item: RankProgram) -> bool:
    passes = max(item.line.census.counts.get("ddp_forward", 0.0), 1.0)
    if item.line.census.counts.get("ddp_forward", 0.0) < 1 or not _calls(item).any():
        return False
    each = item.count(_calls(item)) / passes
    whole = float(item.table.bytes[_calls(item)].sum()) / item.steps / passes
    return each >= max(_LEAST_CALLS, _TIMES * (1.0 + whole / _BUCKET))


def _fixed(item: RankProgram) -> ReplayChanges:
    table, calls = item.table, _calls(item)
    every = max(round(_BUCKET / max(float(table.bytes[calls].mean()), 1.0)), 2)
    kept = calls & (table.order % every == every - 1)
    # The last one of a step stays, whatever their number.
    rows = np.flatnonzero(calls)
    last = rows[np.append(table.step[rows][1:] != table.step[rows][:-1], True)]
    kept[last] = True
    best = float(np.max(table.bytes[calls] / np.maximum(table.gpu_ns[calls], 1)))
    gpu = table.gpu_ns.astype(np.float64)
    gpu[kept] = table.bytes[calls].sum() / max(best, 1e-9) / max(int(kept.sum()), 1)
    share = float(kept.sum()) / max(float(calls.sum()), 1.0)
    work = item.work_ns - item.tag_ns(Tag.COLLECTIVE) * (1.0 - share)
    return ReplayChanges(work_ns=np.maximum(work, 0.0), gpu_ns=gpu, dropped=calls & ~kept)


SPEC = MistakeSpec(
    id="small_buckets",
    before="""\
model = DistributedDataParallel(model, bucket_cap_mb=0.1)
""",
    after="""\
model = DistributedDataParallel(model, bucket_cap_mb=25)
""",
    predicted_by=("replay with one all-reduce per 25 MB, at the best bandwidth that was measured"),
    captures=("small_buckets (two H200, records and traces)",),
    look=_look,
    shown_by="traces",
)
