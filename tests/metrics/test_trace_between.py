"""Time between the steps of a trace: what it was spent on, and what is none."""

from __future__ import annotations

import bisect
import json
from pathlib import Path
from typing import Any

import pytest

from aorta.artefacts.analysis import Analysis
from aorta.commands._traces import analyze_traces
from aorta.metrics.between_steps import UNKNOWN
from tests.support.traced import Job, Rank, write_job

GAP_US = 4_000.0
Event = dict[str, Any]


def moved(document: dict[str, Any], inside: list[Event], *, marks: str = "step {}") -> dict[str, Any]:
    """The document with `GAP_US` ahead of each step but the first, with copies of `inside` in each gap."""
    events = document["traceEvents"]
    steps = sorted((e for e in events if e["name"].startswith("ProfilerStep")), key=lambda e: e["ts"])
    starts = [step["ts"] for step in steps]
    made = []
    for event in events:
        place = max(bisect.bisect_right(starts, event["ts"]) - 1, 0)
        name = marks.format(place) if event["name"].startswith("ProfilerStep") else event["name"]
        made.append(event | {"name": name, "ts": event["ts"] + place * GAP_US})
    for place in range(1, len(starts)):
        at = starts[place] + (place - 1) * GAP_US
        made += [
            {"ph": "X", "pid": steps[0]["pid"], "tid": steps[0]["tid"]} | one | {"ts": at + one["ts"]}
            for one in inside
        ]
    return document | {"traceEvents": made}


def analysed(folder: Path, inside: list[Event], ranks: tuple[int, ...] = (0, 1), **options: str) -> Analysis:
    write_job(folder, Job({rank: Rank(compute=2000) for rank in range(2)}, steps=8))
    for rank, path in enumerate(sorted(folder.iterdir())):
        document = moved(json.loads(path.read_text()), inside if rank in ranks else [], **options)
        path.write_text(json.dumps(document))
    return analyze_traces([folder])


def annotation(name: str, start: float = 0.0, end: float = GAP_US) -> Event:
    return {"cat": "user_annotation", "name": name, "ts": start, "dur": end - start}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("log metrics", "logging"),
        ("wandb.log", "logging"),
        ("validation", "validation"),
        ("run_eval", "validation"),
        ("save_checkpoint", "checkpoint"),
        ("## checkpoint ##", "checkpoint"),
        ("something else", UNKNOWN),
    ],
)
def test_ranges_between_steps_tell_what_the_time_is_spent_on(tmp_path: Path, name: str, phase: str) -> None:
    found = analysed(tmp_path, [annotation(name)])
    assert found.verdict.kind == "between_steps"
    assert [item.phase for item in found.between_steps][:1] == [phase]
    # The host is ahead of its GPU by a part of a step: the GPU works into each gap for as long.
    assert found.between_steps[0].ms == pytest.approx(GAP_US / 1000, rel=0.3)
    assert any(item.kind == "host_bound" and item.symptom_of == "between_steps" for item in found.findings)


def test_a_gap_is_shared_out_by_what_is_in_it(tmp_path: Path) -> None:
    inside = [annotation("validation", 1000.0, 2000.0), annotation("logging", 2000.0, 4000.0)]
    found = {item.phase: item.ms for item in analysed(tmp_path, inside).between_steps}
    assert found["validation"] == pytest.approx(1.0)
    assert found["logging"] == pytest.approx(2.0)


def test_python_functions_tell_it_within_a_step_as_well(tmp_path: Path) -> None:
    frame = {"cat": "python_function", "name": "torch/serialization.py(944): save", "ts": 0.0, "dur": GAP_US}
    found = analysed(tmp_path, [frame], marks="ProfilerStep#{}")
    assert [item.phase for item in found.between_steps][:1] == ["checkpoint"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_library_that_wraps_the_loop_or_a_step_logs_for_none_of_its_time(
    tmp_path: Path, whole: bool
) -> None:
    write_job(tmp_path, Job({rank: Rank(compute=2000, host=3000, pieces=20) for rank in range(2)}, steps=8))
    for path in tmp_path.iterdir():
        document = json.loads(path.read_text())
        steps = [e for e in document["traceEvents"] if e["name"].startswith("ProfilerStep")]
        wrapper = {"cat": "python_function", "name": "mlflow/utils/safety.py(1): patched"}
        end = max(e["ts"] + e["dur"] for e in steps)
        spans = [(steps[0]["ts"], end)] if whole else [(e["ts"] + 1, e["ts"] + e["dur"] - 1) for e in steps]
        document["traceEvents"] += [
            steps[0] | wrapper | {"ts": start, "dur": stop - start} for start, stop in spans
        ]
        path.write_text(json.dumps(document))
    found = analyze_traces([tmp_path])
    assert found.between_steps == []
    assert found.verdict.kind == "host_bound"


def test_a_checkpointed_forward_pass_is_no_checkpoint(tmp_path: Path) -> None:
    write_job(tmp_path, Job({rank: Rank(compute=2000, host=3000) for rank in range(2)}, steps=8))
    for path in tmp_path.iterdir():
        document = json.loads(path.read_text())
        steps = [e for e in document["traceEvents"] if e["name"].startswith("ProfilerStep")]
        document["traceEvents"] += [step | {"name": "checkpoint", "dur": step["dur"] - 2} for step in steps]
        path.write_text(json.dumps(document))
    found = analyze_traces([tmp_path])
    assert found.between_steps == []
    assert found.verdict.kind == "host_bound"


def test_ranges_that_leave_launches_out_are_no_whole_steps(tmp_path: Path) -> None:
    launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 3.0}
    launches = [launch | {"ts": 10.0 * place, "args": {"correlation": 0}} for place in range(20)]
    found = analysed(tmp_path, launches)
    assert UNKNOWN not in [item.phase for item in found.between_steps]


def test_steps_that_follow_each_other_have_nothing_between_them(tmp_path: Path) -> None:
    write_job(tmp_path, Job({rank: Rank(compute=2000) for rank in range(2)}, steps=8))
    found = analyze_traces([tmp_path])
    assert found.between_steps == []
    assert found.verdict.kind == "healthy"
