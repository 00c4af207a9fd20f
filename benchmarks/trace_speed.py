"""Seconds and peak memory from a Kineto file to its breakdown, beside HolisticTraceAnalysis.

    python benchmarks/trace_speed.py BASE [--mb 10 100 1000] [--steps many few] [--hta PYTHON] [--ranks 4]
    [--json]

Each measurement is a fresh process, imports and worker processes included; memory is the sum over its
processes of resident pages, sampled every 10 ms. BASE is the trace that is repeated
(hta/nccl_data.json.gz); PYTHON an interpreter that has HolisticTraceAnalysis, which then computes its
breakdown and overlap of the same file. `--ranks N` adds N compressed copies of BASE as N ranks. The overlap
of every result must be that of the base.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psutil

from benchmarks.trace_generate import generate

OURS = """
import sys, json, time
sys.path.insert(0, sys.argv[1])
def main():
    from pathlib import Path
    import numpy as np
    from aorta.artefacts.events import Kind
    from aorta.intervals import intersection, length, union
    from aorta.metrics.trace_breakdown import break_down
    from aorta.readers.traces import read_traces
    at = time.perf_counter()
    traces = read_traces([Path(p) for p in sys.argv[2:]]).traces
    read = time.perf_counter() - at
    rows = []
    at = time.perf_counter()
    for t in traces:
        b = break_down(t)
        rows.append({"steps": len(b.steps), "gpu": len(t.gpu), "host": len(t.host), "problems":
        len(t.problems)})
    parts = time.perf_counter() - at
    for t, row in zip(traces, rows):
        comm, compute = union(t.gpu.intervals(Kind.COMMUNICATION)), union(t.gpu.intervals(Kind.COMPUTE))
        row["comm_ns"], row["hidden_ns"] = length(comm), length(intersection(comm, compute))
    print("RESULT" + json.dumps({"read_s": read, "breakdown_s": parts, "ranks": rows}))
if __name__ == "__main__":
    main()
"""
HTA = """
import sys, json, logging, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def main():
    files = {rank: path for rank, path in enumerate(sys.argv[2:])}
    a = TraceAnalysis(trace_files=files, trace_dir="", include_last_profiler_step=True)
    a.get_temporal_breakdown(visualize=False)
    o = a.get_comm_comp_overlap(visualize=False)
    print("RESULT" + json.dumps({"overlap_pct": [float(x) for x in o["comp_comm_overlap_pctg"]]}))
if __name__ == "__main__":
    main()
"""
STAGES = """
import sys, json, time
sys.path.insert(0, sys.argv[1])
import msgspec
from pathlib import Path
from aorta.metrics.trace_breakdown import break_down
from aorta.readers import kineto
from aorta.readers.kineto_decode import Event
from aorta.readers.kineto_stream import EventText, open_array, plain_blocks
path = Path(sys.argv[2])
def text():
    stream = path.open("rb")
    source = plain_blocks(stream)
    return EventText(source, open_array(path, source)[1])
def timed(run):
    at = time.perf_counter(); value = run(); return time.perf_counter() - at, value
reading, _ = timed(lambda: [None for _ in plain_blocks(path.open("rb"))])
cutting, _ = timed(lambda: [None for _ in text()])
decoder = msgspec.json.Decoder(list[Event])
def decode():
    for chunk in text():
        decoder.decode(b"[" + chunk + b"]")
decoding, _ = timed(decode)
whole, trace = timed(lambda: kineto.read_many([path], workers=1)[0])
parts, _ = timed(lambda: break_down(trace))
print("RESULT" + json.dumps({
    "reading_s": reading, "cutting_s": cutting - reading, "json_s": decoding - cutting,
    "columns_s": whole - decoding, "intervals_s": parts,
}))
"""


def measure(python: str, program: str, files: Sequence[Path]) -> dict[str, Any]:
    """Run a program on files; its result, seconds and peak MB."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program)
        script.flush()
        at = time.perf_counter()
        child = psutil.Popen(
            [python, script.name, str(ROOT), *map(str, files)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        peak = 0
        while child.poll() is None:
            peak = max(peak, resident(child))
            time.sleep(0.01)
        seconds = time.perf_counter() - at
        output, errors = child.communicate()
    found = [line for line in output.splitlines() if line.startswith("RESULT")]
    if not found:
        return {"failed": errors.strip()[-300:], "seconds": seconds, "peak_mb": peak / 1e6}
    return {**json.loads(found[0].removeprefix("RESULT")), "seconds": seconds, "peak_mb": peak / 1e6}


def resident(root: psutil.Process) -> int:
    """Resident bytes of a process and those below it."""
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def overlap(row: dict[str, Any]) -> float:
    """Hidden over all communication."""
    return row["hidden_ns"] / row["comm_ns"]


def compare(
    name: str, files: Sequence[Path], copies: int, base: dict[str, Any], hta: str | None
) -> dict[str, Any]:
    """One line of the table; fails where the result is not that of the base."""
    ours = measure(sys.executable, OURS, files)
    if "failed" in ours:
        raise SystemExit(f"{name}: {ours['failed']}")
    for row in ours["ranks"]:
        assert row["comm_ns"] == copies * base["comm_ns"], (name, row)
        assert row["hidden_ns"] == copies * base["hidden_ns"], (name, row)
        assert overlap(row) == overlap(base)
    line = {"name": name, "mb": round(sum(path.stat().st_size for path in files) / 1e6, 1), "ours": ours}
    print(
        f"{name:16} {line['mb']:7.1f} MB   ours {ours['seconds']:7.2f} s {ours['peak_mb']:6.0f} MB",
        end="",
        flush=True,
    )
    if hta:
        line["hta"] = theirs = measure(hta, HTA, files)
        print(
            f"   HTA {theirs['seconds']:7.1f} s {theirs['peak_mb']:6.0f} MB"
            f"   {theirs['seconds'] / ours['seconds']:5.0f} times faster,"
            f" {theirs['peak_mb'] / ours['peak_mb']:4.1f} times less memory",
            end=f"  {theirs['failed']}" if "failed" in theirs else "",
        )
    print(flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--steps", nargs="+", choices=("many", "few"), default=["many", "few"])
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    lines = []
    base = measure(sys.executable, OURS, [arguments.base])["ranks"][0]
    with tempfile.TemporaryDirectory(prefix="aorta-speed-") as folder:
        if arguments.ranks:
            files = [Path(folder) / f"rank{rank}.json.gz" for rank in range(arguments.ranks)]
            for rank, path in enumerate(files):
                write_rank(arguments.base, path, rank)
            lines.append(compare(f"{arguments.ranks} ranks", files, 1, base, arguments.hta))
        for megabytes in arguments.mb:
            for steps in arguments.steps:
                path = Path(folder) / "rank0.json"
                copies = generate(arguments.base, path, megabytes, steps)
                line = compare(f"{megabytes} MB, {steps}", [path], copies, base, arguments.hta)
                line["stages"] = stages = measure(sys.executable, STAGES, [path])
                total = sum(value for key, value in stages.items() if key.endswith("_s"))
                shares = ", ".join(
                    f"{key[:-2]} {100 * v / total:.0f}%" for key, v in stages.items() if key.endswith("_s")
                )
                print(f"{'':16} one process {total:.2f} s: {shares}", flush=True)
                lines.append(line)
    if arguments.json:
        arguments.json.write_text(json.dumps(lines, indent=2) + "\n")


def write_rank(base: Path, path: Path, rank: int) -> None:
    """The base as another rank."""
    data = gzip.decompress(base.read_bytes()).replace(b'"rank": 0', b'"rank": %d' % rank, 1)
    with gzip.open(path, "wb", compresslevel=6) as stream:
        stream.write(data)


if __name__ == "__main__":
    main()
