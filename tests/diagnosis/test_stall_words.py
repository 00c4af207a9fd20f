from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aorta.diagnosis.findings import stall
from aorta.metrics.stalls import Stall


@pytest.mark.parametrize(
    ("seconds", "said"), [(20.04, "20.0 s"), (0.1, "0.1 s"), (0.0123, "12.3 ms"), (0.0994, "99.4 ms")]
)
def test_a_stall_of_short_steps_is_told_in_milliseconds(seconds: float, said: str) -> None:
    stood = Stall("step", 92, (1,), waiting=False, seconds=seconds, share=0.8, pieces=1, cost_ms=1.0)
    seen: Any = SimpleNamespace(stall=stood, job=SimpleNamespace(world_size=2))
    assert stall._words(seen) == f"step 92 took {said} on rank 1: 80 % of the measured time"
