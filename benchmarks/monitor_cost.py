"""CPU share of one core that `aorta monitor` takes, at 1 s and at 0.1 s; start-up is kept apart.

    python benchmarks/monitor_cost.py [--seconds 30] [--no-gpu] [--json]

Targets: 0.3% at 1 s and 2% at 0.1 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGETS_PCT = {1.0: 0.3, 0.1: 2.0}


def schedstat_ns(pid: int) -> int:
    """CPU time of all threads of a process, in ns: the ticks of /proc/<pid>/stat are too coarse for 0.1%."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


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
        argv += ["--parent-pid", str(os.getpid()), *more]
        child = subprocess.Popen(argv)
        try:
            started = time.monotonic()
            while not (Path(folder) / "monitor_status.json").exists():  # written when set-up is done
                ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended or time.monotonic() - started > 60:
                    raise SystemExit("the monitor did not start")
                time.sleep(0.02)
            time.sleep(max(2 * interval_s, 0.5))
            cpu, wall = schedstat_ns(child.pid), time.monotonic_ns()
            time.sleep(seconds)
            cpu, wall = schedstat_ns(child.pid) - cpu, time.monotonic_ns() - wall
        finally:
            child.terminate()
            _, _, usage = os.wait4(child.pid, 0)
        status = json.loads((Path(folder) / "monitor_status.json").read_text())
    total_s = usage.ru_utime + usage.ru_stime
    return {
        "interval_s": interval_s,
        "steady_pct": 100 * cpu / wall,
        "target_pct": TARGETS_PCT[interval_s],
        "per_sample_us": cpu / wall * interval_s * 1e6,
        "startup_cpu_s": max(total_s - status["samples"] * cpu / wall * interval_s, 0.0),
        "max_rss_mib": usage.ru_maxrss / 1024,
        "samples": status["samples"],
        "gpu_source": status["gpu_source"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each measurement")
    parser.add_argument("--no-gpu", action="store_true", help="leave the GPUs out")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    more = ["--no-gpu"] if options.no_gpu else []
    rows = [measure(interval_s, options.seconds, more) for interval_s in TARGETS_PCT]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("interval  of one core  target  a sample  start-up CPU   memory  GPU source")
    for row in rows:
        cells = (
            f"{row['interval_s']:6.1f} s",
            f"{row['steady_pct']:10.3f}%",
            f"{row['target_pct']:5.1f}%",
            f"{row['per_sample_us']:5.0f} us",
            f"{row['startup_cpu_s']:10.2f} s",
            f"{row['max_rss_mib']:4.0f} MiB",
            str(row["gpu_source"] or "none"),
        )
        print("  ".join(cells))


if __name__ == "__main__":
    main()
