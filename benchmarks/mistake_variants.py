"""Known mistakes as other people write them, wrong and fixed, on one GPU: traces alone.

    python benchmarks/mistake_variants.py --output DIR [--only NAME...] [--seconds 200]

Each variant is a class of `variants.py`. Its steps are timed without a profiler, then some are traced.
`results.json` holds both and what the analysis of the trace names; four archives hold the traces. A variant
that would begin after `--seconds` is left out, and named. `--device cpu` tries the script itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.mistakes_kept import Archives, packed  # noqa: E402
from benchmarks.plain_program import Plain  # noqa: E402
from benchmarks.variants import VARIANTS  # noqa: E402

WARM_UP, PLAIN, TRACED = 6, 16, 6


def main() -> int:
    """Run all variants, and keep what they left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    began, results, left_out = time.monotonic(), [], []
    with ThreadPoolExecutor(6) as pool:
        for variant in VARIANTS:
            if arguments.only and variant.__name__ not in arguments.only:
                continue
            for fixed in (False, True):
                name = f"{variant.__name__}{'_fixed' if fixed else ''}"
                if time.monotonic() - began > arguments.seconds:
                    left_out.append(name)
                    continue
                results.append(one(variant, fixed, name, arguments, pool))
    rows = [{**row, "named": row["named"].result() if row["named"] else None} for row in results]
    for row in rows:
        print(row["name"], row["mistake"], row["step_ms"], row["named"], row["failed"] or "", flush=True)
    found = json.dumps({"results": rows, "left_out": left_out}, indent=1)
    (arguments.output / "results.json").write_text(found, encoding="utf-8")
    print("left out:", left_out)
    traces = sorted(arguments.output.glob("*.pt.trace.json"))
    archives = Archives(arguments.output)
    with ThreadPoolExecutor(8) as pool:
        for path in pool.map(packed, traces):
            archives.add(path, path.name)
            path.unlink()
    archives.close()
    print("did not fit:", archives.left_out)
    return 0


def one(
    variant: type[Plain], fixed: bool, name: str, arguments: argparse.Namespace, pool: ThreadPoolExecutor
) -> dict[str, Any]:
    """Returns what a variant's steps took, and the analysis of its trace, which is still under way."""
    row = {"name": name, "mistake": variant.mistake, "fixed": fixed, "step_ms": None, "named": None}
    torch.manual_seed(0)
    try:
        program = variant(torch.device(arguments.device), fixed)
        for _ in range(WARM_UP):
            program.step()
        path = arguments.output / f"{name}.pt.trace.json"
        row["step_ms"] = timed(program)
        trace(program, path)
        row["named"] = pool.submit(named, path)
    except Exception:
        return {**row, "failed": traceback.format_exc(limit=-3)}
    finally:
        program = None
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    return {**row, "failed": None}


def timed(program: Plain) -> float:
    """Mean step in ms, without a profiler."""
    program.finish()
    began = time.perf_counter()
    for _ in range(PLAIN):
        program.step()
    program.finish()
    return round((time.perf_counter() - began) / PLAIN * 1e3, 3)


def trace(program: Plain, path: Path) -> None:
    """Trace some steps as people do it."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if program.device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=TRACED, repeat=1)
    with torch.profiler.profile(activities=kinds, schedule=schedule) as profiler:
        for _ in range(3 + TRACED):
            program.step()
            profiler.step()
    program.finish()
    profiler.export_chrome_trace(str(path))


def named(path: Path) -> list[list[Any]]:
    """The mistakes that the analysis names, with their gains."""
    from aorta.commands._traces import analyze_traces  # noqa: PLC0415

    found = analyze_traces([path]).mistakes
    return [
        [item.id, *(round(end, 2) for end in (item.gain.value, item.gain.low, item.gain.high))]
        for item in found
    ]


if __name__ == "__main__":
    sys.exit(main())
