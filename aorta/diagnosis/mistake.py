"""The form of a mistake of the catalogue, and what a mistake looks at.

Each module of `aorta.diagnosis.mistakes` exports one `MistakeSpec`. Its `look` finds the mistake in the
program's host lines and says what is different without it; the gain is a replay of that difference. Its
`observe` finds the mistake in a run's records and samples, and says itself what the mistake costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from aorta.artefacts.events import Column, among
from aorta.artefacts.hostline import ComputeKind, HostLine, Item, LineTable, Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.artefacts.packed import unpack
from aorta.artefacts.weight import Estimate
from aorta.diagnosis.observation import Observation
from aorta.metrics.line_replay import Floats, ReplayChanges, ReplayedStep
from aorta.metrics.profiler_weight import Lines
from aorta.units import NS_PER_MS

Mask = NDArray[np.bool_]
ALWAYS = Estimate(value=1.0, low=1.0, high=1.0)
"""It happens in each step, or as often in the job as in the captured steps."""


class Sign(Struct, frozen=True):
    """A mistake that was found."""

    changes: Mapping[int, ReplayChanges]
    """The change that removes the mistake, by rank."""
    ranks: Sequence[int] = ()
    """Empty: all of them."""
    where: MistakePlace | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    floor_ns: float = 0.0
    """The step without the mistake takes this long at least, for a reason that no replay knows."""
    often: Estimate = ALWAYS
    """Rate in the job's steps over the rate in the captured steps."""
    reach: float = 1.0
    """The gain beyond 1 may be this many times the replay's, for a reason that no replay knows."""


class ObservedSign(Struct, frozen=True):
    """A mistake that records or samples of a run show."""

    gain: Estimate
    ranks: Sequence[int] = ()
    """Empty: all of them."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    where: MistakePlace | None = None
    sampled: bool = True
    """Sampled stacks of steady steps tell the place, where `where` does not."""


class MistakeSpec(Struct, frozen=True, kw_only=True):
    """Everything that aorta knows about one mistake."""

    id: str
    before: str
    """The mistake as code."""
    after: str
    """The fix as code."""
    predicted_by: str
    """The way in which the gain is predicted, in one sentence."""
    captures: tuple[str, ...]
    """Real captures that prove it. Empty if there are none."""
    look: Callable[[Program], Sign | None] | None
    """Looks for the mistake in traces. None: traces do not show it; `shown_by` says what does."""
    shown_by: str
    observe: Callable[[Observation], ObservedSign | None] | None = None
    """Looks for the mistake in a run's records and samples. None if they do not show it."""
    excused: Callable[[Observation], bool] | None = None
    """Returns True if records or samples show that what traces show is needed. None if they never do."""
    parts: tuple[str, ...] = ()
    """Parts of the step that sampled stacks are searched in for the place. Empty if stacks do not tell it."""
    yields_to: tuple[str, ...] = ()
    """Ids of mistakes that explain the same time: where one of them is found, this one is not named."""
    replaces: tuple[str, ...] = ()
    """Ids that traces give to the same time. Records of more steps tell them apart better: where `observe`
    finds this mistake, it takes their place.
    """
    least_gain: float = 1.0
    """A smaller gain is no mistake: for differences between ranks, which always exist."""
    of_ranks: bool = False
    """It compares ranks, and needs the traces of all of them."""
    of_equal_ranks: bool = False
    """It compares how much ranks work, which stages of a pipeline do not share equally."""


class RankProgram:
    """One rank's line, without the profiler."""

    def __init__(self, rank: int, line: HostLine, table: LineTable, work_ns: Floats) -> None:
        self.rank, self.line, self.table, self.work_ns = rank, line, table, work_ns
        self.steps = max(len(np.unique(table.step)), 1)

    @cached_property
    def _tagged(self) -> dict[Tag, Floats]:
        left = self.work_ns / np.maximum(self.table.work_ns, 1)
        return {Tag(item.tag): unpack(item.work_ns) * left for item in self.line.tagged}

    def tag_ns(self, tag: Tag) -> Floats:
        """Work for something before each item."""
        found = self._tagged.get(tag)
        return np.zeros(len(self.table)) if found is None else found

    def tagged_ms(self, tag: Tag) -> float:
        """Work for something, per step."""
        return self.per_step(self.tag_ns(tag))

    def per_step(self, ns: NDArray[Any]) -> float:
        """The sum in ms per step."""
        return float(ns.sum()) / self.steps / NS_PER_MS

    @cached_property
    def numbers(self) -> Column:
        """The numbers of the steps."""
        return np.unique(self.table.step)

    def by_step(self, values: NDArray[Any]) -> Floats:
        """Returns the sum over the rows of each step, in the order of `numbers`."""
        place = np.searchsorted(self.numbers, self.table.step)
        return np.bincount(place, values, minlength=len(self.numbers)).astype(np.float64)

    def count(self, rows: Mask) -> float:
        """Rows per step."""
        return float(rows.sum()) / self.steps

    def has(self, tag: Tag) -> Mask:
        """Mask of the items that carry a tag."""
        return np.asarray((self.table.tags & int(tag)) != 0, dtype=np.bool_)

    def launched(self, *kinds: ComputeKind) -> Mask:
        """Mask of the items that launch work of these kinds."""
        return np.asarray((self.table.item == Item.LAUNCH) & among(self.table.kind, kinds), dtype=np.bool_)

    @cached_property
    def compute(self) -> Mask:
        """Mask of the items that launch a compute kernel."""
        others = (ComputeKind.NONE, ComputeKind.COMMUNICATION, ComputeKind.COPY)
        copies = (ComputeKind.PAGEABLE_COPY, ComputeKind.READ_COPY)
        return np.asarray(
            (self.table.item == Item.LAUNCH) & ~among(self.table.kind, (*others, *copies)), dtype=np.bool_
        )

    def place(self, tag: Tag) -> MistakePlace | None:
        """The line of the program that the work with a tag comes from; None without stacks."""
        return next((item.place for item in self.line.tagged if item.tag == int(tag)), None)

    def without(
        self, *tags: Tag, keep: float = 0.0, also: Mask | None = None, gpu_ns: Floats | None = None
    ) -> ReplayChanges:
        """The line without work for `tags` and the items that carry them, and without the items `also`.

        Args:
            tags: what goes.
            keep: share of the work that stays.
            also: further items that go.
            gpu_ns: durations instead of the measured ones.
        """
        gone = sum((self.tag_ns(tag) for tag in tags), np.zeros(len(self.table)))
        dropped = np.zeros(len(self.table), dtype=np.bool_) if also is None else also.copy()
        for tag in tags:
            dropped |= self.has(tag)
        dropped &= (self.table.item == Item.LAUNCH) | (self.table.item == Item.SYNC)
        return ReplayChanges(
            work_ns=np.maximum(self.work_ns - gone * (1 - keep), 0.0), dropped=dropped, gpu_ns=gpu_ns
        )


class Program:
    """The lines of all ranks, and what the steps take without the profiler."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.ranks = {
            rank: RankProgram(rank, line, lines.tables[rank], lines.work_ns(rank))
            for rank, line in sorted(lines.lines.items())
        }

    @cached_property
    def now(self) -> ReplayedStep:
        """The steps as they are."""
        return self.lines.run()

    @property
    def step_ms(self) -> float:
        """Mean length of a step."""
        return self.now.mean_ns / NS_PER_MS

    def share(self, ms: float) -> float:
        """`ms` as a share of the step."""
        return ms / self.step_ms if self.step_ms else 0.0

    def where(self, tag: Tag, ranks: Sequence[int] = ()) -> MistakePlace | None:
        """The line of the program that the work with a tag comes from; None without stacks."""
        chosen = [self.ranks[rank] for rank in ranks or self.ranks]
        return next((place for item in chosen if (place := item.place(tag)) is not None), None)

    def most(self, test: Callable[[RankProgram], bool]) -> list[int]:
        """The ranks that pass a test, if more than half do; else none."""
        found = [rank for rank, item in self.ranks.items() if test(item)]
        return found if 2 * len(found) > len(self.ranks) else []
