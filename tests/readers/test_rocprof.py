"""rocprofv3: CSV of several versions, JSON, rocpd."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from aorta.artefacts.events import ABSENT, Kind, RangeRole
from aorta.errors import ArtefactError
from aorta.readers import rocprof, rocprof_json, rocprof_rocpd
from aorta.readers.traces import read_traces

SAMPLES = Path(__file__).parents[1] / "data" / "rocm"
HEADER_6 = (
    "Kind,Agent_Id,Queue_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,"
    "Start_Timestamp,End_Timestamp\n"
)


def test_kernel_trace_of_7() -> None:
    trace = rocprof.read_csv([SAMPLES / "kernel_trace.csv"])
    assert len(trace.gpu) == 9
    assert int(trace.gpu.start_ns[0]) == 1550151853029637  # more digits than a float keeps
    assert trace.gpu.device.tolist() == [4] * 9
    assert sorted(trace.gpu.stream.tolist()) == [1, 1, 1, 1, 2, 2, 3, 3, 4]
    assert trace.names[int(trace.gpu.name[0])].startswith("void addition_kernel<float>(float*, float const*")
    assert len(set(trace.gpu.shape.tolist())) == 1
    assert (trace.rank, trace.epoch_ns, trace.problems) == (None, None, ())


def test_kernel_trace_of_6(tmp_path: Path) -> None:
    path = tmp_path / "rank2_host_77_kernel_trace.csv"
    path.write_text(HEADER_6 + '"KERNEL_DISPATCH",4,3,1,1,16,"ncclDevKernel_Generic_1(x, y)",9,1000,1500\n')
    trace = rocprof.read_csv([path])
    assert (trace.gpu.device.tolist(), trace.gpu.stream.tolist()) == ([4], [3])
    assert trace.gpu.kind.tolist() == [Kind.COMMUNICATION]
    assert trace.collectives.op.tolist() == [ABSENT]  # the generic kernel does not tell
    assert (trace.rank, trace.rank_basis) == (2, "file name")


def test_names_with_unescaped_quotes_and_broken_lines(tmp_path: Path) -> None:
    path = tmp_path / "a_kernel_trace.csv"
    path.write_text(
        HEADER_6
        + '"KERNEL_DISPATCH",4,3,1,1,16,"f<"x, y">(int, "z")",9,1000,1500\n'
        + '"KERNEL_DISPATCH",4,3,1,2,16,"g",9,2000,nothing\n'
        + '"KERNEL_DISPATCH",4,3,1,3,16,"h",9,3000,2500\n'
        + '"KERNEL_DISPATCH",4,3,1,4,16,"",9,4000,4500\n'
        + '"KERNEL_DISPATCH",4,3,'
    )
    trace = rocprof.read_csv([path])
    assert trace.gpu.start_ns.tolist() == [1000, 4000]
    assert trace.names[int(trace.gpu.name[0])] == 'f<"x, y">(int, "z")'
    assert trace.gpu.kind.tolist() == [Kind.COMPUTE, Kind.UNCLASSIFIED]
    assert [p.reason for p in trace.problems] == [
        "1 event with a missing start or a negative duration left out",
        "2 lines of a_kernel_trace.csv not readable",
    ]


def test_the_files_of_one_process_are_one_trace(tmp_path: Path) -> None:
    names = [
        "rank0_n_5_kernel_trace.csv",
        "rank0_n_5_hip_api_trace.csv",
        "rank0_n_5_memory_copy_trace.csv",
        "rank0_n_5_rccl_api_trace.csv",
        "rank0_n_5_hsa_core_api_trace.csv",
        "rank0_n_5_hip_trace.csv",
    ]
    assert len({rocprof.group_of(tmp_path / name) for name in names}) == 1
    assert rocprof.group_of(tmp_path / "rank1_n_6_kernel_trace.csv") != rocprof.group_of(tmp_path / names[0])
    trace = rocprof.read_csv(
        [SAMPLES / name for name in ("kernel_trace.csv", "memory_copy_trace.csv", "hip_api_stats.csv")]
    )
    assert len(trace.gpu) == 9 + 4
    copies = trace.gpu.kind == Kind.COPY
    assert trace.gpu.device[copies].tolist() == [4, 4, 4, 4]  # the GPU's end of each copy


@pytest.mark.parametrize(
    ("name", "count", "role"),
    [
        ("hip_runtime_trace.csv", 8, RangeRole.API),
        ("rocpd-to-csv.csv", 13, RangeRole.API),
        ("marker_api_trace.csv", 3, RangeRole.OTHER),  # two of the five are marks without length
        ("rccl_trace.csv", 21, RangeRole.COLLECTIVE),
    ],
)
def test_traced_calls(name: str, count: int, role: RangeRole) -> None:
    trace = rocprof.read_csv([SAMPLES / name])
    assert len(trace.host) == count
    assert role in trace.host.role.tolist()


@pytest.mark.parametrize("name", ["hip_api_stats.csv", "kernel_names.csv"])
def test_statistics_and_counters_are_no_traces(name: str) -> None:
    with pytest.raises(ArtefactError, match="no rocprofv3 trace"):
        rocprof.read_csv([SAMPLES / name])


def tool_json(**records: object) -> dict[str, object]:
    return {
        "rocprofiler-sdk-tool": [
            {
                "metadata": {"pid": 5},
                "agents": [{"id": {"handle": 90}, "gpu_index": -1}, {"id": {"handle": 91}, "gpu_index": 0}],
                "kernel_symbols": [{"kernel_id": 8, "formatted_kernel_name": "ncclDevKernel_Generic_1(x)"}],
                "strings": {
                    "buffer_records": [
                        {"kind": "NONE", "operations": []},
                        {"kind": "RCCL_API", "operations": ["ncclAllReduce", "ncclBroadcast"]},
                        {"kind": "MEMORY_COPY", "operations": ["NONE", "HOST_TO_DEVICE"]},
                    ],
                    "marker_api": [{"key": 3, "value": "aorta.step"}],
                },
                "buffer_records": records,
            }
        ]
    }


def dispatch(kernel_id: int, start: int, end: int) -> dict[str, object]:
    info = {"agent_id": {"handle": 91}, "queue_id": {"handle": 4}, "kernel_id": kernel_id}
    return {
        "start_timestamp": start,
        "end_timestamp": end,
        "correlation_id": {"internal": 1},
        "dispatch_info": info,
    }


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "rank1_results.json"
    times = {"start_timestamp": 5, "end_timestamp": 9}
    content = tool_json(
        kernel_dispatch=[dispatch(8, 100, 200), dispatch(7, 300, 400)],
        memory_copy=[
            {
                **times,
                "kind": 2,
                "operation": 1,
                "src_agent_id": {"handle": 90},
                "dst_agent_id": {"handle": 91},
                "bytes": 64,
            }
        ],
        rccl_api=[{**times, "kind": 1, "operation": 1, "thread_id": 2}],
        marker_api=[{**times, "correlation_id": {"internal": 3}}],
    )
    path.write_text(json.dumps(content))
    (trace,) = rocprof_json.read(path)
    assert trace.gpu.kind.tolist() == [Kind.COPY, Kind.COMMUNICATION, Kind.UNCLASSIFIED]
    assert (trace.gpu.device.tolist(), trace.gpu.bytes.tolist()) == ([0, 0, 0], [64, ABSENT, ABSENT])
    assert trace.gpu.stream.tolist() == [ABSENT, 4, 4]
    assert sorted(trace.names[code] for code in trace.host.name.tolist()) == ["aorta.step", "ncclBroadcast"]
    assert set(trace.host.role.tolist()) == {RangeRole.STEP, RangeRole.COLLECTIVE}
    assert trace.rank == 1
    path.write_text(json.dumps(content)[:-40])
    with pytest.raises(ArtefactError, match="not whole rocprofv3 JSON"):
        rocprof_json.read(path)


def rocpd(path: Path, environments: dict[int, dict[str, str]]) -> Path:
    db = sqlite3.connect(path)
    sizes = ", ".join(f"{what}_{axis} INT" for what in ("grid", "workgroup") for axis in "xyz")
    # Real databases have views over suffixed tables; a reader cannot see the difference.
    db.execute(
        "CREATE TABLE kernels_x (pid INT, start INT, end INT, name TEXT, agent_type_index INT, stream_id INT,"
        f" queue_id INT, corr_id INT, {sizes})"
    )
    db.execute("CREATE VIEW kernels AS SELECT * FROM kernels_x")
    db.execute(
        "CREATE TABLE memory_copies (pid INT, start INT, end INT, name TEXT, src_agent_type TEXT,"
        " src_agent_type_index INT, dst_agent_type_index INT, stream_id INT, corr_id INT, size INT)"
    )
    db.execute(
        "CREATE TABLE regions (pid INT, start INT, end INT, name TEXT, category TEXT, tid INT,"
        " corr_id INT, extdata TEXT)"
    )
    db.execute("CREATE TABLE rocpd_info_process (pid INT, environment TEXT)")
    for pid, environment in environments.items():
        db.execute(f"INSERT INTO kernels_x VALUES ({pid},100,200,'gemm',{pid % 4},1,2,5,1,1,1,64,1,1)")
        db.execute(
            f"INSERT INTO memory_copies VALUES ({pid},10,20,'MEMORY_COPY_HOST_TO_DEVICE','CPU',0,1,0,4,64)"
        )
        db.execute(f"INSERT INTO regions VALUES ({pid},1,500,'roctxRangePushA','MARKER_CORE_API',9,3,?)", (
            json.dumps({"message": "aorta.step"}),
        ))  # fmt: skip
        db.execute("INSERT INTO rocpd_info_process VALUES (?,?)", (pid, json.dumps(environment)))
    db.commit()
    db.close()
    return path


def test_rocpd(tmp_path: Path) -> None:
    environments = {41: {"RANK": "1", "SLURM_PROCID": "0", "TOKEN": "secret"}, 42: {"SLURM_PROCID": "0"}}
    traces = rocprof_rocpd.read(rocpd(tmp_path / "a.db", environments))
    assert [(t.rank, t.rank_basis) for t in traces] == [
        (1, "RANK of its environment"),
        (0, "SLURM_PROCID of its environment"),
    ]
    assert traces[0].gpu.start_ns.tolist() == [10, 100]
    assert traces[0].gpu.kind.tolist() == [Kind.COPY, Kind.COMPUTE]
    assert traces[0].gpu.bytes.tolist() == [64, ABSENT]
    assert traces[0].host.role.tolist() == [RangeRole.STEP]
    assert "secret" not in repr(traces)


def test_rocpd_rank_from_the_name_only_for_one_process(tmp_path: Path) -> None:
    assert [t.rank for t in rocprof_rocpd.read(rocpd(tmp_path / "rank3.db", {41: {}}))] == [3]
    assert [t.rank for t in rocprof_rocpd.read(rocpd(tmp_path / "rank4.db", {41: {}, 42: {}}))] == [
        None,
        None,
    ]


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (x INT)")
    db.commit()
    db.close()
    with pytest.raises(ArtefactError, match="no view `kernels`"):
        rocprof_rocpd.read(path)


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**70])
def test_ids_of_64_bits_cost_nothing(tmp_path: Path, number: int) -> None:
    path = tmp_path / "rank0_kernel_trace.csv"
    row = '"KERNEL_DISPATCH",{0},{0},{0},1,16,"k",{0},{1},{2}\n'
    path.write_text(HEADER_6 + row.format(number, 1000, 1500) + row.format(3, 2000, 2500))
    trace = rocprof.read_csv([path])
    assert trace.gpu.start_ns.tolist() == [1000, 2000]
    assert trace.gpu.correlation.tolist()[1] == 3
    assert trace.problems == ()


def test_a_time_of_more_than_63_bits_costs_its_event(tmp_path: Path) -> None:
    path = tmp_path / "rank0_kernel_trace.csv"
    row = '"KERNEL_DISPATCH",1,1,1,1,16,"k",1,{},{}\n'
    path.write_text(HEADER_6 + row.format(1000, 2**64 - 1) + row.format(2000, 2500))
    trace = rocprof.read_csv([path])
    assert trace.gpu.start_ns.tolist() == [2000]
    assert [problem.reason for problem in trace.problems] == ["1 event with a time beyond 64 bits left out"]


@pytest.mark.parametrize("value", ["N/A", "", "nan", "inf", "0x4d", "7.0"])
def test_values_of_a_line_that_nobody_needs_cost_nothing(tmp_path: Path, value: str) -> None:
    path = tmp_path / "rank0_kernel_trace.csv"
    row = '"KERNEL_DISPATCH",{0},{0},{0},{0},{0},"k",{0},{1},{2}\n'
    path.write_text(HEADER_6 + row.format(value, 1000, 1500) + row.format(3, 2000, 2500))
    trace = rocprof.read_csv([path])
    assert trace.gpu.start_ns.tolist() == [1000, 2000]
    assert trace.gpu.correlation.tolist() == [7 if value == "7.0" else ABSENT, 3]
    assert trace.problems == ()


@pytest.mark.parametrize("value", [None, "n/a", float("nan"), float("inf"), "7", 7.0])
def test_values_of_a_record_that_nobody_needs_cost_nothing(tmp_path: Path, value: object) -> None:
    path = tmp_path / "rank0_results.json"
    odd = dispatch(8, 100, 200) | {"thread_id": value, "unknown": value}
    odd["dispatch_info"] = {**odd["dispatch_info"], "grid_size": {"x": value}}  # type: ignore[dict-item]
    path.write_text(json.dumps(tool_json(kernel_dispatch=[odd, dispatch(8, 300, 400)])))
    (trace,) = rocprof_json.read(path)
    assert trace.gpu.start_ns.tolist() == [100, 300]
    assert trace.problems == ()


def test_a_record_without_a_start_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "rank0_results.json"
    late = dispatch(8, 300, 400) | {"start_timestamp": "soon"}
    broken = dispatch(8, 500, 600) | {"dispatch_info": 3}
    path.write_text(json.dumps(tool_json(kernel_dispatch=[dispatch(8, 100, 200), late, broken])))
    (trace,) = rocprof_json.read(path)
    assert trace.gpu.start_ns.tolist() == [100]
    reasons = [problem.reason for problem in trace.problems]
    assert reasons == [
        "1 event with a missing start or a negative duration left out",
        "1 record not readable",
    ]


@pytest.mark.parametrize(
    "text", ["{", '{"rocprofiler-sdk-tool": 3}', '{"rocprofiler-sdk-tool": [NaN]', "[NaN]"]
)
def test_json_of_nothing_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank0_results.json"
    path.write_text(text)
    with pytest.raises(ArtefactError, match="not whole rocprofv3 JSON"):
        rocprof_json.read(path)


def test_processes_of_one_file_are_ranks_by_their_gpus(tmp_path: Path) -> None:
    first, second = (tool_json(kernel_dispatch=[dispatch(8, 100, 200)])["rocprofiler-sdk-tool"] for _ in "ab")
    second[0]["agents"][1]["gpu_index"] = 1  # type: ignore[index]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [*second, *first]}))  # type: ignore[misc]
    found = read_traces([path]).traces
    assert [(trace.rank, trace.gpu.device.tolist()) for trace in found] == [(0, [0]), (1, [1])]
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [*first, *first]}))  # type: ignore[misc]
    with pytest.raises(ArtefactError, match="shows its rank"):
        read_traces([path])


@pytest.mark.parametrize(("start", "end"), [("1000.0", "1500.0"), ("1e3", "1.5E3"), (" 1000 ", "1500")])
def test_times_that_another_program_wrote_again_are_read(tmp_path: Path, start: str, end: str) -> None:
    path = tmp_path / "rank0_kernel_trace.csv"
    row = '"KERNEL_DISPATCH",1,1,1,1,16,"k",1,{},{}\n'
    path.write_text("\ufeff" + HEADER_6 + row.format(start, end) + row.format("soon", end))
    trace = rocprof.read_csv([path])
    assert (trace.gpu.start_ns.tolist(), trace.gpu.end_ns.tolist()) == ([1000], [1500])
    assert [p.reason for p in trace.problems] == ["1 line of rank0_kernel_trace.csv not readable"]
