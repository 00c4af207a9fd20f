from __future__ import annotations

import ctypes

import pytest

from aorta.commands._memory import large_arrays_go_back


class _Library:
    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.asked.append((parameter, value))
        return 1


def test_the_threshold_is_one_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    large_arrays_go_back()
    assert library.asked == [(-3, 1_048_576)]


@pytest.mark.parametrize("lacking", [OSError, AttributeError])
def test_a_library_without_a_threshold_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, lacking: type[Exception]
) -> None:
    def refuse(_: object) -> None:
        raise lacking

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    large_arrays_go_back()
