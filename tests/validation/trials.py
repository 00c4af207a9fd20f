"""Trials as a validation keeps them, made by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from aorta.artefacts.analysis import Kind
from aorta.artefacts.validation import DiagnosedRun, Trial, Truth


def said(kind: Kind = "healthy", step_ms: float | None = 100.0, **more: Any) -> DiagnosedRun:
    values: dict[str, Any] = {"ranks": [], "statement": f"It is {kind}.", "steps": 40} | more
    return DiagnosedRun(kind=kind, step_ms=step_ms, **values)


def clean(at: int, step_ms: float | None = 100.0, kind: Kind = "healthy", **more: Any) -> Trial:
    """A clean run of two nodes in minute `at`."""
    fields = {"cell": f"clean #{at}"} | more
    return trial(at, Truth(fault="clean", kinds=["healthy"]), said(kind, step_ms), **fields)


def faulty(at: int, right: Kind, ranks: list[int], answer: DiagnosedRun | None, **more: Any) -> Trial:
    """A run with a fault in minute `at`, and what was said of it."""
    timeless = more.pop("timeless", False)
    truth = Truth(fault="slow", strength="9 ms", place="there", kinds=[right], ranks=ranks, timeless=timeless)
    return trial(at, truth, answer, **({"cell": f"slow at {at}"} | more))


def trial(at: int, truth: Truth, answer: DiagnosedRun | None, **more: Any) -> Trial:
    plain = Trial(
        cell="",
        nodes=2,
        world_size=2,
        truth=truth,
        job_id=f"local-{at}",
        run_dir=f"runs/run_{at}",
        started_wall_ns=at * 60_000_000_000,
        ended_wall_ns=(at + 1) * 60_000_000_000,
        completed=True,
        said=answer,
    )
    return msgspec.structs.replace(plain, **more)
