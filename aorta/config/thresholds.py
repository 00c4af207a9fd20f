"""The numbers that decide a verdict: one row per key.

A row is a field of `Thresholds` with what `row` says of it. The schema, the policy, the report's line, the
tables of the docs and the comments of `config/default.yaml` are made of these rows.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct


def row(
    unit: str,
    sentence: str,
    why: str,
    *,
    below: bool = False,
    most: float | None = None,
    least: float = 0,
    null: str | None = None,
    traces: str | None = None,
) -> Meta:
    """Returns what is known of a threshold beside its key, type and default.

    Args:
        unit: of the value.
        sentence: what happens on the other side of it.
        why: what justifies the default.
        below: a value below it is a finding; else a value above it.
        most: the largest value allowed.
        least: the smallest value allowed.
        null: what null means, where it may be null.
        traces: the default for kernel traces, where it is another one.
    """
    said = {"unit": unit, "why": why, "below": below, "null": null, "traces": traces}
    return Meta(ge=least, le=most, description=sentence, extra=said)


class Thresholds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tells when a measured value becomes a finding."""

    effective_gpu_utilization_pct: Annotated[
        float,
        row(
            "% of the measured time",
            "GPU under-utilisation is reported if the GPU computes for less than this share of the measured "
            "time.",
            "The default of the profiling guide that users already know.",
            below=True,
            most=100,
        ),
    ] = 70.0
    data_wait_pct: Annotated[
        float,
        row(
            "% of the step",
            "Data loading is reported if waiting for the data loader takes more than this share of the step.",
            "The default of the profiling guide that users already know.",
            most=100,
        ),
    ] = 30.0
    exposed_comm_pct: Annotated[
        float,
        row(
            "% of the step",
            "Communication is reported if exposed communication, waits included, takes more than this "
            "share of the step.",
            "The default of the profiling guide that users already know.",
            most=100,
        ),
    ] = 20.0
    memory_used_pct: Annotated[
        float,
        row(
            "% of memory",
            "Memory pressure is reported if peak memory use is above this share of the GPU's memory or of "
            "the job's limit (the node's memory, if there is no limit).",
            "The default of the profiling guide that users already know.",
            most=100,
        ),
    ] = 90.0
    straggler_pct: (
        Annotated[
            float,
            row(
                "% of the step",
                "A rank is reported as a straggler if the others wait for its compute or host work for more "
                "than this share of the step.",
                "The waiting ranks see these waits as communication. Waits in kernel traces contain no "
                "scheduling noise of the host, so a smaller share is certain.",
                most=100,
                null="as exposed_comm_pct",
                traces="as exposed_comm_pct, at most 10",
            ),
        ]
        | None
    ) = None
    host_pct: Annotated[
        float,
        row(
            "% of the step",
            "The job is reported as host bound if the device waits for host work, and not for data or "
            "communication, for more than this share of the step.",
            "The same as for data loading: in both cases, the device waits for the host.",
            most=100,
        ),
    ] = 30.0
    exchange_pct: (
        Annotated[
            float,
            row(
                "% of the step",
                "Communication is a symptom if other findings explain waits that take more time than "
                "transferring data. Otherwise, it is reported only if transferring data, without waits, "
                "takes more than this share of the step.",
                "If communication passes its threshold only because of waits, it has another cause.",
                most=100,
                null="as exposed_comm_pct",
            ),
        ]
        | None
    ) = None
    alloc_retries_per_step: Annotated[
        float,
        row(
            "per step",
            "Memory pressure is reported if failed GPU allocations are retried more than this many times per "
            "step.",
            "Each retry empties the allocator's cache and waits for the GPU. One retry in ten steps is "
            "noticeable.",
        ),
    ] = 0.1
    swap_mb_per_s: Annotated[
        float,
        row(
            "MB/s",
            "Memory pressure is reported if a node moves more than this many MB/s between memory and swap.",
            "4 MB/s is 1,000 pages per second. At 0.1 ms each, they take a tenth of a process's time.",
        ),
    ] = 4.0
    compute_inefficiency_pct: Annotated[
        float,
        row(
            "% of the step",
            "Inefficient compute is reported if the costliest known inefficiency in compute takes more than "
            "this share of the step.",
            "A smaller share is within the error of the prediction.",
            most=100,
        ),
    ] = 10.0
    between_steps_pct: Annotated[
        float,
        row(
            "% of the measured time",
            "Time between steps is reported if it takes more than this share of the measured time.",
            "If nothing else is found, the verdict may leave a fifth of the time unexplained.",
            most=100,
        ),
    ] = 20.0
    pipeline_bubble_pct: Annotated[
        float,
        row(
            "% of the step",
            "A pipeline bubble is reported if ranks would be idle for more than this share of the step, "
            "even in the ideal schedule.",
            "Four microbatches per stage, as GPipe advises, leave 20 %; one per stage leaves 33 to 50 %.",
            most=100,
        ),
    ] = 33.0
    stall_pct: Annotated[
        float,
        row(
            "% of the measured time",
            "A stall is reported if steps, or gaps between steps, of at least 10 times the median step take "
            "more than this share of the measured time.",
            "The same share as for exposed communication.",
            most=100,
        ),
    ] = 20.0
    min_steady_steps: (
        Annotated[
            int,
            row(
                "steps",
                'With fewer steady steps than this, the verdict is "insufficient data".',
                "Fewer step records do not show how much steps vary. Kernel traces are exact to the "
                "nanosecond, and captures are short.",
                least=1,
                null="10",
                traces="3",
            ),
        ]
        | None
    ) = None


class ThresholdRow(Struct, frozen=True):
    """One threshold."""

    key: str
    default: str
    """The default as YAML: a number, or null."""
    unit: str
    below: bool
    """A value below it is a finding; else a value above it."""
    sentence: str
    why: str
    null: str | None
    """Meaning of null."""
    traces: str | None
    """The default for kernel traces, where it is another one."""

    @property
    def value(self) -> str:
        """The default, with what null means."""
        return f"{self.default} ({self.null})" if self.null else self.default


def rows() -> list[ThresholdRow]:
    """Returns the thresholds in their order."""
    return [_row(field) for field in msgspec.structs.fields(Thresholds)]


def _row(field: Any) -> ThresholdRow:
    (meta,) = (
        item for part in (field.type, *get_args(field.type)) for item in getattr(part, "__metadata__", ())
    )
    return ThresholdRow(
        key=field.name,
        default="null" if field.default is None else f"{field.default:g}",
        sentence=meta.description,
        **meta.extra,
    )
