"""Seconds and peak memory from a Kineto file to its breakdown, beside HolisticTraceAnalysis.

    python benchmarks/trace_speed.py BASE... [--mb 10 100 1000] [--steps many few] [--hta PYTHON] [--ranks 4]

Each measurement is a fresh process, imports and worker processes included. Memory is the peak of the
sum over its processes, looked at fifty times per second; CPU seconds are those of all its processes (on a
busy machine they say more than the wall clock). BASE is a trace that is repeated (a smaller one gives more
copies, and so more steps with `--steps many`); PYTHON an interpreter that has HolisticTraceAnalysis, which
computes its breakdown and overlap of the same file. `--ranks N` adds N compressed copies of the first BASE
as N ranks. The overlap of every result must be the base's.

The last line of a measurement divides the CPU time of one process among the stages of reading, and says
what the JSON parser takes for the same text if nothing is left out before.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import gzip
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from benchmarks.trace_generate import generate  # noqa: E402

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
from aorta.readers.kineto_columns import Columns
from aorta.readers.kineto_events import EVENTS
from aorta.readers.fast.kineto_layout import find
from aorta.readers.kineto_stream import AHEAD, EventText, PlainText, open_array
path = Path(sys.argv[2])
def chunks():
    source = PlainText(path.open("rb", buffering=0))
    return EventText(source, open_array(path, source)[1])
def timed(run):
    # The least CPU time of several: stages are differences of passes, which other work distorts.
    spent = []
    for _ in range(max(min(5, 500_000_000 // path.stat().st_size), 1)):
        at = time.process_time(); value = run(); spent.append(time.process_time() - at)
    return min(spent), value
def look(decode):
    learned = Columns().learned
    for text, end in chunks():
        found = find(text, end, learned)
        decode(text[:end] if found is None else found.others()[0])
def whole():
    for text, end in chunks():
        EVENTS.decode(b"[" + text[:end] + b"]")
reading, _ = timed(lambda: [None for _ in chunks()])
looking, _ = timed(lambda: look(len))
decoding, _ = timed(lambda: look(lambda text: EVENTS.decode(b"[" + text + b"]")))
everything, _ = timed(whole)
total, trace = timed(lambda: kineto.read_many([path], workers=1)[0])
parts, _ = timed(lambda: break_down(trace))
print("RESULT" + json.dumps({
    "reading_s": reading, "layout_s": looking - reading, "json_s": decoding - looking,
    "columns_s": total - decoding, "intervals_s": parts, "whole_text_json_s": everything - reading,
}))
"""

STAGE_KEYS = ("reading_s", "layout_s", "json_s", "columns_s", "intervals_s")


def measure(python: str, program: str, files: Sequence[Path]) -> dict[str, Any]:
    """Run a program on files; its result, seconds and peak MB."""
    with tempfile.TemporaryDirectory() as folder:
        script, output_file, error_file = (Path(folder) / name for name in ("run.py", "output", "errors"))
        script.write_text(program)
        argv = [python, str(script), str(ROOT), *map(str, files)]
        with output_file.open("w") as out, error_file.open("w") as err:
            before, at = cpu_seconds(), time.perf_counter()
            child = psutil.Popen(argv, stdout=out, stderr=err)
            peak, looks, family = 0, 0, [child.pid]
            while child.poll() is None:
                # Looking is work too: it must not take a core from what is measured.
                if looks % 10 == 0:
                    with contextlib.suppress(psutil.Error):
                        family = [child.pid, *(one.pid for one in child.children(recursive=True))]
                peak, looks = max(peak, sum(map(resident_bytes, family))), looks + 1
                time.sleep(0.02)
            cost = {
                "seconds": time.perf_counter() - at,
                "cpu_s": cpu_seconds() - before,
                "peak_mb": peak / 1e6,
            }
        output, errors = output_file.read_text(), error_file.read_text()
    found = [line for line in output.splitlines() if line.startswith("RESULT")]
    if not found:
        return {"failed": errors.strip()[-300:], **cost}
    return {**json.loads(found[0].removeprefix("RESULT")), **cost}


def cpu_seconds() -> float:
    """CPU time of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def overlap(row: dict[str, Any]) -> float:
    """Hidden over all communication."""
    return row["hidden_ns"] / row["comm_ns"]


def shown(cost: dict[str, Any]) -> str:
    """Wall-clock and CPU seconds and peak memory."""
    return f"{cost['seconds']:.2f} s ({cost['cpu_s']:.2f} CPU) {cost['peak_mb']:,.0f} MB"


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
    print(f"{name:32} {line['mb']:7.1f} MB   ours {shown(ours)}", end="", flush=True)
    if hta:
        line["hta"] = theirs = measure(hta, HTA, files)
        times = {key: theirs[key] / ours[key] for key in ("seconds", "cpu_s", "peak_mb")}
        print(
            f"   HTA {shown(theirs)}   {times['seconds']:.0f} times faster ({times['cpu_s']:.0f} by CPU),"
            f" {times['peak_mb']:.1f} times less memory {theirs.get('failed', '')}",
            end="",
        )
    print(flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bases", type=Path, nargs="+", metavar="BASE")
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--steps", nargs="+", choices=("many", "few"), default=["many", "few"])
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    lines = []
    machine, before = processor(), os.getloadavg()[0]
    # As an installation does: PYTHONDONTWRITEBYTECODE would have every process compile what it imports.
    compileall.compile_dir(ROOT / "aorta", quiet=1)
    with tempfile.TemporaryDirectory(prefix="aorta-speed-") as folder:
        for number, base in enumerate(arguments.bases):
            expected = measure(sys.executable, OURS, [base])["ranks"][0]
            if arguments.ranks and number == 0:
                files = [Path(folder) / f"rank{rank}.json.gz" for rank in range(arguments.ranks)]
                for rank, path in enumerate(files):
                    write_rank(base, path, rank)
                lines.append(compare(f"{arguments.ranks} ranks", files, 1, expected, arguments.hta))
            for megabytes in arguments.mb:
                for steps in arguments.steps:
                    path = Path(folder) / "rank0.json"
                    copies = generate(base, path, megabytes, steps)
                    name = f"{base.name.split('.')[0]}, {copies if steps == 'many' else 3} steps"
                    line = compare(name, [path], copies, expected, arguments.hta)
                    line["stages"] = measure(sys.executable, STAGES, [path])
                    print(f"{'':16} {stages_text(line['stages'])}", flush=True)
                    lines.append(line)
    machine = f"{machine}, load {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    print("\n" + "\n".join(table(machine, lines)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "lines": lines}, indent=2) + "\n")


def stages_text(stages: dict[str, Any]) -> str:
    """Where the CPU time of one process went. A stage is the difference of two passes: where that is
    negative, it took less than the passes differ by chance.
    """
    total = sum(max(stages[key], 0.0) for key in STAGE_KEYS)
    shares = ", ".join(
        f"{key[:-2]} {stages[key] / total:.0%}" if stages[key] >= 0 else f"{key[:-2]} within noise"
        for key in STAGE_KEYS
    )
    return (
        f"one process {total:.2f} CPU s: {shares}; "
        f"the JSON parser on the whole text {stages['whole_text_json_s']:.2f} CPU s"
    )


def processor() -> str:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{models[0] if models else 'processor'}, {cores} cores, Python {platform.python_version()}"


def table(machine: str, lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The measurements as Markdown, as docs/traces.md has them."""
    yield f"Measured on: {machine}."
    yield ""
    yield "| trace | here | HTA | times faster (CPU) | times less memory |"
    yield "|---|---|---|---|---|"
    for line in lines:
        ours, theirs = line["ours"], line.get("hta")
        ratios = ["—", "—", "—"]
        if theirs:
            by = {key: theirs[key] / ours[key] for key in ("seconds", "cpu_s", "peak_mb")}
            ratios = [shown(theirs), f"{by['seconds']:.0f} ({by['cpu_s']:.0f})", f"{by['peak_mb']:.1f}"]
        yield f"| {line['name']}, {line['mb']:,.0f} MB | {shown(ours)} | {' | '.join(ratios)} |"
    for line in lines:
        if "stages" in line:
            yield ""
            yield f"{line['name']}, {line['mb']:,.0f} MB: {stages_text(line['stages'])}."


def write_rank(base: Path, path: Path, rank: int) -> None:
    """The base as another rank."""
    data = gzip.decompress(base.read_bytes()).replace(b'"rank": 0', b'"rank": %d' % rank, 1)
    with gzip.open(path, "wb", compresslevel=6) as stream:
        stream.write(data)


if __name__ == "__main__":
    main()
