"""Two-stage pipelines and a tensor-parallel pair on two GPUs, with and without a slow rank, in each format.

    python benchmarks/pipeline_gpu.py --output OUT [--seconds 220] [--nsys PROGRAM --libraries FOLDER]

Each job trains on NCCL: torch's own schedules, a hand-written schedule (`isend` and `irecv`), a batched one
(`batch_isend_irecv`) and a tensor-parallel block. First the plain step is timed, then `StepRecorder` writes
step records, then torch.profiler records four steps. With `--nsys` some jobs run again, each rank under nsys.
A nsys that cannot import its own reports gets the libraries of its importer from `--libraries`.
OUT gets `results.json` (median ms per step of each job), `kineto.tar.xz`, `records.tar.xz` and `nsys.tar.xz`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MICROBATCHES, WIDTH, ROWS = 6, 4096, 2048
SLOW = 3
"""How often the slow rank computes each layer; the others once."""
WARM, TIMED, RECORDED, TRACED = 5, 12, 40, 4
JOBS = ("1f1b", "gpipe", "interleaved", "zero_bubble", "hand", "batched", "tensor")
UNDER_NSYS = (("1f1b", 0), ("1f1b", 1), ("batched", 1), ("tensor", 1))
"""Jobs that also run under nsys, and whether rank 1 is slow."""


def _layer(repeats: int) -> Any:
    from torch import nn  # noqa: PLC0415

    class Layer(nn.Module):
        """A linear layer that is computed several times."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, value: Any) -> Any:
            for _ in range(4 * repeats):
                value = self.weight(value)
            return value

    return Layer().cuda().bfloat16()


def _loss(output: Any, target: Any) -> Any:
    return (output - target).float().square().mean()


def _scheduled(name: str, slow: int) -> Callable[[], None]:
    """A step of one of torch's own schedules."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed import pipelining  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    rank, chunks = dist.get_rank(), 1 if name in ("1f1b", "gpipe") else 2
    group = init_device_mesh("cuda", (2,), mesh_dim_names=("pp",))["pp"].get_group()
    device = torch.device("cuda", rank)
    stages = [
        pipelining.PipelineStage(
            _layer(SLOW if slow and rank else 1), rank + 2 * chunk, 2 * chunks, device, group=group
        )
        for chunk in range(chunks)
    ]
    kinds: dict[str, Any] = {
        "1f1b": pipelining.Schedule1F1B,
        "gpipe": pipelining.ScheduleGPipe,
        "interleaved": pipelining.ScheduleInterleaved1F1B,
        "zero_bubble": getattr(pipelining, "ScheduleInterleavedZeroBubble", None),
    }
    schedule = kinds[name](stages if chunks > 1 else stages[0], MICROBATCHES, loss_fn=_loss)
    batch = torch.randn(ROWS * MICROBATCHES, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        if rank:
            schedule.step(target=batch, losses=[])
        else:
            schedule.step(batch)

    return step


def _by_hand(slow: int, *, batched: bool) -> Callable[[], None]:
    """A step of 1F1B over two stages, which sends and receives by itself."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    rank = dist.get_rank()
    layer = _layer(SLOW if slow and rank else 1)

    def empty() -> Any:
        return torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def exchange(sent: Any, wanted: bool) -> Any:
        found = empty() if wanted else None
        if batched:
            calls = [] if sent is None else [dist.P2POp(dist.isend, sent, 1 - rank)]
            calls += [] if found is None else [dist.P2POp(dist.irecv, found, 1 - rank)]
            works = dist.batch_isend_irecv(calls)
        else:
            # The order is the same on both sides: gradients go before the next activations.
            ways = [("irecv", found), ("isend", sent)] if rank == 0 else [("isend", sent), ("irecv", found)]
            works = [getattr(dist, way)(one, 1 - rank) for way, one in ways if one is not None]
        for work in works:
            work.wait()
        return found

    def first() -> None:
        outputs = [layer(empty().fill_(0.5).requires_grad_())]
        exchange(outputs[0].detach(), wanted=False)
        for index in range(MICROBATCHES):
            more = index + 1 < MICROBATCHES
            if more:
                outputs.append(layer(empty().fill_(0.5).requires_grad_()))
            gradient = exchange(outputs[index + 1].detach() if more else None, wanted=True)
            outputs[index].backward(gradient)

    def last() -> None:
        value = exchange(None, wanted=True)
        for index in range(MICROBATCHES):
            value.requires_grad_()
            _loss(layer(value), 1.0).backward()
            value = exchange(value.grad, wanted=index + 1 < MICROBATCHES)

    return last if rank else first


def _tensor(slow: int) -> Callable[[], None]:
    """A step of a tensor-parallel block."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(4)
    ]
    model: Any = nn.Sequential(*blocks).cuda().bfloat16()
    for block in model:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    extra = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    batch = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        if slow and dist.get_rank():
            for _ in range(40):
                torch.mm(extra, extra)
        model(batch).float().square().mean().backward()

    return step


def _made(name: str, slow: int) -> Callable[[], None]:
    if name in ("hand", "batched"):
        return _by_hand(slow, batched=name == "batched")
    return _tensor(slow) if name == "tensor" else _scheduled(name, slow)


def _timed(step: Callable[[], None]) -> float:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    took = []
    for index in range(WARM + TIMED):
        dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        took += [(time.perf_counter() - started) * 1e3] if index >= WARM else []
    return statistics.median(took)


def _recorded(step: Callable[[], None], folder: Path) -> None:
    import torch  # noqa: PLC0415

    from aorta.instrument import StepRecorder  # noqa: PLC0415

    with StepRecorder(folder, torch.device("cuda", torch.cuda.current_device())) as recorder:
        for index in range(RECORDED):
            with recorder.step(epoch=0, step=index) as opened:
                with recorder.forward():
                    step()
                opened.result(samples=MICROBATCHES, lr=0.1)


def _traced(step: Callable[[], None], path: Path, *, shapes: bool) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=TRACED),
        record_shapes=shapes,
        on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(TRACED + 2):
            step()
            profiler.step()


def _ranks(folder: Path, seconds: float) -> None:
    """All jobs of one rank; torchrun starts it."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    until = time.monotonic() + seconds
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    results: dict[str, object] = {}
    for name in JOBS:
        for slow in (0, 1):
            # Both ranks leave together: rank 0's clock decides.
            late = torch.tensor([time.monotonic() > until], device="cuda", dtype=torch.int32)
            dist.broadcast(late, 0)
            if late.item():
                break
            case = f"{name}_{'slow' if slow else 'clean'}"
            try:
                step = _made(name, slow)
                results[case] = _timed(step)
                _recorded(step, folder / "records" / case)
                _traced(step, folder / "kineto" / case / f"rank{rank}.json", shapes=True)
                if (name, slow) == ("1f1b", 0):
                    _traced(step, folder / "kineto" / "1f1b_no_shapes" / f"rank{rank}.json", shapes=False)
            except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                results[case] = f"{type(error).__name__}: {error}"[:300]
            print(f"rank {rank} {case}: {results[case]}", flush=True)
            torch.cuda.empty_cache()
    (folder / f"results_{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def _one(name: str, slow: int) -> None:
    """One job for nsys: the capture covers its last steps, each in a range of its own."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    step = _made(name, slow)
    _timed(step)
    torch.cuda.profiler.start()
    for index in range(TRACED):
        with torch.cuda.nvtx.range(f"step {index}"):
            step()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    dist.destroy_process_group()


def _nsys(program: str, libraries: Path | None, folder: Path, until: float) -> None:
    """Runs jobs with each rank under nsys, and exports their reports to SQLite."""
    environment = dict(os.environ)
    if libraries is not None:
        found = f"{libraries.resolve()}:{environment.get('LD_LIBRARY_PATH', '')}"
        environment["LD_LIBRARY_PATH"] = found.rstrip(":")
    importer = next(Path(program).resolve().parents[1].glob("host-linux-x64/QdstrmImporter"), None) or next(
        Path(program).resolve().parents[1].glob("*/QdstrmImporter"), None
    )
    folder.mkdir(parents=True)
    for name, slow in UNDER_NSYS:
        if time.monotonic() > until:
            print(f"nsys {name}: no time left")
            break
        case = f"{name}_{'slow' if slow else 'clean'}"
        out = folder / case
        out.mkdir()
        # torchrun gives each rank its number; the shell expands it for nsys.
        under = (
            f"exec {program} profile -t cuda,nvtx -s none --cpuctxsw=none --capture-range=cudaProfilerApi"
            f" --capture-range-end=stop -f true -o {out}/rank$RANK"
            f" {sys.executable} {Path(__file__).resolve()} --job {name} --slow {slow} --output {out}"
        )
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["--no-python", "bash", "-c", under]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        print(f"nsys {case}: status {done.returncode}", (done.stdout + done.stderr)[-400:], flush=True)
        for stream in sorted(out.glob("*.qdstrm")):
            if importer is not None:
                _told([str(importer), "-i", str(stream)], environment)
        for report in sorted(out.glob("*.nsys-rep")):
            target = report.with_suffix(".sqlite")
            _told(
                [program, "export", "-t", "sqlite", "-f", "true", "-o", str(target), str(report)], environment
            )
        for extra in (*out.glob("*.qdstrm"), *out.glob("*.nsys-rep")):
            if extra.with_suffix(".sqlite").exists():
                extra.unlink()
        print(sorted((one.name, one.stat().st_size) for one in out.iterdir()), flush=True)


def _told(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        print(f"{command[0]}: status {done.returncode}", (done.stdout + done.stderr)[-400:], flush=True)


def _pack(folder: Path, target: Path) -> None:
    if folder.is_dir():
        with tarfile.open(target, "w:xz", preset=1) as archive:
            archive.add(folder, arcname=folder.name)
        print(target.name, target.stat().st_size)


def main() -> int:
    """Runs every job, packs what they left, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("--nsys", help="The nsys program; without it only torch.profiler records.")
    parser.add_argument("--libraries", type=Path, help="Libraries that nsys' importer lacks.")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--slow", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ranks:
        _ranks(given.output, given.seconds)
        return 0
    if given.job:
        _one(given.job, given.slow)
        return 0
    until = time.monotonic() + given.seconds
    given.output.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(Path(__file__).resolve()), "--ranks", "--output", str(work)]
    done = subprocess.run([*command, "--seconds", str(given.seconds * 0.55)], check=False)
    results = work / "results_0.json"
    if results.is_file():
        shutil.copy(results, given.output / "results.json")
    _pack(work / "kineto", given.output / "kineto.tar.xz")
    _pack(work / "records", given.output / "records.tar.xz")
    if given.nsys:
        _nsys(given.nsys, given.libraries, work / "nsys", until - 35)
        _pack(work / "nsys", given.output / "nsys.tar.xz")
    shutil.rmtree(work, ignore_errors=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
