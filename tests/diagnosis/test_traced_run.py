"""A run with traces: where they cover it the breakdown is theirs; throughput stays the records'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import RunDir
from aorta.artefacts.steps import DecodedStep
from aorta.config.schema import CaptureConfig, Config, ProfilingConfig
from aorta.diagnosis.analyse_run import analyse
from aorta.diagnosis.capture_window import overhead_note, overhead_of
from aorta.metrics.profiler_overhead import profiler_overhead
from aorta.metrics.trace_summary import REDUCER
from aorta.readers import run_traces
from aorta.readers.run import read_run
from aorta.readers.run_traces import read_run_traces, reduce_run
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import Job, Rank, write_job

SPEC = RunSpec(nodes=1, ranks_per_node=2, device="cuda:0")
BALANCED = {0: Rank(), 1: Rank()}


def traced(tmp_path: Path, job: Job, spec: RunSpec = SPEC) -> RunDir:
    run = write_run(tmp_path / "results", spec)
    write_job(run.torch_profiler, job)
    return run


def analysed(run: RunDir) -> Analysis:
    return analyse(read_run(run, query_accounting=False), read_run_traces(run, REDUCER))


def test_the_breakdown_is_the_traces_and_the_throughput_the_records(tmp_path: Path) -> None:
    run = traced(tmp_path, Job(BALANCED))
    found, plain = analysed(run), analyse(read_run(run, query_accounting=False))
    assert (found.breakdown.timing, found.breakdown.steps) == ("kineto", 6)
    # 1000 + 200 + 100 µs; the records' steps are 60 ms and more.
    assert [row.step_ms for row in found.breakdown.per_rank] == [pytest.approx(1.3)] * 2
    assert [row.host for row in found.breakdown.per_rank] == [row.host for row in plain.breakdown.per_rank]
    assert found.throughput == plain.throughput is not None
    assert found.traces is not None
    assert [row.rank for row in found.traces.per_rank] == [0, 1]
    assert found.traces.per_rank[0].kernels[0].name == "gemm"
    assert plain.traces is None
    assert any(source.startswith("kineto (2 ranks, 6 whole steps)") for source in found.data_quality.sources)


def test_another_verdict_of_the_records_is_said(tmp_path: Path) -> None:
    found = analysed(traced(tmp_path, Job({0: Rank(), 1: Rank(compute=1600)})))
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [1])
    assert any(
        note == "sources contradict each other: the step records alone give healthy"
        for note in found.data_quality.notes
    )
    agreeing = analysed(traced(tmp_path / "b", Job(BALANCED)))
    assert agreeing.verdict.kind == "healthy"
    assert not any("contradict" in note for note in agreeing.data_quality.notes)


def test_parts_that_the_sources_put_far_apart_are_named(tmp_path: Path) -> None:
    # The trace: 1100 of 1300 in compute, 85 %; the records: 60 of 60 + 6 + 4 + 5.
    slow = replace(SPEC, data_wait_ms=40.0)
    found = analysed(traced(tmp_path, Job(BALANCED), slow))
    notes = [note for note in found.data_quality.notes if note.startswith("sources differ: loading")]
    assert len(notes) == 1
    assert notes[0].endswith("and 0 % according to its trace, which the breakdown uses")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (Job(BALANCED, absent=[1]), "rank 1 left no trace with whole steps"),
        (Job(BALANCED, steps=2), "all ranks have only 2 whole steps in common that count, but 3 are needed"),
        (Job(BALANCED, communication=None), "communication is not classified on some ranks"),
    ],
)
def test_traces_that_do_not_cover_the_run_leave_it_to_the_records(
    tmp_path: Path, job: Job, said: str
) -> None:
    run = traced(tmp_path, job)
    found, plain = analysed(run), analyse(read_run(run, query_accounting=False))
    assert found.breakdown == plain.breakdown
    assert found.verdict == plain.verdict
    assert found.traces is not None
    note = f"the breakdown uses the step records, not the kineto traces: {said}"
    assert note in found.data_quality.notes


def test_traces_of_the_host_alone_say_so(tmp_path: Path) -> None:
    run = traced(tmp_path, Job(BALANCED))
    for path in run.torch_profiler.rglob("*.json"):
        trace = msgspec.json.decode(path.read_bytes())
        trace["traceEvents"] = [item for item in trace["traceEvents"] if item.get("cat") != "kernel"]
        path.write_bytes(msgspec.json.encode(trace))
    notes = analysed(run).data_quality.notes
    assert any("the traces of ranks 0, 1 contain no GPU events" in note for note in notes), notes


def test_a_run_without_traces_is_as_before(tmp_path: Path) -> None:
    run = write_run(tmp_path, SPEC)
    assert analysed(run) == analyse(read_run(run, query_accounting=False))


def test_a_trace_that_cannot_be_read_is_a_problem_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, SPEC)
    run.torch_profiler.mkdir()
    (run.torch_profiler / "rank0.pt.trace.json").write_text("no trace")
    found = analysed(run)
    assert any("rank0.pt.trace.json" in problem.reason for problem in found.data_quality.problems)
    assert found.traces is None


def with_profiled(run: RunDir, factor: float, first: int, last: int) -> None:
    """The steps `first` to `last` of every rank take `factor` times as long."""
    for path in run.all_records().values():
        lines = []
        for line in path.read_bytes().splitlines():
            record = msgspec.json.decode(line)
            if first <= record["global_step"] <= last:
                record["mono_end_ns"] = record["mono_start_ns"] + round(
                    factor * (record["mono_end_ns"] - record["mono_start_ns"])
                )
                record["breakdown"] = None
                record["phase"] = "profiler"
            lines.append(msgspec.json.encode(record))
        path.write_bytes(b"\n".join(lines) + b"\n")


PROFILED = Config(
    capture=CaptureConfig(warmup_steps=10),
    profiling=ProfilingConfig(enabled=True, wait=10, warmup=1, active=5, repeat=1),
)


@pytest.mark.parametrize(("factor", "warns"), [(1.5, True), (1.05, False)])
def test_what_the_profiler_costs_is_measured_and_warned_of_above_ten_per_cent(
    tmp_path: Path, factor: float, warns: bool
) -> None:
    run = write_run(tmp_path, replace(SPEC, config=PROFILED))
    with_profiled(run, factor, 20, 25)
    data = read_run(run, query_accounting=False)
    found = overhead_of(data)
    assert found is not None
    # 40 steps, of which 10 warm up and 20 to 25 are the profiler's, 21 to 25 in its recording.
    assert (found.inside_steps, found.outside_steps) == (5, 40 - 10 - 6)
    assert found.ratio == pytest.approx(factor, rel=1e-3)
    made = analyse(data)
    assert made.profiler_overhead == found
    assert (
        any("warning: steps inside the profiler's capture take" in n for n in made.data_quality.notes)
        is warns
    )


def test_a_run_without_a_profiler_has_no_overhead(tmp_path: Path) -> None:
    assert overhead_of(read_run(write_run(tmp_path, SPEC), query_accounting=False)) is None
    assert overhead_note(None) == []


def step(number: int, ns: int, phase: str = "steady") -> DecodedStep:
    return DecodedStep(
        job_id="7",
        host="h", attempt=1, rank=0, world_size=1, device="cuda:0", global_step=number, phase=phase,  # type: ignore[arg-type]
        wall_start_ns=0, wall_end_ns=ns, mono_start_ns=0, mono_end_ns=ns, samples=1, timing="kernel",
        breakdown=None,
    )  # fmt: skip


def test_overhead_is_the_ratio_of_medians() -> None:
    steps = (
        [step(n, 10) for n in range(3)] + [step(n, 12) for n in range(3, 6)] + [step(6, 999, "checkpoint")]
    )
    found = profiler_overhead({0: steps}, lambda number: number >= 3)
    assert (found.ratio, found.inside_steps, found.outside_steps) == (pytest.approx(1.2), 3, 3)


@pytest.mark.parametrize(("border", "said"), [(5, "inside the capture"), (1, "outside of the capture")])
def test_too_few_steps_on_a_side_are_no_ratio(border: int, said: str) -> None:
    found = profiler_overhead({0: [step(n, 10) for n in range(6)]}, lambda number: number >= border)
    assert found.ratio is None
    assert said in (found.reason or "")
    assert "could not be measured" in overhead_note(found)[0]


def test_a_step_that_a_rank_lacks_does_not_count() -> None:
    ranks = {0: [step(n, 10) for n in range(8)], 1: [step(n, 20) for n in range(7)]}
    found = profiler_overhead(ranks, lambda number: number >= 4)
    assert (found.inside_steps, found.inside_ms) == (3, pytest.approx(15e-6))


def test_of_summaries_that_are_too_large_together_the_last_steps_are_analysed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = traced(tmp_path, Job({0: Rank(), 1: Rank(compute=1600)}, steps=9))
    assert [made.ranks for _, made in reduce_run(run, REDUCER)] == [[0, 1]]
    whole = analysed(run)
    assert (whole.breakdown.steps, len(read_run_traces(run, REDUCER).notes)) == (9, 0)
    size = sum(path.stat().st_size for path in run.node(0).trace_summaries().values())
    monkeypatch.setattr(run_traces, "_MOST_BYTES", size * 5 // 9 - 1)  # less than five of nine steps
    monkeypatch.setattr(run_traces, "_FEWEST_STEPS", 2)
    found = read_run_traces(run, REDUCER)
    assert [[step.number for step in summary.steps] for summary in found.summaries] == [[5, 6, 7, 8]] * 2
    made = analysed(run)
    # All steps are alike: 1600 + 200 + 100 µs, in which rank 0 waits for 600.
    assert (made.verdict.kind, made.verdict.ranks) == ("straggler", [1])
    assert [row.wait_ms for row in made.breakdown.per_rank] == [pytest.approx(0.6), pytest.approx(0.0)]
    assert (made.breakdown.steps, made.breakdown.timing) == (4, "kineto")
    assert any(
        note.startswith("of 9 traced steps of all ranks, only the last 4 are")
        for note in made.data_quality.notes
    )
    monkeypatch.setattr(run_traces, "_FEWEST_STEPS", 6)
    assert analysed(run).breakdown.steps == 6


def test_a_broken_summary_among_large_ones_is_a_problem_and_its_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = traced(tmp_path, Job(BALANCED, steps=9))
    list(reduce_run(run, REDUCER))
    path = run.node(0).trace_summary(1)
    path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.setattr(run_traces, "_MOST_BYTES", 1)
    monkeypatch.setattr(run_traces, "_FEWEST_STEPS", 4)
    found = read_run_traces(run, REDUCER)
    assert [problem.file for problem in found.problems] == [str(path)]
    assert [len(summary.steps) for summary in found.summaries] == [4, 4]
    assert not found.from_summaries
