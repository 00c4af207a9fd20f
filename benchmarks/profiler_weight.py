"""What a profiler costs the step: attached and not yet capturing, capturing, and afterwards, as ratios.

    python benchmarks/profiler_weight.py [--seconds 280] [--alternations 5] [--device cuda] [--nsys PROGRAM]

Two programs: one that its host limits and one that its GPU limits. A profiler leaves traces of itself in
its process, so each alternation has fresh processes: a plain one, and one that nsys has started. All of them
start at the same time, and wait until they are asked. Both processes of an alternation run the same steps,
one after the other. The plain one is measured under torch.profiler at its end. Each line is the median ratio
to the plain steps of the same alternation, and the least and most of the alternations. What is measured when
`--seconds` are over is printed, and the rest is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS: dict[str, dict[str, Any]] = {
    "host-bound": {"width": 256, "heads": 4, "layers": 8, "length": 128, "batch": 4},
    "GPU-bound": {"width": 2048, "heads": 16, "layers": 8, "length": 512, "batch": 16},
}
TINY = {"width": 32, "heads": 2, "layers": 2, "length": 16, "batch": 2, "vocabulary": 64}
STEPS = 20
WARM_UP = 10
END_SECONDS = 5
"""Kept free for the last lines."""


class OutOfTimeError(Exception):
    """`--seconds` are over."""


def main() -> None:
    """Start all processes, measure one alternation after the other, print a line per program and phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--nsys", help="The nsys program; without it only torch.profiler is measured.")
    parser.add_argument("--tiny", action="store_true", help="Try the script itself.")
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        answer(*arguments.answer, arguments)
        return
    with tempfile.TemporaryDirectory(prefix="weight_", ignore_cleanup_errors=True) as folder:
        series = Series(arguments, Path(folder))
        try:
            series.run()
        except OutOfTimeError:
            print(f"out of time after {time.monotonic() - series.started:.0f} s", flush=True)
        finally:
            series.end()
        series.show()


class Series:
    """The processes of all alternations, and what was measured."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.started = time.monotonic()
        self.found: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        """Plain ms and ms, by program and phase."""
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(folder / "ask"))
        self.server.listen(64)
        self.links: dict[str, socket.socket] = {}
        self.processes = [
            self._start(f"{kind}{turn}")
            for turn in range(arguments.alternations)
            for kind in ("plain", *(("nsys",) if arguments.nsys else ()))
        ]

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        asked = self.arguments
        own = [sys.executable, str(Path(__file__).resolve()), "--device", asked.device]
        own += [*(["--tiny"] if asked.tiny else []), "--answer", str(self.folder / "ask"), name]
        if name.startswith("nsys"):
            under = [asked.nsys, "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none"]
            under += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop", "-f", "true"]
            own = [*under, "-o", str(self.folder / name), *own]
        with (self.folder / f"{name}.txt").open("wb") as log:
            return subprocess.Popen(
                own, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _left(self) -> float:
        left = self.arguments.seconds - END_SECONDS - (time.monotonic() - self.started)
        if left <= 0:
            raise OutOfTimeError
        return float(left)

    def _wait_for_all(self) -> None:
        """Take the processes' calls, until all have called or half of the time is over."""
        until = self.started + self.arguments.seconds / 2
        chosen = selectors.DefaultSelector()
        chosen.register(self.server, selectors.EVENT_READ)
        while len(self.links) < len(self.processes) and time.monotonic() < until:
            if chosen.select(1):
                link, _ = self.server.accept()
                self.links[line_of(link).strip()] = link
        ready = time.monotonic() - self.started
        print(f"{len(self.links)} of {len(self.processes)} processes ready after {ready:.0f} s", flush=True)

    def ask(self, name: str, verb: str, program: str = "") -> float:
        """The answer of a process; raises OutOfTimeError when there is no more time."""
        link = self.links[name]
        link.settimeout(self._left())
        try:
            link.sendall(f"{verb} {program}\n".encode())
            text = line_of(link)
        except TimeoutError as error:
            raise OutOfTimeError from error
        if not text:
            log = (self.folder / f"{name}.txt").read_text(errors="replace")
            raise SystemExit(f"{name} ended when it was asked to {verb} {program}:\n{log[-2000:]}")
        return float(text)

    def run(self) -> None:
        """Measure the alternations whose processes are ready."""
        self._wait_for_all()
        for turn in range(self.arguments.alternations):
            plain, nsys = f"plain{turn}", f"nsys{turn}"
            if plain not in self.links or (self.arguments.nsys and nsys not in self.links):
                print(f"turn {turn}: its processes were not ready", flush=True)
                continue
            self._turn(plain, nsys if self.arguments.nsys else None)
            for name in (plain, nsys):
                if name in self.links:
                    self.links[name].close()
            print(f"turn {turn} done after {time.monotonic() - self.started:.0f} s", flush=True)

    def _turn(self, plain: str, nsys: str | None) -> None:
        for program in PROGRAMS:
            for name in (plain, nsys):
                if name:
                    self.ask(name, "build", program)
        without: dict[str, float] = {}
        for program in PROGRAMS:
            first = self.ask(plain, "time", program)
            attached = self.ask(nsys, "time", program) if nsys else None
            again = self.ask(plain, "time", program)
            without[program] = (first + again) / 2
            self._note(program, "plain, second to first", again, first)
            if attached is not None:
                self._note(program, "nsys attached", attached, without[program])
        if nsys:
            self.ask(nsys, "start")
            for program in PROGRAMS:
                self._note(program, "nsys capturing", self.ask(nsys, "time", program), without[program])
            self.ask(nsys, "stop")
        for phase in ("attached", "capturing", "afterwards"):
            for program in PROGRAMS:
                took = self.ask(plain, phase, program)
                self._note(program, f"torch.profiler {phase}", took, without[program])
        if nsys:
            for program in PROGRAMS:
                self._note(program, "nsys afterwards", self.ask(nsys, "time", program), without[program])

    def _note(self, program: str, phase: str, took: float, plain: float) -> None:
        self.found[program, phase].append((plain, took))
        print(f"  {program}, {phase}: {took:.2f} ms, {took / plain:.3f}x", flush=True)

    def end(self) -> None:
        """Close the links and end what still runs."""
        for link in self.links.values():
            link.close()
        self.server.close()
        until = time.monotonic() + END_SECONDS
        for process in self.processes:
            for ended_by in (signal.SIGTERM, signal.SIGKILL):
                try:
                    process.wait(max(until - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    # nsys ends its own agents when it is asked to end.
                    os.killpg(process.pid, ended_by)
            process.wait()

    def show(self) -> None:
        """Print the ratios of all alternations, and keep them in $OUT."""
        for (program, phase), pairs in sorted(self.found.items()):
            ratios = [took / plain for plain, took in pairs]
            words = f"{statistics.median(ratios):.3f}x ({min(ratios):.3f} to {max(ratios):.3f})"
            plain_ms = statistics.median(plain for plain, _ in pairs)
            print(f"{program}, {phase}: {words} of {plain_ms:.2f} ms, {len(pairs)} turns", flush=True)
        if out := os.environ.get("OUT"):
            kept = {" ".join(key): pairs for key, pairs in self.found.items()}
            Path(out, "profiler_weight.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")


def line_of(link: socket.socket) -> str:
    """One line from a socket; empty where the other side has closed it."""
    text = b""
    while not text.endswith(b"\n"):
        more = link.recv(4096)
        if not more:
            return ""
        text += more
    return text.decode()


def answer(path: str, name: str, arguments: argparse.Namespace) -> None:
    """Be a measured process: do what the first process asks, until it closes the link."""
    sys.path.insert(0, str(ROOT))
    import torch  # noqa: PLC0415

    import aorta.workloads.mistakes.trainer  # noqa: F401 PLC0415

    torch.zeros(1, device=arguments.device)
    steps: dict[str, Callable[[], None]] = {}
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        link.sendall(f"{name}\n".encode())
        while asked := line_of(link):
            verb, _, program = asked.strip().partition(" ")
            link.sendall(f"{answered(verb, program, steps, arguments)}\n".encode())
    # The interpreter's own end frees what nobody needs any more.
    os._exit(0)


def answered(
    verb: str, program: str, steps: dict[str, Callable[[], None]], arguments: argparse.Namespace
) -> float:
    """Do one thing; returns the median ms of its steps, or 0."""
    from torch.profiler import profile, schedule  # noqa: PLC0415

    if verb == "build":
        steps[program] = made_step(program, arguments)
    elif verb in ("start", "stop"):
        if arguments.device == "cuda":
            import torch  # noqa: PLC0415

            getattr(torch.cuda.profiler, verb)()
    elif verb == "attached":
        with profile(schedule=schedule(wait=10_000, warmup=1, active=1)) as waiting:

            def counted() -> None:
                steps[program]()
                waiting.step()

            return timed(counted)
    elif verb == "capturing":
        with profile():
            return timed(steps[program])
    else:
        return timed(steps[program])
    return 0.0


def made_step(program: str, arguments: argparse.Namespace) -> Callable[[], None]:
    """A step of a program, warmed up."""
    from aorta.workloads.mistakes.options import MistakeOptions  # noqa: PLC0415
    from aorta.workloads.mistakes.trainer import Trainer  # noqa: PLC0415

    sizes = TINY if arguments.tiny else PROGRAMS[program]
    made = MistakeOptions(mistake="healthy", fixed=True, output=Path(), device=arguments.device, **sizes)
    trainer = Trainer(made, 0, 1, grouped=False)

    def step() -> None:
        trainer.step()
        trainer.finish()

    for _ in range(WARM_UP):
        step()
    return step


def timed(step: Callable[[], None]) -> float:
    """Median ms of some steps, each until the device is done."""
    took: Sequence[float] = [one(step) for _ in range(STEPS)]
    return statistics.median(took)


def one(step: Callable[[], None]) -> float:
    """Milliseconds of a step."""
    started = time.perf_counter()
    step()
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    main()
