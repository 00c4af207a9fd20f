"""Traced steps and the records of the same steps: their numbers, and which of them count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.layout import RunDir
from aorta.artefacts.packed import unpack
from aorta.artefacts.reduction import TraceSummary
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.step_names import Phase
from aorta.artefacts.steps import DecodedStep
from aorta.diagnosis.analyse_run import analyse
from aorta.metrics.trace_capture import capture
from aorta.metrics.trace_summary import REDUCER, work_of
from aorta.metrics.traced_steps import numbered
from aorta.readers.run import read_run
from aorta.readers.run_traces import read_run_traces
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import BASE_NS, ORIGIN, Job, Rank, write_job

FIRST = 20
JOB = Job({0: Rank(), 1: Rank(clock=700)})
SPEC = RunSpec(nodes=1, ranks_per_node=2, device="cuda:0")


def wall_ns(job: Job, rank: int, step: int) -> int:
    """When a step of the run starts, the traces' first one being step `FIRST`."""
    since = step - FIRST
    us = job.start_us(since) if since >= 0 else since * job.step_us
    return BASE_NS + 1000 * (ORIGIN + job.ranks[rank].clock + us)


def record(job: Job, rank: int, number: int, phase: Phase = "steady") -> DecodedStep:
    start, end = wall_ns(job, rank, number), wall_ns(job, rank, number + 1)
    return DecodedStep(
        job_id="7",
        host="h", attempt=0, rank=rank, world_size=2, device="cuda:0", global_step=number, phase=phase,
        wall_start_ns=start, wall_end_ns=end, mono_start_ns=start, mono_end_ns=end, samples=1,
        timing="event_window", breakdown=None,
    )  # fmt: skip


def records(job: Job, phase: Callable[[int], Phase] = lambda _: "steady") -> dict[int, StepColumns]:
    return {
        rank: StepColumns.of([record(job, rank, n, phase(n)) for n in range(15, 30)]) for rank in job.ranks
    }


def summaries(tmp_path: Path, job: Job = JOB) -> tuple[TraceSummary, ...]:
    run = RunDir(tmp_path)
    write_job(run.torch_profiler, job)
    return read_run_traces(run, REDUCER).summaries


def test_steps_get_the_numbers_of_the_records_that_they_lie_in(tmp_path: Path) -> None:
    found = numbered(summaries(tmp_path), records(JOB), {})
    assert [[step.number for step in item.steps] for item in found.summaries] == [[*range(20, 26)]] * 2
    assert found.counted == frozenset(range(20, 26))
    assert found.notes == ()
    # A profiler starts up to three steps before them, and writes its report up to three steps behind them.
    assert found.around == range(20 - 3, 26 + 3)
    for item in found.summaries:
        work = work_of(item)
        assert work is not None
        # One all-reduce a step, numbered as its step is.
        assert work.calls.step.tolist() == list(range(20, 26))


def test_a_step_that_is_not_steady_on_one_rank_counts_on_none(tmp_path: Path) -> None:
    by_rank = records(JOB, lambda n: "profiler" if n == FIRST else "steady")
    by_rank[1] = records(JOB, lambda n: "validation" if n == 23 else "steady")[1]
    found = numbered(summaries(tmp_path), by_rank, {})
    assert found.counted == frozenset({21, 22, 24, 25})
    assert found.kept([19, 20, 21, 22, 23]) == (21, 22)
    assert found.notes == ("2 traced steps left out as not steady, according to the records",)


def test_where_recording_marks_every_captured_step_those_count_but_no_warm_up(tmp_path: Path) -> None:
    by_rank = records(JOB, lambda n: "warmup" if n < 22 else "profiler")
    assert numbered(summaries(tmp_path), by_rank, {}).counted == frozenset({22, 23, 24, 25})


def test_a_step_that_a_rank_has_no_record_of_is_no_match(tmp_path: Path) -> None:
    by_rank = records(JOB)
    by_rank[1] = by_rank[1].where(by_rank[1].column("global_step") != 22)
    found = numbered(summaries(tmp_path), by_rank, {})
    assert found.counted is None
    assert "rank 1's trace overlaps with its step records" in found.notes[0]


def test_records_of_another_time_number_nothing(tmp_path: Path) -> None:
    made = summaries(tmp_path)
    away = (msgspec.structs.replace(made[0], epoch_ns=0), made[1])
    found = numbered(away, records(JOB), {})
    assert (found.counted, found.summaries) == (None, away)


def test_a_trace_that_counts_from_the_boot_is_placed_by_its_node(tmp_path: Path) -> None:
    made = [msgspec.structs.replace(item, epoch_ns=None) for item in summaries(tmp_path)]
    assert numbered(made, records(JOB), {}).counted is None
    assert len(numbered(made, records(JOB), {}).around) == 0
    assert numbered(made, records(JOB), {0: BASE_NS, 1: BASE_NS}).counted == frozenset(range(20, 26))


def test_a_capture_knows_when_it_began_where_a_clock_is_tied_to_the_wall(tmp_path: Path) -> None:
    made = summaries(tmp_path)
    assert capture(made).began_ns() == wall_ns(JOB, 0, FIRST)
    late = [msgspec.structs.replace(made[0], epoch_ns=None), made[1]]
    assert capture(late).began_ns() == wall_ns(JOB, 1, FIRST)
    assert capture([msgspec.structs.replace(item, epoch_ns=None) for item in made]).began_ns() is None


def on_the_clock_of(run: RunDir, job: Job, marked: bool) -> None:
    """Records with the times of the traces; `marked`: they say that the first traced step is not steady."""
    for rank, path in run.all_records().items():
        lines = []
        for line in path.read_bytes().splitlines():
            made = msgspec.json.decode(line)
            number = made["global_step"]
            made["wall_start_ns"] = wall_ns(job, rank, number)
            made["wall_end_ns"] = wall_ns(job, rank, number + 1)
            if marked and number == FIRST:
                made["phase"] = "profiler"
            lines.append(msgspec.json.encode(made))
        path.write_bytes(b"\n".join(lines) + b"\n")


@pytest.mark.parametrize(
    ("marked", "kind", "steps"), [(True, "healthy", 5), (False, "straggler", 6)], ids=["marked", "not marked"]
)
def test_a_profilers_start_on_one_rank_makes_no_straggler(
    tmp_path: Path, marked: bool, kind: str, steps: int
) -> None:
    # 30 ms once over six steps of 1.3 ms.
    job = Job({0: Rank(), 1: Rank(startup=30_000)})
    run = write_run(tmp_path / "results", SPEC)
    write_job(run.torch_profiler, job)
    on_the_clock_of(run, job, marked)
    found = analyse(read_run(run, query_accounting=False), read_run_traces(run, REDUCER))
    assert found.breakdown.timing == "kineto"
    assert (found.verdict.kind, found.breakdown.steps) == (kind, steps)
    if marked:
        assert "1 traced step left out as not steady, according to the records" in found.data_quality.notes
        assert [row.step_ms for row in found.breakdown.per_rank] == [pytest.approx(1.3)] * 2


def test_the_hosts_line_gets_the_numbers_of_the_records(tmp_path: Path) -> None:
    before = summaries(tmp_path)
    found = numbered(before, records(JOB), {})
    for old, new in zip(before, found.summaries, strict=True):
        assert old.line is not None
        assert new.line is not None
        moved = {step.number - own.number for own, step in zip(old.steps, new.steps, strict=True)}
        steps = unpack(new.line.columns["step"]) - unpack(old.line.columns["step"])
        assert set(steps.tolist()) == moved
