"""The line of code that a finding names is compared with the other ranks where it takes longer."""

from __future__ import annotations

import pytest

from aorta.artefacts.instrument_record import InstrumentRecord, SampledFunction
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.where import with_where
from tests.support.analyses import data_loading_finding
from tests.support.findings import changed, context


def hooked(rank: int, samples: int | None) -> InstrumentRecord:
    """A rank of which 100 samples were taken, and so many of them in the function; None: none."""
    found = SampledFunction(part="data", function="read", file="train.py", line=12, samples=samples or 0)
    return InstrumentRecord(
        rank=rank,
        pid=1,
        python="python",
        python_version="3.12",
        torch_version="2.11",
        samples={"data": 100},
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
    assert ("less there" in found.actions[0]) == said
