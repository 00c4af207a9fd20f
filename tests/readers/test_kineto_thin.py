"""What is left out before decoding is exactly what decoding would not use."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from aorta.readers.kineto_thin import KEPT_OPERATORS, thinned

OPERATOR = '"ph": "X", "cat": "cpu_op", "name": "{}", "pid": 1, "tid": 2,\n    "ts": 1.000, "dur": 2.000'
KERNEL = '"ph": "X", "cat": "kernel", "name": "{}", "pid": 0, "tid": 7,\n    "ts": 1.000, "dur": 2.000'
ARROW = '"ph": "{}", "id": 1, "pid": 1, "tid": 2, "ts": 1.000,\n    "cat": "ac2g", "name": "ac2g"'
OTHER = '"name": "{}", "ph": "M", "ts": 0, "pid": 1, "tid": 2'
PADDING = "k" * 80

kept = st.sampled_from(
    [KERNEL.format("gemm"), OTHER.format("sf"), KERNEL.format(PADDING)]
    + [OPERATOR.format(f"{name}1") for name in KEPT_OPERATORS]
)
dropped = st.sampled_from(
    [OPERATOR.format("aten::add"), OPERATOR.format("Pro"), ARROW.format("s"), ARROW.format("f")]
)


def joined(events: list[str]) -> bytes:
    return b"{\n    " + "\n  },\n  {\n    ".join(events).encode() + b"\n  }"


@given(st.lists(st.tuples(st.booleans(), kept, dropped), max_size=30))
def test_only_what_is_not_used_goes(choices: list[tuple[bool, str, str]]) -> None:
    events = [use if keep else drop for keep, use, drop in choices]
    # The first and the last stay; line ends at the very end of a text are not looked at.
    whole = [KERNEL.format("first"), *events, KERNEL.format("last" + PADDING)]
    expected = [whole[0], *(use for keep, use, _ in choices if keep), whole[-1]]
    text, skipped = thinned(joined(whole))
    assert text == joined(expected)
    assert skipped == len(whole) - len(expected)
    json.loads(b"[" + text + b"]")


def test_another_layout_stays_whole() -> None:
    compact = json.dumps([{"ph": "X", "cat": "cpu_op", "name": "aten::add"}] * 40).encode()
    assert thinned(compact) == (compact, 0)
    assert thinned(b"") == (b"", 0)
