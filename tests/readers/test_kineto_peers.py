"""Sizes per peer of an all-to-all, from the arguments of its kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aorta.artefacts.events import ABSENT
from aorta.readers import kineto
from aorta.readers.kineto_stream import AHEAD
from tests.support.kineto import event, kernel, write

NAME = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
KNOWN: dict[str, Any] = {
    "Collective name": "all_to_allv",
    "In msg nelems": 60,
    "Out msg nelems": 40,
    "Group size": 3,
    "dtype": "BFloat16",
    "In split size": "[1, 0, 2]",
    "Out split size": "[1, 1, 0]",
    "Process Group Name": "7",
}


def sent(path: Path, **changed: Any) -> str | None:
    """What the only kernel of a trace sends to each peer; an argument of None is left out."""
    arguments = {name: value for name, value in {**KNOWN, **changed}.items() if value is not None}
    trace = kineto.read(write(path / "rank0.json", [kernel(NAME, 100, 10, correlation=1, **arguments)]))
    code = int(trace.collectives.sent[0])
    return None if code == ABSENT else trace.names[code]


@pytest.mark.parametrize("splits", ["[1, 0, 2]", "[1,0,2]", [1, 0, 2], [20, 0, 40]])
def test_splits_divide_the_input_as_text_or_list_by_rows_or_elements(tmp_path: Path, splits: Any) -> None:
    """60 elements of 2 bytes in 3 shares are 40 bytes per share."""
    assert sent(tmp_path, **{"In split size": splits}) == "40 0 80"


@pytest.mark.parametrize("splits", ["[]", []])
def test_empty_splits_are_even(tmp_path: Path, splits: Any) -> None:
    assert sent(tmp_path, **{"Collective name": "all_to_all", "In split size": splits}) == "40 40 40"


def test_nothing_sent_is_zero(tmp_path: Path) -> None:
    assert sent(tmp_path, **{"In split size": "[0, 0, 0]", "In msg nelems": 0}) == "0 0 0"
    assert sent(tmp_path, **{"In split size": "[]", "In msg nelems": 0}) == "0 0 0"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("In split size", None),
        ("In split size", "[1, 2, ...]"),
        ("In split size", "[1, 2]"),
        ("In split size", "[1, -1, 3]"),
        ("In split size", "[1, 0.5, 2]"),
        ("In split size", "1, 0, 2"),
        ("In split size", {"1": 2}),
        ("In split size", 60),
        ("In split size", "[0, 0, 0]"),
        ("In split size", "[7, 0, 2]"),
        ("In msg nelems", None),
        ("In msg nelems", "many"),
        ("dtype", None),
        ("dtype", "Another"),
        ("Group size", None),
        ("Group size", 4),
        ("Collective name", "allreduce"),
    ],
)
def test_what_is_not_said_is_absent(tmp_path: Path, argument: str, value: Any) -> None:
    assert sent(tmp_path, **{argument: value}) is None


def test_sizes_are_those_of_each_kernel_in_a_text_that_is_read_at_once(tmp_path: Path) -> None:
    """Enough events for the quick layout; sizes and correlations differ."""
    splits = [[share, 0, 3 - share] for share in (0, 1, 2, 3)] * 10
    events = [
        kernel(NAME, 100 + 20 * at, 10, correlation=at + 1, **{**KNOWN, "In split size": str(own)})
        for at, own in enumerate(splits)
    ]
    events += [event("cpu_op", "aten::add", 5000 + at, 1) for at in range(AHEAD // 50)]
    trace = kineto.read(write(tmp_path / "rank0.json", events))
    words = [trace.names[code] for code in trace.collectives.sent.tolist()]
    assert words == [f"{40 * own[0]} 0 {40 * own[2]}" for own in splits]
