"""Fourteen real gloo jobs with `StepRecorder`: are kind and ranks right?

    python benchmarks/recorded_jobs.py FOLDER [--only TEXT]

GPipe, 1F1B, DDP with a pipeline, an own all-to-all, tensor parallelism, replicas of it, and DDP with
BatchNorm: each without a fault and with one slow rank or stage, through `aorta profile`. A folder that holds
some of the runs goes on. The exit status is 1 if one of them is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aorta.commands._validation import analyse
from aorta.validation.meshes import MeshTrial, recorded_matrix, run_meshes, summary


def main() -> int:
    """Runs what is not on record yet, and prints the table."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("folder", type=Path)
    flags.add_argument("--only", default="", metavar="TEXT", help="runs whose names hold it")
    given = flags.parse_args()

    def tell(trial: MeshTrial) -> None:
        right = "right" if trial.right else "WRONG"
        print(f"{trial.cell}: {right}: {trial.verdict or trial.problem} {trial.ranks}", flush=True)

    cells = [cell for cell in recorded_matrix() if given.only in cell.name]
    trials = run_meshes(cells, given.folder.resolve(), analyse, tell)
    print(summary(trials))
    return 0 if all(trial.right for trial in trials) else 1


if __name__ == "__main__":
    raise SystemExit(main())
