"""Makes a run of many ranks with all of its artefacts: records, monitors' files, markers, configuration.

    python benchmarks/scale_generate.py RESULTS --nodes 1024 [--ranks-per-node 8] [--steps 200]

Every rank's steps are simulated: loader, forward, backward with two all-reduces, optimizer. Each node's
clocks are ahead of the first one's by seconds of its own, compute varies by 20 ms, and one rank computes
500 ms longer than the others. Monitors sample each GPU and host once a second. What is written is checked
against the schema of step records: a line that it does not decode, or that lacks a field, ends the program.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import itertools
import json
import sys
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aorta.artefacts.columns import CPU_COLUMNS, GPU_COLUMNS
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import MonitorStatus
from aorta.artefacts.step_record import StepRecord
from aorta.units import NS_PER_MS, NS_PER_S
from tests.support.synthetic import START_MONO_NS, START_WALL_NS, RunSpec, write_account

COMPUTE_MS, JITTER_MS, EXTRA_MS = 1000, 20, 500
DATA_MS, HOST_MS = 4, 5
TRANSFER_MS = (80, 60)
"""Of the two all-reduces; the first is hidden."""
STARTUP_S, TAIL_S = 6, 3

_STEP = (
    '{"schema_version":1,"run_id":"run-%(job)s","job_id":"%(job)s","host":"%(host)s","attempt":0,'
    '"rank":%(rank)d,"local_rank":%(local)d,"world_size":%(world)d,"device":"cuda:%(local)d",'
    '"device_uuid":"%(uuid)s","epoch":0,'
)
_TIMES = (
    '"step":%d,"global_step":%d,"phase":"%s","detailed":true,"wall_start_ns":%d,"wall_end_ns":%d,"mono_start_ns":%d,'
    '"mono_end_ns":%d,"samples":8,"data_wait_ms":%.6f,"timing":"event_window","breakdown":{"compute_ns":%d,'
    '"exposed_comm_ns":%d,"exposed_copy_ns":0,"data_wait_ns":%d,"host_ns":%d,"comm_ns":%d,"hidden_comm_ns":%d},'
    '"loss":0.69,"grad_norm":1.0,"lr":0.0003,"memory_peak_bytes":21474836480,"memory_total_bytes":85899345920,'
    '"memory_reserved_bytes":25769803776,"alloc_retries":0,"alloc_ooms":0,"untimed_calls":{},"before_ms":null,'
    '"boot_start_ns":%d,"profile":{"index":%d,"total_ms":%.6f,"ranges":['
)
_RANGE = '{"stream":"%s","tag":"%s","start_ms":%%.6f,"end_ms":%%.6f,"duration_ms":%%.6f,"metadata":%s}'
_CALL = '{"op":"all_reduce","group":"0","seq":%%d,"bytes":%d}'
_RANGES = ",".join(
    _RANGE % part
    for part in (
        ("host", "data", "null"),
        ("compute", "forward", "null"),
        ("compute", "backward", "null"),
        ("allreduce", "gradients", _CALL % (48 << 20)),
        ("allreduce", "gradients", _CALL % (16 << 20)),
        ("host", "gradient_wait", "null"),
        ("compute", "optimizer", "null"),
    )
)
_SEGMENTS = ",".join(
    f'{{"start_ms":%.6f,"end_ms":%.6f,"active_streams":[{streams}]}}'
    for streams in ("", '"compute"', '"compute","allreduce"', '"compute"', '"allreduce"', '"compute"', "")
)
_END = (
    '],"markers":[],"overlap":{"per_stream_ms":{"compute":%.6f,"allreduce":%.6f},"overlap_ms":'
    '{"compute_allreduce":%.6f,"compute_reducescatter":0.0,"compute_comm":%.6f,"idle":%.6f},'
    '"overlap_ratio":%.9f,"active_segments":[' + _SEGMENTS + '],"utilization":%.9f}},"execution":null,'
    '"rocm_smi_output":null}\n'
)

Ints = NDArray[np.int64]


class Simulated:
    """When each rank passes each place of each step, ns, (ranks, steps); 0 is the start of the first step."""

    def __init__(self, ranks: int, steps: int, slow: int) -> None:
        noise = np.random.default_rng(7)
        shape = (ranks, steps)
        self.start, self.loaded, self.first, self.second = (np.empty(shape, dtype=np.int64) for _ in range(4))
        self.hidden_end, self.exposed_end, self.done, self.end = (
            np.empty(shape, dtype=np.int64) for _ in range(4)
        )
        compute = np.full(ranks, COMPUTE_MS * NS_PER_MS)
        compute[slow] += EXTRA_MS * NS_PER_MS
        now = np.zeros(ranks, dtype=np.int64)
        for step in range(steps):
            self.start[:, step] = now
            loaded = now + DATA_MS * NS_PER_MS
            first = loaded + compute * 7 // 10 + noise.integers(0, JITTER_MS * NS_PER_MS, ranks)
            second = first + compute * 2 // 10
            hidden_end = np.full(ranks, first.max() + TRANSFER_MS[0] * NS_PER_MS)
            exposed_end = np.maximum(second, hidden_end).max() + np.full(ranks, TRANSFER_MS[1] * NS_PER_MS)
            done = exposed_end + compute // 10
            now = done + HOST_MS * NS_PER_MS
            self.loaded[:, step], self.first[:, step], self.second[:, step] = loaded, first, second
            self.hidden_end[:, step], self.exposed_end[:, step] = hidden_end, exposed_end
            self.done[:, step], self.end[:, step] = done, now


def write_records(path: Path, rank: int, spec: RunSpec, times: Simulated, ahead_ns: int) -> None:
    """One rank's file."""
    node, local = divmod(rank, spec.ranks_per_node)
    head = _STEP % {
        "job": spec.job_id,
        "host": spec.host(node),
        "rank": rank,
        "local": local,
        "world": spec.ranks,
        "uuid": f"GPU-{node}-{local}",
    }
    names = ("start", "loaded", "first", "second", "hidden_end", "exposed_end", "done", "end")
    rows = np.stack([getattr(times, name)[rank] for name in names], axis=1).tolist()
    lines = [
        head + _line(number, row, "warmup" if number < spec.warmup else "steady", ahead_ns)
        for number, row in enumerate(rows)
    ]
    path.write_text("".join(lines), encoding="utf-8")


def _line(number: int, row: list[int], phase: str, ahead_ns: int) -> str:
    start = row[0]
    loaded, first, second, hidden, exposed, done, end = (time - start for time in row[1:])
    ms = 1 / NS_PER_MS
    compute, waits, whole = second - loaded + done - exposed, exposed - second, end
    overlap = min(hidden, second) - first
    comm = waits + overlap
    wall, mono = START_WALL_NS + ahead_ns + start, START_MONO_NS + ahead_ns + start
    text = _TIMES % (
        number, number, phase, wall, wall + end, mono, mono + end, loaded * ms, compute, waits, loaded,
        whole - compute - waits - loaded, comm, overlap, mono, number, whole * ms,
    )  # fmt: skip
    spans = (
        (0, loaded),
        (loaded, first),
        (first, second),
        (first, hidden),
        (second, exposed),
        (second, exposed),
        (exposed, done),
    )
    values: list[float] = []
    for place, (a, b) in enumerate(spans):
        values += [a * ms, b * ms, (b - a) * ms]
        if place in (3, 4):
            values.append(2 * number + place - 3)
    text += _RANGES % tuple(values)
    met = min(hidden, second)
    edges = (0, loaded, first, met, second, exposed, done, end)
    segments = [edge * ms for pair in itertools.pairwise(edges) for edge in pair]
    return text + _END % (
        compute * ms, comm * ms, overlap * ms, overlap * ms, (whole - compute - waits) * ms, overlap / comm,
        *segments, compute / whole,
    )  # fmt: skip


def write_samples(run: RunDir, node: int, spec: RunSpec, last_ns: int, ahead_ns: int) -> None:
    """One node's monitor files."""
    count = (STARTUP_S * NS_PER_S + last_ns + TAIL_S * NS_PER_S) // NS_PER_S
    gpus, hosts = [",".join(GPU_COLUMNS)], [",".join(CPU_COLUMNS)]
    name = spec.host(node)
    zero = dt.datetime.fromtimestamp(START_WALL_NS / NS_PER_S, tz=dt.timezone.utc)
    for second in range(count):
        since = second * NS_PER_S + 1_000_003 * (second % 7)
        wall, mono = (base + ahead_ns + since for base in (START_WALL_NS, START_MONO_NS))
        stamp = (zero + dt.timedelta(microseconds=(ahead_ns + since) // 1000)).isoformat(
            timespec="milliseconds"
        )
        busy = STARTUP_S <= second < count - TAIL_S
        hosts.append(
            f"{stamp},{31.5 if busy else 4.2},12.5,256.1234,2048.0,{name},{node},{wall},{mono},"
            f"{812.3 if busy else 55.1},68719476736,,128,{10_000_000 + 4096 * second},"
            f"{5_000_000 + 512 * second},{900_000 + 70_000 * second},{900_000 + 71_000 * second},0,0,0,0,0,0"
        )
        for gpu in range(spec.ranks_per_node):
            gpus.append(
                f"{stamp},{gpu},{97 if busy else 0},{41 if busy else 0},{61_440 if busy else 800}.25,"
                f"81559.0,{64 if busy else 33},{612.5 if busy else 71.25},{name},{node},{wall},{mono},"
                f"GPU-{node}-{gpu},NVIDIA H100 80GB HBM3,{1980 if busy else 345},"
                f"{9_000_000 + 612_500 * second},0"
            )
    folder = run.node(node)
    # Columns that came later are empty, as where they were not measured.
    for rows, path in ((gpus, folder.gpu_csv), (hosts, folder.cpu_csv)):
        whole = [row + "," * (rows[0].count(",") - row.count(",")) for row in rows]
        path.write_text("\n".join(whole) + "\n", encoding="utf-8")
    status = MonitorStatus(
        interval_s=1.0,
        samples=count,
        missed=0,
        max_late_ms=0.4,
        gpu_source="nvml",
        gpu_reason=None,
        stopped_by="signal",
    )
    write_json(folder.monitor_status, status)


def check(path: Path) -> None:
    """The first line of a file of records is a `StepRecord` with every field.

    Raises:
        SystemExit: it is not.
    """
    line = path.read_bytes().split(b"\n", 1)[0]
    record = msgspec.json.decode(line, type=StepRecord)
    lacking = {field.name for field in dataclasses.fields(StepRecord)} - json.loads(line).keys()
    parts = record.breakdown
    assert parts is not None
    total = parts.compute_ns + parts.exposed_comm_ns + parts.data_wait_ns + parts.host_ns
    if lacking or total != record.mono_end_ns - record.mono_start_ns:
        raise SystemExit(
            f"{path}: lacks {sorted(lacking)}, or its parts sum to {total} ns: mend the generator"
        )


def write(results: Path, nodes: int, ranks_per_node: int = 8, steps: int = 200) -> RunDir:
    """Write the run below `results`; its slow rank is the one at a third."""
    spec = RunSpec(
        nodes=nodes, ranks_per_node=ranks_per_node, steps=steps, device="cuda", startup_s=STARTUP_S,
        monitor_interval_s=1.0,
    )  # fmt: skip
    run = RunDir.of(results, Scenario(spec.name), spec.job_id)
    run.root.mkdir(parents=True)
    times = Simulated(spec.ranks, steps, slow=spec.ranks // 3)
    last_ns = int(times.end[:, -1].max())
    write_account(run, spec, last_ns)
    ahead = np.random.default_rng(3).integers(0, 5 * NS_PER_S, nodes).tolist()
    for node in range(nodes):
        for rank in range(node * ranks_per_node, (node + 1) * ranks_per_node):
            write_records(run.records(rank), rank, spec, times, ahead[node] + STARTUP_S * NS_PER_S)
        write_samples(run, node, spec, last_ns, ahead[node])
    check(run.records(0))
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    run = write(given.results, given.nodes, given.ranks_per_node, given.steps)
    size = sum(path.stat().st_size for path in run.root.rglob("*") if path.is_file())
    print(f"{run.root}: {size / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
