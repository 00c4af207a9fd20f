"""A Kineto trace with the shape of a DualPipe profile: the exchange of one microbatch's tokens under the
computation of another one's.

Each step has `PAIRS` pairs of passes. In each pair, attention and experts compute for `COMPUTE` µs without a
gap. Beside them run dispatch and combine of DeepEP, `EXCHANGE` µs each. After the pairs, the last combine
runs for `EXPOSED` µs with nothing beside it, and the GPU idles for `IDLE` µs until the step ends.
"""

from __future__ import annotations

from pathlib import Path

from aorta.metrics.trace_breakdown import break_down
from aorta.readers.kineto import read_many
from tests.support import kineto

PAIRS, COMPUTE, EXCHANGE, EXPOSED, IDLE = 5, 400, 150, 30, 20
STEP = PAIRS * COMPUTE + EXPOSED + IDLE
DISPATCH = "void deep_ep::internode::dispatch<false, 8>(int4*, float*)"
COMBINE = "void deep_ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*)"


def write(path: Path) -> Path:
    events = []
    for step in range(3):
        begin = step * STEP
        events.append(kineto.event("user_annotation", f"ProfilerStep#{step}", begin, STEP))
        for pair in range(PAIRS):
            first = begin + pair * COMPUTE
            for half, name in enumerate(("attention", "expert_gemm")):
                events.append(kineto.kernel(name, first + half * COMPUTE // 2, COMPUTE // 2))
            for half, name in enumerate((DISPATCH, COMBINE)):
                events.append(kineto.kernel(name, first + 10 + half * COMPUTE // 2, EXCHANGE, stream=20))
        events.append(kineto.kernel(COMBINE, begin + PAIRS * COMPUTE, EXPOSED, stream=20))
    return kineto.write(path, events, distributedInfo={"rank": 0, "world_size": 128})


def test_the_exchange_of_tokens_is_hidden_by_computation(tmp_path: Path) -> None:
    (trace,) = read_many([write(tmp_path / "rank0.json")])
    assert not isinstance(trace, Exception)
    found = break_down(trace)
    assert found is not None
    steps = len(found.comm_ns)
    hidden, whole = PAIRS * 2 * EXCHANGE, PAIRS * 2 * EXCHANGE + EXPOSED
    assert found.compute_ns.tolist() == [PAIRS * COMPUTE * 1_000] * steps
    assert found.comm_ns.tolist() == [whole * 1_000] * steps
    assert found.hidden_comm_ns.tolist() == [hidden * 1_000] * steps
    assert found.exposed_comm_ns.tolist() == [EXPOSED * 1_000] * steps
    assert found.overlap_ratio == hidden / whole
