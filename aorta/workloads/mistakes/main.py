"""One rank of the plain trainer as a program: `python -m aorta.workloads.mistakes.main --mistake ID ...`.

A launcher's `RANK` and `WORLD_SIZE` take the place of `--rank` and `--world`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist

from aorta.workloads.mistakes.options import MistakeOptions
from aorta.workloads.mistakes.trainer import run


def main() -> None:
    """Train, trace, write `truth_rank<r>.json` and the trace into the output folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mistake", required=True)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--variant", default="")
    parser.add_argument("--load-ms", type=float)
    parser.add_argument("--rank", type=int, default=os.environ.get("RANK", "0"))
    parser.add_argument("--world", type=int, default=os.environ.get("WORLD_SIZE", "1"))
    for name in ("width", "layers", "length", "batch", "plain-steps", "traced-steps"):
        parser.add_argument(f"--{name}", type=int)
    given = {key: value for key, value in vars(parser.parse_args()).items() if value is not None}
    rank, world = given.pop("rank"), given.pop("world")
    options = MistakeOptions(**given, backend="nccl" if given["device"] == "cuda" else "gloo")
    if options.device == "cpu":
        torch.set_num_threads(1)
    if world > 1:
        options.output.mkdir(parents=True, exist_ok=True)
        launched = "MASTER_ADDR" in os.environ
        store = "env://" if launched else f"file://{(options.output / 'store').resolve()}"
        dist.init_process_group(options.backend, init_method=store, rank=rank, world_size=world)
    run(options, rank, world)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
