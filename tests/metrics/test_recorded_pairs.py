"""Sends and receives of step records: matched by pair and order, and done when the first side is."""

from __future__ import annotations

import msgspec

from aorta.artefacts.steps import CollectiveId, DecodedStep, StepRange, StepRanges
from aorta.metrics.collectives import MatchedCollectives, match_collectives
from tests.support.steps import step

MS = 1_000_000


def moves(rank: int, *calls: tuple[str, int, int, int]) -> list[DecodedStep]:
    """One step of 100 ms with the operation, peer, start and end of each call."""
    ranges = [
        StepRange(
            stream="p2p",
            tag="program",
            start_ms=float(start),
            end_ms=float(end),
            metadata=CollectiveId(op=op, group="0", seq=number, bytes=8, peer=peer),
        )
        for number, (op, peer, start, end) in enumerate(calls)
    ]
    whole = step(0, (0, 100), rank=rank, world_size=3)
    return [msgspec.structs.replace(whole, profile=StepRanges(ranges=ranges))]


def test_each_send_is_done_when_its_receive_is() -> None:
    """Rank 0 sends twice and waits for both at 90; rank 1 takes the first at 30 and the second at 60."""
    found = match_collectives(
        {
            0: moves(0, ("send", 1, 10, 90), ("send", 1, 20, 90)),
            1: moves(1, ("recv", 0, 25, 30), ("recv", 0, 50, 60), ("send", 2, 70, 75)),
            2: moves(2, ("recv", 1, 5, 80)),
        },
        dict.fromkeys(range(3), "one machine"),
    )
    assert isinstance(found, MatchedCollectives)
    assert found.unmatched == 0
    made = {(item.key[1], item.key[2]): item for item in found.matched}
    assert {key: (item.op, item.ranks, (item.end // MS).tolist()) for key, item in made.items()} == {
        ("0 0>1", 0): ("send_recv", (0, 1), [30, 30]),
        ("0 0>1", 1): ("send_recv", (0, 1), [60, 60]),
        ("0 1>2", 0): ("send_recv", (1, 2), [75, 75]),
    }
