"""Anomaly detection left on.

What it finds:
    The backward pass checks each gradient for NaN: more than 20 checks per step inside backward functions.
Why it costs time:
    Anomaly detection stores a Python traceback for each forward operator. It also reads one result of each
    backward operator back to the host.
What to do:
    Remove `torch.autograd.set_detect_anomaly(True)`, or switch it on for single steps.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_LEAST = 20.0


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: _checks(item) >= _LEAST)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=program.where(Tag.ANOMALY) or MistakePlace(function="torch.autograd.set_detect_anomaly"),
        evidence={"checks_per_step": round(one.line.census.counts.get("nan_checks", 0.0), 1)},
    )


def _checks(item: RankProgram) -> float:
    """Checks per step; on a GPU, the checks that launch something inside a backward function."""
    if not item.compute.any():
        return item.line.census.counts.get("nan_checks", 0.0)
    return item.count(item.has(Tag.ANOMALY) & item.has(Tag.BACKWARD))


def _fixed(item: RankProgram) -> ReplayChanges:
    backward = item.tag_ns(Tag.BACKWARD)
    checks = np.where(backward > 0, item.tag_ns(Tag.ANOMALY) + item.tag_ns(Tag.READ_BACK), 0.0)
    checks = np.minimum(checks, item.work_ns)
    clean = float(np.maximum(backward - checks, 0.0).sum())
    silent = item.tag_ns(Tag.SILENT) + item.tag_ns(Tag.LOADER) + item.tag_ns(Tag.OPTIMIZER)
    forward = np.maximum(item.work_ns - backward - silent, 0.0)
    total = float(forward.sum())
    share = min(clean / total, 1.0) if total > 0 else 1.0
    left = item.work_ns - checks - forward * (1.0 - share)
    dropped = item.has(Tag.BACKWARD) & (item.has(Tag.ANOMALY) | item.has(Tag.READ_BACK))
    return ReplayChanges(work_ns=np.maximum(left, 0.0), dropped=dropped)


SPEC = MistakeSpec(
    id="anomaly",
    before="""\
torch.autograd.set_detect_anomaly(True)
""",
    after="""\
torch.autograd.set_detect_anomaly(False)
""",
    predicted_by=(
        "replay without the checks, and without the forward work beyond what the backward pass takes"
    ),
    captures=(
        "anomaly (one H200)",
        "anomaly (two H200, records and traces)",
    ),
    look=_look,
    shown_by="traces",
)
