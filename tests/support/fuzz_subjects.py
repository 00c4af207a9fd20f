"""What is fuzzed: traces and samples of a folder, and one of each artefact that aorta itself writes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pandas as pd

from aorta.artefacts.events import Trace
from aorta.artefacts.io import append_line, read_json, write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import MonitorStatus, NodeInfo, NodeStatus, RunStatus, Session, SubmittedJob
from aorta.artefacts.samples import (
    GpuSample,
    parse_amd_smi_json,
    parse_nvidia_smi_csv,
    parse_rocm_smi_json,
)
from aorta.artefacts.submissions import SubmissionDir
from aorta.artefacts.sweep import Sweep, SweepPoint
from aorta.config.load import load_config
from aorta.diagnosis.analyse_run import analyse
from aorta.launch.markers import read_markers
from aorta.launch.submitted import read_jobs, read_sweep
from aorta.metrics.trace_summary import REDUCER
from aorta.readers.detect import detect
from aorta.readers.run import RunData, read_run
from aorta.readers.run_traces import read_run_traces, reduce_run
from aorta.readers.sacct import FIELDS, fetch_accounting, summary_text
from aorta.readers.sample_files import find_samples
from aorta.readers.sample_tables import frame_of
from aorta.readers.traces import read_traces
from aorta.report.run import run_text
from tests.support.fuzz import Reading, Subject, numbered
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import Job, Rank, write_job

# --- traces and samples ---------------------------------------------------------------------------------


def read_trace(path: Path) -> Reading:
    """Every event of a trace: its times, place and name."""
    found = read_traces([path], workers=1)
    rows = [row for trace in found.traces for row in _events(trace)]
    return Reading(numbered(rows), tuple(problem.reason for problem in found.problems))


def _events(trace: Trace) -> Iterator[object]:
    names = (*trace.names, None)  # a name that is absent has the code -1
    gpu, host = trace.gpu, trace.host
    for start, end, stream, name, size in zip(
        *(column.tolist() for column in (gpu.start_ns, gpu.end_ns, gpu.stream, gpu.name, gpu.bytes)),
        strict=True,
    ):
        yield ("gpu", start, end, stream, names[name], size)
    for start, end, lane, name in zip(
        *(column.tolist() for column in (host.start_ns, host.end_ns, host.lane, host.name)), strict=True
    ):
        yield ("host", start, end, lane, names[name])


def read_samples(path: Path) -> Reading:
    """Every sample of a monitor's or nvidia-smi's CSV."""
    files, problems = find_samples([path])
    rows = [row for file in files for row in _table(frame_of(file.table))]
    # A file that is no sample file at all is left out by the search, which the caller shows as nothing found.
    missing = () if files or problems else ("no samples in it",)
    return Reading(numbered(rows), (*(problem.reason for problem in problems), *missing))


def _table(table: pd.DataFrame | None) -> list[object]:
    if table is None:
        return []
    # A column without gaps holds integers, one with a gap floats: as numbers they are the same.
    return [tuple("" if pd.isna(cell) else cell for cell in row) for row in table.itertuples(index=False)]


def folder_subjects(paths: Iterable[Path]) -> list[Subject]:
    """The traces and sample files among files and below folders."""
    files: dict[Path, None] = {}
    for path in paths:
        below = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
        files.update(dict.fromkeys(below))
    found = []
    for path in files:
        kind = detect(path)
        if kind is not None and kind != "nsys-report":
            found.append(Subject(str(path), path, read_trace, lines=kind == "rocprof-csv"))
        elif path.suffix == ".csv" and find_samples([path])[0]:
            found.append(Subject(str(path), path, read_samples, lines=True))
    return found


# --- what aorta writes ----------------------------------------------------------------------------------

LINED = (".jsonl", ".csv", ".txt", ".yaml")


def run_subjects(folder: Path) -> list[Subject]:
    """Every file of a small run, read in its place in a copy of the run."""
    spec = RunSpec(nodes=2, ranks_per_node=1, steps=24, warmup=4, device="cuda", monitor_interval_s=0.5)
    run = write_run(folder / "results", spec)
    run.sacct_summary.write_text(summary_text(_accounting_rows(spec.job_id)))
    # Read by nobody: whatever is in it, the analysis is the same.
    write_json(run.injected, {"seed": 1, "delay_ms": {"0": [12.5, 12.5, 0.0]}})
    read_run(run, query_accounting=False)  # merges the monitors' files
    subjects = []
    for path in sorted(run.root.rglob("*")):
        if path.is_file() and path.name != "job_metadata.txt":
            inside = path.relative_to(run.root)
            subjects.append(
                Subject(f"run/{inside}", path, _run_reader(run.root, inside), lines=path.suffix in LINED)
            )
    return subjects


def _accounting_rows(job_id: str) -> list[dict[str, str]]:
    start = ("2025-06-15T15:06:40", "2025-06-15T15:07:40")
    job = (
        job_id,
        "COMPLETED",
        "0:0",
        "00:01:00",
        "2",
        "",
        "node[1-2]",
        "",
        "16000M",
        "8",
        "00:02:00",
        "00:30:00",
        *start,
    )
    step = (f"{job_id}.0", *job[1:5], "2", "node[1-2]", "1947276K", *job[8:])
    return [dict(zip(FIELDS, row, strict=True)) for row in (job, step)]


def _run_reader(root: Path, inside: Path) -> Callable[[Path], Reading]:
    def read(path: Path) -> Reading:
        place = path.parent / "results" / root.parent.name / root.name
        place.parent.mkdir(parents=True)
        shutil.copytree(root, place)
        shutil.copyfile(path, place / inside)
        data = read_run(RunDir(place), query_accounting=False)
        run_text(analyse(data))
        return Reading(numbered(_run_rows(data)), (*(p.reason for p in data.problems), *_gone(data)))

    return read


def _run_rows(data: RunData) -> list[object]:
    """What was read of a run, record by record; of configuration and manifest, each key."""
    rows: list[object] = [
        (rank, msgspec.json.encode(step)) for rank, steps in data.records.by_rank.items() for step in steps
    ]
    rows += [*_table(data.gpu), *_table(data.cpu)]
    rows += [tuple(row.items()) for attempt in data.accounting.attempts for row in attempt]
    account = data.account
    rows += [
        (kind, index, msgspec.json.encode(value))
        for kind, records in (
            ("info", account.infos),
            ("monitor", account.monitors),
        )
        for index, value in records.items()
    ]
    # Of a configuration that is said to be cut, the last value may be anything.
    doubtful = any(problem.file == data.run.config.name for problem in data.problems)
    rows += [("config", msgspec.json.encode(account.config))] if account.config and not doubtful else []
    rows += [("manifest", msgspec.json.encode(account.manifest))] if account.manifest else []
    return rows


def _gone(data: RunData) -> tuple[str, ...]:
    """Nodes whose marker is not there, which the status tells instead of a problem."""
    return (
        tuple(f"no marker of node{index}" for index in data.account.status.nodes_missing)
        if data.account.status
        else ()
    )


def document_subjects(folder: Path) -> list[Subject]:
    """What is read outside a run's analysis: submissions, sweeps, sessions, markers, configurations."""
    folder.mkdir(parents=True, exist_ok=True)
    submission = SubmissionDir(folder / "submission")
    for number in range(60):
        job = SubmittedJob(
            job_id=str(700 + number),
            scenario="2node",
            nodes=2,
            run_dir=f"/scratch/2node/run_{700 + number}",
            submitted_wall_ns=1_750_000_000_000_000_000 + number,
            executor="slurm",
        )
        append_line(submission.jobs, msgspec.json.encode(job).decode())
    points = [
        SweepPoint(
            scenario="1node",
            nodes=1,
            task=i,
            values={"training.batch_size": str(i)},
            repeat=1,
            job_id=f"9_{i}",
        )
        for i in range(40)
    ]
    sweep = Sweep(
        keys={"training.batch_size": [str(i) for i in range(40)]},
        repeats=1,
        scaling=None,
        global_batch=None,
        executor="slurm",
        points=points,
    )
    write_json(submission.sweep, sweep)
    session = folder / "session.json"
    write_json(session, Session(attempt=0, token="t" * 32, stage="start", first_rank=list(range(0, 4096, 8))))
    config = folder / "user.yaml"
    shutil.copyfile(Path(__file__).parents[2] / "config" / "default.yaml", config)
    return [
        Subject("jobs.jsonl", submission.jobs, _jobs, lines=True),
        Subject("sweep.json", submission.sweep, _sweep),
        Subject("session.json", session, _record(Session)),
        *(
            Subject(f"node record {kind.__name__}", _written(folder, kind), _record(kind))
            for kind in (NodeInfo, NodeStatus, RunStatus, MonitorStatus)
        ),
        Subject("marker", _written(folder, NodeStatus), _marker),
        Subject("configuration", config, _config, lines=True),
    ]


def _written(folder: Path, kind: type) -> Path:
    """A record of this kind as a run has it."""
    run = folder / "written"
    if not run.exists():
        write_run(run, RunSpec(nodes=2, ranks_per_node=1, steps=12, warmup=2))
    names = {"NodeInfo": "info", "NodeStatus": "status", "MonitorStatus": "monitor_status"}
    root = run / "2node" / "run_101"
    return (
        root / "status.json"
        if kind is RunStatus
        else root / "nodes" / "node0" / f"{names[kind.__name__]}.json"
    )


def _jobs(path: Path) -> Reading:
    said: list[str] = []
    jobs = read_jobs(SubmissionDir(path.parent), said.append)
    return Reading(numbered([msgspec.json.encode(job) for job in jobs]), tuple(said))


def _sweep(path: Path) -> Reading:
    return Reading(numbered([msgspec.json.encode(read_sweep(SubmissionDir(path.parent)))]), ())


def _record(kind: type) -> Callable[[Path], Reading]:
    return lambda path: Reading(numbered([msgspec.json.encode(read_json(path, kind))]), ())


def _marker(path: Path) -> Reading:
    run = RunDir(path.parent / "run")
    run.node(0).root.mkdir(parents=True)
    shutil.copyfile(path, run.node(0).status)
    found = read_markers(run, "101", 1)
    return Reading(
        numbered([(found.state.name, found.worst.name, found.reason)]) if found.hosts else numbered([]),
        () if found.hosts else ("no marker",),
    )


def _config(path: Path) -> Reading:
    # A part of a configuration is one as well: only crashes, hangs and memory count.
    load_config(path)
    return Reading(numbered([]), ())


def trace_subjects(folder: Path) -> list[Subject]:
    """What a job leaves of its traces: a summary a rank, and what could not be reduced."""
    run = RunDir(folder / "2node" / "run_101")
    write_job(run.torch_profiler, Job({0: Rank(loader=300), 1: Rank(host=150)}))
    (node,) = [node for node, _ in reduce_run(run, REDUCER)]
    shutil.rmtree(run.torch_profiler)
    subjects = []
    for path in sorted(node.reduction.parent.iterdir()):
        # What names this folder would differ at every call, and a run that goes on would not know it.
        path.write_text(path.read_text().replace(str(folder), "/scratch"))
        inside = path.relative_to(run.root)
        subjects.append(Subject(f"traces/{path.name}", path, _summary_reader(run.root, inside)))
    return subjects


def _summary_reader(root: Path, inside: Path) -> Callable[[Path], Reading]:
    def read(path: Path) -> Reading:
        place = path.parent / "run"
        shutil.copytree(root, place)
        shutil.copyfile(path, place / inside)
        found = read_run_traces(RunDir(place), REDUCER)
        rows = [msgspec.json.encode(summary) for summary in found.summaries]
        return Reading(numbered(rows), tuple(problem.reason for problem in found.problems))

    return read


# --- what programs print --------------------------------------------------------------------------------

_NVIDIA = (
    "timestamp, index, uuid, name, utilization.gpu [%], utilization.memory [%], memory.used [MiB], "
    "memory.total [MiB], temperature.gpu, power.draw [W], clocks.current.sm [MHz], "
    "clocks_event_reasons.active\n"
)


def text_subjects(folder: Path) -> list[Subject]:
    """Output of nvidia-smi, rocm-smi, amd-smi and sacct."""
    folder.mkdir(parents=True, exist_ok=True)
    nvidia = _NVIDIA + "".join(
        f"2025/06/15 15:06:{i:02}.123, 0, GPU-6e0f{i:04}, NVIDIA H100 80GB HBM3, {i} %, [N/A], "
        f"{1000 + i} MiB, 81559 MiB, {40 + i}, {300 + i}.25 W, {1900 + i} MHz, 0x0000000000000004\n"
        for i in range(30)
    )
    card = {
        "Unique ID": "0x84c4f3",
        "GPU use (%)": "57",
        "GPU memory use (%)": "0",
        "VRAM Total Memory (B)": "68702699520",
        "Temperature (Sensor edge) (C)": "43.0",
        "Average Graphics Package Power (W)": "310.0",
        "sclk clock speed:": "(1700Mhz)",
        "Card series": "AMD Instinct MI250X",
    }
    rocm = {f"card{i}": card | {"Unique ID": hex(9_000_000 + i)} for i in range(8)}
    amd = [
        {
            "gpu": i,
            "uuid": f"4eff{i:04}",
            "usage": {"gfx_activity": {"value": 30 + i, "unit": "%"}, "umc_activity": "N/A"},
            "power": {"socket_power": {"value": 310 + i, "unit": "W"}},
            "mem_usage": {"used_vram": {"value": 512, "unit": "MB"}},
        }
        for i in range(8)
    ]
    rows = _accounting_rows("101") * 12
    texts = {
        "nvidia-smi.txt": (nvidia, lambda text: _samples(parse_nvidia_smi_csv(text).samples)),
        "rocm-smi.json": (
            msgspec.json.encode(rocm).decode(),
            lambda text: _samples(parse_rocm_smi_json(text)),
        ),
        "amd-smi.json": (msgspec.json.encode(amd).decode(), lambda text: _samples(parse_amd_smi_json(text))),
        "sacct.txt": ("".join("|".join(row.values()) + "\n" for row in rows), _sacct),
    }
    found = []
    for name, (text, read) in texts.items():
        path = folder / name
        path.write_text(text)
        found.append(Subject(name, path, _text_reader(read), lines=not name.endswith(".json")))
    return found


def _text_reader(read: Callable[[str], list[object]]) -> Callable[[Path], Reading]:
    # Of a program's answer a part is an answer as well: only crashes, hangs and memory count.
    def reader(path: Path) -> Reading:
        read(path.read_text(encoding="utf-8", errors="replace"))
        return Reading(numbered([]), ())

    return reader


def _samples(samples: Sequence[GpuSample]) -> list[object]:
    return list(samples)


def _sacct(text: str) -> list[object]:
    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(list(argv), 0, text, "")

    found = fetch_accounting("101", Path("sacct_summary.txt"), run)
    return [found.state, found.memory]


def own_subjects(folder: Path) -> list[Subject]:
    """One of each thing that aorta writes or asks programs for."""
    return [
        *run_subjects(folder / "run"),
        *document_subjects(folder / "documents"),
        *trace_subjects(folder / "traces"),
        *text_subjects(folder / "texts"),
    ]
