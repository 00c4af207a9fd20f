"""Sends and receives of Kineto traces: each send is matched with its receive, by pair and order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aorta.metrics.collectives import MatchedCollectives, match_timelines
from aorta.metrics.trace_work import gpu_work, timelines
from aorta.readers.kineto import read_many
from tests.support import kineto

US = 1_000


def move(name: str, start: int, length: int, correlation: int, **ends: int) -> list[dict[str, Any]]:
    """A launch and the kernel of a send or receive, in µs."""
    arguments = {
        "Collective name": name,
        "Process Group Name": "pp",
        "In msg nelems": 256,
        "Out msg nelems": 256,
        "dtype": "Float",
        "Seq": correlation,  # each rank counts for itself
        **{key.replace("_", " "): value for key, value in ends.items()},
    }
    return [
        kineto.event("cuda_runtime", "cudaLaunchKernel", start - 5, 2, correlation=correlation),
        kineto.kernel(
            "ncclDevKernel_SendRecv(args)", start, length, stream=9, correlation=correlation, **arguments
        ),
    ]


def trace(folder: Path, rank: int, moves: list[tuple[str, int, int, dict[str, int]]]) -> Path:
    """Three steps of 1 ms, with the moves of a step in each."""
    events: list[dict[str, Any]] = []
    number = 100 * rank
    for step in range(3):
        begin = 1_000 * step + 10
        events.append(kineto.event("user_annotation", f"ProfilerStep#{step}", begin, 1_000))
        number += 1
        events.append(kineto.event("cuda_runtime", "cudaLaunchKernel", begin + 1, 2, correlation=number))
        events.append(kineto.kernel("gemm", begin + 5, 100, correlation=number))
        for name, start, length, ends in moves:
            number += 1
            events += move(name, begin + start, length, number, **ends)
    return kineto.write(folder / f"rank{rank}.json", events, distributedInfo={"rank": rank, "world_size": 3})


def test_a_send_is_matched_with_its_receive_though_the_group_has_more_members(tmp_path: Path) -> None:
    paths = [
        trace(tmp_path, 0, [("send", 200, 50, {"Dst_Rank": 1}), ("recv", 600, 50, {"Src_Rank": 1})]),
        trace(
            tmp_path,
            1,
            [
                ("recv", 150, 100, {"Src_Rank": 0}),
                ("send", 400, 50, {"Dst_Rank": 2}),
                ("send", 610, 40, {"Dst_Rank": 0}),
            ],
        ),
        trace(tmp_path, 2, [("recv", 300, 150, {"Src_Rank": 1})]),
    ]
    work = {}
    for one in read_many(paths):
        assert not isinstance(one, Exception)
        assert one.rank is not None
        found = gpu_work(one)
        assert found is not None
        work[one.rank] = found
    made = match_timelines(timelines(work), dict.fromkeys(work, "one machine"))
    assert isinstance(made, MatchedCollectives)
    assert made.unmatched == 0
    steps = {item.key[0] for item in made.matched}
    first = [item for item in made.matched if item.key[0] == min(steps)]
    assert {(item.key[1], item.ranks, item.bytes) for item in first} == {
        ("pp 0>1", (0, 1), 1024),
        ("pp 1>2", (1, 2), 1024),
        ("pp 1>0", (0, 1), 1024),
    }
