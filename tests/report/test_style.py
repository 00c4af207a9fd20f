from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from aorta.report import palette, style


@pytest.mark.parametrize(
    ("colour", "words"),
    [(palette.WAITING, palette.INK), (palette.HOST, palette.INK), (palette.COMPUTE, "white")],
)
def test_words_in_a_bar_can_be_read_on_it(colour: str, words: str) -> None:
    axes = Figure().subplots()
    style.label_bar(axes, 0.5, 0.5, "12 ms", colour)
    assert [text.get_color() for text in axes.texts] == [words]
