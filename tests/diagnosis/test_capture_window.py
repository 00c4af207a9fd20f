"""What compute on a GPU is known by."""

from __future__ import annotations

import pytest

from aorta.diagnosis.capture_window import window_note
from aorta.diagnosis.observation import ObservedHost
from aorta.metrics.launches import Launches


@pytest.mark.parametrize(
    ("kernels_ms", "said"),
    [(16.0, "kernels ran for 16.0 ms"), (38.0, None), (37.9, "kernels ran for 37.9 ms")],
)
def test_kernels_tell_what_of_the_windows_is_compute(kernels_ms: float, said: str | None) -> None:
    """Of 40 ms, 2 ms are 5 %: as much is not worth a note."""
    host = ObservedHost(launches=Launches(kernels=100.0, kernels_ms=kernels_ms, windows_ms=40.0))
    notes = window_note(host, cuda=True)
    assert len(notes) == (said is not None)
    assert said is None or (said in notes[0] and "40.0 ms per step" in notes[0])


@pytest.mark.parametrize(
    ("cuda", "busy_pct", "open_question"), [(True, None, True), (True, 0.0, False), (False, None, False)]
)
def test_windows_alone_do_not_tell_gaps(cuda: bool, busy_pct: float | None, open_question: bool) -> None:
    notes = window_note(ObservedHost(driver_busy_pct=busy_pct), cuda=cuda)
    assert ["capture.kernel_interval=20 measures them" in note for note in notes] == [True] * open_question
