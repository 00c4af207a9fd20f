"""Mistakes on the first screen: the likely reason of the verdict, or something else that was found."""

from __future__ import annotations

import pytest

from aorta.artefacts.mistakes import Mistake
from aorta.artefacts.weight import Estimate
from aorta.report.advice import likely_reasons
from aorta.report.blocks import Code
from tests.support.analyses import analysis, data_loading_finding


def said(mistake: Mistake, ranks: list[int]) -> tuple[str, str]:
    finding = data_loading_finding(ranks=ranks)
    ((name, line),) = likely_reasons(analysis(findings=[finding], mistakes=[mistake]), finding)
    pieces = [line] if isinstance(line, str) else list(line)
    return name, "".join(piece.text if isinstance(piece, Code) else str(piece) for piece in pieces)


def slow_gpu(gain: float = 1.3, *, intended: bool = False) -> Mistake:
    return Mistake(
        id="slow_gpu",
        title="Another process uses a rank's GPU",
        ranks=[1],
        where=None,
        gain=Estimate(value=gain, low=gain - 0.1, high=gain + 0.1),
        intended=intended,
    )


def test_a_mistake_on_the_ranks_of_the_verdict_is_its_likely_reason() -> None:
    name, words = said(slow_gpu(), [1])
    assert name == "Likely reason"
    assert words.startswith("Another process uses a rank's GPU (rank 1 on ")
    assert "Look at nvidia-smi on this node" in words
    assert words.endswith("Without it 1.20× to 1.40× faster. More: aorta explain slow_gpu")
    assert "not known" not in words


@pytest.mark.parametrize(
    ("mistake", "ranks"),
    [(slow_gpu(), [0]), (slow_gpu(), []), (slow_gpu(1.01), [1]), (slow_gpu(intended=True), [1])],
    ids=["another rank", "all ranks", "no gain", "intended"],
)
def test_any_other_mistake_is_no_reason_of_the_verdict(mistake: Mistake, ranks: list[int]) -> None:
    assert said(mistake, ranks)[0] == "Also found"
