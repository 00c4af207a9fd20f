"""Does instrumentation change the training? Loss curves and weights, with and without it.

    torchrun --nproc_per_node 2 benchmarks/harmlessness.py [--steps 40] [--json FILE]

For FSDP2 and DDP, with and without gradient accumulation, in fp32: with deterministic algorithms the losses
and the weights have to be equal bit by bit; without, the losses within 1e-6 of each other. On a CPU: --small.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from loops import Training, say, settings, shared_folder, strategies, write
from torch.nn.attention import SDPBackend, sdpa_kernel

from aorta.workloads.trainer.world import World, join

TOLERANCE = 1e-6
BOTH_KINDS = ["capture.warmup_steps=0", "capture.detail_interval=2"]
"""30 steps are timed part by part, the others as a whole."""


def train(overrides: list[str], world: World, folder: Path | None, given: argparse.Namespace) -> Any:
    """The losses of a run and its weights at the end, this rank's."""
    run = Training(settings(given.small, *overrides), world, folder)
    losses = [run.step() for _ in range(given.steps)]
    run.close()
    weights = [value.detach().clone() for value in run._weights.parameters]
    return torch.stack(losses).double().cpu(), weights


def compare(overrides: list[str], world: World, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The same training twice."""
    plain, plain_weights = train(overrides, world, None, given)
    recorded, weights = train(overrides, world, folder, given)
    apart = ((plain - recorded).abs() / plain.abs()).max()
    same = torch.equal(plain, recorded) and all(
        torch.equal(a, b) for a, b in zip(plain_weights, weights, strict=True)
    )
    worst = torch.stack((apart, torch.tensor(0.0 if same else 1.0, dtype=torch.float64)))
    torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MAX, group=world.control)
    return {
        "relative_difference": float(worst[0]),
        "bitwise_equal": not float(worst[1]),
        "first_loss": float(plain[0]),
        "last_loss": float(plain[-1]),
    }


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--steps", type=int, default=40)
    flags.add_argument("--small", action="store_true")
    flags.add_argument("--json", type=Path)
    given = flags.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    rows = []
    with join(settings(given.small)) as world:
        folder = shared_folder(world)
        say(world, f"{'mode':<16}{'strategy':<10}{'accumulation':>13}{'equal':>7}{'relative':>12}  loss")
        for deterministic in (True, False):
            torch.use_deterministic_algorithms(deterministic)
            backend = SDPBackend.MATH if deterministic else SDPBackend.EFFICIENT_ATTENTION
            for strategy, chosen in strategies(world).items():
                for parts in (1, 4):
                    overrides = [
                        *chosen,
                        f"training.gradient_accumulation={parts}",
                        "training.mixed_precision=none",
                        *BOTH_KINDS,
                    ]
                    mode = "deterministic" if deterministic else "usual"
                    with sdpa_kernel([backend, SDPBackend.MATH]):
                        row = compare(overrides, world, folder / f"{mode}_{strategy}_{parts}", given)
                    met = row["bitwise_equal"] if deterministic else row["relative_difference"] <= TOLERANCE
                    rows.append(
                        {"mode": mode, "strategy": strategy, "accumulation": parts, **row, "met": met}
                    )
                    say(
                        world,
                        f"{mode:<16}{strategy:<10}{parts:>13}{row['bitwise_equal']!s:>7}"
                        f"{row['relative_difference']:>12.2e}  {row['first_loss']:.4f} to"
                        f" {row['last_loss']:.4f}{'' if met else '  NOT MET'}",
                    )
        write(given.json, world, {"tolerance": TOLERANCE, "steps": given.steps, "rows": rows})


if __name__ == "__main__":
    main()
