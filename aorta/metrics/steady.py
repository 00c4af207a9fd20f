"""The steps that count: steady on every rank, aligned by global step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aorta.artefacts.steps import Step


@dataclass(frozen=True, slots=True)
class Steady:
    """The same steps of every rank."""

    numbers: tuple[int, ...]
    """Global steps, ascending."""
    by_rank: Mapping[int, tuple[Step, ...]]
    """Each rank's records of `numbers`, in that order."""

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted(self.by_rank)

    def __len__(self) -> int:
        return len(self.numbers)


def steady_steps(by_rank: Mapping[int, Sequence[Step]]) -> Steady:
    """The steps that are steady on every rank that left records.

    A step that one rank did not write, or that was a warm-up, validation, checkpoint or profiler step
    anywhere, counts on no rank: the others may have waited for it.
    """
    steady = [{step.global_step for step in steps if step.phase == "steady"} for steps in by_rank.values()]
    numbers = tuple(sorted(set.intersection(*steady))) if steady else ()
    wanted = set(numbers)
    return Steady(
        numbers=numbers,
        by_rank={
            rank: tuple(step for step in by_rank[rank] if step.global_step in wanted)
            for rank in sorted(by_rank)
        },
    )


def consecutive(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers as half-open index ranges: [3, 4, 7] gives [(0, 2), (2, 3)]."""
    cuts = [0, *(i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1), len(numbers)]
    return [(a, b) for a, b in itertools.pairwise(cuts) if b > a]
