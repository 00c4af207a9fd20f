"""Mistakes found in small host lines, and not found in the same lines without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from aorta.artefacts.hostline import (
    Census,
    ComputeKind,
    HostLine,
    Item,
    LineTable,
    Pace,
    Tag,
    TagTime,
    pack_line,
)
from aorta.artefacts.mistakes import Mistake
from aorta.artefacts.packed import pack
from aorta.diagnosis.mistaken import mistakes_of
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.metrics.profiler_weight import Lines
from tests.support.host_lines import Row, launch, line

MS = 1_000_000
HELD = {"held_ns": 20 * MS}


def host_line(table: LineTable, tagged: Mapping[Tag, Sequence[int]], **counts: float) -> HostLine:
    """The line of a table; without operators, so that no profiler weighs in it."""
    pace = Pace(operators=0, calls=0, spacing_ns=None, launch_ns=None, step_ns=1.0)
    return HostLine(
        columns=pack_line(table),
        groups=["g"],
        tagged=[TagTime(tag=int(tag), work_ns=pack(work)) for tag, work in tagged.items()],
        pace=pace,
        census=Census(counts=counts, units=[], kernels=pack([])),
    )


def found(steps: Sequence[Sequence[Row]], tag: Tag | None = None, **counts: float) -> list[Mistake]:
    """The mistakes of one rank; the work of each row with `tag` is all for it."""
    table = line(steps)
    tagged = (
        {
            tag: [
                work if tags & tag else 0
                for work, tags in zip(table.work_ns.tolist(), table.tags.tolist(), strict=True)
            ]
        }
        if tag
        else {}
    )
    lines = Lines.of({0: host_line(table, tagged, **counts)})
    assert lines is not None
    return mistakes_of(lines)[0]


def gain_of(id_: str, mistakes: Sequence[Mistake]) -> float | None:
    return next((item.gain.value for item in mistakes if item.id == id_), None)


def test_a_healthy_program_makes_no_mistake() -> None:
    assert found([[launch(1 * MS, 9 * MS, kind=int(ComputeKind.TENSOR_MATMUL))] * 3] * 3) == []


def test_plain_matmuls_gain_what_tensor_cores_are_faster() -> None:
    plain = launch(1 * MS, 90 * MS, kind=int(ComputeKind.PLAIN_MATMUL))
    rest = launch(1 * MS, 10 * MS, kind=int(ComputeKind.ELEMENTWISE))
    gain = gain_of("fp32_matmul", found([[plain, rest]] * 3))
    # An unknown card's ratio of peaks is taken as 15, of which 80 % are reached.
    assert gain == pytest.approx((90 + 10) / (90 / 12 + 10), rel=0.02)


@pytest.mark.parametrize(("size", "named_as"), [(4, True), (0, True), (65_537, False)])
def test_a_small_copy_to_the_host_reads_a_value(size: int, named_as: bool) -> None:
    copy = {**launch(MS, 1000, kind=int(ComputeKind.READ_COPY), bytes=size), "held_ns": 4 * MS}
    busy = [launch(1 * MS, 5 * MS), copy] * 4
    assert (gain_of("item_sync", found([busy] * 3)) is not None) == named_as
    # A program that saves its weights in one step of three reads no values.
    rest = [launch(1 * MS, 5 * MS)] * 4
    assert gain_of("item_sync", found([rest, busy, rest])) is None


def test_scores_in_fp32_are_a_mistake_of_attention_alone() -> None:
    plain = launch(1 * MS, 30 * MS, kind=int(ComputeKind.PLAIN_MATMUL))
    softmax = launch(1 * MS, 5 * MS, kind=int(ComputeKind.SOFTMAX))
    tensor = launch(1 * MS, 5 * MS, kind=int(ComputeKind.TENSOR_MATMUL))
    assert gain_of("fp32_matmul", found([[tensor, plain, softmax, plain, tensor]] * 3)) is None
    assert gain_of("fp32_matmul", found([[plain, plain, softmax, plain, plain]] * 3)) is not None


def test_autocast_makes_the_host_launch_casts() -> None:
    plain = launch(8 * MS, 30 * MS, kind=int(ComputeKind.PLAIN_MATMUL))
    gain = gain_of("fp32_matmul", found([[plain] * 3] * 3))
    # Products take 2.5 ms then, and the host launches each with a cast: half of its work.
    assert gain == pytest.approx(30 / (1.5 * 8), rel=0.02)


def test_a_chain_gains_all_but_one_pass_over_memory() -> None:
    link = launch(0, 2 * MS, kind=int(ComputeKind.POINTWISE), tags=int(Tag.CHAIN))
    norm = launch(0, 1 * MS, kind=int(ComputeKind.ELEMENTWISE))
    product = launch(0, 20 * MS, kind=int(ComputeKind.TENSOR_MATMUL))
    chain = [*[link] * 4, norm, *[link] * 4]
    gain = gain_of("elementwise_chains", found([[product, *chain]] * 3))
    # The normalisation cuts the chain in two.
    assert gain == pytest.approx((20 + 8 * 2 + 1) / (20 + 2 * 2 + 1), rel=0.02)
    # The same kernels with products between them are no chain.
    plain = launch(0, 2 * MS, kind=int(ComputeKind.POINTWISE))
    assert gain_of("elementwise_chains", found([[product, *[plain] * 8, norm]] * 3)) is None


def test_each_step_keeps_a_kernel_of_its_chain() -> None:
    link = launch(0, 2 * MS, kind=int(ComputeKind.POINTWISE), tags=int(Tag.CHAIN))
    assert gain_of("elementwise_chains", found([[link] * 8] * 3)) == pytest.approx(8, rel=0.02)
    # The optimizer between two chains is no part of them.
    update = launch(0, 2 * MS, kind=int(ComputeKind.POINTWISE), tags=int(Tag.OPTIMIZER))
    gain = gain_of("elementwise_chains", found([[*[link] * 8, update, *[link] * 8]] * 3))
    assert gain == pytest.approx((8 + 1 + 8) / (1 + 1 + 1), rel=0.02)


def test_a_chain_that_takes_hardly_any_time_is_not_named() -> None:
    link = launch(0, 1 * MS, kind=int(ComputeKind.POINTWISE), tags=int(Tag.CHAIN))
    product = launch(0, 91 * MS, kind=int(ComputeKind.TENSOR_MATMUL))
    assert gain_of("elementwise_chains", found([[product, *[link] * 10]] * 3)) is None


def test_a_loop_of_tiny_products_gains_the_launches_of_all_rounds_but_one() -> None:
    first = launch(2 * MS, 8_000, kind=int(ComputeKind.TENSOR_MATMUL))
    again = launch(2 * MS, 8_000, kind=int(ComputeKind.TENSOR_MATMUL), tags=int(Tag.LOOP))
    rest = launch(20 * MS, 1 * MS, kind=int(ComputeKind.TENSOR_MATMUL))
    gain = gain_of("tiny_matmuls", found([[rest, first, *[again] * 15]] * 3))
    assert gain == pytest.approx((20 + 16 * 2) / (20 + 2), rel=0.02)
    assert gain_of("tiny_matmuls", found([[rest, *[first] * 16]] * 3)) is None


def test_one_product_takes_a_quarter_of_the_rounds_wherever_the_host_waits() -> None:
    first = launch(0, 8 * MS, kind=int(ComputeKind.TENSOR_MATMUL))
    again = {**first, "tags": int(Tag.LOOP)}
    wait = {"item": int(Item.SYNC), "needs": 1, "held_ns": MS}
    gain = gain_of("tiny_matmuls", found([[first, *[again] * 7, wait, *[again] * 8]] * 3))
    assert gain == pytest.approx(16 / (1 + 15 / 4), rel=0.02)


def test_reading_back_gains_only_what_the_host_waits_for() -> None:
    read = {"item": int(Item.SYNC), "needs": 1, "tags": int(Tag.READ_BACK), "held_ns": 4 * MS}
    busy = [launch(1 * MS, 5 * MS), read, launch(4 * MS, 1 * MS)] * 4
    gain = gain_of("item_sync", found([busy] * 3))
    assert gain is not None
    assert gain > 1.3
    idle = [launch(5 * MS, MS // 100), {**read, "held_ns": 10_000}, launch(5 * MS, MS // 100)] * 4
    assert gain_of("item_sync", found([idle] * 3)) == 1.0
    assert gain_of("item_sync", found([busy[:3]] * 3)) is None


def test_an_optimizer_that_loops_over_parameters() -> None:
    one = launch(MS // 10, 2_000, kind=int(ComputeKind.ELEMENTWISE), tags=int(Tag.OPTIMIZER))
    model = launch(5 * MS, 1 * MS, kind=int(ComputeKind.TENSOR_MATMUL))
    gain = gain_of("foreach_off", found([[model, *[one] * 150]] * 3, Tag.OPTIMIZER))
    # 15 ms of launches become a tenth; what is left of them takes less by a fifth of the share that goes.
    assert gain == pytest.approx((5 + 15) / (5 + 1.5 * (1 - 0.2 * 13.5 / 20)), rel=0.05)
    fused = {**one, "kind": int(ComputeKind.OPTIMIZER)}
    assert gain_of("foreach_off", found([[model, *[fused] * 150]] * 3, Tag.OPTIMIZER)) is None


def test_waiting_for_the_loader_in_every_step() -> None:
    wait: Row = {"item": int(Item.LOADER), "held_ns": 60 * MS}
    left = 40 * (1 - 0.2 * 60 / 100)
    model = [launch(MS, MS // 100)] * 40
    assert gain_of("loader_few_workers", found([[wait, *model]] * 4)) == pytest.approx(100 / left, rel=0.02)
    short: Row = {"item": int(Item.LOADER), "held_ns": 2 * MS}
    assert found([[short, launch(40 * MS, MS)]] * 4) == []


def test_recomputation_goes_with_its_kernels() -> None:
    again = launch(4 * MS, 4 * MS, kind=int(ComputeKind.TENSOR_MATMUL), tags=int(Tag.RECOMPUTE))
    once = launch(4 * MS, 4 * MS, kind=int(ComputeKind.TENSOR_MATMUL))
    gain = gain_of("needless_checkpointing", found([[once, again, once]] * 3, Tag.RECOMPUTE))
    # The GPU is the limit: 12 ms of kernels become 8. The hooks are of the host alone.
    assert gain == pytest.approx(12 / 8, rel=0.02)
    slow = [{**row, "gpu_ns": MS // 10} for row in (once, again, once)]
    gain = gain_of("needless_checkpointing", found([slow] * 3, Tag.RECOMPUTE))
    assert gain == pytest.approx(12 / (8 - 0.6 * 4), rel=0.02)


@pytest.mark.parametrize(
    ("wide", "tensor", "named"), [(8.0, True, True), (0.0, True, False), (8.0, False, False)]
)
def test_parameters_gathered_in_fp32_for_products_in_bf16(wide: float, tensor: bool, named: bool) -> None:
    kind = ComputeKind.TENSOR_MATMUL if tensor else ComputeKind.PLAIN_MATMUL
    gather = launch(MS, 20 * MS, kind=int(ComputeKind.COMMUNICATION), group=0, tags=int(Tag.COLLECTIVE))
    table = line([[gather, launch(MS, 10 * MS, kind=int(kind))]] * 3)
    made = host_line(table, {}, gathers=8.0, wide_gathers=wide)
    census = msgspec.structs.replace(made.census, units=["blocks.0"])
    lines = Lines.of({0: msgspec.structs.replace(made, census=census)})
    assert lines is not None
    gain = gain_of("fsdp_fp32", mistakes_of(lines)[0])
    # The streams are one: 30 ms become 20.
    assert gain == (pytest.approx(30 / 20, rel=0.02) if named else None)


@pytest.mark.parametrize(("small", "named"), [(8_192, True), (20_000_000, False), (-1, True)])
def test_units_of_experts_are_not_tiny(small: int, named: bool) -> None:
    gather = launch(MS, MS, kind=int(ComputeKind.COMMUNICATION), group=0, tags=int(Tag.COLLECTIVE))
    calls = [{**gather, "bytes": small, "order": order} for order in range(60)]
    made = host_line(line([[*calls, launch(MS, MS)]] * 3), {})
    units = [f"layers.{number // 6}.experts.{number % 6}" for number in range(60)]
    census = msgspec.structs.replace(made.census, units=units)
    lines = Lines.of({0: msgspec.structs.replace(made, census=census)})
    assert lines is not None
    assert (gain_of("fsdp_tiny_units", mistakes_of(lines)[0]) is not None) == named


def test_a_checkpoint_costs_what_its_steps_have_beyond_the_others() -> None:
    plain = [launch(MS, MS // 10)] * 10
    copy = launch(2 * MS, MS // 100, kind=int(ComputeKind.READ_COPY), bytes=1_000_000)
    saving = [*plain, *[copy] * 20]
    gain = gain_of("ckpt_stall", found([plain, saving, plain, saving]))
    # Steps of 10 and 50 ms become steps of 10.
    mean = (10 + 50) / 2
    assert gain == pytest.approx(mean / (10 * (1 - 0.2 * (mean - 10) / mean)), rel=0.05)


def test_what_a_checkpoint_leaves_to_the_step_behind_it_goes_with_it() -> None:
    plain = [launch(MS, MS // 100)] * 10
    copy = launch(2 * MS, MS // 100, kind=int(ComputeKind.READ_COPY), bytes=1_000_000)
    silent = launch(30 * MS, MS // 100, tags=int(Tag.SILENT))
    steps = [plain, [*plain, *[copy] * 20], [silent, *plain[:-1]]]
    mistake = next(item for item in found(steps, Tag.SILENT) if item.id == "ckpt_stall")
    # Steps of 10, 50 and 39 ms become steps of 10 or 9. One checkpoint in three steps may be one in two.
    mean, left = (10 + 50 + 39) / 3, (10 + 9 + 9.5) / 3
    assert mistake.gain.value == pytest.approx(mean / (left * (1 - 0.2 * (mean - left) / mean)), rel=0.05)
    assert mistake.gain.high >= 1 + 3 / 2 * (mistake.gain.value - 1)
    assert mistake.gain.low == 1.0


def test_workers_that_start_twice_tell_how_often_they_start() -> None:
    plain = [launch(MS, MS // 100)] * 10
    start = [{**launch(90 * MS, MS), "tags": int(Tag.LOADER_START)}, *plain]
    mistake = next(
        item for item in found([start, *[plain] * 5, start], Tag.LOADER_START) if item.id == "loader_respawn"
    )
    captured, real = 2 / 7, 1 / 6
    gone = captured * 90
    warm = 1 - 0.2 * gone / (10 + gone)
    assert mistake.gain.value == pytest.approx(
        1 + real / captured * ((10 + gone) / (10 * warm) - 1), rel=0.03
    )


@pytest.mark.parametrize(("stretches", "warmed"), [(1, False), (10, True)])
def test_a_long_stretch_between_two_calls_does_not_get_faster(stretches: int, warmed: bool) -> None:
    compiled = launch(80 * MS, MS // 100, tags=int(Tag.COMPILE))
    others = [launch(10 * MS // stretches, MS // 100)] * stretches
    gain = gain_of("recompile", found([[compiled, *others]] * 3, Tag.COMPILE))
    assert gain == pytest.approx(90 / (10 * (1 - 0.2 * 80 / 90 if warmed else 1)), rel=0.02)


def test_pinning_by_the_loader_bounds_the_gain_of_pinned_copies() -> None:
    copy = {
        **launch(MS, 30 * MS, kind=int(ComputeKind.PAGEABLE_COPY)),
        "held_ns": 30 * MS,
        "bytes": 100_000_000,
    }
    rest = launch(9 * MS, 5 * MS)
    gain = gain_of("pageable_copy", found([[copy, rest]] * 3))
    # The copy waits for the kernel behind which it is queued.
    now = 9 + 5 + 30
    assert gain == pytest.approx(now / (1.3 * 30), rel=0.05)


@pytest.mark.parametrize(("tags", "reductions", "named"), [(0, 8.0, True), (0, 0.0, False)])
def test_small_collectives_of_the_model_are_no_metrics(tags: int, reductions: float, named: bool) -> None:
    small = launch(MS, MS // 10, kind=int(ComputeKind.COMMUNICATION), group=0, bytes=8, tags=tags)
    counts = {"all_reduce": reductions, "all_gather": 8.0 - reductions}
    gain = gain_of("metric_reduces", found([[launch(MS, MS), *[small] * 8]] * 3, **counts))
    assert (gain is not None) == named


def test_an_optimizer_that_computes_the_loss_again_needs_each_exchange() -> None:
    call = launch(MS, MS, kind=int(ComputeKind.COMMUNICATION), group=0, bytes=8 << 20)
    for tags, named in ((0, True), (int(Tag.OPTIMIZER), False)):
        calls = [{**call, "order": order, "tags": tags} for order in range(2)]
        mistakes = found([[launch(MS, MS), *calls]] * 3, ddp_forward=2.0, optimizer=1.0)
        assert (gain_of("no_no_sync", mistakes) is not None) is named


@pytest.mark.parametrize(
    ("sizes", "named"), [([8, 4, 8, 4], True), ([8, 4, 2, 1], False), ([8, 8, 8], False)]
)
def test_passes_that_exchange_the_same_again(sizes: Sequence[int], named: bool) -> None:
    calls = [
        launch(MS, MS, kind=int(ComputeKind.COMMUNICATION), group=0, bytes=size << 20, order=order)
        for order, size in enumerate(sizes)
    ]
    mistakes = found([[launch(MS, MS), *calls]] * 3, ddp_forward=2.0, optimizer=1.0)
    assert (gain_of("no_no_sync", mistakes) is not None) == named


def test_an_optimizer_that_multiplies_matrices_needs_no_foreach() -> None:
    one = launch(MS // 10, 2_000, kind=int(ComputeKind.ELEMENTWISE), tags=int(Tag.OPTIMIZER))
    product = {**one, "kind": int(ComputeKind.TENSOR_MATMUL)}
    assert gain_of("foreach_off", found([[*[one] * 150]] * 3, Tag.OPTIMIZER)) is not None
    assert gain_of("foreach_off", found([[*[one] * 150, product]] * 3, Tag.OPTIMIZER)) is None


def test_a_compiler_that_works_in_the_first_step_alone_does_not_work_again() -> None:
    plain = [launch(MS, MS // 100)] * 10
    compiled = [launch(80 * MS, MS // 100, tags=int(Tag.COMPILE)), *plain]
    assert gain_of("recompile", found([compiled, plain, plain], Tag.COMPILE)) is None
    assert gain_of("recompile", found([plain, compiled, plain], Tag.COMPILE)) is not None
    assert gain_of("recompile", found([compiled], Tag.COMPILE)) is not None


def test_ranks_without_traces_widen_the_gain_and_are_not_compared() -> None:
    again = launch(4 * MS, MS, kind=int(ComputeKind.TENSOR_MATMUL), tags=int(Tag.RECOMPUTE))
    exchange = launch(MS, 20 * MS, kind=int(ComputeKind.COMMUNICATION), group=0)
    table = line([[exchange, *[again] * 4, launch(4 * MS, MS)]] * 3)
    tagged = [4 * MS if tags else 0 for tags in table.tags.tolist()]
    lines = Lines.of({0: host_line(table, {Tag.RECOMPUTE: tagged})})
    assert lines is not None
    (whole,), (alone,) = (mistakes_of(lines, missing=missing)[0] for missing in (0, 7))
    assert (whole.id, alone.id) == ("needless_checkpointing",) * 2
    assert alone.gain.value == whole.gain.value
    assert alone.gain.high > whole.gain.high
    assert alone.evidence["ranks_without_traces"] == 7
    assert "ranks_without_traces" not in whole.evidence


def test_several_mistakes_are_counted_once_together() -> None:
    again = launch(4 * MS, MS, kind=int(ComputeKind.ELEMENTWISE), tags=int(Tag.RECOMPUTE))
    plain = launch(1 * MS, 90 * MS, kind=int(ComputeKind.PLAIN_MATMUL))
    table = line([[plain, *[again] * 10]] * 3)
    tagged = [4 * MS if tags else 0 for tags in table.tags.tolist()]
    lines = Lines.of({0: host_line(table, {Tag.RECOMPUTE: tagged})})
    assert lines is not None
    mistakes, together = mistakes_of(lines)
    assert together is not None
    assert set(together.ids) == {item.id for item in mistakes if item.gain.value > 1.02}
    assert together.gain.value >= max(item.gain.value for item in mistakes)
    intended, rest = mistakes_of(lines, intended=["fp32_matmul"])
    assert rest is None
    assert [item.id for item in intended if item.intended] == ["fp32_matmul"]
    assert intended[-1].intended


def test_each_mistake_has_code_before_and_after() -> None:
    assert len(CATALOGUE) > 0
    for id_, plugin in CATALOGUE.items():
        assert plugin.module.endswith(f".{id_}")
        assert plugin.spec.before.strip() != plugin.spec.after.strip() != ""
        assert plugin.spec.look is not None or plugin.spec.shown_by != "traces"
