"""The replay of a run, the ranks that are late in it, and its POP factors: all from its collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from aorta.artefacts.measured import RankBreakdown
from aorta.artefacts.replayed import ClockFit, LatenessTable, Pop, Replay, WhatIf
from aorta.averages import median
from aorta.metrics.collectives import MatchedCollectives
from aorta.metrics.lateness import lateness
from aorta.metrics.pop import run_pop
from aorta.metrics.whatif import Replays


class Modelled(Struct, frozen=True):
    """The replay of a run, and what else its collectives tell."""

    replays: Replays | None
    absent: str | None
    """Why there is no replay."""
    lateness: LatenessTable | None
    nodes: Mapping[int, str]
    """Each rank's node."""
    clocks: Sequence[ClockFit] = ()
    """Fits of all ranks' clocks except the lowest rank's."""

    @property
    def usable(self) -> Replays | None:
        """The replay, where it may predict."""
        return None if self.withheld else self.replays

    @property
    def withheld(self) -> str | None:
        """Why nothing is predicted; None where the model holds."""
        return self.absent if self.replays is None else self.replays.doubt

    def pop(self, rows: Sequence[RankBreakdown], *, cuda: bool) -> Pop | None:
        """POP factors of the breakdown `rows`."""
        ratio = self.usable.ideal_ratio() if self.usable else None
        return run_pop(rows, ideal_ratio=ratio, nodes=self.nodes, cuda=cuda, reason=self.withheld)

    def record(self, predictions: Sequence[WhatIf]) -> Replay | None:
        """The record of the replay that the analysis writes; None without a replay."""
        replays = self.replays
        if replays is None:
            return None
        ideal = replays.ideal_ratio() * replays.modelled_ms if self.usable else None
        return Replay(
            steps=len(replays.measured_ns),
            measured_step_ms=replays.measured_ms,
            modelled_step_ms=replays.modelled_ms,
            error_pct=replays.error_pct,
            ideal_network_step_ms=ideal,
            predictions=sorted(predictions, key=lambda item: item.step_ms),
            withheld=self.withheld,
        )


def modelled(
    collectives: MatchedCollectives | str,
    steps: Sequence[int],
    step_ms: Sequence[float],
    nodes: Mapping[int, str],
    host_ns: Mapping[int, float] | None = None,
) -> Modelled:
    """The replay of the steps `steps`, and the ranks that are late in them.

    Args:
        collectives: all ranks on one clock, or why they cannot be.
        steps: the steps that count.
        step_ms: of each rank, the mean step.
        nodes: each rank's node.
        host_ns: what each rank's host works in a step, where traces tell.
    """
    if isinstance(collectives, str):
        return Modelled(None, collectives, None, nodes)
    replays = Replays.of(collectives, steps, host_ns)
    late = lateness(collectives, steps, median(step_ms), nodes) if step_ms else None
    if isinstance(replays, str):
        return Modelled(None, replays, late, nodes, collectives.clocks())
    return Modelled(replays, None, late, nodes, collectives.clocks())
