"""Host lines of small traces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from aorta.artefacts.events import ABSENT, Kind, RangeRole, Trace, TraceRanges, build, concatenate, take
from aorta.artefacts.hostline import ComputeKind, HostLine, Item, LineTable, Tag, unpack_line
from aorta.artefacts.packed import unpack
from aorta.metrics.host_line import host_line
from aorta.metrics.kernel_names import compute_kind
from tests.support.traces import trace

US = 1_000
STEPS = [(0, 1_000 * US, "ProfilerStep#1"), (1_000 * US, 2_000 * US, "ProfilerStep#2")]
STEPS += [(2_000 * US, 3_000 * US, "ProfilerStep#3")]
Call = tuple[int, int, str, int]
"""Start and end in µs, name, correlation."""


def traced(
    gpu: Sequence[tuple[int, int, Kind, str]], calls: Sequence[Call], operators: Sequence[Call] = ()
) -> Trace:
    """A trace of three steps of 1 ms; work on the GPU has its place as correlation. Times are in µs."""
    made = trace(
        [(start * US, end * US, kind) for start, end, kind, _ in gpu],
        steps=STEPS,
        names=[name for *_, name in gpu],
    )
    names = [*made.names, *dict.fromkeys(name for *_, name, _ in [*calls, *operators])]

    def ranges(rows: Sequence[Call]) -> TraceRanges:
        roles = {"launch": RangeRole.LAUNCH, "sync": RangeRole.SYNC}
        return build(
            TraceRanges,
            len(rows),
            start_ns=[start * US for start, *_ in rows],
            end_ns=[end * US for _, end, *_ in rows],
            role=[int(roles.get(name, RangeRole.API)) for *_, name, _ in rows],
            lane=1,
            name=[names.index(name) for *_, name, _ in rows],
            correlation=[correlation for *_, correlation in rows],
        )

    host = concatenate(TraceRanges, [made.host, ranges(calls)])
    inner = replace(ranges(operators), role=np.full(len(operators), int(RangeRole.OPERATOR)))
    order = np.argsort(host.start_ns, kind="stable")
    return replace(made, host=take(host, order), operators=inner, names=tuple(names))


def lined(made: Trace) -> tuple[HostLine, LineTable]:
    line = host_line(made)
    assert line is not None
    return line, unpack_line(line)


def test_work_lies_between_launches_and_waits_are_held() -> None:
    gpu = [(210, 600, Kind.COMPUTE, "gemm"), (1_210, 1_300, Kind.COMPUTE, "gemm")]
    calls = [(200, 210, "launch", 0), (300, 620, "sync", ABSENT), (1_200, 1_210, "launch", 1)]
    _, table = lined(traced(gpu, calls))
    assert table.item.tolist() == [Item.STEP, Item.LAUNCH, Item.SYNC, Item.STEP, Item.LAUNCH, Item.END]
    assert table.work_ns.tolist() == [n * US for n in (0, 200, 300 - 200, 1_000 - 620, 200, 2_000 - 1_200)]
    assert table.held_ns.tolist() == [n * US for n in (0, 0, 620 - 300, 0, 0, 0)]
    # It returned 20 µs after the kernel that it waited for, which the item before it launched.
    assert (table.behind_ns[2], table.needs[2]) == ((620 - 600) * US, 1)
    assert table.gpu_ns.tolist() == [n * US for n in (0, 600 - 210, 0, 0, 1_300 - 1_210, 0)]
    assert int((table.work_ns + table.held_ns).sum()) == 2_000 * US


@pytest.mark.parametrize(
    ("name", "call", "held"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpyAsync", 0),
        ("Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", 60),
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpy", 60),
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", 60),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync", 0),
        ("Memcpy DtoD (Device -> Device)", "cudaMemcpyAsync", 0),
        ("CopyHostToDevice", "hipMemcpyWithStream", 60),
    ],
)
def test_nobody_waits_for_a_copy_that_is_only_queued(name: str, call: str, held: int) -> None:
    gpu = [(210, 250, Kind.COPY, name), (400, 500, Kind.COMPUTE, "gemm")]
    made = traced(gpu, [(200, 260, call, 0), (390, 395, "launch", 1)])
    api = (made.host.role == RangeRole.API) & (made.host.correlation == 0)
    host = replace(made.host, role=np.where(api, int(RangeRole.LAUNCH), made.host.role))
    _, table = lined(replace(made, host=host))
    assert table.held_ns[table.item == Item.LAUNCH].tolist() == [held * US, 0]


def test_edges_of_operators_and_calls_are_counted_where_they_lie() -> None:
    gpu = [(210, 300, Kind.COMPUTE, "gemm"), (1_210, 1_300, Kind.COMPUTE, "gemm")]
    calls = [(200, 210, "launch", 0), (1_200, 1_210, "launch", 1)]
    operators = [(100, 400, "aten::linear", ABSENT), (150, 160, "aten::t", ABSENT)]
    line, table = lined(traced(gpu, calls, operators))
    # Before the first launch: the start of linear, and both ends of t. Behind it: the end of linear.
    assert table.edges.tolist() == [0, 3, 1, 0, 0]
    assert table.calls.tolist() == [0, 0, 2, 0, 2]
    assert line.pace.operators == (1 + 1) / 2


def test_a_launch_needs_what_its_stream_was_told_to_wait_for() -> None:
    gpu = [(210, 400, Kind.COMPUTE, "gemm"), (410, 500, Kind.COMPUTE, "gemm")]
    calls = [(200, 205, "launch", 0), (210, 212, "cudaStreamWaitEvent", ABSENT), (220, 225, "launch", 1)]
    made = traced(gpu, calls)
    told = replace(made, gpu=replace(made.gpu, stream=np.array([7, 20])))
    _, table = lined(told)
    assert table.needs[table.item == Item.LAUNCH].tolist() == [0, 1]
    _, alone = lined(replace(told, host=take(told.host, told.host.role != RangeRole.API)))
    assert alone.needs[alone.item == Item.LAUNCH].tolist() == [0, 0]


def test_forward_operators_in_the_backward_pass_are_recomputation() -> None:
    gpu = [(210, 300, Kind.COMPUTE, "gemm")]
    calls = [(200, 210, "launch", 0)]
    backward = (100, 400, "autograd::engine::evaluate_function: AddmmBackward0", ABSENT)
    again = (150, 220, "aten::linear", ABSENT)
    forward = (500, 600, "aten::linear", ABSENT)
    own = (250, 300, "aten::mm", ABSENT)
    line, table = lined(traced(gpu, calls, [backward, again, own, forward]))
    recomputed = {item.tag: unpack(item.work_ns).sum() for item in line.tagged}[int(Tag.RECOMPUTE)]
    # Up to the backward function's own operator.
    assert recomputed == (250 - 100) * US
    assert table.tags[table.item == Item.LAUNCH] & Tag.RECOMPUTE
    line, _ = lined(traced(gpu, calls, [backward, forward]))
    assert int(Tag.RECOMPUTE) not in {item.tag for item in line.tagged}


def test_a_trace_without_launches_has_no_line() -> None:
    gpu = [(210, 300, Kind.COMPUTE, "gemm")]
    assert host_line(traced(gpu, [])) is None
    assert host_line(traced(gpu, [(200, 210, "launch", 0)])) is not None


def test_kernels_are_told_apart_by_their_names() -> None:
    names = {
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT": ComputeKind.TENSOR_MATMUL,
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>": ComputeKind.PLAIN_MATMUL,
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma": ComputeKind.PLAIN_MATMUL,
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16": ComputeKind.TENSOR_MATMUL,
        "ampere_sgemm_128x64_tn": ComputeKind.PLAIN_MATMUL,
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn": ComputeKind.TENSOR_MATMUL,
        "volta_sgemm_64x64_nn": ComputeKind.PLAIN_MATMUL,
        "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn": ComputeKind.TENSOR_MATMUL,
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80": ComputeKind.ATTENTION,
        "void pytorch_flash::flash_fwd_kernel": ComputeKind.ATTENTION,
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16": ComputeKind.ATTENTION,
        "void softmax_warp_forward<float, float, float, 10, false>": ComputeKind.SOFTMAX,
        "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>": ComputeKind.POINTWISE,
        "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>": ComputeKind.OPTIMIZER,
        "void softmax_warp_forward<float, float, float, 10, true, false>": ComputeKind.ELEMENTWISE,
        "triton_poi_fused__scaled_dot_product_flash_attention_addmm_3": ComputeKind.ELEMENTWISE,
        "triton_per_fused__softmax_mm_4": ComputeKind.SOFTMAX,
        "triton_red_fused__log_softmax_5": ComputeKind.ELEMENTWISE,
        "triton_tem_fused_mm_6": ComputeKind.TENSOR_MATMUL,
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128>": ComputeKind.OTHER_MATMUL,
        "volta_dgemm_64x64_nn": ComputeKind.OTHER_MATMUL,
        "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1": ComputeKind.OTHER_MATMUL,
        "cutlass_80_simt_sgemm_64x64_8x5_nn_align1": ComputeKind.PLAIN_MATMUL,
        "Cijk_Ailk_Bljk_BBS_BH_MT128x128x64_MI32x32x8x1": ComputeKind.TENSOR_MATMUL,
        "Cijk_Ailk_Bljk_SB_MT64x64x8_SN": ComputeKind.PLAIN_MATMUL,
        "Cijk_Ailk_Bljk_DB_MT64x64x8_SN": ComputeKind.OTHER_MATMUL,
        "made_up_by_nobody": ComputeKind.OTHER,
    }  # fmt: skip
    assert {name: compute_kind(name) for name in names} == names
