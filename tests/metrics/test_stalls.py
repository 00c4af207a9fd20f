"""Where a run stood still."""

from __future__ import annotations

import msgspec
import pytest

from aorta.artefacts.layout import RunDir
from aorta.artefacts.stops import Stop
from aorta.commands._analysis import analyze_run
from aorta.metrics.stalls import FEWEST, Stall, longest_stall
from aorta.readers.steps import read_steps
from tests.support.synthetic import RunSpec, write_run

MS = 1_000_000


def stalled(run: RunDir, rank: int, step: int, ms: float, *, where: str, spec: RunSpec) -> None:
    """Let a rank stand still in a step (`host`, `comm`, `whole`) or behind it (`gap`)."""
    import json

    path, moved = run.records(rank), 0
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        for name in ("wall_start_ns", "wall_end_ns", "mono_start_ns", "mono_end_ns"):
            record[name] += moved
        if record["global_step"] == step:
            moved = int(ms * MS)
            if where != "gap":
                record["wall_end_ns"] += moved
                record["mono_end_ns"] += moved
                parts = record["breakdown"]
                if where == "whole":
                    record |= {"breakdown": None, "profile": None, "detailed": False}
                elif where == "comm":
                    parts["exposed_comm_ns"] += moved
                    parts["comm_ns"] += moved
                else:
                    parts["host_ns"] += moved
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")


SPEC = RunSpec(steps=60, warmup=10, ranks_per_node=2)


@pytest.fixture
def run(tmp_path) -> RunDir:
    return write_run(tmp_path, SPEC)


def found(run: RunDir) -> Stall | None:
    return longest_stall(read_steps(run).by_rank)


def test_a_run_without_a_stall_has_none(run: RunDir) -> None:
    assert found(run) is None


@pytest.mark.parametrize("step", [40, 6], ids=["steady", "warm-up"])
def test_the_rank_that_stood_still_is_named_and_not_its_victim(run: RunDir, step: int) -> None:
    stalled(run, 1, step, 20_000, where="host", spec=SPEC)
    stalled(run, 0, step, 20_000, where="comm", spec=SPEC)  # it waits in the collective
    stall = found(run)
    assert stall is not None
    assert (stall.where, stall.step, stall.ranks, stall.waiting) == ("step", step, (1,), False)
    usual = SPEC.data_wait_ms + SPEC.compute_ms + SPEC.exposed_comm_ms + SPEC.host_ms
    assert stall.seconds == pytest.approx(20 + usual / 1000, abs=0.05)
    assert stall.share == pytest.approx(20_000 / (20_000 + SPEC.steps * usual), abs=0.02)
    analysis = analyze_run(run, query_accounting=False).analysis
    assert analysis.verdict.kind == "stall"
    assert f"tep {step} took 20." in analysis.verdict.statement
    assert "on rank 1: " in analysis.verdict.statement


def test_a_stall_of_all_ranks(run: RunDir) -> None:
    for rank in range(2):
        stalled(run, rank, 40, 20_000, where="host", spec=SPEC)
    stall = found(run)
    assert stall is not None
    assert stall.ranks == (0, 1)
    assert "on all ranks: " in analyze_run(run, query_accounting=False).analysis.verdict.statement


def test_a_stall_between_steps(run: RunDir) -> None:
    stalled(run, 1, 40, 20_000, where="gap", spec=SPEC)
    stalled(run, 0, 41, 20_000, where="comm", spec=SPEC)
    stall = found(run)
    assert stall is not None
    assert (stall.where, stall.step, stall.ranks) == ("between", 40, (1,))


def test_where_all_wait_nobody_is_blamed(run: RunDir) -> None:
    for rank in range(2):
        stalled(run, rank, 40, 20_000, where="comm", spec=SPEC)
    stall = found(run)
    assert stall is not None
    assert (stall.ranks, stall.waiting) == ((0, 1), True)


def test_a_step_that_was_timed_as_a_whole_has_a_length(run: RunDir) -> None:
    stalled(run, 1, 40, 20_000, where="whole", spec=SPEC)
    stalled(run, 0, 40, 20_000, where="comm", spec=SPEC)
    stall = found(run)
    assert stall is not None
    assert stall.ranks == (1,)


@pytest.mark.parametrize("where", ["host", "gap"])
def test_a_stall_beside_a_profiler_is_the_profilers(run: RunDir, where: str) -> None:
    stalled(run, 1, 40, 20_000, where=where, spec=SPEC)
    by_rank = read_steps(run).by_rank
    assert longest_stall(by_rank, but=range(38, 41)) is None
    assert longest_stall(by_rank) is not None
    assert longest_stall(by_rank, but=range(41, 45)) == longest_stall(by_rank)


def test_two_stalls_add_up(run: RunDir) -> None:
    for step in (20, 40):
        stalled(run, 1, step, 1_500, where="host", spec=SPEC)
        stalled(run, 0, step, 1_500, where="comm", spec=SPEC)
    stall = found(run)
    assert stall is not None
    assert stall.pieces == 2
    alone = 1_500 / (3_000 + SPEC.steps * 75)
    assert stall.share > 1.9 * alone


def test_a_start_and_what_is_frequent_are_no_stalls(run: RunDir) -> None:
    stalled(run, 1, 0, 20_000, where="host", spec=SPEC)
    assert found(run) is None
    for step in range(5, 60, 10):
        stalled(run, 1, step, 1_500, where="host", spec=SPEC)
    assert found(run) is None


def test_too_few_steps_tell_nothing(tmp_path) -> None:
    run = write_run(tmp_path, RunSpec(steps=FEWEST - 1, warmup=1))
    assert longest_stall(read_steps(run).by_rank) is None


def stop_of(run: RunDir, rank: int, step: int, *, part: float, state: str = "stopped") -> Stop:
    """A stop that covers `part` of a rank's step."""
    steps = read_steps(run).by_rank[rank]
    place = list(steps.column("global_step")).index(step)
    start, end = int(steps.column("wall_start_ns")[place]), int(steps.column("wall_end_ns")[place])
    return Stop(rank=rank, state=state, from_wall_ns=start, to_wall_ns=start + int(part * (end - start)))


@pytest.mark.parametrize(
    ("part", "ranks", "waiting"), [(0.9, (1,), False), (0.55, (1,), False), (0.3, (0, 1), True)]
)
def test_where_all_wait_the_kernel_tells_whose_process_stood(
    run: RunDir, part: float, ranks: tuple[int, ...], waiting: bool
) -> None:
    for rank in (0, 1):
        stalled(run, rank, 40, 3_000, where="comm", spec=SPEC)
    by_rank = read_steps(run).by_rank
    stall = longest_stall(by_rank, [stop_of(run, 1, 40, part=part), stop_of(run, 0, 20, part=1.0)])
    assert stall is not None
    assert (stall.step, stall.ranks, stall.waiting) == (40, ranks, waiting)
    assert stall.state == (None if waiting else "stopped")


def test_a_stop_of_a_rank_without_records_changes_nothing(run: RunDir) -> None:
    stalled(run, 1, 40, 3_000, where="host", spec=SPEC)
    stop = msgspec.structs.replace(stop_of(run, 1, 40, part=1.0), rank=7)
    by_rank = read_steps(run).by_rank
    assert longest_stall(by_rank, [stop]) == longest_stall(by_rank)
