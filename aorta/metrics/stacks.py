"""Compares where ranks spend their time, from sampled stacks of their main threads.

A rank that others wait for has more of some line of its own, and the others have more of what they wait in.
Code that can wait for other ranks (torch.distributed, backward, synchronisation) is never the cause.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aorta.averages import median

Frame = tuple[str, str, int]
"""Function, file, line."""
Stack = tuple[Frame, ...]
"""Outermost frame first."""

_WAITS_IN = re.compile(
    r"(?:^|/)torch/(?:distributed/|nn/parallel/distributed\.py|autograd/|cuda/|_tensor\.py)"
    r"|(?:^|/)deepspeed/(?:comm|runtime)/|(?:^|/)accelerate/(?:accelerator|utils/operations)\.py"
)
_WAITS = re.compile(r"^(?:synchronize|wait|barrier|_engine_run_backward|backward)$")
_LOADS = re.compile(r"(?:^|/)torch/utils/data/")
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3\.\d+|torch)/|^<frozen |^<string>")
_OURS = re.compile(r"(?:^|/)aorta/(?:instrument|inject)/")
"""Hooks that aorta puts around a program's calls."""
_SIGMAS = 4.0
"""Standard deviations of a share by chance; a large number, because samples within one step are alike."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the program and the share of time that one rank is in it."""

    function: str
    file: str
    line: int
    share: float
    """Share of the time that this rank was watched, 0 to 1."""
    others: float
    """Mean share on the other ranks; 0 where there are none."""


@dataclass(frozen=True, slots=True)
class Late:
    """The rank that others wait for."""

    rank: int
    kind: str
    """`data_loading` or `straggler`."""
    lost: float
    """Share of the time that the others spend waiting for this rank, 0 to 1."""
    where: Line | None


@dataclass(frozen=True, slots=True)
class StackComparison:
    """The findings from the stacks of all ranks together."""

    late: Late | None
    loading: Mapping[int, float]
    """Share of time in the data loader, by rank."""
    waiting: Mapping[int, float]
    """Share of time in code that can wait for other ranks, by rank."""
    top: Mapping[int, Line]
    """The line of the program that takes most of a rank's time, by rank."""
    noise: float
    """Smallest share that is no chance."""
    still: bool
    """True if no rank's stack changed."""


def compare(stacks: Mapping[int, Mapping[Stack, int]], *, least: float = 0.1) -> StackComparison:
    """Returns who is waited for, in which line, and at what cost.

    Args:
        stacks: by rank: samples by stack of its main thread, at least one sample per rank.
        least: smallest share of time lost to a rank that counts.
    """
    stacks = {rank: _without_ours(seen) for rank, seen in stacks.items()}
    shares = {rank: _by_line(seen) for rank, seen in stacks.items()}
    waiting = {rank: _share(seen, is_waiting) for rank, seen in stacks.items()}
    loading = {rank: _share(seen, is_loading) for rank, seen in stacks.items()}
    fewest = min(sum(seen.values()) for seen in stacks.values())
    noise = max(least, _SIGMAS * 0.5 / math.sqrt(fewest))
    return StackComparison(
        late=_late(stacks, shares, waiting, noise) if len(stacks) > 1 else None,
        loading=loading,
        waiting=waiting,
        top={rank: line for rank, seen in stacks.items() if (line := _top(rank, shares)) is not None},
        noise=noise,
        still=all(len(seen) == 1 for seen in stacks.values()),
    )


def without_ours(stack: Stack) -> Stack:
    """The stack without the frames of aorta's hooks."""
    return tuple(frame for frame in stack if not _OURS.search(frame[1])) or stack


def _without_ours(seen: Mapping[Stack, int]) -> dict[Stack, int]:
    counts: Counter[Stack] = Counter()
    for stack, samples in seen.items():
        counts[without_ours(stack)] += samples
    return dict(counts)


def is_waiting(stack: Stack) -> bool:
    """True if the innermost frame is code in which a rank can wait for another one."""
    function, file, _ = stack[-1]
    if is_loading(stack):
        return False
    # A function of the program's own may have the same name, such as the backward pass of a layer.
    named = _WAITS.match(function.rsplit(".", 1)[-1]) is not None and _LIBRARY.search(file) is not None
    return named or _WAITS_IN.search(file) is not None


def is_loading(stack: Stack) -> bool:
    """True if the stack lies in a torch DataLoader."""
    return any(_LOADS.search(file) for _, file, _ in stack)


def line_of(stack: Stack) -> Frame:
    """The innermost frame that is the program's own, otherwise the innermost one."""
    own = [frame for frame in stack if not _LIBRARY.search(frame[1])]
    return own[-1] if own else stack[-1]


def _by_line(seen: Mapping[Stack, int]) -> dict[Frame, float]:
    """Share of each line of the program, stacks that wait left out."""
    total = sum(seen.values())
    counts: Counter[Frame] = Counter()
    for stack, samples in seen.items():
        if not is_waiting(stack):
            counts[line_of(stack)] += samples
    return {line: samples / total for line, samples in counts.items()}


def _share(seen: Mapping[Stack, int], belongs: object) -> float:
    assert callable(belongs)
    return sum(samples for stack, samples in seen.items() if belongs(stack)) / sum(seen.values())


def _late(
    stacks: Mapping[int, Mapping[Stack, int]],
    shares: Mapping[int, Mapping[Frame, float]],
    waiting: Mapping[int, float],
    noise: float,
) -> Late | None:
    """The rank that waits least, where the others wait more than by chance and its own lines say why."""
    rank = min(waiting, key=lambda item: waiting[item])
    others = [other for other in waiting if other != rank]
    lost = median([waiting[other] for other in others]) - waiting[rank]
    if lost <= noise:
        return None
    more = {
        line: share - _mean(shares[other].get(line, 0.0) for other in others)
        for line, share in shares[rank].items()
    }
    line = max(more, key=lambda item: more[item], default=None)
    if line is None or more[line] <= noise / 2:
        return Late(rank, "straggler", lost, None)
    loads = sum(
        samples for stack, samples in stacks[rank].items() if is_loading(stack) and line_of(stack) == line
    )
    kind = "data_loading" if loads else "straggler"
    return Late(rank, kind, lost, _line(line, rank, shares))


def _line(line: Frame, rank: int, shares: Mapping[int, Mapping[Frame, float]]) -> Line:
    others = [shares[other].get(line, 0.0) for other in shares if other != rank]
    return Line(*line, share=shares[rank][line], others=_mean(others))


def _top(rank: int, shares: Mapping[int, Mapping[Frame, float]]) -> Line | None:
    own = shares[rank]
    return _line(max(own, key=lambda item: own[item]), rank, shares) if own else None


def _mean(values: Iterable[float]) -> float:
    known: Sequence[float] = list(values)
    return sum(known) / len(known) if known else 0.0
