"""Known mistakes on two GPUs, wrong and fixed, each a run of `aorta profile` with step records and traces.

    python benchmarks/mistakes_gpu.py --output DIR [--only ID...] [--seconds 330]

`aorta profile` starts this script once more as the program of the run. That one asks the first process, which
has imported torch once, to fork the ranks. Ranks time plain steps, record some under torch.profiler, and time
plain steps again. While a run writes its trace and is analysed, the next one begins. A run that would begin
after `--seconds` is left out, and named. `results.json` holds what was timed and what the analysis says.
Traces, step records and analyses are packed into four `mistakes_<n>.tar` of at most 15 MiB. `--device cpu
--tiny` tries the script itself.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import lzma
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMALL = {"width": 512, "heads": 8, "layers": 8, "length": 256, "batch": 8, "vocabulary": 16_384}
"""The host is the limit."""
LARGE = {"width": 1024, "heads": 16, "layers": 10, "length": 512, "batch": 16, "vocabulary": 16_384}
"""The GPU is the limit."""
TINY = {"width": 32, "heads": 2, "layers": 2, "length": 16, "batch": 2, "vocabulary": 64, "plain_steps": 20}
LONG = {"plain_steps": 16, "traced_steps": 8}
"""The mistake happens in some steps only."""
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("healthy", LARGE),
    ("fsdp_tiny_units", SMALL),
    ("foreach_off", SMALL),
    ("needless_checkpointing", LARGE),
    ("loader_serial", SMALL | {"load_ms": 4.0}),
    ("loader_few_workers", LARGE | {"load_ms": 4.0}),
    ("loader_respawn", SMALL | {"traced_steps": 14}),
    ("rank0_evaluation", SMALL | LONG),
    ("cpu_oversubscription", SMALL),
    ("recompile", SMALL | {"layers": 4, "plain_steps": 16}),
    ("alloc_retries", LARGE | LONG),
    ("math_attention", LARGE | {"length": 1024, "batch": 8}),
    ("no_no_sync", SMALL),
    ("small_buckets", SMALL),
    ("metric_reduces", SMALL),
    ("fsdp_fp32", LARGE),
    ("rank0_logging", SMALL),
    ("loader_rank1", LARGE | {"load_ms": 4.0}),
    ("seq_skew", LARGE),
    ("seq_imbalance", LARGE),
    ("slow_gpu", LARGE),
    ("p2p_off", LARGE),
    ("ckpt_stall", SMALL | LONG),
    ("gc_pauses", SMALL),
    ("item_sync", LARGE),
    ("empty_cache", SMALL),
    ("pageable_copy", LARGE),
    ("anomaly", SMALL),
    ("fp32_matmul", LARGE),
    ("healthy_small", SMALL),
)
NEVER_WRONG = ("healthy", "healthy_small")
AHEAD = 2
"""Runs that `aorta profile` has started at a time."""
PART_BYTES = 15 << 20
MOST_PARTS = 4


def main() -> int:
    """Run all, and pack what they left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--patience", type=float, default=40, help="Seconds after which a run is ended.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="Try the script itself.")
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        return ask(*arguments.ask)
    import torch  # noqa: F401 PLC0415  # once, before forking

    sys.path.insert(0, str(ROOT))
    import aorta.inject.start  # noqa: PLC0415
    import aorta.workloads.mistakes.trainer  # noqa: F401 PLC0415

    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mistakes_") as folder:
        series = Series(arguments, Path(folder))
        series.run()
        series.keep()
    return 0


def ask(path: str, name: str) -> int:
    """Have the first process fork the ranks of a run; returns their exit status."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        text = json.dumps({"name": name, "environment": dict(os.environ), "folder": str(Path.cwd())})
        link.sendall(text.encode() + b"\n")
        told = link.recv(16)
    return int(told or b"1")


@dataclass
class Run:
    """One run, from `aorta profile` to what it left."""

    mistake: str
    fixed: bool
    sizes: dict[str, Any]
    results: Path
    profile: subprocess.Popen[bytes] | None = None
    link: socket.socket | None = None
    child: int = 0
    begun: float = 0.0
    packed: list[Future[Path]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Mistake, and whether it is fixed."""
        return f"{self.mistake}{'_fixed' if self.fixed and self.mistake not in NEVER_WRONG else ''}"


class Series:
    """All runs: started ahead, and let onto the GPUs one at a time."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.started = time.monotonic()
        wanted = [(id_, sizes) for id_, sizes in RUNS if not arguments.only or id_ in arguments.only]
        self.waiting = [
            Run(id_, fixed, sizes, folder / f"{id_}{int(fixed)}")
            for id_, sizes in wanted
            for fixed in ((True,) if id_ in NEVER_WRONG else (False, True))
        ]
        self.open: list[Run] = []
        self.done: list[Run] = []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(folder / "ask"))
        self.server.listen()
        self.told, self.tell = os.pipe()
        """Where the ranks of a run say that all is measured."""
        self.pool = ThreadPoolExecutor(8)

    def run(self) -> None:
        """Start, serve and end all runs."""
        chosen = selectors.DefaultSelector()
        chosen.register(self.server, selectors.EVENT_READ)
        chosen.register(self.told, selectors.EVENT_READ)
        busy: Run | None = None
        queue: list[Run] = []
        while self.open or (self.waiting and not self._late()):
            ahead = [run for run in self.open if not run.child]
            if self.waiting and not self._late() and len(ahead) < AHEAD:
                self._start(self.waiting.pop(0))
            for key, _ in chosen.select(0.1):
                if key.fileobj is self.server:
                    queue.append(self._asked())
                else:
                    os.read(self.told, 1)
                    busy = None
            if busy is not None and time.monotonic() - busy.begun > self.arguments.patience:
                print(f"{busy.name}: ended, it took too long", flush=True)
                os.killpg(busy.child, signal.SIGKILL)
                busy.begun = float("inf")
            if self._reaped(busy):
                busy = None
            if busy is None and queue:
                busy = queue.pop(0)
                self._fork(busy)

    def _late(self) -> bool:
        return bool(time.monotonic() - self.started > self.arguments.seconds)

    def _start(self, run: Run) -> None:
        own = [sys.executable, "-m", "aorta", "profile", "--nodes", "1", "--launcher", "own"]
        own += ["--profiler", "none", "--monitor-interval", "0.5", "--results", str(run.results)]
        own += ["--procs-per-node", str(self.arguments.world), "--docs", str(run.results / "docs")]
        gpus = self.arguments.world if self.arguments.device == "cuda" else 0
        own += ["--gpus-per-node", str(gpus), "--override", "capture.warmup_steps=5"]
        own += ["--", str(Path(__file__).resolve()), "--ask", str(self.folder / "ask"), run.name]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        }
        run.results.mkdir()
        with (run.results / "log.txt").open("wb") as log:
            run.profile = subprocess.Popen(
                own, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
            )
        self.open.append(run)

    def _asked(self) -> Run:
        link, _ = self.server.accept()
        text = b""
        while not text.endswith(b"\n"):
            text += link.recv(1 << 16)
        asked = json.loads(text)
        run = next(run for run in self.open if run.name == asked["name"] and run.link is None)
        run.link = link
        run.sizes = {**run.sizes, "environment": asked["environment"], "folder": asked["folder"]}
        return run

    def _fork(self, run: Run) -> None:
        run.begun = time.monotonic()
        run.child = os.fork()
        if run.child:
            return
        os.setpgid(0, 0)
        code = 1
        try:
            code = ranks_of(run, self.arguments, self.tell)
        except BaseException:
            traceback.print_exc()
        os._exit(code)

    def _reaped(self, busy: Run | None) -> bool:
        """Note the runs whose ranks or `aorta profile` have ended; returns True if `busy` is one of them."""
        ended = False
        for run in list(self.open):
            if run.child and run.link is not None:
                pid, status = os.waitpid(run.child, os.WNOHANG)
                if pid:
                    with run.link, contextlib.suppress(OSError):
                        run.link.sendall(str(os.waitstatus_to_exitcode(status) & 255).encode())
                    run.link = None
                    ended = ended or run is busy
            if run.profile is not None and run.profile.poll() is not None:
                self.open.remove(run)
                self.done.append(run)
                run.packed = [self.pool.submit(packed, path) for path in kept_files(run.results)]
                print(f"{run.name}: at {time.monotonic() - self.started:.0f} s: {said(run)}", flush=True)
                ended = ended or run is busy
        return ended

    def keep(self) -> None:
        """Pack what the runs left."""
        left_out = [run.name for run in self.waiting]
        found = {"results": [result(run) for run in self.done], "left_out": left_out}
        text = json.dumps(found, indent=1)
        (self.arguments.output / "results.json").write_text(text, encoding="utf-8")
        files = [(run, item.result()) for run in self.done for item in run.packed]
        # The first rank's traces come first, in case not all find room.
        files.sort(key=lambda pair: pair[1].name.startswith("rank1.pt"))
        archives = Archives(self.arguments.output)
        for run, path in files:
            archives.add(path, f"{run.name}/{path.relative_to(run.results)}")
        archives.close()
        print("did not fit:", archives.left_out)
        print("left out:", left_out)


class Archives:
    """Archives of a limited size, as many as may be."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number, self.size = folder, 0, 0
        self.open: tarfile.TarFile | None = None
        self.left_out: list[str] = []

    def add(self, path: Path, name: str) -> None:
        """Add a file, or note that there is no room."""
        size = path.stat().st_size + 1024
        if self.open is None or self.size + size > PART_BYTES:
            if self.number == MOST_PARTS:
                self.left_out.append(name)
                return
            self.close()
            made = self.folder / f"mistakes_{self.number}.tar"
            self.open = tarfile.open(made, "w")  # noqa: SIM115
            self.number, self.size = self.number + 1, 0
        self.open.add(path, arcname=name)
        self.size += size

    def close(self) -> None:
        """End the open archive."""
        if self.open is not None:
            self.open.close()


def ranks_of(run: Run, arguments: argparse.Namespace, tell: int) -> int:
    """Fork the ranks, and for `slow_gpu` a process that uses the last GPU; returns the worst exit status."""
    spare = burner(arguments) if run.mistake == "slow_gpu" and not run.fixed else 0
    children = []
    for rank in range(arguments.world):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                one_rank(run, rank, arguments, tell)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if spare:
        os.kill(spare, signal.SIGKILL)
    return max(abs(code) for code in codes)


def burner(arguments: argparse.Namespace) -> int:
    """Fork a process that keeps the last rank's GPU busy, and return its id."""
    child = os.fork()
    if child:
        return child
    import torch  # noqa: PLC0415

    cuda = arguments.device == "cuda"
    device = torch.device("cuda", arguments.world - 1) if cuda else torch.device("cpu")
    one = torch.randn(4096 if cuda else 256, 4096 if cuda else 256, device=device)
    while True:
        for _ in range(20):
            one = (one @ one).clamp_(-1, 1)
        if cuda:
            torch.cuda.synchronize()


def one_rank(run: Run, rank: int, arguments: argparse.Namespace, tell: int) -> None:
    """Be a rank of the run: its environment, its hooks, its steps."""
    # What the first process is to do at its end is not for a rank.
    atexit._clear()
    sizes = dict(run.sizes)
    environment, folder = sizes.pop("environment"), sizes.pop("folder")
    os.environ.clear()
    os.environ.update(environment)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(arguments.world)}
    if run.mistake == "p2p_off" and not run.fixed:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    os.chdir(folder)

    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from aorta.inject.start import install  # noqa: PLC0415
    from aorta.workloads.mistakes.options import MistakeOptions  # noqa: PLC0415
    from aorta.workloads.mistakes.trainer import run as train  # noqa: PLC0415

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    install()
    cuda = arguments.device == "cuda"
    options = MistakeOptions(
        **({"plain_steps": 24, **sizes, **(TINY if arguments.tiny else {})}),
        mistake=run.mistake,
        fixed=run.fixed,
        output=run.results / "truth",
        traces=Path(os.environ["AORTA_RUN_DIR"]) / "torch_profiler",
        device=arguments.device,
        backend="nccl" if cuda else "gloo",
    )
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        options.backend,
        rank=rank,
        world_size=arguments.world,
        device_id=torch.device("cuda", rank) if cuda else None,
    )

    def measured() -> None:
        dist.barrier()
        if rank == 0:
            os.write(tell, b".")

    train(options, rank, arguments.world, measured=measured)
    dist.destroy_process_group()
    # What the program's own interpreter would do at its end: the last records are written there.
    atexit._run_exitfuncs()


def analysis_of(run: Run) -> dict[str, Any]:
    """What the analysis of a run says; empty without one."""
    for path in run.results.rglob("profiling_analysis.json"):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {}


def result(run: Run) -> dict[str, Any]:
    """What was timed on each rank, and what the analysis says."""
    ranks = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.results.glob("truth/*.json"))
    ]
    found = analysis_of(run)
    named = ("verdict", "profiler_weight", "profiler_overhead", "mistakes")
    return {"name": run.name, "ranks": ranks, **{key: found.get(key) for key in named}}


def said(run: Run) -> str:
    """One line on a run."""
    found = result(run)
    weight = (found["profiler_weight"] or {}).get("step_ms_without") or {}
    ids = [f"{item['id']} {item['gain']['value']:.2f}" for item in found["mistakes"] or []]
    plain = [f"{item['step_ms']:.1f}" for item in found["ranks"]]
    kind = (found["verdict"] or {}).get("kind")
    return f"plain {plain} without {weight.get('value')} {kind} mistakes {ids}"


def kept_files(results: Path) -> list[Path]:
    """The files of a run that are worth their bytes."""
    wanted = (".json", ".jsonl", ".csv", ".yaml", ".txt", ".out")
    found = [path for path in sorted(results.rglob("*")) if path.is_file() and path.suffix in wanted]
    return [path for path in found if "docs" not in path.relative_to(results).parts]


def packed(path: Path) -> Path:
    """The file as it is kept: large ones compressed."""
    if path.stat().st_size < 1 << 16:
        return path
    made = path.with_name(path.name + ".xz")
    with path.open("rb") as source, lzma.open(made, "wb", preset=6) as target:
        shutil.copyfileobj(source, target)
    path.unlink()
    return made


if __name__ == "__main__":
    sys.exit(main())
