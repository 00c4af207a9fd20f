"""Makes a large Kineto trace of a small one: its events again and again, with shifted times and ids.

    python benchmarks/trace_generate.py BASE OUT --mb 1000 [--steps many|few]

`many`: one ProfilerStep a copy; `few`: three over the whole file. Times are shifted in integer ns;
correlations, external ids and flow ids so that no two copies share one. What the trace says of its GPU
repeats exactly, which `trace_speed.py` checks on the result.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

_SHIFTED = re.compile(r'("ts": |"correlation": |"External id": |"id": )(\d+(?:\.\d+)?)')
_GAP_NS = 1_000_000
_BETWEEN = re.compile(r'\s*\},\s*\{(?=\s*"(?:ph|name)": )')
"""Where one event ends and the next begins."""


class Base:
    """The events of the base in its own layout, cut at the numbers that a copy changes."""

    def __init__(self, path: Path) -> None:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt") as stream:
            text = stream.read()
        trace = json.loads(text, parse_float=Decimal)
        events = [
            e for e in trace.pop("traceEvents") if not str(e.get("name", "")).startswith("ProfilerStep#")
        ]
        timed = [e for e in events if e.get("ph") == "X" and e.get("cat") != "Trace"]
        self.header = json.dumps(trace, default=float)[:-1]
        self.start = min(int(e["ts"] * 1000) for e in timed)
        self.end = max(int((e["ts"] + e["dur"]) * 1000) for e in timed)
        first = text.index("{", text.index('"traceEvents"'))
        _, after = json.JSONDecoder().raw_decode(text, text.index("[", text.index('"traceEvents"')))
        pieces = _BETWEEN.split(text[first + 1 : text.rindex("}", first, after)].rstrip())
        kept = [piece for piece in pieces if '"name": "ProfilerStep#' not in piece]
        assert len(kept) == len(events), "the base's events are not all laid out alike"
        self.between = _BETWEEN.search(text, first)[0]
        self.annotation = next(piece for piece in kept if '"cat": "user_annotation"' in piece)
        self.pieces = _SHIFTED.split(self.between.join(kept))
        self.ids = 1 + max(
            int(n) for label, n in zip(self.pieces[1::3], self.pieces[2::3], strict=True) if "ts" not in label
        )

    @property
    def period(self) -> int:
        """From the start of a copy to the start of the next, in ns."""
        return self.end - self.start + _GAP_NS

    def copy(self, number: int) -> str:
        """The text of one copy."""
        shift, ids = number * self.period, number * self.ids
        pieces = list(self.pieces)
        for index in range(1, len(pieces), 3):
            if pieces[index] == '"ts": ':
                pieces[index + 1] = _us(_ns(pieces[index + 1]) + shift, decimals="." in pieces[index + 1])
            elif pieces[index + 1] != "0":
                pieces[index + 1] = str(int(pieces[index + 1]) + ids)
        return "".join(pieces)

    def step(self, number: int, first: int, last: int) -> str:
        """A ProfilerStep from the start of copy `first` to the end of copy `last`."""
        start = self.start + first * self.period
        length = (last - first + 1) * self.period - _GAP_NS
        values = {"name": f'"ProfilerStep#{number}"', "ts": _us(start), "dur": _us(length)}
        text = self.annotation
        for key, value in values.items():
            text = re.sub(rf'("{key}": )("[^"]*"|[\d.]+)', rf"\g<1>{value}", text, count=1)
        return text


def _ns(text: str) -> int:
    whole, _, fraction = text.partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def _us(ns: int, *, decimals: bool = True) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}" if decimals else str(ns // 1000)


def chunks(base: Base, copies: int, steps: str) -> Iterator[str]:
    """The file in pieces."""
    yield base.header + ',\n  "traceEvents": [\n  {'
    borders = range(copies + 1) if steps == "many" else sorted({0, copies // 3, 2 * copies // 3, copies})
    for number, (first, after) in enumerate(itertools.pairwise(borders)):
        yield base.step(number, first, after - 1) + base.between
    for number in range(copies):
        yield base.copy(number) + (base.between if number < copies - 1 else "\n  }")
    yield "\n  ]\n}\n"


def generate(source: Path, out: Path, megabytes: int, steps: str) -> int:
    """Write the file; the number of copies in it."""
    base = Base(source)
    copies = max(round(megabytes * 10**6 / len(base.copy(1))), 1)
    with out.open("w") as stream:
        for chunk in chunks(base, copies, steps):
            stream.write(chunk)
    return copies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--steps", choices=("many", "few"), default="many")
    arguments = parser.parse_args()
    copies = generate(arguments.base, arguments.out, arguments.mb, arguments.steps)
    print(f"{arguments.out}: {copies} copies, {arguments.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
