"""The line that a terminal shows while something runs. Where there is no terminal, nothing is shown."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from aorta.launch.progress import RunProgress

if TYPE_CHECKING:
    from rich.console import Console

_PHASES = {
    "starting agents": "starting the agents",
    "starting ranks": "starting ranks",
    "training": "training",
    "saving": "saving traces and samples",
}


def place_words(what: str, place: int, count: int, name: str) -> str:
    """`scenario 2 of 3: 2node`; the name alone where there is one of them."""
    return name if count == 1 else f"{what} {place + 1} of {count}: {name}"


def progress_words(progress: RunProgress, elapsed_s: float) -> str:
    """Returns what a run does now, its steps, and its times, each with its name."""
    words = [_PHASES[progress.phase]]
    if progress.phase == "training":
        one = progress.total is None and progress.steps == 1
        words[0] += f", {progress.words} {'step' if one else 'steps'}"
        if progress.step_s is not None:
            words[0] += f" of {step_words(progress.step_s)}"
    words.append(f"elapsed {clock(elapsed_s)}")
    if progress.left_s is not None:
        words.append(f"training ends in {clock(progress.left_s)}")
    return ", ".join(words)


def step_words(seconds: float) -> str:
    """The time of a step: `41 ms` or `2.3 s`."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def clock(seconds: float) -> str:
    """`0:07`, `12:34` or `1:02:03`."""
    whole = round(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{minutes.zfill(5)}" if whole >= 3600 else minutes


def renews(console: Console) -> bool:
    """Returns True where a line that was written can be replaced: on a terminal that is not dumb."""
    return console.is_terminal and not console.is_dumb_terminal


class ProgressLine:
    """One line with a spinner and a bar, on a terminal; it moves also while nothing is known.

    A terminal that cannot replace a line, such as a shell in an editor, gets a line for each phase.
    """

    def __init__(self, console: Console, name: str) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[told]}", markup=False),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not renews(console))
        self._task = self._bar.add_task(name, total=None, told="")
        self._console, self._name, self._printed = console, name, ""

    def __enter__(self) -> ProgressLine:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, told: str, *, done: int = 0, total: int | None = None, name: str | None = None) -> None:
        """Show `told` behind the bar; without a total the bar runs to and fro."""
        self._bar.update(self._task, total=total, completed=done, told=told)
        if name is not None:
            self._name = name
            self._bar.update(self._task, description=name)
        line = " ".join((self._name, told.partition(",")[0])).rstrip()
        if self._console.is_dumb_terminal and line != self._printed:
            self._printed = line
            self._console.print(line, markup=False, highlight=False)
