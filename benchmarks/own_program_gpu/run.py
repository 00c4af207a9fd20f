"""What the hooks of `aorta.inject` cost and see on GPUs, and whether results stay the same.

    python benchmarks/own_program_gpu/run.py --output DIR [--seconds 290] [--ranks 2]

Each program runs on one rank per GPU (NCCL), in processes that are forked from one which has imported torch.

- equal: losses and weights with and without hooks.
- cost: hooks are taken out and put back between blocks of 30 steps. Each block with hooks is compared with
  its plain neighbours: wall time, and CPU time of the training thread. The registration of collectives
  stays; `calls` measures it. The first 6 steps of a block are not timed.
- inside: what each hook takes in steps that are timed as a whole, by the host's clock.
- prices: CPU time of single calls.
- windows: compute by event windows over the kernels of the same steps, as Kineto records them, and over the
  span of each phase's kernels (`phases.py`).
- faults: rank 1 has a slow loader, slow host work or more to compute. `aorta analyze DIR/faulty-loader` (on
  any machine) must name it.

Without GPUs it runs the same on gloo with tiny models, to see that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
    "1"  # looking for GPUs must not initialize CUDA before the forks
)

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

from phases import Phases
from phases import compared as compared_phases
from programs import CUDA, PROGRAMS
from switch import LEARNED, WARMUP, Block, Blocks, Inside, Switch

from aorta.inject import start

DETAILED_SHARE = 1 / 40
"""Share of the steps that a recorder times part by part on a GPU."""
DETAIL_INTERVAL = 6
"""Blocks of the recorder from one that is timed part by part to the next, in runs that measure cost."""
EQUAL_STEPS, FAULT_STEPS, SAMPLED_STEPS, INSIDE_STEPS = 40, 70, 67, 300
PATIENCE_S = 100.0
RESAMPLED = 2000


class Run:
    """One run of a program: a child process per rank.

    Args:
        name: of the program.
        kind: `plain`, `hooks`, `cost` (blocks of both) or `sampled` (kernels of some steps).
        folder: for what it leaves.
        ranks: how many.
        variables: more of the environment.
        seconds: of a run that measures cost.
    """

    def __init__(
        self, name: str, kind: str, folder: Path, ranks: int, *, seconds: float = 0.0, fault: str = ""
    ) -> None:
        self.name, self.kind, self.folder, self.fault = name, kind, folder, fault
        self._seconds = seconds
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self._began = time.monotonic()
        self._children = {self._fork(rank, ranks, port): rank for rank in range(ranks)}
        self.codes: dict[int, int] = {}

    def _fork(self, rank: int, ranks: int, port: int) -> int:
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "FAULT": self.fault}
            os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            self._inside(rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _inside(self, rank: int) -> None:
        with (self.folder / f"output_{rank}.txt").open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        torch.set_num_threads(1)
        switch, phases = None, Phases() if self.kind == "sampled" else None
        inside = Inside() if self.kind == "inside" else None
        if self.kind != "plain":
            capture = {"warmup_steps": WARMUP, "kernel_interval": 20 if self.kind == "sampled" else 0}
            capture |= {"detail_interval": DETAIL_INTERVAL} if self.kind == "cost" else {}
            capture |= {"detail_interval": 1000} if self.name == "calls" or self.kind == "inside" else {}
            os.environ |= {"AORTA_INSTRUMENT": "auto", "AORTA_RUN_DIR": str(self.folder)}
            os.environ["AORTA_CAPTURE"] = json.dumps(capture)
            switch = Switch(start.install())
        blocks = Blocks(switch if self.kind == "cost" else None, self._seconds, inside)
        most = {"cost": 100_000, "sampled": SAMPLED_STEPS, "inside": INSIDE_STEPS}
        steps = most.get(self.kind, EQUAL_STEPS)
        found = PROGRAMS[self.name](FAULT_STEPS if self.name == "faulty" else steps, blocks)
        answer = {"digest": found, "blocks": blocks.found, "inside": inside.steps if inside else []}
        (self.folder / f"answer_{rank}.json").write_text(json.dumps(answer))
        if switch is not None:
            switch.driver.finish()
        if phases is not None:
            phases.write(self.folder / f"phases_{rank}.json")

    def ended(self) -> bool:
        """Return whether all ranks have ended; those that take too long are killed."""
        for child, rank in list(self._children.items()):
            if time.monotonic() - self._began > PATIENCE_S:
                os.kill(child, signal.SIGKILL)
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                self.codes[rank] = os.waitstatus_to_exitcode(status)
                del self._children[child]
        return not self._children

    def wait(self) -> Run:
        """Wait for its end."""
        while not self.ended():
            time.sleep(0.05)
        return self

    def answers(self) -> list[dict[str, Any]]:
        """Return what each rank found."""
        paths = [self.folder / f"answer_{rank}.json" for rank in sorted(self.codes)]
        return [json.loads(path.read_text()) for path in paths if path.is_file()]

    def trouble(self) -> str:
        """Return the last lines of a rank that failed, and what hooks said."""
        said = []
        for rank, code in sorted(self.codes.items()):
            lines = (self.folder / f"output_{rank}.txt").read_text(errors="replace").splitlines()
            said += [line for line in lines if line.startswith("[aorta]")] + (lines[-4:] if code else [])
        return "".join(f"\n    {line[:180]}" for line in said[:12])


def compared(blocks: list[Block], kind: str, at: int) -> tuple[list[float], list[float]]:
    """Return blocks of a kind over and above the mean of their plain neighbours: ratios, and differences.

    Args:
        blocks: in order.
        kind: of the blocks.
        at: position of the number that is compared.
    """
    ratios, more = [], []
    for place in range(1, len(blocks) - 1):
        if blocks[place].kind == kind:
            plain = statistics.fmean((blocks[place - 1][at], blocks[place + 1][at]))
            ratios.append(blocks[place][at] / plain)
            more.append(blocks[place][at] - plain)
    return ratios, more


def interval(ratios: list[float]) -> str:
    """Return the median with its 95 % interval, by resampling."""
    low, high = resampled(ratios)
    return f"{statistics.median(ratios):.4f} (95 %: {low:.4f} to {high:.4f}, {len(ratios)} blocks)"


def more_cpu(more_us: list[float], step_ms: float) -> str:
    """Return CPU time of the training thread over and above plain steps, also as a share of a plain step."""
    low, high = resampled(more_us)
    middle = statistics.median(more_us)
    return f"{middle:+.0f} µs ({low:+.0f} to {high:+.0f}), {middle / 10 / step_ms:.2f} % of a step"


def resampled(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return medians[RESAMPLED // 40], medians[-RESAMPLED // 40]


def cost(run: Run) -> str:
    """Return what hooks cost by the blocks of rank 0."""
    found = run.answers()
    blocks = [Block(*one) for one in found[0]["blocks"]] if found else []
    lines, middle = [], {}
    for kind in ("whole", "detailed"):
        ratios, _ = compared(blocks, kind, 1)
        _, cpu = compared(blocks, kind, 2)
        plain_ms = statistics.median([block.step_ms for block in blocks if block.kind == "plain"] or [1.0])
        if len(ratios) < 5:
            lines.append(f"{kind} too few blocks: {len(ratios)}")
            continue
        lines.append(f"{kind} {interval(ratios)}, thread {more_cpu(cpu, plain_ms)}")
        middle[kind] = statistics.median(ratios)
    both = "not known"
    if len(middle) == 2:
        both = f"{middle['whole'] * (1 - DETAILED_SHARE) + middle['detailed'] * DETAILED_SHARE:.4f}"
    plain = [block for block in blocks if block.kind == "plain"]
    if not plain:
        return "no blocks"
    step, cpu_us = (statistics.median(one[at] for one in plain) for at in (1, 2))
    return f"step {step:.3f} ms (thread {cpu_us / 1000:.3f} ms): {'; '.join(lines)}; all steps {both}"


def records(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Return the step records of a rank."""
    path = folder / f"rank_{rank}_metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def windows(run: Run) -> str:
    """Return windows over kernels of the sampled steps, by stream."""
    said = []
    for rank in sorted(run.codes):
        ratios: dict[str, list[float]] = {}
        for one in records(run.folder, rank):
            if one.get("execution") and one["breakdown"]:
                kernels, parts = one["execution"]["per_stream_ms"], one["breakdown"]
                for stream, key in (("compute", "compute_ns"),):
                    if kernels.get(stream):
                        ratios.setdefault(stream, []).append(parts[key] / 1e6 / kernels[stream])
        shown = {stream: [round(one, 4) for one in found] for stream, found in ratios.items()}
        sampled = [one for one in records(run.folder, rank) if one.get("execution")]
        spans = compared_phases(run.folder / f"phases_{rank}.json", sampled)
        said.append(f"rank {rank}: windows / kernels {shown}; windows {spans}")
    return "; ".join(said)


def parts(folder: Path) -> str:
    """Return the mean parts of steady detailed steps of each rank, in ms."""
    said = []
    for rank in range(8):
        found = [one for one in records(folder, rank) if one["breakdown"] and one["phase"] == "steady"]
        if found:
            keys = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "data_wait_ns", "host_ns")
            means = {
                key[:-3]: sum((one["breakdown"][key] or 0) / 1e6 for one in found) / len(found)
                for key in keys
            }
            shown = " ".join(f"{key} {value:.2f}" for key, value in means.items())
            said.append(f"rank {rank} ({len(found)} steps): {shown}")
    return "; ".join(said) or "no detailed steps"


def parts_of(run: Run) -> str:
    """Return the median and mean time of each hook per step, in µs: one step hands over those before it."""
    answers = run.answers()
    steps = answers[0]["inside"][100:-1] if answers else []  # warm-up and the first block are timed in parts
    names = sorted({name for step in steps for name in step})
    found = {name: statistics.median(step.get(name, 0.0) for step in steps) for name in names}
    mean = sum(value for step in steps for value in step.values()) / max(len(steps), 1)
    each = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
    return f"{sum(found.values()):.0f} µs per step (mean {mean:.0f}): {each}"


class Bench:
    """The runs in the order of their weight, until time is over."""

    def __init__(self, output: Path, seconds: float, ranks: int) -> None:
        self._output, self._ranks = output, ranks
        self._end = time.monotonic() + seconds

    def left(self, needed: float, what: str) -> bool:
        """Return whether there is time."""
        enough = self._end - time.monotonic() > needed
        if not enough:
            print(f"{what}: out of time", flush=True)
        return enough

    def one(self, name: str, kind: str, *, seconds: float = 0.0, fault: str = "") -> Run:
        """Start a run."""
        folder = self._output / f"{name}-{fault or kind}"
        return Run(name, kind, folder, self._ranks, seconds=seconds, fault=fault)

    def equal(self) -> None:
        """Compare results, all programs at once: time does not matter."""
        names = ("small", "fsdp", "hf", "compiled", *(("graph",) if CUDA() else ()))
        runs = [self.one(name, kind) for name in names for kind in ("plain", "hooks")]
        for plain, hooks in zip(runs[::2], runs[1::2], strict=True):
            found = [[one["digest"] for one in run.wait().answers()] for run in (plain, hooks)]
            codes = [*plain.codes.values(), *hooks.codes.values()]
            same = "equal" if found[0] == found[1] and not any(codes) else f"DIFFERENT {found} {codes}"
            seen = f"{len(records(hooks.folder, 0))} records"
            print(f"equal {plain.name}: {same}, {seen}{plain.trouble()}{hooks.trouble()}", flush=True)

    def costs(self) -> None:
        """Measure cost, one program after another."""
        for name, seconds in (
            ("host", 30),
            ("compiled", 30),
            ("hf", 60),
            ("ddp", 14),
            ("fsdp", 30),
            ("small", 10),
            ("fsdp_large", 12),
            ("hf_large", 20),
        ):
            if self.left(seconds + 14, f"cost {name}"):
                run = self.one(name, "cost", seconds=seconds).wait()
                print(f"cost {name}: {cost(run)}{run.trouble()}", flush=True)

    def inside(self) -> None:
        """Measure what each hook takes in steps that are timed as a whole."""
        for name in ("host", "compiled", "hf"):
            if self.left(16, f"inside {name}"):
                run = self.one(name, "inside").wait()
                print(f"inside {name}: {parts_of(run)}{run.trouble()}", flush=True)

    def calls(self) -> None:
        """Measure what a call of `torch.distributed` costs."""
        found = {}
        for kind in ("plain", "hooks"):
            if self.left(10, f"calls {kind}"):
                run = self.one("calls", kind).wait()
                found[kind] = [one["digest"] for one in run.answers()]
        print(f"µs of the training thread per all-reduce, by rank: {found}", flush=True)

    def prices(self) -> None:
        """Measure single calls."""
        if self.left(8, "prices"):
            run = Run("prices", "plain", self._output / "prices", 1).wait()
            said = run.answers()
            print(f"µs per call: {said[0]['digest'] if said else ''}{run.trouble()}", flush=True)

    def sampled(self) -> None:
        """Compare windows with kernels."""
        for name in ("fsdp", "fsdp_large", "hf_large", "ddp") if CUDA() else ():
            if self.left(14, f"windows {name}"):
                run = self.one(name, "sampled").wait()
                print(f"windows {name}: {windows(run)}{run.trouble()}", flush=True)

    def faults(self) -> None:
        """Run each fault; what they leave is analysed later."""
        for fault in ("clean", "loader", "host", "compute") if self._ranks > 1 else ("clean",):
            if self.left(12, f"fault {fault}"):
                run = self.one("faulty", "hooks", fault=fault).wait()
                print(f"fault {fault}: {parts(run.folder)}{run.trouble()}", flush=True)
        if self._ranks == 1:
            print("faults: one GPU has no rank 1", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("results/own_program_gpu"))
    parser.add_argument("--seconds", type=float, default=290.0)
    parser.add_argument("--ranks", type=int, help="default: two, or one where there is one GPU")
    parser.add_argument("--only", default="prices,equal,faults,costs,sampled,calls")
    options = parser.parse_args()
    with contextlib.suppress(ImportError):
        import transformers  # noqa: F401, PLC0415 - once, before the forks
    ranks = options.ranks or min(torch.cuda.device_count() or 2, 2)
    began = time.monotonic()
    bench = Bench(options.output.absolute(), options.seconds, ranks)
    print(f"{ranks} ranks, torch {torch.__version__}, {'NCCL' if CUDA() else 'gloo'}", flush=True)
    for part in options.only.split(","):
        getattr(bench, part)()
    print(f"{time.monotonic() - began:.0f} s in all; first records after {LEARNED} updates")


if __name__ == "__main__":
    main()
