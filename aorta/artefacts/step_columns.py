"""Step records of one rank as columns: a run of thousands of ranks has millions of them.

A `StepColumns` is a sequence of `DecodedStep`s, each made when it is asked for; arithmetic takes whole
columns. Host, device, phase and the names of ranges repeat from step to step and are kept once. Numbers take
as few bytes as they need.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, get_args, overload

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.range_columns import (
    ABSENT,
    Ints,
    RangeColumns,
    RangeKind,
    RangeStore,
    Stored,
    kind_for,
    narrow,
    or_none,
    stored_ranges,
)
from aorta.artefacts.records import Breakdown
from aorta.artefacts.step_names import Between, Phase
from aorta.artefacts.steps import DecodedStep, StepExecution
from aorta.units import NS_PER_MS

_BREAKDOWN = Breakdown.__struct_fields__
_NO_PARTS = Breakdown(**dict.fromkeys(_BREAKDOWN, ABSENT))


class Label(NamedTuple):
    """Says what a rank's steps have in common, most of them."""

    host: str
    attempt: int
    rank: int
    world_size: int
    device: str
    job_id: str
    phase: Phase
    timing: str
    epoch: int | None
    device_uuid: str | None
    memory_total_bytes: int | None
    detailed: bool


_NUMBERS = tuple(
    name
    for name in DecodedStep.__struct_fields__
    if name not in {*Label._fields, "breakdown", "profile", "execution", "untimed_calls", "before_ms"}
)
UNTIMED = "untimed"
"""Column: calls of `torch.distributed` in the step that were seen and could not be timed."""
BEFORE: dict[Between, str] = {name: f"before_{name}" for name in get_args(Between)}
"""Columns: ns ahead of the step that the program gave this name."""
_OF_LABEL, _OF_NUMBERS, _OF_BREAKDOWN = (
    attrgetter(*names) for names in (Label._fields, _NUMBERS, _BREAKDOWN)
)


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns(Sequence[DecodedStep]):
    """Steps of one rank; use `of` and the columns."""

    _labels: tuple[Label, ...]
    _label: Stored
    _numbers: Mapping[str, Stored]
    _first: Stored
    """The first range of each step, or ABSENT where the step has no profile."""
    _count: Stored
    _ranges: RangeStore
    _execution: Mapping[tuple[int, int], StepExecution]
    """Steps by attempt and global step; of a step that was written twice, the last one counts."""

    @classmethod
    def of(cls, steps: Sequence[DecodedStep]) -> StepColumns:
        """The columns of steps; themselves, if they are columns.

        Raises:
            OverflowError: a number does not fit 64 bits.
        """
        if isinstance(steps, StepColumns):
            return steps
        labels: dict[tuple[Any, ...], int] = {}
        label = [labels.setdefault(key, len(labels)) for key in map(_OF_LABEL, steps)]
        numbers = _columns(_NUMBERS, map(_OF_NUMBERS, steps), len(steps))
        parts = (_NO_PARTS if step.breakdown is None else step.breakdown for step in steps)
        numbers |= _columns(_BREAKDOWN, map(_OF_BREAKDOWN, parts), len(steps))
        untimed = ((sum((step.untimed_calls or {}).values()),) for step in steps)
        numbers |= _columns((UNTIMED,), untimed, len(steps))
        before = (_before(step.before_ms or {}) for step in steps)
        numbers |= _columns(tuple(BEFORE.values()), before, len(steps))
        first, count, ranges = stored_ranges(steps)
        return cls(
            _labels=tuple(Label(*key) for key in labels),
            _label=narrow(label),
            _numbers=numbers,
            _first=first,
            _count=count,
            _ranges=ranges,
            _execution=_executions(steps),
        )

    @classmethod
    def joined(cls, parts: Sequence[StepColumns]) -> StepColumns:
        """The steps of all parts, one part after another."""
        if len(parts) < 2:
            return parts[0] if parts else cls.of(())
        labels: dict[Label, int] = {}
        kinds: dict[RangeKind, int] = {}
        label, kind, first, ranges = [], [], [], 0
        for part in parts:
            codes = [labels.setdefault(known, len(labels)) for known in part._labels]
            label.append(np.array(codes, dtype=np.int64)[part._label])
            codes = [kinds.setdefault(known, len(kinds)) for known in part._ranges.kinds]
            kind.append(np.array(codes, dtype=np.int64)[part._ranges.kind])
            own = part._first.astype(np.int64)
            first.append(np.where(own == ABSENT, ABSENT, own + ranges))
            ranges += len(part._ranges.kind)
        stores = [part._ranges for part in parts]
        names = list(parts[0]._numbers)
        return cls(
            _labels=tuple(labels),
            _label=narrow(_end_to_end(label)),
            _numbers={name: _end_to_end([part._numbers[name] for part in parts]) for name in names},
            _first=narrow(_end_to_end(first)),
            _count=_end_to_end([part._count for part in parts]),
            _ranges=RangeStore(
                tuple(kinds),
                narrow(_end_to_end(kind)),
                _end_to_end([store.start_ns for store in stores]),
                _end_to_end([store.end_ns for store in stores]),
                _end_to_end([store.seq for store in stores]),
            ),
            _execution={key: found for part in parts for key, found in part._execution.items()},
        )

    def __len__(self) -> int:
        return len(self._label)

    @overload
    def __getitem__(self, index: int) -> DecodedStep: ...
    @overload
    def __getitem__(self, index: slice) -> StepColumns: ...
    def __getitem__(self, index: int | slice) -> DecodedStep | StepColumns:
        if isinstance(index, slice):
            return self._rows(index)
        return self._step(range(len(self))[index])

    def __iter__(self) -> Iterator[DecodedStep]:
        return (self._step(row) for row in range(len(self)))

    def where(self, wanted: NDArray[np.bool_]) -> StepColumns:
        """The steps at which `wanted`, of shape (steps,), is true."""
        rows = np.flatnonzero(wanted)
        if len(rows) == len(self):
            return self
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
            return self._rows(slice(int(rows[0]), int(rows[-1]) + 1))
        return self._rows(rows)

    def at(self, rows: NDArray[np.intp]) -> StepColumns:
        """The steps at these places, in this order."""
        return self._rows(rows)

    def _rows(self, rows: slice | NDArray[np.intp]) -> StepColumns:
        """Some of the steps; ranges are shared, not copied."""
        return replace(
            self,
            _label=self._label[rows],
            _numbers={name: column[rows] for name, column in self._numbers.items()},
            _first=self._first[rows],
            _count=self._count[rows],
        )

    def column(self, name: str) -> Ints:
        """Returns a number of each step: a field of `DecodedStep` or its breakdown; ABSENT: none."""
        return self._numbers[name].astype(np.int64)

    @property
    def duration_ns(self) -> Ints:
        """The steps' lengths on the monotonic clock, (steps,)."""
        return self.column("mono_end_ns") - self.column("mono_start_ns")

    def phase_is(self, *phases: Phase) -> NDArray[np.bool_]:
        """Returns which steps are of one of `phases`, (steps,)."""
        return self._by_label([label.phase in phases for label in self._labels])

    @property
    def epoch(self) -> NDArray[np.int64]:
        """Returns the epoch of each step, (steps,); ABSENT where the program does not count them."""
        known = [ABSENT if label.epoch is None else label.epoch for label in self._labels]
        return np.array(known, dtype=np.int64)[self._label]

    @property
    def detailed(self) -> NDArray[np.bool_]:
        """Returns which steps were timed part by part, (steps,)."""
        return self._by_label([label.detailed for label in self._labels])

    def _by_label(self, known: list[bool]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.array(known, dtype=np.bool_)[self._label]
        return found

    @property
    def labels(self) -> list[Label]:
        """Returns what the steps have in common, each once, in order of first appearance."""
        return [self._labels[code] for code in dict.fromkeys(self._label.tolist())]

    def labelled(self, label: Label) -> NDArray[np.bool_]:
        """Returns which steps have this label, (steps,)."""
        return self._by_label([known == label for known in self._labels])

    @property
    def profiled(self) -> NDArray[np.bool_]:
        """Returns which steps were timed part by part and have a profile, (steps,)."""
        return np.not_equal(self._first, ABSENT) & self.detailed

    @property
    def fits(self) -> bool:
        """True if no number that is kept once is too large for arithmetic in 64 bits."""
        numbers = [number for label in self._labels for number in (label.epoch, label.memory_total_bytes)]
        numbers += [kind.bytes for kind in self._ranges.kinds]
        return all(abs(number) < 2**62 for number in numbers if number is not None)

    @property
    def executions(self) -> Mapping[int, StepExecution]:
        """Returns the steps that were recorded kernel by kernel, by global step."""
        if not self._execution:
            return {}
        attempts = [self._labels[code].attempt for code in self._label.tolist()]
        here = zip(attempts, self.column("global_step").tolist(), strict=True)
        return {key[1]: self._execution[key] for key in here if key in self._execution}

    def ranges(self) -> RangeColumns:
        """Returns all ranges of all steps."""
        return self._ranges.rows(self._first.astype(np.int64), self._count.astype(np.int64))

    def _step(self, row: int) -> DecodedStep:
        label = self._labels[int(self._label[row])]
        value: dict[str, Any] = {name: or_none(int(column[row])) for name, column in self._numbers.items()}
        del value[UNTIMED]  # the operations are not kept
        before = {name: value.pop(column) for name, column in BEFORE.items()}
        parts = {name: value.pop(name) for name in _BREAKDOWN}
        return DecodedStep(
            **label._asdict(),
            **value,
            breakdown=None if parts["compute_ns"] is None else Breakdown(**parts),
            profile=self._ranges.profile(int(self._first[row]), int(self._count[row])),
            execution=self._execution.get((label.attempt, value["global_step"])),
            before_ms={name: ns / NS_PER_MS for name, ns in before.items() if ns} or None,
        )


def _executions(steps: Sequence[DecodedStep]) -> dict[tuple[int, int], StepExecution]:
    if all(step.execution is None for step in steps):
        return {}
    last = {(step.attempt, step.global_step): step.execution for step in steps}
    return {key: item for key, item in last.items() if item is not None}


def _before(named: Mapping[Between, float]) -> tuple[int, ...]:
    return tuple(max(round(named.get(name, 0.0) * NS_PER_MS), 0) for name in BEFORE)


def _columns(names: Sequence[str], rows: Iterable[tuple[int | None, ...]], count: int) -> dict[str, Stored]:
    """Columns of `count` rows that have a number or None of each name."""
    flat = [ABSENT if value is None else value for value in itertools.chain.from_iterable(rows)]
    whole = np.fromiter(flat, dtype=np.int64, count=len(flat)).reshape(count, len(names)).T
    low, high = whole.min(axis=1, initial=0).tolist(), whole.max(axis=1, initial=0).tolist()
    return {name: whole[at].astype(kind_for(low[at], high[at]), order="C") for at, name in enumerate(names)}


def _end_to_end(columns: Sequence[Stored]) -> Stored:
    return np.concatenate(columns)


def ranges_of(columns: Sequence[StepColumns]) -> RangeColumns:
    """The ranges of the steps of all `columns`; rows are counted on from one to the next."""
    kinds: dict[RangeKind, int] = {}
    empty: Ints = np.empty(0, dtype=np.int64)
    parts, before = [(empty, empty, empty, empty, empty)], 0
    for steps in columns:
        found = steps.ranges()
        code = np.array([kinds.setdefault(kind, len(kinds)) for kind in found.kinds], dtype=np.int64)
        parts.append((found.row + before, code[found.kind], found.start_ns, found.end_ns, found.seq))
        before += len(steps)
    row, kind, start, end, seq = (np.concatenate(column) for column in zip(*parts, strict=True))
    return RangeColumns(row=row, kinds=tuple(kinds), kind=kind, start_ns=start, end_ns=end, seq=seq)
