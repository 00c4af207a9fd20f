"""What a profiler costs the step: plain, attached and not yet capturing, capturing, as ratios.

    python benchmarks/profiler_weight.py [--alternations 5] [--device cuda] [--nsys PROGRAM]

Two programs: one that its host limits and one that its GPU limits. torch.profiler is alternated within one
process: plain steps, steps of a profiler that waits, recorded steps. nsys needs a process of its own: plain
processes alternate with processes under an nsys that has not begun to capture. Each line is the median ratio
to the plain steps and the least and most of the alternations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aorta.workloads.mistakes.options import MistakeOptions  # noqa: E402

PROGRAMS = {
    "host-bound": {"width": 256, "heads": 4, "layers": 8, "length": 128, "batch": 4},
    "GPU-bound": {"width": 2048, "heads": 16, "layers": 8, "length": 512, "batch": 16},
}
STEPS = 20


def main() -> None:
    """Measure, print a line per program and profiler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--nsys", help="The nsys program; without it only torch.profiler is measured.")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(_timed(_step(arguments.one, arguments.device))))
        return
    for program in PROGRAMS:
        _torch(program, arguments.device, arguments.alternations)
        if arguments.nsys:
            _nsys(program, arguments)


def _step(program: str, device: str) -> Callable[[], None]:
    from aorta.workloads.mistakes.trainer import Trainer  # noqa: PLC0415

    made = MistakeOptions(mistake="healthy", fixed=True, output=Path(), device=device, **PROGRAMS[program])
    trainer = Trainer(made, 0, 1, grouped=False)

    def step() -> None:
        trainer.step()
        trainer.finish()

    for _ in range(10):
        step()
    return step


def _timed(step: Callable[[], None]) -> float:
    """Median ms of some steps, each until the device is done."""
    took = []
    for _ in range(STEPS):
        started = time.perf_counter()
        step()
        took.append((time.perf_counter() - started) * 1e3)
    return statistics.median(took)


def _torch(program: str, device: str, alternations: int) -> None:
    from torch.profiler import profile, schedule  # noqa: PLC0415

    step = _step(program, device)
    ratios: dict[str, list[float]] = {"attached": [], "capturing": []}
    plain = []
    for _ in range(alternations):
        plain.append(_timed(step))
        with profile(schedule=schedule(wait=10_000, warmup=1, active=1)) as waiting:

            def counted(waiting: profile = waiting) -> None:
                step()
                waiting.step()

            ratios["attached"].append(_timed(counted) / plain[-1])
        with profile():
            ratios["capturing"].append(_timed(step) / plain[-1])
    for name, found in ratios.items():
        print(f"{program}, torch.profiler {name}: {_words(found)} of {statistics.median(plain):.2f} ms")


def _nsys(program: str, arguments: argparse.Namespace) -> None:
    own = [sys.executable, __file__, "--one", program, "--device", arguments.device]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        under = [arguments.nsys, "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none"]
        under += ["--capture-range=cudaProfilerApi", "-f", "true", "-o", f"{folder}/report"]
        for _ in range(arguments.alternations):
            plain, attached = (_one(command) for command in (own, [*under, *own]))
            ratios.append(attached / plain)
    print(f"{program}, nsys attached: {_words(ratios)}")


def _one(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(next(line for line in done.stdout.splitlines() if line[:1].isdigit()))


def _words(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
