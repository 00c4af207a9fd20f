"""Kinds of compute kernels, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from aorta.artefacts.events import Column, GpuEvents, Kind, used_codes
from aorta.artefacts.hostline import ComputeKind

_PATTERNS = (
    # Fused pointwise kernels have the names of all operators in them, of products and attention, too.
    (ComputeKind.SOFTMAX, r"^triton_(?:per|red)_fused_(?!.*log_softmax).*softmax"),
    (ComputeKind.ELEMENTWISE, r"^triton_(?:poi|per|red|for)_|softmax_warp_\w+<[^>]*, ?\d+, ?true"),
    (
        ComputeKind.OPTIMIZER,
        r"FusedOptimizer|fused_?adam|multi_tensor_apply|fused_sgd|lamb_?stage|distributed_fused",
    ),
    (
        ComputeKind.ATTENTION,
        r"flash|fmha|sdpa|attention|attn|AttnFwd|AttnBwd|paged_?att|efficient_att|mha_",
    ),
    (ComputeKind.SOFTMAX, r"(?<!log_)(?<!log)softmax(?!.*log_?softmax)"),
    (
        ComputeKind.OTHER_MATMUL,
        r"gemv|gemmk1|dot_kernel|f64f64|(?<![a-z])[dcz]gemm|simt_?[dcz]gemm|d884gemm|Cijk_\w*_[DCZ]B?_\w*MT",
    ),
    (
        ComputeKind.PLAIN_MATMUL,
        r"simt_?s?gemm|_ffma_|f32f32_f32f32_f32|sgemm_(?:\d|largek|nt|nn|tn)|"
        r"magma_?sgemm|[^a-z]sgemm|Cijk_\w*_S(?:B|_)\w*_MT(?!\w*MI)",
    ),
    (
        ComputeKind.TENSOR_MATMUL,
        r"nvjet|gemm|wgmma|cutlass|tensorop|[hsi]884|[hsi]1688|16816|xmma|hmma|Cijk_|matmul|cublas|"
        r"convolve|conv2d|conv_|dgrad|wgrad|fprop|implicit_con|winograd|triton_\w*_mm",
    ),
    (ComputeKind.POINTWISE, r"elementwise_kernel"),
    (
        ComputeKind.ELEMENTWISE,
        r"elementwise|layer_?norm|rms_?norm|batch_?norm|group_?norm|GammaBeta|reduce_kernel|softmax|"
        r"dropout|gelu|silu|CatArray|index|scatter|gather|copy|cast|fill|triton_(?:poi|per|red)|embedding|"
        r"compute_grad_weight|nll_loss|cross_entropy|split_with_sizes|chunk_cat|sort|scan|where|norm",
    ),
)
# Names are searched in small letters: to ignore case takes twice as long, on both sides.
_KINDS = tuple((kind, re.compile(pattern.lower())) for kind, pattern in _PATTERNS)
_TO_HOST = ("dtoh", "device-to-host", "devicetohost")
_ON_DEVICE = ("dtod", "device-to-device", "devicetodevice", "memset", "fill")
_FOR_OPTIMIZERS = "multi_tensor_apply"
_NO_OPTIMIZER = ("copyfunctor", "unaryopfunctor", "scalefunctor", "l2norm", "lpnorm")


@lru_cache(maxsize=1 << 12)
def compute_kind(name: str) -> ComputeKind:
    """The kind of a compute kernel."""
    text = name.lower()
    for kind, pattern in _KINDS:
        if pattern.search(text):
            of_others = _FOR_OPTIMIZERS in text and any(word in text for word in _NO_OPTIMIZER)
            return ComputeKind.ELEMENTWISE if kind is ComputeKind.OPTIMIZER and of_others else kind
    return ComputeKind.OTHER


def kinds_of_events(gpu: GpuEvents, names: Sequence[str]) -> Column:
    """The `ComputeKind` of each GPU event."""
    table = np.full(len(names) + 1, int(ComputeKind.OTHER), dtype=np.int64)
    copy = np.full(len(names) + 1, int(ComputeKind.COPY), dtype=np.int64)
    for code in used_codes(gpu.name, len(names)):
        table[code] = compute_kind(names[code])
        copy[code] = _copy_kind(names[code])
    kind = table[gpu.name]
    kind[gpu.kind == Kind.COMMUNICATION] = int(ComputeKind.COMMUNICATION)
    kind[gpu.kind == Kind.UNCLASSIFIED] = int(ComputeKind.OTHER)
    copies = (gpu.kind == Kind.COPY) | (gpu.kind == Kind.MEMSET)
    kind[copies] = copy[gpu.name[copies]]
    return kind


def waits_for_none(name: str) -> bool:
    """True for memory work that an asynchronous call only queues: fills, copies on devices, pinned memory."""
    text = name.lower()
    pinned = "pinned" in text and "pageable" not in text
    return pinned or any(word in text for word in _ON_DEVICE)


def _copy_kind(name: str) -> int:
    text = name.lower()
    if any(word in text for word in _TO_HOST):
        return int(ComputeKind.READ_COPY)
    return int(ComputeKind.PAGEABLE_COPY if "pageable" in text else ComputeKind.COPY)
