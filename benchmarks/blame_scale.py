"""Time and memory of blame, lateness and replay by ranks: they must grow with ranks × steps × collectives.

python benchmarks/blame_scale.py --ranks 128 1024 8192 --steps 50
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from aorta.intervals import union
from aorta.metrics.blame import blame
from aorta.metrics.calls import NO_CALLS, TimesByStep
from aorta.metrics.collectives import Matched, MatchedCollectives, RankTimeline
from aorta.metrics.lateness import lateness
from aorta.metrics.whatif import Replays

STEP, MS = 50_000_000, 1_000_000


def job(ranks: int, steps: int, calls: int) -> MatchedCollectives:
    """Steps of 50 ms: compute of 20 to 30 ms before `calls` collectives, to which ranks come at random."""
    rng = np.random.default_rng(1)
    names = tuple(range(ranks))
    numbers = np.arange(steps, dtype=np.int64)
    begins = numbers * STEP
    ready = begins[None, :] + rng.integers(20 * MS, 30 * MS, (ranks, steps))
    matched, spans = [], []
    for number in range(steps):
        left = ready[:, number]
        for call in range(calls):
            entry, end = left + 10_000, np.full(ranks, int(left.max()) + MS)
            matched.append(Matched((number, "world", call), names, entry, end, "all_reduce", 1 << 24))
            spans.append((entry, end))
            left = end
    timelines = {}
    for rank in range(ranks):
        compute = np.stack((begins, ready[rank]), axis=1)
        talk = np.array([(entry[rank], end[rank]) for entry, end in spans], dtype=np.int64)
        timelines[rank] = RankTimeline(
            starts=TimesByStep(numbers, begins),
            compute=compute,
            data=np.empty((0, 2), dtype=np.int64),
            communication=union(talk),
            calls=NO_CALLS,
            ends=TimesByStep(numbers, begins + STEP),
        )
    return MatchedCollectives(timelines=timelines, matched=tuple(matched), unmatched=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--calls", type=int, default=4)
    chosen = parser.parse_args()
    print(" ranks      rows  blame s  late s  replay s  predict s  peak MiB")
    for ranks in chosen.ranks:
        made = job(ranks, chosen.steps, chosen.calls)
        times = [time.perf_counter()]
        blame(made, range(chosen.steps))
        times.append(time.perf_counter())
        lateness(made, range(chosen.steps), 50.0, {})
        times.append(time.perf_counter())
        replays = Replays.of(made, range(chosen.steps))
        times.append(time.perf_counter())
        assert isinstance(replays, Replays)
        replays.as_the_others(("compute",), [0])
        times.append(time.perf_counter())
        took = np.diff(times)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows = ranks * chosen.steps * chosen.calls
        print(
            f"{ranks:6d} {rows:9d} {took[0]:8.2f} {took[1]:7.2f} {took[2]:9.2f} {took[3]:10.2f} {peak:9.0f}"
        )


if __name__ == "__main__":
    main()
