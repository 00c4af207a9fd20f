"""Trainers of others, unchanged, with and without faults on rank 1: kind, rank and line of what aorta says.

    python -m venv /tmp/trainers
    /tmp/trainers/bin/pip install -r benchmarks/public_trainers/requirements.txt
    python benchmarks/public_trainers/run.py --python /tmp/trainers/bin/python --output results/public

Each of 12 trainers runs clean, with a slow loader, and with slow host work, on two ranks of gloo. Compute
sleeps, so that two cores serve both ranks. A run that is in `runs.jsonl` already is not repeated. The table
says of each run what was expected and what was found, and the predicted speed-up beside the real one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FAULTS = ("clean", "loader", "host")
STEPS = 70
PATIENCE_S = 300


@dataclass(frozen=True)
class Trainer:
    """One of the programs, and what a slow loader is in it."""

    name: str
    words: tuple[str, ...]
    loader: str = "data_loading"
    """`straggler` where batches come from no DataLoader: loading is part of the host's work there."""
    place: str = "preprocess"
    """The function of the host work."""
    loader_place: str | None = None


TRAINERS = (
    Trainer("nanogpt", ("nanogpt.py",), loader="straggler", loader_place="get_batch"),
    Trainer("ddp_tutorial", ("ddp_tutorial.py",)),
    Trainer("hf_trainer", ("hf_trainer.py",)),
    Trainer("accelerate", ("accelerate_loop.py",)),
    Trainer("lightning", ("lightning_fit.py",)),
    Trainer("deepspeed_zero1", ("deepspeed_zero.py", "1")),
    Trainer("deepspeed_zero2", ("deepspeed_zero.py", "2")),
    Trainer("deepspeed_zero3", ("deepspeed_zero.py", "3")),
    Trainer("fsdp2", ("fsdp2.py",)),
    Trainer("gan", ("gan.py",)),
    Trainer("ddp_batchnorm", ("ddp_batchnorm.py",)),
    Trainer("compiled", ("compiled.py",)),
)


def run(trainer: Trainer, fault: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a trainer once, and analyse it."""
    results = options.output / "runs"
    job = f"{trainer.name}-{fault}"
    folder = results / "1node" / f"run_{job}"
    shutil.rmtree(folder, ignore_errors=True)
    aorta = str(Path(sys.executable).with_name("aorta"))
    command = [aorta, "run-node", "--scenario", "1node", "--results", str(results), "--job-id", job]
    command += ["--config", str(ROOT / "config" / "small.yaml"), "--executor", "local", "--nodes", "1"]
    command += [
        "--node-index",
        "0",
        "--procs-per-node",
        "2",
        "--python",
        options.python,
        "--steps",
        str(STEPS),
        "--",
    ]
    command += [str(HERE / "trainers" / trainer.words[0]), *trainer.words[1:]]
    env = os.environ | {"FAULT": fault, "STEPS": str(STEPS + 20), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        code, said = done.returncode, done.stdout[-2000:] + done.stderr[-1000:]
    except subprocess.TimeoutExpired:
        code, said = 124, "out of patience"
    answer = options.output / f"{job}.json"
    subprocess.run(
        [aorta, "analyze", str(folder), "--json", str(answer)], cwd=ROOT, capture_output=True, check=False
    )
    found = json.loads(answer.read_text()) if answer.is_file() else {}
    causes = [one for one in found.get("findings", []) if one.get("symptom_of") is None]
    first = causes[0] if causes else {}
    rate = found.get("throughput") or {}
    return {
        "trainer": trainer.name,
        "fault": fault,
        "code": code,
        "seconds": time.monotonic() - began,
        "kind": (found.get("verdict") or {}).get("kind"),
        "ranks": (found.get("verdict") or {}).get("ranks"),
        "where": first.get("where"),
        "predicted": (first.get("estimated_speedup") or {}).get("expected"),
        "step_ms": rate.get("step_ms_mean"),
        "statement": (found.get("verdict") or {}).get("statement"),
        "said": said if code else "",
    }


def judged(row: dict[str, Any], trainer: Trainer) -> tuple[bool, str]:
    """Whether a run was judged right, and what was expected."""
    if row["fault"] == "clean":
        return row["kind"] in ("healthy", "incomplete"), "no alarm"
    kind = "straggler" if row["fault"] == "host" else trainer.loader
    place = trainer.place if row["fault"] == "host" else trainer.loader_place
    right = row["kind"] == kind and row["ranks"] == [1]
    if place is not None:
        right = right and (row["where"] or {}).get("function") == place
    return right, f"{kind} on rank 1" + (f", {place}" if place else "")


def show(rows: list[dict[str, Any]]) -> None:
    """The table, and what it comes to."""
    by_name = {trainer.name: trainer for trainer in TRAINERS}
    clean = {row["trainer"]: row["step_ms"] for row in rows if row["fault"] == "clean"}
    right = {"clean": 0, "fault": 0}
    near = []
    print("| trainer | fault | expected | found | where | step ms | speed-up predicted | real |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        good, expected = judged(row, by_name[row["trainer"]])
        right["clean" if row["fault"] == "clean" else "fault"] += good
        base, own = clean.get(row["trainer"]), row["step_ms"]
        real = own / base if base and own and row["fault"] != "clean" else None
        if real is not None and row["predicted"]:
            near.append(abs((row["predicted"] - 1) / (real - 1) - 1) if real != 1 else 1.0)
        place, mark = row["where"], "" if good else "**"
        shown = f"{place['function']}, {Path(place['file']).name}:{place['line']}" if place else ""
        found = f"{mark}{row['kind']} {row['ranks']}{mark}"
        numbers = f"{own or 0:.1f} | {row['predicted'] or 0:.2f} | {real or 0:.2f}"
        print(f"| {row['trainer']} | {row['fault']} | {expected} | {found} | {shown} | {numbers} |")
    faults = sum(row["fault"] != "clean" for row in rows)
    clean_runs = len(rows) - faults
    print(f"\n{right['fault']} of {faults} faults right; no alarm in {right['clean']} of {clean_runs}")
    if near:
        within, off = sum(one <= 0.25 for one in near), statistics.median(near)
        print(f"predicted gain within 25 % of the real one in {within} of {len(near)}, median {off:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", required=True, help="with the packages of requirements.txt, and without aorta"
    )
    parser.add_argument("--output", type=Path, default=Path("results/public_trainers"))
    parser.add_argument("--only", help="names of trainers, with commas")
    options = parser.parse_args()
    options.output = options.output.absolute()
    options.output.mkdir(parents=True, exist_ok=True)
    kept = options.output / "runs.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    done = {(row["trainer"], row["fault"]) for row in rows}
    for trainer in TRAINERS:
        if options.only and trainer.name not in options.only.split(","):
            continue
        for fault in FAULTS:
            if (trainer.name, fault) in done:
                continue
            row = run(trainer, fault, options)
            rows.append(row)
            with kept.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            good, expected = judged(row, trainer)
            print(
                f"{trainer.name} {fault}: {row['kind']} {row['ranks']} ({'right' if good else expected})",
                flush=True,
            )
    show(rows)


if __name__ == "__main__":
    main()
