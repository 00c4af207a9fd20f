"""A pass that the hooks did not see: its time is unseen, and no host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.artefacts.instrument_record import InstrumentRecord, encode
from aorta.artefacts.layout import RunDir
from tests.support.synthetic import RunSpec, write_run
from tests.support.verdicts import analysed, measured


def seen_by_hooks(run: RunDir, *seen: str, note: str | None = None) -> None:
    """Write what the hooks of both ranks saw."""
    for rank in (0, 1):
        record = InstrumentRecord(
            rank=rank,
            pid=1,
            python="python",
            python_version="3.11",
            torch_version="2.6",
            seen=list(seen),
            note=note,
        )
        run.instrument(rank).write_bytes(encode(record))


@pytest.mark.parametrize(
    ("seen", "answer", "host_ms", "unseen_ms"),
    [
        (("forward", "backward", "loader", "optimizer"), "found", 60.0, None),
        (("backward", "loader", "optimizer"), "not_measurable", 0.0, 60.0),
    ],
)
def test_host_work_holds_a_pass_that_was_not_seen(
    tmp_path: Path, seen: tuple[str, ...], answer: str, host_ms: float, unseen_ms: float | None
) -> None:
    """60 of 60 + 6 + 4 + 60 ms are outside of compute, communication and loader."""
    run = write_run(tmp_path, RunSpec(host_ms=60.0))
    seen_by_hooks(run, *seen)
    found = analysed(run)
    assert measured(found, "host_bound").answer == answer
    rows = found.breakdown.per_rank
    assert [(row.host_ms, row.unseen_ms) for row in rows] == [(host_ms, unseen_ms)] * 2
    assert sum(one.ms for one in found.unseen) == (unseen_ms or 0.0)
    if unseen_ms:
        assert "no forward pass" in (measured(found, "host_bound").reason or "")
        assert found.verdict.kind == "insufficient_data"
        exchanged = {measured(found, kind).answer for kind in ("communication", "straggler")}
        assert exchanged == {"not_found"}  # 4 ms are all of the exchange, whatever was not seen


def test_a_program_without_steps_says_why(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    for rank in (0, 1):
        run.records(rank).unlink()
    seen_by_hooks(run, note="no torch optimizer has made two updates")
    found = analysed(run)
    assert "no rank left step records: no torch optimizer has made two updates" in found.verdict.statement
    assert found.findings[0].actions[0].startswith("record steps with StepRecorder")
