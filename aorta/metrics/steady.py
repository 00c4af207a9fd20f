"""The steps that count: steady on every rank, aligned by global step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import DecodedStep


class Steady(Struct, frozen=True):
    """The same steps of every rank."""

    numbers: tuple[int, ...]
    """Global steps, ascending."""
    by_rank: Mapping[int, StepColumns]
    """Each rank's records of `numbers`, in that order."""

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted(self.by_rank)

    def __len__(self) -> int:
        return len(self.numbers)

    def detailed(self) -> Steady:
        """Return the steps that every rank timed part by part; itself where that is all of them."""
        return self._of(self._detailed())

    @property
    def detailed_steps(self) -> int | None:
        """Returns how many those are. None means all of the steps."""
        count = int(self._detailed().sum()) if self.by_rank else 0
        return count if count < len(self) else None

    def _detailed(self) -> NDArray[np.bool_]:
        return np.asarray(np.all([steps.detailed for steps in self.by_rank.values()], axis=0))

    def whole(self) -> Steady:
        """Return the steps that every rank timed as a whole."""
        return self._of(~np.any([steps.detailed for steps in self.by_rank.values()], axis=0))

    def with_one_before(self, by_rank: Mapping[int, StepColumns]) -> dict[int, StepColumns]:
        """Returns the records in `by_rank` from the step before the first to the last of these steps."""
        first, last = self.numbers[0] - 1, self.numbers[-1]
        return {
            rank: steps.where((steps.column("global_step") >= first) & (steps.column("global_step") <= last))
            for rank, steps in by_rank.items()
        }

    def _of(self, wanted: NDArray[np.bool_]) -> Steady:
        if not self.by_rank or wanted.all():
            return self
        numbers = np.asarray(self.numbers, dtype=np.int64)[wanted]
        by_rank = {rank: steps.where(wanted) for rank, steps in self.by_rank.items()}
        return Steady(tuple(numbers.tolist()), by_rank)


def steady_steps(by_rank: Mapping[int, Sequence[DecodedStep]]) -> Steady:
    """The steps that are steady on every rank that left records.

    A step counts on no rank if one rank did not write it, or if it was a warm-up, validation, checkpoint or
    profiler step on any rank. The other ranks may have waited for that rank.
    """
    columns = {rank: StepColumns.of(by_rank[rank]) for rank in sorted(by_rank)}
    common: NDArray[np.int64] | None = None
    for steps in columns.values():
        steady = np.unique(steps.column("global_step")[steps.phase_is("steady")])
        if common is None:
            common = steady
        elif not np.array_equal(common, steady):
            common = np.intersect1d(common, steady, assume_unique=True)
    wanted = common if common is not None else np.empty(0, dtype=np.int64)
    return Steady(
        numbers=tuple(wanted.tolist()),
        by_rank={
            rank: steps.where(np.isin(steps.column("global_step"), wanted)) for rank, steps in columns.items()
        },
    )


def consecutive(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers as half-open index ranges: [3, 4, 7] gives [(0, 2), (2, 3)]."""
    cuts = [0, *(i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1), len(numbers)]
    return [(a, b) for a, b in itertools.pairwise(cuts) if b > a]
