"""Names: kinds, operations, roles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.events import ABSENT, Kind, RangeRole
from aorta.readers import kernels
from aorta.readers.kernels import api_role, kernel_kind, kinds_of, operation, range_role


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "nccldevkernel_allreduce_sum_f32_ring_ll",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "void rccl_main_kernel<1>(int)",
        "void vllm::cross_device_reduce_1stage<__half, 8>(RankData*)",
        "two_shot_all_reduce_kernel",
        "void deep_ep::internode::combine<false, 8, __nv_bfloat16, 8192>(int4*, float*)",
        "void nixl_ep::dispatch<8>(int4*)",
        "void dpsk::ep::dispatch<1>(int)",
        "userbuffers_fp16_sum_inplace_gpu_rr",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(int)",
        "quickreduce::allreduce_prototype_twoshot<int>",
        "void (anonymous namespace)::all_gather_kernel<float>(int)",
        "c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)",
        "rocshmem_putmem_kernel",
        "void mori::moe::EpDispatchIntraNodeKernel<float>(int)",
        "hcom_allReduce_",
        "ccl_allreduce_kernel",
        "_ZN3ccl2v118allreduce_kernelE",
        "mcclKernel_AllReduce_RING",
        "ucc_ec_cuda_executor_persistent",
        "_ZN7deep_ep9intranode15notify_dispatchILi8EEEvPKi",
        "_ZN4c10d16symmetric_memory12_GLOBAL__N_114barrier_kernelE",
        "_ZN4mori3moe24EpCombineIntraNodeKernelE",
        "barrier_all_intra_node_atomic_cas_block",
        "kernel_combine_token",
        "_forward_push_2d_ll_kernel",
        "p2p_put_kernel",
        "void tensorrt_llm::kernels::moeA2ADispatchKernel<1>(int)",
        "a2a_combine_send_kernel",
        "kernel_pre_attn_qkv_pack_a2a",
        "void mscclpp::executionKernel<int>(int)",
        "sendrecv_kernel",
    ],
)
def test_communication_kernels(name: str) -> None:
    assert kernel_kind(name) == Kind.COMMUNICATION


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void at::native::reduce_kernel<128, 4>(int)", Kind.COMPUTE),
        ("nvjet_sm90_tst_256x128_64x4", Kind.COMPUTE),
        ("void softmax_warpAllReduce<float>(float*)", Kind.COMPUTE),
        ("void blockAllReduceSum<float>(float*)", Kind.COMPUTE),
        ("triton_poi_fused__to_copy_all_reduce_wait_tensor_3", Kind.COMPUTE),
        ("void fused_gemm<AllReduceOp>(float*)", Kind.COMPUTE),
        ("__amd_rocclr_copyBuffer", Kind.COPY),
        ("__amd_rocclr_fillBufferAligned", Kind.MEMSET),
        ("", Kind.UNCLASSIFIED),
        ("kernel_fused_gemm_allreduce", Kind.UNCLASSIFIED),
        ("kernel_fused_ag_gemm", Kind.UNCLASSIFIED),
        ("kernel_gemm_rs_producer_persistent", Kind.UNCLASSIFIED),
        ("moe_gather_rs_grouped_gemm_kernel", Kind.UNCLASSIFIED),
        ("sm100_fp8_fp4_mega_moe_impl", Kind.UNCLASSIFIED),
        ("void cutlass::device_kernel<DistributedGemmKernelWrapper<int>>(int)", Kind.UNCLASSIFIED),
        ("void cutlass::Kernel2<bytedance::flux::GemmRS>(int)", Kind.UNCLASSIFIED),
        ("kernel_ring_reduce_tma", Kind.COMPUTE),
        ("moe_combine_kernel", Kind.COMPUTE),
        ("moe_grouped_gemm_kernel", Kind.COMPUTE),
        ("kernel_combine_tokens", Kind.COMPUTE),
        ("vectorized_gather_kernel", Kind.COMPUTE),
    ],
)
def test_other_kernels(name: str, kind: Kind) -> None:
    assert kernel_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", "all_gather"),
        ("_allgather_base", "all_gather"),
        ("nccl:all_to_all", "all_to_all"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("void (anonymous namespace)::all_reduce_kernel<4>(int)", "all_reduce"),
        ("void deep_ep::internode::combine<false, 8>(int4*)", "all_to_all"),
        ("send", "send_recv"),
        ("ncclDevKernel_Reduce_Sum_f32", "reduce"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", None),
    ],
)
def test_operations(name: str, op: str | None) -> None:
    assert operation(name) == op


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("ProfilerStep#12", RangeRole.STEP),
        ("step 20", RangeRole.STEP),
        ("aorta.step", RangeRole.STEP),
        ("Optimizer.step#AdamW.step", RangeRole.OPTIMIZER),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", RangeRole.LOADER),
        ("aorta.data", RangeRole.DATA),
        ("## forward ##", RangeRole.FORWARD),
        ("backward_pass", RangeRole.BACKWARD),
        ("nccl:all_reduce", RangeRole.COLLECTIVE),
        ("ncclAllReduce", RangeRole.COLLECTIVE),
        ("stepping stones", RangeRole.OTHER),
        ("metadata", RangeRole.OTHER),
    ],
)
def test_range_roles(name: str, role: RangeRole) -> None:
    assert range_role(name) == role


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("cudaLaunchKernel_v7000", RangeRole.LAUNCH),
        ("cuLaunchKernelEx", RangeRole.LAUNCH),
        ("cudaMemcpyAsync_v3020", RangeRole.LAUNCH),
        ("hipLaunchKernel", RangeRole.LAUNCH),
        ("cudaDeviceSynchronize_v3020", RangeRole.SYNC),
        ("cudaMemcpy", RangeRole.SYNC),
        ("hipStreamSynchronize", RangeRole.SYNC),
        ("cudaStreamWaitEvent_v3020", RangeRole.API),  # makes a stream wait, not the host
        ("cudaEventQuery", RangeRole.API),
    ],
)
def test_api_roles(name: str, role: RangeRole) -> None:
    assert api_role(name) == role


def test_an_absent_name_has_no_kind_and_others_keep_theirs() -> None:
    kinds = kinds_of(["gemm", "ncclKernel_x"], np.array([1, ABSENT, 0, 1]))
    assert kinds.tolist() == [Kind.COMMUNICATION, ABSENT, Kind.COMPUTE, Kind.COMMUNICATION]


@given(st.from_regex(kernels._COMMUNICATION))
def test_each_name_of_a_library_holds_one_of_the_words_that_are_looked_for_first(name: str) -> None:
    assert any(word in name for word in kernels._COMMUNICATION_WORDS)
