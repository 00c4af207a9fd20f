"""`aorta validate --mistakes`: known mistakes in real runs of a plain trainer, wrong and fixed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from aorta.commands._say import say
from aorta.validation.mistakes import MistakeRun, run_mistakes, table


def validate_mistakes(folder: Path, *, gpu: bool) -> int:
    """Run them below `folder`, and print a line per run; 0 if all are right."""
    from aorta.commands._traces import analyze_traces

    def named(paths: Sequence[Path]) -> list[str]:
        return [item.id for item in analyze_traces(paths).mistakes]

    def tell(cell: MistakeRun) -> None:
        say(f"{cell.mistake} {'fixed' if cell.fixed else 'wrong'}: {'right' if cell.right else 'WRONG'}")

    cells = run_mistakes(folder, named, tell, gpu=gpu)
    click.echo(table(cells))
    return 0 if all(cell.right for cell in cells) else 1
