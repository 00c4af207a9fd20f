"""Which codes of names occur in a column."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.events import ABSENT, used_codes


@given(st.lists(st.integers(ABSENT, 9), max_size=30))
def test_they_are_those_that_sorting_finds(codes: list[int]) -> None:
    assert used_codes(np.array(codes, dtype=np.int64), 10) == sorted(set(codes) - {ABSENT})
