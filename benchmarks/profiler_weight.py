"""What a profiler costs the step: attached and not yet capturing, capturing, and afterwards, as ratios.

    python benchmarks/profiler_weight.py [--alternations 5] [--device cuda] [--nsys PROGRAM]

Two programs: one that its host limits and one that its GPU limits. A profiler leaves traces of itself in its
process, so each alternation is a process of its own. For torch.profiler it is forked from one that has
imported torch: plain steps, steps of a profiler that waits, recorded steps, steps after the profiler has
ended. Under nsys, a plain process alternates with one that is attached and then captures. Each line is the
median ratio to the plain steps, and the least and most of the alternations.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aorta.workloads.mistakes.options import MistakeOptions  # noqa: E402

PROGRAMS: dict[str, dict[str, Any]] = {
    "host-bound": {"width": 256, "heads": 4, "layers": 8, "length": 128, "batch": 4},
    "GPU-bound": {"width": 2048, "heads": 16, "layers": 8, "length": 512, "batch": 16},
}
STEPS = 20
Times = dict[str, float]
"""Median ms of the steps of each phase."""


def main() -> None:
    """Measure, print a line per program, profiler and phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--nsys", help="The nsys program; without it only torch.profiler is measured.")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        program, phase = arguments.one
        print(json.dumps(_under_nsys(program, arguments.device, captures=phase == "captured")))
        return
    import aorta.workloads.mistakes.trainer  # noqa: F401 PLC0415  # torch is imported once, before forking

    for program in PROGRAMS:
        turns = range(arguments.alternations)
        found = [_forked(partial(_under_torch, program, arguments.device)) for _ in turns]
        _show(f"{program}, torch.profiler", found)
        if arguments.nsys:
            _show(f"{program}, nsys", [_alternated(program, arguments) for _ in turns])


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


def _under_torch(program: str, device: str) -> Times:
    from torch.profiler import profile, schedule  # noqa: PLC0415

    step = _step(program, device)
    found = {"plain": _timed(step)}
    with profile(schedule=schedule(wait=10_000, warmup=1, active=1)) as waiting:

        def counted() -> None:
            step()
            waiting.step()

        found["attached"] = _timed(counted)
    with profile():
        found["capturing"] = _timed(step)
    return {**found, "afterwards": _timed(step)}


def _forked(measure: Callable[[], Times]) -> Times:
    """The times that a forked process measures; none where it failed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(measure()).encode())
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    os.waitpid(child, 0)
    found: Times = json.loads(text or "{}")
    return found


def _under_nsys(program: str, device: str, *, captures: bool) -> Times:
    import torch  # noqa: PLC0415

    step = _step(program, device)
    if not captures:
        return {"plain": _timed(step)}
    found = {"attached": _timed(step)}
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    return {**found, "capturing": _timed(step)}


def _alternated(program: str, arguments: argparse.Namespace) -> Times:
    own = [sys.executable, __file__, "--device", arguments.device, "--one", program]
    with tempfile.TemporaryDirectory() as folder:
        under = [arguments.nsys, "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none"]
        under += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop", "-f", "true"]
        under += ["-o", f"{folder}/report"]
        return {**_one([*own, "plain"]), **_one([*under, *own, "captured"])}


def _one(command: Sequence[str]) -> Times:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    lines = [line for line in done.stdout.splitlines() if line[:1] == "{"]
    if not lines:
        print(f"no times: {' '.join(command)}\n{done.stdout[-500:]}{done.stderr[-500:]}", file=sys.stderr)
    found: Times = json.loads(lines[0]) if lines else {}
    return found


def _show(what: str, found: Sequence[Times]) -> None:
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for one in found:
        for phase, took in one.items():
            if phase != "plain" and "plain" in one:
                ratios[phase].append(took / one["plain"])
    plain = [one["plain"] for one in found if "plain" in one]
    for phase, values in ratios.items():
        words = f"{statistics.median(values):.2f}x ({min(values):.2f} to {max(values):.2f})"
        print(
            f"{what} {phase}: {words} of {statistics.median(plain):.2f} ms, {len(values)} turns", flush=True
        )


if __name__ == "__main__":
    main()
