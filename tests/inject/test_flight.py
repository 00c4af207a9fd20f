"""The flight recorder of a rank is written when a step takes long, and removed when steps go on."""

from __future__ import annotations

import pytest
import torch

from aorta.inject.flight import AFTER_S, FlightKeeper

DUMP = b'{"entries":[{"record_id":0}],"version":"2.10"}'


@pytest.fixture
def dumps(monkeypatch):
    answers = {"_dump_nccl_trace_json": b'{"entries":[],"version":"2.10"}', "_dump_fr_trace_json": DUMP}
    for name, data in answers.items():
        monkeypatch.setattr(torch._C._distributed_c10d, name, lambda data=data: data, raising=False)
    return answers


def test_a_step_that_takes_long_leaves_the_recorder_and_the_next_step_removes_it(tmp_path, dumps):
    path, step = tmp_path / "flight.json", [1]
    keeper = FlightKeeper(path, lambda: step[0])
    keeper.look(0.0)
    keeper.look(AFTER_S)
    assert not path.exists()
    keeper.look(AFTER_S + 0.1)
    assert path.read_bytes() == DUMP  # of gloo, since the recorder of NCCL is empty
    step[0] = 2
    keeper.look(AFTER_S + 0.2)
    assert not path.exists()


def test_before_the_first_step_and_without_entries_there_is_no_file(tmp_path, dumps, monkeypatch):
    path = tmp_path / "flight.json"
    keeper = FlightKeeper(path, lambda: None)
    keeper.look(0.0)
    keeper.look(100.0)
    assert not path.exists()
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", lambda: b'{"version":"2.10"}')
    keeper = FlightKeeper(path, lambda: 1)
    keeper.look(0.0)
    keeper.look(100.0)
    assert not path.exists()
