"""Time of GPU work by kind, reached rates and model FLOP utilisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from aorta.artefacts.compute import ComputeUse, KindUse
from aorta.artefacts.events import ABSENT, RangeRole, TraceRanges, build
from aorta.artefacts.hostline import Census, ComputeKind, HostLine, Pace, Tag, pack_line, unpack_line
from aorta.artefacts.packed import pack
from aorta.metrics.cards import card_of
from aorta.metrics.compute_use import compute_use, peak_tflops
from aorta.metrics.known_work import known_work
from aorta.metrics.profiler_weight import Lines
from tests.support.host_lines import Row, launch, line

MS = 1_000_000
GPU = "NVIDIA H200"
PEAK = 989.0
PRODUCT = launch(MS, 2 * MS, kind=int(ComputeKind.TENSOR_MATMUL))
TFLOP = 10**12
KNOWN = {**PRODUCT, "flops": TFLOP, "item_bytes": 2}


def host_line(steps: Sequence[Sequence[Row]], gpu: str | None) -> HostLine:
    return HostLine(
        columns=pack_line(line(steps)),
        groups=[],
        pace=Pace(operators=0, calls=0, spacing_ns=None, launch_ns=None, step_ns=1.0),
        census=Census(counts={}, units=[], gpu=gpu, kernels=pack([])),
    )


def used(*steps: Sequence[Row], gpu: str | None = GPU, step_ms: float = 10.0) -> ComputeUse:
    lines = Lines.of({0: host_line(steps, gpu)})
    assert lines is not None
    found = compute_use(lines, step_ms)
    assert found is not None
    return found


def kind_of(found: ComputeUse, kind: str) -> KindUse:
    return next(use for use in found.kinds if use.kind == kind)


def test_rates_are_those_of_the_work_that_is_known() -> None:
    found = used([KNOWN, KNOWN], [KNOWN, KNOWN])
    products = kind_of(found, "matrix products on tensor cores")
    assert (products.ms, products.launches, products.known_ms) == (2 * 2, 2, 2 * 2)
    reached = 1.0 / 2e-3
    assert products.tflops == pytest.approx(reached)
    assert products.attainable_pct == pytest.approx(100 * reached / PEAK)
    # Two TFLOP in a step of 10 ms.
    assert found.model_tflop == pytest.approx(2.0)
    assert found.mfu_pct == pytest.approx(100 * 2.0 / 10e-3 / PEAK)
    assert found.reason is None


def test_without_shapes_nothing_is_reached_and_with_no_operations_it_is_zero() -> None:
    found = used([PRODUCT])
    products = kind_of(found, "matrix products on tensor cores")
    assert (products.ms, products.tflops, products.attainable_pct, found.mfu_pct) == (2, None, None, None)
    assert found.reason is not None
    none = used([{**PRODUCT, "flops": 0, "item_bytes": 2}])
    assert (kind_of(none, "matrix products on tensor cores").tflops, none.mfu_pct) == (0.0, 0.0)


@pytest.mark.parametrize(("unknown_ns", "told"), [(2 * MS * 4 // 100, True), (2 * MS * 6 // 100, False)])
def test_utilisation_needs_the_operations_of_nearly_all_products(unknown_ns: int, told: bool) -> None:
    rest = {**PRODUCT, "gpu_ns": unknown_ns}
    found = used([KNOWN, rest])
    assert (found.mfu_pct is not None) == told
    assert (found.reason is None) == told


def test_recomputation_is_no_work_of_the_model() -> None:
    found = used([KNOWN, {**KNOWN, "tags": int(Tag.RECOMPUTE)}])
    assert kind_of(found, "recomputation").ms == 2
    assert found.model_tflop == pytest.approx(1.0)


def test_an_unknown_card_has_no_peak() -> None:
    found = used([KNOWN], gpu="GPU of tomorrow")
    assert kind_of(found, "matrix products on tensor cores").tflops == pytest.approx(500.0)
    assert (found.peak_tflops, found.mfu_pct) == (None, None)
    assert found.reason == "this GPU is not in the table of cards"


@pytest.mark.parametrize(
    ("kind", "words", "attainable"),
    [
        (ComputeKind.READ_COPY, "copies to the host", 100 * 32 / 64),
        (ComputeKind.PAGEABLE_COPY, "copies from pageable memory", 100 * 32 / 64),
        (ComputeKind.COPY, "other copies", None),
    ],
)
def test_copies_reach_a_rate_of_bytes(kind: ComputeKind, words: str, attainable: float | None) -> None:
    copy = kind_of(used([launch(MS, MS, kind=int(kind), bytes=32 * 10**6)]), words)
    assert (copy.gb_s, copy.tflops, copy.attainable_pct) == (32.0, None, attainable)


def test_numbers_of_four_bytes_have_half_the_peak_on_tensor_cores() -> None:
    card = card_of(GPU)
    assert card is not None
    assert peak_tflops(card, 4, tensor=True) == PEAK / 2
    assert peak_tflops(card, 4, tensor=False) == 67
    assert peak_tflops(card, 8, tensor=False) is None


def test_a_program_without_launches_computes_nothing_on_a_gpu() -> None:
    lines = Lines.of({0: host_line([[]], None)})
    assert lines is not None
    assert compute_use(lines, 10.0) is None


def test_the_longest_product_of_an_operator_has_its_operations() -> None:
    operators = build(
        TraceRanges,
        3,
        start_ns=[0, 10, 50],
        end_ns=[100, 40, 90],
        role=int(RangeRole.OPERATOR),
        flops=[ABSENT, 7, 9],
        item_bytes=[ABSENT, 2, 4],
    )
    product, pointwise = int(ComputeKind.TENSOR_MATMUL), int(ComputeKind.ELEMENTWISE)
    # The second operator copies its bias, multiplies, and adds parts up; the first one is not counted.
    at, kind = np.array([5, 12, 20, 25, 45, 60]), [product, pointwise, product, product, product, product]
    found = known_work(operators, at, np.array(kind), np.array([9, 99, 3, 5, 9, 9]))
    assert found["flops"].tolist() == [ABSENT, ABSENT, 0, 7, ABSENT, 9]
    assert found["item_bytes"].tolist() == [ABSENT, ABSENT, 2, 2, ABSENT, 4]


def test_lines_of_older_summaries_hold_no_operations() -> None:
    made = host_line([[KNOWN]], GPU)
    older = {name: column for name, column in made.columns.items() if name not in ("flops", "item_bytes")}
    table = unpack_line(HostLine(columns=older, groups=[], pace=made.pace, census=made.census))
    assert set(table.flops.tolist()) == {ABSENT}
    assert unpack_line(made).flops.max() == TFLOP
