"""How often `aorta gate` is right: step times recorded on this machine, and pairs drawn from them.

    python benchmarks/gate_power.py record TIMES.json --seconds 300
    python benchmarks/gate_power.py resample TIMES.json --pairs 1000
    python benchmarks/gate_power.py real PAIRS.jsonl --cpu --pairs 30 --steps 10 --minutes 20

`record` times the same CPU-bound step again and again while another process is switched on and off beside it.
`resample` draws pairs from stretches of that recording. A and B of an equal pair are the same program; in an
unequal pair, every step of B is multiplied by 1 + --slowdown. On top of the noise of the recording, the speed
of the machine changes at random moments, by up to --drift. `real` runs the pairs: B does 1 + --slowdown times
the work of A, and the other process is switched on and off at random moments. `real` appends a line to
PAIRS.jsonl after each pair and stops after --minutes; the same command goes on from there. The intervals are
Clopper and Pearson's, 95 %.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from pathlib import Path

from aorta.metrics.gate import GatePlan, SequentialTest

COUNT = 120_000


def work(count: int = COUNT) -> int:
    total = 0
    for number in range(count):
        total += number * number % 7
    return total


def _load() -> None:
    while True:
        work()


class Beside:
    """Another process that keeps a CPU busy, switched on and off at random moments."""

    def __init__(self) -> None:
        self._chance, self._process, self._until = random.Random(1), None, 0.0

    def maybe(self) -> None:
        """Switch where it is time."""
        if time.monotonic() < self._until:
            return
        if self._process is None:
            self._process = multiprocessing.Process(target=_load, daemon=True)
            self._process.start()
        else:
            self.end()
        self._until = time.monotonic() + self._chance.uniform(2.0, 20.0)

    def end(self) -> None:
        """Switch off."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self._process = None


def record(path: Path, seconds: float, *, cpu: bool) -> None:
    clock = time.process_time_ns if cpu else time.perf_counter_ns
    times, beside, start = [], Beside(), time.monotonic()
    while time.monotonic() - start < seconds:
        beside.maybe()
        began = clock()
        work()
        times.append(clock() - began)
    beside.end()
    path.write_text(json.dumps(times))
    print(f"{len(times)} steps, median {statistics.median(times) / 1e6:.2f} ms")


class Drift:
    """A machine that is now and then slower: the factor of each step, for dwell times of a few blocks."""

    def __init__(self, most: float, chance: random.Random) -> None:
        self._most, self._chance = most, chance
        self._factor, self._left = 1.0, 0

    def factor(self) -> float:
        """The factor of the next step."""
        if self._left <= 0:
            self._factor = 1.0 + self._chance.choice((0.0, self._chance.uniform(0.0, self._most)))
            self._left = self._chance.randrange(150, 3000)
        self._left -= 1
        return self._factor


def one_pair(times: list[int], slowdown: float, options: argparse.Namespace, seed: int) -> tuple[bool, int]:
    """(B is found slower, the blocks that it took); segments follow one another in the recording."""
    chance = random.Random(seed)
    gate, drift = SequentialTest(GatePlan()), Drift(options.drift, chance)
    place, steps = chance.randrange(len(times)), options.steps
    while not gate.decided:
        measured: dict[str, list[float]] = {"A": [], "B": []}
        for side in gate.order():
            segment = [times[(place + step) % len(times)] * drift.factor() for step in range(steps)]
            place += steps + options.gap
            for _ in range(options.gap):
                drift.factor()
            factor = 1.0 + slowdown if side == "B" else 1.0
            measured[side].append(factor * statistics.median(segment))
        gate.add(measured["A"], measured["B"])
    return gate.slower, gate.blocks


def real_pair(slowdown: float, options: argparse.Namespace, beside: Beside) -> dict[str, object]:
    """Returns what the gate says of one pair that runs now, and what it was told."""
    clock = time.process_time_ns if options.cpu else time.perf_counter_ns
    # Both numbers live as long: one object more is enough to move the allocator onto the edge of a pool.
    counts = {"A": COUNT, "B": round(COUNT * (1.0 + slowdown))}
    gate, runs = SequentialTest(GatePlan()), list[float]()
    while not gate.decided:
        measured: dict[str, list[float]] = {"A": [], "B": []}
        for side in gate.order():
            steps = []
            for _ in range(options.steps):
                beside.maybe()
                began = clock()
                work(counts[side])
                steps.append(clock() - began)
            measured[side].append(statistics.median(steps))
        gate.add(measured["A"], measured["B"])
        runs += measured["A"]
    return {
        "slowdown": slowdown,
        "cpu": options.cpu,
        "steps": options.steps,
        "slower": gate.slower,
        "sure": gate.sure,
        "blocks": gate.blocks,
        "ratio": gate.ratio,
        "spread": max(runs) / min(runs) - 1.0,
        "load": os.getloadavg()[0],
        "wall_s": time.time(),
    }


def real(options: argparse.Namespace) -> None:
    """Run the pairs that the file does not hold yet, an equal and an unequal one in turn, and count all."""
    lines = options.file.read_text().splitlines() if options.file.exists() else []
    held = [
        item
        for item in map(json.loads, lines)
        if item["cpu"] == options.cpu and item["steps"] == options.steps
    ]
    beside, until = Beside(), time.monotonic() + 60.0 * options.minutes
    sides = {"equal": 0.0, f"{options.slowdown:.1%} slower": options.slowdown}
    for at in range(options.pairs):
        for slowdown in sides.values():
            if sum(item["slowdown"] == slowdown for item in held) > at or time.monotonic() > until:
                continue
            held.append(real_pair(slowdown, options, beside))
            with options.file.open("a") as file:
                file.write(json.dumps(held[-1]) + "\n")
    beside.end()
    for name, slowdown in sides.items():
        pairs = [item for item in held if item["slowdown"] == slowdown]
        if pairs:
            tell(name, [(item["slower"], item["blocks"]) for item in pairs])
            unsure = sum(not item["sure"] for item in pairs)
            spreads, loads = [item["spread"] for item in pairs], [item["load"] for item in pairs]
            print(
                f"  not decided: {unsure}; runs of A: slowest over fastest {statistics.median(spreads):.0%} "
                f"(median of the pairs), {max(spreads):.0%} (most); load {min(loads):.1f} to {max(loads):.1f}"
            )


def tell(name: str, pairs: list[tuple[bool, int]]) -> None:
    """Print how many pairs were found slower, with the binomial interval, and how many blocks they took."""
    found, blocks = sum(slower for slower, _ in pairs), [took for _, took in pairs]
    low, high = binomial(found, len(pairs))
    print(
        f"{name}: {found} of {len(pairs)} found slower ({100 * found / len(pairs):.1f} %, "
        f"95 % interval {100 * low:.1f} to {100 * high:.1f} %); "
        f"blocks: median {statistics.median(blocks):.0f}, most {max(blocks)}",
        flush=True,
    )


def resample(options: argparse.Namespace) -> None:
    times, steps = json.loads(options.file.read_text()), options.steps
    pairs, slowdown = options.pairs, options.slowdown
    segments = [statistics.median(times[at : at + steps]) for at in range(0, len(times) - steps, steps)]
    low, high = (statistics.quantiles(segments, n=20)[place] for place in (0, 18))
    print(f"{len(times)} steps; segments of {steps}: 5 % to 95 % is {high / low - 1:.0%} apart")
    for name, factor in (("equal", 0.0), (f"{slowdown:.1%} slower", slowdown)):
        tell(name, [one_pair(times, factor, options, seed) for seed in range(pairs)])


def binomial(found: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval, by bisection on the binomial's tails."""
    tail = (1 - confidence) / 2

    def at_least(p: float) -> float:
        return sum(math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(found, of + 1))

    def at_most(p: float) -> float:
        return sum(math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(found + 1))

    def solve(function: object, rising: bool) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            above = function(middle) > tail  # type: ignore[operator]
            low, high = (low, middle) if above == rising else (middle, high)
        return (low + high) / 2

    return (0.0 if found == 0 else solve(at_least, True)), (1.0 if found == of else solve(at_most, False))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["record", "resample", "real"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--minutes", type=float, default=20.0, help="most minutes of one turn of `real`")
    parser.add_argument("--cpu", action="store_true", help="CPU time of each step instead of wall time")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument(
        "--drift", type=float, default=0.3, help="most by which the machine is slower now and then"
    )
    parser.add_argument("--slowdown", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=50, help="of a segment")
    parser.add_argument("--gap", type=int, default=25, help="steps between two segments, such as a start")
    options = parser.parse_args()
    if options.what == "record":
        record(options.file, options.seconds, cpu=options.cpu)
    elif options.what == "real":
        real(options)
    else:
        resample(options)


if __name__ == "__main__":
    main()
