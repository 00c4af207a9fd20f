"""Ranks of a run of `mistakes_gpu.py`, forked by its first process, which has imported torch once."""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import socket
import subprocess
import traceback
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NEVER_WRONG = ("healthy", "healthy_small", "healthy_shapes")
TINY = {"width": 32, "heads": 2, "layers": 2, "length": 16, "batch": 2, "vocabulary": 64, "plain_steps": 20}


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
        """Mistake, its variant, and whether it is fixed."""
        variant = self.sizes.get("variant")
        fixed = "_fixed" if self.fixed and self.mistake not in NEVER_WRONG else ""
        return f"{self.mistake}{f'_{variant}' if variant else ''}{fixed}"


def ranks_of(run: Run, arguments: argparse.Namespace, tell: int) -> int:
    """Fork the ranks, and for `slow_gpu` a process that uses the last GPU; returns the worst exit status."""
    keep_what_is_printed(run.results / "ranks.txt")
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


def keep_what_is_printed(path: Path) -> None:
    """Write what this process and its children print into a file."""
    with path.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


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
    sizes = {key: value for key, value in run.sizes.items() if key != "patience"}
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
