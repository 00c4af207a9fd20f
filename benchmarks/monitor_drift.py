"""How punctual the samples of `aorta monitor` are over a minute, at 1 s and at 0.1 s.

    python benchmarks/monitor_drift.py [--seconds 60] [--no-gpu] [--json]

Target: no sample more than 50 ms late on an idle machine. The drift is the mean lateness of the last tenth of
the samples less that of the first tenth: 0 when late samples do not push later ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def measure(interval_s: float, seconds: float, more: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            sys.executable,
            "-m",
            "aorta",
            "monitor",
            "--output-dir",
            folder,
            "--interval",
            str(interval_s),
        ]
        subprocess.run([*argv, "--duration", str(seconds), *more], check=True)
        status = json.loads((Path(folder) / "monitor_status.json").read_text())
        with (Path(folder) / "cpu_monitor.csv").open(newline="") as stream:
            times = [int(row["mono_ns"]) for row in csv.DictReader(stream)]
    # Lateness on the grid that the samples span: the one that is earliest by its deadline has none.
    step = round(interval_s * 1e9)
    slots = [round((t - times[0]) / step) for t in times]
    late = [t - times[0] - slot * step for t, slot in zip(times, slots, strict=True)]
    late = [(value - min(late)) / 1e6 for value in late]
    tenth = max(len(late) // 10, 1)
    return {
        "interval_s": interval_s,
        "samples": status["samples"],
        "missed": status["missed"],
        "max_late_ms": status["max_late_ms"],
        "median_late_ms": statistics.median(late),
        "drift_ms": statistics.fmean(late[-tenth:]) - statistics.fmean(late[:tenth]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--no-gpu", action="store_true", help="leave the GPUs out")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    more = ["--no-gpu"] if options.no_gpu else []
    rows = [measure(interval_s, options.seconds, more) for interval_s in (1.0, 0.1)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("interval  samples  missed  latest  median late     drift")
    for row in rows:
        cells = (
            f"{row['interval_s']:6.1f} s",
            f"{row['samples']:7d}",
            f"{row['missed']:6d}",
            f"{row['max_late_ms']:5.1f} ms",
            f"{row['median_late_ms']:8.2f} ms",
            f"{row['drift_ms']:+6.2f} ms",
        )
        print("  ".join(cells))


if __name__ == "__main__":
    main()
