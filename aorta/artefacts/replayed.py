"""Results of replaying a run: late ranks, clocks, predictions and POP efficiencies."""

from __future__ import annotations

from typing import Literal

from aorta.artefacts.measured import Interval
from aorta.artefacts.records import Record


class Lateness(Record, frozen=True, kw_only=True):
    """Tells how often a rank was the last one, for so long that it shows."""

    rank: int
    host: str | None
    pattern: Literal["persistent", "intermittent", "one_off"]
    """In 80 % of the steps since the first one or more; less often; in a single unbroken stretch of at most
    5 % of the steps."""
    late_steps: int
    late_times: int | None = None
    """Unbroken runs of steps in which it is late by more than half of the worst rank's mean. A cause that
    delays a rank for a while counts once. None: not counted.
    """
    share_of_steps: float
    """0 to 1, of the detailed steady steps in which ranks meet."""
    since_step: int
    """The first global step in which it was late, of the detailed ones."""
    late_ms: float
    """Mean over its late steps: how much later it came than the median rank."""


class LateNode(Record, frozen=True, kw_only=True):
    """A node all of whose ranks are late together while no rank of another node is."""

    host: str
    ranks: list[int]
    late_ms: float


class LatenessTable(Record, frozen=True, kw_only=True):
    """Late ranks, the worst first, and whether they are single ranks or whole nodes."""

    steps: int
    threshold_ms: float
    """A rank counts as late in a step where it comes this much later than the median rank."""
    ranks: list[Lateness]
    nodes: list[LateNode]
    scope: Literal["none", "rank", "node", "not_determined"]
    """`not_determined`: late ranks, but one rank per node: a slow rank and a slow node look the same."""


class ClockFit(Record, frozen=True, kw_only=True):
    """Tells how the clock of some ranks was set to the lowest rank's, by the ends of collectives."""

    ranks: list[int]
    """The ranks that read this clock."""
    ahead_ms: float
    """In the middle of the run."""
    fast_ppm: float
    """Speed of the clock above the other, in parts per million; 0: no drift that exceeds the scatter."""
    uncertainty_ms: float
    """After that, the median distance of the ends from each other."""


class WhatIf(Record, frozen=True, kw_only=True):
    """The steps replayed without one cause."""

    kind: str
    removed: str
    """A description of what was taken away."""
    ranks: list[int]
    """The ranks from which it was removed. Empty means all ranks."""
    step_ms: float
    step_ms_interval: Interval | None
    """Interval of the mean step of another run without the cause; None with fewer than 10 steps."""
    speedup: float
    speedup_interval: Interval | None
    """Interval of the mean step now over that run's mean step; None with fewer than 10 steps."""
    alone_interval: Interval | None = None
    """The same by this run's own steps, whatever other runs say."""
    effect_interval: Interval | None = None
    """Interval of the speed-up of these very steps, by resampling them: above 1, there is an effect beyond
    their own noise; None with fewer than 10 steps."""
    bound: bool = False
    """True if the hosts' time per step is unknown. It may be the next limit: this is a lower bound."""


class Replay(Record, frozen=True, kw_only=True):
    """The model of the steps, what it makes of them unchanged, and its predictions."""

    steps: int
    measured_step_ms: float
    modelled_step_ms: float
    """Replayed with its own transfers, which gives the measured step: what speed-ups are relative to."""
    error_pct: float | None
    """The check: how far half of the steps, replayed with the transfers of the other half, miss their
    measured mean, the worse of both halves; predictions need 3 % or less. None means no collective to
    check."""
    ideal_network_step_ms: float | None
    """The step if transfers took no time and waits stayed. None if predictions are withheld."""
    predictions: list[WhatIf]
    """The largest gain first; empty where they are withheld."""
    withheld: str | None = None
    """Why there are no predictions."""


class DevicePop(Record, frozen=True, kw_only=True):
    """The GPUs' branch of the POP factors: `load_balance` × `communication` × `orchestration` is the parallel
    efficiency of the devices."""

    parallel: float
    load_balance: float
    communication: float
    """max U / max (U + exposed communication + exposed copies)."""
    orchestration: float
    """max (U + exposed communication + exposed copies) / T: what launches, loaders and Python leave."""


class Pop(Record, frozen=True, kw_only=True):
    """POP efficiencies (0 to 1) of a run: U_i useful compute of rank i, T the step, N ranks.

    PE = sum U / (N T) = LB CommE; LB = mean U / max U; CommE = max U / T = SerE TE. The additive ones take
    lost shares from 1 instead: PE = 1 - (1 - LB) - (1 - CommE).
    """

    ranks: int
    step_ms: float
    useful_ms: float
    """Sum over ranks."""
    parallel: float
    load_balance: float
    communication: float
    serialisation: float | None
    """max U / T_ideal; None without a replay that reproduces the step."""
    transfer: float | None
    """T_ideal / T."""
    load_balance_inter_node: float | None
    """mean / max over nodes of a node's mean U; None where ranks' nodes are not known."""
    load_balance_intra_node: float | None
    additive_load_balance: float
    additive_communication: float
    additive_serialisation: float | None
    additive_transfer: float | None
    device: DevicePop | None = None
    """None without GPUs."""
    reason: str | None = None
    """Why a factor is absent."""
