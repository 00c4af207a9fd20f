"""Operations of recorded operators, by the shapes in a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from aorta.artefacts.events import ABSENT
from aorta.readers.kineto_flops import flops
from aorta.readers.traces import read_traces

BF16, FP32 = "c10::BFloat16", "float"
HEADS = [2, 4, 32, 16]


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("aten::mm", [[8, 16], [16, 4]], [BF16, BF16], (2 * 8 * 16 * 4, 2)),
        ("aten::addmm", [[4], [8, 16], [16, 4], [], []], [FP32] * 3 + ["Scalar"] * 2, (2 * 8 * 16 * 4, 4)),
        ("aten::bmm", [[3, 8, 16], [3, 16, 4]], [BF16, BF16], (3 * 2 * 8 * 16 * 4, 2)),
        (
            "aten::_scaled_dot_product_flash_attention",
            [HEADS, HEADS, HEADS, [], []],
            [BF16] * 3 + ["Scalar"] * 2,
            (2 * (2 * 2 * 4 * 32 * 32 * 16), 2),
        ),
        (
            "aten::_scaled_dot_product_cudnn_attention_backward",
            [HEADS] * 4,
            [BF16] * 4,
            (2 * 2 * (2 * 2 * 4 * 32 * 32 * 16), 2),
        ),
        ("aten::mm", [[8, 16], [16, 4]], [BF16, FP32], (ABSENT, ABSENT)),
        ("aten::mm", [[8, 16]], [BF16], (ABSENT, ABSENT)),
        ("aten::mm", [[], [16, 4]], [BF16, BF16], (ABSENT, ABSENT)),
        ("aten::mm", [[8, -1], [16, 4]], [BF16, BF16], (ABSENT, ABSENT)),
        ("aten::mm", None, None, (ABSENT, ABSENT)),
        ("aten::mm", [[0, 16], [16, 4]], [BF16, BF16], (0, 2)),
        ("aten::add", [[8, 16], [8, 16]], [BF16, BF16], (ABSENT, ABSENT)),
    ],
)
def test_operations_of_an_operator(name: str, dims: object, types: object, expected: tuple[int, int]) -> None:
    assert flops(name, dims, types) == expected


@pytest.mark.parametrize(("shapes", "known"), [(True, [2 * 8 * 16 * 4, ABSENT]), (False, [ABSENT, ABSENT])])
def test_shapes_are_read_where_they_are_recorded(tmp_path: Path, shapes: bool, known: Sequence[int]) -> None:
    given = {"Input Dims": [[8, 16], [16, 4]], "Input type": [FP32, FP32]} if shapes else {}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 5.0, "args": given}
        for start, name in ((10.0, "aten::mm"), (20.0, "aten::mul"))
    ]
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    (trace,) = read_traces([path]).traces
    assert trace.operators.flops.tolist() == known
