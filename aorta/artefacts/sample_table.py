"""Samples of GPUs or hosts as columns, one row per sample: what files beside raw traces hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray


class SampleTable(Struct, frozen=True, eq=False):
    """Columns of `GPU_COLUMNS` or `CPU_COLUMNS` but for the time as text; each (rows,)."""

    exact: dict[str, NDArray[np.int64]]
    """Whole numbers, which each row has."""
    numbers: dict[str, NDArray[np.float64]]
    """Measured numbers; NaN: not measured."""
    texts: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.wall_ns)

    @property
    def wall_ns(self) -> NDArray[np.int64]:
        """Time of each sample, ns since the epoch."""
        return self.exact["wall_ns"]

    def column(self, name: str) -> NDArray[np.float64]:
        """Measured numbers; NaN where there is no such column."""
        found = self.numbers.get(name)
        return np.full(len(self), np.nan) if found is None else found

    def earlier(self, ns: int) -> SampleTable:
        """Returns the same samples, taken so many ns before."""
        return replace(self, exact={**self.exact, "wall_ns": self.wall_ns - ns})

    def rows(self, chosen: NDArray[np.int64]) -> SampleTable:
        """Returns some of the samples."""
        return SampleTable(
            {name: column[chosen] for name, column in self.exact.items()},
            {name: column[chosen] for name, column in self.numbers.items()},
            {name: [column[row] for row in chosen.tolist()] for name, column in self.texts.items()},
        )

    def groups(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Returns the number of each row's group among those of equal keys in their order, NaN last.

        Keys that are no columns are left out.
        """
        columns = [_ordered(self, name) for name in keys if name in self.texts | self.exact | self.numbers]
        every = list(zip(*columns, strict=True))
        number = {key: place for place, key in enumerate(sorted(set(every)))}
        return np.array([number[key] for key in every], dtype=np.int64)


def joined(tables: Sequence[SampleTable], keys: Sequence[str]) -> SampleTable:
    """Returns the samples of tables of one kind by time, each once: equal `keys` tell the same one."""
    whole = SampleTable(
        {name: np.concatenate([table.exact[name] for table in tables]) for name in tables[0].exact},
        {name: np.concatenate([table.column(name) for table in tables]) for name in tables[0].numbers},
        {name: [text for table in tables for text in table.texts[name]] for name in tables[0].texts},
    )
    _, first = np.unique(whole.groups(keys), return_index=True)
    kept = np.sort(first)
    return whole.rows(kept[np.argsort(whole.wall_ns[kept], kind="stable")])


def _ordered(table: SampleTable, name: str) -> Sequence[object]:
    """Values of a column such that equal ones are equal, and NaN comes last."""
    if name in table.texts:
        return table.texts[name]
    if name in table.exact:
        values: list[object] = table.exact[name].tolist()
        return values
    numbers = table.numbers[name].tolist()
    return [(math.isnan(number), 0.0 if math.isnan(number) else number) for number in numbers]
