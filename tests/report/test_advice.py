"""Mistakes on the first screen: the likely reason of the verdict, or something else that was found."""

from __future__ import annotations

import pytest

from aorta.artefacts.mistakes import Mistake
from aorta.artefacts.weight import Estimate, ProfilerWeight
from aorta.report.advice import likely_reasons, profiler_weight
from aorta.report.bare import bare_page
from aorta.report.blocks import Code, words
from aorta.report.sections import summary
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


def test_the_fix_is_the_remedy_of_the_mistake_that_was_found_and_stands_once() -> None:
    finding = data_loading_finding(ranks=[1])
    whole = analysis(findings=[finding], mistakes=[slow_gpu()])
    pairs = {name: words(line) for name, line in summary(whole, bare_page(whole), None).pairs}
    assert pairs["Fix"].startswith("Look at nvidia-smi on this node")
    assert "nvidia-smi" not in pairs["Likely reason"]
    plain = analysis(findings=[finding])
    pairs = {name: words(line) for name, line in summary(plain, bare_page(plain), None).pairs}
    assert pairs["Fix"] == finding.actions[0]


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (40.0, "40.0 ms (38.0 to 44.0, by the trace); 50.0 ms with it"),
        (52.0, "no shorter, judging by the trace: 50.0 to 56.0 ms; 50.0 ms with it"),
    ],
)
def test_a_step_is_not_said_to_be_longer_without_the_profiler(without: float, said: str) -> None:
    estimate = Estimate(value=without, low=without - 2, high=without + 4)
    weight = ProfilerWeight(step_ms=50.0, step_ms_without=estimate, by_rank=[], basis="trace")
    assert dict(profiler_weight(analysis(profiler_weight=weight))) == {"Step without the profiler": said}
