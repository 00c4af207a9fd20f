"""What counts as right in a validation of mistakes; a run that fails is never right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from aorta.diagnosis.mistakes import CATALOGUE
from aorta.validation import mistakes
from aorta.validation.mistakes import ON_A_CPU, ON_A_GPU, ON_RANKS, MistakeRun, run_mistakes, table


@pytest.mark.parametrize(
    ("fixed", "step_ms", "named", "right"),
    [
        (False, 10.0, ["anomaly"], True),
        (False, 10.0, ["item_sync", "anomaly"], True),
        (False, 10.0, ["item_sync"], False),
        (True, 10.0, [], True),
        (True, 10.0, ["anomaly"], False),
        (False, None, ["anomaly"], False),
        (True, None, [], False),
    ],
)
def test_a_mistake_is_named_where_it_is_made_and_only_there(
    fixed: bool, step_ms: float | None, named: list[str], right: bool
) -> None:
    cell = MistakeRun("anomaly", fixed, step_ms, named)
    assert cell.right == right
    assert table([cell]).splitlines()[-1] == f"{int(right)} of 1 right"


def test_each_mistake_that_is_tried_is_in_the_catalogue_and_found_in_traces() -> None:
    assert set(ON_A_CPU) <= set(ON_A_GPU) <= set(CATALOGUE)
    assert all(CATALOGUE[id_].spec.look for id_ in ON_A_GPU)
    assert all(CATALOGUE[id_].spec.observe for id_ in ON_RANKS)
    assert not set(ON_A_CPU) & set(ON_RANKS)


def test_a_trainer_that_cannot_run_is_a_failure_and_not_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(paths: Sequence[Path]) -> list[str]:
        raise AssertionError(paths)

    monkeypatch.setattr(mistakes, "_CPU_SIZES", {"width": "none"})
    monkeypatch.setattr(mistakes, "ON_A_CPU", ("anomaly",))
    monkeypatch.setattr(mistakes, "ON_RANKS", ())
    told: list[MistakeRun] = []
    cells = run_mistakes(tmp_path, named, told.append)
    assert cells == told
    assert [(cell.step_ms, cell.right) for cell in cells] == [(None, False)] * 2
