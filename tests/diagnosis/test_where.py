"""The line of code that a finding names is compared with the other ranks where it takes longer."""

from __future__ import annotations

import pytest

from aorta.artefacts.instrument_record import InstrumentRecord, SampledFunction
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.rank import RankCosts
from aorta.diagnosis.where import with_where
from aorta.metrics.stalls import Stall
from tests.support.analyses import data_loading_finding
from tests.support.findings import changed, context, finding


def hooked(rank: int, samples: int | None, part: str = "data") -> InstrumentRecord:
    """A rank of which 100 samples were taken, and so many of them in the function; None: none."""
    found = SampledFunction(part=part, function="read", file="train.py", line=12, samples=samples or 0)
    return InstrumentRecord(
        rank=rank,
        pid=1,
        python="python",
        python_version="3.12",
        torch_version="2.11",
        samples={part: 100},
        places=[] if samples is None else [found],
    )


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [(40, 20, True), (40, 40, False), (40, 60, False), (40, None, True)],
    ids=["longer", "as long", "less long", "not at all"],
)
def test_only_a_line_that_takes_longer_is_compared(here: int, there: int | None, said: bool) -> None:
    stacks = {0: hooked(0, there), 1: hooked(1, here)}
    found = with_where(FINDINGS["data_loading"], data_loading_finding(), changed(context(), stacks=stacks))
    assert found.actions[0].startswith("look at read (train.py, line 12)")
    assert (" more per step than on " in found.actions[0]) == said


@pytest.mark.parametrize(
    ("here", "there", "named"), [(40, 0, True), (20, 0, True), (19, 0, False), (45, 30, False)]
)
def test_a_stall_names_the_place_that_takes_most_of_it(here: int, there: int, named: bool) -> None:
    """The stall takes 40 % of the time: 20 % more than on the other rank are most of it."""
    stall = Stall("step", 9, (1,), waiting=False, seconds=1.0, share=0.4, pieces=1, cost_ms=40.0)
    seen = changed(context(), stall=stall, stacks={0: hooked(0, there), 1: hooked(1, here)})
    found = with_where(FINDINGS["stall"], finding("stall", [1]), seen)
    assert (found.where is not None) == named


def test_work_in_a_closure_of_the_optimizer_is_the_host_s() -> None:
    costs = [RankCosts(0, 100.0, 40.0, 0.0, 5.0, 0.0, 40.0, {(1, "host"): 35.0})]
    costs.append(RankCosts(1, 100.0, 40.0, 0.0, 40.0, 0.0, 5.0, {}))
    stacks = {0: hooked(0, 0, "optimizer"), 1: hooked(1, 35, "optimizer")}
    found = with_where(FINDINGS["straggler"], finding("straggler", [1]), context(costs=costs, stacks=stacks))
    assert found.where is not None
    assert (found.where.function, found.where.longer_ms) == ("read", pytest.approx(35.0))
