"""Fast transport switched off or not found.

What it finds:
    Even in the best call, large collectives of at most eight ranks reach less than 12 GB/s (bus bandwidth).
Why it costs time:
    Without peer access NCCL copies through host memory or sockets: 10 to 50 times slower than NVLink.
    Ranks on several nodes with a slow network look the same.
What to do:
    Remove `NCCL_P2P_DISABLE` and `NCCL_SHM_DISABLE`. Read `NCCL_DEBUG=INFO`: it names the transport of
    each pair.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_LARGE = 4e6
_SLOW_BYTES_PER_NS = 12.0
_FASTER = 5.0
_MOST_RANKS = 8
_LEAST_SHARE = 0.1


def _look(program: Program) -> Sign | None:
    count = len(program.ranks)
    if not 2 <= count <= _MOST_RANKS:
        return None
    best = [_best(item) for item in program.ranks.values()]
    known = [value for value in best if value is not None]
    cost = min(item.per_step(np.where(_calls(item), item.table.gpu_ns, 0)) for item in program.ranks.values())
    if len(known) < count or program.share(cost) < _LEAST_SHARE:
        return None
    # An all-reduce sends and receives 2 (n - 1) / n of its bytes.
    bus = max(known) * 2 * (count - 1) / count
    if bus >= _SLOW_BYTES_PER_NS:
        return None
    return Sign(
        {rank: _fixed(item) for rank, item in program.ranks.items()},
        evidence={"best_bus_gb_per_s": round(bus, 2), "communication_ms_per_step": round(cost, 2)},
    )


def _calls(item: RankProgram) -> Mask:
    return np.asarray(item.table.group != ABSENT, dtype=np.bool_)


def _best(item: RankProgram) -> float | None:
    rows = _calls(item) & (item.table.bytes >= _LARGE) & (item.table.gpu_ns > 0)
    return float((item.table.bytes[rows] / item.table.gpu_ns[rows]).max()) if rows.any() else None


def _fixed(item: RankProgram) -> ReplayChanges:
    gpu = item.table.gpu_ns.astype(np.float64)
    gpu[_calls(item)] /= _FASTER
    return ReplayChanges(gpu_ns=gpu)


SPEC = MistakeSpec(
    id="p2p_off",
    before="""\
export NCCL_P2P_DISABLE=1
""",
    after="""\
unset NCCL_P2P_DISABLE
""",
    predicted_by="replay with all collectives five times faster",
    captures=("h100-comm (4 × H100)",),
    look=_look,
    shown_by="traces",
    of_ranks=True,
)
