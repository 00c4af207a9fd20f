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
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.records import Breakdown
from aorta.artefacts.step_record import Phase
from aorta.artefacts.steps import CollectiveId, DecodedStep, StepExecution, StepRange, StepRanges
from aorta.units import NS_PER_MS, ns_to_ms

Ints = NDArray[np.int64]
_Stored = NDArray[np.signedinteger]

STAGE = "stage "
"""Begins the group of ranges that are passes of a microbatch; their sequence number is the microbatch."""
ABSENT = -(2**31)
"""In a column: the record does not say."""
_MOST = float(2**61)
"""ns from here on are no time; sums of two stay within 64 bits."""
_BREAKDOWN = Breakdown.__struct_fields__
_NO_PARTS = Breakdown(**dict.fromkeys(_BREAKDOWN, ABSENT))
_NUMBERS = (
    "global_step",
    "wall_start_ns",
    "wall_end_ns",
    "mono_start_ns",
    "mono_end_ns",
    "samples",
    "memory_peak_bytes",
    "memory_reserved_bytes",
    "alloc_retries",
)
_KINDS = tuple(
    (kind, int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in (np.int8, np.int16, np.int32)
)


class Label(NamedTuple):
    """What a rank's steps have in common, most of them."""

    host: str
    attempt: int
    rank: int
    world_size: int
    device: str
    phase: Phase
    timing: str
    epoch: int | None
    device_uuid: str | None
    memory_total_bytes: int | None
    detailed: bool


class RangeKind(NamedTuple):
    """What ranges have in common that lie at the same place of their steps."""

    stream: str
    tag: str
    op: str | None
    group: str | None
    bytes: int | None
    named: bool
    """The range has metadata."""


_OF_LABEL, _OF_NUMBERS, _OF_BREAKDOWN = (
    attrgetter(*names) for names in (Label._fields, _NUMBERS, _BREAKDOWN)
)
_KindKey = tuple[str, str, str | None, str | None, int | None, bool]


@dataclass(frozen=True, slots=True, eq=False)
class RangeColumns:
    """The ranges of some steps, a row each, in the order of the steps and of their records."""

    row: Ints
    """Place of the step among those asked for."""
    kinds: tuple[RangeKind, ...]
    kind: Ints
    """Code of `kinds`."""
    start_ns: Ints
    """Since the step's start, as is the end."""
    end_ns: Ints
    seq: Ints
    """ABSENT: the record does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class _RangeStore:
    kinds: tuple[RangeKind, ...]
    kind: _Stored
    start_ns: _Stored
    end_ns: _Stored
    seq: _Stored


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns(Sequence[DecodedStep]):
    """Steps of one rank; use `of` and the columns."""

    _labels: tuple[Label, ...]
    _label: _Stored
    _numbers: Mapping[str, _Stored]
    _first: _Stored
    """The first range of each step, or ABSENT where the step has no profile."""
    _count: _Stored
    _ranges: _RangeStore
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
        first, count, ranges = _ranges_of(steps)
        return cls(
            _labels=tuple(Label(*key) for key in labels),
            _label=_narrow(label),
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
            _label=_narrow(_end_to_end(label)),
            _numbers={name: _end_to_end([part._numbers[name] for part in parts]) for name in names},
            _first=_narrow(_end_to_end(first)),
            _count=_end_to_end([part._count for part in parts]),
            _ranges=_RangeStore(
                tuple(kinds),
                _narrow(_end_to_end(kind)),
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
        """Which steps are of one of `phases`, (steps,)."""
        return self._by_label([label.phase in phases for label in self._labels])

    @property
    def detailed(self) -> NDArray[np.bool_]:
        """Which steps were timed part by part, (steps,)."""
        return self._by_label([label.detailed for label in self._labels])

    def _by_label(self, known: list[bool]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.array(known, dtype=np.bool_)[self._label]
        return found

    @property
    def labels(self) -> list[Label]:
        """What the steps have in common, each once, in order of first appearance."""
        return [self._labels[code] for code in dict.fromkeys(self._label.tolist())]

    def labelled(self, label: Label) -> NDArray[np.bool_]:
        """Which steps have this label, (steps,)."""
        return self._by_label([known == label for known in self._labels])

    @property
    def profiled(self) -> NDArray[np.bool_]:
        """Which steps were timed part by part and have a profile, with ranges or without, (steps,)."""
        return np.not_equal(self._first, ABSENT) & self.detailed

    @property
    def fits(self) -> bool:
        """True if no number that is kept once is too large for arithmetic in 64 bits."""
        numbers = [number for label in self._labels for number in (label.epoch, label.memory_total_bytes)]
        numbers += [kind.bytes for kind in self._ranges.kinds]
        return all(abs(number) < 2**62 for number in numbers if number is not None)

    @property
    def executions(self) -> Mapping[int, StepExecution]:
        """By global step, of those that were recorded kernel by kernel."""
        if not self._execution:
            return {}
        attempts = [self._labels[code].attempt for code in self._label.tolist()]
        here = zip(attempts, self.column("global_step").tolist(), strict=True)
        return {key[1]: self._execution[key] for key in here if key in self._execution}

    def ranges(self) -> RangeColumns:
        """All ranges of all steps."""
        first, count = self._first.astype(np.int64), self._count.astype(np.int64)
        whole = int(count.sum())
        row = np.repeat(np.arange(len(first)), count)
        at = np.arange(whole) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        store = self._ranges
        return RangeColumns(
            row=row,
            kinds=store.kinds,
            kind=store.kind[at].astype(np.int64),
            start_ns=store.start_ns[at].astype(np.int64),
            end_ns=store.end_ns[at].astype(np.int64),
            seq=store.seq[at].astype(np.int64),
        )

    def _step(self, row: int) -> DecodedStep:
        label = self._labels[int(self._label[row])]
        value = {name: int(column[row]) for name, column in self._numbers.items()}
        parts = {name: value.pop(name) for name in _BREAKDOWN}
        copies = parts.pop("exposed_copy_ns")
        known = parts["compute_ns"] != ABSENT
        return DecodedStep(
            host=label.host,
            attempt=label.attempt,
            rank=label.rank,
            world_size=label.world_size,
            device=label.device,
            phase=label.phase,
            timing=label.timing,
            epoch=label.epoch,
            device_uuid=label.device_uuid,
            memory_total_bytes=label.memory_total_bytes,
            detailed=label.detailed,
            global_step=value["global_step"],
            wall_start_ns=value["wall_start_ns"],
            wall_end_ns=value["wall_end_ns"],
            mono_start_ns=value["mono_start_ns"],
            mono_end_ns=value["mono_end_ns"],
            samples=_or_none(value["samples"]),
            breakdown=Breakdown(exposed_copy_ns=_or_none(copies), **parts) if known else None,
            memory_peak_bytes=_or_none(value["memory_peak_bytes"]),
            memory_reserved_bytes=_or_none(value["memory_reserved_bytes"]),
            alloc_retries=_or_none(value["alloc_retries"]),
            profile=self._profile(row),
            execution=self._execution.get((label.attempt, value["global_step"])),
        )

    def _profile(self, row: int) -> StepRanges | None:
        first = int(self._first[row])
        if first == ABSENT:
            return None
        store, found = self._ranges, []
        for at in range(first, first + int(self._count[row])):
            kind = store.kinds[int(store.kind[at])]
            seq = _or_none(int(store.seq[at]))
            meta = CollectiveId(op=kind.op, group=kind.group, seq=seq, bytes=kind.bytes)
            found.append(
                StepRange(
                    stream=kind.stream,
                    tag=kind.tag,
                    start_ms=ns_to_ms(int(store.start_ns[at])),
                    end_ms=ns_to_ms(int(store.end_ns[at])),
                    metadata=meta if kind.named else None,
                )
            )
        return StepRanges(ranges=found)


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


def _executions(steps: Sequence[DecodedStep]) -> dict[tuple[int, int], StepExecution]:
    if all(step.execution is None for step in steps):
        return {}
    last = {(step.attempt, step.global_step): step.execution for step in steps}
    return {key: item for key, item in last.items() if item is not None}


def _or_none(value: int) -> int | None:
    return None if value == ABSENT else value


def _columns(names: Sequence[str], rows: Iterable[tuple[int | None, ...]], count: int) -> dict[str, _Stored]:
    """Columns of `count` rows that have a number or None of each name."""
    flat = [ABSENT if value is None else value for value in itertools.chain.from_iterable(rows)]
    whole = np.fromiter(flat, dtype=np.int64, count=len(flat)).reshape(count, len(names)).T
    low, high = whole.min(axis=1, initial=0).tolist(), whole.max(axis=1, initial=0).tolist()
    return {name: whole[at].astype(_kind_for(low[at], high[at]), order="C") for at, name in enumerate(names)}


def _kind_for(low: int, high: int) -> type[np.signedinteger]:
    """The smallest integer type that holds both values."""
    return next((kind for kind, least, most in _KINDS if least <= low and high <= most), np.int64)


def _end_to_end(columns: Sequence[_Stored]) -> _Stored:
    return np.concatenate(columns)


def _narrow(values: Sequence[int] | Ints) -> _Stored:
    """The integers in the fewest bytes that hold them and ABSENT, if it is there."""
    whole = np.asarray(values, dtype=np.int64)
    return whole.astype(_kind_for(int(whole.min(initial=0)), int(whole.max(initial=0))), copy=False)


def _ranges_of(steps: Sequence[DecodedStep]) -> tuple[_Stored, _Stored, _RangeStore]:
    """First range and number of ranges of each step, and all ranges."""
    count = [0 if step.profile is None else len(step.profile.ranges) for step in steps]
    rank = steps[0].rank if steps else 0
    ends = np.cumsum(np.array(count, dtype=np.int64))
    first = np.where([step.profile is None for step in steps], ABSENT, ends - count)
    profiles = [step.profile.ranges for step in steps if step.profile is not None]
    items = list(itertools.chain.from_iterable(profiles))
    kinds: dict[_KindKey, int] = {}
    kind = [
        kinds.setdefault(
            (item.stream, item.tag, None, None, None, False)
            if (meta := item.metadata) is None
            else (item.stream, item.tag, meta.op, _calling(meta, rank), meta.bytes, True),
            len(kinds),
        )
        for item in items
    ]
    seq = [ABSENT if (number := _number(item.metadata)) is None else number for item in items]
    store = _RangeStore(
        kinds=tuple(RangeKind(*key) for key in kinds),
        kind=_narrow(kind),
        start_ns=_narrow(_ns([item.start_ms for item in items])),
        end_ns=_narrow(_ns([item.end_ms for item in items])),
        seq=_narrow(seq),
    )
    return _narrow(first), _narrow(count), store


def _calling(meta: CollectiveId, rank: int) -> str | None:
    """Returns who calls together: a group, or the two sides of a send and its receive; of a pass of a
    microbatch the stage.
    """
    if meta.stage is not None:
        return f"{STAGE}{meta.stage}"
    if meta.op not in ("send", "recv"):
        return meta.group
    peer = "any" if meta.peer is None else meta.peer
    return f"{meta.group} {rank}>{peer}" if meta.op == "send" else f"{meta.group} {peer}>{rank}"


def _number(meta: CollectiveId | None) -> int | None:
    if meta is None:
        return None
    return meta.seq if meta.microbatch is None else meta.microbatch


def _ns(ms: list[float]) -> Ints:
    """As `ms_to_ns`, cut where 64 bits end."""
    return np.clip(np.rint(np.array(ms, dtype=np.float64) * NS_PER_MS), -_MOST, _MOST).astype(np.int64)
