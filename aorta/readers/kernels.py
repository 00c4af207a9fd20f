"""Describes what a name says: the kind of a kernel, the operation of a collective, the role of a host range.

The only place that knows names; the readers of every format use it, so that they cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from aorta.artefacts import names
from aorta.artefacts.events import ABSENT, Column, Kind, RangeRole

# Names are searched in small letters: to ignore case takes twice as long.
# Libraries by prefix or namespace (demangled or not), custom all-reduces, expert parallelism, symmetric
# memory, and the kernels of Triton-distributed.
_COMMUNICATION = re.compile(
    r"(?:^|[^a-z])(?:nccl|rccl|msccl|mccl|cncl|bkcl|xccl|flagcx|(?:one)?ccl[_:]|hccl|hcom_|ucc_)|_zn3ccl\d"
    r"|(?:nv|mx|roc|roc_|i)shmem|(?:^|[^a-z])(?:mori|nixl|uccl|pplx|dpsk::ep)(?:::|_|\d)"
    r"|(?:^|[^a-z])deep_?ep(?![a-z])|(?:inter|intra)_?node|ibgda"
    r"|userbuffers|cross_device_reduce|multimem_|(?:one|two)_?shot_(?:all_?reduce|all_?gather)"
    r"|quick_?reduce|symmetric_memory|(?:put|wait)_signal_kernel|mnnvl"
    r"|(?:^|_)barrier_all(?:_|$)|(?:^|_)p2p_(?:put|get|copy|send|recv|(?:set|wait)_signal)"
    r"|kernel_(?:dispatch|combine)_token(?![a-z])|_forward_pu(?:sh|ll)_"
)
_COMMUNICATION_WORDS = (
    *("ccl", "bkcl", "cncl", "flagcx", "hcom_", "ucc_", "shmem", "mori", "nixl", "pplx", "dpsk", "deep"),
    *("node", "ibgda", "userbuffers", "cross_device", "multimem_", "shot", "quick", "symmetric", "_signal"),
    *("mnnvl", "barrier", "p2p_", "_token", "_forward_pu"),
)
"""One of these is in each name that `_COMMUNICATION` finds: most names hold none, and are long."""
# Any other library: the collective in the kernel's own name. Reductions within a warp or block are none.
_NAMED_COLLECTIVE = re.compile(
    r"(?<!warp)(?<!warp_)(?<!block)(?<!block_)(?<!thread)(?<!thread_)(?<!subgroup)(?<!subgroup_)(?<!simd_)"
    r"(?<!cta_)(?<!quad_)(?<!lane_)"
    r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all|send_?recv"
    r"|(?<![a-z0-9])a2a(?![a-z0-9])|moe_?a2a)"
)
# One kernel that computes and exchanges: nothing tells which time goes where.
_FUSED = re.compile(
    r"(?:gemm|matmul|mega_?kernel|mega_?moe).*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all"
    r"|a2a|notify|_token)"
    r"|(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all|a2a|_token).*(?:gemm|matmul)"
    r"|(?:^|_)(?:ag|ar)_(?:\w+_)?gemm|gemm_(?:rs|ar|allscatter|all_scatter)(?:_|$)|(?:^|_)(?:rs|ar)_grouped_gemm"
    r"|consumer_(?:gemm|flash_attn)|mega_?moe|^flux_"
)
_FUSED_TYPES = re.compile(r"DistributedGemm|(?:^|[^a-z])flux::")
# The compilers of torch call a kernel after the operators that it fuses, a wait for a collective among them.
_GENERATED = re.compile(r"^triton_(?:poi|red|per|tem|for|mm|bmm|convolution)|^fused_|^cpp_fused")
# ROCm runs copies and fills between buffers of one device as kernels.
_COPY_KERNEL = re.compile(r"^__amd_rocclr_copy")
_FILL_KERNEL = re.compile(r"^__amd_rocclr_fill")

_OPERATIONS = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce|quick_?reduce")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_gather", re.compile(r"all_?gather")),
    (
        "all_to_all",
        re.compile(
            r"all_?to_?all|all2all|(?:deep_?ep|dpsk::ep|mori|pplx|nixl|uccl).*(?:dispatch|combine)"
            r"|(?:dispatch|combine).*(?:inter|intra)_?node|kernel_(?:dispatch|combine)_token"
            r"|(?<![a-z0-9])a2a(?![a-z0-9])|moe_?a2a"
        ),
    ),
    ("broadcast", re.compile(r"broadcast")),
    (
        "send_recv",
        re.compile(r"send_?recv|(?:^|[:_. ])(?:i?send|i?recv)(?:$|[_(])|nccl(?:send|recv)"),
    ),
    ("reduce", re.compile(r"reduce")),
    ("barrier", re.compile(r"barrier")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
)


def _own(name: str) -> str:
    """A pattern for the ranges of this name that aorta's recorder writes."""
    return rf"{re.escape(name)}\b.*"


_RANGES = {
    RangeRole.STEP: (
        rf"ProfilerStep[#*]?\s*\d*|{_own(names.STEP_RANGE)}"
        r"|(?:train(?:ing)?[ _])?(?:step|iteration|iter)[ _#:=]*\d+"
    ),
    RangeRole.LOADER: r"enumerate\(DataLoader\)#.*|aorta\.loader\b.*|.*DataLoader(?:Iter)?\.__next__.*",
    RangeRole.DATA: (
        rf"{_own(names.LOADER_RANGE)}"
        r"|(?:## )?(?:get[ _]batch|load[ _]batch|data(?:[ _]?load(?:ing|er)?)?)(?: ##)?"
    ),
    RangeRole.FORWARD: (
        rf"{_own(names.part_range('forward'))}"
        r"|(?:## )?forward(?:_pass)?(?: ##)?|DistributedDataParallel\.forward"
    ),
    RangeRole.BACKWARD: rf"{_own(names.part_range('backward'))}|(?:## )?backward(?:_pass)?(?: ##)?",
    RangeRole.OPTIMIZER: (
        rf"{_own(names.part_range('optimizer'))}|Optimizer\.step#.*|(?:## )?optimizer(?:[_.]step)?(?: ##)?"
    ),
    RangeRole.COLLECTIVE: (
        r"(?:nccl|rccl|gloo|mpi|ucc|xccl):.*|(?:nccl|rccl)(?:All|Reduce|Broad|Send|Recv)\w*"
    ),
}
# One for all: a capture may have a name of its own for every range.
_ROLES = re.compile("|".join(f"(?P<{role.name}>{pattern})" for role, pattern in _RANGES.items()))

_SYNC = re.compile(
    r"(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx)Synchronize"
    r"|(?!cuda|cu|hip|\w*Enqueue)\w*(?:Synchronize\w*|QueueFinish|(?:Event|Fence|Queue)s?Wait)"
    r"|(?:cuda|hip)Mem(?:cpy|set)(?:2D|3D|ToSymbol|FromSymbol|WithStream|DtoH|HtoD)?|cuMemcpy(?:DtoH|HtoD|DtoD)?"
    r"|hsa_signal_wait_\w+"
)
_LAUNCH = re.compile(
    r"(?:cuda|cu|hip)(?:(?!\w*HostFunc)\w*Launch\w*|Mem(?:cpy|set)\w*Async\w*)|hipMemcpyWithStream\w*"
    r"|(?!cuda|cu|hip)\w*(?:Launch\w*|Enqueue(?!Events?Wait|Event)\w+|Append(?:Launch|Memory)\w+|Mem(?:cpy|set)\w*Async\w*)"
)
_SUFFIX = re.compile(r"(?:_v\d+)?(?:_pt(?:ds|sz))?(?:_v\d+)?$")

_KEPT = 1 << 12
"""Names whose answers are kept: the ranks of a job have the same, and a pattern takes long for a long one."""


@lru_cache(_KEPT)
def kernel_kind(name: str) -> Kind:
    """The kind of a kernel by its name (plain, demangled or lower-cased).

    No name gives UNCLASSIFIED, and so does that of a kernel which computes and exchanges at once.
    """
    if not name:
        return Kind.UNCLASSIFIED
    if _GENERATED.match(name):
        return Kind.COMPUTE
    own = _own_name(name).lower()
    if _FUSED.search(own) or _FUSED_TYPES.search(name):
        return Kind.UNCLASSIFIED
    if _of_library(name.lower()) or _NAMED_COLLECTIVE.search(own):
        return Kind.COMMUNICATION
    if _COPY_KERNEL.match(name):
        return Kind.COPY
    return Kind.MEMSET if _FILL_KERNEL.match(name) else Kind.COMPUTE


def _of_library(name: str) -> bool:
    found = any(word in name for word in _COMMUNICATION_WORDS)
    return found and _COMMUNICATION.search(name) is not None


@lru_cache(_KEPT)
def operation(name: str) -> str | None:
    """The collective in a kernel's or range's name; None where it does not tell (`ncclDevKernel_Generic`)."""
    head = _own_name(name).lower()
    for label, pattern in _OPERATIONS:
        if pattern.search(head):
            return label
    return None


def _own_name(name: str) -> str:
    """The name with its namespaces, without template arguments and types, which may hold other words."""
    plain = name.replace("(anonymous namespace)", "").replace("{anonymous}", "")
    return re.split(r"[(<]", plain, maxsplit=1)[0] or plain


@lru_cache(_KEPT)
def range_role(name: str) -> RangeRole:
    """The role of an annotation or NVTX range by its name."""
    found = _ROLES.fullmatch(name)
    return RangeRole[found.lastgroup] if found and found.lastgroup else RangeRole.OTHER


@lru_cache(_KEPT)
def api_role(name: str) -> RangeRole:
    """LAUNCH, SYNC or API for a CUDA or HIP call; version suffixes (`_v7000`, `_ptsz`) are ignored."""
    bare = _SUFFIX.sub("", name)
    if _SYNC.fullmatch(bare):
        return RangeRole.SYNC
    return RangeRole.LAUNCH if _LAUNCH.fullmatch(bare) else RangeRole.API


def kinds_of(names: Sequence[str], codes: Column) -> Column:
    """The kind of each kernel, by name codes."""
    return _lookup(kernel_kind, names, codes)


def roles_of(names: Sequence[str], codes: Column, *, api: bool) -> Column:
    """The role of each range, by name codes; `api` says that they are driver calls."""
    return _lookup(api_role if api else range_role, names, codes)


def _lookup(classify: Callable[[str], int], names: Sequence[str], codes: Column) -> Column:
    """The class of each code's name, asking once for each name that occurs; ABSENT stays ABSENT."""
    table = np.full(len(names) + 1, ABSENT, dtype=np.int64)
    for code in np.flatnonzero(np.bincount(codes + 1, minlength=1)[1:]).tolist():
        table[code] = classify(names[code])
    return table[codes]
