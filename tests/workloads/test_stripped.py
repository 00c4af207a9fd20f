"""The trainer without instrumentation, as the hooks see it."""

from __future__ import annotations

from pathlib import Path

import aorta
from tests.support.injected import run_program

SOURCE = (Path(aorta.__file__).parent / "workloads" / "stripped.py").read_text()


def test_the_hooks_see_its_faults(tmp_path: Path) -> None:
    words = ["faults.stand_in_ms=0", "faults.loader_delay_ms=8", "faults.host_delay_ms=4"]
    assert "aorta" not in SOURCE
    ended = run_program(SOURCE.replace("sys.argv[1:]", repr(words)), tmp_path)
    assert ended.codes == [0], ended.err
    records = ended.records()
    assert len(records) == 46  # 48 steps, two of which are learned from
    assert min(record.data_wait_ms for record in records) >= 8
    host = [record.breakdown.host_ns for record in records if record.breakdown]
    assert host
    assert min(host) >= 4e6
