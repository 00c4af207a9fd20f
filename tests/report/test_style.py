from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from aorta.report import style


@pytest.mark.parametrize(
    ("colour", "words"), [(style.WAITING, style.INK), (style.HOST, style.INK), (style.COMPUTE, "white")]
)
def test_words_in_a_bar_can_be_read_on_it(colour: str, words: str) -> None:
    axes = Figure().subplots()
    style.label_bar(axes, 0.5, 0.5, "12 ms", colour)
    assert [text.get_color() for text in axes.texts] == [words]
