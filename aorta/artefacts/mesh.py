"""Finds how a job's ranks are arranged, and how much slower it is than with all of them equal."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from aorta.artefacts.records import Record

Dimension = Literal["data", "pipeline", "tensor", "sequence", "expert", "unknown"]


class MeshGroup(Record, frozen=True, kw_only=True):
    """Ranks that communicate with each other."""

    name: str
    dimension: Dimension
    ranks: list[int]
    ms_per_step: float | None = None
    """Communication of a member, mean; null: not measured."""
    bytes_per_step: float | None = None
    """Bytes per member; null: sizes are not recorded."""
    bytes_to: list[list[float]] | None = None
    """A row per rank, with what it sends to each rank of `ranks` per step by all-to-all, itself included.

    Null: there is no all-to-all, or not all sizes are known.
    """


class MeshDimension(Record, frozen=True, kw_only=True):
    """Time and bytes per step of the groups of one parallel dimension: means over their members."""

    dimension: Dimension
    groups: int
    ms_per_step: float | None
    """Null: not measured."""
    bytes_per_step: float | None
    """Null: sizes are not recorded."""


class MeshStage(Record, frozen=True, kw_only=True):
    """A stage of the pipeline, with all its replicas."""

    stage: int
    of: int
    ranks: list[int]
    work_ms: float
    """Computation per step, mean over ranks."""
    bubble_ratio: float | None = None
    """Share of the pipeline's time in which a rank of the stage does not compute, mean."""


class Bubble(Record, frozen=True, kw_only=True):
    """Share of the pipeline's time in which ranks do not compute."""

    measured: float
    ideal: float | None
    """Share for the schedule with equal microbatches and stages; null: the schedule is not known."""


class Mesh(Record, frozen=True, kw_only=True):
    """Groups and stages; empty lists: none were found."""

    groups: list[MeshGroup] = field(default_factory=list)
    dimensions: list[MeshDimension] = field(default_factory=list)
    """Bytes and time per parallel dimension."""
    stages: list[MeshStage] = field(default_factory=list)
    schedule: str | None = None
    """`gpipe`, `1f1b`, `interleaved`, `zero_bubble` or `unknown`; null: there is no pipeline."""
    microbatches: int | None = None
    bubble: Bubble | None = None


class MeshCause(Record, frozen=True, kw_only=True):
    """Something that makes the job slow."""

    cause: str
    ranks: list[int]
    stages: list[int]
    step_ms: float
    """The step without it."""
    share: float
    """Share of the difference between the step and the ideal one."""
    excess: float
    """Extra time of its operations over comparable ones: 0.5 is half as long again."""


class WorkerSteps(Record, frozen=True, kw_only=True):
    """S of each worker in each step: the step in which its operations alone keep their recorded times, over
    the ideal step.
    """

    ranks: list[int]
    steps: list[int]
    values: list[list[float]]
    """A row per rank, with one value per step."""


class SlowdownRecord(Record, frozen=True, kw_only=True):
    """S, and the S of each rank, stage and kind of operation alone."""

    value: float
    by_rank: dict[int, float]
    by_stage: dict[int, float]
    by_kind: dict[str, float]
    by_step: dict[int, float]
    by_worker_and_step: WorkerSteps | None = None
    step_ms: float
    ideal_ms: float
    worker_share: float | None
    """M_W: what the slowest 3 % of the ranks take of the difference."""
    stage_share: float | None
    """M_S: what the last stage takes of the difference."""
    causes: list[MeshCause]
