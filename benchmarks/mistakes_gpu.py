"""Known mistakes on one GPU, wrong and fixed, timed without a profiler and then traced.

    python benchmarks/mistakes_gpu.py --output DIR [--only ID...] [--seconds 450]

Each run is a process that is forked after torch was imported once. It times plain steps, then records some
under torch.profiler. Traces and truth.json files are packed into `mistakes_<n>.tar.xz`, at most 15 MiB each;
`results.json` holds what was timed. A run that would begin after `--seconds` is left out, and named. The last
lines compare each estimate of aorta with the plain step, where aorta's libraries are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aorta.workloads.mistakes.options import MistakeOptions  # noqa: E402

SMALL = {"width": 512, "heads": 8, "layers": 8, "length": 256, "batch": 8, "vocabulary": 16_384}
"""The host is the limit."""
LARGE = {"width": 1024, "heads": 16, "layers": 10, "length": 512, "batch": 16, "vocabulary": 16_384}
"""The GPU is the limit."""
TINY = {"width": 32, "heads": 2, "layers": 2, "length": 16, "batch": 2, "vocabulary": 64, "plain_steps": 4}
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("healthy", LARGE),
    ("healthy_small", SMALL),
    ("foreach_off", SMALL),
    ("empty_cache", SMALL),
    ("item_sync", LARGE),
    ("pageable_copy", LARGE),
    ("fp32_matmul", LARGE),
    ("math_attention", LARGE | {"length": 1024, "batch": 8}),
    ("needless_checkpointing", LARGE),
    ("loader_serial", SMALL),
    ("loader_few_workers", LARGE | {"load_ms": 8.0}),
    ("loader_respawn", SMALL | {"traced_steps": 14}),
    ("rank0_logging", SMALL),
    ("anomaly", SMALL),
    ("gc_pauses", SMALL),
    ("ckpt_stall", SMALL | {"traced_steps": 5}),
    ("recompile", SMALL | {"layers": 4}),
    ("no_no_sync", SMALL),
    ("small_buckets", SMALL),
    ("metric_reduces", SMALL),
)
IN_A_GROUP = ("no_no_sync", "small_buckets", "metric_reduces")
"""These need a process group, here of one rank: their collectives are launched and exchange nothing."""
NEVER_WRONG = ("healthy", "healthy_small")
STACKS = ("item_sync", "empty_cache", "pageable_copy", "rank0_logging")
"""Recorded once more with Python stacks, wrong only."""
PART_BYTES = 15 << 20


def main() -> int:
    """Run all, pack the traces, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="Try the script itself, on a CPU.")
    arguments = parser.parse_args()
    import torch  # noqa: F401 PLC0415  # once, before forking

    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="mistakes_"))
    results, left_out = [], []
    for name, sizes in RUNS:
        if arguments.only and name not in arguments.only:
            continue
        variants = [("", False), ("fixed", True)] if name not in NEVER_WRONG else [("", True)]
        variants += [("stacks", False)] if name in STACKS else []
        for suffix, fixed in variants:
            folder = work / f"{name}{suffix}"
            if time.monotonic() - started > arguments.seconds:
                left_out.append(folder.name)
                continue
            options = MistakeOptions(
                **({"plain_steps": 40, **sizes, **(TINY if arguments.tiny else {})}),
                mistake=name,
                fixed=fixed,
                output=folder,
                device=arguments.device,
                backend="nccl" if arguments.device == "cuda" else "gloo",
                stacks=suffix == "stacks",
            )
            results.append(forked(options))
            print(json.dumps(results[-1]), f"at {time.monotonic() - started:.0f} s", flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"results": results, "left_out": left_out}, indent=1)
    (arguments.output / "results.json").write_text(text, encoding="utf-8")
    pack(work, arguments.output)
    compare(work)
    print("left out:", left_out)
    shutil.rmtree(work)
    return 0


def forked(options: MistakeOptions) -> dict[str, Any]:
    """What a run found, in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _run(options)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    path = options.output / "truth_rank0.json"
    if status or not path.exists():
        return {"case": options.output.name, "failed": status}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    (options.output / "truth.json").write_text(json.dumps(found), encoding="utf-8")
    path.unlink()
    return {"folder": options.output.name, **found}


def _run(options: MistakeOptions) -> None:
    import torch.distributed as dist  # noqa: PLC0415

    from aorta.workloads.mistakes.trainer import run  # noqa: PLC0415

    if options.mistake in IN_A_GROUP:
        store = f"file://{options.output.parent}/store_{options.output.name}"
        dist.init_process_group(options.backend, init_method=store, rank=0, world_size=1)
    run(options, grouped=options.mistake in IN_A_GROUP)
    if dist.is_initialized():
        dist.destroy_process_group()


def pack(work: Path, output: Path) -> None:
    """All folders in archives that stay below `PART_BYTES`."""
    number, archive = 0, None
    for folder in sorted(work.iterdir()):
        if not folder.is_dir():
            continue
        made = output / f"mistakes_{number}.tar.xz"
        if archive is None:
            archive = tarfile.open(made, "w:xz", preset=4)  # noqa: SIM115
        archive.add(folder, arcname=folder.name)
        # xz holds back at most a few MiB of what it was given.
        if made.stat().st_size > PART_BYTES - (5 << 20):
            archive.close()
            number, archive = number + 1, None
    if archive is not None:
        archive.close()


def compare(work: Path) -> None:
    """The estimated step beside the plain one, and the mistakes named."""
    try:
        from aorta.commands._traces import analyze_traces  # noqa: PLC0415
    except ImportError as error:
        print(f"not compared: {error}")
        return
    for folder in sorted(path for path in work.iterdir() if (path / "truth.json").exists()):
        truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
        try:
            found = analyze_traces([folder / "rank0.pt.trace.json"])
        except Exception as error:  # one trace must not end the others
            print(folder.name, "not analysed:", error)
            continue
        weight = found.profiler_weight
        about = None if weight is None else weight.step_ms_without
        ids = [item.id for item in getattr(found, "mistakes", [])]
        if about is not None and weight is not None:
            off = about.value / truth["step_ms"] - 1
            print(
                f"{folder.name:28s} plain {truth['step_ms']:7.2f} traced {weight.step_ms:7.2f} without "
                f"{about.value:7.2f} [{about.low:.2f}, {about.high:.2f}] {off:+.1%} mistakes {ids}"
            )
        else:
            print(folder.name, "no estimate; mistakes", ids)


if __name__ == "__main__":
    sys.exit(main())
