"""Do copies run beside matrix products on this GPU? A prototype outside of the trainer.

Matrix products run on one stream, copies (between pinned host memory and the device, and within the
device) on another of high priority. Per copy: each alone, one after the other on one stream (serial), both at
once (overlapped); the ideal is the longer of the two alone. Three variants of the same work:

- `chunked`: product and copy in pieces, each piece of the product after the copy of its rows;
- `late_wait`: the copy is enqueued first, and the product's stream waits for it only at the end;
- `normal_priority`: as overlapped, the copy's stream without priority.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from aorta.artefacts.io import write_json
from aorta.errors import AortaError, ConfigError
from aorta.units import BYTES_PER_MIB

COPIES = ("h2d", "d2h", "d2d")
CHUNKS = 4
WARMUP = 5


@dataclass(frozen=True, slots=True)
class Times:
    """One way to do the work, in ms over the iterations."""

    median_ms: float
    low_ms: float
    """The 5th percentile."""
    high_ms: float
    """The 95th percentile."""


@dataclass(frozen=True, slots=True)
class Result:
    """One kind of copy beside the matrix product."""

    copy: str
    product: Times
    copied: Times
    serial: Times
    overlapped: Times
    variants: dict[str, Times]
    ideal_ms: float
    """The longer one of product and copy, each alone."""
    savings_ms: float
    """Serial less overlapped."""
    savings_ratio: float | None
    """Share of what overlap could save at most, serial less ideal; None where that is nothing."""
    copy_gib_per_s: float


def spread(milliseconds: Sequence[float]) -> Times:
    """Median and percentiles of at least one time."""
    ordered = sorted(milliseconds)
    last = len(ordered) - 1
    return Times(
        median_ms=statistics.median(ordered),
        low_ms=ordered[round(0.05 * last)],
        high_ms=ordered[round(0.95 * last)],
    )


def result(copy: str, size_bytes: int, alone: tuple[Times, Times], both: dict[str, Times]) -> Result:
    """Put the times of one kind of copy together.

    Args:
        copy: its kind.
        size_bytes: copied.
        alone: product, copy.
        both: `serial`, `overlapped` and the variants.
    """
    product, copied = alone
    ideal = max(product.median_ms, copied.median_ms)
    serial, overlapped = both["serial"], both["overlapped"]
    savings, possible = serial.median_ms - overlapped.median_ms, serial.median_ms - ideal
    return Result(
        copy=copy,
        product=product,
        copied=copied,
        serial=serial,
        overlapped=overlapped,
        variants={name: times for name, times in both.items() if name not in ("serial", "overlapped")},
        ideal_ms=ideal,
        savings_ms=savings,
        savings_ratio=savings / possible if possible > 0 else None,
        copy_gib_per_s=size_bytes / (1 << 30) / (copied.median_ms / 1000),
    )


class Bench:
    """Operands, streams and the ways to run them, on one GPU.

    Args:
        device: a GPU.
        size: of the square matrices, bf16.
        copy_mb: MiB of a copy.
        iterations: timed runs of each way.
    """

    def __init__(self, device: torch.device, size: int, copy_mb: int, iterations: int) -> None:
        self.device, self.iterations = device, iterations
        self.size_bytes = copy_mb * BYTES_PER_MIB
        self._left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        self._right = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        self._product = torch.empty_like(self._left)
        self._compute = torch.cuda.Stream(device)
        self._fast = torch.cuda.Stream(device, priority=-1)
        self._normal = torch.cuda.Stream(device, priority=0)

    def measure(self, copy: str) -> Result:
        """All ways to run the product beside one kind of copy."""
        host = torch.empty(self.size_bytes, dtype=torch.uint8, pin_memory=True)
        first = torch.empty(self.size_bytes, dtype=torch.uint8, device=self.device)
        pairs = {"h2d": (first, host), "d2h": (host, first), "d2d": (torch.empty_like(first), first)}
        target, source = pairs[copy]
        product, copied, ways = self._ways(target, source)
        alone = self._time(product), self._time(copied)
        return result(copy, self.size_bytes, alone, {name: self._time(way) for name, way in ways.items()})

    def _ways(
        self, target: torch.Tensor, source: torch.Tensor
    ) -> tuple[Callable[[], None], Callable[[], None], dict[str, Callable[[], None]]]:
        """The product, the copy, and the ways to run both; called with the product's stream current."""
        targets, sources = target.chunk(CHUNKS), source.chunk(CHUNKS)

        def product() -> None:
            torch.mm(self._left, self._right, out=self._product)

        def copied() -> None:
            target.copy_(source, non_blocking=True)

        def serial() -> None:
            product()
            copied()

        def overlapped(stream: torch.cuda.Stream) -> None:
            stream.wait_stream(self._compute)
            product()
            with torch.cuda.stream(stream):
                copied()
            self._compute.wait_stream(stream)

        def late_wait() -> None:
            self._fast.wait_stream(self._compute)
            with torch.cuda.stream(self._fast):
                copied()
            product()
            self._compute.wait_stream(self._fast)

        def chunked() -> None:
            self._fast.wait_stream(self._compute)
            rows, out = self._left.chunk(CHUNKS), self._product.chunk(CHUNKS)
            for index in range(CHUNKS):
                with torch.cuda.stream(self._fast):
                    targets[index].copy_(sources[index], non_blocking=True)
                    there = self._fast.record_event()
                self._compute.wait_event(there)
                torch.mm(rows[index], self._right, out=out[index])
            self._compute.wait_stream(self._fast)

        ways: dict[str, Callable[[], None]] = {
            "serial": serial,
            "overlapped": lambda: overlapped(self._fast),
            "chunked": chunked,
            "late_wait": late_wait,
            "normal_priority": lambda: overlapped(self._normal),
        }
        return product, copied, ways

    def _time(self, way: Callable[[], None]) -> Times:
        """Each run by itself, from an idle GPU, between events on the stream of the product."""
        taken = []
        for index in range(WARMUP + self.iterations):
            torch.cuda.synchronize(self.device)
            with torch.cuda.stream(self._compute):
                start = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                start.record()
                way()
                end.record()
            end.synchronize()
            if index >= WARMUP:
                taken.append(float(start.elapsed_time(end)))
        return spread(taken)


def table(results: Sequence[Result]) -> list[str]:
    """Lines of median [5%, 95%] in ms."""
    lines = []
    for item in results:
        ratio = (
            "nothing to save" if item.savings_ratio is None else f"{item.savings_ratio:.0%} of the possible"
        )
        lines.append(f"{item.copy}: {item.copy_gib_per_s:.1f} GiB/s alone")
        named = {
            "product alone": item.product,
            "copy alone": item.copied,
            "serial": item.serial,
            "overlapped": item.overlapped,
            **item.variants,
        }
        lines += [
            f"  {name:<16}{times.median_ms:>9.3f} ms  [{times.low_ms:.3f}, {times.high_ms:.3f}]"
            for name, times in named.items()
        ]
        lines.append(
            f"  {'ideal':<16}{item.ideal_ms:>9.3f} ms; overlap saves {item.savings_ms:.3f} ms, {ratio}"
        )
    return lines


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _run(given: argparse.Namespace) -> None:
    count = torch.cuda.device_count()
    if not 0 <= given.device < count:
        raise ConfigError(
            f"--device {given.device}: {count} GPU(s) visible",
            "give a GPU number, counted from 0; this prototype needs a GPU",
        )
    device = torch.device("cuda", given.device)
    torch.cuda.set_device(device)
    bench = Bench(device, given.matrix_size, given.copy_mb, given.iterations)
    results = [bench.measure(copy) for copy in COPIES]
    name = torch.cuda.get_device_name(device)
    print(f"{name}, torch {torch.__version__}: {given.matrix_size}² bf16 product, {given.copy_mb} MiB copy")
    print("\n".join(table(results)))
    if given.json:
        content = {
            "device": name,
            "torch": str(torch.__version__),  # a class of torch's, which JSON does not know
            "matrix_size": given.matrix_size,
            "copy_mb": given.copy_mb,
            "iterations": given.iterations,
            "results": [asdict(item) for item in results],
        }
        write_json(given.json, content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and turn errors of ours into one message.

    Returns:
        The exit code.
    """
    flags = argparse.ArgumentParser(
        prog="run_sdma_prototype.py", description="Run copies next to matrix products."
    )
    flags.add_argument("--device", type=int, default=0, help="number of the GPU, as torch counts")
    flags.add_argument("--matrix-size", type=_positive, default=4096)
    flags.add_argument("--copy-mb", type=_positive, default=64, help="MiB")
    flags.add_argument("--iterations", type=_positive, default=50)
    flags.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this file")
    given = flags.parse_args(arguments)
    try:
        _run(given)
    except AortaError as error:
        print(f"aorta: {error}", file=sys.stderr)
        return error.exit_code
    return 0
