"""Top kernels and collectives."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aorta.artefacts.events import ABSENT, Kind, TracedCollectives, build
from aorta.metrics.trace_tops import bus_bandwidth, top_collectives, top_kernels
from tests.support.traces import trace


def test_kernels_by_total_time() -> None:
    made = trace(
        [(0, 10, Kind.COMPUTE), (10, 40, Kind.COMPUTE), (40, 60, Kind.COMPUTE), (60, 65, Kind.COPY)],
        names=["a", "b", "b", "copy"],
    )
    first, second, third = top_kernels(made)
    assert (first.name, first.count, first.total_ns, first.median_ns) == ("b", 2, 30 + 20, 25.0)
    assert (first.min_ns, first.max_ns, first.share) == (20, 30, 50 / 65)
    assert [second.name, third.name, third.kind] == ["a", "copy", "copy"]
    assert [total.name for total in top_kernels(made, 1)] == ["b"]
    assert top_kernels(trace([])) == []


def test_collectives_by_operation_and_size() -> None:
    made = trace(
        [
            (0, 100, Kind.COMMUNICATION),
            (200, 260, Kind.COMMUNICATION),
            (40, 90, Kind.COMPUTE),
            (300, 310, Kind.COMMUNICATION),
        ],
        names=["n", "n", "gemm", "m"],
    )
    names = (*made.names, "all_reduce", "0")
    op, group = len(names) - 2, len(names) - 1
    known = build(
        TracedCollectives,
        3,
        event=[0, 2, 3],
        op=[op, op, ABSENT],
        group=[group, group, ABSENT],
        bytes_in=[4000, 4000, ABSENT],
        group_size=[4, 4, ABSENT],
    )
    first, second = top_collectives(replace(made, names=names, collectives=known))
    assert (first.op, first.group, first.bytes, first.count) == ("all_reduce", "0", 4000, 2)
    assert (first.total_ns, first.exposed_ns) == (100 + 60, 100 - 50 + 60)
    assert first.bus_gb_per_s == pytest.approx(4000 / 80 * 2 * 3 / 4)
    assert (second.op, second.group, second.bytes, second.bus_gb_per_s) == (None, None, None, None)
    assert top_collectives(trace([(0, 1, Kind.COMPUTE)])) == []


@pytest.mark.parametrize(
    ("op", "size", "ranks", "ns", "expected"),
    [
        ("all_reduce", 1000, 2, 10.0, 100 * 2 * 1 / 2),
        ("all_gather", 1000, 4, 10.0, 100 * 3 / 4),
        ("broadcast", 1000, 4, 10.0, 100),
        ("all_reduce", 0, 2, 10.0, 0),
        ("all_reduce", ABSENT, 2, 10.0, None),
        ("all_reduce", 1000, ABSENT, 10.0, None),
        ("all_reduce", 1000, 2, 0.0, None),
        ("barrier", 1000, 2, 10.0, None),
        (None, 1000, 2, 10.0, None),
    ],
)
def test_bus_bandwidth(op: str | None, size: int, ranks: int, ns: float, expected: float | None) -> None:
    assert bus_bandwidth(op, size, ranks, ns) == expected


def test_calls_of_one_kernel_share_its_time() -> None:
    """A send and a receive in the first kernel of 100 ns; a send alone in the second of 60."""
    made = trace([(0, 100, Kind.COMMUNICATION), (200, 260, Kind.COMMUNICATION)], names=["n", "n"])
    names = (*made.names, "send_recv", "0 own>1", "0 1>own")
    op, out, back = (len(names) - place for place in (3, 2, 1))
    known = build(
        TracedCollectives,
        3,
        event=[0, 0, 1],
        op=[op, op, op],
        group=[out, back, out],
        bytes_in=[4000, 4000, 4000],
        group_size=[2, 2, 2],
    )
    sent, received = top_collectives(replace(made, names=names, collectives=known))
    assert (sent.group, sent.count, sent.total_ns, sent.exposed_ns) == ("0 own>1", 2, 110, 110)
    assert (received.group, received.count, received.total_ns) == ("0 1>own", 1, 50)
    assert (sent.bus_gb_per_s, received.bus_gb_per_s) == (None, None)
