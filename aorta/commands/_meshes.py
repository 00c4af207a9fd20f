"""`aorta validate --mesh`: pipelines and other meshes with known faults."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from aorta.commands._say import say


def validate_meshes(folder: Path, *, small: bool) -> int:
    """Run the matrix and print its table. Exit status 0: all are right, gains within 10 % in the median.

    Args:
        folder: of the runs; one that has some goes on.
        small: the first run of each job and fault.
    """
    from aorta.commands._validation import analyse
    from aorta.validation.meshes import GAIN_ERROR, MeshTrial, gain_errors, mesh_matrix, run_meshes, summary

    cells = mesh_matrix()
    if small:
        cells = [cell for cell in cells if cell.fault == "none" or cell.rank == 2]
    say(f"{len(cells)} runs; to go on after an interruption: add --into {folder}")

    def tell(trial: MeshTrial) -> None:
        right = "right" if trial.right else "WRONG"
        say(f"{trial.cell}: {right}: {trial.verdict or trial.problem} {trial.ranks or ''}")

    trials = run_meshes(cells, folder.resolve(), analyse, tell)
    say(summary(trials))
    errors = gain_errors(trials)
    good = all(trial.right for trial in trials) and (not errors or median(errors) <= GAIN_ERROR)
    return 0 if good else 1
