"""From what the nodes saw to an answer: who is waited for, where, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from aorta.artefacts.attached import GpuView, NodeView, ProcessView
from aorta.artefacts.hang import Hang
from aorta.metrics.stacks import Frame, Line, Stack, StackComparison, compare, line_of
from aorta.metrics.still_stacks import StillRank, still_ranks
from aorta.units import rank_words

_MS = 1000.0
_LOADING = 0.3
"""Share of the time in the data loader above which loading is a finding on all ranks."""


class SampledLine(msgspec.Struct, frozen=True):
    """A line of the program, with its share of the time on this rank and on the others."""

    function: str
    file: str
    line: int
    share: float
    others: float


class RankAnswer(msgspec.Struct, frozen=True):
    """One rank's time: shares from 0 to 1; null is not measured."""

    rank: int
    host: str
    pid: int
    waiting: float
    loading: float
    cpu: float | None
    """CPU seconds per second."""
    where: SampledLine | None
    """Line of the program that takes most of its time, waits left out."""
    gpu: GpuView | None = None


class AttachAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `aorta attach --json`."""

    schema_version: int = 1
    kind: str
    """`straggler`, `data_loading`, `hang`, `no_cause_seen` or `insufficient_data`."""
    ranks: list[int]
    statement: str
    where: SampledLine | None = None
    lost_ms_per_second: float | None = None
    step_ms: float | None = None
    """Median of the newest steps; null: the job leaves no step records."""
    lost_ms_per_step: float | None = None
    gain: float | None = None
    """Times as fast without this loss; null: steps are not counted, or nothing is lost."""
    hang: Hang | None = None
    """Why no rank goes on, by flight recorders; null: they do not say so, or no process offers them."""
    seconds: float
    by_rank: list[RankAnswer]
    problems: list[str]


def answer(
    views: Sequence[NodeView], seconds: float, problems: Sequence[str] = (), *, step_ms: float | None = None
) -> AttachAnswer:
    """The answer to what was seen on all nodes.

    Args:
        views: of each node that answered.
        seconds: length of the watch.
        problems: of the nodes that did not answer.
        step_ms: time per step by the job's own records; None: it leaves none.
    """
    processes = [process for view in views for process in view.processes]
    seen = [item for item in processes if item.role == "rank" and item.stacks]
    said = [*problems, *_complaints(processes)]
    if not seen:
        why = said[0] if said else "no process of this job has torch loaded and runs Python"
        return _nothing(f"No training process was found: {why}.", seconds, said)
    if several := _several(seen):
        return _nothing(several, seconds, said)
    ranks = _numbered(seen)
    stacks = {rank: _stacks(item) for rank, item in ranks.items()}
    found = compare(stacks)
    said += _missing(ranks)
    if found.still and (held := _held(stacks)):
        where: SampledLine | None = _own(held[0])
        kind, guilty, lost = "hang", [item.rank for item in held], None
        statement = _hang_words(held, seconds, len(ranks))
    else:
        kind, guilty, where, lost = _verdict(found, stacks, processes, ranks)
        statement = _statement(kind, guilty, where, lost, seconds=seconds, ranks=len(ranks))
    per_step = None if lost is None or step_ms is None else lost * step_ms
    return AttachAnswer(
        kind=kind,
        ranks=guilty,
        statement=statement + _per_step(per_step, step_ms),
        where=where,
        lost_ms_per_second=None if lost is None else _MS * lost,
        step_ms=step_ms,
        lost_ms_per_step=per_step,
        gain=None if lost is None or step_ms is None else 1.0 / (1.0 - min(lost, 0.99)),
        seconds=seconds,
        by_rank=[_of_rank(rank, item, found) for rank, item in sorted(ranks.items())],
        problems=said,
    )


def _nothing(statement: str, seconds: float, problems: list[str]) -> AttachAnswer:
    return AttachAnswer(
        kind="insufficient_data",
        ranks=[],
        statement=statement,
        seconds=seconds,
        by_rank=[],
        problems=problems,
    )


def _several(seen: Sequence[ProcessView]) -> str | None:
    """Says that ranks of several programs are there, which cannot be compared. None if they are of one."""
    programs = {item.program: [other for other in seen if other.program == item.program] for item in seen}
    if len(programs) < 2:
        return None
    steps = [{item.step for item in items} for items in programs.values()]
    apart = all(len(own) == 1 and None not in own for own in steps) and len(set.union(*steps)) == len(steps)
    told = [
        f"step {items[0].step} ({len(items)} rank{'s' if len(items) > 1 else ''})"
        if apart
        else f"process {items[0].pid} on {items[0].host}"
        for items in programs.values()
    ]
    hint = "JOBID.STEP" if apart else "--pid PID on its node"
    return f"The job runs {len(programs)} programs: {', '.join(told)}. Name one with aorta attach {hint}."


def _held(stacks: dict[int, dict[Stack, int]]) -> list[StillRank]:
    """The ranks that hold the others up in a job whose stacks do not change."""
    found = still_ranks({rank: next(iter(seen)) for rank, seen in stacks.items()})
    held = [item for _, item in sorted(found.items()) if item.kind != "waiting"]
    return held if len(held) < len(found) or held[0].kind == "other_collective" else []


def _own(item: StillRank) -> SampledLine:
    return SampledLine(*item.line, share=1.0, others=0.0)


def _hang_words(held: Sequence[StillRank], seconds: float, ranks: int) -> str:
    own = _own(held[0])
    who = rank_words([item.rank for item in held])
    calls = ", ".join(f"{item.call or 'the backward pass'} on rank {item.rank}" for item in held[:4])
    still = f"The job stands still: no stack changed in {seconds:g} s."
    if held[0].kind == "other_collective":
        return f"{still} The ranks are in different calls: {calls}."
    others = "the other ranks wait" if ranks > len(held) + 1 else "the other rank waits"
    verb = "is" if len(held) == 1 else "are"
    return (
        f"{still} {who[0].upper()}{who[1:]} {verb} in {own.function} ({own.file}:{own.line}), and {others}."
    )


def _per_step(lost_ms: float | None, step_ms: float | None) -> str:
    if step_ms is None:
        return ""
    took = f" A step takes {step_ms:.3g} ms"
    return f"{took}." if lost_ms is None else f"{took}; {lost_ms:.3g} ms of that is lost."


def _verdict(
    found: StackComparison,
    stacks: dict[int, dict[Stack, int]],
    processes: Sequence[ProcessView],
    ranks: dict[int, ProcessView],
) -> tuple[str, list[int], SampledLine | None, float | None]:
    late = found.late
    if late is not None:
        where = _where(late.where)
        if late.kind == "data_loading":
            where = _in_workers(processes, ranks[late.rank]) or where
        return late.kind, [late.rank], where, late.lost
    slow = [rank for rank, share in found.loading.items() if share > _LOADING]
    if len(slow) == len(ranks):
        first = min(slow)
        where = _in_workers(processes, ranks[first]) or _loading_line(stacks[first])
        return "data_loading", [], where, min(found.loading.values())
    return "no_cause_seen", [], None, None


def _in_workers(processes: Sequence[ProcessView], rank: ProcessView) -> SampledLine | None:
    """The line in which the loader workers of a rank spend most of their time, if it has any."""
    counts: Counter[Frame] = Counter()
    for item in processes:
        if item.role == "loader" and item.parent == rank.pid:
            for stack in item.stacks:
                frame = line_of(tuple(stack.frames))
                if "multiprocessing" not in frame[1]:
                    counts[frame] += stack.samples
    total = sum(counts.values())
    if not total:
        return None
    frame, most = counts.most_common(1)[0]
    return SampledLine(*frame, share=most / total, others=0.0)


def _loading_line(seen: dict[Stack, int]) -> SampledLine | None:
    counts: Counter[Frame] = Counter()
    for stack, samples in seen.items():
        if any("torch/utils/data" in file for _, file, _ in stack):
            counts[line_of(stack)] += samples
    frame, most = counts.most_common(1)[0]
    return SampledLine(*frame, share=most / sum(seen.values()), others=most / sum(seen.values()))


def _statement(
    kind: str,
    guilty: Sequence[int],
    where: SampledLine | None,
    lost: float | None,
    *,
    seconds: float,
    ranks: int,
) -> str:
    place = f" in {where.function} ({where.file}:{where.line})" if where is not None else ""
    cost = f"{_MS * (lost or 0.0):.0f} ms per second"
    if kind == "no_cause_seen" and ranks == 1:
        return f"Only one rank was watched for {seconds:g} s: there is no other rank to compare it with."
    if kind == "no_cause_seen":
        return f"No rank stands out: in {seconds:g} s the {ranks} ranks spent their time in the same way."
    if not guilty:
        return f"Every rank waits for its data loader, at least {cost}{place}."
    what = "loads data" if kind == "data_loading" else "is late"
    return f"Rank {guilty[0]} {what}{place}. The other ranks wait for it, {cost}."


def _numbered(items: Sequence[ProcessView]) -> dict[int, ProcessView]:
    """The processes by rank; where the environment does not say it, in the order of hosts and process ids."""
    numbers = [item.rank for item in items]
    if None not in numbers and len(set(numbers)) == len(items):
        return {item.rank: item for item in items if item.rank is not None}
    return dict(enumerate(sorted(items, key=lambda item: (item.host, item.pid))))


def _complaints(processes: Sequence[ProcessView]) -> list[str]:
    return [
        f"process {item.pid} on {item.host}: {item.problem}" for item in processes if item.problem is not None
    ]


def _missing(ranks: dict[int, ProcessView]) -> list[str]:
    size = max((item.world_size or 0 for item in ranks.values()), default=0)
    missing = [str(rank) for rank in range(size) if rank not in ranks]
    if not missing:
        return []
    return [f"{len(missing)} of {size} ranks were not seen: {', '.join(missing[:8])}"]


def _of_rank(rank: int, item: ProcessView, found: StackComparison) -> RankAnswer:
    return RankAnswer(
        rank=rank,
        host=item.host,
        pid=item.pid,
        waiting=found.waiting[rank],
        loading=found.loading[rank],
        cpu=None if item.cpu_seconds is None else item.cpu_seconds / item.seconds,
        where=_where(found.top.get(rank)),
        gpu=item.gpu,
    )


def _where(line: Line | None) -> SampledLine | None:
    if line is None:
        return None
    return SampledLine(line.function, line.file, line.line, share=line.share, others=line.others)


def _stacks(item: ProcessView) -> dict[Stack, int]:
    return {tuple(stack.frames): stack.samples for stack in item.stacks}
