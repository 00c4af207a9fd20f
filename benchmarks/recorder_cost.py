"""What the recorder does on the training's threads, by part: µs and calls a step.

    torchrun --nproc_per_node 2 benchmarks/recorder_cost.py [--steps 40] [--json FILE]

For FSDP2 and DDP at the default configuration. Each part is timed by the host's clock around its calls; what
it calls of another part counts there. Timing a call costs about 0.2 µs itself, and a part that runs on
autograd's thread counts as well. `copy` replaces a copy that the loop makes without the recorder too, and
`exchange` the strategy's own way to call the collectives, so neither is all overhead;
`instrument_overhead.py` says what is. On a CPU: --small.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loops import Training, say, settings, shared_folder, write

from aorta.instrument import allocator, channel, collectives, gradients, opened, recorder, scalars, sharding
from aorta.instrument.streams import CudaClock, HostClock
from aorta.train.world import join

PARTS: dict[str, list[tuple[Any, str]]] = {
    "marks": [(CudaClock, "mark"), (HostClock, "mark")],
    "exchange": [
        (gradients.WatchedGroup, "allreduce"),
        (sharding.ShardedExchange, "gather"),
        (sharding.ShardedExchange, "scatter"),
        (collectives.Collectives, "all_reduce"),
    ],
    "collective": [(collectives.Collectives, "own")],
    "waits": [
        (sharding.ShardedExchange, name)
        for name in (
            "_before_weights",
            "_after_weights",
            "_first_on_gradient",
            "_last_on_gradient",
            "_open",
            "_close",
            "_note_computed",
        )
    ],
    "copy": [(recorder.StepRecorder, "to_device")],
    "memory": [(allocator.AllocatorCounts, "start"), (allocator.AllocatorCounts, "read")],
    "result": [(opened.Step, "result"), (scalars.Landing, "__init__")],
    "read": [(opened.Closed, "read")],
    "hand over": [(channel.RecordChannel, "send")],
    "hear": [(recorder.StepRecorder, "_tell")],
}
"""`collective` is the call of torch's collective itself, with or without a recorder."""


class Costs:
    """Times calls; the time of a call inside another counts for the inner one only."""

    def __init__(self) -> None:
        self.ns: defaultdict[str, int] = defaultdict(int)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._inner = [0]

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, timed."""

        @functools.wraps(call)  # DDP looks at the hook's parameters
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0)
            start = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                taken = time.perf_counter_ns() - start
                self.ns[part] += taken - self._inner.pop()
                self._inner[-1] += taken
                self.calls[part] += 1

        return wrapper

    def clear(self) -> None:
        """Begin anew."""
        self.ns.clear()
        self.calls.clear()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--steps", type=int, default=40)
    flags.add_argument("--small", action="store_true")
    flags.add_argument("--json", type=Path)
    given = flags.parse_args()
    costs, rows = Costs(), []
    for part, places in PARTS.items():
        for owner, name in places:
            setattr(owner, name, costs.timed(part, getattr(owner, name)))
    with join(settings(given.small)) as world:
        folder = shared_folder(world)
        say(world, f"{'strategy':<10}{'part':<12}{'calls':>8}{'µs a step':>12}{'µs a call':>12}")
        for strategy in ("fsdp", "ddp"):
            run = Training(
                settings(given.small, f"distributed.strategy={strategy}"), world, folder / strategy
            )
            for _ in range(10):
                run.step()
            costs.clear()
            for _ in range(given.steps):
                run.step()
            for part in PARTS:
                calls, us = costs.calls[part] / given.steps, costs.ns[part] / given.steps / 1000
                if not calls:
                    continue
                rows.append({"strategy": strategy, "part": part, "calls": calls, "us": us})
                say(world, f"{strategy:<10}{part:<12}{calls:>8.1f}{us:>12.1f}{us / calls:>12.2f}")
            run.close()
        write(given.json, world, {"rows": rows})


if __name__ == "__main__":
    main()
