"""Raw traces to verdicts: what was made slow is named, with its ranks, and what cannot be told is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from aorta.artefacts.analysis import Analysis, Finding, RuleMeasurement
from aorta.artefacts.events import Trace
from aorta.artefacts.reduction import TraceSummary
from aorta.artefacts.traced import QueueDepth
from aorta.cli import group
from aorta.commands._traces import analyze_traces
from aorta.diagnosis.analyse import analyse_traces
from aorta.errors import ArtefactError
from aorta.metrics.trace_capture import capture
from aorta.metrics.trace_notes import notes_of
from aorta.metrics.trace_summary import summarise
from aorta.readers.traces import read_traces
from tests.support.kineto import event, write
from tests.support.traced import BASE_NS, OPTIMIZER, ORIGIN, Job, Rank, write_job

# own 1000 on every rank, transfer 200 and OPTIMIZER 100: a step of 1300, of which 200 / 1300 = 15 % exposed.
BALANCED = {rank: Rank() for rank in range(4)}


def analysed(folder: Path, job: Job) -> Analysis:
    return analyze_traces([write_job(folder, job)])


def verdict(found: Analysis) -> tuple[str, list[int]]:
    return found.verdict.kind, found.verdict.ranks


def measured(found: Analysis, kind: str) -> RuleMeasurement:
    return next(item for item in found.measured if item.kind == kind)


def finding(found: Analysis, kind: str) -> Finding:
    return next(item for item in found.findings if item.kind == kind)


def test_balanced_ranks_are_healthy_and_their_parts_sum(tmp_path: Path) -> None:
    found = analysed(tmp_path, Job(BALANCED))
    assert verdict(found) == ("healthy", [])
    assert found.device == "cuda"
    assert found.breakdown.steps == 6
    for row in found.breakdown.per_rank:
        assert row.step_ms == pytest.approx(1.3)
        assert row.compute_ms == pytest.approx(1.0 + OPTIMIZER / 1000)
        assert row.exposed_comm_ms == pytest.approx(0.2)
        assert row.wait_ms == 0.0
        assert row.transfer_ms == pytest.approx(0.2)
        parts = row.compute_ms + row.exposed_comm_ms + (row.exposed_copy_ms or 0) + row.data_wait_ms
        assert parts + row.host_ms == pytest.approx(row.step_ms)


@pytest.mark.parametrize("late", [0, 2, 3])
@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("ahead", [0, 2000])
def test_the_rank_that_computes_longer_is_the_straggler(
    tmp_path: Path, late: int, metadata: bool, ahead: int
) -> None:
    # Hosts run ahead by up to more than a step, each by another amount, and clocks differ.
    ranks = {
        rank: Rank(
            compute=1600 if rank == late else 1000, ahead=ahead + 150 * rank if ahead else 0, clock=777 * rank
        )
        for rank in range(4)
    }
    found = analysed(tmp_path, Job(ranks, metadata=metadata))
    assert verdict(found) == ("straggler", [late])
    # The others wait 1600 - 1000 of a step of 1600 + 200 + 100.
    assert measured(found, "straggler").value == pytest.approx(100 * 600 / 1900)
    assert [(item.rank, item.cause) for item in found.blame] == [(late, "compute")]
    assert found.blame[0].lost_ms_per_step == pytest.approx(3 * 0.6)
    assert finding(found, "communication").symptom_of == "straggler"


def test_a_rank_whose_host_is_late_is_a_straggler_by_its_host(tmp_path: Path) -> None:
    found = analysed(tmp_path, Job({**BALANCED, 1: Rank(host=600)}))
    assert verdict(found) == ("straggler", [1])
    assert "spends more time on host work" in finding(found, "straggler").cause
    assert [(item.rank, item.cause) for item in found.blame] == [(1, "host")]


def test_the_slow_loader_of_one_rank_is_named_not_the_communication_of_the_others(tmp_path: Path) -> None:
    found = analysed(tmp_path, Job({**BALANCED, 1: Rank(loader=1500)}))
    assert verdict(found) == ("data_loading", [1])
    # 1500 of 1500 + 1000 + 200 + 100, on rank 1 itself or waiting for it.
    assert measured(found, "data_loading").value == pytest.approx(100 * 1500 / 2800)
    assert finding(found, "communication").symptom_of == "data_loading"


def test_a_loader_that_no_trace_marks_is_not_a_measured_zero(tmp_path: Path) -> None:
    unmarked = analysed(tmp_path / "a", Job({rank: Rank(host=65) for rank in range(2)}, transfer=135))
    value = measured(unmarked, "data_loading")
    assert value.value is None
    # 65 of 65 + 1000 + 135 + 100.
    assert "no trace marks a loader; it is part of host work, which takes at most 5.0 % of a step" in (
        value.reason or ""
    )
    assert verdict(unmarked) == ("healthy", [])
    marked = analysed(tmp_path / "b", Job({0: Rank(loader=13), 1: Rank(loader=13)}, transfer=187))
    assert measured(marked, "data_loading").value == pytest.approx(100 * 13 / 1300)


def test_slow_loaders_everywhere_are_of_all_ranks(tmp_path: Path) -> None:
    ranks = {0: Rank(loader=2500), 1: Rank(loader=1200)}
    # 1200 is less than half of 2500, but a third of the step is more than the threshold.
    assert verdict(analysed(tmp_path, Job(ranks, transfer=0))) == ("data_loading", [])


def test_a_slow_exchange_is_communication(tmp_path: Path) -> None:
    found = analysed(tmp_path, Job(BALANCED, transfer=900))
    assert verdict(found) == ("communication", [])
    # 900 of 1000 + 900 + 100, and nobody waits.
    assert measured(found, "communication").value == pytest.approx(45.0)
    assert measured(found, "straggler").value == 0.0


def test_short_kernels_on_every_rank_are_launch_bound(tmp_path: Path) -> None:
    # 40 kernels of 5 µs, 30 apart: 39 · 30 of 200 + 39 · 30 + 100 + 100 is the host's.
    ranks = {rank: Rank(compute=200, pieces=40, gap=30) for rank in range(2)}
    found = analysed(tmp_path, Job(ranks, transfer=100))
    assert verdict(found) == ("host_bound", [])
    assert measured(found, "host_bound").value == pytest.approx(100 * 1170 / 1570)
    assert finding(found, "host_bound").cause.startswith("launch-bound")
    assert finding(found, "gpu_underutilization").symptom_of == "host_bound"


def test_long_pauses_of_every_host_are_not_launch_bound(tmp_path: Path) -> None:
    found = analysed(tmp_path, Job({rank: Rank(host=1500) for rank in range(2)}))
    assert verdict(found) == ("host_bound", [])
    assert "launch-bound" not in finding(found, "host_bound").cause
    assert "a loader, which no trace marks" in finding(found, "host_bound").cause


def test_case_16_ranks_come_from_the_traces_not_from_the_folders_name(tmp_path: Path) -> None:
    found = analysed(tmp_path / "data_rank1", Job({**BALANCED, 3: Rank(compute=1600)}))
    assert [row.rank for row in found.breakdown.per_rank] == [0, 1, 2, 3]
    assert verdict(found) == ("straggler", [3])


def test_waiting_for_a_rank_without_a_trace_is_not_called_communication(tmp_path: Path) -> None:
    found = analysed(tmp_path, Job({**BALANCED, 2: Rank(compute=2000)}, absent=[2]))
    assert verdict(found) == ("insufficient_data", [])
    assert found.findings[0].evidence == {"reasons": ["ranks_missing"]}
    assert "communication" in [item.kind for item in found.findings]
    assert measured(found, "straggler").value is None
    assert [item.reason for item in found.data_quality.problems] == ["rank 2 left no usable traces"]


def test_a_slow_loader_is_seen_without_the_other_ranks(tmp_path: Path) -> None:
    found = analysed(tmp_path, Job({0: Rank(loader=1500), 1: Rank()}, absent=[1]))
    assert verdict(found) == ("data_loading", [0])


def test_nothing_passes_but_a_rank_is_missing(tmp_path: Path) -> None:
    assert verdict(analysed(tmp_path, Job(BALANCED, absent=[3]))) == ("insufficient_data", [])


def test_collectives_without_kernels_are_not_classified_rather_than_zero(tmp_path: Path) -> None:
    found = analysed(tmp_path, Job(BALANCED, communication=None))
    assert verdict(found) == ("insufficient_data", [])
    assert found.breakdown.per_rank == []
    assert measured(found, "communication").value is None
    assert all("not classified" in item.reason for item in found.data_quality.problems)


@pytest.mark.parametrize(("steps", "kind"), [(2, "insufficient_data"), (3, "healthy")])
def test_two_whole_steps_prove_nothing(tmp_path: Path, steps: int, kind: str) -> None:
    assert analysed(tmp_path, Job(BALANCED, steps=steps)).verdict.kind == kind


def test_one_rank_alone_that_exchanges_nothing_is_enough(tmp_path: Path) -> None:
    assert verdict(analysed(tmp_path, Job({0: Rank()}, transfer=0))) == ("healthy", [])


def of_traces(traces: tuple[Trace, ...]) -> Analysis:
    return analyse_traces([summarise(trace) for trace in traces])


def as_format(folder: Path, job: Job, name: str) -> tuple[Trace, ...]:
    return tuple(replace(trace, format=name) for trace in read_traces([write_job(folder, job)]).traces)


def test_of_two_formats_the_one_with_more_steps_counts_and_a_contradiction_is_said(tmp_path: Path) -> None:
    late = Job({**BALANCED, 2: Rank(compute=1600)}, steps=9)
    short = as_format(tmp_path / "a", Job(BALANCED), "kineto")
    long, same = (as_format(tmp_path / name, late, "nsys") for name in ("b", "c"))
    agreeing = tuple(replace(trace, format="kineto") for trace in same)
    found = of_traces((*short, *long))
    assert verdict(found) == ("straggler", [2])
    assert found.breakdown.steps == 9
    said = "the breakdown uses nsys (4 ranks, 9 whole steps), not kineto (4 ranks, 6 whole steps)"
    assert found.data_quality.notes[0].startswith(said)
    assert "contradict each other: kineto alone gives healthy" in found.data_quality.notes[0]
    notes = of_traces((*long, *agreeing)).data_quality.notes
    assert "the breakdown uses kineto" in notes[0]
    assert not any("contradict" in note for note in notes)


@pytest.mark.parametrize(("ranks", "kind"), [((0, 1, 2, 3), "healthy"), ((1, 2, 3), "insufficient_data")])
def test_ranks_from_0_count_as_all_where_no_trace_records_how_many(
    tmp_path: Path, ranks: tuple[int, ...], kind: str
) -> None:
    traces = as_format(tmp_path, Job(BALANCED), "nsys")
    found = of_traces(tuple(replace(trace, world_size=None) for trace in traces if trace.rank in ranks))
    assert found.verdict.kind == kind
    assert any("do not say how many ranks" in note for note in found.data_quality.notes)


def test_a_trace_without_gpu_work_costs_only_itself(tmp_path: Path) -> None:
    write_job(tmp_path, Job(BALANCED, world_size=5))
    cpu = [event("cpu_op", "aten::add", 1, 2), event("user_annotation", "ProfilerStep#1", 0, 9)]
    write(tmp_path / "rank4.json", cpu, distributedInfo={"rank": 4, "world_size": 5})
    found = analyze_traces([tmp_path])
    assert found.data_quality.ranks_expected == 5
    assert (found.data_quality.ranks_seen, found.verdict.kind) == (4, "insufficient_data")


def test_groups_that_traces_do_not_name_are_not_taken_for_one(tmp_path: Path) -> None:
    """Ranks 0 and 1 exchange with each other, and so do 2 and 3, whose steps are longer."""
    write_job(tmp_path, Job({0: Rank(), 1: Rank()}, world_size=4))
    found = analysed(tmp_path, Job({2: Rank(compute=1700), 3: Rank(compute=1700)}, world_size=4))
    assert verdict(found) == ("insufficient_data", [])
    assert [item.what.partition(":")[0] for item in found.missing] == [
        "waiting for a slower rank could not be measured"
    ]
    assert found.blame == []
    assert "several groups" in (measured(found, "straggler").reason or "")


def test_traces_without_gpu_work_alone(tmp_path: Path) -> None:
    write(tmp_path / "t.json", [event("cpu_op", "aten::add", 1, 2)])
    found = analyze_traces([tmp_path])
    assert verdict(found) == ("insufficient_data", [])
    assert found.findings[0].evidence == {"reasons": ["no_step_records"]}
    assert found.device is None, "no GPU was seen, which need not mean that there is none"


def nvidia_smi(folder: Path, used_mib: int, *, hours: int = 0, gpus: int = 4, seconds: int = 60) -> None:
    """A sample a second around the capture; the clock is `hours` ahead of UTC, memory is of 1000 MiB."""
    from datetime import datetime, timedelta, timezone

    middle = datetime.fromtimestamp((BASE_NS // 1000 + ORIGIN) / 1e6, tz=timezone.utc)
    lines = ["timestamp, index, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB]"]
    for second in range(-seconds // 2, seconds // 2):
        at = middle + timedelta(hours=hours, seconds=second)
        stamp = at.strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
        lines += [f"{stamp}, {gpu}, GPU-{gpu}, 90 %, {used_mib} MiB, 1000 MiB" for gpu in range(gpus)]
    (folder / "smi.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("hours", [0, -7])
@pytest.mark.parametrize(("used", "kind"), [(950, "memory_pressure"), (0, "healthy")])
def test_memory_of_samples_inside_the_capture(tmp_path: Path, hours: int, used: int, kind: str) -> None:
    nvidia_smi(tmp_path, used, hours=hours)
    found = analysed(tmp_path, Job({0: Rank(compute=400_000), 1: Rank(compute=400_000)}))
    assert found.verdict.kind == "healthy"  # 4 GPUs of which 2 are the job's: nothing is taken
    assert any("samples show 4 GPUs, the traces 2 ranks" in note for note in found.data_quality.notes)
    nvidia_smi(tmp_path, used, hours=hours, gpus=2)
    found = analysed(tmp_path, Job({0: Rank(compute=400_000), 1: Rank(compute=400_000)}))
    assert found.verdict.kind == kind
    assert measured(found, "memory_pressure").value == used / 10


def summaries(folder: Path) -> list[TraceSummary]:
    """Of two ranks without idle time."""
    files = sorted(write_job(folder, Job({0: Rank(), 1: Rank()})).iterdir())
    return [summarise(trace) for trace in read_traces(files).traces]


@pytest.mark.parametrize(
    ("gaps_ns", "empty"), [((0, 0), (1.0 + 0.2) / 2), ((1, 3), (1.0 + 3 * 0.2) / 4), ((5, 0), 1.0)]
)
def test_the_queues_of_the_gpus_that_idle_tell_how_launches_come(
    tmp_path: Path, gaps_ns: tuple[int, int], empty: float
) -> None:
    made = [
        msgspec.structs.replace(
            item,
            queue_depth=QueueDepth(launches=10, median=0.0, p10=0.0, empty_share=share),
            steps=[msgspec.structs.replace(step, short_gaps_ns=0, long_gaps_ns=ns) for step in item.steps],
        )
        for item, ns, share in zip(summaries(tmp_path), gaps_ns, (1.0, 0.2), strict=True)
    ]
    idle = capture(made).idle()
    assert idle is not None
    assert idle.empty_share == pytest.approx(empty)
    without = capture([msgspec.structs.replace(item, queue_depth=None) for item in made]).idle()
    assert without is not None
    assert without.empty_share is None


@pytest.mark.parametrize(
    ("bases", "note"),
    [
        (("ranges on the host, on the GPU from a to b",) * 2, "ranges on the host, on the GPU from a to b"),
        (
            (
                "ranges, on the GPU from a to b",
                "ranges; without the last step, which the capture cut short, on the GPU from a to b",
            ),
            "ranges, on the GPU from a to b; of rank 1: without the last step, which the capture cut short",
        ),
        (("ranges", "the whole capture"), "of rank 0: ranges; of rank 1: the whole capture"),
    ],
)
def test_what_steps_are_is_one_note_with_the_ranks_that_it_is_of(
    tmp_path: Path, bases: tuple[str, str], note: str
) -> None:
    found = capture(summaries(tmp_path))
    work = {
        rank: replace(item, steps=replace(item.steps, basis=basis))
        for (rank, item), basis in zip(found.work.items(), bases, strict=True)
    }
    said = notes_of(replace(found, work=work), "no charges", 2)
    assert [text for text in said if text.startswith("steps are")] == [f"steps are {note}"]


def test_samples_that_no_zone_puts_beside_the_capture_are_not_used(tmp_path: Path) -> None:
    nvidia_smi(tmp_path, 950, hours=24)
    found = analysed(tmp_path, Job(BALANCED))
    assert found.verdict.kind == "healthy"
    assert measured(found, "memory_pressure").value is None
    assert any("smi.csv is not used" in note for note in found.data_quality.notes)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(group, ["analyze", *words])


def test_the_command_takes_files_and_prints_json_alone(tmp_path: Path) -> None:
    write_job(tmp_path / "a", Job({**BALANCED, 2: Rank(compute=1600)}), suffix=".json.gz")
    result = invoke(*map(str, sorted((tmp_path / "a").iterdir())), "--json", "-")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    assert (content["verdict"]["kind"], content["verdict"]["ranks"]) == ("straggler", [2])
    assert result.stderr.startswith("straggler: ")


def test_the_command_prints_a_report_and_writes_beside_no_trace(tmp_path: Path) -> None:
    write_job(tmp_path / "a", Job(BALANCED))
    before = sorted((tmp_path / "a").iterdir())
    result = invoke(str(tmp_path / "a"), "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("healthy: ")
    assert sorted((tmp_path / "a").iterdir()) == before
    assert json.loads((tmp_path / "out.json").read_text())["verdict"]["kind"] == "healthy"


def test_a_path_that_is_nothing_is_refused(tmp_path: Path) -> None:
    result = invoke(str(tmp_path / "no"))
    assert isinstance(result.exception, ArtefactError)
    assert "does not exist" in result.exception.message
    assert "or traces" in result.exception.hint


@pytest.mark.parametrize(
    ("nelems", "code"), [(8_000_000, "slow_transport"), (4_000_000_000, None), (None, None)]
)
def test_the_sizes_of_traced_collectives_tell_a_slow_transport(
    tmp_path: Path, nelems: int | None, code: str | None
) -> None:
    """32 MB in 30 ms over 4 ranks: 32/30 × 2 × 3/4 = 1.6 GB/s of bus bandwidth, as sockets give."""
    write_job(tmp_path, Job(BALANCED, transfer=30_000))
    for path in tmp_path.iterdir():
        content = json.loads(path.read_text())
        for one in content["traceEvents"]:
            if "nccl" in one["name"] and nelems is not None:
                one["args"] |= {
                    "Collective name": "allreduce",
                    "In msg nelems": nelems,
                    "Out msg nelems": nelems,
                    "Group size": 4,
                    "dtype": "Float",
                }
        path.write_text(json.dumps(content))
    found = analyze_traces([tmp_path])
    assert found.verdict.kind == "communication"
    first = found.findings[0]
    assert (first.sub_cause == "slow_transport") == (code is not None)
    assert any("NCCL_DEBUG=INFO" in action for action in first.actions) == (code is not None)
    if code:
        rate = first.evidence["bus_gb_per_s"]
        assert rate == pytest.approx(32e6 / 30e6 * 1.5, rel=0.1)
        # PCIe carries 12 GB/s and no link more than 900: a transfer neither stays as it is nor vanishes.
        step, transfer = first.evidence["step_ms"], first.evidence["transfer_and_late_exchanges_ms"]
        low, high = (step - transfer * (1 - rate / best) for best in (12.0, 900.0))
        exposed = first.evidence["exposed_comm_ms"]
        assert first.estimated_speedup.low == pytest.approx(step / low)
        assert first.estimated_speedup.high == pytest.approx(step / (high - (exposed - transfer)))
