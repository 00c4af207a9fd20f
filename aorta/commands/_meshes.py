"""`aorta validate --mesh`: pipelines and other meshes with known faults."""

from __future__ import annotations

from pathlib import Path

from aorta.averages import median
from aorta.commands._say import say

_FIRST = {(1, 2), (0, 2)}
"""Slow links of a small matrix."""


def validate_meshes(folder: Path, *, small: bool, again: bool = False) -> int:
    """Run the matrix and print its table. Exit status 0: all are right, gains within 10 % in the median.

    Args:
        folder: of the runs; one that has some goes on.
        small: the first run of each job and fault.
        again: analyse the runs of the folder again; run nothing.
    """
    from aorta.cluster.network import unusable
    from aorta.cluster.pairs import joined
    from aorta.commands._validation import analyse
    from aorta.validation.meshes import (
        GAIN_ERROR,
        MeshTrial,
        analyse_meshes,
        gain_errors,
        mesh_matrix,
        run_meshes,
        summary,
    )

    lacking = None if again else unusable()
    if lacking:
        say(f"slow links are left out: network namespaces cannot be made here ({lacking})")
    cells = mesh_matrix(links=not lacking)
    if small:
        cells = [cell for cell in cells if cell.fault == "none" or cell.rank == 2 or cell.link in _FIRST]
    if not again:
        say(f"{len(cells)} runs; to continue after an interruption: add --into {folder}")

    def tell(trial: MeshTrial) -> None:
        right = "right" if trial.right else "WRONG"
        say(f"{trial.cell}: {right}: {trial.verdict or trial.problem} {trial.ranks or ''}")

    root = folder.resolve()
    trials = analyse_meshes(cells, root, analyse) if again else run_meshes(cells, root, analyse, tell, joined)
    say(summary(trials))
    errors = gain_errors(trials)
    good = all(trial.right for trial in trials) and (not errors or median(errors) <= GAIN_ERROR)
    return 0 if good else 1
