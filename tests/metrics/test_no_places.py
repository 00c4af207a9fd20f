"""A replay of one rank exchanges with nobody: there is no place whose transfer could be asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from aorta.metrics.whatif import _fastest


def test_without_places_there_is_no_fastest_transfer() -> None:
    empty = np.empty(0, dtype=np.int64)
    model = cast(Any, SimpleNamespace(place_of_row=empty, places=[], transfer=empty))
    assert _fastest(model).tolist() == []


def test_each_place_has_its_own_fastest_transfer() -> None:
    rows = np.array([0, 1, 0, 1])
    model = cast(Any, SimpleNamespace(place_of_row=rows, places=["a", "b"], transfer=np.array([5, 7, 5, 7])))
    assert _fastest(model).tolist() == [5.0, 7.0]
