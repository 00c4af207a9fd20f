"""Logging or statistics on one rank.

What it finds:
    In their steps, some ranks do work that other ranks do not do: copies to the host, statistics, writing.
Why it costs time:
    The other ranks wait for these ranks in the all-reduce of the gradients. The job runs at the speed of the
    rank that logs.
What to do:
    Log every 50th step, compute statistics on the GPU, and write from another thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from aorta.artefacts.hostline import ComputeKind, Tag
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._compute import reads_values, without_beyond
from aorta.diagnosis.mistakes._recorded import gain_without, longer_hosts, own_place, recorded
from aorta.diagnosis.observation import Observation
from aorta.metrics.line_replay import Floats, ReplayChanges
from aorta.metrics.places import FindingPlace

if TYPE_CHECKING:
    from aorta.artefacts.instrument_record import InstrumentRecord

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SAYS = (
    r"log(?:s|ged|gers?|ging)?|(?:log|print|write|dump)_?(?:hist|stat|metric|scalar|grad|value|param|weight|image)"
    r"[a-z]*|hist(?:s|ograms?)?|stat(?:s|istics?)?|metrics?|writ(?:es?|ers?|ing)|dump(?:s|ed|er|ing)?"
    r"|summar(?:y|ies)|report(?:s|ed|ers?|ing)?|monitor(?:s|ing)?|print(?:s|er|ing)?|plot(?:s|ter|ting)?|debug"
)
_NO_LOG = (
    r"_(?:soft|prob|like|sum|mel|spec|space|scale|norm|det|sigmoid|odds|ratio|uniform|gauss|dens|post|prior)"
)
_FUNCTION = re.compile(rf"(?:^|_)(?!log{_NO_LOG})(?:{_SAYS})(?=_|$)")
_FILE = re.compile(rf"(?:(?:{_SAYS}|utils?|helpers?|hooks?|callbacks?)(?:_|$))+")
"""Every word of a file's name says it: `metric_learning` is no file that logs, and `logging_utils` is one."""
_MOST = 0.5
_PACKAGES = re.compile(
    r"/(?:tensorboard\w*|wandb|mlflow|comet_ml|neptune|clearml|aim|loguru|matplotlib|csv_logger)/"
)
_LEAST_SHARE = 0.1
_FEW = 3
_LIKE = 0.3
"""Share of the costliest step's work from which a step counts as the same kind."""
_MORE_OPERATORS = 1.002
_MORE = 2.0
"""Over the typical rank's: hosts of equal work differ by less."""


def _look(program: Program) -> Sign | None:
    if len(program.ranks) < 2:
        return None
    counts = {rank: item.line.pace.operators for rank, item in program.ranks.items()}
    few = float(np.percentile(list(counts.values()), 50, method="lower"))
    costs = {
        rank: item.per_step(_own_ns(item, counts[rank] >= _MORE_OPERATORS * few) + _reads(item))
        for rank, item in program.ranks.items()
    }
    typical = float(np.percentile(list(costs.values()), 50, method="lower"))
    ranks = [
        rank
        for rank, ms in costs.items()
        if program.share(ms - typical) >= _LEAST_SHARE
        and ms >= _MORE * typical
        and _recurs(program.ranks[rank], counts[rank] >= _MORE_OPERATORS * few)
    ]
    if not ranks:
        return _statistics(program)
    if 2 * len(ranks) > len(costs):
        return None
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        ranks=ranks,
        where=program.where(Tag.CPU_OPERATOR, ranks) or program.where(Tag.SILENT, ranks),
        evidence={"cpu_ms_per_step": {str(rank): round(ms, 2) for rank, ms in costs.items()}},
    )


def _statistics(program: Program) -> Sign | None:
    """Ranks that compute statistics on the GPU and read each value back."""
    counts = {rank: item.count(item.compute) for rank, item in program.ranks.items()}
    typical = float(np.percentile(list(counts.values()), 50, method="lower"))
    changes = {
        rank: _unread(program.ranks[rank], typical)
        for rank, count in counts.items()
        if count > typical and reads_values(program, rank, count - typical)
    }
    cost = {
        rank: program.ranks[rank].per_step(_saved(program.ranks[rank], changes[rank])) for rank in changes
    }
    ranks = [rank for rank, ms in cost.items() if program.share(ms) >= _LEAST_SHARE]
    if not ranks or 2 * len(ranks) > len(counts):
        return None
    return Sign(
        {rank: changes[rank] for rank in ranks},
        ranks=ranks,
        where=program.where(Tag.READ_BACK, ranks),
        evidence={"kernels_per_step": {str(rank): round(count, 1) for rank, count in counts.items()}},
    )


def _unread(item: RankProgram, typical: float) -> ReplayChanges:
    beyond, read = without_beyond(item, typical), item.without(Tag.READ_BACK)
    assert beyond.work_ns is not None
    assert beyond.dropped is not None
    assert read.work_ns is not None
    assert read.dropped is not None
    return ReplayChanges(
        work_ns=np.minimum(beyond.work_ns, read.work_ns), dropped=beyond.dropped | read.dropped
    )


def _saved(item: RankProgram, change: ReplayChanges) -> Floats:
    assert change.work_ns is not None
    assert change.dropped is not None
    held = np.where(change.dropped, item.table.held_ns, 0)
    return np.asarray(item.work_ns - change.work_ns + held, dtype=np.float64)


def _recurs(item: RankProgram, operators: bool) -> bool:
    """True if it happens in two captured steps, or the capture has no more: once may be every 50th step."""
    own = _own_ns(item, operators) + _reads(item)
    by_step = item.by_step(own)
    return len(by_step) < _FEW or int((by_step >= _LIKE * by_step.max()).sum()) > 1


def _reads(item: RankProgram) -> Floats:
    rows = item.launched(ComputeKind.READ_COPY)
    held: Floats = item.table.held_ns.astype(np.float64)
    return np.where(rows, held, 0.0)


def _own_ns(item: RankProgram, operators: bool = True) -> Floats:
    """Silent Python time, and CPU operators if the rank calls any that the others do not."""
    own = item.tag_ns(Tag.SILENT) + (item.tag_ns(Tag.CPU_OPERATOR) if operators else 0.0)
    own = np.clip(own - item.tag_ns(Tag.LOADER), 0.0, item.work_ns)
    return np.asarray(own, dtype=np.float64)


def _fixed(item: RankProgram) -> ReplayChanges:
    copies = item.launched(ComputeKind.READ_COPY)
    return ReplayChanges(work_ns=item.work_ns - _own_ns(item), dropped=copies)


def _observe(seen: Observation) -> ObservedSign | None:
    """Work of some ranks outside of forward, backward and update, at a place where the others are not."""
    records = recorded(seen)
    longer = {} if records is None else longer_hosts(records)
    place = own_place(seen.host.stacks, longer, forward=False)
    if records is None or place is None or not _logs(seen, sorted(longer), place):
        return None
    return ObservedSign(
        gain_without(records, "host", sorted(longer)),
        ranks=sorted(longer),
        evidence={"host_ms_per_step": {str(row.rank): round(row.host_ms, 2) for row in records.rows}},
    )


def _logs(seen: Observation, ranks: Sequence[int], place: FindingPlace) -> bool:
    """True if the place is named as code that logs, or is mostly in a package that does."""
    if _named(place.function, PurePath(place.file).stem):
        return True
    longer = place.share if place.longer is None else place.longer
    return any(_packages(seen.host.stacks[rank]) >= _MOST * longer for rank in ranks)


def _named(function: str, stem: str) -> bool:
    said, file = ("_".join(_WORDS.findall(name)).lower() for name in (function, stem))
    return _FUNCTION.search(said) is not None or (
        _FILE.fullmatch(file) is not None and _FUNCTION.search(file) is not None
    )


def _packages(record: InstrumentRecord) -> float:
    """Returns the share of a rank's samples in packages that log."""
    found = sum(
        one.samples
        for one in record.places
        if one.package and one.part == "other" and _PACKAGES.search(one.file)
    )
    return found / max(sum(record.samples.values()), 1)


SPEC = MistakeSpec(
    id="rank0_logging",
    before="""\
if rank == 0:
    for name, p in model.named_parameters():
        writer.add_histogram(name, p.cpu())
""",
    after="""\
if rank == 0 and step % 50 == 0:
    for name, p in model.named_parameters():
        writer.add_histogram(name, p.cpu())
""",
    predicted_by=(
        "replay without the work that only these ranks do: CPU operators, copies to the host and silent "
        "Python time, or the kernels and reads of their statistics"
    ),
    captures=(
        "rank0_logging",
        "rank0_logging (two H200, records and traces)",
    ),
    look=_look,
    shown_by="traces, and step records with sampled stacks",
    observe=_observe,
    yields_to=("ckpt_stall", "gc_pauses", "rank0_evaluation"),
    parts=("other",),
    of_ranks=True,
    least_gain=1.05,
)
