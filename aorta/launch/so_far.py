"""The verdict so far of a run that trains: where its steps go, who is waited for, if they slow down.

It reads the newest records of each rank and some in between, whatever the files' size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aorta.artefacts.attached import NodeStandstill
from aorta.artefacts.files import open_regular
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Manifest
from aorta.averages import fmean, median
from aorta.errors import ArtefactError

_BLOCK_BYTES = 128 << 10
_NEWEST = 30
"""Records of a rank that say how it is now."""
_PLACES = 48
"""Number of places at which a file is read, from its start to its end."""
_MOST_RANKS = 64
_SLOWER = 1.25
"""A run has slowed down if its step takes at least this many times the step at the start."""
_WAITS = 0.1
"""Share of the step that the others must wait longer than a rank, for it to be named."""
_NS_PER_MS = 1e6


class _Parts(msgspec.Struct):
    compute_ns: int
    exposed_comm_ns: int
    data_wait_ns: int
    host_ns: int
    exposed_copy_ns: int | None = None


class _Line(msgspec.Struct):
    global_step: int
    mono_start_ns: int
    mono_end_ns: int
    phase: str = "steady"
    breakdown: _Parts | None = None

    @property
    def ms(self) -> float:
        return (self.mono_end_ns - self.mono_start_ns) / _NS_PER_MS


@dataclass(frozen=True, slots=True)
class SoFar:
    """Results of the records until now; times are ms per step.

    Attributes:
        step_ms: median of the newest steps of rank 0.
        start_ms: median of its first steady steps. None if not known.
        slower_since: the first step since which it is slower. None if it is not.
        parts: mean share of the step by part, over ranks and newest steps. Empty if not timed.
        waited_for: the rank that the others wait for, and how long. None if none stands out.
        stands_still_s: how long no rank of the job has gone on; None: a node goes on.
        still_nodes: nodes whose ranks do not go on while other nodes' ranks do, by index.
    """

    step_ms: float
    start_ms: float | None
    slower_since: int | None
    parts: dict[str, float]
    waited_for: tuple[int, float] | None
    stands_still_s: float | None
    still_nodes: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """One line."""
        said = f"{self.step_ms:.3g} ms per step"
        if self.slower_since is not None and self.start_ms is not None:
            said += f" ({self.start_ms:.3g} ms at the start, slower since step {self.slower_since})"
        if self.parts:
            ordered = sorted(self.parts.items(), key=lambda item: -item[1])
            said += ": " + ", ".join(
                f"{name} {100 * share:.0f} %" for name, share in ordered if share >= 0.005
            )
        if self.waited_for is not None:
            rank, lost = self.waited_for
            said += f"; the others wait {lost:.3g} ms for rank {rank}"
        if self.stands_still_s is not None:
            said += f"; the job stands still, for {self.stands_still_s:.0f} s when it was noticed"
        elif self.still_nodes:
            names = ", ".join(map(str, self.still_nodes))
            said += (
                f"; node{'s' * (len(self.still_nodes) > 1)} {names}: no rank makes progress, but other nodes "
                f"do"
            )
        return said


def so_far(run: RunDir) -> SoFar | None:
    """Results of a run's records until now; None if there are too few records."""
    files = run.all_records()
    step = -(-len(files) // _MOST_RANKS) or 1
    newest = {rank: _tail(path) for rank, path in list(files.items())[::step]}
    first = newest.get(0) or next(iter(newest.values()), [])
    if len(first) < 2:
        return None
    step_ms = median(line.ms for line in first)
    still_s, still_nodes = _still(run)
    start_ms, since = _slowed(files[min(files)], step_ms)
    timed = {rank: [line for line in lines if line.breakdown is not None] for rank, lines in newest.items()}
    return SoFar(
        step_ms=step_ms,
        start_ms=start_ms,
        slower_since=since,
        parts=_shares([line for lines in timed.values() for line in lines]),
        waited_for=_waited_for({rank: lines for rank, lines in timed.items() if lines}),
        stands_still_s=still_s,
        still_nodes=still_nodes,
    )


def _shares(lines: Sequence[_Line]) -> dict[str, float]:
    total = sum(line.mono_end_ns - line.mono_start_ns for line in lines)
    if not total:
        return {}
    known = [line.breakdown for line in lines if line.breakdown is not None]
    sums = {
        "compute": sum(item.compute_ns for item in known),
        "communication": sum(item.exposed_comm_ns for item in known),
        "copies": sum(item.exposed_copy_ns or 0 for item in known),
        "data loading": sum(item.data_wait_ns for item in known),
        "host work": sum(item.host_ns for item in known),
    }
    return {name: ns / total for name, ns in sums.items()}


def _waited_for(timed: dict[int, list[_Line]]) -> tuple[int, float] | None:
    """The rank that waits least in communication, where all others wait longer by enough of a step."""
    if len(timed) < 2:
        return None
    waits = {rank: fmean(_comm_ms(line) for line in lines) for rank, lines in timed.items()}
    rank, *others = sorted(waits, key=lambda item: waits[item])
    lost = median(waits[other] for other in others) - waits[rank]
    step_ms = fmean(line.ms for lines in timed.values() for line in lines)
    return (rank, lost) if lost > _WAITS * step_ms else None


def _comm_ms(line: _Line) -> float:
    return line.breakdown.exposed_comm_ns / _NS_PER_MS if line.breakdown is not None else 0.0


def _slowed(path: Path, now_ms: float) -> tuple[float | None, int | None]:
    """The step time at the start, and the first step since which it is longer. None if it is not."""
    places = _places(path)
    steady = [block for block in places if block]
    if len(steady) < 3:
        return None, None
    start_ms = median(line.ms for line in steady[0])
    if now_ms < _SLOWER * start_ms:
        return start_ms, None
    middle = (start_ms + now_ms) / 2
    last_fast = max(
        (index for index, block in enumerate(steady) if median(line.ms for line in block) < middle), default=0
    )
    slow = steady[min(last_fast + 1, len(steady) - 1)]
    return start_ms, next((line.global_step for line in slow if line.ms >= middle), slow[0].global_step)


def _places(path: Path) -> list[list[_Line]]:
    """The steady records around evenly spaced places of a file, oldest first."""
    try:
        with open_regular(path) as stream:
            length = stream.seek(0, 2)
            block = min(_BLOCK_BYTES, max(length // _PLACES, 8 << 10))
            found = []
            for index in range(_PLACES):
                start = max(length - block, 0) * index // max(_PLACES - 1, 1)
                stream.seek(start)
                found.append(_decoded(stream.read(block), whole=start == 0))
            return [[line for line in lines if line.phase == "steady"] for lines in found]
    except (OSError, ArtefactError):
        return []


def _tail(path: Path) -> list[_Line]:
    try:
        with open_regular(path) as stream:
            length = stream.seek(0, 2)
            stream.seek(max(length - _BLOCK_BYTES, 0))
            return _decoded(stream.read(_BLOCK_BYTES), whole=length <= _BLOCK_BYTES)[-_NEWEST:]
    except (OSError, ArtefactError):
        return []


def _decoded(text: bytes, *, whole: bool) -> list[_Line]:
    """The records in a piece of a file; what is before its first and after its last line end is no record."""
    found = []
    for line in text.split(b"\n")[0 if whole else 1 : -1]:
        try:
            found.append(msgspec.json.decode(line, type=_Line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return found


def _still(run: RunDir) -> tuple[float | None, tuple[int, ...]]:
    """Returns how long the job has stood still, and else the nodes that stand still alone.

    The ranks of one node may wait for a rank of another node that works.
    """
    try:
        manifest = read_json(run.manifest, Manifest)
    except ArtefactError:
        return None, ()
    told = {}
    for index, node in run.nodes():
        try:
            said = read_json(node.standstill, NodeStandstill)
        except ArtefactError:
            continue
        if said.resumed_wall_ns is None and said.attempt == manifest.attempt:
            told[index] = (said.seen_wall_ns - said.since_wall_ns) / 1e9
    expected = {node.node_index for node in manifest.nodes} | set(manifest.nodes_missing)
    if told and expected <= set(told):
        # The job has stood still only since its last node has.
        return min(told.values()), ()
    return None, tuple(sorted(told))
