"""Seconds of whole commands, from process start to exit, beside HolisticTraceAnalysis; by turns in one run.

    python benchmarks/start_up.py FOLDER --hta PYTHON [--repeats 5] [--mb 100]

FOLDER holds the four Kineto traces of one capture, such as h100-balanced. PYTHON is an interpreter that has
HolisticTraceAnalysis, which computes breakdown and overlap of the same files. `aorta analyze` prints its full
report meanwhile. `--mb` makes a trace of that size out of the first one. The table has the least and the
median of the repeats, the ratio of the least ones, and the median of the ratios of neighbours in time: other
work on the machine falls on both of them.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.trace_generate import generate  # noqa: E402
from benchmarks.trace_speed import HTA, processor  # noqa: E402

AORTA = (sys.executable, "-m", "aorta")


def seconds(argv: Sequence[str], folder: Path) -> float:
    """Wall-clock seconds of a command; it must succeed or, for `status` without jobs, say so."""
    at = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    took = time.perf_counter() - at
    # 6: one rank of several gives no verdict, and a whole report.
    if done.returncode not in (0, 6) and "there is no submission" not in done.stderr:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr.strip()[-500:]}")
    return took


def line(name: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """A row of the table."""
    cells = [f"{min(ours):.2f} / {statistics.median(ours):.2f}"]
    if theirs:
        beside = statistics.median(there / here for here, there in zip(ours, theirs, strict=True))
        cells += [f"{min(theirs):.2f} / {statistics.median(theirs):.2f}"]
        cells += [f"{min(theirs) / min(ours):.1f} / {beside:.1f}"]
    else:
        cells += ["—", "—"]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mb", type=int, default=100)
    arguments = parser.parse_args()
    # As an installation does; PYTHONDONTWRITEBYTECODE would have every process compile what it imports.
    compileall.compile_dir(ROOT / "aorta", quiet=1)
    traces = sorted(arguments.folder.glob("*.pt.trace.json*")) or sorted(arguments.folder.glob("*.json.gz"))
    os.environ["PYTHONPATH"] = str(ROOT)
    before = os.getloadavg()[0]
    rows = []
    with tempfile.TemporaryDirectory(prefix="aorta-start-") as name:
        folder = Path(name)
        script = folder / "holistic.py"
        script.write_text(HTA)
        large = folder / "rank0.json"
        generate(traces[0], large, arguments.mb, "many")
        for title, files in ((f"{len(traces)} traces", traces), (f"{arguments.mb} MB", [large])):
            names = [str(path.absolute()) for path in files]
            ours, theirs = [], []
            for _ in range(arguments.repeats):
                ours.append(seconds([*AORTA, "analyze", *names], folder))
                if arguments.hta:
                    theirs.append(seconds([arguments.hta, str(script), str(ROOT), *names], folder))
            rows.append(line(f"`aorta analyze`, {title}", ours, theirs))
        for command in ("--help", "status", "wait --help", "analyze --help"):
            took = [seconds([*AORTA, *command.split()], folder) for _ in range(arguments.repeats)]
            rows.append(line(f"`aorta {command}`", took, []))
    print(f"Measured on: {processor()}, load {before:.1f} before and {os.getloadavg()[0]:.1f} after.\n")
    print(
        "| command | here, least / median s | HTA 0.5, least / median s | faster: least / median |\n"
        "|---|---|---|---|"
    )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
