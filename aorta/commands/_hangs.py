"""`aorta validate --hangs`: jobs that stand still on purpose."""

from __future__ import annotations

from pathlib import Path

from aorta.commands._say import say


def validate_hangs(folder: Path, *, small: bool) -> int:
    """Run the matrix of standstills and print its table. Exit status 0: at least 95 % right, no false alarm.

    Args:
        folder: of the runs; one that has some goes on.
        small: one run per case, on one node.
    """
    from aorta.commands._validation import analyse
    from aorta.validation.hangs import SLOW, HangTrial, hang_matrix, run_hangs, summary

    cells = [cell for cell in hang_matrix(1) if cell.nodes == 1] if small else hang_matrix()
    say(f"{len(cells)} runs; to go on after an interruption: add --into {folder}")

    def tell(trial: HangTrial) -> None:
        noticed = "not noticed" if trial.after_s is None else f"noticed after {trial.after_s:.1f} s"
        right = "right" if trial.right else "WRONG"
        say(f"{trial.cell}: {right}: {trial.verdict} {trial.kind or ''} {trial.ranks or ''}, {noticed}")

    trials = run_hangs(cells, folder.resolve(), analyse, tell)
    say(summary(trials))
    hung = [trial.right for trial in trials if trial.case not in SLOW]
    slow = [trial.right for trial in trials if trial.case in SLOW]
    return 0 if sum(hung) >= 0.95 * len(hung) and all(slow) else 1
