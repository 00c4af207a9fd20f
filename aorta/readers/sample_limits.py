"""Drops numbers that nothing can measure from tables of samples; the files keep them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.analysis import Problem
from aorta.artefacts.columns import NUMBERS, Column
from aorta.artefacts.sample_table import SampleTable


def out_of_range(
    values: NDArray[np.float64], limits: Column, whole: NDArray[np.float64] | None
) -> NDArray[np.bool_]:
    """Returns which values of a column cannot be measured, given the column that they are a part of."""
    bad = np.isinf(values)
    if limits.low is not None:
        bad |= values < limits.low
    if limits.high is not None:
        bad |= values > limits.high
    if whole is not None:
        bad |= values > whole
    return np.asarray(bad, dtype=np.bool_)


def say_dropped(name: str, count: int, columns: Sequence[str], problems: list[Problem]) -> None:
    """Add the problem of a file of which so many values were dropped, if any were."""
    if count:
        reason = f"{count} values are out of range and count as not measured ({', '.join(columns)})"
        problems.append(Problem(file=name, reason=reason))


def without_impossible(table: SampleTable, name: str, problems: list[Problem]) -> SampleTable:
    """Returns the table of the file `name` with NaN for what nothing can measure, which is counted."""
    numbers, wrong, count = dict(table.numbers), [], 0
    for column, values in table.numbers.items():
        limits = NUMBERS[column]
        bad = out_of_range(values, limits, numbers.get(limits.part_of or ""))
        if bad.any():
            numbers[column] = np.where(bad, np.nan, values)
            wrong.append(column)
            count += int(bad.sum())
    say_dropped(name, count, wrong, problems)
    return replace(table, numbers=numbers)
