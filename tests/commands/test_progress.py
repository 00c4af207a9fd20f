"""The words and the line of a run that goes on."""

import io

import pytest
from rich.console import Console

from aorta.commands._progress import ProgressLine, clock, place_words, progress_words, step_words
from aorta.launch.progress import RunProgress


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (RunProgress("starting agents"), "starting the agents, elapsed 0:07"),
        (RunProgress("starting ranks", total=300), "starting ranks, elapsed 0:07"),
        (
            RunProgress("training", 100, 300, 0.041),
            # (300 - 100) steps of 41 ms
            "training, 100/300 steps of 41 ms, elapsed 0:07, training ends in 0:08",
        ),
        (RunProgress("training", 100, None, 2.25), "training, 100 steps of 2.2 s, elapsed 0:07"),
        (RunProgress("training", 1, 300), "training, 1/300 steps, elapsed 0:07"),
        (RunProgress("training", 1), "training, 1 step, elapsed 0:07"),
        (RunProgress("saving", 300, 300, 0.041), "saving traces and samples, elapsed 0:07"),
    ],
)
def test_every_phase_says_what_it_is_and_names_its_times(progress: RunProgress, words: str) -> None:
    assert progress_words(progress, 7) == words


def test_clocks() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3599, 3600 + 62)] == [
        "0:00",
        "1:00",
        "1:01",
        "59:59",
        "1:01:02",
    ]
    assert (step_words(0.0407), step_words(12.34)) == ("40.7 ms", "12.3 s")


def test_the_place_among_several_and_the_name_alone() -> None:
    assert place_words("scenario", 1, 3, "2node") == "scenario 2 of 3: 2node"
    assert place_words("scenario", 0, 1, "2node") == "2node"


def test_a_terminal_shows_the_line_and_is_left_clean() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with ProgressLine(console, "scenario 2 of 3: 2node") as line:
        line.show("training, 100/300 steps", done=100, total=300)
    assert "scenario 2 of 3: 2node" in screen.getvalue()
    assert "training, 100/300 steps" in screen.getvalue()


def test_a_terminal_that_renews_no_line_gets_one_per_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = io.StringIO()
    with ProgressLine(Console(file=screen, force_terminal=True, width=100), "2node") as line:
        for told in ("starting ranks, elapsed 0:01", "starting ranks, elapsed 0:02", "training, 3 steps"):
            line.show(told)
        line.show("", name="analysing 2node")
    assert screen.getvalue().split("\n") == ["2node starting ranks", "2node training", "analysing 2node", ""]


def test_elsewhere_nothing_is_shown() -> None:
    written = io.StringIO()
    with ProgressLine(Console(file=written), "scenario 2 of 3: 2node") as line:
        line.show("training, 100/300 steps", done=100, total=300)
    assert written.getvalue() == ""
